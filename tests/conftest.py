# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every kind of test may use."""

from __future__ import annotations

from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The top of the repository."""
    return CHECKOUT
