# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the end-to-end tests: the models, the harness, the oracle."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
if str(_HERE.parents[1]) not in sys.path:
    sys.path.append(str(_HERE.parents[1]))  # last: the checkout's top-level names must not hide anyone's

from tests import tiny_models  # noqa: E402
from tests.e2e.checks import Check  # noqa: E402
from tests.e2e.harness import Harness  # noqa: E402
from tests.e2e.oracle import Oracle  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def models(pytestconfig: pytest.Config) -> Path:
    directory = tiny_models.by_release(pytestconfig.cache.mkdir("tiny_models"))
    tiny_models.write(directory)
    return directory


@pytest.fixture(scope="session")
def harness(
    models: Path, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    harness = Harness(models, tmp_path_factory.mktemp("e2e"), pytestconfig.cache.mkdir("vllm"))
    yield harness
    harness.close()


@pytest.fixture(scope="session")
def check(harness: Harness, models: Path, pytestconfig: pytest.Config) -> Check:
    return Check(harness, Oracle(models, pytestconfig.cache.mkdir("oracle")))
