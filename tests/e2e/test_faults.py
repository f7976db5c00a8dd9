# SPDX-License-Identifier: Apache-2.0
"""A patch that raises at any point of what it does to the real hosts leaves them as they were.

In one process, with the hosts loaded and unpatched: the patches are applied late, twice for each of them, and
its first change fails before it is made, or its last one right after. So this also takes everything back some
dozens of times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.host import NEEDED

pytestmark = pytest.mark.e2e

SCRIPT = """
import json, logging, sys
from importlib import import_module
from ascend_specpatch import bootstrap, edits, hooks, hosts, registry
bootstrap.disarm()
logging.getLogger("vllm.ascend_specpatch").setLevel("ERROR")
PAIR = hosts.installed()
PATCHES = {patch.id: patch.on(PAIR) for patch in registry.load() if patch.is_needed_on(PAIR)}
MODULES = [import_module(name) for name in dict.fromkeys(patch.target for patch in PATCHES.values())]
import vllm_ascend.lora.punica_npu  # a patch imports it, which leaves a name in its package
HOSTS = [m for n, m in list(sys.modules.items()) if n.partition(".")[0] in ("vllm", "vllm_ascend")]
OWNERS = HOSTS + [v for m in MODULES for v in list(vars(m).values()) if isinstance(v, type)]

def snapshot():
    state = {}
    for owner in OWNERS:
        for name, value in list(vars(owner).items()):
            state[id(owner), name] = value
        if isinstance(owner, type):
            state[id(owner), "__bases__"], state[id(owner), "metaclass"] = owner.__bases__, type(owner)
    return state

def same(before, but=()):
    # What Python keeps for itself comes and goes: __abstractmethods__ stays as it was found.
    now, ignored = snapshot(), {"__dict__", "__weakref__"}
    differ = [key for key in before.keys() | now.keys()
              if key not in but and before.get(key, "absent") is not now.get(key, "absent")
              and not (key[1] == "__bases__" and before.get(key) == now.get(key))]
    names = {id(owner): getattr(owner, "__qualname__", owner.__name__) for owner in OWNERS}
    return sorted(f"{names[owner]}.{name}" for owner, name in differ if name not in ignored)

class Fault(Exception):
    pass

calls, fail_at, changes = 0, None, {}

def failing(method):
    def wrapped(self, *args, **kwargs):
        global calls
        calls += 1
        number = calls
        if fail_at is None:
            changes.setdefault(self.patch_id, []).append((number, method.__name__))
        if fail_at == (number, "before"):
            raise Fault(f"before change {number}")
        result = method(self, *args, **kwargs)
        if fail_at == (number, "after"):
            raise Fault(f"after change {number}")
        return result
    return wrapped

for name in ("set", "delete", "rebind", "undo_with"):
    setattr(edits.Edit, name, failing(getattr(edits.Edit, name)))

before = snapshot()
report = hooks.activate("dry run")
assert {row.state for row in report.rows() if row.id in PATCHES} == {registry.State.APPLIED}, report.table()
changed = {}
for edit in hooks._active._edits:
    changed[edit.patch_id] = {(id(owner), name) for owner, name, _, _ in edit.changes()}
hooks.uninstall()
assert same(before) == [], same(before)

results = []
kernels = [name for name in changes if name.startswith("spec_decode.kernels.")]
for name, numbers in list(changes.items()):
    if name in kernels[1:]:  # all alike, and each costs some seconds
        continue
    # What is registered with undo_with has been made already: it cannot fail before.
    first = [(number, "before") for number, kind in numbers if kind != "undo_with"][:1]
    for number, side in (*first, (numbers[-1][0], "after")):
        fail_at, calls = (number, side), 0
        report = hooks.activate("fault")
        rows = {row.id: row for row in report.rows()}
        refused = [name for name, row in rows.items() if row.state is registry.State.REFUSED]
        by_applied = {key for name in PATCHES if name not in refused for key in changed[name]}
        left = [key for name in refused for key in changed[name]
                if key in before and key not in by_applied and snapshot().get(key) is not before[key]]
        fail_at = None
        failed = [name for name in refused if "Fault" in rows[name].reason]
        dependents = [name for name in refused if name not in failed]
        results.append({
            "point": [number, side],
            "failed": failed,
            "dependents": dependents,
            "reasons": [rows[name].reason for name in refused],
            "left": [str(key) for key in left],
            "needed": [name for name, patch in PATCHES.items() if set(patch.requires) & set(refused)],
            "states": sorted({str(row.state) for row in rows.values()}),
        })
        hooks.uninstall()
        results[-1]["after uninstalling"] = same(before)
print("RESULT " + json.dumps(results))
"""


def test_a_patch_that_fails_at_any_point_changes_nothing_and_takes_only_its_dependents_along(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("ASCEND_SPECPATCH")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    results = json.loads(line.removeprefix("RESULT "))
    assert len(results) > 20
    for result in results:
        assert len(result["failed"]) == 1, result
        assert result["left"] == [], result
        assert result["after uninstalling"] == [], result
        assert sorted(result["dependents"]) == sorted(result["needed"]), result
        assert all("change" in reason or "needs " in reason for reason in result["reasons"]), result
        assert "waiting" not in result["states"], result
    # Every patch that changes something has failed, at least once before and once after a change.
    failed = {failed for result in results for failed in result["failed"]}
    kernels = [patch.id for patch in NEEDED if patch.id.startswith("spec_decode.kernels.")]
    assert failed == {patch.id for patch in NEEDED} - set(kernels[1:])
