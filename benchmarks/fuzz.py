# SPDX-License-Identifier: Apache-2.0
"""Many random examples of what `make test` tries a few of.

    python benchmarks/fuzz.py [--classes 20000] [--orders 2000] [--seed N]
    python benchmarks/fuzz.py --order 'arm vllm vllm_ascend.worker.worker'

--classes: generated classes, each cloned and compared with a natively written one
(tests/unit/test_classes_property.py). --orders: random import orders on the real hosts with the emulated NPU
(tests/order/real_hosts.py), activated early or late, with some patches off; each must end in the state that
the plainest order with the same settings ends in. --permutations: also every order of that many modules, the
targets first, activated at the start and, for one module fewer, at every other point. A failure prints the
command that repeats it; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.append(str(CHECKOUT))  # last: the checkout's top-level names must not hide anyone's

from tests.order.real_hosts import (  # noqa: E402
    Outcome,
    every_late_order,
    every_order,
    explore,
    random_orders,
    reference,
    without_patches,
)
from tests.order.real_hosts_state import TARGETS  # noqa: E402

PERMUTED = (*TARGETS, "vllm_ascend.spec_decode", "vllm.v1.worker.gpu_model_runner")
CLASSES = "tests/unit/test_classes_property.py"


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Random classes for the class surgery, random import orders for the real hosts."
    )
    parser.add_argument("--classes", type=int, default=20_000, help="number (default: %(default)s)")
    parser.add_argument("--orders", type=int, default=2_000, help="number (default: %(default)s)")
    parser.add_argument("--permutations", type=int, default=0, choices=range(7), help="of how many modules")
    parser.add_argument("--seed", type=int, default=None, help="of both (default: a new one)")
    parser.add_argument("--order", action="append", metavar="STEPS", help="these orders and nothing else")
    asked = parser.parse_args()
    if asked.order:
        return min(1, fuzz_orders([tuple(steps.split()) for steps in asked.order]))
    seed = random.randrange(2**32) if asked.seed is None else asked.seed
    say(f"seed {seed}")
    failures = fuzz_classes(asked.classes, seed) if asked.classes else 0
    orders = random_orders(random.Random(seed), asked.orders)
    if asked.permutations:
        orders += every_order(PERMUTED[: asked.permutations])
        orders += every_late_order(PERMUTED[: asked.permutations - 1])
    failures += fuzz_orders(orders) if orders else 0
    say(f"seed {seed}: {failures} failures")
    return min(1, failures)


def fuzz_classes(count: int, seed: int) -> int:
    """Run the property test with ``count`` examples; 1 where it fails, else 0."""
    started = time.monotonic()
    say(f"classes: {count} examples, about {count / 3600:.0f} minutes")
    command = [sys.executable, "-c", "import pytest; pytest.console_main()", "-q", "-s", CLASSES]
    chosen = {"SPECPATCH_FUZZ_EXAMPLES": str(count), "SPECPATCH_FUZZ_SEED": str(seed)}
    done = subprocess.run(command, cwd=CHECKOUT, env={**os.environ, **chosen}, capture_output=True, text=True)
    told = re.search(r"(\d+) generated classes", done.stdout)
    failed = done.returncode != 0 or told is None or int(told[1]) != count
    if failed:
        print(done.stdout[-20_000:], done.stderr[-2_000:], sep="\n")
        variables = " ".join(f"{name}={value}" for name, value in chosen.items())
        print(f"again: {variables} pytest {CLASSES}", flush=True)
    say(f"classes: {count} examples, {int(failed)} failures, seed {seed} ({elapsed(started)})")
    return int(failed)


def fuzz_orders(orders: Sequence[tuple[str, ...]]) -> int:
    """Explore the orders; the number of those that end in another state than they should."""
    started = time.monotonic()
    references = list(dict.fromkeys(map(reference, orders)))
    say(f"orders: {len(orders)} on the real hosts, with {len(references)} different settings")
    found: dict[tuple[str, ...], Outcome] = {}
    waiting: list[tuple[str, ...]] = []
    wrong: set[tuple[str, ...]] = set()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for outcome in explore([*references, *orders], Path(folder, "log")):
            found[outcome.order] = outcome
            waiting.append(outcome.order)
            # References come first, but not before the first orders of the second process.
            for order in [order for order in waiting if reference(order) in found]:
                waiting.remove(order)
                if text := explain(found[order], found[reference(order)]):
                    wrong.add(order)
                    again = shlex.quote(" ".join(order))
                    say(f"{text}\nagain: python benchmarks/fuzz.py --order {again}")
            if len(found) % 100 == 0:
                say(f"orders: {len(found)} explored, {len(wrong)} failures ({elapsed(started)})")
        failed = {without_patches(order): order for order in wrong if found[order].failed}
        for alone in explore(failed, Path(folder, "alone-log")) if failed else ():
            order = failed[alone.order]
            if alone.failed == found[order].failed:
                wrong.remove(order)
                say(f"no failure, the hosts alone do not import so either: {' '.join(alone.order)}")
    wrong &= set(orders)
    say(f"orders: {len(orders)} explored, {len(wrong)} failures ({elapsed(started)})")
    return len(wrong)


def explain(outcome: Outcome, expected: Outcome) -> str:
    """What is wrong with an outcome, in lines; empty where nothing is."""
    if outcome.crash or outcome.failed:
        return outcome.crash or "\n".join(f"{step}: {error}" for step, error in outcome.failed.items())
    there, here = (json.dumps(each.state, indent=1).splitlines() for each in (expected, outcome))
    wrong = list(difflib.unified_diff(there, here, "expected", "found", lineterm="", n=1))
    if outcome.state["stale"]:
        wrong.append(f"replaced, and still held: {outcome.state['stale']}")
    if refused := [name for name, state in outcome.state["patches"].items() if state == "refused"]:
        wrong.append(f"refused: {', '.join(refused)}")
    return "\n".join(wrong)


def elapsed(started: float) -> str:
    return f"{time.monotonic() - started:.0f} s"


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
