# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.tiny_models DIR [NAME ...]``"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import RECIPES, by_release, write


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tiny_models", description="Write tiny random models."
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(RECIPES)} (default: all)")
    parser.add_argument(
        "--by-release", action="store_true", help="into a folder of DIR for the installed transformers"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(RECIPES))
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}")
    directory = by_release(arguments.directory) if arguments.by_release else arguments.directory
    written = write(directory, arguments.names or None)
    print(f"{directory}: wrote {', '.join(written)}" if written else f"{directory}: up to date")


if __name__ == "__main__":
    main()
