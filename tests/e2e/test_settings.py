# SPDX-License-Identifier: Apache-2.0
"""Switched off, whole or in part, it is the hosts' own behaviour or a refusal that says what to do."""

from __future__ import annotations

import re
from fnmatch import fnmatch

import pytest

from tests.e2e import host
from tests.e2e.cases import Case
from tests.e2e.checks import Check, host_alone

DRAFT_MODEL = Case("llama", "draft_model", "llama")
EAGLE = Case("pred", "eagle", "pred_eagle")
STOCK_ERROR = "ValueError: Unknown speculative decoding method: draft_model"
# Patches of what requests may ask for beside greedy text; tests/e2e/test_server_life.py is about them,
# and test_lora.py.
BESIDE = (
    "spec_decode.ngram_at_max_length",
    "spec_decode.sampled_verification",
    "spec_decode.draft_penalties",
    "spec_decode.seeded_recovery",
    "spec_decode.skipped_requests",
    "spec_decode.allowed_tokens",
    "model_runner.async_output_tokens",
    "model_runner.grammar_bitmask",
    "model_runner.allowed_tokens_rows",
    "model_runner.captured_sizes",
    "model_runner.lora_in_graphs",
)
NAMES_WHAT_TO_DO = re.compile(r"ascend-specpatch status|ASCEND_SPECPATCH")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "patch_id" in metafunc.fixturenames:
        # Together: the kernels, which no case here launches, and what no case here asks for.
        kernels, asked = "spec_decode.kernels.*", ",".join(p.id for p in host.NEEDED if p.id in BESIDE)
        ids = dict.fromkeys(
            kernels if fnmatch(p.id, kernels) else asked if p.id in BESIDE else p.id for p in host.NEEDED
        )
        metafunc.parametrize("patch_id", list(ids), ids=[one.replace(asked, "beside") for one in ids])


def test_switched_off_draft_model_is_what_the_hosts_make_of_it(check: Check) -> None:
    is_the_hosts_own(check, host_alone(DRAFT_MODEL))


def is_the_hosts_own(check: Check, draft_model: Case) -> None:
    """They have no such method, or draft as they can, which need not be right."""
    if host.drafts_alone("draft_model"):
        assert host.OUR_LOOP not in check.same_text(draft_model).facts["drafter_bases"]
    else:
        assert check.harness.run(draft_model).error == STOCK_ERROR


def test_switched_off_the_hosts_classes_are_untouched(check: Check) -> None:
    facts = check.same_text(host_alone(EAGLE)).facts
    first, *others = facts["drafter_bases"]
    assert first == "vllm_ascend.spec_decode.eagle_proposer.AscendEagleProposer"
    assert "vllm.v1.spec_decode.eagle.EagleProposer" in others
    assert not any(base.startswith("ascend_specpatch") for base in others), others
    assert {row["state"] for row in facts["report"]} == {"off"}


def test_without_one_patch_draft_model_works_or_is_refused(check: Check, patch_id: str) -> None:
    case = DRAFT_MODEL.with_env(ASCEND_SPECPATCH_DISABLE=patch_id)
    outcome = check.harness.run(case)
    if outcome.error is None and host.OUR_LOOP in outcome.facts["drafter_bases"]:
        check.all_accepted(case)
    elif outcome.error is None:
        is_the_hosts_own(check, case)
    else:
        first = outcome.error.splitlines()[0]
        assert first == STOCK_ERROR or NAMES_WHAT_TO_DO.search(first), (
            f"{outcome.error}\n{outcome.last_lines()}"
        )


def test_without_one_patch_eagle_works(check: Check, patch_id: str) -> None:
    outcome = check.same_text(EAGLE.with_env(ASCEND_SPECPATCH_DISABLE=patch_id))
    names = patch_id.split(",")
    states = {
        row["state"] for row in outcome.facts["report"] if any(fnmatch(row["id"], name) for name in names)
    }
    assert states == {"off"}


@pytest.mark.parametrize("stage", ["worker", "spec_decode", "model_runner"])
def test_without_one_stage_eagle_works(check: Check, stage: str) -> None:
    check.same_text(EAGLE.with_env(ASCEND_SPECPATCH_DISABLE=stage))


def test_without_any_patch_draft_model_is_what_the_hosts_make_of_it(check: Check) -> None:
    is_the_hosts_own(check, DRAFT_MODEL.with_env(ASCEND_SPECPATCH_DISABLE="*"))
