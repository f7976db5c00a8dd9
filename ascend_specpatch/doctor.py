# SPDX-License-Identifier: Apache-2.0
"""What keeps the patches from working in this environment, and the one command that mends each.

A check looks at files, metadata and variables and imports no host; the last one imports them in a process of
its own, where a host may fail in any way.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path
from typing import Any, Literal

from ascend_specpatch import bootstrap, hosts, processes
from ascend_specpatch.console import load_registry
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.registry import Registry, RegistryError
from ascend_specpatch.settings import PREFIX, Settings, SettingsError, shown

STARTUP_FILE = "ascend_specpatch.pth"
PLUGIN, PLATFORM = "ascend_specpatch", "ascend"  # as VLLM_PLUGINS names them
IMPORT_SECONDS = 600
_REINSTALL = "pip install --force-reinstall --no-deps ascend-specpatch"

Verdict = Literal["ok", "note", "fault"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        verdict: ``fault`` where patches cannot work as asked; ``note`` where something is worth knowing.
        mend: the command that mends it; empty where there is nothing to mend.
    """

    check: str
    verdict: Verdict
    found: str
    mend: str = ""


def examine(*, import_hosts: bool = True) -> list[Finding]:
    """All findings. ``import_hosts``: also import them, in a process of its own, and see what is refused."""
    armed = bootstrap.armed()  # a patch of another distribution may import a host as it is loaded
    loaded: Registry | RegistryError
    try:
        loaded = load_registry()
    except RegistryError as error:
        loaded = error
    checks: list[Callable[[], Iterator[Finding]]] = [
        partial(_settings, loaded),
        _pair,
        partial(_activation, armed),
        partial(_sitecustomize, armed),
        partial(_plugins, armed),
        _triton,
        _custom_ops,
        partial(_providers, loaded),
        _runtime_files,
    ]
    if import_hosts:
        checks.append(_patches)
    return [finding for check in checks for finding in check()]


def _settings(loaded: Registry | RegistryError) -> Iterator[Finding]:
    try:
        settings = Settings.from_environ()
        if isinstance(loaded, Registry):
            loaded.choose(settings, hosts.installed())
    except SettingsError as error:
        yield Finding("settings", "fault", str(error), f"unset {shlex.quote(error.variable)}")
        return
    if not settings.enabled:
        off = shown(os.environ[PREFIX])
        yield Finding("settings", "fault", f"{PREFIX}={off}: everything is off", f"unset {PREFIX}")
        return
    given = sorted(name for name in os.environ if name.startswith(f"{PREFIX}_"))
    text = " ".join(f"{name}={shown(os.environ[name])}" for name in given)
    yield Finding("settings", "ok", text or "all at their defaults")


def _pair() -> Iterator[Finding]:
    pair = hosts.installed()
    if pair in hosts.SUPPORTED:
        yield Finding("hosts", "ok", str(pair))
    else:
        wanted = hosts.SUPPORTED[-1]
        text = f"{pair}; supported: {hosts.supported_text()}"
        yield Finding("hosts", "fault", text, f"pip install {_requirements(wanted)}")


def _requirements(pair: HostPair) -> str:
    return f"vllm=={pair.vllm} vllm-ascend=={pair.vllm_ascend}"


def _activation(armed: bool) -> Iterator[Finding]:
    startup = next((str(place) for place in _site_folders() if place.is_file()), None)
    own = _own_sitecustomize()
    if armed:
        route = startup or own or "an earlier import of ours"
        yield Finding("activation", "ok", f"armed at interpreter start by {route}")
    elif not _has_plugin():
        text = (
            "nothing activates the patches: neither a startup file nor vLLM's plugin entry point is installed"
        )
        yield Finding("activation", "fault", text, _REINSTALL)
    elif startup is not None:
        text = f"{startup} is there, but did not run (python -S or -I?): vLLM's plugin activates late"
        yield Finding("activation", "note", text)
    else:
        text = "no startup file in site-packages: vLLM's plugin activates late"
        yield Finding("activation", "note", text, _REINSTALL)


def _site_folders() -> list[Path]:
    import site

    folders = [*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib")]
    return [Path(folder) / STARTUP_FILE for folder in dict.fromkeys(folders)]


def _has_plugin() -> bool:
    import importlib_metadata

    return bool(importlib_metadata.entry_points(group="vllm.general_plugins", name=PLUGIN))


def _own_sitecustomize() -> str | None:
    """The checkout's ``sitecustomize.py``; None where this package was installed from a wheel."""
    beside = Path(__file__).resolve().parents[1] / "sitecustomize.py"
    return str(beside) if beside.is_file() and "ascend_specpatch" in beside.read_text() else None


def _sitecustomize(armed: bool) -> Iterator[Finding]:
    spec = PathFinder.find_spec("sitecustomize")
    origin = spec.origin if spec is not None else None
    own = _own_sitecustomize()
    if origin is None or (own is not None and Path(origin).resolve() == Path(own)):
        yield Finding("sitecustomize", "ok", "no foreign one")
    elif armed:
        yield Finding("sitecustomize", "ok", f"{origin} (foreign) runs too")
    elif own is None:
        yield Finding("sitecustomize", "note", f"{origin} (foreign) runs at interpreter start")
    else:
        checkout = shlex.quote(str(Path(own).parent))
        text = f"{origin} comes before {own}, which therefore does not run"
        yield Finding("sitecustomize", "fault", text, f"export PYTHONPATH={checkout}:$PYTHONPATH")


def _plugins(armed: bool) -> Iterator[Finding]:
    value = os.environ.get("VLLM_PLUGINS")
    if value is None:
        yield Finding("VLLM_PLUGINS", "ok", "not set")
        return
    named = value.split(",")
    missing = [name for name in (PLATFORM, PLUGIN) if name not in named]
    if not missing:
        yield Finding("VLLM_PLUGINS", "ok", shown(value))
        return
    what = {PLATFORM: "vllm-ascend's platform plugin", PLUGIN: "the plugin of ascend-specpatch"}
    harmless = missing == [PLUGIN] and armed
    text = f"{shown(value)} hides {' and '.join(what[name] for name in missing)}"
    if harmless:
        text += ": the patches work without it, but no process logs their line"
    names = ",".join([*filter(None, named), *missing])
    yield Finding(
        "VLLM_PLUGINS", "note" if harmless else "fault", text, f"export VLLM_PLUGINS={shlex.quote(names)}"
    )


def _triton() -> Iterator[Finding]:
    stock, ascend = hosts.version("triton"), hosts.version("triton-ascend")
    if stock and ascend:
        text = f"triton {stock} and triton-ascend {ascend} write over each other's files"
        mend = f"pip uninstall -y triton triton-ascend && pip install triton-ascend=={ascend}"
        yield Finding("triton", "fault", text, mend)
    elif ascend:
        yield Finding("triton", "ok", f"triton-ascend {ascend}")
    else:
        text = f"triton {stock}, which has no NPU" if stock else "not installed"
        yield Finding(
            "triton", "note", f"{text}: kernels run as torch operators", "pip install triton-ascend"
        )


def _custom_ops() -> Iterator[Finding]:
    spec = PathFinder.find_spec("vllm_ascend")
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    if not folders:
        yield Finding("custom operators", "note", "vllm-ascend is not installed")
        return
    names = [f"vllm_ascend_C{suffix}" for suffix in EXTENSION_SUFFIXES]
    found = [folder / name for folder in folders for name in names if (folder / name).is_file()]
    if found:
        yield Finding("custom operators", "ok", str(found[0]))
        return
    version = hosts.version("vllm-ascend")
    text = f"no {names[0]} in {folders[0]}: vllm-ascend was built without them or for another Python"
    wanted = f"vllm-ascend=={version}" if version else "vllm-ascend"
    yield Finding("custom operators", "fault", text, f"pip install --force-reinstall --no-deps {wanted}")


def _providers(loaded: Registry | RegistryError) -> Iterator[Finding]:
    if isinstance(loaded, RegistryError):
        yield Finding("other patches", "fault", str(loaded), _REINSTALL)
        return
    others = sorted({patch.provider for patch in loaded if patch.provider})
    for problem in loaded.problems:
        distribution = problem.removeprefix("the patches of ").split(" ")[0]
        yield Finding("other patches", "fault", problem, f"pip uninstall -y {shlex.quote(distribution)}")
    if others or not loaded.problems:
        text = f"from {', '.join(others)}" if others else "no other distribution adds any"
        yield Finding("other patches", "ok", text)


def _runtime_files() -> Iterator[Finding]:
    found, problems = processes.read_all()
    for problem in problems:
        yield Finding("running processes", "note", problem)
    if not problems:
        yield Finding("running processes", "ok", f"{len(found)} with patches")
    for process in found:
        for row in process.report.get("patches", ()):
            if row["state"] == "refused":
                text = f"{row['id']} in {process.name} ({process.pid}): {row['reason']}"
                yield Finding("running processes", "fault", text, _explain(row["id"]))


def _patches() -> Iterator[Finding]:
    script = (
        "import sys; from ascend_specpatch.cli import main; sys.exit(main(['status', '--import', '--json']))"
    )
    environ = dict(os.environ)
    if environ.get("PYTHONPATH"):  # may be relative to this folder
        places = environ["PYTHONPATH"].split(os.pathsep)
        environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, places))
    try:
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=IMPORT_SECONDS,
            env=environ,
            cwd="/",  # not where modules of other projects may lie
        )
    except subprocess.TimeoutExpired:
        yield Finding("patches", "fault", f"importing the hosts took over {IMPORT_SECONDS} s", _LOOK)
        return
    try:
        # The report is the last that is there, behind what a startup file may have printed.
        value: dict[str, Any] = json.loads(done.stdout[done.stdout.rindex('{\n  "') :])
    except ValueError:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        yield Finding("patches", "fault", f"importing the hosts ended with {done.returncode}: {last}", _LOOK)
        return
    rows = value["patches"]
    states = [row["state"] for row in rows]
    for row in rows:
        if row["state"] in ("refused", "waiting"):
            text = f"{row['id']} is {row['state']}: {row['reason'] or 'its module was not loaded'}"
            yield Finding("patches", "fault", text, _explain(row["id"]))
        for note in row["notes"]:
            yield Finding("patches", "note", f"{row['id']}: {note}")
    if not {"refused", "waiting"} & set(states):
        counts = [f"{states.count(state)} {state.replace('_', ' ')}" for state in dict.fromkeys(states)]
        yield Finding("patches", "ok", ", ".join(counts))


def _explain(patch_id: str) -> str:
    return f"ascend-specpatch explain {shlex.quote(patch_id)}"


_LOOK = "python -c 'import vllm_ascend.worker.worker'"
