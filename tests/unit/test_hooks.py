# SPDX-License-Identifier: Apache-2.0
"""Activation by hand, inside this process; tests/order has it in real processes."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascend_specpatch import hooks, hosts, report
from ascend_specpatch.registry import Patch, Registry, State

TARGET = "fakehost_of_hooks"


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A small host and the body of its patch, on supported versions; whatever was active is taken back."""
    (tmp_path / f"{TARGET}.py").write_text("class Thing: pass\n")
    (tmp_path / "body_of_hooks.py").write_text(
        "def apply(edit):\n    edit.set(edit.module, 'patched', True)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(hosts, "installed", lambda: hosts.SUPPORTED[0])
    hooks.uninstall()
    yield
    hooks.uninstall()
    for name in (TARGET, "body_of_hooks"):
        sys.modules.pop(name, None)


def _registry(**more: object) -> Registry:
    return Registry([Patch("worker.test", TARGET, "", implementation="body_of_hooks", **more)])  # type: ignore[arg-type]


def test_a_target_is_patched_as_it_loads_and_not_loaded_for_that() -> None:
    found = hooks.activate("test", _registry())
    assert found is report.current()
    assert TARGET not in sys.modules
    assert found.row("worker.test").state is State.WAITING
    __import__(TARGET)
    assert sys.modules[TARGET].patched is True
    assert found.row("worker.test").state is State.APPLIED
    assert found.route == "test"


def test_a_second_activation_changes_nothing() -> None:
    first = hooks.activate("first", _registry())
    assert hooks.activate("second", Registry([])) is first
    assert first.route == "first"


def test_uninstall_leaves_a_function_of_the_hosts_that_stood_in_for_another(tmp_path: Path) -> None:
    """A patch may put one host function in the place of a second one: the first is not an alias of ours."""
    (tmp_path / f"{TARGET}.py").write_text("def right(): pass\ndef wrong(): pass\n")
    (tmp_path / "body_of_hooks.py").write_text(
        "def apply(edit):\n    edit.set(edit.module, 'wrong', edit.module.right)\n"
    )
    importlib.invalidate_caches()
    host = importlib.import_module(TARGET)
    right, wrong = host.right, host.wrong
    hooks.activate("test", _registry())
    assert host.wrong is right
    hooks.uninstall()
    assert (host.right, host.wrong) == (right, wrong)


def test_uninstall_takes_back_and_is_harmless_twice() -> None:
    __import__(TARGET)
    hooks.activate("test", _registry())
    assert sys.modules[TARGET].patched is True
    hooks.uninstall()
    hooks.uninstall()
    assert not hasattr(sys.modules[TARGET], "patched")
    assert report.current().rows() == ()


def test_an_interrupt_inside_a_patch_passes_through_and_leaves_the_target_whole(tmp_path: Path) -> None:
    (tmp_path / "body_of_hooks.py").write_text(
        "def apply(edit):\n    edit.set(edit.module, 'patched', True)\n    raise KeyboardInterrupt\n"
    )
    hooks.activate("test", _registry())
    with pytest.raises(KeyboardInterrupt):
        __import__(TARGET)
    assert report.current().row("worker.test").state is State.WAITING
    (tmp_path / "body_of_hooks.py").write_text("def apply(edit): edit.set(edit.module, 'patched', 'later')\n")
    sys.modules.pop("body_of_hooks")
    importlib.invalidate_caches()
    __import__(TARGET)
    hooks.register()
    assert sys.modules[TARGET].patched == "later"


def test_a_change_that_cannot_be_taken_back_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "body_of_hooks.py").write_text(
        "def apply(edit):\n    edit.undo_with(lambda: 1 / 0)\n    raise LookupError\n"
    )
    hooks.activate("test", _registry())
    with caplog.at_level(logging.WARNING, "vllm.ascend_specpatch"):
        __import__(TARGET)
    assert "could not be taken back: ZeroDivisionError" in caplog.text
    assert "Restart with this patch disabled" in caplog.text


def test_no_lock_is_held_while_a_patch_is_applied(tmp_path: Path) -> None:
    (tmp_path / "body_of_hooks.py").write_text(
        "import threading\n"
        "from ascend_specpatch import hooks\n"
        "def apply(edit):\n"
        "    def take():\n"
        "        with hooks._lock, hooks._active._lock:\n"
        "            edit.set(edit.module, 'free', True)\n"
        "    thread = threading.Thread(target=take, daemon=True)\n"
        "    thread.start()\n"
        "    thread.join(5)\n"
    )
    __import__(TARGET)
    hooks.activate("test", _registry())
    assert sys.modules[TARGET].free is True


def test_a_missing_body_refuses_the_patch() -> None:
    __import__(TARGET)
    found = hooks.activate(
        "test", Registry([Patch("worker.test", TARGET, "", implementation="no_such_body")])
    )
    assert found.row("worker.test").state is State.REFUSED
    assert "ModuleNotFoundError: No module named 'no_such_body'" in found.row("worker.test").reason


def test_register_logs_one_line_a_process(caplog: pytest.LogCaptureFixture) -> None:
    hooks.activate("test", _registry())
    with caplog.at_level(logging.INFO, "vllm.ascend_specpatch"):
        hooks.register()
        hooks.register()
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.INFO] == [
        report.current().line()
    ]
