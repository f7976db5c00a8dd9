# SPDX-License-Identifier: Apache-2.0
"""Rejection sampling, greedy and random: kernels, references, the hosts' kernels and loops say the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm_ascend.ops.triton import reject_sample
from vllm_ascend.ops.triton.triton_utils import init_device_properties_triton

from ascend_specpatch.kernels import _dispatch
from ascend_specpatch.kernels import rejection_greedy as greedy
from ascend_specpatch.kernels import rejection_random as random

from .support import ASCEND, VLLM, Drafts, Memory, call, drafts, examples, hosts_kernel, ours, randomness

UNTOUCHED = -7


@dataclass
class Sampling:
    """A batch with probabilities, on the host; `on` moves it into a Memory."""

    batch: Drafts
    draft: torch.Tensor
    argmax: torch.Tensor
    draft_probs: torch.Tensor | None
    target_probs: torch.Tensor
    bonus: torch.Tensor
    recovered: torch.Tensor
    uniform: torch.Tensor
    is_greedy: torch.Tensor

    @classmethod
    def make(cls, batch: Drafts, seed: int, *, ngram: bool = False, vocab: int = 40) -> Sampling:
        g = randomness(seed)
        tokens, requests = batch.num_tokens, len(batch.drafted)

        def ids(*shape: int) -> torch.Tensor:
            return torch.randint(0, vocab, shape, generator=g, dtype=torch.int32)

        def probs() -> torch.Tensor:
            return (3 * torch.rand((tokens, vocab), generator=g)).softmax(-1)

        draft = ids(tokens)
        argmax = torch.where(torch.rand(tokens, generator=g) < 0.7, draft, ids(tokens)).long()
        return cls(
            batch, draft, argmax, None if ngram else probs(), probs() * (vocab / 2 if ngram else 1),
            ids(requests, 1), ids(tokens), torch.rand(tokens, generator=g),
            torch.rand(requests, generator=g) < 0.3,
        )  # fmt: skip

    def greedy_arguments(self, memory: Memory) -> tuple[Any, ...]:
        cu = memory.tensor(self.batch.cu)
        return (
            cu,
            memory.tensor(self.draft),
            memory.tensor(self.argmax, torch.int64),
            memory.tensor(self.bonus),
        )

    def random_arguments(self, memory: Memory, dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
        draft_probs = None if self.draft_probs is None else memory.tensor(self.draft_probs, torch.float32)
        return (
            memory.tensor(self.batch.cu), memory.tensor(self.draft), draft_probs,
            memory.tensor(self.target_probs, torch.float32), memory.tensor(self.bonus),
            memory.tensor(self.recovered), memory.tensor(self.uniform, dtype),
            memory.tensor(self.is_greedy, torch.bool),
        )  # fmt: skip

    def rows(self, memory: Memory, fill: int = UNTOUCHED) -> torch.Tensor:
        return memory.filled((len(self.batch.drafted), self.batch.max_spec_len + 1), fill)


# ---- by hand, a token at a time: what a request is given


def greedy_row(s: Sampling, start: int, length: int, bonus: int) -> list[int]:
    row = []
    for token in range(start, start + length):
        row.append(int(s.argmax[token]))
        if row[-1] != int(s.draft[token]):
            return row
    return [*row, bonus]


def probabilities(s: Sampling, token: int) -> tuple[int, np.float32, np.float32]:
    draft = int(s.draft[token])
    if not 0 <= draft < s.target_probs.shape[1]:
        return draft, np.float32(0), np.float32(0)
    draft_prob = 1.0 if s.draft_probs is None else float(s.draft_probs[token, draft])
    return draft, np.float32(s.target_probs[token, draft]), np.float32(draft_prob)


def random_row(s: Sampling, start: int, length: int, bonus: int) -> list[int]:
    row = []
    for token in range(start, start + length):
        draft, target_prob, draft_prob = probabilities(s, token)
        if not (draft_prob > 0 and target_prob / draft_prob >= np.float32(s.uniform[token])):
            return [*row, int(s.recovered[token])]
        row.append(draft)
    return [*row, bonus]


def by_hand(s: Sampling, rule: Callable[..., list[int]], wanted: list[bool]) -> list[list[int]]:
    """The whole output; the rows of requests that are not `wanted` stay as they were."""
    width = s.batch.max_spec_len + 1
    rows = [
        rule(s, start, length, int(bonus)) if mine else []
        for start, length, bonus, mine in zip(s.batch.starts, s.batch.drafted, s.bonus, wanted, strict=True)
    ]
    return [row + [UNTOUCHED] * (width - len(row)) for row in rows]


# ---- the tests

seeds = st.integers(0, 2**32 - 1)
# The two forms of the kernels; a GPU's runs here as well.
FORMS = {"one_by_one": (True, 40), "at_once": (False, 1)}


def form(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(_dispatch, "_device", lambda: FORMS[name])


@examples(20)
@given(drafts(), seeds, st.booleans(), st.sampled_from(sorted(FORMS)))
def test_greedy(batch: Drafts, seed: int, mixed: bool, how: str) -> None:
    s = Sampling.make(batch, seed)
    wanted = s.is_greedy.tolist() if mixed else [True] * len(batch.drafted)
    want = by_hand(s, greedy_row, wanted)
    for give in (greedy.rejection_greedy, greedy.reference):
        with pytest.MonkeyPatch.context() as monkeypatch, Memory() as memory:
            form(monkeypatch, how)
            rows = s.rows(memory)
            give(rows, *s.greedy_arguments(memory), memory.tensor(s.is_greedy, torch.bool) if mixed else None)
            assert rows.tolist() == want


@examples(15)
@given(drafts(), seeds, st.booleans(), st.sampled_from(sorted(FORMS)))
def test_random(batch: Drafts, seed: int, ngram: bool, how: str) -> None:
    s = Sampling.make(batch, seed, ngram=ngram)
    want = by_hand(s, random_row, (~s.is_greedy).tolist())
    for give in (random.rejection_random, random.reference):
        with pytest.MonkeyPatch.context() as monkeypatch, Memory() as memory:
            form(monkeypatch, how)
            rows = s.rows(memory)
            give(rows, *s.random_arguments(memory))
            assert rows.tolist() == want


@pytest.mark.parametrize("how", sorted(FORMS))
def test_many_requests(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form(monkeypatch, how)
    s = Sampling.make(Drafts([i % 8 for i in range(200)], 7), 1)
    with Memory() as memory:
        rows = s.rows(memory)
        random.rejection_random(rows, *s.random_arguments(memory))
        assert rows.tolist() == by_hand(s, random_row, (~s.is_greedy).tolist())
        rows = s.rows(memory)
        greedy.rejection_greedy(rows, *s.greedy_arguments(memory))
        assert rows.tolist() == by_hand(s, greedy_row, [True] * 200)


@pytest.mark.parametrize("how", sorted(FORMS))
@pytest.mark.parametrize("ngram", [False, True])
def test_a_ratio_equal_to_the_uniform_number_is_enough(
    how: str, ngram: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    form(monkeypatch, how)
    s = Sampling.make(Drafts([1, 1, 1], 1), 2, ngram=ngram)
    s.is_greedy[:] = False
    s.uniform = torch.tensor([1.0, 0.5, 0.25])
    for token, ratio in enumerate([1.0, 0.5, 0.125]):
        s.target_probs[token] = ratio
        if s.draft_probs is not None:
            s.target_probs[token], s.draft_probs[token] = ratio / 4, 0.25
    want = by_hand(s, random_row, [True] * 3)
    assert [row[0] for row in want] == [int(s.draft[0]), int(s.draft[1]), int(s.recovered[2])]
    for give in (random.rejection_random, random.reference):
        with Memory() as memory:
            rows = s.rows(memory)
            give(rows, *s.random_arguments(memory))
            assert rows.tolist() == want


@examples(5)
@given(drafts(max_requests=90), seeds)
def test_greedy_as_the_hosts_kernels(batch: Drafts, seed: int) -> None:
    init_device_properties_triton()
    s = Sampling.make(batch, seed)
    memory = Memory()
    arguments, is_greedy = s.greedy_arguments(memory), memory.tensor(s.is_greedy, torch.bool)
    number, length = len(batch.drafted), batch.max_spec_len
    for mask in (None, is_greedy):
        rows, theirs, ascends, mine = (s.rows(memory) for _ in range(4))
        for find, output in ((ours, rows), (hosts_kernel, theirs)):
            name = VLLM["rejection_greedy_sample_kernel"]
            call(find, name, (number,), output, *arguments, mask, length)
        grid, block = reject_sample.cal_grid_and_block_size(number)
        name, options = ASCEND["rejection_greedy_sample_triton"], {"BLOCK_SIZE": block}
        hosts_kernel(name)[(grid,)](ascends, *arguments, mask, number, length, **options)
        ours(name)[(grid,)](mine, *arguments, mask, number, length, **options)
        assert rows.tolist() == theirs.tolist() == ascends.tolist() == mine.tolist()


@pytest.mark.parametrize("number", [1, 40, 41, 90])
def test_one_draft_token_each_as_vllm_ascend(number: int) -> None:
    init_device_properties_triton()
    s = Sampling.make(Drafts([1] * number, 1), number)
    memory = Memory()
    _, draft, argmax, bonus = s.greedy_arguments(memory)
    rows, theirs = s.rows(memory), s.rows(memory)
    grid, block = reject_sample.cal_grid_and_block_size(number)
    name = ASCEND["rejection_greedy_sample_spec_len_1_triton"]
    with memory:
        ours(name)[(grid,)](rows, draft, argmax, bonus, number, BLOCK_SIZE=block)
    if number % block == 0:  # theirs looks past the batch otherwise
        hosts_kernel(name)[(grid,)](theirs, draft, argmax, bonus, number, BLOCK_SIZE=block)
        assert rows.tolist() == theirs.tolist()
    greedy.reference(theirs, None, draft, argmax, bonus, None)
    assert rows.tolist() == theirs.tolist() == by_hand(s, greedy_row, [True] * number)


@pytest.mark.parametrize("how", sorted(FORMS))
@examples(5)
@given(drafts(max_requests=60), seeds, st.booleans())
def test_random_as_the_hosts_kernels(how: str, batch: Drafts, seed: int, ngram: bool) -> None:
    init_device_properties_triton()
    s = Sampling.make(batch, seed, ngram=ngram)
    memory = Memory()
    # Upstream compares float64; a float32 is the same number there.
    arguments = s.random_arguments(memory, torch.float32)
    number, length, vocab = len(batch.drafted), batch.max_spec_len, s.target_probs.shape[1]
    name = VLLM["rejection_random_sample_kernel"]
    rows, theirs, ascends, mine = (s.rows(memory) for _ in range(4))
    with pytest.MonkeyPatch.context() as monkeypatch:
        form(monkeypatch, how)
        for find, output in ((ours, rows), (hosts_kernel, theirs)):
            call(find, name, (number,), output, *arguments, length, vocab, NO_DRAFT_PROBS=ngram)
        grid, block = reject_sample.cal_grid_and_block_size(number)
        name, options = (
            ASCEND["rejection_random_sample_kernel"],
            {"NO_DRAFT_PROBS": ngram, "BLOCK_SIZE": block},
        )
        for find, output in ((ours, mine), (hosts_kernel, ascends)):
            call(find, name, (grid,), output, *arguments, length, vocab, number, **options)
    assert rows.tolist() == theirs.tolist() == ascends.tolist() == mine.tolist()


@pytest.mark.parametrize("ngram", [False, True])
def test_blocks_are_verified_token_by_token(ngram: bool) -> None:
    s = Sampling.make(Drafts([3, 0, 5, 1], 5), 4, ngram=ngram)
    memory = Memory()
    rows, arguments = s.rows(memory), s.random_arguments(memory, torch.float32)
    name = ASCEND["rejection_random_sample_block_verify_kernel"]
    values = (rows, *arguments, 5, s.target_probs.shape[1], 4)
    call(ours, name, (4,), *values, NO_DRAFT_PROBS=ngram, BLOCK_SIZE=1)
    assert rows.tolist() == by_hand(s, random_row, (~s.is_greedy).tolist())


# ---- bad values


def damaged(batch: Drafts, seed: int, ngram: bool) -> Sampling:
    """Ids outside the vocabulary, probabilities of zero and NaN, uniform numbers of zero and one."""
    s = Sampling.make(batch, seed, ngram=ngram)
    g = randomness(seed + 1)
    vocab = s.target_probs.shape[1]

    def some(of: torch.Tensor, value: float, share: float = 0.15) -> None:
        of[torch.rand(of.shape, generator=g) < share] = value

    for value in (-1, vocab, 2**30, -(2**31)):
        some(s.draft, value, 0.08)
    for probs in (s.target_probs, s.draft_probs):
        if probs is not None:
            some(probs, 0.0)
            some(probs, float("nan"))
            some(probs, 1e-40, 0.1)
    some(s.uniform, 0.0)
    some(s.uniform, 1.0)
    return s


@examples(15)
@given(drafts(), seeds, st.booleans(), st.sampled_from(sorted(FORMS)))
def test_bad_values_end_the_accepted_tokens(batch: Drafts, seed: int, ngram: bool, how: str) -> None:
    s = damaged(batch, seed, ngram)
    with np.errstate(all="ignore"):
        want = by_hand(s, random_row, (~s.is_greedy).tolist())
        for give in (random.rejection_random, random.reference):
            with pytest.MonkeyPatch.context() as monkeypatch, Memory() as memory:
                form(monkeypatch, how)
                rows = s.rows(memory)
                give(rows, *s.random_arguments(memory))
                assert rows.tolist() == want


@examples(8)
@given(drafts(), seeds, st.sampled_from(sorted(FORMS)))
def test_greedy_with_ids_outside_the_vocabulary(batch: Drafts, seed: int, how: str) -> None:
    s = damaged(batch, seed, False)
    s.argmax = torch.where(s.argmax % 2 == 0, s.draft.long(), s.argmax)
    with pytest.MonkeyPatch.context() as monkeypatch, Memory() as memory:
        form(monkeypatch, how)
        rows, same = s.rows(memory), s.rows(memory)
        arguments = s.greedy_arguments(memory)
        greedy.rejection_greedy(rows, *arguments)
        greedy.reference(same, *arguments, None)
        assert rows.tolist() == same.tolist() == by_hand(s, greedy_row, [True] * len(batch.drafted))


@pytest.mark.parametrize(
    "batch", [Drafts([], 3), Drafts([0], 3), Drafts([0] * 45, 1), Drafts([128, 0, 128], 128)], ids=str
)
def test_batches_at_the_edge(batch: Drafts, monkeypatch: pytest.MonkeyPatch) -> None:
    s = Sampling.make(batch, 5)
    s.is_greedy[:] = False
    wanted = [True] * len(batch.drafted)
    for name in FORMS:
        form(monkeypatch, name)
        for give in (random.rejection_random, random.reference):
            with Memory() as memory:
                rows = s.rows(memory)
                give(rows, *s.random_arguments(memory))
                assert rows.tolist() == by_hand(s, random_row, wanted)
        for give in (greedy.rejection_greedy, greedy.reference):
            with Memory() as memory:
                rows = s.rows(memory)
                give(rows, *s.greedy_arguments(memory), None)
                assert rows.tolist() == by_hand(s, greedy_row, wanted)


@pytest.mark.parametrize("how", sorted(FORMS))
def test_more_draft_tokens_than_a_row_holds_stay_in_their_row(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form(monkeypatch, how)
    s = Sampling.make(Drafts([5, 2, 4], 5), 3)
    s.batch = Drafts([5, 2, 4], 2)  # of which rows of three are made
    s.is_greedy[:] = False
    s.argmax, s.uniform = s.draft.long(), torch.zeros(11)  # all are accepted
    with Memory() as memory:
        rows, same = s.rows(memory), s.rows(memory)
        random.rejection_random(rows, *s.random_arguments(memory))
        random.reference(same, *s.random_arguments(memory))
        assert rows.tolist() == same.tolist()
    with Memory() as memory:
        rows, same = s.rows(memory), s.rows(memory)
        greedy.rejection_greedy(rows, *s.greedy_arguments(memory))
        greedy.reference(same, *s.greedy_arguments(memory), None)
        assert rows.tolist() == same.tolist()
