# SPDX-License-Identifier: Apache-2.0
"""Whatever host modules hold and however it is nested: after rebinding none of it leads to the old objects,
but through the new ones; after undoing everything is what it was.

SPECPATCH_FUZZ_EXAMPLES sets the number of generated hosts (default 200), SPECPATCH_FUZZ_SEED repeats a run.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from types import CellType, FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from ascend_specpatch.aliases import AliasError, rebind
from ascend_specpatch.edits import Edit

EXAMPLES = int(os.environ.get("SPECPATCH_FUZZ_EXAMPLES", "200"))
SEED = int(os.environ.get("SPECPATCH_FUZZ_SEED") or random.randrange(2**32))

TARGET = """
class Old:
    own = []
    def method(self): return __class__
def old(): return old
"""


# The functions and classes of a host must be a host's.
MAKERS = """
class Slotted:
    __slots__ = ("a", "b")
    def __init__(self, a, b):
        self.a, self.b = a, b
def closing_over(value):
    return lambda: value
def with_default(value):
    def function(a=value, *, b=value):
        return a, b
    return function
def with_attribute(value):
    def function(): pass
    function.attribute = value
    return function
def class_with(value):
    class HostClass:
        attribute = value
    return HostClass
"""
makers: Any = ModuleType("fakehost.makers")
exec(MAKERS, vars(makers))


def only_callable(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: make(value) if callable(value) else (value,)


def only_hashable(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def made(value: Any) -> Any:
        try:
            hash(value)
        except TypeError:
            return [value]
        return make(value)

    return made


# Each makes a holder around a value.
HOLDERS: list[Callable[[Any], Any]] = [
    lambda v: [1, v],
    lambda v: (v, "x", v),
    lambda v: {"a": 1, "k": v, "z": 2},
    lambda v: OrderedDict(a=1, k=v, z=2),
    lambda v: defaultdict(list, k=v),
    lambda v: deque([v, 1]),
    lambda v: SimpleNamespace(k=v),
    lambda v: makers.Slotted(v, 1),
    lambda v: functools.partial(print, v, k=v),
    lambda v: MappingProxyType({"k": v}),
    only_hashable(lambda v: {"a": 1, v: 2, "z": 3}),
    only_hashable(lambda v: {v}),
    only_hashable(lambda v: frozenset({v, "x"})),
    only_callable(lambda v: functools.partial(v, 1)),
    only_callable(staticmethod),
    only_callable(classmethod),
    only_callable(property),
    only_callable(lambda v: MethodType(v, "self")),
    only_callable(lambda v: functools.lru_cache(v) if isinstance(v, FunctionType) else [v]),
    only_callable(lambda v: functools.partialmethod(v, 1)),
    makers.closing_over,
    makers.with_default,
    makers.with_attribute,
    makers.class_with,
]


@st.composite
def graphs(draw: Any) -> tuple[int, list[tuple[int, list[int]]], list[int], list[int]]:
    """Recipes over a growing list of values, which starts with the old class and the old function: holders
    to make, each around an earlier value, and which values are globals and which the new function holds."""
    count = draw(st.integers(1, 12))
    recipes = [
        (draw(st.integers(0, len(HOLDERS) - 1)), draw(st.integers(0, 1 + index))) for index in range(count)
    ]
    indices = st.lists(st.integers(0, count + 1), max_size=5)
    return count, recipes, draw(indices), draw(indices)


@contextlib.contextmanager
def hosts(**modules: ModuleType) -> Iterator[None]:
    names = {f"fakehost.{name}": module for name, module in modules.items()}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


SKIPPED = ("__builtins__", "__dict__", "__weakref__")


def parts(obj: Any) -> list[Any]:
    """What an object holds, in order, by plain reading."""
    if isinstance(obj, (ModuleType, type)):
        return [value for name, value in vars(obj).items() if name not in SKIPPED]
    if isinstance(obj, FunctionType):
        cells = [cell.cell_contents for cell in obj.__closure__ or ()]
        defaults = [obj.__defaults__, obj.__kwdefaults__]
        return [*(cells if "__class__" not in obj.__code__.co_freevars else ()), *defaults, vars(obj)]
    if isinstance(obj, CellType):
        return [obj.cell_contents]
    if isinstance(obj, (dict, MappingProxyType)):
        return [*obj.keys(), *obj.values()]
    if isinstance(obj, functools.partial):
        return [obj.func, *obj.args, *obj.keywords.values()]
    if isinstance(obj, functools.partialmethod):
        return [obj.func, obj.args]
    if isinstance(obj, (staticmethod, classmethod, MethodType)):
        return [obj.__func__]
    if isinstance(obj, property):
        return [obj.fget]
    if isinstance(obj, makers.Slotted):
        return [obj.a, obj.b]
    if isinstance(obj, (list, tuple, set, frozenset, deque)):
        return list(obj)
    return [vars(obj)] if hasattr(obj, "__dict__") else []


def reached(roots: list[Any], stops: list[Any]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    pending = list(roots)
    while pending:
        obj = pending.pop()
        if id(obj) not in found and not any(obj is stop for stop in stops):
            found[id(obj)] = obj
            pending += parts(obj)
    return found


def shape(roots: list[Any], stops: list[Any]) -> dict[int, list[int]]:
    """id -> ids of what it holds, in order; sets have none of their own. Method objects and dicts of slots
    that are made when one asks for them do not count."""
    return {
        key: sorted(map(id, parts(obj))) if isinstance(obj, (set, frozenset)) else [id(p) for p in parts(obj)]
        for key, obj in reached(roots, stops).items()
    }


def rebind_among(edit: Edit, frozen: bool) -> None:
    """Rebind among all objects, which are frozen, or among those of this example alone, which is quicker."""
    if frozen:
        gc.freeze()
        rebind(edit, {"fakehost"})
    else:
        with mock.patch.object(gc, "get_freeze_count", return_value=0):
            rebind(edit, {"fakehost"})


def check(graph: Any, frozen: bool) -> bool:
    """False where the patch was refused."""
    _, recipes, global_indices, inner_indices = graph
    target, holder = ModuleType("fakehost.target"), ModuleType("fakehost.holder")
    exec(TARGET, vars(target))
    values: list[Any] = [target.Old, target.old]
    for kind, inner in recipes:
        values.append(HOLDERS[kind](values[inner]))
    for index in global_indices:
        vars(holder)[f"name{index}"] = values[index]
    inside = [values[index] for index in inner_indices]
    olds = [target.Old, target.old]
    old_class = target.Old

    class New(old_class):  # type: ignore[misc, valid-type]
        kept = inside

    def new() -> Any:
        return inside, olds

    New.__module__ = new.__module__ = "fakehost.target"
    stops = [New, new]
    with hosts(target=target, holder=holder):
        before = shape([target, holder], [])
        own = [list(map(id, each)) for each in (inside, olds)]
        edit = Edit("worker.test", target)
        edit.set(target, "Old", New)
        edit.set(target, "old", new)
        try:
            rebind_among(edit, frozen)
            refused = False
        except AliasError:
            refused = True
        if not refused:
            after = reached([target, holder], stops)
            assert not any(obj is old for obj in after.values() for old in olds)
            assert all(old is now for old, now in zip(olds, (old_class, new()[1][1]), strict=True))
        assert own[1] == [id(obj) for obj in olds]
        assert own[0] == [id(obj) for obj in inside]
        edit.undo()
        assert shape([target, holder], []) == before
    return not refused


def test_generated_holders_follow_and_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{EXAMPLES} generated hosts, SPECPATCH_FUZZ_SEED={SEED}", end=" ")
    outcomes = []

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(graphs(), st.integers(0, 49).map(lambda number: number == 7))
    def run(graph: Any, frozen: bool) -> None:
        outcomes.append(check(graph, frozen))

    gc.freeze()
    try:
        run()
    finally:
        gc.unfreeze()
    assert outcomes.count(False) * 10 < len(outcomes)
