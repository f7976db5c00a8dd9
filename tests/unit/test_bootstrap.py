# SPDX-License-Identifier: Apache-2.0
"""What every interpreter pays, and that arming can be done by several routes at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ascend_specpatch
from ascend_specpatch import bootstrap


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    bootstrap.disarm()
    yield
    bootstrap.disarm()


def test_idle_source_is_below_8_kib(checkout: Path) -> None:
    assert (checkout / "ascend_specpatch" / "__init__.py").stat().st_size < 8 * 1024


def test_arming_imports_nothing_but_the_package(checkout: Path) -> None:
    script = (
        "import sys; before = set(sys.modules); import ascend_specpatch as a; a.arm(); "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            f"import os, sys; sys.path.insert(0, {str(checkout / '.editable')!r}); {script}",
        ],
        capture_output=True,
        text=True,
        check=True,
        env={
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ASCEND_SPECPATCH", "PYTHON"))
        },
    )
    assert done.stdout.split() == ["ascend_specpatch"]


def test_arming_twice_sets_one_trigger_and_disarming_removes_it() -> None:
    before = list(sys.meta_path)
    ascend_specpatch.arm()
    ascend_specpatch.arm()
    assert bootstrap.armed()
    assert sys.meta_path[1:] == before
    bootstrap.disarm()
    bootstrap.disarm()
    assert not bootstrap.armed()
    assert sys.meta_path == before


@pytest.mark.parametrize("word", ["0", "false", "No", " off "])
def test_off_leaves_the_host_to_the_other_finders(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("ASCEND_SPECPATCH", word)
    ascend_specpatch.arm()
    assert ascend_specpatch.find_spec("vllm") is None
    assert not bootstrap.armed()


def test_the_trigger_leaves_other_modules_alone() -> None:
    assert ascend_specpatch.find_spec("json") is None
    assert ascend_specpatch.find_spec("vllm.config") is None
    assert ascend_specpatch.find_spec("kernels") is None


@pytest.mark.parametrize(
    ("value", "strict"), [("", False), ("0", False), ("off", False), ("1", True), ("yess", True)]
)
def test_strict_errs_on_the_side_of_stopping(
    monkeypatch: pytest.MonkeyPatch, value: str, strict: bool
) -> None:
    monkeypatch.setenv("ASCEND_SPECPATCH_STRICT", value)
    assert bootstrap.strict() is strict
