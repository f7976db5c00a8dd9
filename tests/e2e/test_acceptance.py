# SPDX-License-Identifier: Apache-2.0
"""Drafts and logits are the reference's in every way of drafting: a few of what `make acceptance` runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.e2e import host, matrix
from tests.e2e.cases import Case
from tests.e2e.checks import Check

# Every method, mode and number of drafts; test_other_methods.py and test_draft_model.py have more.
TELLING = [
    ("eagle", "unpadded", 4),
    ("eagle3", "padded, chunked", 5),
    ("mtp (MiMo)", "padded", 2),
    ("mtp (MiMo)", "full graphs", 3),
    ("mtp (DeepSeek-V3)", "padded", 5),
    ("mtp (DeepSeek-V3)", "unpadded, chunked", 3),
    ("mtp (DeepSeek-V3)", "piecewise graphs", 3),
    ("draft_model", "padded, chunked", 4),
    ("eagle3, parallel", "padded", 1),
    ("eagle3, parallel", "padded, chunked", 3),
    ("draft_model, parallel", "padded", 5),
]


@pytest.mark.parametrize(("method", "mode", "k"), TELLING)
def test_every_draft_is_the_references(check: Check, method: str, mode: str, k: int) -> None:
    case = matrix.case_of(method, mode, k)
    check.as_reference(case)
    difference = check.largest_logit_difference(case)
    assert difference is not None  # a full graph hides the logits of replayed passes, not those of a prefill
    assert difference <= host.IN_FLOAT32


@pytest.mark.parametrize("method", matrix.METHODS)
def test_the_models_accept_enough_and_reject_enough_for_errors_to_show(check: Check, method: str) -> None:
    expected = check.oracle.speculation(matrix.METHODS[method])
    assert 0.2 <= expected.accepted_at[0] / expected.num_drafts <= 0.8


def test_a_head_without_a_language_model_head_of_its_own_uses_its_targets(check: Check) -> None:
    """The hosts alone leave it with weights that nobody wrote."""
    check.as_reference(Case("pred8", "eagle3", "pred8_headless_eagle3"))


def test_an_mtp_layer_drafts_with_its_targets_head(check: Check) -> None:
    """As with vLLM, whatever its checkpoint has."""
    check.as_reference(Case("dsv3_other_head", "mtp"))


@pytest.mark.parametrize("method", ["eagle3", "draft_model"])
def test_in_bfloat16_text_parts_from_plain_decoding_at_ties_only(check: Check, method: str) -> None:
    case = matrix.METHODS[method]
    case = replace(case, engine={**case.engine, "dtype": "bfloat16"})
    assert all(margin <= host.IN_BFLOAT16 for margin in check.margins(case))


def test_parallel_drafting_needs_a_head_with_a_state_for_masked_slots(check: Check) -> None:
    case = Case("pred", "eagle", "pred_stateless_eagle", spec={"parallel_drafting": True})
    error = check.harness.run(case).error
    assert error is not None
    assert "remove parallel_drafting from speculative_config" in error
