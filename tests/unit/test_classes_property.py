# SPDX-License-Identifier: Apache-2.0
"""A clone equals a class written out natively, for generated classes.

The same class text is compiled over the bases of a "host" and over other bases. The clone of the first onto
the second's bases must have the same members, part by part, and give the same results as the second.

SPECPATCH_FUZZ_EXAMPLES sets the number of classes (default 200), SPECPATCH_FUZZ_SEED repeats a run.
"""

from __future__ import annotations

import functools
import os
import random
import threading
import types
import weakref
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from ascend_specpatch.classes import fix_new_class_closures, make_cls

EXAMPLES = int(os.environ.get("SPECPATCH_FUZZ_EXAMPLES", "200"))
SEED = int(os.environ.get("SPECPATCH_FUZZ_SEED") or random.randrange(2**32))

PRELUDE = Path(__file__).with_name("generated_class_prelude.py").read_text(encoding="utf-8")
LEVEL = """
class {name}({base}):
    def where(self, tag):
        return {name!r}, super().where(tag)
    @classmethod
    def cwhere(cls, tag):
        return {name!r}, super().cwhere(tag)
"""


@dataclass(frozen=True)
class Member:
    """Lines of a class body and expressions over ``x`` (an instance) and ``C`` (the class) that use them."""

    lines: list[str]
    uses: list[str]


# How a function with ``self`` (an instance) reaches super(); {t} is a tag.
REACHES = [
    "super().where({t})",
    "super(__class__, self).where({t})",
    "(lambda: super(__class__, self).where({t}))()",
    "[super(__class__, self).where(i) for i in range({t})]",
    "(lambda me: super().where({t}))(self)",
    "(__class__.__name__, __class__ in type(self).__mro__)",
    "(super().place, super().__repr__(), super().__len__())",
    "self.where({t})",
    "{t}",
]
DECORATORS = [
    "@wrapped",
    "@unnamed",
    "@by_default",
    "@by_table",
    "@counted",
    "@with_options(1, 'two')",
    "@abc.abstractmethod",
    "@Decorated",
]
SIGNATURES = [
    ("self", "()"),
    ("self, a=1", "(a,)"),
    ("self, a: int = 1, *, b: str = 'b'", "(a, b)"),
    ("self, *args, b={'k': [1]}, **kwargs", "(args, b, kwargs)"),
    ("self, a=None, /, *, c=2, d=(3, 4)", "(a, c, d)"),
]

tags = st.integers(1, 3)


@st.composite
def functions(
    draw: Any, name: str, decorators: list[str] = DECORATORS, signature: str | None = None
) -> list[str]:
    """A decorated function, with a docstring, attributes and so on or without them."""
    parameters, values = (signature, "()") if signature else draw(st.sampled_from(SIGNATURES))
    reach = draw(st.sampled_from(REACHES)).format(t=draw(tags))
    lines = draw(st.lists(st.sampled_from(decorators), max_size=3))
    lines = [*lines, f"def {name}({parameters}){draw(st.sampled_from(['', ' -> tuple']))}:"]
    if draw(st.booleans()):
        lines.append(f"    'Text of {name}.'")
    if draw(st.booleans()):
        return [*lines, "    def inner():", f"        return {reach}", f"    return {values}, inner()"]
    return [*lines, f"    return {values}, {reach}"]


@st.composite
def methods(draw: Any, name: str) -> Member:
    lines = draw(functions(name))
    if draw(st.booleans()):
        lines = [*lines, f"{name}.attribute = ['set', {draw(tags)}]"]
    return Member(lines, [f"x.{name}()", f"C.{name}(x)"])


@st.composite
def lambdas(draw: Any, name: str) -> Member:
    reach = draw(st.sampled_from(REACHES)).format(t=draw(tags))
    return Member([f"{name} = lambda self, a=1: (a, {reach})"], [f"x.{name}()", f"x.{name}(2)"])


@st.composite
def private_methods(draw: Any, name: str) -> Member:
    lines = draw(functions(f"__{name}", signature="self"))
    return Member([*lines, f"def {name}(self):", f"    return self.__{name}()"], [f"x.{name}()"])


@st.composite
def class_methods(draw: Any, name: str) -> Member:
    stack = draw(st.lists(st.sampled_from(["@wrapped", "@by_table", "@counted"]), max_size=2))
    body = f"    return cls.__name__, a, super().cwhere({draw(tags)})"
    return Member(["@classmethod", *stack, f"def {name}(cls, a=1):", body], [f"x.{name}()", f"C.{name}(2)"])


@st.composite
def static_methods(draw: Any, name: str) -> Member:
    return Member(["@staticmethod", *draw(functions(name))], [f"x.{name}(x)", f"C.{name}(x)"])


@st.composite
def properties(draw: Any, name: str) -> Member:
    lines = ["@property", *draw(functions(name, signature="self"))]
    uses = [f"x.{name}", f"C.{name}.__doc__"]
    if draw(st.booleans()):
        lines += [
            f"@{name}.setter",
            f"def {name}(self, value):",
            "    super(__class__, type(self)).place.__set__(self, value)",
        ]
        uses.append(f"(setattr(x, {name!r}, 5), x.put)")
    if draw(st.booleans()):
        lines += [f"@{name}.deleter", f"def {name}(self):", "    self.put = super().where('gone')"]
        uses.append(f"(delattr(x, {name!r}), x.put)")
    return Member(lines, uses)


@st.composite
def held_in_wrappers(draw: Any, name: str) -> Member:
    inner = draw(functions(f"_{name}", signature="self"))
    wrapper, use = draw(
        st.sampled_from(
            [
                ("functools.cached_property({})", "x.{}"),
                ("functools.partialmethod({})", "x.{}()"),
                ("functools.partial({})", "C.{}(x)"),
                ("functools.lru_cache(maxsize=2, typed=True)({})", "(x.{0}(), C.{0}.cache_info())"),
                ("functools.singledispatch({})", "x.{}()"),
                ("[{}, ({},)]", "(C.{0}[0](x), C.{0}[1][0](x))"),
                ("{{'a': {}}}", "C.{}['a'](x)"),
                ("Named({})", "x.{}"),
                ("contextlib.contextmanager({})", "C.{}.__name__"),
                ("property(Decorated({}))", "x.{}"),
                ("classmethod(Decorated(wrapped({})))", "C.__dict__[{0!r}].__func__(x)"),
                ("staticmethod(unnamed({}))", "x.{}(x)"),
            ]
        )
    )
    inner_name = f"_{name}"
    made = wrapper.format(*[inner_name] * wrapper.count("{}"))
    if "cached_property" in made:
        inner = [line for line in inner if not line.startswith("@")]
    return Member([*inner, f"{name} = {made}"], [use.format(*[name] * max(1, use.count("{}")))])


@st.composite
def dispatched_methods(draw: Any, name: str) -> Member:
    body = f"    return 'any', super().where({draw(tags)})"
    lines = ["@functools.singledispatchmethod", f"def {name}(self, a):", body]
    for kind in draw(st.lists(st.sampled_from(["int", "str", "list"]), unique=True)):
        decorators = draw(st.lists(st.sampled_from(["@wrapped", "@counted"]), max_size=1))
        lines += [f"@{name}.register({kind})", *decorators]
        lines += ["def _(self, a):", f"    return {kind!r}, super().where({draw(tags)})"]
    return Member(lines, [f"x.{name}({value})" for value in ("1.5", "1", "'s'", "[]")])


@st.composite
def suspended_methods(draw: Any, name: str) -> Member:
    kind, body, use = draw(
        st.sampled_from(
            [
                ("def", "yield super().where(1); yield from [super().where(2)]", "list(x.{}())"),
                ("async def", "return super().where(1)", "run(x.{}())"),
                ("async def", "yield super().where(1)", "run(drain(x.{}()))"),
                ("async def", "return [super(__class__, self).where(i) for i in (1, 2)]", "run(x.{}())"),
            ]
        )
    )
    return Member([f"{kind} {name}(self):", f"    {body}"], [use.format(name)])


@st.composite
def special_methods(draw: Any, name: str) -> Member:
    lines, use = draw(
        st.sampled_from(
            [
                ("def __repr__(self): return 'sub ' + super().__repr__()", "repr(x)"),
                ("def __len__(self): return 10 + super().__len__()", "len(x)"),
                ("def __enter__(self): return __class__.__name__, super().__enter__()", "x.__enter__()"),
                ("def __class_getitem__(cls, item): return 'sub', super().__class_getitem__(item)", "C[1]"),
                ("def __init__(self, *args): super().__init__('sub', *args)", "x.args"),
                (
                    "def __init_subclass__(cls): super().__init_subclass__(); cls.again = __class__.__name__",
                    "type('S', (C,), {}).again",
                ),
                (
                    "def __new__(cls, *args): x = super().__new__(cls); x.new = __class__.__name__; return x",
                    "x.new",
                ),
                ("def __getattr__(self, name): return name, super().where(1)", "x.no_such_attribute"),
                ("def __eq__(self, other): return super().where(1)", "x == 1"),
                ("__slots__ = ('slot', '__hidden')", "sorted(vars(C)['__slots__'])[-1]"),
                ("data: list = [1, {'two': 3}]", "(C.data, C.__annotations__)"),
                (
                    "class Inner(Root):\n        def where(self, tag): return 'inner', super().where(tag)[1]",
                    "C.Inner().where(1)",
                ),
            ]
        )
    )
    return Member([lines], [use])


KINDS = [methods, lambdas, private_methods, class_methods, static_methods, properties]
KINDS += [held_in_wrappers, dispatched_methods, suspended_methods, special_methods]


@st.composite
def class_bodies(draw: Any) -> list[Member]:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=8))
    return [draw(kind(f"m{index}")) for index, kind in enumerate(kinds)]


@functools.lru_cache
def compiled(text: str) -> types.CodeType:
    return compile(text, "<generated>", "exec")


def compile_module(home: str, depth: int, body: list[Member]) -> types.ModuleType:
    """A module with Root, ``depth`` levels above it, and the class Generated on the last of them."""
    module = types.ModuleType("generated")
    bases = ["Root", *(f"Level{level}" for level in range(depth))]
    levels = [LEVEL.format(name=level, base=base) for base, level in pairwise(bases)]
    exec(compiled("".join([PRELUDE, *levels, f"\nHOME, Base = {home!r}, {bases[-1]}\n"])), vars(module))
    lines = [line for member in body for line in member.lines]
    exec(compiled("\n    ".join(["class Generated(Base):", "'Text of the class.'", *lines])), vars(module))
    return module


@functools.lru_cache
def compiled_use(expression: str) -> types.CodeType:
    return compile(expression, "<use>", "eval")


def results(cls: Any, body: list[Member], scope: types.ModuleType) -> list[Any]:
    outcome = []
    for use in (use for member in body for use in member.uses):
        try:
            x = cls()
            outcome.append((use, repr(eval(compiled_use(use), vars(scope), {"x": x, "C": cls}))))
        except Exception as error:  # whatever the native class raises, the clone must raise
            outcome.append((use, type(error), str(error)))
    return outcome


FUNCTION_ATTRIBUTES = (
    *("__name__", "__qualname__", "__module__", "__doc__"),
    *("__annotations__", "__defaults__", "__kwdefaults__", "__dict__"),
)


def parts(obj: Any) -> Any:
    """An object taken apart one level: comparable values and further objects."""
    kind = type(obj)
    if kind is types.FunctionType:
        code = obj.__code__
        cells = zip(code.co_freevars, (cell.cell_contents for cell in obj.__closure__ or ()), strict=True)
        return [*map(obj.__getattribute__, FUNCTION_ATTRIBUTES), code.co_code, code.co_names, *cells]
    if isinstance(obj, property):
        return [obj.fget, obj.fset, obj.fdel, obj.__doc__]
    if isinstance(obj, (classmethod, staticmethod)):
        return [obj.__func__]  # __class_getitem__ and the like are wrapped by type, without attributes
    if isinstance(obj, functools.partial):
        return [obj.func, obj.args, obj.keywords, vars(obj)]
    if kind is functools._lru_cache_wrapper:
        return [obj.__wrapped__, obj.cache_parameters(), vars(obj)]
    if kind.__name__ == "Named":
        return [obj.f, obj.name, obj.owner]
    if kind is types.MemberDescriptorType:
        return [obj.__name__, obj.__objclass__]
    if isinstance(obj, (dict, types.MappingProxyType)):
        return [[*obj], [*obj.values()]]
    return getattr(obj, "__dict__", None)


# State of wrappers of the standard library that says nothing about the class.
UNLIKE = (types.GetSetDescriptorType, type(threading.RLock()), weakref.WeakKeyDictionary)


def is_member(key: str) -> bool:
    return key.lstrip("_").startswith("m") and not key.startswith("__")


class Comparison:
    """Compares a clone with the natively written class, down to the contents of closure cells."""

    def __init__(self, clone: Any, native: Any) -> None:
        self.clone, self.native = clone, native
        self.seen: dict[int, Any] = {}  # id -> the object, kept alive for its id

    def check(self) -> None:
        skipped = {"__slots__", "__firstlineno__"}  # the clone's slots have the mangled names
        clone, native = (
            {k: v for k, v in vars(cls).items() if k not in skipped} for cls in (self.clone, self.native)
        )
        assert [key for key in clone if is_member(key)] == [key for key in native if is_member(key)]
        assert clone.keys() == native.keys()
        for key, value in native.items():
            self.same(clone[key], value, key)

    def same(self, clone: Any, native: Any, path: str) -> None:
        if isinstance(native, type):
            assert clone is self.clone if native is self.native else clone.__name__ == native.__name__, path
        elif id(native) not in self.seen and not isinstance(native, UNLIKE):
            self.seen[id(native)] = native
            self.same_parts(clone, native, path)

    def same_parts(self, clone: Any, native: Any, path: str) -> None:
        assert type(clone).__qualname__ == type(native).__qualname__, path
        if isinstance(native, (list, tuple)):
            assert len(clone) == len(native), path
            for index, (one, other) in enumerate(zip(clone, native, strict=True)):
                self.same(one, other, f"{path}[{index}]")
        elif (taken_apart := parts(native)) is not None:
            self.same(parts(clone), taken_apart, path)
        elif not isinstance(native, types.BuiltinFunctionType):
            assert clone == native, path


WAYS = ["make_cls", "make_cls twice", "fix_new_class_closures"]


def test_generated_clones_equal_natively_written_classes(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f" {EXAMPLES} generated classes, SPECPATCH_FUZZ_SEED={SEED}")

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(WAYS), class_bodies(), st.integers(0, 3), st.integers(0, 3))
    def check(way: str, body: list[Member], host_depth: int, our_depth: int) -> None:
        host = compile_module("host", host_depth, body)
        ours = compile_module("ours", our_depth, body)
        template, native = host.Generated, ours.Generated
        untouched = compile_module("host", host_depth, body).Generated
        before = dict(vars(template))
        clone = made(way, template, native)
        Comparison(clone, native).check()
        Comparison(template, untouched).check()
        assert results(clone, body, host) == results(native, body, ours)
        assert dict(vars(template)) == before
        assert results(template, body, host) == results(untouched, body, host)

    check()


def made(way: str, template: Any, native: Any) -> Any:
    bases = native.__bases__
    if way == "make_cls":
        return make_cls(template, bases=bases)
    if way == "make_cls twice":
        return make_cls(make_cls(template, bases=bases, name="Between"), bases=bases, name="Generated")
    if "__slots__" in vars(template):  # a class that exists can not be given slots
        hypothesis.reject()
    cls: Any = type("Generated", bases, {"__module__": "generated"})
    skipped = {"__dict__", "__weakref__", "__module__", "initialised"}
    members = {k: v for k, v in vars(template).items() if k not in skipped}
    for name, member in fix_new_class_closures(members, template, cls).items():
        setattr(cls, name, member)
        if hasattr(type(member), "__set_name__"):
            member.__set_name__(cls, name)
    return cls
