# SPDX-License-Identifier: Apache-2.0
"""A target that is loaded again keeps what its code does not set anew: that is patched once all the same."""

from __future__ import annotations

import pytest

from .conftest import FakeHosts

KEPT_FUNCTION = """
if "helper" not in globals():
    def helper():
        return "upstream"
"""
KEPT_CLASS = """
if "Runner" not in globals():
    class Runner:
        def name(self):
            return "upstream"

def helper():
    return Runner().name()
"""
RELOADS_ITSELF = """
import importlib, sys

def helper():
    return "upstream"

if "again" not in globals():
    again = True
    importlib.reload(sys.modules[__name__])
"""
WRAP_FUNCTION = """
def apply(edit):
    old = edit.module.helper
    edit.set(edit.module, "helper", lambda: f"ours({old()})")
"""
WRAP_METHOD = """
def apply(edit):
    old = edit.module.Runner.name
    edit.set(edit.module.Runner, "name", lambda self: f"ours({old(self)})")
"""


@pytest.mark.parametrize(
    ("source", "patch"),
    [(KEPT_FUNCTION, WRAP_FUNCTION), (KEPT_CLASS, WRAP_METHOD), (RELOADS_ITSELF, WRAP_FUNCTION)],
)
def test_what_a_reload_keeps_is_not_patched_twice(fake_hosts: FakeHosts, source: str, patch: str) -> None:
    fake_hosts.write({"vllm/proposer.py": source, "fake_patches/upstream.py": patch})
    found = fake_hosts.result(
        """
        import importlib
        ascend_specpatch.arm()
        import vllm.proposer
        first = vllm.proposer.helper()
        importlib.reload(vllm.proposer)
        print(json.dumps([first, vllm.proposer.helper()]))
        """
    )
    assert found == ["ours(upstream)"] * 2
