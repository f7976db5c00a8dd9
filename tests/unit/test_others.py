# SPDX-License-Identifier: Apache-2.0
"""Where an object really comes from, whatever it says of itself."""

from __future__ import annotations

import contextlib
import functools
import json
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from ascend_specpatch import others

HOST = """
import functools
def f(self=None): pass
def decorated(function):
    @functools.wraps(function)
    def wrapper(*args): return function(*args)
    return wrapper
class C:
    def method(self): pass
    @classmethod
    def klass(cls): pass
    __slots__ = ("slot",)
class Call:
    def __call__(self): pass
"""


def module(name: str) -> Any:
    made = ModuleType(name)
    exec(HOST, vars(made))
    return made


vllm, plugin = module("vllm.x"), module("other_plugin.patches")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: f,
        staticmethod,
        classmethod,
        property,
        lambda f: property(None, f),
        functools.cached_property,
        functools.lru_cache,
        functools.singledispatch,
        functools.singledispatchmethod,
        contextlib.contextmanager,
        lambda f: functools.partial(f, 1),
        lambda f: functools.partialmethod(f, 1),
        lambda f: staticmethod(functools.partial(functools.lru_cache(f))),
        lambda f: f.__get__(object()),
    ],
)
def test_machinery_is_looked_through(wrap: Callable[[Any], Any]) -> None:
    assert others.owner(wrap(plugin.f)) == "other_plugin.patches"
    assert others.is_foreign(wrap(plugin.f), "vllm.x")
    assert others.owner(wrap(vllm.f)) == "vllm.x"
    assert not others.is_foreign(wrap(vllm.f), "vllm.x")


def test_a_wrapper_does_not_pass_for_what_it_wraps() -> None:
    wrapper = plugin.decorated(vllm.f)
    assert wrapper.__module__ == "vllm.x"
    assert others.owner(wrapper) == "other_plugin.patches"
    assert others.owner(vllm.decorated(plugin.f)) == "vllm.x"


@pytest.mark.parametrize(
    ("obj", "found"),
    [
        (plugin, "other_plugin.patches"),
        (plugin.C, "other_plugin.patches"),
        (plugin.C().method, "other_plugin.patches"),
        (plugin.C.klass, "other_plugin.patches"),
        (plugin.C.slot, "other_plugin.patches"),
        (plugin.Call(), "other_plugin.patches"),
        (json.dumps, "json"),
        (json, "json"),
        (len, "builtins"),
        (str.upper, "builtins"),
        (int, "builtins"),
        (None, "builtins"),
        (5, "builtins"),
        ([plugin.f], "builtins"),
        (operator.itemgetter(1), "operator"),
        (mock.MagicMock(), "unittest.mock"),
        (mock.MagicMock(name="host"), "unittest.mock"),
        (mock.create_autospec(vllm.C), "unittest.mock"),
    ],
)
def test_owner(obj: Any, found: str) -> None:
    assert others.owner(obj) == found


def test_a_wrapt_wrapper_is_who_wraps_not_what_is_wrapped() -> None:
    import wrapt

    class Wrapper(wrapt.FunctionWrapper):  # type: ignore[misc]
        pass

    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    wrapper.__globals__  # noqa: B018  (this test's module)
    theirs = eval("lambda w, i, a, k: w(*a, **k)", vars(plugin))
    assert others.owner(wrapt.FunctionWrapper(vllm.f, theirs)) == "other_plugin.patches"
    assert others.owner(wrapt.ObjectProxy(vllm.f)) == "vllm.x"
    assert others.owner(Wrapper(vllm.f, theirs)) == __name__


def test_no_code_of_the_object_is_run() -> None:
    class Nasty:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

        @property
        def __wrapped__(self) -> Any:
            raise AssertionError("asked for __wrapped__")

        __class__ = property(lambda self: ModuleType)  # type: ignore[assignment]

    assert others.owner(Nasty()) == __name__
    assert others.describe(Nasty()) == f"{__name__} (Nasty)"
    assert others.path(Nasty(), "a").endswith("Nasty.a")


def test_wrappers_in_a_circle_end() -> None:
    circle = functools.lru_cache(len)
    vars(circle)["__wrapped__"] = circle
    assert others.owner(circle) == "functools"


@pytest.mark.parametrize(
    ("obj", "foreign"),
    [
        (plugin.f, True),
        (plugin.C, True),
        (plugin.Call(), True),
        (mock.MagicMock(), True),
        (module("vllm_ascend.patch").f, False),
        (module("ascend_specpatch.patches.x").f, False),
        (module("torch._dynamo").f, False),
        (module("__main__").f, True),
        (module("vllm_extra").f, True),
        (json.dumps, False),
        (None, False),
        ("text", False),
        ((plugin.f,), False),
    ],
)
def test_is_foreign(obj: Any, foreign: bool) -> None:
    assert others.is_foreign(obj, "vllm.x") is foreign
    assert not others.is_foreign(plugin.f, "other_plugin.else")


def test_text_for_people() -> None:
    assert others.describe(plugin.f) == "other_plugin.patches (function f)"
    assert others.describe(plugin.C) == "other_plugin.patches (type C)"
    assert others.describe(3) == "builtins (int)"
    assert others.path(vllm, "f") == "vllm.x.f"
    assert others.path(vllm.C, "method") == "vllm.x.C.method"
    assert others.path(vllm.f, "__code__") == "vllm.x.f.__code__"
    assert others.path([], "append") == "a builtins.list.append"
