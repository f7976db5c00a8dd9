# SPDX-License-Identifier: Apache-2.0
"""Whatever is imported first, and whoever took an object early, a process ends in the same state."""

from __future__ import annotations

import json
from itertools import permutations

from .conftest import PATCHED, PROPOSER, UNPATCHED, FakeHosts, visible

# One interpreter, a fork for each order: an interpreter start costs more than what is tested.
EVERY_ORDER = """
from importlib import import_module
from itertools import permutations
import wrapt, importlib_metadata, packaging.version
for order in permutations(MODULES):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        before(order)
        print(json.dumps(state()), file=os.fdopen(writer, "w"), flush=True)
        os._exit(0)
    os.close(writer)
    print(os.fdopen(reader).read(), end="")
    assert os.waitpid(child, 0)[1] == 0, order
"""

ORDERS = len(list(permutations(range(5))))


def _states(fake_hosts: FakeHosts, before: str) -> list[dict[str, object]]:
    done = fake_hosts.run(before + EVERY_ORDER)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_order_of_imports_ends_in_the_same_patched_state(fake_hosts: FakeHosts) -> None:
    states = _states(
        fake_hosts,
        """
def before(order):
    ascend_specpatch.arm()
    for name in order:
        import_module(name)
""",
    )
    assert len(states) == ORDERS
    assert all(state == states[0] for state in states)
    assert visible(states[0]) == PATCHED
    assert set(states[0]["states"].values()) == {"applied"}


def test_late_activation_after_any_order_ends_in_the_same_state_as_early(fake_hosts: FakeHosts) -> None:
    early = fake_hosts.result("ascend_specpatch.arm(); print(json.dumps(state()))")
    states = _states(
        fake_hosts,
        """
def before(order):
    for name in order[:3]:
        import_module(name)
    bootstrap.register()
    for name in order[3:]:
        import_module(name)
""",
    )
    assert len(states) == ORDERS
    assert all(state == early for state in states)


def test_an_importer_that_took_a_name_from_a_module_still_loading_gets_the_new_one(
    fake_hosts: FakeHosts,
) -> None:
    fake_hosts.write(
        {
            "vllm/early.py": "from vllm.proposer import EagleProposer\nclass Sub(EagleProposer): pass\n",
            "vllm/proposer.py": PROPOSER + "from vllm import early\n",
        }
    )
    found = fake_hosts.result(
        """
        ascend_specpatch.arm()
        import vllm.proposer, vllm.early
        same = vllm.early.EagleProposer is vllm.proposer.EagleProposer
        print(json.dumps([same, vllm.early.Sub().who()]))
        """
    )
    assert found == [True, "ours"]


def test_a_requirement_whose_module_is_still_loading_is_waited_for(fake_hosts: FakeHosts) -> None:
    # The requirement's module imports the dependent's: when the latter has loaded, the former cannot be
    # patched yet.
    fake_hosts.write({"vllm/proposer.py": "import vllm_ascend.drafter\n" + PROPOSER})
    fake_hosts.write({"vllm_ascend/drafter.py": "class Drafter: pass\n"})
    found = fake_hosts.result(
        """
        ascend_specpatch.arm()
        import vllm.proposer
        print(json.dumps(applied()))
        """
    )
    assert found == ["spec_decode.upstream", "spec_decode.drafter"]


def test_the_target_of_a_requirement_is_imported_first(fake_hosts: FakeHosts) -> None:
    fake_hosts.write({"vllm_ascend/drafter.py": "class Drafter: pass\n"})
    found = fake_hosts.result(
        """
        ascend_specpatch.arm()
        import vllm_ascend.drafter
        print(json.dumps([applied(), "vllm.user" in sys.modules]))
        """
    )
    assert found == [["spec_decode.upstream", "spec_decode.drafter"], False]


def test_patches_on_one_target_are_applied_in_the_listed_order_even_if_one_must_wait(
    fake_hosts: FakeHosts,
) -> None:
    fake_hosts.write(
        {
            "fake_patches/__init__.py": """
                from ascend_specpatch.registry import Patch
                def on(name, target, *requires):
                    name = f"spec_decode.{name}"
                    return Patch(name, target, "", requires, implementation="fake_patches.nothing")
                PATCHES = (
                    on("a", "vllm.user"),
                    on("b", "vllm.proposer"),
                    on("c", "vllm.user", "spec_decode.b"),
                    on("d", "vllm.user"),
                )
                """,
            "fake_patches/nothing.py": "def apply(edit): pass\n",
            "vllm/proposer.py": "import vllm.user\n",
            "vllm/user.py": "",
        }
    )
    found = fake_hosts.result(
        """
        ascend_specpatch.arm()
        import vllm.proposer
        print(json.dumps(applied()))
        """
    )
    assert found == [f"spec_decode.{name}" for name in "abcd"]


def test_the_host_package_itself_can_be_a_target(fake_hosts: FakeHosts) -> None:
    fake_hosts.write(
        {
            "fake_patches/__init__.py": """
                from ascend_specpatch.registry import Patch
                PATCHES = (Patch("worker.top", "vllm", "", implementation="fake_patches.worker"),)
                """
        }
    )
    assert fake_hosts.result("ascend_specpatch.arm(); import vllm; print(json.dumps(vllm.lazy))") is True


def test_threads_that_import_targets_at_once_neither_deadlock_nor_apply_twice(
    fake_hosts: FakeHosts,
) -> None:
    slow = "import time; time.sleep(0.05)\n"
    fake_hosts.write({name: slow + (fake_hosts.folder / name).read_text() for name in PATCHED_FILES})
    found = fake_hosts.result(
        """
        import threading
        from importlib import import_module
        ascend_specpatch.arm()
        barrier = threading.Barrier(len(MODULES))
        errors = []
        def load(name):
            try:
                barrier.wait()
                import_module(name)
            except Exception as error:
                errors.append(repr(error))
        threads = [threading.Thread(target=load, args=(name,)) for name in MODULES]
        for thread in threads: thread.start()
        for thread in threads: thread.join(30)
        print(json.dumps([errors, sorted(applied()), state()]))
        """
    )
    errors, ids, state = found
    assert errors == []
    assert ids == sorted(state["states"])
    assert visible(state) == PATCHED


PATCHED_FILES = [
    "vllm/proposer.py",
    "vllm_ascend/drafter.py",
    "vllm_ascend/runner.py",
    "fake_patches/upstream.py",
    "fake_patches/drafter.py",
]


def test_off_means_that_the_hosts_are_imported_as_they_are(fake_hosts: FakeHosts) -> None:
    state = fake_hosts.result(
        "ascend_specpatch.arm(); bootstrap.register(); print(json.dumps(state()))", ASCEND_SPECPATCH="0"
    )
    assert visible(state) == UNPATCHED
    assert set(state["states"].values()) == {"off"}
