# SPDX-License-Identifier: Apache-2.0
"""Patches of other distributions take their place among ours, and cannot break them."""

from __future__ import annotations

import json

import pytest

from .conftest import PATCHED, UNPATCHED, FakeHosts, visible

IMPORT_AND_PRINT = """
ascend_specpatch.arm()
found = state()
from ascend_specpatch import report
import vllm_ascend.runner
trace = getattr(vllm_ascend.runner, "trace", [])
reasons = {row.id: row.reason for row in report.current().rows()}
print(json.dumps([found, report.current().applied_order, reasons, trace]))
"""


ENTRY_POINTS = "[ascend_specpatch.patches]\nother = other:PATCHES\n"


def provide(fake_hosts: FakeHosts, patches: str, **bodies: str) -> None:
    """Install a distribution ``other-patches`` whose module ``other`` has ``patches``."""
    fake_hosts.install("other-patches", "1.0")
    fake_hosts.write(
        {
            "other_patches-1.0.dist-info/entry_points.txt": ENTRY_POINTS,
            "other/__init__.py": f"from ascend_specpatch.registry import Patch\n{patches}",
            **{f"other/{name}.py": body for name, body in bodies.items()},
        }
    )


TRACE = """
def apply(edit):
    import vllm_ascend.drafter as drafter
    seen = [*getattr(edit.module, "trace", []), [__name__, drafter.Drafter().who()]]
    edit.set(edit.module, "trace", seen)
"""


def test_a_patch_takes_its_place_among_ours(fake_hosts: FakeHosts) -> None:
    provide(
        fake_hosts,
        'PATCHES = [Patch("model_runner.late", "vllm_ascend.runner", "", implementation="other.late"),'
        'Patch("model_runner.early", "vllm_ascend.runner", "", before=("model_runner.runner",), '
        'implementation="other.early")]',
        early=TRACE,
        late=TRACE,
    )
    found, order, _, trace = fake_hosts.result(IMPORT_AND_PRINT)
    assert visible(found) == PATCHED
    runners = [patch for patch in order if patch.startswith("model_runner.")]
    assert runners == ["model_runner.early", "model_runner.runner", "model_runner.late"]
    assert trace == [["other.early", "ours"], ["other.late", "ours"]]


def test_what_comes_after_a_patch_on_another_module_has_that_imported_first(fake_hosts: FakeHosts) -> None:
    provide(
        fake_hosts,
        'PATCHES = Patch("spec_decode.mine", "vllm.extra", "", after=("spec_decode.drafter",), '
        'implementation="other.mine")',
        mine="def apply(edit): edit.set(edit.module, 'patched', True)\n",
    )
    fake_hosts.write({"vllm/extra.py": ""})
    found = fake_hosts.result(
        """
        ascend_specpatch.arm()
        import vllm.extra
        from ascend_specpatch import report
        imported = "vllm_ascend.drafter" in sys.modules
        print(json.dumps([vllm.extra.patched, imported, report.current().applied_order]))
        """
    )
    assert found == [True, True, ["spec_decode.upstream", "spec_decode.drafter", "spec_decode.mine"]]


@pytest.mark.parametrize(
    ("spoil", "by_setting"),
    [
        ({"vllm_ascend/drafter.py": "raise OSError('no device')\n"}, {}),
        ({"fake_patches/drafter.py": "def apply(edit): raise OSError('no device')\n"}, {}),
        ({}, {"ASCEND_SPECPATCH_DISABLE": "spec_decode.drafter"}),
    ],
)
def test_what_comes_after_a_patch_does_not_need_it(
    fake_hosts: FakeHosts, spoil: dict[str, str], by_setting: dict[str, str]
) -> None:
    provide(
        fake_hosts,
        'PATCHES = Patch("spec_decode.mine", "vllm.extra", "", after=("spec_decode.drafter",), '
        'implementation="other.mine")',
        mine="def apply(edit): edit.set(edit.module, 'patched', True)\n",
    )
    fake_hosts.write({"vllm/extra.py": "", **spoil})
    script = "ascend_specpatch.arm(); import vllm.extra; print(json.dumps(vllm.extra.patched))"
    assert fake_hosts.result(script, **by_setting) is True


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("def apply(): pass", "other.bad.apply() is not apply(edit): too many positional arguments"),
        ("def apply(edit, extra): pass", "other.bad.apply(edit, extra) is not apply(edit): missing"),
        ("def apply(*, edit): pass", "other.bad.apply(*, edit) is not apply(edit)"),
        ("apply = 3", "other.bad has no function apply(edit)"),
        ("", "other.bad has no function apply(edit)"),
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("def apply(edit) pass", "SyntaxError"),
        ("async def apply(edit): pass", "other.bad.apply is a coroutine function"),
    ],
)
def test_a_patch_with_a_wrong_signature_is_refused_and_changes_nothing(
    fake_hosts: FakeHosts, body: str, says: str
) -> None:
    provide(
        fake_hosts,
        'PATCHES = Patch("model_runner.bad", "vllm_ascend.runner", "", before=("model_runner.runner",), '
        'implementation="other.bad")',
        bad=body + "\n",
    )
    found, order, reasons, _ = fake_hosts.result(IMPORT_AND_PRINT)
    assert visible(found) == PATCHED
    assert "model_runner.bad" not in order
    assert says in reasons["model_runner.bad"]
    done = fake_hosts.run(IMPORT_AND_PRINT, ASCEND_SPECPATCH_STRICT="1")
    assert done.returncode == 1
    assert "PatchRefused: model_runner.bad is refused" in done.stderr


def test_wrong_patches_of_another_distribution_are_left_out_with_a_warning(fake_hosts: FakeHosts) -> None:
    provide(
        fake_hosts, "PATCHES = Patch('worker.mine', 'vllm', '', requires='worker.lazy', implementation='x')"
    )
    done = fake_hosts.run(IMPORT_AND_PRINT)
    assert done.returncode == 0, done.stderr
    assert visible(json.loads(done.stdout)[0]) == PATCHED
    (warning,) = done.stderr.splitlines()
    assert (
        "the patches of other-patches (entry point other) are left out: worker.mine: requires is" in warning
    )
    strict = fake_hosts.run(IMPORT_AND_PRINT, ASCEND_SPECPATCH_STRICT="1")
    assert strict.returncode == 1
    assert "PatchRefused: the patches of other-patches" in strict.stderr
    off = fake_hosts.run(IMPORT_AND_PRINT, ASCEND_SPECPATCH="0")
    assert (off.returncode, off.stderr) == (0, "")
    assert visible(json.loads(off.stdout)[0]) == UNPATCHED


@pytest.mark.parametrize("first", ["vllm", "vllm_ascend.worker"])
def test_a_distribution_may_import_a_host_when_it_is_loaded(fake_hosts: FakeHosts, first: str) -> None:
    provide(
        fake_hosts,
        "import vllm.user, vllm_ascend.worker\n"
        'PATCHES = Patch("model_runner.late", "vllm_ascend.runner", "", implementation="other.late")',
        late=TRACE,
    )
    found, order, _, trace = fake_hosts.result(f"ascend_specpatch.arm()\nimport {first}\n{IMPORT_AND_PRINT}")
    assert visible(found) == PATCHED
    assert len(order) == 5
    assert trace == [["other.late", "ours"]]


def test_a_patch_of_another_distribution_can_be_switched_off_by_name(fake_hosts: FakeHosts) -> None:
    provide(
        fake_hosts,
        'PATCHES = Patch("model_runner.late", "vllm_ascend.runner", "", implementation="other.late")',
        late=TRACE,
    )
    found, _, reasons, trace = fake_hosts.result(
        IMPORT_AND_PRINT, ASCEND_SPECPATCH_DISABLE="model_runner.late"
    )
    assert visible(found) == PATCHED
    assert reasons["model_runner.late"] == "ASCEND_SPECPATCH_DISABLE"
    assert trace == []
