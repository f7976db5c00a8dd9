# SPDX-License-Identifier: Apache-2.0
"""The gate runs where Ascend's compilers are (`make ascend-compile`); elsewhere its tests are skipped."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .toolchain import Case, Lowered

HERE = Path(__file__).parent
INSTALLED = importlib.util.find_spec("ascendnpuir") is not None

if INSTALLED:
    # vLLM and torch as far as kernel files name them when they are imported.
    sys.path.insert(0, str(HERE / "stubs"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write baseline.json and docs/ascend_compile.md anew"
    )


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if collection_path.name.startswith("test_") and not INSTALLED else None


class Compiled:
    """Compiles each case once for each target, ahead of the tests, two at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2)
        self._lowered: dict[str, Future[Lowered]] = {}
        self._hivm: dict[tuple[str, str], Future[str]] = {}

    def lowered(self, case: Case) -> Lowered:
        """Raises: CompileError."""
        return self._start_lowered(case).result()

    def hivm(self, case: Case, target: str) -> str:
        """Raises: CompileError."""
        return self._start_hivm(case, target).result()

    def ahead(self, cases: list[Case], targets: list[str]) -> None:
        for case in cases:
            for target in targets:
                self._start_hivm(case, target)

    def _start_lowered(self, case: Case) -> Future[Lowered]:
        from .toolchain import lower

        if case.name not in self._lowered:
            self._lowered[case.name] = self._pool.submit(lower, case)
        return self._lowered[case.name]

    def _start_hivm(self, case: Case, target: str) -> Future[str]:
        from .toolchain import to_hivm

        if (case.name, target) not in self._hivm:
            # Behind it in the queue, so it is under way or done by then.
            ir = self._start_lowered(case)
            self._hivm[case.name, target] = self._pool.submit(lambda: to_hivm(ir.result(), target))
        return self._hivm[case.name, target]

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def compiled() -> Iterator[Compiled]:
    """What the compilers make of a case."""
    from .cases import ours
    from .toolchain import TARGETS

    compiled = Compiled()
    compiled.ahead(list(ours()), list(TARGETS.values()))
    yield compiled
    compiled.close()


@pytest.fixture(scope="session")
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether files are to be written anew, rather than compared."""
    return bool(request.config.getoption("--rewrite"))
