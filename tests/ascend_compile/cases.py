# SPDX-License-Identifier: Apache-2.0
"""What is compiled: the launches that each file of kernels/ declares."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path
from typing import Any

from .toolchain import Case

KERNELS = Path(__file__).resolve().parents[2] / "kernels"

# Numbers that do not change from one batch to the next: Triton may compile for their value, as it does for 1.
SAME_FOR_A_MODEL = re.compile(r"vocab_size|max_spec_len|num_slots|num_sampled_tokens|stride")


def jit_functions(file: Path) -> list[str]:
    """The names of a file's Triton functions."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any("triton.jit" in ast.unparse(d) for d in node.decorator_list)
    ]


def files() -> list[Path]:
    """The files of kernels/ with Triton functions."""
    return [file for file in sorted(KERNELS.glob("*.py")) if jit_functions(file)]


def of_file(file: Path) -> list[Case]:
    """The cases a file declares, and each of them with its specialised scalars at 1.

    Raises: AttributeError if it declares none; ValueError if one does not fit its kernel.
    """
    module = importlib.import_module(f"ascend_specpatch.kernels.{file.stem}")
    cases = []
    for name, kernel, types, constants in module.compile_cases():
        name = f"{file.stem} {name}".strip()
        case = Case.of(name, kernel, types, constants)
        cases.append(case)
        ones = [scalar for scalar in specialised(case) if case.signature[scalar] == "i32"]
        if ones:
            cases.append(
                Case.of(
                    f"{name}, {' and '.join(ones)} 1",
                    kernel,
                    {k: v for k, v in case.signature.items() if k not in ones},
                    {**constants, **dict.fromkeys(ones, 1)},
                )
            )
    return cases


def specialised(case: Case) -> list[str]:
    """The scalars of a case for whose value 1, or divisibility by 16, Triton compiles anew."""
    return [
        p.name
        for p in case.kernel.params
        if p.name in case.signature and not case.signature[p.name].startswith("*") and not p.do_not_specialize
    ]


@functools.cache
def ours() -> tuple[Case, ...]:
    """All cases of all files; a file that declares none is left out, for a test to tell."""
    found: list[Case] = []
    for file in files():
        module: Any = importlib.import_module(f"ascend_specpatch.kernels.{file.stem}")
        if hasattr(module, "compile_cases"):
            found += of_file(file)
    return tuple(found)


def kinds() -> list[list[Case]]:
    """All cases, those together that differ in sizes only."""
    found: dict[tuple[Any, ...], list[Case]] = {}
    for case in ours():
        choices = sorted((name, value) for name, value in case.constants.items() if value in (None, 0, 1))
        found.setdefault((case.kernel, str(choices), *case.signature.items()), []).append(case)
    return list(found.values())


def called() -> set[str]:
    """The names of all functions that Triton functions of kernels/ call."""
    return {
        call.func.id
        for file in files()
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name in jit_functions(file)
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    }
