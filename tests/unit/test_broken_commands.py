# SPDX-License-Identifier: Apache-2.0
"""The commands where their input, their output or the files of other processes are not as usual."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ascend_specpatch import archives, cli, doctor, processes
from ascend_specpatch.archives import ArchiveError
from ascend_specpatch.fingerprints import ModuleRecord, compare
from ascend_specpatch.processes import ProcessReport

RUN = "import sys; from ascend_specpatch.cli import main; sys.exit(main(sys.argv[1:]))"


def run(command: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    line = f"{sys.executable} -c '{RUN}' {command}"
    return subprocess.run(["bash", "-c", line], env=environ, capture_output=True, text=True, timeout=120)


@pytest.mark.xfail(reason="sys.stdout is None", strict=True)
def test_there_is_no_stdout() -> None:
    done = run("list >&-")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.xfail(reason="only a reader that goes away is thought of", strict=True)
def test_stdout_is_full() -> None:
    done = run("list --json >/dev/full")
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


@pytest.mark.xfail(reason="argparse prints and exits outside of the try", strict=True)
def test_the_reader_of_the_help_goes_away() -> None:
    done = run("--help | (exec <&-; sleep 2)")
    assert "Exception ignored" not in done.stderr


@pytest.mark.xfail(reason="the report in a process's file is not looked into before it is used", strict=True)
@pytest.mark.parametrize(
    "report",
    [
        {"patches": [{"id": "worker.x"}]},
        {"patches": None},
        {"patches": ["worker.x"]},
        {"patches": [{"id": "worker.x", "state": "refused"}]},
        {"patches": [{"id": "worker.x", "state": "applied", "notes": None}]},
    ],
)
def test_status_where_a_process_has_another_release(
    report: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = ProcessReport(1, 2, "pid:[1]", "EngineCore", "vllm", 1, "3.11.7", report, 0.0)
    monkeypatch.setattr(processes, "read_all", lambda: ([process], []))
    assert cli.main(["status"]) in (0, 1)


@pytest.mark.xfail(reason="the first of our variables whose name is anywhere in the message", strict=True)
@pytest.mark.parametrize(
    ("environ", "culprit"),
    [
        ({"ASCEND_SPECPATCH": "1", "ASCEND_SPECPATCH_DISABLE": "nobody"}, "ASCEND_SPECPATCH_DISABLE"),
        ({"ASCEND_SPECPATCH_DISABLE": "worker", "ASCEND_SPECPATCH_DISBALE": "x"}, "ASCEND_SPECPATCH_DISBALE"),
    ],
)
def test_doctor_unsets_the_variable_that_is_wrong(
    environ: dict[str, str], culprit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    (finding,) = (f for f in doctor.examine(import_hosts=False) if f.check == "settings")
    assert finding.mend == f"unset {culprit}"


@pytest.mark.xfail(reason="zipfile raises UnicodeDecodeError for a name that is not UTF-8", strict=True)
def test_a_wheel_with_a_damaged_name(tmp_path: Path) -> None:
    path = tmp_path / "damaged.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vllm/\u00e9.py", "")
    path.write_bytes(path.read_bytes().replace("\u00e9".encode(), b"\xff\xfe"))
    with pytest.raises(ArchiveError):
        archives.reader(path, "vllm", [])


@pytest.mark.xfail(reason="the digest of what was parsed goes deeper than the parser", strict=True)
@pytest.mark.parametrize("source", [b"x = a" + b".b()" * 500, b"if a: x = 0\n" + b"elif a: x = 1\n" * 500])
def test_source_that_is_nested_too_deeply_for_a_digest(source: bytes) -> None:
    record = {"m": ModuleRecord("0", {"x": "1"})}
    (finding,) = compare(["m:x"], record, lambda module: source)
    assert "recursion" in finding.detail
