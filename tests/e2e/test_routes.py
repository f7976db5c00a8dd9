# SPDX-License-Identifier: Apache-2.0
"""Every process of the real hosts is patched and says so in its runtime file, from an editable install.

Ways to install and to start Python are in tests/order/test_routes.py, Ray in test_ray.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ascend_specpatch import processes
from tests.e2e.cases import Case, Outcome, Processes
from tests.e2e.checks import Check
from tests.e2e.host import STATES

# In a process of its own the engine core runs the one worker itself; two workers have their own.
ONE_WORKER = Case("llama", "draft_model", "llama", timeout=240)
TWO_WORKERS = Case(
    "pred",
    "draft_model",
    "pred_draft",
    engine={"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
    timeout=300,
)
IDS = [*STATES]


def said(outcome: Outcome) -> dict[str, Any]:
    return {process["name"]: process for process in outcome.processes}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_api_process_and_engine_core(check: Check, method: Processes) -> None:
    outcome = check.runs(Case(**{**vars(ONE_WORKER), "processes": method}))
    assert set(said(outcome)) == {"MainProcess", "EngineCore_DP0"}
    assert_on(outcome)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_their_own(check: Check, method: Processes) -> None:
    outcome = check.runs(Case(**{**vars(TWO_WORKERS), "processes": method}))
    assert sorted(said(outcome)) == ["EngineCore_DP0", "MainProcess", "VllmWorker-0", "VllmWorker-1"]
    assert_on(outcome)


# Their targets are the engine core's; a worker need not import them.
OF_THE_ENGINE_CORE = {"worker.equal_ranks", "spec_decode.first_draft_slots", "spec_decode.skipped_requests"}


def assert_none_is_missing(states: dict[str, str]) -> None:
    """Each patch that the hosts need is applied, or is to be when its target is imported."""
    waiting = {name: STATES[name] for name, state in states.items() if state == "waiting"}
    assert {**states, **waiting} == STATES
    assert set(waiting.values()) <= {"applied"}


def assert_on(outcome: Outcome) -> None:
    """Every patch is on in every process, and applied in those that run the model."""
    workers = {worker["pid"]: worker["report"] for worker in outcome.workers}
    for process in outcome.processes:
        assert list(process["states"]) == IDS
        assert_none_is_missing(process["states"])
        if process["pid"] in workers:
            found = {row["id"]: row["state"] for row in workers[process["pid"]]}
            assert process["states"] == found, "the runtime file is older than the report"
            assert {name for name in found if found[name] == "waiting"} <= OF_THE_ENGINE_CORE
    assert workers.keys() <= {process["pid"] for process in outcome.processes}


def test_model_registry() -> None:
    """The program that vLLM starts to look at a model's class."""
    script = """
import json
from vllm.model_executor.models import registry

def main():
    def ask():
        from ascend_specpatch import report
        return report.current().as_dict()
    print(json.dumps(registry._run_in_subprocess(ask)))

main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["route"] == "import of vllm"
    assert_none_is_missing({row["id"]: row["state"] for row in found["patches"]})


@pytest.fixture
def server(models: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`vllm serve`, up and listening on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    speculation = {"method": "draft_model", "model": str(models / "llama"), "num_speculative_tokens": 3}
    options = [
        *("--host", "127.0.0.1", "--port", str(port), "--speculative-config", json.dumps(speculation)),
        *("--skip-tokenizer-init", "--enforce-eager", "--dtype", "float32", "--max-model-len", "512"),
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(models / "llama"), *options],
            env={**os.environ, "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 300
        while not _answers(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None, (tmp_path / "log").read_text()[-4000:]
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-4000:]
            time.sleep(0.5)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_the_processes_of_a_server_are_listed_while_it_runs(server: subprocess.Popen[bytes]) -> None:
    command = [str(Path(sys.executable).with_name("ascend-specpatch")), "status", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    listed = json.loads(done.stdout)["processes"]
    family = [process for process in listed if server.pid in (process["pid"], process["parent"])]
    assert {process["name"] for process in family} == {"MainProcess", "EngineCore_DP0"}
    assert all([row["id"] for row in process["report"]["patches"]] == IDS for process in family)

    server.terminate()
    server.wait(60)
    left = {process.pid for process in processes.read_all()[0]}
    assert not left & {process["pid"] for process in family}
