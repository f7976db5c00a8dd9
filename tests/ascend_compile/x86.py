# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel's linalg IR, what Ascend's compiler is given, on this machine: lowered by LLVM's own MLIR."""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import mmap
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from .toolchain import Lowered

LLVM = Path(os.environ.get("LLVM19", "/usr/lib/llvm-19/bin"))
_TOOLS = ("mlir-opt", "mlir-translate", "llc")

_PASSES = [
    "--convert-elementwise-to-linalg",
    "--linalg-fuse-elementwise-ops",
    "--eliminate-empty-tensors",
    "--empty-tensor-to-alloc-tensor",
    "--one-shot-bufferize=allow-return-allocs-from-loops=true allow-unknown-ops=true",
    "--canonicalize",
    "--convert-bufferization-to-memref",
    "--convert-linalg-to-loops",
    "--lower-affine",
    "--convert-scf-to-cf",
    "--expand-strided-metadata",
    "--lower-affine",
    "--convert-math-to-llvm",
    "--convert-arith-to-llvm",
    "--convert-index-to-llvm",
    "--finalize-memref-to-llvm",
    "--convert-cf-to-llvm",
    "--convert-func-to-llvm",
    "--reconcile-unrealized-casts",
]


def missing() -> str:
    """What is not installed here, or nothing."""
    tools = [str(LLVM / tool) for tool in _TOOLS if not (LLVM / tool).exists()]
    return ", ".join(tools + ([] if shutil.which("gcc") else ["gcc"]))


def build(lowered: Lowered, folder: Path) -> Path:
    """A shared library with the kernel in it.

    Raises: RuntimeError with what the tool said that failed.
    """
    # Attributes that only Ascend's compiler knows.
    text = re.sub(r" \{(?:tt\.[^}]*|hivm\.unlikely_condition|DiscreteMemAccess)\}", "", lowered.linalg)
    text = re.sub(r"attributes \{SyncBlockLockArgIdx[^}]*\}", "attributes {llvm.emit_c_interface}", text)
    (folder / "kernel.mlir").write_text(text)
    here = Path(__file__).parent
    for command in (
        [LLVM / "mlir-opt", "kernel.mlir", "--allow-unregistered-dialect", *_PASSES, "-o", "lowered.mlir"],
        [LLVM / "mlir-translate", "lowered.mlir", "--mlir-to-llvmir", "-o", "kernel.ll"],
        [LLVM / "llc", "-O2", "-relocation-model=pic", "-filetype=obj", "kernel.ll", "-o", "kernel.o"],
        ["gcc", "-O1", "-shared", "-fPIC", here / "x86_runtime.c", "kernel.o", "-o", "kernel.so", "-lm"],
    ):
        done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{Path(command[0]).name}: {done.stderr.strip()[:2000]}")
    return folder / "kernel.so"


class _Memref(ctypes.Structure):
    _fields_ = (
        ("allocated", ctypes.c_void_p),
        ("aligned", ctypes.c_void_p),
        ("offset", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )


_SCALARS = {
    "i1": ctypes.c_bool,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}


class Guarded:
    """An array between two pages that nothing may touch; a child process shares it."""

    def __init__(self, values: np.ndarray[Any, Any], at_end: bool) -> None:
        page, inside = mmap.PAGESIZE, max(1, -(-values.nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, inside + 2 * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        for guard in (base, base + page + inside):
            if libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        start = page + (inside - values.nbytes if at_end else 0)
        self.values = np.frombuffer(self._map, values.dtype, values.size, start)
        self.values[:] = values.ravel()

    def memref(self) -> _Memref:
        address = self.values.ctypes.data
        return _Memref(address, address, 0, self.values.size, 1)


class OutOfBounds(Exception):
    """A kernel touched what is not its own."""


def run(
    library: Path, linalg: str, grid: tuple[int, int], arguments: dict[str, Any], at_end: bool
) -> dict[str, Any]:
    """The arrays among the arguments as the kernel leaves them.

    Args:
        arguments: in the kernel's order; each array lies flush with a page that may not be touched: behind it
            (`at_end`) or in front of it.
        grid: numbers of programs, run one after the other.

    Raises: OutOfBounds.
    """
    header = re.search(r"func\.func @(\w+)\((.*?)\) attributes", linalg, re.DOTALL)
    assert header is not None
    kinds = re.findall(r"%arg\d+: (memref<[^>]*>|\w+)", header[2])
    arrays = {k: Guarded(v, at_end) for k, v in arguments.items() if isinstance(v, np.ndarray)}
    workspace = Guarded(np.zeros(64, np.int8), at_end)
    values = [workspace, workspace, *(arrays.get(name, value) for name, value in arguments.items())]
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        kernel = getattr(ctypes.CDLL(str(library)), f"_mlir_ciface_{header[1]}")
        for x, y in itertools.product(*map(range, grid)):
            given = [*values, *grid, 1, x, y, 0]
            kept = [
                value.memref() if isinstance(value, Guarded) else _SCALARS[kind](value)
                for kind, value in zip(kinds, given, strict=True)
            ]
            kernel(*(ctypes.byref(value) if isinstance(value, _Memref) else value for value in kept))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        where = "behind" if at_end else "in front of"
        raise OutOfBounds(f"{signal.Signals(os.WTERMSIG(status)).name}: it touched what is {where} an array")
    assert os.waitstatus_to_exitcode(status) == 0, "the child failed; its traceback is above"
    return {name: array.values.copy() for name, array in arrays.items()}
