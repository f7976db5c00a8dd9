# SPDX-License-Identifier: Apache-2.0
"""prepare_inputs_padded: Triton kernel, torch reference, the hosts' kernels and a loop say the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.triton_utils import HAS_TRITON, triton
from vllm.v1.spec_decode.utils import eagle_prepare_inputs_padded_kernel
from vllm_ascend.ops.triton.spec_decode.utils import prepare_inputs_padded_kernel

from ascend_specpatch.kernels import _dispatch
from ascend_specpatch.kernels import prepare_inputs_padded as kernel

NPU = torch.device("npu")
GUARD = 64  # elements around every buffer that no kernel may read into or write to


def test_triton_runs_here() -> None:
    assert HAS_TRITON
    assert _dispatch.use_triton()
    assert _dispatch.vector_cores() == 40


def guarded(values: list[int]) -> torch.Tensor:
    """An NPU tensor of `values` inside poison: values that would show if they were read."""
    padded = torch.full((len(values) + 2 * GUARD,), 1 << 20, dtype=torch.int32)
    padded[GUARD : GUARD + len(values)] = torch.tensor(values, dtype=torch.int32)
    return padded.to(NPU)[GUARD : GUARD + len(values)]


def by_hand(drafted: list[int], valid: list[int], lens: list[int]) -> tuple[list[int], list[int]]:
    rows, rejected, end = [], [], 0
    for d, v, n in zip(drafted, valid, lens, strict=True):
        end += n
        rejected.append(d + 1 - max(v, 1) if d else 0)
        rows.append(end - 1 - rejected[-1])
    return rows, rejected


@st.composite
def batches(draw: Any) -> tuple[list[int], list[int], list[int]]:
    drafted = draw(st.lists(st.integers(0, 7), min_size=1, max_size=90))
    valid = [draw(st.integers(0, d + 1)) for d in drafted]
    lens = [d + 1 + (draw(st.integers(0, 30)) if d == 0 else 0) for d in drafted]
    return drafted, valid, lens


def arguments(
    batch: tuple[list[int], list[int], list[int]],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    drafted, valid, lens = batch
    starts = [0, *torch.tensor(lens).cumsum(0).tolist()]
    return guarded(torch.tensor(drafted).cumsum(0).tolist()), guarded(valid), guarded(starts)


@settings(deadline=None, max_examples=25)
@given(batches())
def test_kernel_and_reference_agree_with_a_loop(batch: Any) -> None:
    inputs = arguments(batch)
    want = by_hand(*batch)
    for give in (kernel.prepare_inputs_padded, kernel.reference):
        rows, rejected = give(*inputs)
        assert (rows.tolist(), rejected.tolist()) == want
        assert rows.dtype == rejected.dtype == torch.int32
        assert rows.device.type == rejected.device.type == "npu"


@settings(deadline=None, max_examples=10)
@given(batches())
def test_it_gives_what_the_kernels_it_stands_for_give(batch: Any) -> None:
    drafted, valid, lens = batch
    valid = [max(v, 1) for v in valid]  # the hosts leave the request's rows where no token is valid
    inputs = arguments((drafted, valid, lens))
    rows, rejected = kernel.prepare_inputs_padded(*inputs)

    vllm_rows, vllm_rejected = torch.empty_like(rows), torch.empty_like(rows)
    eagle_prepare_inputs_padded_kernel[(len(drafted),)](*inputs, vllm_rows, vllm_rejected, len(drafted))
    assert (rows.tolist(), rejected.tolist()) == (vllm_rows.tolist(), vllm_rejected.tolist())

    ascend_rows = torch.empty_like(rows)
    grid = (min(triton.cdiv(len(drafted), 4), 40),)
    prepare_inputs_padded_kernel[grid](*inputs, ascend_rows, len(drafted), BLOCK_SIZE=4)
    assert rows.tolist() == ascend_rows.tolist()


@pytest.mark.parametrize("num_reqs", [1, 7, 8, 9, 320, 321, 700])
def test_more_requests_than_cores_are_strided_over(num_reqs: int) -> None:
    batch = ([3] * num_reqs, [1 + i % 4 for i in range(num_reqs)], [4] * num_reqs)
    rows, rejected = kernel.prepare_inputs_padded(*arguments(batch))
    assert (rows.tolist(), rejected.tolist()) == by_hand(*batch)


def test_an_empty_batch_gives_empty_results() -> None:
    empty = torch.empty(0, dtype=torch.int32, device=NPU)
    rows, rejected = kernel.prepare_inputs_padded(empty, empty, torch.zeros(1, dtype=torch.int32, device=NPU))
    assert rows.shape == rejected.shape == (0,)


def test_counts_of_64_bits_and_longer_starts_are_taken() -> None:
    drafted, valid, _ = arguments(([3, 0, 2], [2, 1, 3], [4, 9, 3]))
    starts = guarded([0, 4, 13, 16, 99, 99])
    for give in (kernel.prepare_inputs_padded, kernel.reference):
        rows, rejected = give(drafted, valid.long(), starts)
        assert (rows.tolist(), rejected.tolist()) == ([1, 12, 15], [2, 0, 0])


@pytest.mark.parametrize(
    ("choice", "triton_runs"), [("triton", True), ("torch", False), ("upstream", False), ("", True)]
)
def test_the_setting_chooses_the_implementation(
    choice: str, triton_runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_SPECPATCH_KERNELS", choice)
    _dispatch.use_triton.cache_clear()
    try:
        assert _dispatch.use_triton() is triton_runs
    finally:
        _dispatch.use_triton.cache_clear()


def test_asking_for_triton_without_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_SPECPATCH_KERNELS", "triton")
    monkeypatch.setattr("vllm.triton_utils.HAS_TRITON", False)
    _dispatch.use_triton.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="install triton-ascend, or unset"):
            _dispatch.use_triton()
    finally:
        _dispatch.use_triton.cache_clear()
