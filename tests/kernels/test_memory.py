# SPDX-License-Identifier: Apache-2.0
"""The watch on memory that the other tests rely on sees what it is there for."""

from __future__ import annotations

import pytest
import torch_npu  # noqa: F401
from triton.runtime.errors import InterpreterError
from vllm.triton_utils import tl, triton

from .support import Memory


@triton.jit  # type: ignore[untyped-decorator]
def _copy(input_ptr, output_ptr, first, length, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = first + tl.arange(0, BLOCK)
    mask = (place >= 0) & (place < length)
    tl.store(output_ptr + tl.maximum(place, 0), tl.load(input_ptr + place, mask=mask, other=0), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _write(output_ptr, place):  # type: ignore[no-untyped-def]
    tl.store(output_ptr + place, 1)


def copy(first: int, length: int) -> list[int]:
    with Memory() as memory:
        values, output = memory.tensor([1, 2, 3]), memory.filled((3,), 0)
        _copy[(1,)](values, output, first, length, BLOCK=4)
        return list(output.tolist())


def test_a_masked_block_may_end_behind_a_tensor_but_not_begin_before_it() -> None:
    assert copy(0, 3) == [1, 2, 3]
    with pytest.raises(InterpreterError, match="load before a tensor"):
        copy(-1, 3)


def test_a_load_behind_a_tensor_is_found() -> None:
    with pytest.raises(InterpreterError, match="load behind a tensor"):
        copy(0, 4)


@pytest.mark.parametrize(("place", "where"), [(-1, "before"), (3, "behind")])
def test_a_stray_store_is_found(place: int, where: str) -> None:
    with pytest.raises(InterpreterError, match=f"store {where} a tensor"), Memory() as memory:
        _write[(1,)](memory.filled((3,), 0), place)


def test_a_border_that_was_written_to_by_other_means_is_found() -> None:
    memory = Memory()
    memory.filled((3,), 0).as_strided((4,), (1,))[3] = 1
    with pytest.raises(AssertionError, match="a border was written to"), memory:
        pass
