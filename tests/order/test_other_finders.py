# SPDX-License-Identifier: Apache-2.0
"""Finders of others that ask the import system itself, as those of wrapt and of tracers do: each patch is
applied once."""

from __future__ import annotations

import pytest

from .conftest import PATCHED, FakeHosts, visible

WRAPT = """
import wrapt
for name in MODULES:
    wrapt.register_post_import_hook(lambda module: None, name)
"""
TRACER = """
import importlib.util

class Loader:
    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)

class Finder:
    searching = set()

    def find_spec(self, name, path=None, target=None):
        if name in self.searching or not name.startswith("vllm"):
            return None
        self.searching.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader)
        return spec

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("finder", [WRAPT, TRACER], ids=["wrapt", "tracer"])
@pytest.mark.parametrize("first", [True, False], ids=["before us", "after us"])
def test_a_finder_that_asks_the_import_system_itself(fake_hosts: FakeHosts, finder: str, first: bool) -> None:
    arm = "\nascend_specpatch.arm()\n"
    found = fake_hosts.result((finder + arm if first else arm + finder) + "\nprint(json.dumps(state()))")
    assert visible(found) == PATCHED
