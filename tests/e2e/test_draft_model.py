# SPDX-License-Identifier: Apache-2.0
"""method draft_model: greedy text is plain decoding's, and every draft is the draft model's own."""

from __future__ import annotations

import pytest

from tests.e2e.cases import Case
from tests.e2e.checks import Check

RESHAPED = ("llama_wide", "llama_hid", "llama_kv", "llama_hd", "llama_l")


@pytest.mark.parametrize("model", ["llama", "qwen3"])
def test_a_draft_equal_to_its_target_has_every_draft_accepted(check: Check, model: str) -> None:
    outcome = check.as_reference(Case(model, "draft_model", model))
    assert (outcome.accepted, outcome.drafted) == (108, 108)


@pytest.mark.parametrize("shape", RESHAPED)
def test_the_same_function_in_another_shape_drafts_for_its_target(check: Check, shape: str) -> None:
    outcome = check.as_reference(Case("llama", "draft_model", shape))
    assert (outcome.accepted, outcome.drafted) == (108, 108)


@pytest.mark.parametrize("shape", RESHAPED)
def test_a_target_in_another_shape_accepts_the_same_function(check: Check, shape: str) -> None:
    outcome = check.as_reference(Case(shape, "draft_model", "llama"))
    assert (outcome.accepted, outcome.drafted) == (108, 108)


@pytest.mark.parametrize("draft", ["pred_draft", "pred_draft_wide"])
def test_a_draft_that_is_part_of_its_target_drafts_as_the_reference(check: Check, draft: str) -> None:
    outcome = check.as_reference(Case("pred", "draft_model", draft))
    assert 0 < outcome.accepted < outcome.drafted  # both acceptance and rejection were exercised


def test_an_unrelated_draft_is_never_accepted(check: Check) -> None:
    outcome = check.as_reference(Case("llama", "draft_model", "llama_draft"))
    assert outcome.accepted == 0


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("draft", ["llama", "llama_wide"])
def test_any_number_of_drafts_is_accepted(check: Check, draft: str, k: int) -> None:
    check.as_reference(Case("llama", "draft_model", draft, k=k))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_any_number_of_drafts_follows_the_reference_through_rejections(check: Check, k: int) -> None:
    check.as_reference(Case("pred", "draft_model", "pred_draft", k=k))


@pytest.mark.parametrize("on", [True, False])
def test_logprobs_may_be_asked_for(check: Check, on: bool) -> None:
    case = Case(
        "pred", "draft_model", "pred_draft", sampling={"logprobs": 2}, engine={"async_scheduling": on}
    )
    check.as_reference(case)


def test_one_request(check: Check) -> None:
    check.as_reference(Case("llama", "draft_model", "llama", prompts="one"))


@pytest.mark.parametrize("draft", ["llama", "llama_draft"])
def test_32_requests(check: Check, draft: str) -> None:
    engine = {"max_num_seqs": 32, "num_gpu_blocks_override": 128}
    check.as_reference(Case("llama", "draft_model", draft, prompts="many", max_tokens=12, engine=engine))


@pytest.mark.parametrize("prompt_set", ["block_edges", "same_edge"])
@pytest.mark.parametrize(("model", "draft"), [("llama", "llama"), ("pred", "pred_draft")])
def test_first_drafts_that_do_not_fit_into_the_last_block_of_a_prompt(
    check: Check, model: str, draft: str, prompt_set: str
) -> None:
    """Without `spec_decode.first_draft_slots` all of them share the null block."""
    engine = {"max_num_batched_tokens": 1024}  # all prompts in one step
    check.as_reference(Case(model, "draft_model", draft, prompts=prompt_set, engine=engine))


@pytest.mark.parametrize("max_model_len", [284, 283, 272])
@pytest.mark.parametrize(("model", "draft"), [("llama", "llama"), ("pred", "pred_draft")])
def test_text_may_reach_max_model_len(check: Check, model: str, draft: str, max_model_len: int) -> None:
    """The longest prompt has 260 tokens: 284 is met exactly, 283 and 272 cut the output."""
    case = Case(model, "draft_model", draft, engine={"max_model_len": max_model_len})
    outcome = check.as_reference(case)
    assert len(outcome.tokens[4]) == min(24, max_model_len - 260)


def test_chunked_prefill(check: Check) -> None:
    check.all_accepted(Case("llama", "draft_model", "llama", engine={"max_num_batched_tokens": 64}))


def test_a_draft_may_have_more_rows_than_max_num_batched_tokens(check: Check) -> None:
    """With MLA, for whose rotary angles the host has a buffer of that length."""
    engine = {"max_num_batched_tokens": 8, "max_num_seqs": 6}
    check.all_accepted(Case("dsv3_alone", "draft_model", "dsv3_alone", engine=engine))


def test_chunked_prefill_drafts_as_the_reference(check: Check) -> None:
    check.as_reference(Case("pred", "draft_model", "pred_draft", engine={"max_num_batched_tokens": 64}))


@pytest.mark.parametrize(("model", "draft"), [("llama", "llama"), ("pred", "pred_draft")])
def test_preempted_requests_continue_rightly(check: Check, model: str, draft: str) -> None:
    """Nine KV blocks, less the null block, are too few for six requests. The scheduler decides which steps
    that costs, so the counts are not the reference's; text and drafts are."""
    case = Case(model, "draft_model", draft, prompts="growing", engine={"num_gpu_blocks_override": 9})
    outcome = check.all_accepted(case) if model == draft else check.same_text(case)
    assert outcome.metrics["num_preemptions"] > 0
    assert not check.wrong_drafts(case)


@pytest.mark.parametrize("draft", ["llama", "llama_wide"])
def test_prefix_caching_serves_the_draft_model_too(check: Check, draft: str) -> None:
    engine = {"enable_prefix_caching": True, "max_num_seqs": 2}
    outcome = check.all_accepted(Case("llama", "draft_model", draft, prompts="shared_prefix", engine=engine))
    assert outcome.metrics["prefix_cache_hits"] >= 256


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize(("model", "draft"), [("llama", "llama"), ("pred", "pred_draft")])
def test_async_scheduling_on_and_off(check: Check, model: str, draft: str, on: bool) -> None:
    outcome = check.as_reference(Case(model, "draft_model", draft, engine={"async_scheduling": on}))
    assert outcome.facts["async_scheduling"] is on


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL_DECODE_ONLY"])
def test_the_target_may_use_captured_graphs(check: Check, mode: str) -> None:
    engine = {"enforce_eager": False, "compilation_config": {"cudagraph_mode": mode}}
    check.as_reference(Case("pred", "draft_model", "pred_draft", engine=engine))


@pytest.mark.parametrize("processes", ["fork", "spawn"])
def test_the_engine_in_a_process_of_its_own(check: Check, processes: str) -> None:
    check.as_reference(Case("llama", "draft_model", "llama", processes=processes, timeout=240))  # type: ignore[arg-type]


@pytest.mark.parametrize(("model", "draft"), [("llama", "llama"), ("pred", "pred_draft")])
def test_tensor_parallel_size_2(check: Check, model: str, draft: str) -> None:
    engine = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    case = Case(model, "draft_model", draft, engine=engine, processes="spawn", timeout=300)
    outcome = check.as_reference(case)
    assert len(outcome.workers) == 2
    assert outcome.workers[0]["drafts"] == outcome.workers[1]["drafts"]
