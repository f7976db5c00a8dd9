# SPDX-License-Identifier: Apache-2.0
"""The report in its forms: rows, digest, the log line, table, JSON."""

from __future__ import annotations

import json

import pytest

import ascend_specpatch
from ascend_specpatch import hosts, report
from ascend_specpatch.registry import Patch, Registry, State
from ascend_specpatch.report import Report
from ascend_specpatch.settings import Settings

REGISTRY = Registry(
    [
        Patch("worker.lazy", "vllm_ascend.worker.worker", "first"),
        Patch("spec_decode.base", "vllm_ascend.spec_decode.eagle_proposer", "second"),
        Patch(
            "spec_decode.clone",
            "vllm_ascend.spec_decode.eagle_proposer",
            "third",
            requires=("spec_decode.base",),
        ),
    ]
)


def _report(**settings: object) -> Report:
    return Report(REGISTRY.choose(Settings(**settings), hosts.SUPPORTED[0]), "test")  # type: ignore[arg-type]


def test_marks_show_in_rows_and_in_the_order_of_application() -> None:
    found = _report()
    found.mark("spec_decode.base", State.APPLIED)
    found.mark("worker.lazy", State.APPLIED)
    found.mark("spec_decode.clone", State.REFUSED, "because")
    assert [(row.id, row.state, row.reason) for row in found.rows()] == [
        ("worker.lazy", State.APPLIED, ""),
        ("spec_decode.base", State.APPLIED, ""),
        ("spec_decode.clone", State.REFUSED, "because"),
    ]
    assert found.applied_order == ["spec_decode.base", "worker.lazy"]
    assert found.is_applied("worker.lazy")
    assert not found.is_applied("spec_decode.clone")
    assert not found.is_applied("no.such")


def test_the_digest_depends_on_states_and_not_on_the_order_of_application() -> None:
    one, other = _report(), _report()
    assert one.digest() == other.digest()
    one.mark("worker.lazy", State.APPLIED)
    assert one.digest() != other.digest()
    one.mark("spec_decode.base", State.APPLIED)
    other.mark("spec_decode.base", State.APPLIED)
    other.mark("worker.lazy", State.APPLIED)
    assert one.digest() == other.digest()
    assert len(one.digest()) == 16


def test_the_line_says_what_is_applied_and_names_what_is_not() -> None:
    found = _report(disable=("spec_decode.clone",))
    pair, version = hosts.SUPPORTED[0], ascend_specpatch.__version__
    assert found.line() == (
        f"ascend-specpatch {version}: 2 patches on (0 applied, 2 to be applied as their modules load), "
        f"1 off (spec_decode.clone) on {pair}"
    )
    found.mark("worker.lazy", State.APPLIED)
    found.mark("spec_decode.base", State.REFUSED, "because")
    assert found.line() == (
        f"ascend-specpatch {version}: 1 patch applied, 1 off (spec_decode.clone), "
        f"1 refused (spec_decode.base) on {pair}"
    )


def test_the_table_is_aligned_and_the_json_complete() -> None:
    found = _report()
    lines = found.table().splitlines()
    assert lines[0].split() == ["PATCH", "TARGET", "STATE", "REASON"]
    assert {line.index("waiting") for line in lines[1:]} == {lines[0].index("STATE")}
    assert not any(line.endswith(" ") for line in lines)
    value = json.loads(found.json())
    assert value["hosts"] == {"vllm": "0.16.0", "vllm_ascend": "0.16.0rc1"}
    assert value["digest"] == found.digest()
    assert value["patches"][2] == {
        "id": "spec_decode.clone",
        "target": "vllm_ascend.spec_decode.eagle_proposer",
        "requires": ["spec_decode.base"],
        "summary": "third",
        "state": "waiting",
        "reason": "",
        "provider": "",
        "notes": [],
    }


def test_is_applied_asks_the_report_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _report()
    found.mark("worker.lazy", State.APPLIED)
    monkeypatch.setattr(report, "_current", found)
    assert ascend_specpatch.is_applied("worker.lazy")
    assert not ascend_specpatch.is_applied("spec_decode.base")
    assert report.current() is found
