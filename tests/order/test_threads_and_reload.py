# SPDX-License-Identifier: Apache-2.0
"""What happens to a process's modules while it runs: threads that import at once, reloads, re-imports, and
packages without an __init__."""

from __future__ import annotations

import pytest

from .conftest import PATCHED, FakeHosts, visible

THREADS = """
import itertools, random, threading
from importlib import import_module

def import_at_once(names):
    barrier, errors = threading.Barrier(len(names)), []
    def importing(name):
        barrier.wait()
        try:
            import_module(name)
        except BaseException as error:
            errors.append(repr(error))
    threads = [threading.Thread(target=importing, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    assert errors == [], errors
"""

TARGETS = ("vllm.proposer", "vllm_ascend.drafter", "vllm_ascend.runner", "vllm_ascend.worker")


@pytest.mark.parametrize("activation", ["ascend_specpatch.arm", "bootstrap.register"])
def test_threads_that_import_different_targets_at_once(fake_hosts: FakeHosts, activation: str) -> None:
    for name in ("vllm/proposer.py", "vllm_ascend/drafter.py", "vllm_ascend/runner.py"):
        path = fake_hosts.folder / name
        path.write_text("import time; time.sleep(0.02)\n" + path.read_text() + "\ntime.sleep(0.02)\n")
    found = fake_hosts.result(
        THREADS
        + f"""
sys.setswitchinterval(1e-5)
{activation}()
import_at_once({TARGETS!r})
print(json.dumps(state()))
"""
    )
    assert visible(found) == PATCHED


@pytest.mark.parametrize("seed", range(3))
def test_threads_that_import_registers_and_targets_in_any_order(fake_hosts: FakeHosts, seed: int) -> None:
    found = fake_hosts.result(
        THREADS
        + f"""
sys.setswitchinterval(1e-5)
ascend_specpatch.arm()
names = [*MODULES, *MODULES, "vllm", "vllm_ascend"]
random.Random({seed}).shuffle(names)
registering = [threading.Thread(target=bootstrap.register) for _ in range(3)]
for thread in registering:
    thread.start()
import_at_once(names)
for thread in registering:
    thread.join(60)
print(json.dumps(state()))
"""
    )
    assert visible(found) == PATCHED


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_that_is_reloaded_is_patched_again(fake_hosts: FakeHosts, target: str) -> None:
    found = fake_hosts.result(
        f"""
        import importlib
        ascend_specpatch.arm()
        state()
        vars(sys.modules["vllm_ascend.worker"]).pop("lazy") if {target!r} == "vllm_ascend.worker" else None
        importlib.reload(sys.modules[{target!r}])
        import vllm_ascend.worker
        proposer = sys.modules["vllm.proposer"]
        drafter = sys.modules["vllm_ascend.drafter"]
        runner = sys.modules["vllm_ascend.runner"]
        print(json.dumps([
            proposer.EagleProposer().who(), proposer.helper(), drafter.Drafter().who(),
            runner.Runner.drafter_class, vllm_ascend.worker.lazy,
        ]))
        """
    )
    assert found == ["ours", "ours, then upstream", "ours", "apply.<locals>.Drafter", True]


def test_a_reload_does_not_patch_twice(fake_hosts: FakeHosts) -> None:
    found = fake_hosts.result(
        """
        import importlib
        ascend_specpatch.arm()
        state()
        from ascend_specpatch import hooks, report
        import vllm.proposer
        for _ in range(3):
            importlib.reload(vllm.proposer)
        once = vllm.proposer.helper()
        applied = list(report.current().applied_order)
        hooks.uninstall()
        importlib.reload(vllm.proposer)
        print(json.dumps([once, sorted(applied) == sorted(set(applied)), vllm.proposer.helper()]))
        """
    )
    assert found == ["ours, then upstream", True, "upstream"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_that_is_imported_anew_is_patched_again(fake_hosts: FakeHosts, target: str) -> None:
    package, _, name = target.rpartition(".")
    found = fake_hosts.result(
        f"""
        from importlib import import_module
        ascend_specpatch.arm()
        state()
        del sys.modules[{target!r}]
        delattr(sys.modules[{package!r}], {name!r})
        new = import_module({target!r})
        ours = {{
            "vllm.proposer": lambda: new.EagleProposer().who() == "ours",
            "vllm_ascend.drafter": lambda: new.Drafter().who() == "ours",
            "vllm_ascend.runner": lambda: new.Runner.drafter_class != "host",
            "vllm_ascend.worker": lambda: new.lazy,
        }}
        print(json.dumps(ours[{target!r}]()))
        """
    )
    assert found is True


def test_targets_in_a_namespace_package(fake_hosts: FakeHosts) -> None:
    """A host has an __init__, its subpackages need not."""
    folder = fake_hosts.folder / "vllm_ascend" / "space"
    folder.mkdir()
    (fake_hosts.folder / "vllm_ascend" / "runner.py").rename(folder / "runner.py")
    for path in (
        fake_hosts.folder / "fake_patches" / "__init__.py",
        fake_hosts.folder / "vllm_ascend/worker.py",
    ):
        path.write_text(path.read_text().replace("vllm_ascend.runner", "vllm_ascend.space.runner"))
    found = fake_hosts.result(
        """
        ascend_specpatch.arm()
        MODULES[3] = "vllm_ascend.space.runner"
        print(json.dumps([state(), sys.modules["vllm_ascend.space"].__file__]))
        """
    )
    assert visible(found[0]) == PATCHED
    assert found[1] is None


def test_a_host_that_is_spread_over_two_folders(fake_hosts: FakeHosts) -> None:
    """A part of it found through an extended __path__, as pkgutil-style namespace packages have."""
    part = fake_hosts.folder / "elsewhere" / "vllm"
    part.mkdir(parents=True)
    (fake_hosts.folder / "vllm" / "proposer.py").rename(part / "proposer.py")
    (fake_hosts.folder / "vllm" / "__init__.py").write_text(f"__path__.append({str(part)!r})\n")
    found = fake_hosts.result("ascend_specpatch.arm()\nprint(json.dumps(state()))")
    assert visible(found) == PATCHED
