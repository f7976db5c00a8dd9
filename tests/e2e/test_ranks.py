# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel ranks with one patch set run; one with another stops the engine, and nothing hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.cases import Case, Processes
from tests.e2e.checks import Check

ENGINE = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}

# Runs in every process of the case. A spawned rank 1 starts with other variables; a forked one, which has its
# parent's patches, takes them back and starts anew.
OTHER_SETTINGS = """
import os
from multiprocessing.process import BaseProcess

SETTINGS = {settings!r}
start, run = BaseProcess.start, BaseProcess.run

def starting(self):
    before = dict(os.environ)
    if self.name == "VllmWorker-1":
        os.environ.update(SETTINGS)
    try:
        start(self)
    finally:
        os.environ.clear()
        os.environ.update(before)

def running(self):
    if self.name == "VllmWorker-1" and {method!r} == "fork":
        from ascend_specpatch import hooks
        hooks.uninstall()
        os.environ.update(SETTINGS)
        hooks.activate("the test")
    run(self)

BaseProcess.start, BaseProcess.run = starting, running
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_equal_ranks_run_and_say_the_same(check: Check, method: Processes) -> None:
    case = Case("pred", "draft_model", "pred_draft", engine=ENGINE, processes=method, timeout=300)
    outcome = check.as_reference(case)
    workers = {worker["pid"] for worker in outcome.workers}
    assert len(workers) == 2
    assert len({str(worker["report"]) for worker in outcome.workers}) == 1
    said = [process for process in outcome.processes if process["pid"] in workers]
    assert sorted(process["name"] for process in said) == ["VllmWorker-0", "VllmWorker-1"]
    assert len({process["digest"] for process in said}) == 1


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        (
            "spawn",
            {"ASCEND_SPECPATCH_DISABLE": "model_runner.lora_in_graphs"},
            "model_runner.lora_in_graphs is off (ASCEND_SPECPATCH_DISABLE), not on",
        ),
        (
            "fork",
            {"ASCEND_SPECPATCH_DISABLE": "model_runner.lora_in_graphs"},
            "model_runner.lora_in_graphs is off (ASCEND_SPECPATCH_DISABLE), not on",
        ),
        ("spawn", {"ASCEND_SPECPATCH": "0"}, "every patch is off (ASCEND_SPECPATCH=0), not on"),
    ],
)
def test_a_rank_with_another_patch_set_stops_the_engine(
    check: Check, tmp_path: Path, method: Processes, settings: dict[str, str], expected: str
) -> None:
    hook = OTHER_SETTINGS.format(settings=settings, method=method)
    (tmp_path / "sitecustomize.py").write_text(hook)
    case = Case(
        "llama",
        engine=ENGINE,
        processes=method,
        env={"PYTHONPATH": str(tmp_path)},
        timeout=240,
        prompts="one",
    )
    outcome = check.harness.run(case)
    assert outcome.error is not None
    assert "Engine core initialization failed" in outcome.error, outcome.last_lines()
    assert "the ranks of this engine are not patched alike" in outcome.log_text(), outcome.last_lines()
    named = {
        line[line.index("rank 1 (pid ") :]
        for line in outcome.log_text().splitlines()
        if "rank 1 (pid " in line
    }
    assert len(named) == 1
    assert named.pop().endswith(expected)
    assert "rank 0 (pid " not in outcome.log_text()
