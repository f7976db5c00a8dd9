# SPDX-License-Identifier: Apache-2.0
"""expand: kernel, reference, the hosts' kernels and a loop say the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm_ascend.ops.triton import reject_sample
from vllm_ascend.ops.triton.triton_utils import init_device_properties_triton

from ascend_specpatch.kernels import expand as kernel

from .support import ASCEND, VLLM, Drafts, Memory, drafts, examples, hosts_kernel, ours, randomness

TYPES = (torch.float32, torch.int32)
seeds = st.integers(0, 2**32 - 1)


def values_of(batch: Drafts, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(0, 3, (len(batch.drafted),), generator=randomness(seed)).to(dtype)


def by_hand(batch: Drafts, values: torch.Tensor, replace: tuple[int, int]) -> list[float]:
    expanded = []
    for number, value in zip(batch.drafted, values.tolist(), strict=True):
        expanded += number * [replace[1] if value == replace[0] else value]
    return expanded


@examples(20)
@given(
    drafts(max_requests=90, max_spec_len=9), seeds, st.sampled_from(TYPES), st.sampled_from([(0, 0), (0, 1)])
)
def test_it_repeats_each_value(
    batch: Drafts, seed: int, dtype: torch.dtype, replace: tuple[int, int]
) -> None:
    values = values_of(batch, seed, dtype)
    for give in (kernel.expand, kernel.reference):
        with Memory() as memory:
            output = memory.filled((batch.num_tokens,), -7, dtype)
            give(output, memory.tensor(values, dtype), memory.tensor(batch.cu), *replace)
            assert output.tolist() == by_hand(batch, values, replace)


@examples(8)
@given(drafts(max_requests=90), seeds, st.booleans(), st.booleans())
def test_three_in_one_launch(batch: Drafts, seed: int, top_k: bool, top_p: bool) -> None:
    inputs = [values_of(batch, seed + i, dtype) for i, dtype in enumerate((TYPES[0], TYPES[1], TYPES[0]))]
    given_ = [True, top_k, top_p]
    for triton in (True, False):
        with pytest.MonkeyPatch.context() as monkeypatch, Memory() as memory:
            monkeypatch.setattr(kernel, "use_triton", lambda: triton)  # noqa: B023
            tensors = [
                memory.tensor(x, x.dtype) if there else None for x, there in zip(inputs, given_, strict=True)
            ]
            outputs = kernel.expand_sampling(*tensors, memory.tensor(batch.cu), batch.num_tokens, 0, 1)
            for i, (output, there) in enumerate(zip(outputs, given_, strict=True)):
                want = by_hand(batch, inputs[i], (0, 1) if i == 0 else (0, 0)) if there else None
                assert (None if output is None else output.tolist()) == want
                assert output is None or output.dtype == inputs[i].dtype


@examples(5)
@given(drafts(max_requests=90), seeds, st.sampled_from(TYPES))
def test_it_gives_what_the_kernels_it_stands_for_give(batch: Drafts, seed: int, dtype: torch.dtype) -> None:
    init_device_properties_triton()
    memory, number = Memory(), len(batch.drafted)
    values, cu = memory.tensor(values_of(batch, seed, dtype), dtype), memory.tensor(batch.cu)
    grid, block = reject_sample.cal_grid_and_block_size(number)
    results = []
    for launch in (ours, hosts_kernel):
        for host in (VLLM, ASCEND):
            output = memory.filled((batch.num_tokens,), -7, dtype)
            arguments, options = (output, values, cu, 0, 1), {"MAX_NUM_TOKENS": 128}
            if host is ASCEND:
                arguments, options["BLOCK_SIZE"] = (*arguments, number), block
            launch(host["expand_kernel"])[(grid if host is ASCEND else number,)](*arguments, **options)
            results.append(output.tolist())
    assert results == [by_hand(batch, values.cpu(), (0, 1))] * 4


@pytest.mark.parametrize(
    "batch", [Drafts([], 1), Drafts([0], 1), Drafts([0] * 50, 1), Drafts([128, 0, 128], 128)], ids=str
)
def test_batches_at_the_edge(batch: Drafts) -> None:
    values = values_of(batch, 1, torch.float32)
    for give in (kernel.expand, kernel.reference):
        with Memory() as memory:
            output = memory.filled((batch.num_tokens,), -7, torch.float32)
            give(output, memory.tensor(values, torch.float32), memory.tensor(batch.cu))
            assert output.tolist() == by_hand(batch, values, (0, 0))


@pytest.mark.parametrize("number", [40, 41, 90])
def test_more_requests_than_cores(number: int) -> None:
    """Each core has its share of neighbours; with 41 requests for 40 cores many have none."""
    batch = Drafts([1 + request % 3 for request in range(number)], 3)
    values = torch.arange(number, dtype=torch.int32)
    with Memory() as memory:
        output = memory.filled((batch.num_tokens,), -7)
        kernel.expand(output, memory.tensor(values), memory.tensor(batch.cu))
        assert output.tolist() == by_hand(batch, values, (0, 0))


@pytest.mark.parametrize("give", [kernel.expand, kernel.reference], ids=["kernel", "reference"])
def test_tokens_of_no_request_are_left_as_they_are(give: object) -> None:
    with Memory() as memory:
        output = memory.filled((6,), -7)
        give(output, memory.tensor([5, 6]), memory.tensor([2, 3]))  # type: ignore[operator]
        assert output.tolist() == [5, 5, 6, -7, -7, -7]


def test_nan_is_not_replaced() -> None:
    with Memory() as memory:
        output = memory.filled((3,), -7, torch.float32)
        kernel.expand(output, memory.tensor([float("nan"), 0.0], torch.float32), memory.tensor([1, 3]), 0, 1)
        assert str(output.tolist()) == "[nan, 1.0, 1.0]"
