# SPDX-License-Identifier: Apache-2.0
"""Ascend's public compilers, one call: Triton kernel -> TTIR -> linalg -> HIVM.

The last step, HIVM -> object, needs `hivmc`, which comes with CANN only: the compiler says that it has not
found it, after all of its own work is done and written down.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Atlas A2 and Atlas A3; both must compile. Each stands for its series: the compilers know no plain 910_93.
TARGETS = {"910B3": "Ascend910B3", "910_93": "Ascend910_9391"}
# The next generation, another compiler: reported, not required.
TARGET_950 = "Ascend910_9589"

UNIFIED_BUFFER_BYTES = 196_608

# The Triton front end is not made for threads; the compilers behind it are processes.
_FRONT_END = threading.Lock()


@dataclass(frozen=True)
class Case:
    """One way in which a launcher can have a kernel compiled."""

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]

    @classmethod
    def of(cls, name: str, kernel: Any, types: dict[str, str], constants: dict[str, Any]) -> Case:
        """The case with its signature in the kernel's order, which is what the compiler goes by.

        Raises: ValueError if types and constants together are not the kernel's parameters.
        """
        parameters = [parameter.name for parameter in kernel.params]
        if sorted([*types, *constants]) != sorted(parameters):
            differing = sorted({*types, *constants} ^ {*parameters})
            raise ValueError(f"case {name!r} and its kernel differ in: {', '.join(differing)}")
        return cls(name, kernel, {p: types[p] for p in parameters if p in types}, dict(constants))

    def __str__(self) -> str:
        return self.name


class CompileError(Exception):
    """What the compiler said, behind the stage in which it stopped: TTIR, linalg or HIVM."""

    def __init__(self, stage: str, said: str) -> None:
        super().__init__(f"{stage}: {said.strip()}")
        self.stage = stage


def _first_error(said: str) -> str:
    lines = [
        line
        for line in said.splitlines()
        if re.search(r"error:|Error|LLVM ERROR|Assertion", line)
        and "hivmc" not in line
        and "BiSheng" not in line
    ]
    return (lines or said.strip().splitlines() or ["no message"])[0]


@functools.cache
def _backend() -> tuple[Any, Any]:
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    target = GPUTarget("npu", TARGETS["910B3"], 0)
    return make_backend(target), target


def _ir(case: Case, for_950: bool) -> tuple[str, str]:
    """The kernel's TTIR and linalg IR; they are the same for all targets but the 950."""
    from triton._C.libtriton import ir
    from triton.compiler import ASTSource

    backend, target = _backend()
    options = backend.parse_options(
        {
            "compile_on_910_95": True,
            "multibuffer": False,
            "enable_auto_bind_sub_block": False,
            "enable_select_analysis": True,
        }
        if for_950
        else {}
    )
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options)
    metadata = {"hash": "none", "target": target, **options.__dict__}
    with _FRONT_END:
        try:
            context = ir.context()
            ir.load_dialects(context)
            backend.load_dialects(context)
            source = ASTSource(case.kernel, signature=case.signature, constants=case.constants)
            module = source.make_ir(
                options, backend.get_codegen_implementation(), backend.get_module_map(), context
            )
            module = stages["ttir"](module, metadata)
            ttir = str(module)
        except Exception as error:
            raise CompileError("TTIR", str(error)) from error
    try:
        return ttir, stages["ttadapter"](ttir, metadata)
    except subprocess.CalledProcessError as error:
        raise CompileError("linalg", _first_error(error.stderr.decode())) from error


@dataclass(frozen=True)
class Lowered:
    """A case as TTIR and linalg IR."""

    case: Case
    ttir: str
    linalg: str


def lower(case: Case, for_950: bool = False) -> Lowered:
    """Raises: CompileError in stage TTIR or linalg."""
    return Lowered(case, *_ir(case, for_950))


def to_hivm(lowered: Lowered, target: str) -> str:
    """HIVM text for a target of 910B or 910_93.

    Raises: CompileError in stage HIVM; also where the compiler gave up its first plan and tried again with
        less (it says so in a note): what comes out then is not what was asked for.
    """
    with tempfile.TemporaryDirectory() as folder:
        said = _bishengir(lowered, target, Path(folder), "bishengir-compile", "true", ())
        hivm = Path(folder, "module.hivm.opt.mlir")
        if "External hivmc run fails" not in said or not hivm.exists():
            raise CompileError("HIVM", _first_error(said))
        if "[NOTE]" in said:
            raise CompileError("HIVM", next(line for line in said.splitlines() if "[NOTE]" in line))
        return hivm.read_text()


def try_950(case: Case) -> int:
    """Bytes of unified buffer on the 950, as its compiler prints them.

    Raises: CompileError.
    """
    lowered = lower(case, for_950=True)
    with tempfile.TemporaryDirectory() as folder:
        said = _bishengir(
            lowered,
            TARGET_950,
            Path(folder),
            "bishengir-compile-a5",
            "false",
            ["--enable-print-memory-allocated-size"],
        )
        if "Cannot find hivmc-a5" not in said or not Path(folder, "module.hivm.opt.mlir").exists():
            raise CompileError("HIVM", _first_error(said))
        bits = re.search(r"UB size = (\d+) bits", said)
        return int(bits[1]) // 8 if bits else 0


def _bishengir(
    lowered: Lowered, target: str, folder: Path, program: str, sub_block: str, more: list[str] | tuple[()]
) -> str:
    import ascendnpuir

    source = folder / "kernel.mlir"
    # As triton-ascend itself does before it calls the compiler.
    source.write_text(re.sub(r', mix_mode\s*=\s*"[^"]*"', "", lowered.linalg))
    done = subprocess.run(
        [
            str(Path(ascendnpuir.__file__).parent / "bin" / program),
            str(source),
            f"--target={target}",
            "--enable-auto-multi-buffer=true",
            f"--enable-auto-bind-sub-block={sub_block}",
            "--enable-hfusion-compile=true",
            "--enable-hivm-compile=true",
            "--enable-triton-kernel-compile=true",
            f"--save-temps={folder}",
            *more,
            "-o",
            str(folder / "kernel"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout + done.stderr
