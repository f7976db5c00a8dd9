# SPDX-License-Identifier: Apache-2.0
"""The hosts' own kernels, taken at run time out of where the hosts are; nothing of them is kept.

A host module imports torch and half of vLLM, so only its Triton functions are taken: the source with every
other line blank, imported with triton-ascend's names in place.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import tarfile
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType

CHECKOUT = Path(__file__).resolve().parents[2]

# Where to look, instead of the checkout's .venv: folders (site-packages), wheels or source distributions.
VARIABLE = "ASCEND_COMPILE_HOSTS"


class NoHost(LookupError):
    """The host's source is not to be had here."""


def _places() -> list[Path]:
    if named := os.environ.get(VARIABLE):
        return [Path(place) for place in named.split(os.pathsep)]
    return sorted(CHECKOUT.glob(".venv/lib/python3.*/site-packages"))


def _source(module: str) -> str:
    path = module.replace(".", "/") + ".py"
    for place in _places():
        if place.is_dir():
            if (place / path).is_file():
                return (place / path).read_text(encoding="utf-8")
        elif zipfile.is_zipfile(place):
            with zipfile.ZipFile(place) as wheel:
                if path in wheel.namelist():
                    return wheel.read(path).decode()
        elif place.is_file() and tarfile.is_tarfile(place):
            with tarfile.open(place) as sdist:
                for member in sdist:
                    if member.name.partition("/")[2] == path and (file := sdist.extractfile(member)):
                        return file.read().decode()
    where = ", ".join(map(str, _places())) or f"{CHECKOUT}/.venv, which is not made"
    raise NoHost(
        f"{module} is not in {where}: run `make env`, or set {VARIABLE} to site-packages, a wheel or an sdist"
    )


def _is_kernel(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        "triton.jit" in ast.unparse(d) for d in node.decorator_list
    )


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="ascend-compile-")


@functools.cache
def kernels_of(module: str) -> ModuleType:
    """The Triton functions of a host module, ready for triton-ascend.

    Raises: NoHost.
    """
    import triton
    import triton.language as tl

    source = _source(module)
    lines = source.splitlines()
    kept = [""] * len(lines)
    for node in ast.parse(source).body:
        if _is_kernel(node):
            first = min(d.lineno for d in node.decorator_list)  # type: ignore[attr-defined]
            kept[first - 1 : node.end_lineno] = lines[first - 1 : node.end_lineno]
    # Triton reads a kernel's source from its file.
    file = Path(_folder().name, f"{module.replace('.', '_')}.py")
    file.write_text("\n".join(kept) + "\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"host_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    vars(loaded).update(tl=tl, triton=triton, get_element=tl.get_element)
    spec.loader.exec_module(loaded)
    return loaded
