# SPDX-License-Identifier: Apache-2.0
"""What drafting asks of the device, counted: no copy to the host, no more launches than the host alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.e2e import host, matrix
from tests.e2e.cases import Case
from tests.e2e.checks import Check, host_alone

EAGLE = Case("pred", "eagle", "pred_eagle")
DRAFT_MODEL = Case("pred", "draft_model", "pred_draft")
HOSTS_METHODS = [method for method in matrix.METHODS if host.drafts_alone(method)]
PREPARATION = ("prepare_next_token_ids_padded", "prepare_inputs_padded")
OURS = ("prepare_drafting",) if host.prepares_in_one_launch() else PREPARATION


@pytest.mark.parametrize("method", matrix.METHODS)
def test_drafting_never_waits_for_the_device(check: Check, method: str) -> None:
    never_waits(check, matrix.METHODS[method])


@pytest.mark.parametrize("case", [DRAFT_MODEL, EAGLE], ids=["draft_model", "eagle"])
@pytest.mark.parametrize("on", [True, False])
def test_nor_does_it_with_the_other_scheduling(check: Check, case: Case, on: bool) -> None:
    never_waits(check, replace(case, engine={"async_scheduling": on}))


def never_waits(check: Check, case: Case) -> None:
    costs = check.runs(case).facts["costs"]
    calls = Counter(cost["method"] for cost in costs)
    assert all(calls[name] > 5 for name in (*OURS, "_propose")), calls
    for cost in costs:
        assert cost["copies"] == [], cost
        assert cost["synchronizations"] == 0, cost


def launches_of_verified_batches(check: Check, case: Case) -> dict[str, int]:
    """Launches by method in a step in which all six requests verify drafts, the same in every such step."""
    rows = 6 * (case.k + 1)
    preparation = PREPARATION if case == host_alone(case) else OURS
    found: dict[str, set[int]] = {name: set() for name in (*preparation, "_propose")}
    for cost in check.runs(case).facts["costs"]:
        if (cost["requests"], cost["rows"]) == (6, rows):
            found[cost["method"]].add(cost["launches"])
    assert all(len(counts) == 1 for counts in found.values()), found
    return {name: counts.pop() for name, counts in found.items()}


@pytest.mark.parametrize("method", HOSTS_METHODS)
def test_no_more_launches_than_with_the_host_alone(check: Check, method: str) -> None:
    case = matrix.METHODS[method]
    ours = launches_of_verified_batches(check, case)
    hosts = launches_of_verified_batches(check, host_alone(case))
    assert sum(ours.values()) <= sum(hosts.values()), (ours, hosts)


@pytest.mark.parametrize("method", HOSTS_METHODS)
def test_a_further_draft_token_costs_no_more_than_with_the_host_alone(check: Check, method: str) -> None:
    def of_two_more(case: Case) -> int:
        five, three = (
            launches_of_verified_batches(check, replace(case, k=k))["_propose"] for k in (5, case.k)
        )
        return five - three

    case = matrix.METHODS[method]
    assert of_two_more(case) <= of_two_more(host_alone(case))
