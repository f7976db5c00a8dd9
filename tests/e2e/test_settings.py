# SPDX-License-Identifier: Apache-2.0
"""Switched off, whole or in part, it is the hosts' own behaviour or a refusal that says what to do."""

from __future__ import annotations

import re
from fnmatch import fnmatch

import pytest

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
    "model_runner.lora_in_graphs",
)
NAMES_WHAT_TO_DO = re.compile(r"ascend-specpatch status|ASCEND_SPECPATCH")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "patch_id" in metafunc.fixturenames:
        from ascend_specpatch.patches import PATCHES

        # Together: the kernels, which no case here launches, and what no case here asks for.
        kernels, asked = "spec_decode.kernels.*", ",".join(BESIDE)
        ids = dict.fromkeys(
            kernels if fnmatch(p.id, kernels) else asked if p.id in BESIDE else p.id for p in PATCHES
        )
        metafunc.parametrize("patch_id", list(ids), ids=[one.replace(asked, "beside") for one in ids])


def test_switched_off_draft_model_ends_with_the_hosts_error(check: Check) -> None:
    outcome = check.harness.run(host_alone(DRAFT_MODEL))
    assert outcome.error == STOCK_ERROR


def test_switched_off_the_hosts_classes_are_untouched(check: Check) -> None:
    facts = check.same_text(host_alone(EAGLE)).facts
    assert facts["drafter_bases"] == [
        "vllm_ascend.spec_decode.eagle_proposer.AscendEagleProposer",
        "vllm.v1.spec_decode.eagle.EagleProposer",
        "vllm.v1.spec_decode.eagle.SpecDecodeBaseProposer",
        "builtins.object",
    ]
    assert {row["state"] for row in facts["report"]} == {"off"}


def test_without_one_patch_draft_model_works_or_is_refused(check: Check, patch_id: str) -> None:
    case = DRAFT_MODEL.with_env(ASCEND_SPECPATCH_DISABLE=patch_id)
    outcome = check.harness.run(case)
    if outcome.error is None:
        check.all_accepted(case)
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


def test_without_any_patch_draft_model_ends_with_the_hosts_error(check: Check) -> None:
    outcome = check.harness.run(DRAFT_MODEL.with_env(ASCEND_SPECPATCH_DISABLE="*"))
    assert outcome.error == STOCK_ERROR
