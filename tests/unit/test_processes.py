# SPDX-License-Identifier: Apache-2.0
"""Each process's runtime file: who may write and read it, and when it is gone."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from ascend_specpatch import processes
from ascend_specpatch.report import Report

REPORT = Report().as_dict()

SCRIPT = """
import os, signal, sys, threading, time
from ascend_specpatch import processes

# Not /tmp, where other processes of this user may have theirs.
processes._candidates = lambda candidates=processes._candidates: candidates()[:1]

def say(*words):
    print(*words, flush=True)

def names():
    return sorted({report.name for report in processes.read_all()[0]})
"""


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only folder that this process uses, not made yet."""
    folder = tmp_path / "runtime"
    monkeypatch.setattr(processes, "_candidates", lambda: [str(folder)])
    yield folder
    processes.forget()


def run(script: str, tmpdir: Path, checkout: Path) -> list[str]:
    """The lines that a program prints in a fresh interpreter with ``tmpdir`` for its TMPDIR."""
    program = tmpdir / "program.py"
    program.write_text(SCRIPT + dedent(script))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**environ, "TMPDIR": str(tmpdir), "PYTHONPATH": str(checkout / ".editable")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def files(tmpdir: Path) -> list[str]:
    return sorted(path.name for path in (tmpdir / f"ascend-specpatch-{os.getuid()}").glob("*"))


def plant(runtime: Path, pid: int, start: int, **changes: object) -> Path:
    """A file that a process of ours may have left."""
    processes.write(REPORT)
    (own,) = [path for path in runtime.iterdir() if path.name.startswith(f"{os.getpid()}-")]
    content = {**json.loads(own.read_text()), "pid": pid, "start": start, **changes}
    path = runtime / f"{pid}-{start}.json"
    path.write_text(json.dumps(content))
    processes.forget()
    return path


def row(patch_id: str, reason: str = "") -> dict[str, object]:
    return {"id": patch_id, "state": "refused", "reason": reason, "notes": []}


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child.wait()
    return child.pid


def test_what_is_written_is_what_is_read(runtime: Path) -> None:
    processes.write(REPORT)
    (found,), problems = processes.read_all()
    assert problems == []
    assert (found.pid, found.parent, found.name) == (os.getpid(), os.getppid(), "MainProcess")
    assert found.program == Path(sys.argv[0]).name
    assert found.report == json.loads(json.dumps(REPORT))
    assert processes.problem() is None


def test_a_file_holds_neither_environment_nor_arguments(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-in-environment")
    monkeypatch.setattr(sys, "argv", ["/opt/bin/vllm", "--api-key", "secret-in-arguments"])
    processes.write(REPORT)
    (path,) = runtime.iterdir()
    assert "secret" not in path.read_text()
    assert json.loads(path.read_text())["program"] == "vllm"


def test_folder_and_file_are_for_their_owner_alone(runtime: Path) -> None:
    before = os.umask(0)
    try:
        processes.write(REPORT)
    finally:
        os.umask(before)
    (path,) = runtime.iterdir()
    assert runtime.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


def test_writing_again_replaces_the_file_and_forgetting_removes_it(runtime: Path) -> None:
    processes.write(REPORT)
    processes.write({**REPORT, "route": "again"})
    (found,), _ = processes.read_all()
    assert found.report["route"] == "again"
    assert len(list(runtime.iterdir())) == 1
    processes.forget()
    assert list(runtime.iterdir()) == []
    processes.forget()


class TestAFolderThatIsNotTrusted:
    def refused(self) -> str:
        processes.write(REPORT)
        reason = processes.problem()
        found, problems = processes.read_all()
        assert reason is not None
        assert found == []
        assert reason in " ".join(problems)
        return reason

    def test_a_link_is_not_followed(self, runtime: Path, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        runtime.symlink_to(tmp_path / "elsewhere")
        assert "is not a folder that can be opened" in self.refused()
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_a_file_in_its_place(self, runtime: Path) -> None:
        runtime.touch()
        assert "is not a folder that can be opened" in self.refused()

    @pytest.mark.parametrize("mode", [0o750, 0o701, 0o777, 0o1777])
    def test_a_mode_that_lets_others_in(self, runtime: Path, mode: int) -> None:
        runtime.mkdir()
        runtime.chmod(mode)
        assert f"has mode {mode:04o}" in self.refused()
        assert f"chmod 700 {runtime}" in self.refused()
        assert list(runtime.iterdir()) == []

    def test_another_owner(self, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime.mkdir(mode=0o700)
        monkeypatch.setattr(os, "getuid", lambda: runtime.stat().st_uid + 1)
        assert f"belongs to user {runtime.stat().st_uid}" in self.refused()
        assert list(runtime.iterdir()) == []

    def test_the_next_place_is_used(
        self, runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runtime.touch()
        monkeypatch.setattr(processes, "_candidates", lambda: [str(runtime), str(tmp_path / "second")])
        processes.write(REPORT)
        assert processes.problem() is None
        found, problems = processes.read_all()
        assert len(found) == 1
        assert len(problems) == 1
        processes.forget()


def test_a_parent_folder_that_is_missing_is_a_reason_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_candidates", lambda: [str(tmp_path / "no" / "runtime")])
    processes.write(REPORT)
    assert "No such file or directory" in str(processes.problem())
    assert processes.read_all() == ([], [])


@pytest.mark.parametrize(
    "function", ["mkdir", "open", "replace", "fstat", "listdir", "getuid", "readlink", "getppid"]
)
def test_no_failure_of_the_system_is_raised_and_nothing_half_written_stays(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    runtime.mkdir(mode=0o700)
    monkeypatch.undo()
    monkeypatch.setattr(processes, "_candidates", lambda: [str(runtime)])

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, function, fail)
        processes.write(REPORT)
        said = processes.problem()
    assert said is None or "No space left on device" in said
    assert said is not None or function in ("mkdir", "readlink")
    assert all(path.name.endswith(".json") for path in runtime.iterdir())
    processes.write(REPORT)
    assert processes.problem() is None


def test_a_full_disk_leaves_no_unfinished_file(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime.mkdir(mode=0o700)

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", full)
        processes.write(REPORT)
    assert list(runtime.iterdir()) == []
    assert "No space left on device" in str(processes.problem())


def test_a_report_that_json_cannot_hold_is_written_as_text(runtime: Path) -> None:
    processes.write({"odd": {1, 2}, "path": Path("/x")})
    (found,), _ = processes.read_all()
    assert found.report == {"odd": str({1, 2}), "path": "/x"}


def test_a_report_that_is_too_large_is_shortened(runtime: Path) -> None:
    processes.write({"patches": [row(f"spec_decode.p{n}", "x" * 9000) for n in range(40)]})
    (found,), problems = processes.read_all()
    assert problems == []
    assert [row["id"] for row in found.report["patches"]] == [f"spec_decode.p{n}" for n in range(40)]
    assert found.report["patches"][0]["reason"].endswith("x...")


def test_what_is_written_for_very_many_patches_is_read(runtime: Path) -> None:
    processes.write({"patches": [row(f"spec_decode.p{n}", "x" * 9000) for n in range(600)]})
    (found,), problems = processes.read_all()
    assert problems == []
    assert len(found.report["patches"]) == 600


def test_what_nobody_would_read_is_not_written(runtime: Path) -> None:
    processes.write({"patches": [row(f"spec_decode.p{n}", "x" * 9000) for n in range(6000)]})
    assert "bytes, and 1048576 is what is read of one" in str(processes.problem())
    assert processes.read_all() == ([], [])


class TestReading:
    def test_no_folder_is_no_problem(self, runtime: Path) -> None:
        assert processes.read_all() == ([], [])

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"", "is not JSON"),
            (b"{", "is not JSON"),
            (b"\xff\xfe\x00", "is not JSON"),
            (b"[" * 60_000, "is not JSON"),
            (b"[]", "is not a report of a process"),
            (b"{}", "is not a report of a process"),
            (b'{"pid": "1"}', "is not a report of a process"),
            (b" " * (processes.MAX_BYTES + 1), "has more than 1048576 bytes"),
            (pickle.dumps({"pid": 1}), "is not JSON"),
        ],
    )
    def test_a_malformed_file_is_named(self, runtime: Path, content: bytes, said: str) -> None:
        processes.write(REPORT)
        (runtime / "1-1.json").write_bytes(content)
        (own,), (problem,) = processes.read_all()
        assert own.pid == os.getpid()
        assert f"{runtime / '1-1.json'} {said}" in problem

    @pytest.mark.parametrize(
        "report",
        [
            {"patches": None},
            {"patches": {}},
            {"patches": ["worker.x"]},
            {"patches": [{"id": "worker.x"}]},
            {"patches": [{"id": "worker.x", "state": "refused"}]},
            {"patches": [{"id": "worker.x", "state": "applied", "reason": "", "notes": None}]},
            {"patches": [{"id": "worker.x", "state": "applied", "reason": "", "notes": [1]}]},
            {"patches": [{"id": ["worker.x"], "state": "applied", "reason": "", "notes": []}]},
            {"patches": [{"id": "worker.x", "state": {}, "reason": "", "notes": []}]},
        ],
    )
    def test_a_report_of_another_shape_is_named(self, runtime: Path, report: object) -> None:
        path = plant(runtime, os.getpid(), 7, report=report)
        found, (problem,) = processes.read_all()
        assert found == []
        assert f"{path} is not as this release writes it, which its process may not have" in problem

    @pytest.mark.parametrize("moment", [-1, 1e12, 10**400])
    def test_a_moment_that_is_none_is_named(self, runtime: Path, moment: object) -> None:
        path = plant(runtime, os.getpid(), 7, written_at=moment)
        found, (problem,) = processes.read_all()
        assert found == []
        assert f"{path} is not as this release writes it" in problem

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
    @pytest.mark.parametrize("place", [{"written_at": "here"}, {"report": {"x": ["here"]}}])
    def test_numbers_that_json_does_not_have_are_named(
        self, runtime: Path, place: dict[str, object], number: str
    ) -> None:
        path = plant(runtime, os.getpid(), 7, **place)
        path.write_text(path.read_text().replace('"here"', number))
        found, (problem,) = processes.read_all()
        assert found == []
        assert f"{path} is not JSON (ValueError)" in problem

    def test_a_file_about_another_process_than_its_name_says(self, runtime: Path) -> None:
        plant(runtime, os.getpid(), 7).rename(runtime / "1-1.json")
        assert processes.read_all()[0] == []
        assert f"is about process {os.getpid()}" in processes.read_all()[1][0]

    @pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder"])
    def test_only_regular_files_are_read_and_nothing_is_waited_for(
        self, runtime: Path, tmp_path: Path, kind: str
    ) -> None:
        target = plant(runtime, os.getpid(), 7).rename(tmp_path / "target")
        path = runtime / "1-1.json"
        make: dict[str, Callable[[], object]] = {
            "link": lambda: path.symlink_to(target),
            "dangling": lambda: path.symlink_to(tmp_path / "nothing"),
            "fifo": lambda: os.mkfifo(path),
            "folder": path.mkdir,
        }
        make[kind]()
        found, problems = processes.read_all()
        assert found == []
        assert len(problems) == 1
        assert str(path) in problems[0]

    def test_a_file_of_another_user_is_not_read(self, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        plant(runtime, os.getpid(), 7)
        real = os.fstat

        def others(descriptor: int) -> object:
            status = real(descriptor)
            if os.path.isdir(f"/proc/self/fd/{descriptor}"):
                return status
            return os.stat_result((*status[:4], status.st_uid + 1, *status[5:]))

        with monkeypatch.context() as patched:
            patched.setattr(os, "fstat", others)
            found, (problem,) = processes.read_all()
        assert found == []
        assert "belongs to user" in problem

    def test_a_file_of_ours_under_a_strange_name_is_not_read(self, runtime: Path) -> None:
        plant(runtime, os.getpid(), 7).rename(runtime / "report.json")
        found, (problem,) = processes.read_all()
        assert found == []
        assert "report.json is no file of ours" in problem

    def test_no_descriptor_is_left_open(self, runtime: Path) -> None:
        runtime.mkdir(mode=0o700)
        (runtime / "1-1.json").mkdir()
        (runtime / "2-1.json").write_text("{")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            processes.write(REPORT)
            processes.read_all()
        assert len(os.listdir("/proc/self/fd")) == before


class TestStale:
    def test_a_dead_process_is_ignored_and_pruned_by_the_next_that_starts(self, runtime: Path) -> None:
        path = plant(runtime, dead_pid(), 7)
        assert processes.read_all() == ([], [])
        processes.write(REPORT)
        assert not path.exists()

    def test_a_later_process_with_its_pid_is_not_taken_for_it(self, runtime: Path) -> None:
        path = plant(runtime, os.getppid(), 7)
        assert processes.read_all() == ([], [])
        processes.write(REPORT)
        assert not path.exists()

    def test_a_process_that_nobody_has_waited_for_is_dead(self, runtime: Path) -> None:
        child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
        start = processes._start_of(str(child.pid))
        assert start is not None
        plant(runtime, child.pid, start)
        assert [report.pid for report in processes.read_all()[0]] == [child.pid]
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert processes.read_all() == ([], [])
        child.communicate()

    def test_another_pid_namespace_is_left_alone_and_named(self, runtime: Path) -> None:
        path = plant(runtime, dead_pid(), 7, pid_namespace="pid:[1]")
        found, (problem,) = processes.read_all()
        assert found == []
        assert "another container" in problem
        processes.write(REPORT)
        assert path.exists()

    def test_what_was_abandoned_while_being_written_is_pruned(self, runtime: Path) -> None:
        runtime.mkdir(mode=0o700)
        old, new = runtime / ".1-1.0.tmp", runtime / ".1-1.1.tmp"
        old.touch()
        new.touch()
        os.utime(old, (1, 1))
        assert processes.read_all() == ([], [])
        processes.write(REPORT)
        assert (old.exists(), new.exists()) == (False, True)

    def test_files_of_others_are_never_pruned(self, runtime: Path) -> None:
        runtime.mkdir(mode=0o700)
        for name in ("notes.txt", "1-1.json", "x.json"):
            (runtime / name).write_text("mine")
        processes.write(REPORT)
        assert {"notes.txt", "1-1.json", "x.json"} <= set(os.listdir(runtime))


def test_a_program_name_with_parentheses_does_not_hide_the_start_time(tmp_path: Path, checkout: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "60"]) as child:
        while b"a) R 1 (b" not in Path(f"/proc/{child.pid}/stat").read_bytes():
            pass
        started, own = processes._start_of(str(child.pid)), processes._start_of("self")
        child.kill()
    assert started is not None
    assert own is not None
    assert started >= own


EXITS = {
    "return": "",
    "sys.exit": "sys.exit(0)",
    "exit in a thread of many": "threading.Thread(target=lambda: None).start(); raise SystemExit(0)",
    "SIGTERM, handled": "signal.signal(15, lambda *a: sys.exit(0)); os.kill(os.getpid(), 15)",
}


@pytest.mark.parametrize("ending", EXITS)
def test_the_file_is_gone_after_exit(tmp_path: Path, checkout: Path, ending: str) -> None:
    lines = run(f"processes.write({{}})\nsay(names())\n{EXITS[ending]}", tmp_path, checkout)
    assert lines == ["['MainProcess']"]
    assert files(tmp_path) == []


@pytest.mark.parametrize("ending", ["pass", "sys.exit(3)", "raise KeyError", "os.kill(os.getpid(), 9)"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_have_files_of_their_own(
    tmp_path: Path, checkout: Path, method: str, ending: str
) -> None:
    lines = run(
        f"""
        import multiprocessing

        def child():
            sys.stderr = open(os.devnull, "w")
            say(names())
            {ending}

        processes.write({{}})  # as the import of a host does, in a spawned child before it has its name
        if __name__ == "__main__":
            process = multiprocessing.get_context({method!r}).Process(target=child, name="VllmWorker-0")
            process.start()
            process.join()
            say(names())
            say(process.pid)
        """,
        tmp_path,
        checkout,
    )
    pid = lines.pop()
    assert lines == ["['MainProcess', 'VllmWorker-0']", "['MainProcess']"]
    left = [name for name in files(tmp_path) if name.startswith(f"{pid}-")]
    assert len(left) == ("kill" in ending)  # a killed one's stays, and is not read


def test_grandchildren_too(tmp_path: Path, checkout: Path) -> None:
    lines = run(
        """
        import multiprocessing
        context = multiprocessing.get_context("fork")

        def worker():
            say(names())

        def core():
            process = context.Process(target=worker, name="VllmWorker-0")
            process.start()
            process.join()
            say(names())

        processes.write({})
        process = context.Process(target=core, name="EngineCore")
        process.start()
        process.join()
        """,
        tmp_path,
        checkout,
    )
    assert lines == ["['EngineCore', 'MainProcess', 'VllmWorker-0']", "['EngineCore', 'MainProcess']"]
    assert files(tmp_path) == []


def test_any_other_fork_writes_when_it_is_told_to_and_leaves_its_parents_file(
    tmp_path: Path, checkout: Path
) -> None:
    lines = run(
        """
        processes.write({})
        child = os.fork()
        if child == 0:
            say(len(processes.read_all()[0]))
            processes.forget()  # it has none
            say(len(processes.read_all()[0]))
            processes.write({})
            say(len(processes.read_all()[0]))
            sys.exit(0)  # runs the functions of atexit
        os.waitpid(child, 0)
        say([report.pid == os.getpid() for report in processes.read_all()[0]])
        """,
        tmp_path,
        checkout,
    )
    assert lines == ["1", "1", "2", "[True]"]
    assert files(tmp_path) == []


def test_a_thread_that_is_writing_at_a_fork_does_not_block_the_child(tmp_path: Path, checkout: Path) -> None:
    lines = run(
        """
        held, done = threading.Event(), threading.Event()
        def hold():
            with processes._lock:
                held.set()
                done.wait(30)
        threading.Thread(target=hold).start()
        held.wait()
        child = os.fork()
        if child == 0:
            processes.write({})
            processes.forget()
            os._exit(7)
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        done.set()
        """,
        tmp_path,
        checkout,
    )
    assert lines == ["7"]


def test_threads_may_write_at_once(runtime: Path) -> None:
    threads = [
        threading.Thread(target=lambda: [processes.write({"route": "x" * 999}) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found, problems = processes.read_all()
        assert problems == []
        assert len(found) <= 1
    assert processes.problem() is None
    assert len(list(runtime.iterdir())) == 1


def test_a_server_with_a_tmpdir_of_its_own_is_read_with_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = os.getuid()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert processes._candidates() == [f"{tmp_path}/ascend-specpatch-{uid}", f"/tmp/ascend-specpatch-{uid}"]
    monkeypatch.setenv("TMPDIR", "relative")
    assert processes._candidates() == [f"/tmp/ascend-specpatch-{uid}"]
    monkeypatch.setenv("TMPDIR", "/tmp")
    assert processes._candidates() == [f"/tmp/ascend-specpatch-{uid}"]


def test_the_title_is_what_the_process_calls_itself(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.write(REPORT)
    (own,), _ = processes.read_all()
    assert own.title() == "MainProcess"
    command = ["VLLM::Worker_TP0 --secret x", "-S", "-c", "input()"]
    child = subprocess.Popen(command, executable=sys.executable, stdin=subprocess.PIPE)
    start = processes._start_of(str(child.pid))
    assert start is not None
    plant(runtime, child.pid, start)
    while "VLLM" not in Path(f"/proc/{child.pid}/cmdline").read_text():
        pass
    assert [report.title() for report in processes.read_all()[0]] == ["VLLM::Worker_TP0"]
    child.communicate()
