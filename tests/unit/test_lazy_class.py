# SPDX-License-Identifier: Apache-2.0
"""The stand-in for a class that is looked up at each use."""

from __future__ import annotations

import copy
import pickle
import sys
from types import ModuleType
from typing import Any

import pytest

from ascend_specpatch.patches.worker.lazy_model_runner import LazyClass


class First:
    kind = "first"

    def __init__(self, value: int = 0) -> None:
        self.value = value


class Second(First):
    kind = "second"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("home_of_a_class")
    module.Runner = First
    monkeypatch.setitem(sys.modules, "home_of_a_class", module)
    return module


def test_it_builds_what_stands_under_the_name_now(home: Any) -> None:
    lazy: Any = LazyClass("home_of_a_class", "Runner")
    assert type(lazy(1)) is First
    home.Runner = Second
    assert (type(lazy(2)), lazy(2).value, lazy.kind) == (Second, 2, "second")


def test_it_answers_as_the_class_does(home: Any) -> None:
    lazy: Any = LazyClass("home_of_a_class", "Runner")
    assert isinstance(Second(), lazy)
    assert issubclass(Second, lazy)
    assert not isinstance(3, lazy)

    class Child(lazy):  # type: ignore[misc]
        pass

    assert Child.__mro__[1] is First
    assert repr(lazy) == "<home_of_a_class.Runner, looked up at each use>"


def test_it_can_be_copied_and_pickled(home: Any) -> None:
    lazy: Any = LazyClass("home_of_a_class", "Runner")
    for twin in (copy.copy(lazy), copy.deepcopy(lazy), pickle.loads(pickle.dumps(lazy))):
        assert type(twin) is LazyClass
        assert type(twin(5)) is First
