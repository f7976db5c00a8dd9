# SPDX-License-Identifier: Apache-2.0
"""Whether speculative sampling has the distribution of plain sampling.

    python benchmarks/sampling.py [--count 20000] [--k 3] [METHOD ...]

Counts the first three tokens of `count` answers at temperature 1, and of a fourth of that with top-k, top-p
and seeds, all kinds and greedy requests in one batch, on the emulated NPU with a model of eight tokens.
Prints the p-values of two chi-square tests: against the exact probabilities, which transformers' logits
give, and against the counts of the plain engine. The exit status is 1 if one is below 1e-4, or if a greedy
text is another.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.append(str(CHECKOUT))

from tests import tiny_models  # noqa: E402
from tests.e2e import sampling  # noqa: E402
from tests.e2e.harness import Harness  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    methods = [method for method in sampling.METHODS if method != "plain"]
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"of: {', '.join(methods)}")
    parser.add_argument("--count", type=int, default=20000, help="answers at temperature 1 (%(default)s)")
    parser.add_argument("--k", type=int, nargs="*", default=[3], help="drafts a step (%(default)s)")
    parser.add_argument("--host", action="store_true", help="without the patches: ngram and eagle only")
    arguments = parser.parse_args()
    if unknown := set(arguments.methods) - set(methods):
        parser.error(f"no such method: {', '.join(sorted(unknown))}")
    env = {"ASCEND_SPECPATCH": "0"} if arguments.host else {}
    runs = [("plain", 0), *((method, k) for k in arguments.k for method in arguments.methods or methods)]
    wrong = False
    with tempfile.TemporaryDirectory(prefix="sampling-") as name:
        folder = Path(name)
        tiny_models.write(folder / "models", ["dice", "dice_draft", "dice_eagle"])
        expected = sampling.expected(folder / "models")
        harness = Harness(folder / "models", folder, folder / "vllm")
        print(
            "| method | k | accepted of drafted | requests | samples | cells | p, exact | p, plain engine |"
        )
        print("|---|---|---|---|---|---|---|---|", flush=True)
        plain = None
        for method, k in runs:
            outcome = harness.run(sampling.case(method, k, arguments.count, **env))
            if outcome.error is not None:
                sys.exit(f"{method}: {outcome.error}\n{outcome.last_lines()}")
            counted = sampling.counts(outcome, arguments.count)
            plain = plain or counted
            for kind, asked in sampling.KINDS.items():
                fit = sampling.fit(counted[kind], expected[kind])
                cells = [method, k or "", f"{outcome.accepted} of {outcome.drafted}" if k else "", kind]
                if asked:
                    same = sampling.same(counted[kind], plain[kind]).p if k else 1.0
                    cells += [fit.samples, fit.cells, f"{fit.p:.3g}", f"{same:.3g}" if k else ""]
                    wrong |= min(fit.p, same) < 1e-4
                else:
                    cells += [fit.samples, 1, "all equal" if fit.p == 1 else "DIFFERENT", ""]
                    wrong |= fit.p != 1
                print(f"| {' | '.join(map(str, cells))} |", flush=True)
        harness.close()
    sys.exit(int(wrong))


if __name__ == "__main__":
    main()
