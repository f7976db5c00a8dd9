# SPDX-License-Identifier: Apache-2.0
"""Each thing that doctor looks at, well and not, with the command that mends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

import ascend_specpatch
from ascend_specpatch import doctor, hosts, processes, registry
from ascend_specpatch.doctor import Finding
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.registry import Patch, Registry

SET = [name for name in os.environ if name.startswith(("ASCEND_SPECPATCH", "VLLM_PLUGINS"))]
Install = Callable[..., None]


@pytest.fixture(autouse=True)
def well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which all is well, to be spoilt in one way by each test."""
    for name in SET:
        monkeypatch.delenv(name)
    monkeypatch.setattr(hosts, "installed", lambda: hosts.SUPPORTED[0])
    versions = {"triton-ascend": "3.2.0", "vllm-ascend": "0.16.0rc1"}
    monkeypatch.setattr(hosts, "version", versions.get)
    monkeypatch.setattr(registry, "load", lambda: Registry([Patch("worker.a", "vllm.a", "")]))
    monkeypatch.setattr(processes, "_candidates", lambda: [str(tmp_path / "runtime")])
    monkeypatch.setattr(sys, "meta_path", [ascend_specpatch, *sys.meta_path])
    package = tmp_path / "hosts" / "vllm_ascend"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('doctor imports no host')")
    (package / f"vllm_ascend_C{EXTENSION_SUFFIXES[0]}").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "hosts"), *sys.path])
    startup = tmp_path / doctor.STARTUP_FILE
    startup.write_text("")
    monkeypatch.setattr(doctor, "_site_folders", lambda: [startup])
    monkeypatch.setattr(doctor, "_has_plugin", lambda: True)


def found(check: str) -> list[Finding]:
    return [finding for finding in doctor.examine(import_hosts=False) if finding.check == check]


def only(check: str) -> Finding:
    (finding,) = found(check)
    return finding


def test_where_all_is_well_there_is_nothing_to_mend() -> None:
    findings = doctor.examine(import_hosts=False)
    assert [(f.check, f.verdict, f.mend) for f in findings] == [
        (check, "ok", "")
        for check in (
            "settings",
            "hosts",
            "activation",
            "sitecustomize",
            "VLLM_PLUGINS",
            "triton",
            "custom operators",
            "other patches",
            "running processes",
        )
    ]


@pytest.mark.parametrize(
    ("variable", "value", "says", "mend"),
    [
        ("ASCEND_SPECPATCH", "0", "everything is off", "unset ASCEND_SPECPATCH"),
        ("ASCEND_SPECPATCH_DISABLE", "worker.b", "did you mean worker.a?", "unset ASCEND_SPECPATCH_DISABLE"),
        ("ASCEND_SPECPATCH_STRIKT", "1", "ASCEND_SPECPATCH_STRICT?", "unset ASCEND_SPECPATCH_STRIKT"),
        ("ASCEND_SPECPATCH_KERNELS", "cuda", "use one of triton", "unset ASCEND_SPECPATCH_KERNELS"),
    ],
)
def test_settings(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str, mend: str) -> None:
    monkeypatch.setenv(variable, value)
    finding = only("settings")
    assert (finding.verdict, finding.mend) == ("fault", mend)
    assert says in finding.found


@pytest.mark.parametrize(
    ("environ", "culprit"),
    [
        ({"ASCEND_SPECPATCH": "1", "ASCEND_SPECPATCH_DISABLE": "nobody"}, "ASCEND_SPECPATCH_DISABLE"),
        ({"ASCEND_SPECPATCH_DISABLE": "worker", "ASCEND_SPECPATCH_DISBALE": "x"}, "ASCEND_SPECPATCH_DISBALE"),
        ({"ASCEND_SPECPATCH_KERNELS": "torch", "ASCEND_SPECPATCH_ENABLE": "n"}, "ASCEND_SPECPATCH_ENABLE"),
    ],
)
def test_the_variable_that_is_wrong_is_the_one_to_unset(
    environ: dict[str, str], culprit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert only("settings").mend == f"unset {culprit}"


def test_settings_that_are_given_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_SPECPATCH_STRICT", "1")
    assert only("settings") == Finding("settings", "ok", "ASCEND_SPECPATCH_STRICT=1")


def test_hosts_that_are_no_supported_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "installed", lambda: HostPair("0.19.0", None))
    finding = only("hosts")
    assert finding.verdict == "fault"
    assert finding.found.startswith("vllm 0.19.0 + no vllm-ascend; supported: vllm 0.16.0")
    newest = hosts.SUPPORTED[-1]
    assert finding.mend == f"pip install vllm=={newest.vllm} vllm-ascend=={newest.vllm_ascend}"


@pytest.mark.parametrize(
    ("has_startup", "has_plugin", "verdict", "says"),
    [
        (True, True, "note", "is there, but did not run"),
        (False, True, "note", "no startup file in site-packages: vLLM's plugin activates late"),
        (False, False, "fault", "nothing activates the patches"),
    ],
)
def test_activation_that_is_not_armed(
    monkeypatch: pytest.MonkeyPatch, has_startup: bool, has_plugin: bool, verdict: str, says: str
) -> None:
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if f is not ascend_specpatch])
    monkeypatch.setattr(doctor, "_has_plugin", lambda: has_plugin)
    if not has_startup:
        monkeypatch.setattr(doctor, "_site_folders", list)
    finding = only("activation")
    assert finding.verdict == verdict
    assert says in finding.found
    if not has_startup:
        assert finding.mend == "pip install --force-reinstall --no-deps ascend-specpatch"


def test_a_foreign_sitecustomize(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: Path) -> None:
    (tmp_path / "hosts" / "sitecustomize.py").write_text("")
    assert only("sitecustomize").verdict == "ok"  # the startup file armed all the same
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if f is not ascend_specpatch])
    finding = only("sitecustomize")
    assert finding.verdict == "fault"
    assert f"comes before {checkout}/sitecustomize.py" in finding.found
    assert finding.mend == f"export PYTHONPATH={checkout}:$PYTHONPATH"
    monkeypatch.setattr(doctor, "_own_sitecustomize", lambda: None)
    assert only("sitecustomize").verdict == "note"


def test_the_sitecustomize_of_the_checkout_is_ours_and_one_beside_a_wheel_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    assert doctor._own_sitecustomize() == f"{checkout}/sitecustomize.py"
    (tmp_path / "sitecustomize.py").write_text("import coverage")
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "ascend_specpatch" / "doctor.py"))
    assert doctor._own_sitecustomize() is None


@pytest.mark.parametrize(
    ("value", "armed", "verdict", "says", "mend"),
    [
        ("ascend,ascend_specpatch", True, "ok", "ascend,ascend_specpatch", ""),
        (
            "ascend_specpatch",
            True,
            "fault",
            "hides vllm-ascend's platform plugin",
            "export VLLM_PLUGINS=ascend_specpatch,ascend",
        ),
        (
            "ascend",
            True,
            "note",
            "the patches work without it",
            "export VLLM_PLUGINS=ascend,ascend_specpatch",
        ),
        (
            "ascend",
            False,
            "fault",
            "hides the plugin of ascend-specpatch",
            "export VLLM_PLUGINS=ascend,ascend_specpatch",
        ),
        ("", True, "fault", "hides vllm-ascend's", "export VLLM_PLUGINS=ascend,ascend_specpatch"),
        ("a b", True, "fault", "a b hides", "export VLLM_PLUGINS='a b,ascend,ascend_specpatch'"),
    ],
)
def test_vllm_plugins(
    monkeypatch: pytest.MonkeyPatch, value: str, armed: bool, verdict: str, says: str, mend: str
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", value)
    if not armed:
        monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if f is not ascend_specpatch])
    finding = only("VLLM_PLUGINS")
    assert (finding.verdict, finding.mend) == (verdict, mend)
    assert says in finding.found


@pytest.mark.parametrize(
    ("versions", "verdict", "mend"),
    [
        (
            {"triton": "3.5.1", "triton-ascend": "3.2.0"},
            "fault",
            "pip uninstall -y triton triton-ascend && pip install triton-ascend==3.2.0",
        ),
        ({"triton": "3.5.1"}, "note", "pip install triton-ascend"),
        ({}, "note", "pip install triton-ascend"),
    ],
)
def test_triton(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], verdict: str, mend: str) -> None:
    monkeypatch.setattr(hosts, "version", versions.get)
    assert (only("triton").verdict, only("triton").mend) == (verdict, mend)


def test_custom_operators_that_are_missing_or_for_another_python(tmp_path: Path) -> None:
    (extension,) = (tmp_path / "hosts" / "vllm_ascend").glob("*_C*")
    extension.rename(extension.with_name("vllm_ascend_C.cpython-26-x86_64-linux-gnu.so"))
    finding = only("custom operators")
    assert finding.verdict == "fault"
    assert finding.mend == "pip install --force-reinstall --no-deps vllm-ascend==0.16.0rc1"


def test_patches_of_other_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "the patches of bad-one (entry point x) are left out: it raises"
    patches = [Patch("worker.b", "vllm.a", "", implementation="b", provider="good-one")]
    monkeypatch.setattr(registry, "load", lambda: Registry(patches, [problem]))
    assert found("other patches") == [
        Finding("other patches", "fault", problem, "pip uninstall -y bad-one"),
        Finding("other patches", "ok", "from good-one"),
    ]


def test_running_processes_that_refused_a_patch_and_a_folder_that_is_open_to_others(tmp_path: Path) -> None:
    report = {"patches": [_row("worker.a", "refused", "it raised")]}
    processes.write(report)
    try:
        finding = found("running processes")[-1]
    finally:
        processes.forget()
    assert (finding.verdict, finding.mend) == ("fault", "ascend-specpatch explain worker.a")
    assert finding.found.endswith(f"({os.getpid()}): it raised")
    (tmp_path / "runtime").chmod(0o755)
    finding = only("running processes")
    assert finding.verdict == "note"
    assert "chmod 700" in finding.found


@pytest.mark.parametrize("error", [OSError("damaged"), SystemExit(3)])
def test_patches_that_cannot_be_listed_are_a_fault(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def load() -> Registry:
        raise error

    monkeypatch.setattr(registry, "load", load)
    finding = only("other patches")
    assert finding.verdict == "fault"
    assert f"cannot be listed: {type(error).__name__}: {error}. " in finding.found
    assert finding.mend == "pip install --force-reinstall --no-deps ascend-specpatch"
    assert only("settings").verdict == "ok"


def test_relative_places_in_pythonpath_are_kept_for_the_process_that_imports_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        given.append(options["env"]["PYTHONPATH"])
        return subprocess.CompletedProcess(command, 1, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((".", "src", "/opt", "")))
    doctor.examine()
    assert given == [os.pathsep.join((str(tmp_path), f"{tmp_path}/src", "/opt", str(tmp_path)))]


def _child(monkeypatch: pytest.MonkeyPatch, returncode: int, stdout: str, stderr: str = "") -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[0] == sys.executable
        return subprocess.CompletedProcess(command, returncode, stdout, stderr)

    monkeypatch.setattr(subprocess, "run", run)


def patches_found() -> list[Finding]:
    return [finding for finding in doctor.examine() if finding.check == "patches"]


def _row(patch_id: str, state: str, reason: str = "", *notes: str) -> dict[str, Any]:
    return {"id": patch_id, "state": state, "reason": reason, "notes": notes}


def test_patches_that_are_refused_when_the_hosts_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        _row("worker.a", "applied"),
        _row("worker.b", "refused", "it raised"),
        _row("worker.c", "waiting"),
        _row("worker.d", "applied", "", "x was replaced by y"),
    ]
    _child(monkeypatch, 1, json.dumps({"patches": rows}, indent=2))
    assert patches_found() == [
        Finding("patches", "fault", "worker.b is refused: it raised", "ascend-specpatch explain worker.b"),
        Finding(
            "patches",
            "fault",
            "worker.c is waiting: its module was not loaded",
            "ascend-specpatch explain worker.c",
        ),
        Finding("patches", "note", "worker.d: x was replaced by y"),
    ]
    rows = [rows[0], rows[3], _row("worker.e", "off", "by setting")]
    _child(monkeypatch, 0, "a startup file prints {\n" + json.dumps({"patches": rows}, indent=2))
    assert patches_found()[-1] == Finding("patches", "ok", "2 applied, 1 off")


def test_hosts_that_end_the_process_that_imports_them(monkeypatch: pytest.MonkeyPatch) -> None:
    _child(monkeypatch, -11, "", "no device\nSegmentation fault\n")
    (finding,) = patches_found()
    assert (finding.verdict, finding.found) == (
        "fault",
        "importing the hosts ended with -11: Segmentation fault",
    )
    assert finding.mend.startswith("python -c")
