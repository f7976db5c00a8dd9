# SPDX-License-Identifier: Apache-2.0
"""What comes out of rejection sampling is distributed as it should be: chi-square tests with fixed seeds.

The references sample 200,000 requests, the kernels, which Triton's interpreter runs, 300. The output has the
target's distribution, also where vllm-ascend verifies by blocks, whose output has not (docs/kernels.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import stats
from vllm_ascend.ops.triton.reject_sample import cal_grid_and_block_size
from vllm_ascend.ops.triton.triton_utils import init_device_properties_triton
from vllm_ascend.sample import rejection_sampler

from ascend_specpatch.kernels import _dispatch
from ascend_specpatch.kernels import recovered_tokens as recovered
from ascend_specpatch.kernels import rejection_random as random

from .support import ASCEND, Memory, call, hosts_kernel, ours, randomness

# A probability row for each position; the last is the bonus token's.
TARGET = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]])
DRAFT = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.1, 0.4]])
LENGTH, VOCAB = DRAFT.shape
UNLIKELY, IMPOSSIBLE = 1e-3, 1e-9


def draws(rows: torch.Tensor, number: int, g: torch.Generator) -> torch.Tensor:
    """int32 [number, len(rows)], a token of each row's distribution."""
    return torch.stack([row.multinomial(number, True, generator=g) for row in rows], 1).int()


def sample(
    number: int,
    seed: int,
    launch: Callable[..., Any],
    recover: Callable[..., Any],
    ngram: bool,
    target: torch.Tensor = TARGET,
    drafted: torch.Tensor = DRAFT,
) -> torch.Tensor:
    """The output of `number` requests."""
    g, memory, length = randomness(seed), Memory(), len(drafted)
    draft = draws(drafted, number, g)
    bonus = draws(target[length:], number, g)
    q = torch.empty((number, VOCAB)).exponential_(generator=g)
    uniform = torch.rand(number * length, dtype=torch.float64, generator=g)
    cu = memory.tensor(torch.arange(1, number + 1) * length)
    ids = memory.tensor(draft.flatten())
    probs = memory.tensor(target[:length].repeat(number, 1), torch.float32)
    draft_probs = None if ngram else memory.tensor(drafted.repeat(number, 1), torch.float32)
    tokens = recover(cu, ids, draft_probs, probs, memory.tensor(q, torch.float32))
    rows = memory.filled((number, length + 1), -1)
    uniforms = memory.tensor(uniform, torch.float64)
    launch(rows, cu, ids, draft_probs, probs, memory.tensor(bonus), tokens, uniforms, None)
    return rows.cpu()


def recover_by_kernel(cu: torch.Tensor, ids: torch.Tensor, *rest: Any) -> torch.Tensor:
    tokens = torch.empty_like(ids)
    recovered.recovered_tokens(tokens, cu, ids, *rest, LENGTH)
    return tokens


def likelihood(observed: torch.Tensor, expected: torch.Tensor) -> float:
    """Probability of counts at least as far from `expected` (probabilities); cells that cannot be must be
    empty."""
    observed, expected = observed.flatten().double(), expected.flatten().double()
    possible = expected > 0
    assert observed[~possible].sum() == 0
    wanted = expected[possible] / expected[possible].sum() * observed.sum()
    return float(stats.chisquare(observed[possible].numpy(), wanted.numpy()).pvalue)


def counts(tokens: torch.Tensor) -> torch.Tensor:
    return torch.bincount(tokens[tokens >= 0].long(), minlength=VOCAB)


MANY, FEW = 200_000, 300
WAYS = {
    "reference": (MANY, random.reference, recovered.reference, True),
    "one_by_one": (FEW, random.rejection_random, recover_by_kernel, True),
    "at_once": (FEW, random.rejection_random, recovered.reference, False),
}


@pytest.mark.parametrize("ngram", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_token_by_token_the_output_is_the_targets(
    way: str, ngram: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, launch, recover, npu = WAYS[way]
    monkeypatch.setattr(_dispatch, "_device", lambda: (npu, 40))
    rows = sample(number, 7, launch, recover, ngram)
    for position in range(LENGTH + 1):
        assert likelihood(counts(rows[:, position]), TARGET[position]) > UNLIKELY
    # Of the tokens that are there, as many are the draft's as the two distributions have in common.
    overlap = (DRAFT * TARGET[:LENGTH]).sum(1) if ngram else DRAFT.minimum(TARGET[:LENGTH]).sum(1)
    reached = rows >= 0
    for position in range(LENGTH):
        went_on = reached[:, position + 1].sum()
        there = reached[:, position].sum()
        split = torch.stack([went_on, there - went_on])
        assert likelihood(split, torch.stack([overlap[position], 1 - overlap[position]])) > UNLIKELY


# Three draft tokens: from there on vllm-ascend verifies by blocks.
THREE = TARGET[[0, 1, 0, 2]], DRAFT[[0, 1, 0]]


def with_blocks(find: Callable[[str], Any]) -> Callable[..., None]:
    """Calls what is found in place of vllm-ascend's block verification, as its sampler does."""

    def launch(rows: torch.Tensor, *arguments: Any) -> None:
        init_device_properties_triton()
        number, width = rows.shape
        *inputs, uniform, _ = arguments
        grid, block = cal_grid_and_block_size(number)
        is_greedy = torch.zeros(number, dtype=torch.bool, device=rows.device)
        options = {"NO_DRAFT_PROBS": inputs[2] is None, "BLOCK_SIZE": block}
        name = ASCEND["rejection_random_sample_block_verify_kernel"]
        call(
            find,
            name,
            (grid,),
            rows,
            *inputs,
            uniform.float(),
            is_greedy,
            width - 1,
            VOCAB,
            number,
            **options,
        )

    return launch


def blocks_without_triton(rows: torch.Tensor, *arguments: Any) -> None:
    """vllm-ascend's, where it finds no Triton."""
    *inputs, uniform, _ = arguments
    is_greedy = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    rejection_sampler.rejection_random_sample_block_verify_pytorch(
        rows, *inputs, uniform.float(), is_greedy, rows.shape[1] - 1, VOCAB, IS_NGRAM=inputs[2] is None
    )


@pytest.mark.parametrize("ngram", [False, True])
@pytest.mark.parametrize(("number", "triton"), [(MANY, False), (FEW, True)], ids=["reference", "kernel"])
def test_where_vllm_ascend_verifies_by_blocks_the_output_is_the_targets(
    number: int, triton: bool, ngram: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "use_triton", lambda: triton)
    rows = sample(number, 11, with_blocks(ours), recovered.reference, ngram, *THREE)
    for position, target in enumerate(THREE[0]):
        found = counts(rows[:, position])
        if found.sum() > 50:
            assert likelihood(found, target) > UNLIKELY


@pytest.mark.parametrize(
    ("number", "launch"),
    [(MANY, blocks_without_triton), (FEW, with_blocks(hosts_kernel))],
    ids=["torch", "kernel"],
)
def test_vllm_ascends_blocks_are_what_that_test_finds(number: int, launch: Any) -> None:
    rows = sample(number, 11, launch, recovered.reference, False, *THREE)
    assert likelihood(counts(rows[:, 0]), THREE[0][0]) < IMPOSSIBLE
