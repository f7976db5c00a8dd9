# SPDX-License-Identifier: Apache-2.0
"""What compiles and must not be there all the same: read off a kernel's TTIR, after inlining.

Ascend's compilers take a sum of bools and give a wrong result, take inline assembly and drop it, and
turn int64 vectors into loops over single elements. (Offsets below zero: see offsets.py.)
"""

from __future__ import annotations

import re

_FORBIDDEN = {
    "fp64": re.compile(r"\bf64\b"),
    "inline assembly": re.compile(r"tt\.elementwise_inline_asm|llvm\.inline_asm"),
    "device print or assert": re.compile(r"\btt\.(?:print|assert)\b"),
    # Loads, stores, casts and shapes move int64 without computing in it.
    "int64 vector": re.compile(
        r"= (?:arith|math)\.(?!constant|extsi|extui|trunci|bitcast|select|index_cast)\w+"
        r"[^\n]* : tensor<[0-9x]+xi64>"
    ),
}
# A reduction or scan names its operands' types behind its body.
_REDUCTION = re.compile(r'"tt\.(?:reduce|scan)"\(.*?\n\s*\}\) : \(([^)]*)\) ->', re.DOTALL)


def forbidden(ttir: str) -> set[str]:
    """The names of what the NPU cannot do, or does wrongly, and the kernel has."""
    ttir = re.sub(r" loc\([^\n]*", "", ttir)
    found = {name for name, pattern in _FORBIDDEN.items() if pattern.search(ttir)}
    for reduction in _REDUCTION.finditer(ttir):
        if re.search(r"<[0-9x]+xi1>", reduction[1]):
            found.add("bool reduction")
        if re.search(r"<[0-9x]+xi64>", reduction[1]):
            found.add("int64 vector")
    return found
