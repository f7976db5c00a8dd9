# SPDX-License-Identifier: Apache-2.0
"""Heads over several ranks. draft_model with two is in test_draft_model.py; what it refuses, in
test_bad_input.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.e2e.cases import Case
from tests.e2e.checks import Check

TWO_RANKS = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case("pred", "eagle", "pred_eagle", engine=TWO_RANKS), id="eagle"),
        pytest.param(
            Case("dsv3_hi", "mtp", engine={**TWO_RANKS, "enable_expert_parallel": True}),
            id="mtp-expert-parallel",
        ),
    ],
)
def test_tensor_parallel_size_2(check: Check, case: Case) -> None:
    outcome = check.as_reference(replace(case, processes="spawn", timeout=300))
    assert len(outcome.workers) == 2
    assert outcome.workers[0]["drafts"] == outcome.workers[1]["drafts"]
