# SPDX-License-Identifier: Apache-2.0
"""Workers that Ray starts are patched as any others: `distributed_executor_backend="ray"`, with real Ray."""

from __future__ import annotations

import pytest

from tests.e2e.cases import Case
from tests.e2e.checks import Check
from tests.e2e.test_routes import OF_THE_ENGINE_CORE, assert_none_is_missing


@pytest.mark.parametrize("size", [1, 2])
def test_draft_model_under_ray_drafts_as_the_reference(check: Check, size: int) -> None:
    case = Case(
        "pred",
        "draft_model",
        "pred_draft",
        engine={"tensor_parallel_size": size},
        processes="ray",
        timeout=300.0,
    )
    outcome = check.as_reference(case)
    reports = [worker["report"] for worker in outcome.workers]
    assert len({worker["pid"] for worker in outcome.workers}) == size
    assert all(report == reports[0] for report in reports)
    # A Ray worker loads no engine core.
    states = {row["id"]: row["state"] for row in reports[0]}
    assert_none_is_missing(states)
    waiting = {name for name, state in states.items() if state == "waiting"}
    assert "worker.equal_ranks" in waiting
    assert waiting <= OF_THE_ENGINE_CORE
    lines = [line for line in outcome.log_text().splitlines() if "ascend-specpatch 0" in line]
    assert len([line for line in lines if "(RayWorkerWrapper pid=" in line]) == size
    said = {process["pid"]: process for process in outcome.processes}
    pids = [worker["pid"] for worker in outcome.workers]
    assert {said[pid]["title"] for pid in pids} == {"ray::RayWorkerWrapper"}
    assert len({said[pid]["digest"] for pid in pids}) == 1
