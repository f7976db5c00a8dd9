# SPDX-License-Identifier: Apache-2.0
"""What an installed but idle package costs at every interpreter start.

    python benchmarks/startup.py [--rounds 200]

Makes one fresh virtual environment for each package (autowrapt and importpatch from the package index, ours
from this checkout), runs ``python -c pass`` in all of them in turn, and prints medians. What a package adds
is the median of the differences to an environment with nothing installed, round by round. Instructions are
counted where valgrind is installed: they do not depend on what else the machine does, as seconds do, those of
the processor less than those of the clock. A benchmark and no test: nothing here fails for being slow.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
OURS = "ascend-specpatch"
BARE = "bare"
PACKAGES = (BARE, "autowrapt", "importpatch", OURS)
COMMAND = ("-c", "pass")
LOADED = """
import os, sys
files = [m.__file__ for n, m in list(sys.modules.items()) if n.partition(".")[0] == "ascend_specpatch"]
print(len(files), sum(os.path.getsize(f) for f in files))
"""


@dataclass
class Environment:
    """A virtual environment and what was measured in it."""

    name: str
    python: Path
    version: str = ""
    milliseconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # milliseconds of the processor
    instructions: int | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of `python -c pass` with idle packages installed.")
    parser.add_argument(
        "--rounds", type=int, default=200, help="runs in each environment (default: %(default)s)"
    )
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="startup-") as folder:
        environments = [make(name, Path(folder)) for name in PACKAGES]
        time_in_turn(environments, rounds)
        count_instructions(environments)
        print(table(environments, rounds))
        modules, size = run(environments[-1].python, "-c", LOADED).split()
        print(f"\nmodules of {OURS} that are loaded at idle: {modules}, {int(size):,} bytes of source")


def make(name: str, folder: Path) -> Environment:
    """A fresh environment with the newest release of a package, or with this checkout's wheel."""
    print(f"installing: {name}", file=sys.stderr)
    venv.create(folder / name, symlinks=True)
    environment = Environment(name, folder / name / "bin" / "python")
    if name != BARE:
        what = name if name != OURS else str(build_wheel(folder / "dist"))
        pip("--python", str(environment.python), "install", what)
        script = f"import importlib.metadata as m; print(m.version({name!r}))"
        environment.version = run(environment.python, "-c", script).strip()
    return environment


def build_wheel(folder: Path) -> Path:
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(CHECKOUT))
    (wheel,) = folder.glob("*.whl")
    return wheel


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", *arguments]
    subprocess.run(command, check=True, cwd=CHECKOUT)


def time_in_turn(environments: list[Environment], rounds: int) -> None:
    """One run of each environment a round, in random order, so that a slow minute slows all of them."""
    order = random.Random(0)
    for number in range(-3, rounds):  # the first ones write .pyc files and fill the page cache
        for environment in order.sample(environments, len(environments)):
            elapsed, cpu = timed(environment.python)
            if number >= 0:
                environment.milliseconds.append(elapsed)
                environment.cpu.append(cpu)
        if number % 50 == 49:
            print(f"timed: {number + 1}/{rounds}", file=sys.stderr)


def timed(python: Path) -> tuple[float, float]:
    """Milliseconds of one run: elapsed, and of the processor."""
    started = time.perf_counter()
    process = subprocess.Popen([str(python), *COMMAND], env=environ())
    _, status, usage = os.wait4(process.pid, 0)
    elapsed = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return 1000 * elapsed, 1000 * (usage.ru_utime + usage.ru_stime)


def count_instructions(environments: list[Environment]) -> None:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        print("no valgrind: instructions are not counted", file=sys.stderr)
        return
    options = ("--tool=callgrind", "--callgrind-out-file=/dev/null")
    for environment in environments:
        print(f"counting instructions: {environment.name}", file=sys.stderr)
        command = [valgrind, *options, str(environment.python), *COMMAND]
        done = subprocess.run(command, env=environ(), capture_output=True, text=True, check=True)
        found = re.search(r"Collected : (\d+)", done.stderr)
        environment.instructions = int(found[1]) if found else None


def run(python: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(python), *arguments], env=environ(), stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def environ() -> dict[str, str]:
    """Nothing that arms a package, and the same hashes in every run."""
    prefixes = ("PYTHON", "AUTOWRAPT", "IMPORTPATCH", "ASCEND_SPECPATCH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, "PYTHONHASHSEED": "0"}


def table(environments: list[Environment], rounds: int) -> str:
    bare = environments[0]
    where = f"Python {platform.python_version()}, {platform.machine()}, {time.strftime('%Y-%m-%d')}"
    head = (
        "installed",
        "time, ms",
        "added, ms",
        "CPU, ms",
        "added CPU, ms",
        "added instructions, millions",
        "ratio",
    )
    lines = [
        f"`python -c pass`, {where}, median of {rounds} runs",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    for environment in environments:
        count = instruction_cells(environment.instructions, bare.instructions)
        name = f"{environment.name} {environment.version}".strip()
        cells = []
        for times, bare_times in ((environment.milliseconds, bare.milliseconds), (environment.cpu, bare.cpu)):
            differences = [one - other for one, other in zip(times, bare_times, strict=True)]
            cells += [f"{statistics.median(times):.2f}", f"{statistics.median(differences):+.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} | {count} |")
    return "\n".join(lines)


def instruction_cells(count: int | None, bare: int | None) -> str:
    if count is None or bare is None:
        return "not counted | not counted"
    return f"{(count - bare) / 1e6:+.2f} | {count / bare:.3f}"


if __name__ == "__main__":
    main()
