# SPDX-License-Identifier: Apache-2.0
"""docs/ascend_compile.md: our kernels and vllm-ascend's for the same job, side by side."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .cases import kinds
from .counts import NAMES, count
from .jobs import JOBS
from .toolchain import TARGETS

if TYPE_CHECKING:
    from .conftest import Compiled

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ascend_compile.md"

_HEAD = """\
# What Ascend's compilers make of the kernels

`make ascend-compile` takes every kernel, in every way in which its launcher can have it compiled, through
Ascend's public compilers (triton-ascend 3.2.0, ascendnpu-ir 1.2.0) to HIVM, the last form before machine
code. `make ascend-baseline` writes this page; a test compares it with what the compilers say.
[tests/ascend_compile](../tests/ascend_compile/README.md) says what is checked, and what is not.

The counts are of places in the code, for Ascend910B3: bytes of unified buffer (of 196,608), block copies
from and to global memory, vector calls, accesses of single elements of global memory and of the unified
buffer, flags and barriers, loops, of these those that walk single elements, and branches.
"""

_BESIDE = """\
Buffer aside, no count of ours is above vllm-ascend's 0.16.0rc1."""

_ONLY_THE_LARGEST = """\
Where cases differ in sizes only, the largest; [baseline.json](../tests/ascend_compile/baseline.json) has
every one, for both targets."""

_SHORT = {
    "ub_bytes": "buffer",
    "dma_in": "copies in",
    "dma_out": "out",
    "vector": "vector",
    "scalar_gm": "single gm",
    "scalar_ub": "single ub",
    "flags": "flags",
    "barriers": "barriers",
    "loops": "loops",
    "scalar_loops": "of single",
    "branches": "branches",
}
_COLUMNS = [_SHORT[name] for name in NAMES]


def _rows(rows: list[list[str]], first: str) -> str:
    head = f"| {first} | " + " | ".join(_COLUMNS) + " |"
    line = "|---|" + "---:|" * len(_COLUMNS)
    return "\n".join([head, line, *("| " + " | ".join(row) + " |" for row in rows)])


def table(compiled: Compiled) -> str:
    """The page.

    Raises: NoHost.
    """
    target = TARGETS["910B3"]

    def row(label: str, case_hivm: str) -> list[str]:
        return [label, *(f"{value:,}" for value in asdict(count(case_hivm)).values())]

    beside: list[list[str]] = []
    for job in JOBS:
        mine, host = job.our_case(), job.host_case()
        beside.append(row(f"**{mine.name}**", compiled.hivm(mine, target)))
        beside.append(row(f"vllm-ascend: {host.name}", compiled.hivm(host, target)))
    largest = [kind[-1] for kind in kinds()]
    every = [row(case.name, compiled.hivm(case, target)) for case in largest]
    return "\n".join(
        [
            _HEAD,
            "## Beside vllm-ascend's kernels for the same job",
            "",
            _BESIDE,
            "",
            _rows(beside, "kernel"),
            "",
            "## All of them",
            "",
            _ONLY_THE_LARGEST,
            "",
            _rows(every, "kernel"),
            "",
        ]
    )
