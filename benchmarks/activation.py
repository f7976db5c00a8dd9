# SPDX-License-Identifier: Apache-2.0
"""What planning and applying all patches adds to the start of vLLM.

    python benchmarks/activation.py [--rounds 5]

One process imports vllm and builds an LLM with a tiny model on the emulated NPU (tests/npu_emulator). The
time in this package is counted by function. What it imports counts too, unless a process without the patches
imports it as well: a first process tells which modules those are. Every round is a process of its own. Real
models and devices take longer to start, patching does not.
"""

from __future__ import annotations

import argparse
import functools
import importlib.machinery
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
HOSTS = "hosts"
LOADING = "importing the engine"
# What is timed, with the label under which. What they call that is not here counts for them.
TIMED = (
    ("ascend_specpatch", "find_spec", "waiting for a host"),
    ("ascend_specpatch.bootstrap", "find_host", "waiting for a host"),
    ("ascend_specpatch.bootstrap", "ActivatingLoader.create_module", "waiting for a host"),
    ("ascend_specpatch.bootstrap", "register", "vLLM's entry point"),
    ("ascend_specpatch.watcher", "find_behind", "finding targets"),
    ("ascend_specpatch.hooks", "_plan", "planning"),
    ("ascend_specpatch.hooks", "Activation.advance", "what to apply next; importing the patches"),
    ("ascend_specpatch.hooks", "Activation.settle", "settling"),
    ("ascend_specpatch.hooks", "_announce", "log line and runtime file"),
    ("ascend_specpatch.fingerprints", "check", "verified source"),
    ("ascend_specpatch.aliases", "rebind", "aliases"),
    ("ascend_specpatch.patches.worker.equal_ranks", "check_ranks", "comparing ranks"),
)


class Clock:
    """Gives every moment of one thread to the innermost label.

    Attributes:
        seconds: by label; ``hosts`` is what is nobody else's.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._labels = [HOSTS]
        self._thread = threading.get_ident()
        self._since = time.perf_counter()

    def timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self.switch()
            self._labels.append(label)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch()
                self._labels.pop()

        return call

    def switch(self) -> None:
        """The time up to now belongs to the current label."""
        now = time.perf_counter()
        self.seconds[self._labels[-1]] += now - self._since
        self._since = now


def main() -> None:
    parser = argparse.ArgumentParser(description="The share of patching in the start of vLLM.")
    parser.add_argument("--rounds", type=int, default=5, help="processes (default: %(default)s)")
    rounds = parser.parse_args().rounds
    sys.path.append(str(CHECKOUT))
    from tests import tiny_models

    with tempfile.TemporaryDirectory(prefix="activation-") as folder:
        tiny_models.write(Path(folder), ["pred"])
        in_any_case = Path(folder, "modules.json")
        in_any_case.write_text(json.dumps(run("modules", folder, ASCEND_SPECPATCH="0")))
        found = []
        for number in range(1, rounds + 1):
            found.append(run("measure", folder))
            print(f"round {number}/{rounds}: {100 * share(found[-1]):.2f} %", file=sys.stderr)
    print(table(found))


def run(what: str, folder: str, **environ: str) -> Any:
    """The JSON value that a fresh process ends with."""
    foreign = ("ASCEND_SPECPATCH", "VLLM_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    caches = {"VLLM_CACHE_ROOT": f"{folder}/cache", "XDG_RUNTIME_DIR": folder}
    done = subprocess.run(
        [sys.executable, __file__, what, folder],
        env={**inherited, **ENVIRONMENT, **caches, **environ},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def modules(folder: str) -> None:
    """Tell what a process without the patches imports: with all plugins of vLLM but ours."""
    groups = ("vllm.platform_plugins", "vllm.general_plugins")
    plugins = {point.name for group in groups for point in importlib.metadata.entry_points(group=group)}
    os.environ["VLLM_PLUGINS"] = ",".join(sorted(plugins - {"ascend_specpatch"}))
    start_vllm(folder)
    if "ascend_specpatch.hooks" in sys.modules:
        sys.exit("the patches were not off")
    loaded = (name for name in sys.modules if name.partition(".")[0] != "ascend_specpatch")
    print(json.dumps(sorted(loaded)))


def measure(folder: str) -> None:
    """Tell the seconds by label."""
    in_any_case = set(json.loads(Path(folder, "modules.json").read_text()))
    clock = Clock()
    loader = importlib.machinery.SourceFileLoader
    execute = loader.exec_module
    execute_as_host = clock.timed(HOSTS, execute)

    def exec_module(self: Any, module: Any) -> None:
        (execute_as_host if module.__name__ in in_any_case else execute)(self, module)

    loader.exec_module = exec_module  # type: ignore[method-assign]
    clock.timed(LOADING, time_the_package)(clock)
    start_vllm(folder)
    clock.switch()
    from ascend_specpatch import report

    missing = [row.id for row in report.current().rows() if row.state != "applied"]
    if missing:
        sys.exit(f"not applied: {missing}")
    print(json.dumps(clock.seconds))


def start_vllm(folder: str) -> None:
    from vllm import LLM

    LLM(
        f"{folder}/pred",
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=8,
        num_gpu_blocks_override=64,
    )


def time_the_package(clock: Clock) -> None:
    """Import the engine, as the import of vllm would next, and have its functions timed."""
    from ascend_specpatch import hooks

    for module, name, label in TIMED:
        *path, attribute = name.split(".")
        owner: Any = functools.reduce(getattr, path, importlib.import_module(module))
        setattr(owner, attribute, clock.timed(label, getattr(owner, attribute)))
    apply_of = hooks._apply_of
    hooks._apply_of = lambda patch, edit: clock.timed("the patches themselves", apply_of(patch, edit))


def share(seconds: dict[str, float]) -> float:
    return 1 - seconds[HOSTS] / sum(seconds.values())


def table(rounds: list[dict[str, float]]) -> str:
    labels = sorted({label for seconds in rounds for label in seconds} - {HOSTS})
    medians = {label: statistics.median(seconds.get(label, 0.0) for seconds in rounds) for label in labels}
    total = statistics.median(sum(seconds.values()) for seconds in rounds)
    ours = statistics.median(sum(seconds.values()) - seconds[HOSTS] for seconds in rounds)
    where = f"Python {platform.python_version()}, {platform.machine()}, {time.strftime('%Y-%m-%d')}"
    lines = [
        f"`import vllm` and an LLM of a tiny model, {where}, median of {len(rounds)} runs",
        "",
        "| | ms | of the whole |",
        "|---|---|---|",
        *(
            f"| {label} | {1000 * medians[label]:.1f} | {100 * medians[label] / total:.3f} % |"
            for label in sorted(labels, key=medians.__getitem__, reverse=True)
        ),
        f"| patching, together | {1000 * ours:.1f} | {100 * statistics.median(map(share, rounds)):.2f} % |",
        f"| all | {1000 * total:.0f} | 100 % |",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] in (["modules"], ["measure"]):
        globals()[sys.argv[1]](sys.argv[2])
    else:
        main()
