# SPDX-License-Identifier: Apache-2.0
"""The wheel, installed beside the hosts, is all that the stock example needs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from ascend_specpatch import __version__
from tests.e2e.host import NEEDED

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with the hosts and our wheel; the checkout's editable install is not active in it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", build, str(folder)], cwd=CHECKOUT, check=True, capture_output=True, text=True
    )
    wheel = folder / built.stdout.split()[-1]
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "env")}))
    # Modules of the hosts' environment are found behind those of the new one; its .pth lines do not run.
    (site_packages / "hosts.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ["install", "--quiet", "--no-deps", "--no-index", "--prefix", str(folder / "env"), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    return python


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), *arguments],
        env={**os.environ, "VLLM_LOGGING_LEVEL": "INFO", "VLLM_NO_USAGE_STATS": "1"},
        cwd=python.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_it_is_the_wheel_that_runs_and_not_the_checkout(python: Path) -> None:
    code = (
        "import ascend_specpatch.patches as p, importlib.util as u; print(p.__file__, u.find_spec('patches'))"
    )
    path, other = run(python, "-c", code).stdout.split()
    assert Path(path).is_relative_to(python.parents[1])
    assert other == "None"


def test_the_stock_example_speculates_with_the_wheel(python: Path, models: Path) -> None:
    script = str(CHECKOUT / "examples" / "offline_draft_model.py")
    options = ["--dtype", "float32", "--max-model-len", "512", "--enforce-eager", "--max-tokens", "16"]
    names = ["--model", str(models / "pred"), "--draft-model", str(models / "pred_draft")]
    done = run(python, script, *names, *options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("  equal: yes") == 4
    assert "\nequal: yes\n" in done.stdout
    assert f"ascend-specpatch {__version__}: {len(NEEDED)} patches" in done.stdout + done.stderr
    assert "hosts: vllm 0.16.0, vllm-ascend 0.16.0rc1" in done.stdout
