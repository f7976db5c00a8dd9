# SPDX-License-Identifier: Apache-2.0
"""What an installation puts into site-packages, what it costs at idle, and that every way to install
activates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ACTIVATES = """
import json, sys
import vllm
from ascend_specpatch import report
import ascend_specpatch.kernels, ascend_specpatch.patches.spec_decode
print(json.dumps([report.current().route, len(report.current().rows()), ascend_specpatch.patches.__file__]))
"""

TOP_LEVEL = """
from importlib.util import find_spec
print(*(find_spec(name) for name in ("patches", "kernels", "tests")))
"""


class Environment:
    """A fresh virtual environment that sees this one's packages, but runs none of their startup files."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        (self.site / "zz_outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.before = set(self.listing())

    def listing(self) -> list[str]:
        return sorted(os.listdir(self.site))

    def added(self) -> set[str]:
        return set(self.listing()) - self.before

    def pip_install(self, *arguments: str, cwd: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.python),
            "install",
            "--no-deps",
            "--no-index",
        ]
        subprocess.run([*command, "--quiet", *arguments], check=True, cwd=cwd, env=_environ())

    def run(self, script: str, cwd: Path, **environ: str) -> str:
        done = subprocess.run(
            [str(self.python), "-c", script],
            cwd=cwd,
            env={**_environ(), **environ},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    def modules(self, cwd: Path, *options: str) -> set[str]:
        """What ``python -c pass`` has imported."""
        script = "import sys; print(*sys.modules)"
        done = subprocess.run(
            [str(self.python), *options, "-c", script],
            cwd=cwd,
            env=_environ(),
            capture_output=True,
            text=True,
            check=True,
        )
        return set(done.stdout.split())


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
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Environment, set[str]]:
    """An environment with the wheel, and what an idle interpreter of it imported before."""
    folder = tmp_path_factory.mktemp("wheel")
    environment = Environment(folder / "venv")
    idle = environment.modules(folder)
    environment.pip_install(str(wheel), cwd=folder)
    return environment, idle


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """Two empty hosts of supported versions."""
    for name, version in (("vllm", "0.16.0"), ("vllm_ascend", "0.16.0rc1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return tmp_path


def test_the_wheel_holds_the_package_and_its_startup_files_and_no_other_top_level_name(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in names} == {
        "ascend_specpatch",
        "ascend_specpatch.pth",
        "ascend_specpatch.start",
        "ascend_specpatch-0.1.0.dist-info",
    }
    assert {
        "ascend_specpatch/patches/__init__.py",
        "ascend_specpatch/kernels/__init__.py",
        "ascend_specpatch/py.typed",
    } <= names
    assert "ascend_specpatch/patches/spec_decode/__init__.py" in names
    assert not [name for name in names if "__pycache__" in name or "startup" in name or "tests" in name]
    assert len({name for name in names if name.endswith("LICENSE")}) == 1


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, checkout: Path, tmp_path: Path) -> None:
    build = "import sys; from hatchling import build; print(getattr(build, sys.argv[1])(sys.argv[2]))"
    command = [sys.executable, "-c", build]
    subprocess.run([*command, "build_sdist", str(tmp_path)], cwd=checkout, check=True, env=_environ())
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("*/pyproject.toml")
    subprocess.run([*command, "build_wheel", str(tmp_path)], cwd=unpacked.parent, check=True, env=_environ())
    (again,) = tmp_path.glob("*.whl")
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_declares_its_dependencies_and_entry_points(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read("ascend_specpatch-0.1.0.dist-info/METADATA").decode()
    required = [line.split(": ")[1] for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert {line.split(">")[0] for line in required if "extra ==" not in line} == {
        "importlib-metadata",
        "packaging",
    }
    assert any(line.startswith("vllm-ascend==0.16.0rc1; extra == ") for line in required)
    entry_points = archive.read("ascend_specpatch-0.1.0.dist-info/entry_points.txt").decode()
    assert "[vllm.general_plugins]\nascend_specpatch = ascend_specpatch.bootstrap:register" in entry_points
    assert "ascend-specpatch = ascend_specpatch.cli:main" in entry_points


def test_the_startup_files_name_the_same_callable(checkout: Path) -> None:
    startup = checkout / "ascend_specpatch" / "startup"
    (pth,) = (startup / "ascend_specpatch.pth").read_text().splitlines()
    (start,) = [
        line
        for line in (startup / "ascend_specpatch.start").read_text().splitlines()
        if not line.startswith("#")
    ]
    module, function = start.split(":")
    assert pth == f"import {module}; {module}.{function}()"


def test_site_packages_gets_no_top_level_patches_kernels_or_tests(
    installed: tuple[Environment, set[str]],
) -> None:
    environment, _ = installed
    assert environment.added() == {
        "ascend_specpatch",
        "ascend_specpatch.pth",
        "ascend_specpatch.start",
        "ascend_specpatch-0.1.0.dist-info",
    }


def test_an_idle_interpreter_imports_one_small_module_more(
    installed: tuple[Environment, set[str]], tmp_path: Path
) -> None:
    environment, idle = installed
    assert environment.modules(tmp_path) - idle == {"ascend_specpatch"}
    assert environment.modules(tmp_path, "-I") - idle == {"ascend_specpatch"}


def test_the_installed_wheel_activates_at_the_import_of_a_host(
    installed: tuple[Environment, set[str]], hosts: Path
) -> None:
    environment, _ = installed
    route, rows, _ = json.loads(environment.run(ACTIVATES, cwd=hosts))
    assert route == "import of vllm"
    assert rows > 0
    assert (
        environment.run(
            "import vllm, sys; print('importlib_metadata' in sys.modules)", cwd=hosts, ASCEND_SPECPATCH="0"
        )
        == "False\n"
    )


def test_the_console_script_runs(installed: tuple[Environment, set[str]], tmp_path: Path) -> None:
    environment, _ = installed
    command = [str(environment.folder / "bin" / "ascend-specpatch"), "--version"]
    done = subprocess.run(command, cwd=tmp_path, env=_environ(), capture_output=True, text=True, check=True)
    assert done.stdout == "ascend-specpatch 0.1.0\n"


def test_an_editable_install_is_one_path_line_and_activates_from_the_checkout(
    checkout: Path, hosts: Path
) -> None:
    environment = Environment(hosts / "venv")
    idle = environment.modules(hosts)
    environment.pip_install("--no-build-isolation", "--editable", str(checkout), cwd=hosts)
    assert environment.added() == {
        "_ascend_specpatch.pth",
        "ascend_specpatch.pth",
        "ascend_specpatch.start",
        "ascend_specpatch-0.1.0.dist-info",
    }
    assert environment.modules(hosts) - idle == {"ascend_specpatch"}
    route, rows, patches = json.loads(environment.run(ACTIVATES, cwd=hosts))
    assert (route, rows > 0) == ("import of vllm", True)
    assert Path(patches).resolve() == checkout / "patches" / "__init__.py"
    assert str(checkout) not in environment.run(TOP_LEVEL, cwd=hosts)


class TestSitecustomize:
    """The checkout on PYTHONPATH."""

    @pytest.fixture
    def environment(self, tmp_path: Path) -> Environment:
        return Environment(tmp_path / "venv")

    def test_it_activates_and_takes_the_checkout_off_the_path(
        self, environment: Environment, checkout: Path, hosts: Path
    ) -> None:
        route, rows, patches = json.loads(environment.run(ACTIVATES, cwd=hosts, PYTHONPATH=str(checkout)))
        assert (route, rows > 0) == ("import of vllm", True)
        assert Path(patches).resolve() == checkout / "patches" / "__init__.py"
        assert str(checkout) not in environment.run(TOP_LEVEL, cwd=hosts, PYTHONPATH=str(checkout))

    def test_the_sitecustomize_it_hides_runs_as_if_it_were_the_only_one(
        self, environment: Environment, checkout: Path, hosts: Path
    ) -> None:
        hidden = hosts / "hidden"
        hidden.mkdir()
        (hidden / "sitecustomize.py").write_text(
            "import sys\nname = __name__\nitself = sys.modules[__name__].__dict__ is globals()\n"
        )
        script = (
            "import sitecustomize as s; print(s.name, s.itself, s.__file__); import vllm; "
            "from ascend_specpatch import report; print(report.current().route)"
        )
        path = os.pathsep.join((str(checkout), str(hidden)))
        assert environment.run(script, cwd=hosts, PYTHONPATH=path).splitlines() == [
            f"sitecustomize True {hidden / 'sitecustomize.py'}",
            "import of vllm",
        ]

    def test_an_error_in_the_hidden_one_is_reported_as_without_us(
        self, environment: Environment, checkout: Path, hosts: Path
    ) -> None:
        (hosts / "hidden").mkdir()
        (hosts / "hidden" / "sitecustomize.py").write_text("import no_such_module\n")

        def stderr(*path: str) -> str:
            command = [str(environment.python), "-c", "import vllm"]
            env = {**_environ(), "PYTHONPATH": os.pathsep.join(path)}
            return subprocess.run(
                command, cwd=hosts, env=env, capture_output=True, text=True, check=True
            ).stderr

        without = stderr(str(hosts / "hidden"))
        assert stderr(str(checkout), str(hosts / "hidden")) == without
