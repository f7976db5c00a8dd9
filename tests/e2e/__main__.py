# SPDX-License-Identifier: Apache-2.0
"""The programs the harness starts: ``serve KIND`` (a fork server) and ``run REQUEST`` (one case).

Started by path and not with ``-m``, and never through PYTHONPATH: a checkout at the front of sys.path would
offer its ``kernels`` to transformers and its ``sitecustomize`` to the interpreter, and the case would no
longer be a stock vLLM script beside an installed package.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    sys.path[0:1] = []  # this folder
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    from tests.e2e import child, forkserver

    if sys.argv[1] == "serve":
        forkserver.main(sys.argv[2])
    else:
        child.serve(child.Request.from_json(Path(sys.argv[2]).read_text()))


if __name__ == "__main__":  # processes started by spawn import this file again
    main()
