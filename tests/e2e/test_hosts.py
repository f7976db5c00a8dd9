# SPDX-License-Identifier: Apache-2.0
"""What every supported host pair must show: a compact choice of the other end-to-end tests.

`make test-hosts` runs it in the environment of a pair. On the first pair all of `tests/e2e` is run instead.
"""

from __future__ import annotations

import pytest

from ascend_specpatch.hosts import SUPPORTED
from tests.e2e import host, matrix
from tests.e2e.cases import Case
from tests.e2e.checks import Check

NGRAM = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
TWO_RANKS = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
HEADS = ("eagle", "eagle3", "mtp (MiMo)", "mtp (DeepSeek-V3)")
DRAFTING = [
    *((head, mode, k) for head in HEADS for mode, k in (("padded", 3), ("padded", 1), ("unpadded", 3))),
    ("mtp (DeepSeek-V3)", "padded, chunked", 3),
    ("eagle", "full graphs", 2),
    ("mtp (MiMo)", "piecewise graphs", 3),
    ("draft_model", "padded", 3),
    ("draft_model", "padded, chunked", 1),
    ("draft_model, parallel", "padded", 3),
    ("eagle3, parallel", "padded", 3),
]


def test_the_pair_is_supported_and_none_of_its_patches_is_refused(check: Check) -> None:
    assert host.PAIR in SUPPORTED
    report = check.runs(Case("llama", "draft_model", "llama")).facts["report"]
    states = {row["id"]: row["state"] for row in report}
    assert {"refused", "off"}.isdisjoint(states.values()), states
    assert "applied" in states.values()


@pytest.mark.parametrize(("method", "mode", "k"), DRAFTING)
def test_every_draft_is_the_references(check: Check, method: str, mode: str, k: int) -> None:
    check.as_reference(matrix.case_of(method, mode, k))


def test_steps_may_be_longer_than_the_sizes_that_are_captured(check: Check) -> None:
    """vLLM leaves out 260, which is no multiple of three rows a request, after the runner has noted it."""
    graphs = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [3, 6, 12, 260]}
    engine = {"enforce_eager": False, "compilation_config": graphs}
    check.as_reference(Case("pred", "eagle", "pred_eagle", k=2, engine=engine, timeout=240))


def test_what_the_host_does_not_do_on_request_ends_no_engine(check: Check) -> None:
    """vLLM refuses heads that cannot find the likeliest token without all logits; the host gathers them."""
    if not host.has_local_argmax():
        pytest.skip("vLLM has no such setting")
    check.as_reference(Case("pred", "eagle", "pred_eagle", spec={"use_local_argmax_reduction": True}))


@pytest.mark.parametrize("equal", matrix.EQUALS)
def test_a_draft_model_that_equals_its_target_has_every_draft_accepted(check: Check, equal: str) -> None:
    outcome = check.as_reference(matrix.EQUALS[equal])
    assert (outcome.accepted, outcome.drafted) == (108, 108)


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param({"max_num_batched_tokens": 64}, id="chunked-prefill"),
        pytest.param({"async_scheduling": True}, id="async-scheduling"),
        pytest.param({"async_scheduling": False}, id="no-async-scheduling"),
    ],
)
def test_so_it_has_in_other_engines(check: Check, engine: dict[str, object]) -> None:
    outcome = check.all_accepted(Case("llama", "draft_model", "llama", engine=engine))
    assert outcome.facts["async_scheduling"] is engine.get("async_scheduling", False)


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param({}, id="whole-prompts"),
        pytest.param({"max_num_batched_tokens": 64}, id="chunked-prefill"),
        pytest.param({"enable_chunked_prefill": False}, id="no-chunked-prefill"),
        pytest.param({"max_num_batched_tokens": 8, "max_num_seqs": 6}, id="few-tokens-a-step"),
    ],
)
def test_so_it_has_with_mla(check: Check, engine: dict[str, object]) -> None:
    check.all_accepted(Case("dsv3_alone", "draft_model", "dsv3_alone", engine=engine))


def test_so_it_has_on_two_ranks(check: Check) -> None:
    case = Case("llama", "draft_model", "llama", engine=TWO_RANKS, processes="spawn", timeout=300)
    outcome = check.all_accepted(case)
    assert len(outcome.workers) == 2
    assert outcome.workers[0]["drafts"] == outcome.workers[1]["drafts"]


def test_ngram_keeps_its_text(check: Check) -> None:
    outcome = check.same_text(Case("cyc", "ngram", spec=NGRAM))
    assert 0 < outcome.accepted < outcome.drafted
