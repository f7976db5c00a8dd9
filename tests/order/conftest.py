# SPDX-License-Identifier: Apache-2.0
"""Small hosts named vllm and vllm_ascend, written to a folder, and fresh interpreters that import them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

PROPOSER = """
class EagleProposer:
    def who(self):
        return "upstream"

def helper():
    return "upstream"
"""

HOSTS = {
    "vllm/__init__.py": "",
    "vllm/proposer.py": PROPOSER,
    "vllm/user.py": """
        from vllm.proposer import EagleProposer, helper

        class Sub(EagleProposer):
            pass
        """,
    "vllm_ascend/__init__.py": "",
    "vllm_ascend/drafter.py": """
        from vllm.proposer import helper

        class Drafter:
            def who(self):
                return "ascend"

            @staticmethod
            def fixed():
                return "ascend"
        """,
    "vllm_ascend/runner.py": """
        from vllm_ascend.drafter import Drafter

        class Special(Drafter):
            pass

        class Runner:
            drafter_class = "host"
        """,
    "vllm_ascend/worker.py": "from vllm_ascend.runner import Runner\n",
}

PATCHES = {
    "fake_patches/__init__.py": """
        from ascend_specpatch.registry import Patch

        PATCHES = (
            Patch("worker.lazy", "vllm_ascend.worker", "a flag", implementation="fake_patches.worker"),
            Patch("spec_decode.upstream", "vllm.proposer", "class, helper",
                  implementation="fake_patches.upstream"),
            Patch("spec_decode.drafter", "vllm_ascend.drafter", "class", requires=("spec_decode.upstream",),
                  implementation="fake_patches.drafter"),
            Patch("model_runner.runner", "vllm_ascend.runner", "attribute", requires=("spec_decode.drafter",),
                  implementation="fake_patches.runner"),
        )
        """,
    "fake_patches/worker.py": """
        def apply(edit):
            edit.set(edit.module, "lazy", True)
        """,
    "fake_patches/upstream.py": """
        def apply(edit):
            upstream = edit.module.EagleProposer

            class EagleProposer:
                def who(self):
                    return "ours"

            EagleProposer.__module__ = upstream.__module__
            edit.set(edit.module, "EagleProposer", EagleProposer)
            edit.set(edit.module, "_upstream_helper", edit.module.helper)
            edit.set(edit.module, "helper", lambda: "ours, then " + edit.module._upstream_helper())
        """,
    "fake_patches/drafter.py": """
        def apply(edit):
            class Drafter(edit.module.Drafter):
                def who(self):
                    return "ours"

            edit.set(edit.module, "Drafter", Drafter)
        """,
    "fake_patches/runner.py": """
        def apply(edit):
            edit.set(edit.module.Runner, "drafter_class", edit.module.Drafter.__qualname__)
        """,
}

PRELUDE = """
import json, os, sys
import fake_patches
sys.modules["ascend_specpatch.patches"] = fake_patches
import ascend_specpatch
from ascend_specpatch import bootstrap
bootstrap.disarm()  # a test says itself what activates
MODULES = ["vllm.proposer", "vllm.user", "vllm_ascend.drafter", "vllm_ascend.runner", "vllm_ascend.worker"]

def applied():
    from ascend_specpatch import report
    return report.current().applied_order

def state():
    from importlib import import_module
    from ascend_specpatch import report
    proposer, user, drafter, runner, worker = map(import_module, MODULES)
    same = user.EagleProposer is proposer.EagleProposer
    return {
        "upstream": [proposer.EagleProposer().who(), user.Sub().who(), same],
        "helper": [proposer.helper(), user.helper(), drafter.helper()],
        "drafter": [drafter.Drafter().who(), runner.Drafter().who(), runner.Special().who()],
        "runner": [runner.Runner.drafter_class, worker.Runner is runner.Runner],
        "worker": getattr(worker, "lazy", False),
        "digest": report.current().digest(),
        "states": {row.id: str(row.state) for row in report.current().rows()},
    }
"""

PATCHED = {
    "upstream": ["ours", "ours", True],
    "helper": ["ours, then upstream"] * 3,
    "drafter": ["ours"] * 3,
    "runner": ["apply.<locals>.Drafter", True],
    "worker": True,
}
UNPATCHED = {
    "upstream": ["upstream", "upstream", True],
    "helper": ["upstream"] * 3,
    "drafter": ["ascend"] * 3,
    "runner": ["host", True],
    "worker": False,
}


def visible(state: dict[str, Any]) -> dict[str, Any]:
    """What of a state lies in the hosts."""
    return {name: state[name] for name in PATCHED}


class FakeHosts:
    """A folder with hosts, their metadata and patches for them."""

    def __init__(self, folder: Path, checkout: Path) -> None:
        self.folder = folder
        self.checkout = checkout
        self.write({**HOSTS, **PATCHES})
        self.install("vllm", "0.16.0")
        self.install("vllm-ascend", "0.16.0rc1")

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))

    def install(self, name: str, version: str) -> None:
        """Pretend that ``version`` of a distribution is the installed one."""
        for stale in self.folder.glob(f"{name.replace('-', '_')}-*.dist-info/METADATA"):
            stale.unlink()
            stale.parent.rmdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        self.write({f"{name.replace('-', '_')}-{version}.dist-info/METADATA": metadata})

    def run(self, script: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the prelude and ``script`` as a program in a fresh interpreter."""
        program = self.folder / "program.py"
        program.write_text(PRELUDE + dedent(script))
        clean = {
            k: v for k, v in os.environ.items() if not k.startswith(("ASCEND_SPECPATCH", "VLLM_", "PYTHON"))
        }
        path = os.pathsep.join((str(self.folder), str(self.checkout / ".editable")))
        return subprocess.run(
            [sys.executable, str(program)],
            env={**clean, "PYTHONPATH": path, "PYTHONWARNINGS": "error", **environ},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def result(self, script: str, **environ: str) -> Any:
        """The JSON value that ``script`` prints as its last line; it must succeed."""
        done = self.run(script, **environ)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def fake_hosts(tmp_path: Path, checkout: Path) -> FakeHosts:
    return FakeHosts(tmp_path, checkout)
