# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.tiny_models DIR [NAME ...]``"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import RECIPES, write


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tiny_models", description="Write tiny random models."
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(RECIPES)} (default: all)")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(RECIPES))
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}")
    written = write(arguments.directory, arguments.names or None)
    print(
        f"{arguments.directory}: wrote {', '.join(written)}"
        if written
        else f"{arguments.directory}: up to date"
    )


if __name__ == "__main__":
    main()
