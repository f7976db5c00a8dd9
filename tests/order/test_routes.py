# SPDX-License-Identifier: Apache-2.0
"""The table of docs/activation.md: by which route which kind of process comes to be patched.

Each row is an installation, or a way to start Python, and is run once: a small host with vLLM's processes is
started as `vllm serve` is, its engine core and workers by fork and by spawn, its model registry as a program
of its own. Real Ray starts a worker in each. What a process says of itself is what the table must say.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

MARKED = re.compile(r"<!-- routes -->\n(.*?)<!-- /routes -->", re.DOTALL)

AT_START, LATE, NO = "yes", "yes, by the plugin", "no"

KINDS = {
    "main": "API server",
    "core fork": "engine core, fork",
    "core spawn": "engine core, spawn",
    "worker fork": "worker, fork",
    "worker spawn": "worker, spawn",
    "registry": "model registry",
}
RAY_KIND = "Ray worker"

HOSTS = {
    "vllm/__init__.py": "",
    "vllm/worker.py": "patched = False\n",
    "vllm/plugins.py": """
        from importlib.metadata import entry_points
        loaded = False

        def load_general_plugins():
            global loaded
            if not loaded:
                loaded = True
                for point in entry_points(group="vllm.general_plugins"):
                    try:
                        plugin = point.load()
                    except ImportError:  # vLLM logs it
                        continue
                    plugin()
        """,
    "vllm/processes.py": """
        import json, multiprocessing, subprocess, sys
        from vllm.plugins import load_general_plugins

        def describe():
            load_general_plugins()
            import vllm.worker
            route = ""
            if "ascend_specpatch.report" in sys.modules:
                route = sys.modules["ascend_specpatch.report"].current().route
            return [vllm.worker.patched, route]

        def started(method, target):
            context = multiprocessing.get_context(method)
            queue = context.SimpleQueue()
            process = context.Process(target=target, args=(method, queue))
            process.start()
            process.join()
            assert process.exitcode == 0, (method, target)
            return queue.get()

        def worker(method, queue):
            queue.put({f"worker {method}": describe()})

        def core(method, queue):
            queue.put({f"core {method}": describe(), **started(method, worker)})

        def registry():
            command = [sys.executable, "-m", "vllm.registry"]  # as vLLM does: without this one's options
            return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        """,
    "vllm/registry.py": """
        import json
        from vllm.processes import describe
        print(json.dumps(describe()))
        """,
    "vllm/serve.py": """
        import json
        from vllm import processes
        if __name__ == "__main__":
            spawned = processes.started("spawn", processes.core)  # before anything is loaded here
            found = {"main": processes.describe(), "registry": processes.registry(), **spawned}
            print(json.dumps({**found, **processes.started("fork", processes.core)}))
        """,
    "probe_patch.py": """
        from ascend_specpatch.registry import Patch
        LEANS_ON = ()
        patch = Patch("worker.probe", "vllm.worker", "a flag", implementation="probe_patch")

        def apply(edit):
            edit.set(edit.module, "patched", True)
        """,
    "vllm-0.16.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.16.0\n",
    "vllm_ascend-0.16.0rc1.dist-info/METADATA": (
        "Metadata-Version: 2.1\nName: vllm-ascend\nVersion: 0.16.0rc1\n"
    ),
    "probe_patch-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: probe-patch\nVersion: 1\n",
    "probe_patch-1.dist-info/entry_points.txt": "[ascend_specpatch.patches]\nprobe = probe_patch:patch\n",
}


class Installation:
    """An environment with the small host, which finds what it needs besides behind its own packages."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        self.outer = sysconfig.get_path("purelib")
        (self.site / "zz_outer.pth").write_text(f"{self.outer}\n")
        for name, text in HOSTS.items():
            path = self.site / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(dedent(text))

    def pip_install(self, *arguments: str) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        subprocess.run(
            [*pip, "--no-deps", "--no-index", "--no-build-isolation", *arguments], check=True, env=_environ()
        )

    def serve(self, options: tuple[str, ...] = (), path: tuple[str, ...] = ()) -> dict[str, str]:
        """What becomes of each kind of process, in the table's words."""
        environ = _environ()
        if path:
            environ["PYTHONPATH"] = os.pathsep.join(path)
        done = subprocess.run(
            [str(self.python), *options, "-m", "vllm.serve"],
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        return {KINDS[kind]: _word(*found[kind]) for kind in KINDS}


def _word(patched: bool, route: str) -> str:
    return {"import of vllm": AT_START, "vllm.general_plugins": LATE}[route] if patched else NO


def _environ() -> dict[str, str]:
    return {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("ASCEND_SPECPATCH", "PYTHON", "VLLM_", "PIP_"))
    }


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-c", build, str(folder)],
        cwd=checkout,
        check=True,
        env=_environ(),
        stdout=subprocess.PIPE,
    )
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The host alone."""
    return Installation(tmp_path_factory.mktemp("bare") / "venv")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The host and our wheel."""
    installation = Installation(tmp_path_factory.mktemp("wheel") / "venv")
    installation.pip_install(str(wheel))
    return installation


@pytest.fixture(scope="module")
def without_pth(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The host and our wheel without its startup files."""
    installation = Installation(tmp_path_factory.mktemp("entry-point") / "venv")
    installation.pip_install(str(wheel))
    for suffix in ("pth", "start"):
        (installation.site / f"ascend_specpatch.{suffix}").unlink()
    return installation


@pytest.fixture(scope="module")
def editable(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    installation = Installation(tmp_path_factory.mktemp("editable") / "venv")
    installation.pip_install("--editable", str(checkout))
    return installation


@dataclass(frozen=True)
class Route:
    """An installation (the name of its fixture), the options of Python and what PYTHONPATH holds."""

    installation: str
    options: tuple[str, ...] = ()
    path: str = ""

    def entries(self, request: pytest.FixtureRequest) -> tuple[str, ...]:
        installation: Installation = request.getfixturevalue(self.installation)
        if self.path == "site-packages":
            return str(installation.site), installation.outer
        if self.path == "checkout":
            return (str(request.getfixturevalue("checkout")),)
        if self.path == "zip":
            return (str(shutil.copy(request.getfixturevalue("wheel"), installation.folder / "ours.zip")),)
        return ()


ROUTES = {
    "the wheel": Route("installed"),
    "the wheel, `python -I`": Route("installed", ("-I",)),
    "the wheel, `python -s`": Route("installed", ("-s",)),
    "the wheel, `python -O`": Route("installed", ("-O",)),
    # -S leaves out site-packages: whoever starts Python like that puts them on the path by other means.
    "the wheel, `python -S`, site-packages on `PYTHONPATH`": Route("installed", ("-S",), "site-packages"),
    "the wheel without its `.pth`": Route("without_pth"),
    "the wheel without its `.pth`, `python -I`": Route("without_pth", ("-I",)),
    "the package in a zip file on `PYTHONPATH`": Route("bare", (), "zip"),
    "an editable install": Route("editable"),
    "an editable install, `python -I`": Route("editable", ("-I",)),
    "the checkout on `PYTHONPATH`": Route("bare", (), "checkout"),
    "the checkout on `PYTHONPATH`, `python -O`": Route("bare", ("-O",), "checkout"),
    "the checkout on `PYTHONPATH`, `python -I`": Route("bare", ("-I",), "checkout"),
}

# Ray starts its workers with the Python that `ray start` ran in, without the options of any other process.
RAY = """
import json, sys
import ray

def ask():
    from vllm.processes import describe
    return describe()

def main():
    routes = json.load(sys.stdin)
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80 << 20, _temp_dir=sys.argv[1])
    environments = [
        {"py_executable": python, "env_vars": {"PYTHONPATH": path} if path else {}} for python, path in routes
    ]
    remote = ray.remote(max_retries=0)(ask)
    print(json.dumps(ray.get([remote.options(runtime_env=e).remote() for e in environments], timeout=300)))
    ray.shutdown()

main()
"""


@pytest.fixture(scope="module")
def under_ray(request: pytest.FixtureRequest) -> dict[str, str]:
    """Route -> what becomes of a worker that real Ray starts there."""
    pytest.importorskip("ray")
    found = [
        (
            str(request.getfixturevalue(route.installation).python),
            os.pathsep.join(route.entries(request)),
        )
        for route in ROUTES.values()
    ]
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        done = subprocess.run(
            [sys.executable, "-c", RAY, folder],
            cwd=request.getfixturevalue("bare").folder,
            env={**_environ(), **loopback, "RAY_USAGE_STATS_ENABLED": "0"},
            input=json.dumps(found),
            capture_output=True,
            text=True,
            timeout=400,
        )
    assert done.returncode == 0, done.stderr
    answers = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[[")))
    return {route: _word(*answer) for route, answer in zip(ROUTES, answers, strict=True)}


def documented(checkout: Path) -> dict[str, dict[str, str]]:
    """The table of docs/activation.md: route -> kind of process -> word."""
    marked = MARKED.search((checkout / "docs" / "activation.md").read_text())
    assert marked is not None, "docs/activation.md has no table between <!-- routes --> and <!-- /routes -->"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in marked[1].splitlines() if line]
    header, _, *rows = cells
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}


@pytest.mark.parametrize("route", ROUTES)
def test_each_process_is_patched_as_the_table_says(
    route: str, request: pytest.FixtureRequest, checkout: Path
) -> None:
    row = ROUTES[route]
    found = request.getfixturevalue(row.installation).serve(row.options, row.entries(request))
    assert {kind: word for kind, word in documented(checkout)[route].items() if kind != RAY_KIND} == found


def test_each_ray_worker_is_patched_as_the_table_says(under_ray: dict[str, str], checkout: Path) -> None:
    assert {route: row[RAY_KIND] for route, row in documented(checkout).items()} == under_ray


def test_the_table_has_no_other_rows_and_columns(checkout: Path) -> None:
    table = documented(checkout)
    assert list(table) == list(ROUTES)
    assert all([*KINDS.values(), RAY_KIND] == list(row) for row in table.values())
