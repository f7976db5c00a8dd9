# SPDX-License-Identifier: Apache-2.0
"""eagle, eagle3, mtp and ngram: what worked on the hosts still does, and what the patches repair is right."""

from __future__ import annotations

import pytest

from tests.e2e import host
from tests.e2e.cases import Case
from tests.e2e.checks import Check, counts, host_alone

NGRAM = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
FROM_HIDDEN_STATES = [
    pytest.param(Case("pred", "eagle", "pred_eagle"), id="eagle"),
    pytest.param(Case("llama", "eagle", "eagle_llama"), id="eagle-random-head"),
    pytest.param(Case("pred8", "eagle3", "pred8_eagle3"), id="eagle3"),
    pytest.param(Case("mimo_hi", "mtp"), id="mtp-mimo"),
    pytest.param(Case("dsv3_hi", "mtp"), id="mtp-deepseek-v3"),
    pytest.param(Case("dsv32_hi", "mtp"), id="mtp-deepseek-v3.2"),  # sparse attention
]


@pytest.mark.parametrize("case", FROM_HIDDEN_STATES)
def test_every_draft_is_the_references(check: Check, case: Case) -> None:
    """The hosts alone draft some tokens wrongly: lengths count rejected tokens, MLA's steps share a cos/sin
    buffer, positions are overwritten while in use."""
    if host.host_drafts(case):
        ours, hosts = (check.same_text(one) for one in (case, host_alone(case)))
        assert [draft.tokens for draft in ours.drafts] == [draft.tokens for draft in hosts.drafts]
    else:
        check.as_reference(case)


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL_DECODE_ONLY"])
@pytest.mark.parametrize("model", ["pred", "pred8"])
def test_drafts_in_captured_graphs_are_the_references_too(check: Check, model: str, mode: str) -> None:
    """Sizes that are no multiples of k + 1 rows a request need padding, which the hosts alone get wrong."""
    method, draft = {"pred": ("eagle", "pred_eagle"), "pred8": ("eagle3", "pred8_eagle3")}[model]
    graphs = {"cudagraph_mode": mode, "cudagraph_capture_sizes": [2, 4, 8, 16, 24, 32]}
    check.as_reference(
        Case(model, method, draft, engine={"enforce_eager": False, "compilation_config": graphs})
    )


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case("cyc", "ngram", spec=NGRAM), id="repetitive-text"),
        pytest.param(Case("llama", "ngram", spec=NGRAM), id="random-text"),
    ],
)
def test_ngram_is_left_as_it_is(check: Check, case: Case) -> None:
    outcome = check.same_text(case)
    assert counts(outcome) == counts(check.runs(host_alone(case)))


@pytest.mark.parametrize(
    ("prompts", "engine"),
    [
        pytest.param("mixed", {"max_num_batched_tokens": 64}, id="chunked-prefill"),
        pytest.param("growing", {"num_gpu_blocks_override": 9}, id="preemption"),
        pytest.param("mixed", {"async_scheduling": False}, id="no-async-scheduling"),
        # Sizes are captured for twice as many requests as may run.
        pytest.param("mixed", {"enforce_eager": False}, id="captured-graphs"),
    ],
)
def test_eagle_keeps_its_text_in_other_engines(check: Check, prompts: str, engine: dict[str, object]) -> None:
    check.same_text(Case("pred", "eagle", "pred_eagle", prompts=prompts, engine=engine))
