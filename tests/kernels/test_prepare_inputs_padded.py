# SPDX-License-Identifier: Apache-2.0
"""prepare_inputs_padded: Triton kernel, torch reference, the hosts' kernels and a loop say the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm.triton_utils import triton

from ascend_specpatch.kernels import prepare_inputs_padded as kernel

from .support import ASCEND, NPU, VLLM, Memory, examples, hosts_kernel, ours, takes


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
    batch: tuple[list[int], list[int], list[int]], memory: Memory
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    drafted, valid, lens = batch
    starts = [0, *torch.tensor(lens).cumsum(0).tolist()]
    return memory.tensor(torch.tensor(drafted).cumsum(0)), memory.tensor(valid), memory.tensor(starts)


@examples(25)
@given(batches())
def test_kernel_and_reference_agree_with_a_loop(batch: Any) -> None:
    for give in (kernel.prepare_inputs_padded, kernel.reference):
        with Memory() as memory:
            rows, rejected = give(*arguments(batch, memory))
            assert (rows.tolist(), rejected.tolist()) == by_hand(*batch)
            assert rows.dtype == rejected.dtype == torch.int32
            assert rows.device.type == rejected.device.type == "npu"


@examples(10)
@given(batches())
def test_it_gives_what_the_kernels_it_stands_for_give(batch: Any) -> None:
    drafted, valid, lens = batch
    valid = [max(v, 1) for v in valid]  # the hosts leave the request's rows where no token is valid
    memory, number = Memory(), len(drafted)
    inputs = arguments((drafted, valid, lens), memory)
    rows, rejected = (values.tolist() for values in kernel.prepare_inputs_padded(*inputs))
    for launch in (ours, hosts_kernel):
        of_vllm = [memory.filled((number,), -7) for _ in range(2)]
        launch(VLLM["eagle_prepare_inputs_padded_kernel"])[(number,)](*inputs, *of_vllm, number)
        assert [output.tolist() for output in of_vllm] == [rows, rejected]
        name, grid = ASCEND["prepare_inputs_padded_kernel"], (min(triton.cdiv(number, 4), 40),)
        of_ascend = [
            memory.filled((number,), -7) for _ in range(1 + takes(name, "num_rejected_tokens_gpu_ptr"))
        ]
        launch(name)[grid](*inputs, *of_ascend, number, BLOCK_SIZE=4)
        assert [output.tolist() for output in of_ascend] == [rows, rejected][: len(of_ascend)]


@pytest.mark.parametrize("num_reqs", [1, 7, 8, 9, 320, 321, 700])
@pytest.mark.parametrize("npu", [True, False], ids=["npu", "gpu"])
def test_more_requests_than_cores_are_strided_over(
    npu: bool, num_reqs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "on_npu", lambda: npu)
    batch = ([3] * num_reqs, [1 + i % 4 for i in range(num_reqs)], [4] * num_reqs)
    with Memory() as memory:
        rows, rejected = kernel.prepare_inputs_padded(*arguments(batch, memory))
        assert (rows.tolist(), rejected.tolist()) == by_hand(*batch)


def test_an_empty_batch_gives_empty_results() -> None:
    empty = torch.empty(0, dtype=torch.int32, device=NPU)
    rows, rejected = kernel.prepare_inputs_padded(empty, empty, torch.zeros(1, dtype=torch.int32, device=NPU))
    assert rows.shape == rejected.shape == (0,)


def test_counts_of_64_bits_and_longer_starts_are_taken() -> None:
    with Memory() as memory:
        drafted, valid, _ = arguments(([3, 0, 2], [2, 1, 3], [4, 9, 3]), memory)
        starts = memory.tensor([0, 4, 13, 16, 99, 99])
        for give in (kernel.prepare_inputs_padded, kernel.reference):
            rows, rejected = give(drafted, valid.long(), starts)
            assert (rows.tolist(), rejected.tolist()) == ([1, 12, 15], [2, 0, 0])
