# SPDX-License-Identifier: Apache-2.0
"""Static counts of a kernel's HIVM text. The text is the same in every run, so the counts are exact."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields

_BITS = {"i1": 1, "i8": 8, "i16": 16, "f16": 16, "bf16": 16, "i32": 32, "f32": 32, "i64": 64, "f64": 64}


@dataclass(frozen=True)
class Counts:
    """Numbers of places in the code, not of executions; `ub_bytes`: the highest byte of unified buffer."""

    ub_bytes: int
    dma_in: int  # block copies from global memory
    dma_out: int  # and to it
    vector: int  # calls of vector functions
    scalar_gm: int  # loads and stores of one element of global memory
    scalar_ub: int  # and of the unified buffer
    flags: int  # set and awaited between pipes
    barriers: int
    loops: int
    scalar_loops: int  # of these, loops that walk elements one by one and call no vector function
    branches: int

    def above(
        self, other: Counts, but: frozenset[str] = frozenset({"ub_bytes"})
    ) -> dict[str, tuple[int, int]]:
        """The counts in which this one is above the other, with both numbers."""
        return {
            name: (mine, theirs)
            for name, mine in asdict(self).items()
            if name not in but and mine > (theirs := getattr(other, name))
        }


NAMES = tuple(field.name for field in fields(Counts))


def _ub_bytes(hivm: str) -> int:
    address = {m[1]: int(m[2]) for m in re.finditer(r"(%\w+) = arith\.constant (-?\d+) : i64", hivm)}
    top = 0
    for buffer in re.finditer(
        r"hivm\.hir\.pointer_cast\(([^)]*)\)[^:\n]*: "
        r"memref<((?:\d+x)*)([a-z]+\d+)[,>][^\n]*address_space<ub>",
        hivm,
    ):
        elements = 1
        for size in buffer[2].split("x")[:-1]:
            elements *= int(size)
        size = (elements * _BITS[buffer[3]] + 7) // 8
        top = max([top, *(address[start] + size for start in re.findall(r"%\w+", buffer[1]))])
    return top


def _scalar_loops(hivm: str) -> int:
    """Loops with a scalar access of memory and no call directly in them, in inner loops not counted."""
    found = 0
    open_blocks: list[dict[str, bool]] = []
    for line in hivm.splitlines():
        code = line.strip()
        loop = bool(re.search(r"\bscf\.(for|while)\b", code))
        inner = next((block for block in reversed(open_blocks) if block["loop"]), None)
        if inner is not None:
            inner["access"] |= "memref.load " in code or "memref.store " in code
            inner["call"] |= "call @" in code
        closes = len(code) - len(code.lstrip("}"))
        while closes and open_blocks:
            block = open_blocks.pop()
            found += block["loop"] and block["access"] and not block["call"]
            closes -= 1
        if code.endswith("{"):
            open_blocks.append({"loop": loop or "} do {" in code, "access": False, "call": False})
    return found


def count(hivm: str) -> Counts:
    """The counts of a kernel whose HIVM text this is."""

    def number(pattern: str) -> int:
        return len(re.findall(pattern, hivm))

    dma_in, dma_out = number(r"call @load_gm_to_ubuf"), number(r"call @store_ubuf_to_gm")
    return Counts(
        ub_bytes=_ub_bytes(hivm),
        dma_in=dma_in,
        dma_out=dma_out,
        vector=number(r"call @") - dma_in - dma_out,
        scalar_gm=number(r"memref\.(?:load|store) [^\n]*address_space<gm>"),
        scalar_ub=number(r"memref\.(?:load|store) [^\n]*address_space<ub>"),
        flags=number(r"hivm\.hir\.(?:set|wait)_flag"),
        barriers=number(r"hivm\.hir\.pipe_barrier"),
        loops=number(r"\bscf\.(?:for|while)\b"),
        scalar_loops=_scalar_loops(hivm),
        branches=number(r"\bscf\.if\b"),
    )
