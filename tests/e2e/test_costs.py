# SPDX-License-Identifier: Apache-2.0
"""What drafting asks of the device, counted: no copy to the host, no more launches than the host alone."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.e2e.cases import Case
from tests.e2e.checks import Check, host_alone

EAGLE = Case("pred", "eagle", "pred_eagle")
DRAFT_MODEL = Case("pred", "draft_model", "pred_draft")
PREPARATION = ("prepare_next_token_ids_padded", "prepare_inputs_padded")
FUSED = ("prepare_drafting",)  # both in one launch


def with_async(case: Case) -> Case:
    return Case(case.model, case.method, case.draft, engine={"async_scheduling": True})


@pytest.mark.parametrize("case", [DRAFT_MODEL, EAGLE], ids=["draft_model", "eagle"])
@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_drafting_never_waits_for_the_device(check: Check, case: Case, scheduling: str) -> None:
    case = with_async(case) if scheduling == "async" else case
    costs = check.runs(case).facts["costs"]
    calls = Counter(cost["method"] for cost in costs)
    assert all(calls[name] > 5 for name in (*FUSED, "_propose")), calls
    for cost in costs:
        assert cost["copies"] == [], cost
        assert cost["synchronizations"] == 0, cost


def launches_of_verified_batches(check: Check, case: Case) -> dict[str, int]:
    """Launches by method in a step in which all six requests verify drafts, the same in every such step."""
    rows = 6 * (case.k + 1)
    preparation = PREPARATION if case == host_alone(case) else FUSED
    found: dict[str, set[int]] = {name: set() for name in (*preparation, "_propose")}
    for cost in check.runs(case).facts["costs"]:
        if (cost["requests"], cost["rows"]) == (6, rows):
            found[cost["method"]].add(cost["launches"])
    assert all(len(counts) == 1 for counts in found.values()), found
    return {name: counts.pop() for name, counts in found.items()}


def test_eagle_launches_no_more_than_the_host_alone(check: Check) -> None:
    ours = launches_of_verified_batches(check, EAGLE)
    hosts = launches_of_verified_batches(check, host_alone(EAGLE))
    assert sum(ours.values()) <= sum(hosts.values()), (ours, hosts)


def test_a_further_draft_token_costs_no_more_than_with_the_host_alone(check: Check) -> None:
    def of_one_more(case: Case) -> int:
        five = Case(case.model, case.method, case.draft, k=5, env=case.env)
        return (
            launches_of_verified_batches(check, five)["_propose"]
            - launches_of_verified_batches(check, case)["_propose"]
        )

    assert of_one_more(EAGLE) <= of_one_more(host_alone(EAGLE))
