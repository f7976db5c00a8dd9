# SPDX-License-Identifier: Apache-2.0
"""The command line: tables, JSON and the documented exit codes."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascend_specpatch import cli, doctor, hooks, hosts, processes, registry
from ascend_specpatch.doctor import Finding
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.registry import Patch, Registry

REGISTRY = Registry(
    [
        Patch("worker.lazy", "fakehost_of_cli", "takes it late", implementation="body_of_cli"),
        Patch("spec_decode.base", "fakehost_of_cli", "stands under", implementation="body_of_cli"),
    ]
)
CHAIN = Registry(
    [
        Patch("worker.lazy", "fakehost_of_cli", "takes it late", implementation="body_of_cli"),
        Patch(
            "spec_decode.base",
            "fakehost_of_cli",
            "stands under",
            ("worker.lazy",),
            implementation="body_of_cli",
        ),
        Patch(
            "spec_decode.clone",
            "fakehost_of_cli",
            "on top",
            ("spec_decode.base",),
            after=("worker.lazy",),
            default=False,
            implementation="body_of_cli",
            provider="others",
        ),
    ],
    problems=["the patches of bad are left out: they raise. Mend or uninstall that distribution"],
)


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "fakehost_of_cli.py").write_text("")
    (tmp_path / "body_of_cli.py").write_text(
        '"""What: a name."""\ndef apply(edit): edit.set(edit.module, "patched", True)\n'
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # no runtime files but those of the test
    monkeypatch.setattr(processes, "_candidates", lambda: [str(tmp_path / "runtime")])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(hosts, "installed", lambda: hosts.SUPPORTED[0])
    monkeypatch.setattr(registry, "load", lambda: REGISTRY)
    monkeypatch.setattr(hooks, "load", lambda **_: REGISTRY)
    hooks.uninstall()
    yield
    hooks.uninstall()
    for name in ("fakehost_of_cli", "body_of_cli"):
        sys.modules.pop(name, None)


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    code = cli.main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_list_shows_the_order_and_what_the_settings_make_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_SPECPATCH_DISABLE", "spec_decode")
    assert cli.main(["list"]) == cli.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["#", "PATCH", "TARGET", "STATE", "SUMMARY"]
    assert lines[1].split() == ["1", "worker.lazy", "fakehost_of_cli", "on", "takes", "it", "late"]
    assert lines[2].endswith("off    stands under [ASCEND_SPECPATCH_DISABLE]")
    code, value = _json(capsys, "list")
    assert code == cli.OK
    assert [row["state"] for row in value["patches"]] == ["on", "off"]  # type: ignore[attr-defined, index]


def test_status_imports_nothing_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    code, value = _json(capsys, "status")
    assert (code, value["supported"], value["imported"]) == (cli.OK, True, False)
    assert "fakehost_of_cli" not in sys.modules
    code, value = _json(capsys, "status", "--import")
    assert (code, value["imported"], value["applied_order"]) == (
        cli.OK,
        True,
        ["worker.lazy", "spec_decode.base"],
    )


def test_status_shows_hosts_activation_and_states(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_SPECPATCH", "0")
    assert cli.main(["status"]) == cli.OK
    out = capsys.readouterr().out
    assert "vllm-ascend       0.16.0rc1\n" in out
    assert "pair              supported\n" in out
    assert "activation        off (ASCEND_SPECPATCH=0)\n" in out
    assert out.count("ASCEND_SPECPATCH=0") == 3


def test_a_refused_patch_is_exit_code_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "body_of_cli.py").write_text("def apply(edit): raise LookupError('no such method')\n")
    assert cli.main(["status", "--import"]) == cli.NOT_WELL
    assert "refused  LookupError: no such method" in capsys.readouterr().out


def test_a_target_that_does_not_import_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "fakehost_of_cli.py").write_text("raise OSError('no device')\n")
    assert cli.main(["status", "--import"]) == cli.NOT_WELL
    assert "its module does not import: OSError: no device" in capsys.readouterr().out


def test_under_strict_a_refusal_is_exit_code_1_and_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_SPECPATCH_STRICT", "1")
    monkeypatch.setattr(hosts, "installed", lambda: HostPair(None, None))
    assert cli.main(["status", "--import"]) == cli.NOT_WELL
    assert capsys.readouterr().err.startswith("ascend-specpatch: found no vllm + no vllm-ascend, and")


def test_what_a_host_prints_while_it_is_imported_is_not_in_the_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "fakehost_of_cli.py").write_text("print('INFO platform found')\n")
    assert cli.main(["status", "--import", "--json"]) == cli.OK
    out, err = capsys.readouterr()
    assert json.loads(out)["imported"] is True
    assert err == "INFO platform found\n"


def test_a_reason_that_the_terminal_cannot_show_is_escaped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "fakehost_of_cli.py").write_text("raise OSError('设备')\n", encoding="utf-8")
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert cli.main(["status", "--import"]) == cli.NOT_WELL
    assert rb"OSError: \u8bbe\u5907" in terminal.buffer.getvalue()  # type: ignore[attr-defined]


RUN = "import sys; from ascend_specpatch.cli import main; sys.exit(main(sys.argv[1:]))"


def shell(checkout: Path, command: str, program: str = RUN) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, with what the shell makes of its streams."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ["PYTHONPATH"] = str(checkout / ".editable")
    line = f"{shlex.join([sys.executable, '-c', program])} {command}"
    return subprocess.run(["bash", "-c", line], env=environ, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_fault(checkout: Path, closed: str) -> None:
    done = shell(checkout, f"list --json {closed}")
    assert (done.returncode, done.stderr) == (cli.OK, "")
    if closed[:3] == ">&-":
        assert done.stdout == ""


@pytest.mark.parametrize("command", ["list --json", "list", "--help"])
def test_an_output_that_is_full_is_said(checkout: Path, command: str) -> None:
    done = shell(checkout, f"{command} >/dev/full")
    assert done.stderr == "ascend-specpatch: stdout cannot be written: No space left on device\n"
    assert done.returncode == cli.NOT_WELL


@pytest.mark.parametrize("command", ["--help", "--version", "list --help", "list --json"])
def test_any_output_may_lose_its_reader(checkout: Path, command: str) -> None:
    done = shell(checkout, f"{command} | (exec <&-; sleep 2); echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == (f"{cli.READER_GONE}\n", "")


NOISY = """
import atexit, os, sys
from ascend_specpatch import cli, registry
atexit.register(os.write, 1, b"native, at exit\\n")
atexit.register(print, "at exit")
stdout, load = sys.stdout, registry.load

def loud():
    print("here")
    print("to what was stdout", file=stdout)
    os.write(1, b"native\\n")
    os.system("echo a child")
    return load()

registry.load = loud
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["list", "status", "verify", "drift"])
def test_whatever_else_prints_prints_to_stderr(checkout: Path, command: str) -> None:
    done = shell(checkout, f"{command} --json", NOISY)
    value, plain = json.loads(done.stdout), shell(checkout, f"{command} --json").stdout
    assert value.keys() == json.loads(plain).keys()
    said = {"here", "to what was stdout", "native", "a child", "at exit", "native, at exit"}
    assert set(done.stderr.splitlines()) == said
    assert not said & set(shell(checkout, command, NOISY).stdout.splitlines())


@pytest.mark.parametrize(("command", "code"), [("list", cli.READER_GONE), ("explain nobody", cli.BAD_USAGE)])
def test_the_reader_of_both_streams_may_go_away(checkout: Path, command: str, code: int) -> None:
    done = shell(checkout, f"{command} 2>&1 | (exec <&-; sleep 2); echo ${{PIPESTATUS[0]}}")
    assert done.stdout == f"{code}\n"


def test_a_second_report_is_written_too(checkout: Path) -> None:
    program = "from ascend_specpatch.cli import main; main(['list']); main(['list'])"
    once, twice = shell(checkout, "list").stdout, shell(checkout, "", program).stdout
    assert once
    assert twice == 2 * once


def test_a_host_that_ends_the_process_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "fakehost_of_cli.py").write_text("raise SystemExit(0)\n")
    assert cli.main(["status", "--import"]) == cli.NOT_WELL
    assert "refused  its module does not import: SystemExit: 0" in capsys.readouterr().out


def test_what_would_steer_the_terminal_is_escaped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "body_of_cli.py").write_text(
        '"""What:\\n\\x1b[2Ja name."""\ndef apply(edit): raise LookupError("one\\ntwo\\x1b[2J\\u202e")\n'
    )
    assert cli.main(["status", "--import"]) == cli.NOT_WELL
    out = capsys.readouterr().out
    assert r"refused  LookupError: one\ntwo\x1b[2J\u202e (" in out
    processes.write(hooks.refresh().as_dict())
    assert cli.main(["status"]) == cli.NOT_WELL
    assert f"({os.getpid()}): worker.lazy is refused: LookupError: one\\ntwo\\x1b" in capsys.readouterr().out
    assert cli.main(["explain", "worker.lazy"]) == cli.OK
    assert capsys.readouterr().out.endswith("\nWhat:\n\\x1b[2Ja name.\n")


@pytest.mark.parametrize("error", [OSError("damaged"), SystemExit(3)])
@pytest.mark.parametrize("command", [["list"], ["status"], ["explain", "x"], ["verify"], ["drift"]])
def test_patches_that_cannot_be_listed_are_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    error: BaseException,
) -> None:
    def load() -> Registry:
        raise error

    monkeypatch.setattr(registry, "load", load)
    assert cli.main(command) == cli.BAD_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        f"ascend-specpatch: the patches cannot be listed: {type(error).__name__}: {error}. "
    )


@pytest.mark.parametrize("command", [["list", "--json"], ["explain", "worker.lazy"]])
@pytest.mark.parametrize("declared", ["compute()", "['a:b']", "('a',)", "{[]: 1}", "-" * 9999 + "1"])
def test_a_declaration_that_cannot_be_read_is_one_sentence_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str], declared: str
) -> None:
    (tmp_path / "body_of_cli.py").write_text(f"LEANS_ON = {declared}\n")
    assert cli.main(command) == cli.NOT_WELL
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ascend-specpatch: LEANS_ON of body_of_cli is not a ")
    assert err.count("\n") == 1


def test_a_reader_that_goes_away_ends_it_quietly(checkout: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "ascend_specpatch.cli", "list"],
        env={**os.environ, "PYTHONPATH": str(checkout / ".editable"), "ASCEND_SPECPATCH": "0"},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (cli.READER_GONE, "")


@pytest.mark.parametrize(
    "environ",
    [
        {"ASCEND_SPECPATCH": "maybe"},
        {"ASCEND_SPECPATCH_DISABLE": "nothing.there"},
        {"ASCEND_SPECPATCH_STRIKT": "1"},
    ],
)
@pytest.mark.parametrize("command", ["list", "status"])
def test_bad_settings_are_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, environ: dict[str, str]
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cli.main([command]) == cli.BAD_USAGE
    assert capsys.readouterr().err.startswith("ascend-specpatch: ASCEND_SPECPATCH")


@pytest.mark.parametrize("arguments", [[], ["lsit"], ["list", "--import"]])
def test_bad_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == cli.BAD_USAGE
    assert "usage: ascend-specpatch" in capsys.readouterr().err


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "load", lambda: CHAIN)


@pytest.mark.usefixtures("chain")
def test_list_says_all_there_is_to_say_in_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_SPECPATCH_DISABLE", "worker.*")
    code, value = _json(capsys, "list")
    assert code == cli.OK
    assert value["problems"] == list(CHAIN.problems)
    pairs = [{"vllm": pair.vllm, "vllm_ascend": pair.vllm_ascend} for pair in hosts.SUPPORTED]
    assert value["patches"] == [
        {
            "id": patch_id,
            "stage": patch_id.partition(".")[0],
            "position": position,
            "target": "fakehost_of_cli",
            "summary": summary,
            "state": "off",
            "reason": reason,
            "requires": requires,
            "after": after,
            "goes_off_with_it": goes_off,
            "default": default,
            "hosts": pairs,
            "provider": provider,
            "implementation": "body_of_cli",
            "leans_on": [],
            "documentation": "What: a name.",
        }
        for patch_id, position, summary, reason, requires, after, goes_off, default, provider in (
            (
                "worker.lazy",
                1,
                "takes it late",
                "ASCEND_SPECPATCH_DISABLE",
                [],
                [],
                ["spec_decode.base", "spec_decode.clone"],
                True,
                "",
            ),
            (
                "spec_decode.base",
                2,
                "stands under",
                "needs worker.lazy, which is off (ASCEND_SPECPATCH_DISABLE)",
                ["worker.lazy"],
                [],
                ["spec_decode.clone"],
                True,
                "",
            ),
            (
                "spec_decode.clone",
                3,
                "on top",
                "off by default; ASCEND_SPECPATCH_ENABLE=spec_decode.clone turns it on",
                ["spec_decode.base"],
                ["worker.lazy"],
                [],
                False,
                "others",
            ),
        )
    ]


@pytest.mark.usefixtures("chain")
def test_list_and_status_say_what_was_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("list", "status"):
        cli.main([command])
        assert "\nthe patches of bad are left out: they raise. Mend" in capsys.readouterr().out


@pytest.mark.usefixtures("chain")
def test_explain_says_what_a_patch_is_and_what_hangs_on_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "worker.lazy"]) == cli.OK
    out = capsys.readouterr().out
    lines = [line.split(None, 1) for line in out.splitlines()]
    assert ["patch", "worker.lazy, number 1 of 3"] in lines
    assert "goes off with it  spec_decode.base, spec_decode.clone\n" in out
    assert "switch it off     ASCEND_SPECPATCH_DISABLE=worker.lazy\n" in out
    assert out.endswith("\n\nWhat: a name.\n")
    code, value = _json(capsys, "explain", "spec_decode.clone")
    assert (code, value["id"], value["requires"]) == (cli.OK, "spec_decode.clone", ["spec_decode.base"])


@pytest.mark.usefixtures("chain")
def test_explain_of_an_unknown_patch_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "worker.lasy"]) == cli.BAD_USAGE
    out, err = capsys.readouterr()
    assert (out, err) == ("", "ascend-specpatch: no patch is named worker.lasy; did you mean worker.lazy?\n")


def test_status_of_no_supported_pair_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "installed", lambda: HostPair("0.99.0", None))
    assert cli.main(["status"]) == cli.NOT_WELL
    assert "not supported; supported: vllm 0.16.0" in capsys.readouterr().out
    monkeypatch.setenv("ASCEND_SPECPATCH", "0")  # nothing is wanted, so nothing is wrong
    assert cli.main(["status"]) == cli.OK


def test_status_shows_running_processes_and_what_they_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    hooks.activate()
    hooks.register()
    assert cli.main(["status"]) == cli.OK
    out = capsys.readouterr().out
    header, line = out[out.index("PID ") :].splitlines()[:2]
    expected = [str(os.getpid()), "0", "2", "0", "0"]
    assert header.split()[:4] == ["PID", "PROCESS", "WRITTEN", "DIGEST"]
    assert [line.split()[0], *line.split()[-4:]] == expected

    hooks.refresh().mark("worker.lazy", registry.State.REFUSED, "for a test")
    hooks.refresh().note("spec_decode.base", ("x was replaced by y",))
    processes.write(hooks.refresh().as_dict())
    assert cli.main(["status"]) == cli.NOT_WELL
    out = capsys.readouterr().out
    assert f"({os.getpid()}): worker.lazy is refused: for a test\n" in out
    code, value = _json(capsys, "status")
    assert code == cli.NOT_WELL
    (process,) = value["processes"]  # type: ignore[misc]
    assert process["report"]["patches"][0]["reason"] == "for a test"


def test_doctor_is_exit_code_1_where_it_finds_a_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Finding("hosts", "ok", "all there"), Finding("triton", "note", "is stock", "pip install it")]
    monkeypatch.setattr(doctor, "examine", lambda import_hosts: found)
    assert cli.main(["doctor"]) == cli.OK
    assert capsys.readouterr().out.splitlines() == [
        "CHECK   VERDICT  FOUND",
        "hosts   ok       all there",
        "triton  note     is stock",
        "",
        "triton (note): to mend it",
        "    pip install it",
    ]
    found.append(Finding("hosts", "fault", "none", "pip install vllm"))
    code, value = _json(capsys, "doctor", "--quick")
    assert (code, [f["verdict"] for f in value["findings"]]) == (  # type: ignore[attr-defined]
        cli.NOT_WELL,
        ["ok", "note", "fault"],
    )
