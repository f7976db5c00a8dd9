# SPDX-License-Identifier: Apache-2.0
"""What an interpreter that never imports a host has of ours, to the module and to the byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Started without site, so that no startup file of this environment runs but those of one folder.
LOOK = """
import json, os, site, sys, threading
site.addsitedir(sys.argv[1])
ours = [module for name, module in sys.modules.items() if name.partition(".")[0] == "ascend_specpatch"]
print(json.dumps({
    "modules": list(sys.modules),
    "bytes": sum(os.path.getsize(module.__file__) for module in ours),
    "finders": [getattr(finder, "__name__", "") for finder in sys.meta_path],
    "threads": threading.active_count(),
    "environ": sorted(os.environ),
}))
"""


def look(folder: Path, *options: str) -> dict[str, Any]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("ASCEND", "PYTHON"))}
    command = [sys.executable, "-S", *options, "-c", LOOK, str(folder)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def site(tmp_path: Path, checkout: Path) -> Path:
    """A site folder with what the wheel puts there."""
    package = checkout / "ascend_specpatch"
    (tmp_path / "ascend_specpatch").symlink_to(package)
    for startup_file in (package / "startup").iterdir():
        shutil.copy(startup_file, tmp_path)
    return tmp_path


@pytest.mark.parametrize("options", [(), ("-I",), ("-O",), ("-X", "dev")], ids=" ".join)
def test_one_module_of_less_than_8_kib_and_one_finder_is_all(
    site: Path, tmp_path_factory: pytest.TempPathFactory, checkout: Path, options: tuple[str, ...]
) -> None:
    bare = look(tmp_path_factory.mktemp("bare"), *options)
    idle = look(site, *options)
    assert set(idle.pop("modules")) - set(bare.pop("modules")) == {"ascend_specpatch"}
    size = idle.pop("bytes")
    assert size == (checkout / "ascend_specpatch" / "__init__.py").stat().st_size
    assert 0 == bare.pop("bytes") < size < 8 * 1024
    assert idle == {**bare, "finders": ["ascend_specpatch", *bare["finders"]]}
