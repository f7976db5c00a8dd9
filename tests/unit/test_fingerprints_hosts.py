# SPDX-License-Identifier: Apache-2.0
"""What the patches here lean on: every one says so, and with the real hosts installed it is all as verified
and complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ascend_specpatch import fingerprints, hosts
from ascend_specpatch.fingerprints import ObjectState, VerifiedSource, compare, installed_source, leans_on
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.patches import PATCHES
from ascend_specpatch.registry import Patch

# Applies all patches, one after the other, and prints the names of the host's that each has set or deleted.
RECORDER = """
import importlib, json
import torch_npu
import vllm, vllm_ascend
from ascend_specpatch import hosts, registry, report, settings
from ascend_specpatch.edits import Edit
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.patches import PATCHES
from ascend_specpatch.registry import State

changed, ours = {}, []

class Recorder(Edit):
    def note(self, owner, name):
        if name in vars(owner) and not any(owner is each for each in ours):
            in_class = isinstance(owner, type)
            where = f"{owner.__module__}:{owner.__qualname__}." if in_class else f"{owner.__name__}:"
            changed[self.patch_id].append(where + name)

    def set(self, owner, name, value, **options):
        self.note(owner, name)
        super().set(owner, name, value, **options)
        ours.append(value)

    def delete(self, owner, name):
        self.note(owner, name)
        super().delete(owner, name)

plan = registry.Registry(PATCHES).choose(settings.Settings(), hosts.installed())
current = report.Report(plan)
report.set_current(current)
edits = []
for patch in plan.chosen:
    changed[patch.id] = []
    edits.append(Recorder(patch.id, importlib.import_module(patch.target), tuple(edits)))
    importlib.import_module(patch.body).apply(edits[-1])
    current.mark(patch.id, State.APPLIED)
print(json.dumps(changed))
"""


# Every patch in its form for every pair that needs it.
NEEDED = [(patch.on(pair), pair) for pair in hosts.SUPPORTED for patch in PATCHES if patch.is_needed_on(pair)]
IDS = [f"{patch.id}, {pair.vllm}" for patch, pair in NEEDED]


def record_of(pair: HostPair) -> fingerprints.Record:
    return fingerprints.verified_for(PATCHES[0]).pairs[str(pair)]


@pytest.mark.parametrize(("patch", "pair"), NEEDED, ids=IDS)
def test_every_patch_says_what_it_leans_on_once_and_all_of_it_is_recorded(
    patch: Patch, pair: HostPair
) -> None:
    declared = leans_on(patch)
    assert declared
    assert len(set(declared)) == len(declared)
    assert all(name.startswith(("vllm.", "vllm_ascend.")) for name in declared)
    for name in declared:
        module, _, qualname = name.partition(":")
        assert qualname in record_of(pair)[module].objects


@pytest.mark.parametrize("pair", hosts.SUPPORTED, ids=str)
def test_nothing_is_recorded_that_no_patch_leans_on(pair: HostPair) -> None:
    declared = {name for patch, its in NEEDED if its == pair for name in leans_on(patch)}
    recorded = {f"{module}:{name}" for module, entry in record_of(pair).items() for name in entry.objects}
    assert recorded == declared


def test_every_supported_pair_is_recorded_in_the_form_that_the_command_writes(checkout: Path) -> None:
    path = checkout / "patches" / fingerprints.FILE_NAME
    file = VerifiedSource.parse(path.read_bytes(), str(path))
    assert set(file.pairs) == {str(pair) for pair in hosts.SUPPORTED}
    assert file.text() == path.read_text()


def test_the_file_is_in_the_wheel(checkout: Path, tmp_path: Path) -> None:
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=checkout, check=True, stdout=subprocess.PIPE
    )
    (wheel,) = tmp_path.glob("*.whl")
    name = f"ascend_specpatch/patches/{fingerprints.FILE_NAME}"
    assert zipfile.ZipFile(wheel).read(name) == (checkout / "patches" / fingerprints.FILE_NAME).read_bytes()


HERE = hosts.installed()
NEEDED_HERE = [patch for patch, pair in NEEDED if pair == HERE]


@pytest.fixture(scope="module")
def real_hosts() -> None:
    if HERE not in hosts.SUPPORTED:
        pytest.skip(f"found {HERE}, which is not supported: make env")


@pytest.mark.usefixtures("real_hosts")
@pytest.mark.parametrize("patch", NEEDED_HERE, ids=lambda patch: patch.id)
def test_the_installed_hosts_are_as_verified_object_by_object(patch: Patch) -> None:
    fingerprints.check(patch, HERE)
    # Again without the short cut for files that are the same: each object is found and has its digest.
    parsed = {
        module: fingerprints.ModuleRecord("other", entry.objects) for module, entry in record_of(HERE).items()
    }
    found = compare(leans_on(patch), parsed, installed_source)
    assert [finding for finding in found if finding.state is not ObjectState.VERIFIED] == []


@pytest.fixture(scope="module")
def changed(real_hosts: None) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", RECORDER],
        env={**os.environ, "ASCEND_SPECPATCH": "0", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("patch", NEEDED_HERE, ids=lambda patch: patch.id)
def test_every_object_of_the_hosts_that_a_patch_changes_is_among_them(
    patch: Patch, changed: dict[str, list[str]]
) -> None:
    covered = leans_on(patch)
    for name in changed[patch.id]:
        assert any(name == known or name.startswith(f"{known}.") for known in covered), name


def test_the_recorder_sees_changes(changed: dict[str, list[str]]) -> None:
    assert changed["worker.lazy_model_runner"] == ["vllm_ascend.worker.worker:NPUModelRunner"]
    assert len([name for names in changed.values() for name in names]) >= 7
