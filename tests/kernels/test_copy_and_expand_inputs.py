# SPDX-License-Identifier: Apache-2.0
"""copy_and_expand_inputs: kernel, reference, vLLM's kernel and a loop say the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ascend_specpatch.kernels import copy_and_expand_inputs as kernel

from .support import VLLM, Memory, examples, hosts_kernel, ours

PADDING, MASKED, UNTOUCHED = 0, 777, -7


@dataclass
class Batch:
    """Rows of each request, how many of the last were rejected, and the slots to make room for."""

    lens: list[int]
    rejected: list[int]
    slots: int
    shift: bool

    @property
    def starts(self) -> list[int]:
        return [0, *torch.tensor(self.lens).cumsum(0).tolist()]

    def inputs(self, memory: Memory) -> tuple[Any, ...]:
        number = sum(self.lens)
        positions = [3 * request + i for request, length in enumerate(self.lens) for i in range(length)]
        next_ids = [500 + request for request in range(len(self.lens))]
        ids = memory.tensor(range(1000, 1000 + number))
        return ids, memory.tensor(positions, torch.int64), memory.tensor(next_ids)

    def outputs(self, memory: Memory) -> list[torch.Tensor]:
        rows = sum(self.lens) + (self.slots - self.shift) * len(self.lens)
        return [
            memory.filled((rows,), UNTOUCHED), memory.filled((rows,), UNTOUCHED, torch.int64),
            memory.filled((rows,), 0, torch.bool), memory.filled((rows,), 0, torch.bool),
            memory.filled((self.slots * len(self.lens),), UNTOUCHED),
            memory.filled((sum(self.lens),), UNTOUCHED),
        ]  # fmt: skip

    def given(self, memory: Memory, give: Callable[..., None]) -> list[list[Any]]:
        outputs = self.outputs(memory)
        starts = self.starts
        ends = [start - 1 - rejected for start, rejected in zip(starts[1:], self.rejected, strict=True)]
        give(
            *self.inputs(memory), *outputs, memory.tensor(starts), memory.tensor(ends),
            PADDING, MASKED, self.slots, self.shift,
        )  # fmt: skip
        return [output.tolist() for output in outputs]

    def by_hand(self) -> list[list[Any]]:
        ids: list[int] = []
        positions: list[int] = []
        rejected_mask: list[bool] = []
        masked_mask: list[bool] = []
        new: list[int] = []
        mapping: list[int] = []
        for request, (start, length, rejected) in enumerate(
            zip(self.starts, self.lens, self.rejected, strict=False)
        ):
            mapping += [len(ids) + i for i in range(length)]
            valid = list(range(1000 + start, 1000 + start + length - rejected))[int(self.shift) :]
            first = len(ids)
            new += [first + len(valid) + slot for slot in range(self.slots)]
            ids += [*valid, 500 + request, *[MASKED] * (self.slots - 1), *[PADDING] * rejected]
            kept = len(valid) + self.slots
            positions += [*range(3 * request, 3 * request + kept), *[0] * rejected]
            rejected_mask += [False] * kept + [True] * rejected
            masked_mask += [False] * (len(valid) + 1) + [True] * (self.slots - 1) + [False] * rejected
        unused = [UNTOUCHED] * sum(self.lens)
        return [ids, positions, rejected_mask, masked_mask, new, mapping if self.shift else unused]


@st.composite
def batches(draw: Any, max_requests: int = 50, longest: int = 40) -> Batch:
    shift = draw(st.booleans())
    number = draw(st.one_of(st.integers(1, 5), st.integers(1, max_requests)))
    lens = [
        draw(st.integers(1, longest) if draw(st.integers(0, 5)) == 0 else st.integers(1, 5))
        for _ in range(number)
    ]
    rejected = [draw(st.integers(0, min(length - 1, 4))) for length in lens]
    return Batch(lens, rejected, draw(st.integers(1 + shift, 9)), shift)


@examples(25)
@given(batches())
def test_rows_are_copied_and_made(batch: Batch) -> None:
    for give in (kernel.copy_and_expand_inputs, kernel.reference):
        with Memory() as memory:
            assert batch.given(memory, give) == batch.by_hand()


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize(
    "lens", [[2000], [700, 1, 300, 2], [1] * 90, [31, 32, 33]], ids=lambda lens: f"{len(lens)}x{max(lens)}"
)
def test_long_prompts_and_many_requests(lens: list[int], shift: bool) -> None:
    batch = Batch(lens, [0] * len(lens), 3, shift)
    with Memory() as memory:
        assert batch.given(memory, kernel.copy_and_expand_inputs) == batch.by_hand()


def test_one_long_prompt_is_shared_by_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    grids, launch = [], kernel._kernel

    class Recorder:
        def __getitem__(self, grid: tuple[int, int]) -> Any:
            grids.append(grid)
            return launch[grid]

    monkeypatch.setattr(kernel, "_kernel", Recorder())
    for lens in ([2000], [5000, 5000], [20_000]):
        Batch(lens, [0] * len(lens), 1, False).given(Memory(), kernel.copy_and_expand_inputs)
    assert grids == [(1, 8), (2, 20), (1, 40)]


@examples(6)
@given(batches(longest=20))
def test_it_gives_what_the_kernel_it_stands_for_gives(batch: Batch) -> None:
    memory = Memory()
    number, total = len(batch.lens), sum(batch.lens)
    longest = max(batch.lens) + batch.slots - batch.shift
    block = min(256, 1 << (longest - 1).bit_length())

    def launch_as_vllm(find: Callable[[str], Any]) -> Callable[..., None]:
        def give(*arguments: Any) -> None:
            names = (
                "target_token_ids_ptr target_positions_ptr next_token_ids_ptr out_input_ids_ptr "
                "out_positions_ptr out_is_rejected_token_mask_ptr out_is_masked_token_mask_ptr "
                "out_new_token_indices_ptr out_hidden_state_mapping_ptr query_start_loc_ptr "
                "query_end_loc_ptr padding_token_id parallel_drafting_token_id "
                "num_padding_slots_per_request shift_input_ids"
            )
            find(VLLM["copy_and_expand_eagle_inputs_kernel"])[(number, -(-longest // block))](
                **dict(zip(names.split(), arguments, strict=True)),
                total_input_tokens=total,
                BLOCK_SIZE_TOKENS=block,
            )

        return give

    want = batch.by_hand()
    assert batch.given(memory, launch_as_vllm(hosts_kernel)) == want
    assert batch.given(memory, launch_as_vllm(ours)) == want


def test_requests_without_rows_at_the_end_of_a_padded_batch() -> None:
    batch = Batch([3, 2], [1, 0], 2, False)
    for give in (kernel.copy_and_expand_inputs, kernel.reference):
        with Memory() as memory:
            ids, positions, _ = batch.inputs(memory)
            outputs = batch.outputs(memory)
            outputs = [
                memory.filled((9 + 4,), UNTOUCHED, o.dtype)
                if o.dtype != torch.bool
                else memory.filled((13,), 0, torch.bool)
                for o in outputs
            ]
            starts, ends = memory.tensor([0, 3, 5, 5]), memory.tensor([1, 4, 4])
            give(
                ids,
                positions,
                memory.tensor([500, 501, 502]),
                *outputs,
                starts,
                ends,
                PADDING,
                MASKED,
                2,
                False,
            )
            assert outputs[0].tolist()[:9] == batch.by_hand()[0]
            assert outputs[4].tolist()[:4] == batch.by_hand()[4]


def test_an_empty_batch_writes_nothing() -> None:
    with Memory() as memory:
        assert Batch([], [], 1, False).given(memory, kernel.copy_and_expand_inputs) == [[]] * 6
