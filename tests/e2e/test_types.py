# SPDX-License-Identifier: Apache-2.0
"""What stands in the engine process: our proposers, which pass for vLLM's where vLLM asks."""

from __future__ import annotations

import re

import pytest

from tests.e2e import host
from tests.e2e.cases import Case
from tests.e2e.checks import Check

DRAFT_MODEL = Case("llama", "draft_model", "llama")
EAGLE = Case("pred", "eagle", "pred_eagle")


def test_draft_model_gets_our_proposer(check: Check) -> None:
    facts = check.runs(DRAFT_MODEL).facts
    assert re.fullmatch(r"vllm_ascend\.spec_decode\.\w+\.AscendDraftModelProposer", facts["drafter"])
    assert host.OUR_LOOP in facts["drafter_bases"]
    assert facts["drafter_is"]["DraftModelProposer"]["instance"]
    assert not facts["drafter_is"]["EagleProposer"]["instance"]
    assert facts["drafter_is"]["SpecDecodeBaseProposer"]["subclass"]
    assert facts["needs_extra_input_slots"] is True


@pytest.mark.parametrize(
    "case",
    [EAGLE, Case("mimo_hi", "mtp"), Case("pred8", "eagle3", "pred8_eagle3")],
    ids=["eagle", "mtp", "eagle3"],
)
def test_the_eagle_family_gets_our_proposer(check: Check, case: Case) -> None:
    facts = check.runs(case).facts
    assert host.OUR_LOOP in facts["drafter_bases"]
    really = "vllm.v1.spec_decode.eagle.EagleProposer" in facts["drafter_bases"]
    assert really is host.proposers_are_vllms()  # else virtually only
    assert facts["drafter_is"]["EagleProposer"]["instance"]
    assert not facts["drafter_is"]["DraftModelProposer"]["instance"]
    assert facts["drafter_is"]["SpecDecodeBaseProposer"]["subclass"]
    assert facts["needs_extra_input_slots"] is False


@pytest.mark.parametrize("case", [DRAFT_MODEL, EAGLE], ids=["draft_model", "eagle"])
def test_every_patch_that_the_hosts_need_is_reported_as_applied(check: Check, case: Case) -> None:
    facts = check.runs(case).facts
    assert facts["report"] is not None, "ascend-specpatch is not installed beside the hosts"
    states = {row["id"]: row["state"] for row in facts["report"]}
    expected = dict(host.STATES)
    if not facts["async_scheduling"]:  # nobody imports its target then
        expected["spec_decode.skipped_requests"] = "waiting"
    assert states == expected
