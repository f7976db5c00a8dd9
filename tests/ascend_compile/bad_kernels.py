# SPDX-License-Identifier: Apache-2.0
"""Kernels that must not pass: each does one thing that an NPU cannot do, or that the compilers do wrongly."""

from __future__ import annotations

from vllm.triton_utils import tl, triton

from .toolchain import Case


@triton.jit
def _add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, BLOCK)
    inside = lane < n
    sums = tl.load(x_ptr + lane, mask=inside) + tl.load(y_ptr + lane, mask=inside)
    tl.store(out_ptr + lane, sums, mask=inside)


@triton.jit
def _add_in_a_loop(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    for first in range(0, n, BLOCK):
        lane = tl.arange(0, BLOCK)
        inside = lane < n - first
        sums = tl.load(x_ptr + first + lane, mask=inside) + tl.load(y_ptr + first + lane, mask=inside)
        tl.store(out_ptr + first + lane, sums, mask=inside)


@triton.jit
def _count_with_bools(x_ptr, out_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, BLOCK)) > 0))


@triton.jit
def _inline_assembly(x_ptr, out_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, BLOCK)
    moved = tl.inline_asm_elementwise(
        "mov.u32 $0, $1;", "=r,r", [tl.load(x_ptr + lane)], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(out_ptr + lane, moved)


@triton.jit
def _compare_one_double(x_ptr, out_ptr):  # type: ignore[no-untyped-def]
    tl.store(out_ptr, (tl.load(x_ptr) > 0.5).to(tl.int32))


@triton.jit
def _print(x_ptr):  # type: ignore[no-untyped-def]
    tl.device_print("x", tl.load(x_ptr))


@triton.jit
def _sum_of_int64(x_ptr, out_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, BLOCK))))


@triton.jit
def _minus_one(x_ptr, out_ptr):  # type: ignore[no-untyped-def]
    tl.store(out_ptr, tl.load(x_ptr - 1))


@triton.jit
def _one_before(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < n
    before = tl.load(x_ptr + lane - 1, mask=inside & (lane > 0), other=0)
    tl.store(out_ptr + lane, before, mask=inside)


@triton.jit
def _at_a_placeholder(draft_token_ids_ptr, probs_ptr, out_ptr):  # type: ignore[no-untyped-def]
    tl.store(out_ptr, tl.load(probs_ptr + tl.load(draft_token_ids_ptr)))


@triton.jit
def _backwards(x_ptr, out_ptr, n):  # type: ignore[no-untyped-def]
    at = 8
    for _ in range(n):
        at -= 1
        tl.store(out_ptr + at, tl.load(x_ptr))


@triton.jit
def _backwards_beside_a_count(x_ptr, out_ptr, n):  # type: ignore[no-untyped-def]
    count = 0
    at = 8
    while count < n:
        at -= 1
        count += 1
        tl.store(out_ptr + at, tl.load(x_ptr + count))


@triton.jit
def _behind_what_was_subtracted(start_ptr, out_ptr):  # type: ignore[no-untyped-def]
    tl.store(out_ptr + (tl.load(start_ptr + 1) - tl.load(start_ptr)), 1)


@triton.jit
def _gather(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, BLOCK)
    inside = lane < n
    index = tl.load(index_ptr + lane, mask=inside, other=0)
    tl.store(out_ptr + lane, tl.load(x_ptr + index, mask=inside), mask=inside)


@triton.jit
def _gather_the_neighbour(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, BLOCK)
    inside = lane < n
    tl.store(out_ptr + lane, tl.load(x_ptr + tl.maximum(lane - 1, 0), mask=inside), mask=inside)


@triton.jit
def _types_that_differ(x_ptr, out_ptr):  # type: ignore[no-untyped-def]
    x = tl.load(x_ptr)
    if x > 0:  # noqa: SIM108
        value = x
    else:
        value = x > 0
    tl.store(out_ptr, value)


def _case(kernel, constants=None, **signature):  # type: ignore[no-untyped-def]
    return Case.of(kernel.fn.__name__.lstrip("_"), kernel, signature, constants or {})


def _adding(kernel, kind: str, block: int) -> Case:  # type: ignore[no-untyped-def]
    return _case(kernel, {"BLOCK": block}, x_ptr=f"*{kind}", y_ptr=f"*{kind}", out_ptr=f"*{kind}", n="i32")


# The stage that must refuse the kernel and a word of what it says.
DO_NOT_COMPILE = {
    "too much for the unified buffer": (_adding(_add, "fp32", 32_768), "HIVM", "ub overflow"),
    "compiled in a second try only": (_adding(_add_in_a_loop, "fp32", 16_384), "HIVM", "[NOTE]"),
    "a constant offset of -1": (_case(_minus_one, x_ptr="*i32", out_ptr="*i32"), "linalg", "got -1"),
    "branches of two types": (_case(_types_that_differ, x_ptr="*i32", out_ptr="*i32"), "TTIR", "type"),
}

# The lint that must find it.
FORBIDDEN = {
    "bool reduction": _case(_count_with_bools, {"BLOCK": 8}, x_ptr="*i32", out_ptr="*i32"),
    "inline assembly": _case(_inline_assembly, {"BLOCK": 64}, x_ptr="*i32", out_ptr="*i32"),
    "fp64": _case(_compare_one_double, x_ptr="*fp64", out_ptr="*i32"),
    "device print or assert": _case(_print, x_ptr="*i32"),
    "int64 vector": _adding(_add, "i64", 64),
}
ALSO_INT64 = _case(_sum_of_int64, {"BLOCK": 64}, x_ptr="*i64", out_ptr="*i64")

BELOW_ZERO = (
    _case(_one_before, {"BLOCK": 64}, x_ptr="*i32", out_ptr="*i32", n="i32"),
    _case(_at_a_placeholder, draft_token_ids_ptr="*i32", probs_ptr="*fp32", out_ptr="*fp32"),
    _case(_backwards, x_ptr="*i32", out_ptr="*i32", n="i32"),
    _case(_backwards_beside_a_count, x_ptr="*i32", out_ptr="*i32", n="i32"),
    _case(_behind_what_was_subtracted, start_ptr="*i32", out_ptr="*i32"),
)

# Compile, and would show in the counts.
ELEMENT_BY_ELEMENT = (
    _case(_gather, {"BLOCK": 64}, x_ptr="*i32", index_ptr="*i32", out_ptr="*i32", n="i32"),
    FORBIDDEN["int64 vector"],
)
# A gather loads first and looks at its mask afterwards: beyond the end, if its indices go there.
BEYOND_THE_END = _case(_gather_the_neighbour, {"BLOCK": 64}, x_ptr="*i32", out_ptr="*i32", n="i32")
SPECIALISED = _adding(_add, "fp32", 64)
FINE = _adding(_add, "fp32", 128)
