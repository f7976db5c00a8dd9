# SPDX-License-Identifier: Apache-2.0
"""Our Triton kernels inside an engine: in Triton's interpreter they give what their torch references give.

The hosts see a usable Triton in both runs, so they take the same ways, with the same kernel of their own.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.e2e.cases import Case
from tests.e2e.checks import Check, counts

OURS = "ascend_specpatch.kernels."
HOSTS = {"vllm_ascend.ops.triton.rope"}
GREEDY: dict[str, object] = {}
RANDOM: dict[str, object] = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 1}
OF_GREEDY = {"prepare_next_token_padded", "rejection_greedy"}
EXTRA_SLOTS = {"copy_and_expand_inputs"}  # of a draft model, for the token that the target has just given
OF_RANDOM = {"prepare_next_token_padded", "expand", "recovered_tokens"}
MOST_LAUNCHES = 124  # of a draft model's three passes over a verified batch; 51 are the model's


def case(method: str, draft: str, k: int, sampling: dict[str, object]) -> Case:
    # Small: the interpreter takes a thousand times as long as a device.
    engine = {"max_num_seqs": 2, "max_num_batched_tokens": 64, "max_model_len": 128}
    return Case(
        "pred", method, draft, k=k, prompts="short", max_tokens=8, engine=engine, sampling=sampling,
        env={"NPU_EMU_TRITON": "1"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("case", "kernels"),
    [
        pytest.param(case("draft_model", "pred_draft", 3, GREEDY), OF_GREEDY | EXTRA_SLOTS, id="draft_model"),
        pytest.param(case("eagle", "pred_eagle", 3, GREEDY), OF_GREEDY, id="eagle"),
        pytest.param(
            case("draft_model", "pred_draft", 2, RANDOM),
            OF_RANDOM | EXTRA_SLOTS | {"rejection_random"},
            id="sampling",
        ),
        # From three drafts on vllm-ascend verifies by blocks; rejection_random stands in for that too.
        pytest.param(
            case("eagle", "pred_eagle", 3, RANDOM),
            OF_RANDOM | {"rejection_random"},
            id="three-sampled-drafts",
        ),
    ],
)
def test_kernels_in_the_interpreter_give_what_their_references_give(
    check: Check, case: Case, kernels: set[str]
) -> None:
    interpreted = check.runs(case.with_env(ASCEND_SPECPATCH_KERNELS="triton"))
    reference = check.runs(case.with_env(ASCEND_SPECPATCH_KERNELS="torch"))
    launches = launches_by_module(interpreted.facts)
    assert launches.keys() == HOSTS | {OURS + name for name in kernels}
    assert launches_by_module(reference.facts).keys() == HOSTS
    if "expand" in kernels:  # temperature, top-k and top-p in one launch, once a verification
        (verification,) = kernels - OF_RANDOM - EXTRA_SLOTS
        assert launches[f"{OURS}expand"] == launches[OURS + verification]
    assert interpreted.tokens == reference.tokens
    assert interpreted.drafts == reference.drafts
    assert counts(interpreted) == counts(reference)
    assert 0 < interpreted.accepted < interpreted.drafted  # both acceptance and rejection were exercised


def test_a_draft_model_launches_no_more_than_it_did(check: Check) -> None:
    outcome = check.runs(
        case("draft_model", "pred_draft", 3, GREEDY).with_env(ASCEND_SPECPATCH_KERNELS="triton")
    )
    launches = {
        cost["launches"]
        for cost in outcome.facts["costs"]
        if (cost["method"], cost["requests"], cost["rows"]) == ("_propose", 2, 8)
    }
    assert launches, "no step verified the drafts of both requests"
    assert max(launches) <= MOST_LAUNCHES


def launches_by_module(facts: dict[str, dict[str, int]]) -> Counter[str]:
    """How many Triton kernels of each module a worker launched after its warm-up."""
    launches: Counter[str] = Counter()
    for kernel, number in facts["kernels"].items():
        launches[kernel.rpartition(".")[0]] += number
    return launches
