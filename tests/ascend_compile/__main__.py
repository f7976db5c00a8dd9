# SPDX-License-Identifier: Apache-2.0
"""What the compilers make of one kernel file, while it is being written:

PYTHONPATH=.editable .venv-ascend/bin/python -m tests.ascend_compile prepare_inputs_padded [TARGET]
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "stubs"))

from . import cases
from .counts import count
from .lints import forbidden
from .offsets import below_zero
from .toolchain import TARGETS, CompileError, lower, to_hivm


def main(name: str, target: str = "910B3") -> int:
    failed = False
    for case in cases.of_file(cases.KERNELS / f"{Path(name).stem}.py"):
        print(case.name)
        try:
            lowered = lower(case)
            counts = count(to_hivm(lowered, TARGETS[target]))
        except CompileError as error:
            failed = True
            print(f"    {error}")
            continue
        print("    " + ", ".join(f"{key} {value}" for key, value in asdict(counts).items()))
        for complaint in sorted(forbidden(lowered.ttir)) + below_zero(lowered.ttir, list(case.signature)):
            failed = True
            print(f"    {complaint}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
