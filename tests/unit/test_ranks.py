# SPDX-License-Identifier: Apache-2.0
"""Ranks that are patched alike may start; of others it is said which, how and what to do."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ascend_specpatch import ranks, report
from ascend_specpatch.edits import Edit
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.patches.worker import equal_ranks
from ascend_specpatch.ranks import UnequalRanks
from ascend_specpatch.registry import Choice, Patch, Plan, State
from ascend_specpatch.report import Report

PAIR = HostPair("0.16.0", "0.16.0rc1")


def facts(host: str = "a", **states: str) -> dict[str, Any]:
    return {
        "host": host,
        "pid": 100,
        "version": "0.1.0",
        "hosts": str(PAIR),
        "settings": {},
        "states": {"worker.w": "on", "spec_decode.s": "on", "model_runner.m": "on", **states},
        "reasons": {},
    }


def said(answers: list[dict[str, Any]], core: dict[str, Any]) -> str:
    with pytest.raises(UnequalRanks) as caught:
        ranks.check(answers, core)
    return str(caught.value)


@pytest.mark.parametrize("count", [1, 2, 64])
def test_equal_ranks_start(count: int) -> None:
    ranks.check([facts() for _ in range(count)], facts())


@pytest.mark.parametrize("state", ["refused", "not applied, although its target is loaded"])
def test_what_every_rank_refuses_alike_is_no_difference(state: str) -> None:
    ranks.check([facts(**{"spec_decode.s": state}) for _ in range(3)], facts())


@pytest.mark.parametrize("state", ["unneeded", "not for this host"])
def test_what_the_hosts_do_not_need_is_as_good_as_off(state: str) -> None:
    core = facts(**{"model_runner.m": state})
    ranks.check([facts(**{"model_runner.m": "off"})], core)
    off = dict.fromkeys(core["states"], "off")
    assert "rank 0 (pid 100) on a: every patch is off, not on\n" in said([facts(**off)], core)


def test_a_refused_patch_in_one_rank() -> None:
    odd = {**facts("b", **{"spec_decode.s": "refused"}), "reasons": {"spec_decode.s": "AttributeError: x"}}
    text = said([facts(), facts(), odd, facts()], facts())
    assert "compared with rank 0" in text
    assert "rank 2 (pid 100) on b: spec_decode.s is refused (AttributeError: x), not on" in text
    assert "rank 0 (" not in text
    assert "rank 1 (" not in text


def test_the_odd_one_out_is_named_even_if_it_is_the_first() -> None:
    text = said([facts(**{"spec_decode.s": "refused"}), facts(), facts()], facts())
    assert "compared with rank 1" in text
    assert "rank 0 (pid 100) on a: spec_decode.s is refused" in text


def test_a_target_that_loaded_without_its_patch_in_one_rank() -> None:
    state = "not applied, although its target is loaded"
    assert f"rank 1 (pid 100) on a: model_runner.m is {state}, not on" in said(
        [facts(), facts(**{"model_runner.m": state})], facts()
    )


def test_a_patch_that_is_off_in_one_rank() -> None:
    odd = {
        **facts("b", **{"model_runner.m": "off"}),
        "reasons": {"model_runner.m": "ASCEND_SPECPATCH_DISABLE"},
    }
    text = said([facts(), odd], facts())
    assert "rank 1 (pid 100) on b: model_runner.m is off (ASCEND_SPECPATCH_DISABLE), not on" in text
    assert "compared with the engine core on a" in text


def test_all_ranks_equal_to_each_other_and_not_to_the_engine_core() -> None:
    text = said([facts("b", **{"model_runner.m": "off"}) for _ in range(3)], facts())
    assert "ranks 0, 1 and 2 on b: model_runner.m is off, not on" in text


def test_many_ranks_are_grouped_by_host_and_difference() -> None:
    answers = [facts(f"node{rank // 8}") for rank in range(64)]
    for rank in range(8, 24):
        answers[rank]["states"] = {**answers[rank]["states"], "worker.w": "off"}
    text = said(answers, facts())
    assert len([line for line in text.splitlines() if line.startswith("  rank")]) == 2
    assert "ranks 8, 9, 10, 11, 12, 13, 14 and 15 on node1" in text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"version": "0.0.9"}, "ascend-specpatch is 0.0.9, not 0.1.0"),
        ({"hosts": "vllm 0.17.0"}, "the hosts are vllm 0.17.0, not vllm 0.16.0 + vllm-ascend 0.16.0rc1"),
        ({"states": {}, "settings": {"ASCEND_SPECPATCH": "0"}}, "not patched at all (ASCEND_SPECPATCH=0)"),
        ({"states": {}}, "not patched at all"),
        (
            {"settings": {"ASCEND_SPECPATCH_KERNELS": "torch"}},
            "ASCEND_SPECPATCH_KERNELS is torch, not unset",
        ),
        ({"lacks": "no ascend-specpatch"}, "no ascend-specpatch"),
    ],
)
def test_other_differences(change: dict[str, Any], expected: str) -> None:
    text = said([facts(), {**facts("b"), **change}], facts())
    assert f"rank 1 (pid 100) on b: {expected}" in text


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, "worker.p0 is off (why), not on"),
        (2, "worker.p0 and worker.p1 are off (why), not on"),
        (6, "worker.p0, worker.p1, worker.p2, worker.p3 and 2 more are off (why), not on"),
        (9, "every patch is off (why), not on"),
    ],
)
def test_patches_that_differ_alike_are_said_once(count: int, expected: str) -> None:
    ids = [f"worker.p{number}" for number in range(9)]
    core = {**facts(), "states": dict.fromkeys(ids, "on")}
    off = dict.fromkeys(ids[:count], "off")
    rank = {**core, "states": {**core["states"], **off}, "reasons": dict.fromkeys(off, "why")}
    assert f"on a: {expected}\n" in said([core, rank], core)


def test_a_patch_that_one_side_does_not_know() -> None:
    assert "worker.theirs is unknown, not on" in said([facts()], facts(**{"worker.theirs": "on"}))
    assert "worker.theirs is on, not unknown" in said([facts(**{"worker.theirs": "on"})], facts())


def test_the_message_says_what_to_do() -> None:
    core = {**facts(), "settings": {"ASCEND_SPECPATCH_DISABLE": "worker.w"}}
    text = said([facts(**{"worker.w": "off"})], core)
    assert "(ASCEND_SPECPATCH_DISABLE=worker.w)" in text
    assert "ASCEND_SPECPATCH_DISABLE=worker.equal_ranks runs without this check" in text
    assert "`ray start`" in text


def test_settings_that_choose_the_same_are_no_difference() -> None:
    ranks.check([{**facts(), "settings": {"ASCEND_SPECPATCH": "1"}}, facts()], facts())


class TestHere:
    @pytest.fixture(autouse=True)
    def restored(self) -> Any:
        before = report.current()
        yield
        report.set_current(before)

    def states(self, *choices: Choice) -> dict[str, str]:
        report.set_current(Report(Plan(PAIR, choices)))
        states: dict[str, str] = ranks.here()["states"]
        return states

    def test_waiting_is_on_unless_its_target_is_loaded(self) -> None:
        found = self.states(
            Choice(Patch("worker.a", "no.such.module", "")), Choice(Patch("worker.b", "json", ""))
        )
        assert found == {"worker.a": "on", "worker.b": "not applied, although its target is loaded"}

    def test_applied_is_on(self) -> None:
        assert self.states(Choice(Patch("worker.b", "json", ""), State.APPLIED)) == {"worker.b": "on"}

    def test_reasons_come_along(self) -> None:
        choices = [
            Choice(Patch("worker.a", "json", ""), State.OFF, "a setting"),
            Choice(Patch("worker.b", "json", ""), State.NOT_FOR_THIS_HOST, "found x"),
        ]
        assert self.states(*choices) == {"worker.a": "off", "worker.b": "not for this host"}
        assert ranks.here()["reasons"] == {"worker.a": "a setting", "worker.b": "found x"}

    def test_of_the_environment_only_our_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ASCEND_SPECPATCH_STRICT", "1")
        monkeypatch.setenv("ASCEND_SPECPATCH_SERVICE_HOST", "10.0.0.1")
        monkeypatch.setenv("HF_TOKEN", "secret")
        assert ranks.here()["settings"] == {"ASCEND_SPECPATCH_STRICT": "1"}


class TestQuestion:
    """Answered in another interpreter, which got it as executors send it."""

    @pytest.fixture
    def answer(self, tmp_path: Path) -> Any:
        cloudpickle = pytest.importorskip("cloudpickle")
        (tmp_path / "cloudpickle").symlink_to(Path(cloudpickle.__file__).parent)
        (tmp_path / "question").write_bytes(cloudpickle.dumps(ranks.question()))
        script = (
            "import pickle, sys; facts = pickle.load(open('question', 'rb'))(None); "
            "sys.stdout.buffer.write(pickle.dumps(facts))"
        )

        def ask(*path: Path, **environ: str) -> dict[str, Any]:
            done = subprocess.run(
                [sys.executable, "-S", "-c", script],
                cwd=tmp_path,
                env={"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, *path))), **environ},
                capture_output=True,
            )
            assert done.returncode == 0, done.stderr.decode()
            found: dict[str, Any] = pickle.loads(done.stdout)
            return found

        return ask

    def test_by_a_process_with_this_package(self, answer: Any, checkout: Path) -> None:
        found = answer(checkout / ".editable", ASCEND_SPECPATCH="0")
        assert found["settings"] == {"ASCEND_SPECPATCH": "0"}
        assert "lacks" not in found
        assert "not patched at all (ASCEND_SPECPATCH=0)" in said([found], facts())

    def test_by_a_process_without_it(self, answer: Any) -> None:
        assert answer()["lacks"] == "no ascend-specpatch is installed (No module named 'ascend_specpatch')"

    def test_by_a_process_with_a_release_that_did_not_know_the_question(
        self, answer: Any, tmp_path: Path
    ) -> None:
        (tmp_path / "ascend_specpatch").mkdir()
        (tmp_path / "ascend_specpatch" / "__init__.py").write_text('__version__ = "0.0.9"\n')
        assert answer()["lacks"] == "ascend-specpatch is 0.0.9, which cannot be asked"

    def test_by_a_process_with_a_release_that_answers_otherwise(self, answer: Any, tmp_path: Path) -> None:
        (tmp_path / "ascend_specpatch").mkdir()
        (tmp_path / "ascend_specpatch" / "__init__.py").write_text('__version__ = "9.0"\n')
        (tmp_path / "ascend_specpatch" / "ranks.py").write_text(
            "def here():\n    return {'version': '9.0'}\n"
        )
        found = answer()
        assert "ascend-specpatch is 9.0, not 0.1.0" in said([found], facts())

    def test_by_a_process_where_it_is_broken(self, answer: Any, tmp_path: Path) -> None:
        (tmp_path / "ascend_specpatch").mkdir()
        (tmp_path / "ascend_specpatch" / "__init__.py").write_text("1 / 0\n")
        assert answer()["lacks"] == "it cannot be told how it is patched: ZeroDivisionError: division by zero"


class FakeExecutor:
    """Runs what it is sent in this process, once a rank, as UniProcExecutor does."""

    def __init__(self, *changes: dict[str, Any]) -> None:
        self.changes = changes
        self.calls = 0
        self.is_shut_down = False

    def collective_rpc(self, method: Any, timeout: float | None = None) -> list[dict[str, Any]]:
        assert timeout is not None
        self.calls += 1
        return [{**method(None), **change} for change in self.changes]

    def shutdown(self) -> None:
        self.is_shut_down = True


class TestPatch:
    @pytest.fixture
    def core(self) -> Any:
        """An EngineCore with the patch."""
        started: list[Any] = []

        class EngineCore:
            def __init__(self, executor: FakeExecutor) -> None:
                self.model_executor = executor
                self.result = self._initialize_kv_caches("config")

            def _initialize_kv_caches(self, vllm_config: Any) -> Any:
                started.append(vllm_config)
                return "host"

        module = ModuleType("vllm.v1.engine.core")
        module.EngineCore = EngineCore  # type: ignore[attr-defined]
        edit = Edit("worker.equal_ranks", module)
        equal_ranks.apply(edit)
        return SimpleNamespace(start=EngineCore, started=started, edit=edit)

    def test_equal_ranks_go_on(self, core: Any) -> None:
        before = report.current()
        report.set_current(Report(Plan(PAIR, (Choice(Patch("worker.a", "no.such", "")),))))
        try:
            executor = FakeExecutor({}, {})
            assert core.start(executor).result == "host"
        finally:
            report.set_current(before)
        assert (executor.calls, core.started, executor.is_shut_down) == (1, ["config"], False)

    def test_unequal_ranks_stop_before_the_first_run_and_their_workers_end(self, core: Any) -> None:
        executor = FakeExecutor({}, {"lacks": "no ascend-specpatch is installed"})
        with pytest.raises(UnequalRanks, match="rank 1"):
            core.start(executor)
        assert (core.started, executor.is_shut_down) == ([], True)

    def test_it_can_be_taken_back(self, core: Any) -> None:
        core.edit.undo()
        executor = FakeExecutor({"lacks": "anything"})
        assert core.start(executor).result == "host"
        assert executor.calls == 0
