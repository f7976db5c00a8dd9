# SPDX-License-Identifier: Apache-2.0
"""prepare_next_token_padded and prepare_drafting: kernel, reference, vLLM's kernels and a loop say the
same."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.utils import CpuGpuBuffer

from ascend_specpatch import hosts
from ascend_specpatch.edits import Edit
from ascend_specpatch.kernels import prepare_inputs_padded
from ascend_specpatch.kernels import prepare_next_token_padded as kernel
from ascend_specpatch.patches import PATCHES

from .support import NPU, VLLM, Memory, examples, hosts_kernel, ours

VOCAB = 100


@dataclass
class Batch:
    sampled: list[list[int]]
    discard: list[bool]
    drafted: list[int]

    def arguments(self, memory: Memory) -> tuple[Any, ...]:
        width = len(self.sampled[0]) if self.sampled else 3
        sampled = torch.tensor(self.sampled, dtype=torch.int32).view(len(self.sampled), width)
        return (
            memory.tensor(sampled),
            memory.tensor(self.discard, torch.bool),
            memory.tensor(self.backup),
            VOCAB,
        )

    @property
    def backup(self) -> list[int]:
        return [1000 + i for i in range(len(self.sampled))]

    def drafting(self, memory: Memory) -> tuple[Any, ...]:
        lens = torch.tensor(self.drafted, dtype=torch.int32) + 1
        starts = torch.nn.functional.pad(lens.cumsum(0), (1, 0))
        return memory.tensor(torch.tensor(self.drafted, dtype=torch.int32).cumsum(0)), memory.tensor(starts)

    def by_hand(self) -> tuple[list[int], list[int]]:
        tokens, counts = [], []
        for row, discarded, backup in zip(self.sampled, self.discard, self.backup, strict=True):
            valid = [] if discarded else [token for token in row if 0 <= token < VOCAB]
            counts.append(len(valid))
            tokens.append(valid[-1] if valid else backup)
        return tokens, counts


@st.composite
def batches(draw: Any, max_requests: int = 60, bad: bool = True) -> Batch:
    width = draw(st.integers(1, 9))
    token = st.integers(0, VOCAB - 1) | st.just(-1)
    if bad:
        token |= st.sampled_from([VOCAB, VOCAB + 1, 2**31 - 1, -2, -(2**31)])
    number = draw(st.one_of(st.integers(1, 5), st.integers(1, max_requests)))
    rows = [draw(st.lists(token, min_size=width, max_size=width)) for _ in range(number)]
    drafted = [draw(st.integers(0, width - 1)) for _ in rows]
    return Batch(rows, [draw(st.integers(0, 4)) == 0 for _ in rows], drafted)


def results(tensors: tuple[torch.Tensor, ...]) -> tuple[list[int], ...]:
    assert all(tensor.dtype == torch.int32 for tensor in tensors)
    return tuple(tensor.tolist() for tensor in tensors)


@examples(20)
@given(batches())
def test_the_last_valid_token_or_the_backup(batch: Batch) -> None:
    for give in (kernel.prepare_next_token_padded, kernel.reference):
        with Memory() as memory:
            assert results(give(*batch.arguments(memory))) == batch.by_hand()


@examples(15)
@given(batches())
def test_one_launch_gives_what_two_give(batch: Batch) -> None:
    for triton in (True, False):
        with pytest.MonkeyPatch.context() as monkeypatch, Memory() as memory:
            monkeypatch.setattr(kernel, "use_triton", lambda: triton)  # noqa: B023
            cu, starts = batch.drafting(memory)
            found = results(kernel.prepare_drafting(*batch.arguments(memory), cu, starts))
            tokens, counts = batch.by_hand()
            rows = prepare_inputs_padded.reference(cu, memory.tensor(counts), starts)
            assert found == (tokens, counts, *results(rows))


@examples(6)
@given(batches(bad=False))
def test_it_gives_what_the_kernels_it_stands_for_give(batch: Batch) -> None:
    memory = Memory()
    sampled, *rest = batch.arguments(memory)
    number, width = sampled.shape
    cu, starts = batch.drafting(memory)
    found = []
    for launch in (ours, hosts_kernel):
        outputs = [memory.filled((number,), -7) for _ in range(4)]
        launch(VLLM["eagle_prepare_next_token_padded_kernel"])[(number,)](
            sampled, *rest[:2], *outputs[:2], VOCAB, width, number, width,
            BLOCK_SIZE_TOKENS=1 << (width - 1).bit_length(),
        )  # fmt: skip
        valid = outputs[1].clamp(min=1)  # without a valid token vLLM's rows are those of the request before
        launch(VLLM["eagle_prepare_inputs_padded_kernel"])[(number,)](cu, valid, starts, *outputs[2:], number)
        found.append(tuple(output.tolist() for output in outputs))
    assert found[0] == found[1]
    assert found[0] == results(kernel.prepare_drafting(*batch.arguments(memory), cu, starts))


def test_an_empty_batch_gives_empty_results() -> None:
    memory, batch = Memory(), Batch([], [], [])
    assert results(kernel.prepare_next_token_padded(*batch.arguments(memory))) == ([], [])
    assert results(kernel.prepare_drafting(*batch.arguments(memory), *batch.drafting(memory))) == (
        [],
        [],
        [],
        [],
    )


def test_longer_masks_and_backups_rows_apart_and_ids_of_64_bits() -> None:
    with Memory() as memory:
        sampled = memory.tensor([[5, -1, 9], [7, 8, 9], [-1, -1, 9]])[:, :2]
        discard, backup = memory.tensor([False] * 5, torch.bool), memory.tensor([50, 51, 52, 53, 54])
        for ids in (sampled, sampled.long()):
            for give in (kernel.prepare_next_token_padded, kernel.reference):
                assert results(give(ids, discard, backup, VOCAB)) == ([5, 8, 52], [1, 2, 0])


def test_more_requests_than_cores_hold() -> None:
    number = 40 * 8 * 2 + 5
    batch = Batch([[i % VOCAB, -1] for i in range(number)], [i % 7 == 0 for i in range(number)], [1] * number)
    with Memory() as memory:
        assert results(kernel.prepare_next_token_padded(*batch.arguments(memory))) == batch.by_hand()


def proposers() -> tuple[Any, Any]:
    """``prepare_next_token_ids_padded`` of the installed host's proposers, and what the patch puts there."""
    patch = next(patch for patch in PATCHES if patch.id == "spec_decode.next_token_ids").on(hosts.installed())
    import_module("vllm_ascend.worker.worker")  # first: the host's modules import each other
    host = import_module(patch.target)
    names = ("AscendSpecDecodeBaseProposer", "SpecDecodeBaseProposer", "AscendEagleProposer")
    name = next(name for name in names if hasattr(host, name))
    module: Any = ModuleType("host")
    # The patch stands on spec_decode.base_proposer, which gives 0.16.0rc1's proposers this base.
    setattr(module, "SpecDecodeBaseProposer" if name == "AscendEagleProposer" else name, type(name, (), {}))
    import_module(patch.body).apply(Edit(patch.id, module))
    (patched,) = (value for value in vars(module).values() if isinstance(value, type))
    return getattr(host, name).prepare_next_token_ids_padded, patched.prepare_next_token_ids_padded


def test_proposers_go_on_with_the_hosts_tokens() -> None:
    """With requests that have no valid token, and go on with one that the host picks by its own measure."""
    lengths, vocab = [7, 12, 9, 5], 40
    batch = SimpleNamespace(
        num_reqs=4, req_ids=list("abcd"), vocab_size=vocab, num_tokens_no_spec=np.array([*lengths, 99]) - 2
    )
    requests = {
        name: SimpleNamespace(get_token_id=lambda place, first=20 * number: (first + place) % vocab)
        for number, name in enumerate(batch.req_ids)
    }
    metadata = SimpleNamespace(seq_lens_cpu=torch.tensor([*lengths, 99], dtype=torch.int32))
    sampled = [[1, 2, -1], [-1, -1, -1], [3, 4, 5], [vocab, -1, -1]]
    found = []
    for function in proposers():
        drafter = SimpleNamespace(
            backup_next_token_ids=CpuGpuBuffer(8, dtype=torch.int32, device=NPU, pin_memory=False),
            runner=SimpleNamespace(optimistic_seq_lens_cpu=torch.full((5,), 99)),  # no prompt is under way
        )
        given = {
            "common_attn_metadata": metadata,
            "sampled_token_ids": torch.tensor(sampled, dtype=torch.int32, device=NPU),
            "requests": requests,
            "gpu_input_batch": batch,
            "discard_request_indices": torch.tensor([2, 0], device=NPU),
            "num_discarded_requests": 1,
        }
        taken = inspect.signature(function).parameters
        found.append(function(drafter, **{name: value for name, value in given.items() if name in taken}))
    (next_tokens, counts), ours = ([values.tolist() for values in results] for results in found)
    assert counts == [2, 0, 0, 0]
    assert ours == [next_tokens, counts]
