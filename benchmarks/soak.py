# SPDX-License-Identifier: Apache-2.0
"""Random traffic through one engine with each method of speculative decoding.

    python benchmarks/soak.py [--count 2000] [--seed N] [METHOD ...]

Requests of random length, sampling and arrival, some of which are abandoned, on the emulated NPU with fresh
memory poisoned. Every greedy request must give the text of its plain run, every request an answer, and the
engine must end up holding nothing: no KV block, no request. The table says what was done; a fault is printed
with the request it happened to, and the exit status is 1. The seed repeats a run.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.append(str(CHECKOUT))

from tests import tiny_models  # noqa: E402
from tests.e2e import soak  # noqa: E402
from tests.e2e.harness import Harness  # noqa: E402

COLUMNS = (
    *("method", "greedy", "sampled", "abandoned", "steps", "preempted", "drafted", "accepted"),
    *("blocks missing", "seconds", "faults"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"of: {', '.join(soak.METHODS)}")
    parser.add_argument("--count", type=int, default=2000, help="requests for each method")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    if unknown := set(arguments.methods) - set(soak.METHODS):
        parser.error(f"no such method: {', '.join(sorted(unknown))}")
    print(f"{arguments.count} requests for each method, --seed {arguments.seed}\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        tiny_models.write(folder / "models")
        harness = Harness(folder / "models", folder, folder / "vllm")
        try:
            faults = [
                f"{method}: {fault}"
                for method in arguments.methods or soak.METHODS
                for fault in run(harness, method, arguments.seed, arguments.count)
            ]
        finally:
            harness.close()
    print("\n".join(faults), file=sys.stderr)
    sys.exit(1 if faults else 0)


def run(harness: Harness, method: str, seed: int, count: int) -> list[str]:
    """Print a row of the table; returns the faults."""
    case = soak.case(method, seed, count)
    outcome, plain = harness.run(case), harness.run(soak.plain(case))
    faults = soak.faults(case, outcome, plain)
    if outcome.error is None and plain.error is None:
        greedy = len(plain.answers)
        cells = (
            *(method, greedy, count - greedy, sum(answer["aborted"] for answer in outcome.answers)),
            *(outcome.left["steps"], outcome.metrics["num_preemptions"], outcome.drafted, outcome.accepted),
            *(outcome.left["missing_blocks"], round(outcome.seconds), len(faults)),
        )
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return faults


if __name__ == "__main__":
    main()
