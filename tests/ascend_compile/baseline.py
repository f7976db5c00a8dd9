# SPDX-License-Identifier: Apache-2.0
"""The counts that the kernels had when they were last looked at: baseline.json, one line a case."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from .counts import Counts
from .toolchain import TARGETS

FILE = Path(__file__).with_name("baseline.json")

# case -> target -> counts
Counted = dict[str, dict[str, Counts]]


def read() -> Counted:
    """Raises: FileNotFoundError if it was never written."""
    return {
        case: {target: Counts(**by_target.get(target, by_target["all"])) for target in TARGETS}
        for case, by_target in json.loads(FILE.read_text(encoding="utf-8")).items()
    }


def write(now: Counted) -> None:
    """One line a case where its counts are the same for all targets, else one more for each target."""
    lines = []
    for case, by_target in now.items():
        first, *others = by_target.values()
        rows = {"all": first} if all(other == first for other in others) else by_target
        inner = ",\n    ".join(f"{json.dumps(t)}: {json.dumps(asdict(c))}" for t, c in rows.items())
        lines.append(f"  {json.dumps(case)}: {{\n    {inner}\n  }}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def difference(before: Counted, now: Counted) -> list[str]:
    """What changed, a line for each count: better or worse."""
    lines = [f"{case}: no longer compiled" for case in before.keys() - now.keys()]
    lines += [f"{case}: new" for case in now.keys() - before.keys()]
    for case in before.keys() & now.keys():
        for target in TARGETS:
            was, is_ = asdict(before[case][target]), asdict(now[case][target])
            lines += [f"{case}, {target}: {n} was {was[n]}, is {is_[n]}" for n in was if was[n] != is_[n]]
    return sorted(lines)
