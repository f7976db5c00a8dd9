# SPDX-License-Identifier: Apache-2.0
"""uninstall() gives the hosts back exactly, and a later activation starts anew."""

from __future__ import annotations

import pytest

from .conftest import PATCHED, FakeHosts, visible

SNAPSHOT = """
PASSING = ("__doc__", "__dict__", "__weakref__")

def snapshot():
    from importlib import import_module
    found = {}
    for name in MODULES:
        for key, value in vars(import_module(name)).items():
            if key.startswith("__"):
                continue
            found[name, key] = id(value)
            if isinstance(value, type):
                found[name, key, "bases"] = [id(base) for base in value.__bases__]
                found[name, key, "members"] = {k: id(v) for k, v in vars(value).items() if k not in PASSING}
    return found
"""


@pytest.mark.parametrize("rounds", [1, 3])
def test_every_object_of_the_hosts_is_the_one_it_was(fake_hosts: FakeHosts, rounds: int) -> None:
    found = fake_hosts.result(
        SNAPSHOT
        + f"""
before = snapshot()
same, states = [], []
from ascend_specpatch import hooks, report
for _ in range({rounds}):
    bootstrap.register()
    states.append(state())
    assert snapshot() != before
    hooks.uninstall()
    same.append(snapshot() == before and report.current().rows() == () and not bootstrap.armed())
print(json.dumps([same, states]))
"""
    )
    same, states = found
    assert same == [True] * rounds
    assert [visible(state) for state in states] == [PATCHED] * rounds
    assert all(state == states[0] for state in states)


def test_what_loads_after_an_uninstall_is_not_patched(fake_hosts: FakeHosts) -> None:
    found = fake_hosts.result(
        """
        ascend_specpatch.arm()
        import vllm
        from ascend_specpatch import hooks
        hooks.uninstall()
        import vllm.proposer
        first = vllm.proposer.EagleProposer().who()
        bootstrap.register()
        print(json.dumps([first, vllm.proposer.EagleProposer().who()]))
        """
    )
    assert found == ["upstream", "ours"]
