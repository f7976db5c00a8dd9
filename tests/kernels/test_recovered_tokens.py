# SPDX-License-Identifier: Apache-2.0
"""recovered_tokens: kernel, reference, the hosts' kernels and numpy choose the same tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ascend_specpatch.kernels import recovered_tokens as kernel

from .support import ASCEND, VLLM, Drafts, Memory, call, drafts, examples, hosts_kernel, ours, randomness


class Case:
    def __init__(self, batch: Drafts, vocab: int, seed: int, *, ngram: bool = False) -> None:
        g = randomness(seed)
        self.batch, self.vocab = batch, vocab
        self.ids = torch.randint(0, vocab, (batch.num_tokens,), generator=g, dtype=torch.int32)
        self.target = torch.rand((batch.num_tokens, vocab), generator=g)
        self.draft = None if ngram else torch.rand((batch.num_tokens, vocab), generator=g)
        self.q = torch.empty((len(batch.drafted), vocab)).exponential_(generator=g)

    def arguments(self, memory: Memory) -> tuple[Any, ...]:
        draft = None if self.draft is None else memory.tensor(self.draft, torch.float32)
        target, q = memory.tensor(self.target, torch.float32), memory.tensor(self.q, torch.float32)
        return memory.tensor(self.batch.cu), memory.tensor(self.ids), draft, target, q

    def want(self) -> list[int]:
        request = np.repeat(np.arange(len(self.batch.drafted)), self.batch.drafted)
        prob = self.target.numpy().copy()
        if self.draft is None:
            for row, token in zip(prob, self.ids.tolist(), strict=True):
                if 0 <= token < self.vocab:
                    row[token] = 0
        else:
            prob -= self.draft.numpy()
        with np.errstate(all="ignore"):
            score = prob / self.q.numpy()[request]
            score = np.where(score > 0, score, np.float32(0))
        return [int(token) for token in score.argmax(1)] if score.size else []

    def given(self, memory: Memory) -> list[int]:
        output = memory.filled((self.batch.num_tokens,), -7)
        kernel.recovered_tokens(output, *self.arguments(memory), self.batch.max_spec_len)
        return list(output.tolist())

    def check(self) -> None:
        with Memory() as memory:
            assert self.given(memory) == self.want()
        assert kernel.reference(*self.arguments(Memory())).tolist() == self.want()


vocabularies = st.one_of(
    st.integers(1, 40), st.sampled_from([1023, 1024, 1025, 4095, 4096, 4097, 5000, 12_289])
)
seeds = st.integers(0, 2**32 - 1)


@examples(20)
@given(drafts(max_requests=12, max_spec_len=4), vocabularies, seeds, st.booleans())
def test_it_takes_the_largest(batch: Drafts, vocab: int, seed: int, ngram: bool) -> None:
    Case(batch, vocab, seed, ngram=ngram).check()


@pytest.mark.parametrize(
    ("vocab", "npu"),
    [(151_936, True), (262_144, True), (128_257, True), (128_257, False)],
    ids=lambda value: {True: "npu", False: "gpu"}.get(value) if isinstance(value, bool) else str(value),
)
@pytest.mark.parametrize("ngram", [False, True])
def test_vocabularies_of_real_models(
    vocab: int, ngram: bool, npu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "on_npu", lambda: npu)
    case = Case(Drafts([3], 3), vocab, vocab, ngram=ngram)
    case.q[:, -1] = 1e-7  # so that the last tile has it
    if case.draft is not None:
        case.draft[:, -1] = 0
    assert case.want() == [vocab - 1] * 3
    case.check()


@examples(15)
@given(drafts(max_requests=6, max_spec_len=3), st.sampled_from([7, 1024, 4500]), seeds, st.booleans())
def test_bad_values(batch: Drafts, vocab: int, seed: int, ngram: bool) -> None:
    case = Case(batch, vocab, seed, ngram=ngram)
    g = randomness(seed + 1)
    for values in (case.target, case.draft, case.q):
        if values is not None:
            for bad in (float("nan"), 0.0, -1.0, float("inf"), float("-inf"), 1e-42):
                values[torch.rand(values.shape, generator=g) < 0.1] = bad
    if batch.num_tokens:
        case.target[0] = float("nan")
        case.target[-1] = 0
    for bad in (-1, vocab, 2**31 - 1, -(2**31)):
        case.ids[torch.rand(case.ids.shape, generator=g) < 0.15] = bad
    case.check()


def test_the_lowest_of_equal_tokens_is_taken_also_over_tiles() -> None:
    case = Case(Drafts([2, 1], 2), 9000, 0)
    case.draft, case.q[:] = torch.zeros_like(case.target), 1.0
    case.target[:] = 0.25
    case.target[0, [4000, 8000, 8999]] = 0.5
    case.target[1, [1023, 1024]] = 0.5
    assert case.want() == [4000, 1023, 0]
    case.check()


@pytest.mark.parametrize("batch", [Drafts([], 3), Drafts([0, 0], 3), Drafts([0, 3, 0], 3)], ids=str)
def test_requests_without_draft_tokens(batch: Drafts) -> None:
    Case(batch, 100, 1).check()


def test_probabilities_are_left_as_they_are() -> None:
    case = Case(Drafts([2], 2), 300, 2, ngram=True)
    with Memory() as memory:
        arguments = case.arguments(memory)
        output = memory.filled((2,), -7)
        kernel.recovered_tokens(output, *arguments, 2)
        assert torch.equal(arguments[3].cpu(), case.target)


@examples(5)
@given(drafts(max_requests=6, max_spec_len=3), st.sampled_from([40, 1000, 4097]), seeds, st.booleans())
def test_it_gives_what_the_kernels_it_stands_for_give(
    batch: Drafts, vocab: int, seed: int, ngram: bool
) -> None:
    case, memory = Case(batch, vocab, seed, ngram=ngram), Memory()
    name = "sample_recovered_tokens_kernel"
    grid = (len(batch.drafted), batch.max_spec_len)
    padded = 1 << (vocab - 1).bit_length()
    results = []
    for kernels in (VLLM, ASCEND):
        options = {"SUB_BLOCK": 4096} if kernels is ASCEND else {}
        for launch in (ours, hosts_kernel):
            output = memory.filled((batch.num_tokens,), -7)
            values = (output, *case.arguments(memory), vocab, padded)
            call(launch, kernels[name], grid, *values, NO_DRAFT_PROBS=ngram, **options)
            results.append(output.tolist())
    assert results == [case.want()] * 4


def test_one_request_keeps_every_core_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three draft tokens and a vocabulary of 32,000: eight tiles of 4,096 would leave 16 of 40 cores idle."""
    grids, best = [], kernel._best_of_tiles

    class Recorder:
        def __getitem__(self, grid: tuple[int]) -> Any:
            grids.append(grid)
            return best[grid]

    monkeypatch.setattr(kernel, "_best_of_tiles", Recorder())
    for vocab in (32_000, 151_936):
        Case(Drafts([3], 3), vocab, 3).given(Memory())
    assert grids == [(40,), (40,)]
