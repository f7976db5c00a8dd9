# SPDX-License-Identifier: Apache-2.0
"""Zero-argument super() is right in every kind of member of clones, and of classes given the members."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from ascend_specpatch.classes import fix_new_class_closures, make_cls


class Host:
    """What the template stands on."""

    home = "host"

    def where(self, *args: Any, **kwargs: Any) -> Any:
        return self.home

    @classmethod
    def cwhere(cls) -> str:
        return cls.home

    @property
    def place(self) -> str:
        return self.home

    @place.setter
    def place(self, value: str) -> None:
        vars(self)["put"] = (self.home, value)

    @place.deleter
    def place(self) -> None:
        vars(self)["put"] = (self.home, None)

    def __repr__(self) -> str:
        return f"<{self.home}>"


class Ours:
    """What the clone stands on: it answers "ours" where Host answers "host"."""

    home = "ours"

    where = Host.where
    place = Host.place
    cwhere = classmethod(Host.cwhere.__func__)  # type: ignore[attr-defined]
    __repr__ = Host.__repr__


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def unnamed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)


def by_default(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, call: Callable[..., Any] = function) -> Any:
        return call(self)

    return wrapper


def by_keyword_default(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, *, call: Callable[..., Any] = function) -> Any:
        return call(self)

    return wrapper


def by_table(function: Callable[..., Any]) -> Callable[..., Any]:
    table = {"calls": [(function,)]}
    return lambda self: table["calls"][0][0](self)


def by_bound_method(function: Callable[..., Any]) -> Callable[..., Any]:
    call = Decorated(function).__call__
    return lambda self: call(self)


class Decorated:
    """A decorator that is a callable object."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


class SlottedDescriptor:
    __slots__ = ("empty", "function", "name", "owner")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else self.function(instance)


class LoudProperty(property):
    """A property that can not be made by calling its class with three functions."""

    def __init__(self, fget: Any, *, volume: int) -> None:
        super().__init__(fget)
        self.volume = volume


class Template(Host):
    """The class that is cloned."""

    answer: int = 42

    def plain(self, a: int, b: int = 2, *args: Any, c: int, d: int = 4, **kwargs: Any) -> Any:
        return super().where(), a, b, args, c, d, kwargs

    def named(self) -> Any:
        return __class__.__name__, super().where()  # type: ignore[name-defined]

    def explicit(self) -> Any:
        return super(__class__, self).where()  # type: ignore[name-defined]  # noqa: UP008

    def in_lambda(self) -> Any:
        return (lambda: super(__class__, self).where())()  # type: ignore[name-defined]

    def in_nested(self) -> Any:
        def inner() -> Any:
            def innermost(me: Any) -> Any:
                return super().where()

            return innermost(self)

        return inner()

    def in_comprehension(self) -> Any:
        return [super(__class__, self).where() for _ in range(2)]  # type: ignore[name-defined]

    assigned_lambda = lambda self: super().where()  # type: ignore[misc]  # noqa: E731

    @classmethod
    def class_method(cls) -> Any:
        return super().cwhere(), cls.__name__

    @staticmethod
    def static_method(obj: Any) -> Any:
        return super(__class__, obj).where()  # type: ignore[name-defined]  # noqa: UP008

    @property
    def prop(self) -> Any:
        """Property text."""
        return super().place

    @prop.setter
    def prop(self, value: str) -> None:
        super(__class__, type(self)).place.__set__(self, value)  # type: ignore[name-defined]

    @prop.deleter
    def prop(self) -> None:
        super(__class__, type(self)).place.__delete__(self)  # type: ignore[name-defined]

    @functools.cached_property
    def cached(self) -> Any:
        return super().where(), object()

    @functools.lru_cache(maxsize=3)  # noqa: B019
    def lru(self) -> Any:
        return super().where()

    partial_method = functools.partialmethod(plain, 1, c=3)
    partial = functools.partial(unnamed(named))

    @functools.singledispatchmethod
    def dispatch(self, value: Any) -> Any:
        return "any", super().where()

    @dispatch.register
    def _(self, value: int) -> Any:
        return "int", super().where()

    @dispatch.register(str)
    @classmethod
    def _(cls, value: Any) -> Any:
        return "str", super().cwhere()

    @functools.singledispatch
    def dispatch_on_self(self) -> Any:
        return super(__class__, self).where()  # type: ignore[name-defined]  # noqa: UP008

    with_wraps = wrapped(named)
    with_closure = unnamed(named)
    with_two = wrapped(unnamed(wrapped(named)))
    with_default = by_default(named)
    with_keyword_default = by_keyword_default(named)
    with_table = by_table(named)
    with_bound_method = by_bound_method(named)
    with_object = Decorated(named)
    with_slots = SlottedDescriptor(named)
    classmethod_of_wrapped = classmethod(wrapped(lambda cls: (cls.home, super().cwhere())))
    property_of_wrapped = property(wrapped(named))
    loud = LoudProperty(named, volume=11)
    table = {"named": named}  # noqa: RUF012

    @contextlib.contextmanager
    def context(self) -> Iterator[Any]:
        yield super().where()

    def generator(self) -> Iterator[Any]:
        yield super().where()
        yield from (x for x in [super().where()])

    async def coroutine(self) -> Any:
        return super().where()

    async def async_generator(self) -> AsyncIterator[Any]:
        yield super().where()

    def __repr__(self) -> str:
        return "T" + super().__repr__()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.initialised = cls.__name__  # type: ignore[attr-defined]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = super().__new__(cls)
        self.made_by = __class__.__name__  # type: ignore[attr-defined,name-defined]
        return self

    def __class_getitem__(cls, item: Any) -> Any:
        return cls.__name__, super().cwhere(), item

    def __mangled(self) -> Any:
        return super().where()

    def mangled(self) -> Any:
        return self.__mangled()

    class Nested(Host):
        def where(self, *args: Any, **kwargs: Any) -> Any:
            return "nested", super().where()


def _collect(stream: Any) -> Any:
    async def collect() -> Any:
        return [item async for item in stream]

    return asyncio.run(collect())


def _set(obj: Any) -> Any:
    obj.prop = "x"
    return obj.put


def _delete(obj: Any) -> Any:
    del obj.prop
    return obj.put


def _enter(obj: Any) -> Any:
    with obj.context() as value:
        return value


# member -> (how it is used, what it gives: {home} and {name} are the base's and the class's)
USES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "plain": (lambda x: x.plain(1, 5, 6, c=7, z=8), ("{home}", 1, 5, (6,), 7, 4, {"z": 8})),
    "defaults": (lambda x: x.plain(1, c=3), ("{home}", 1, 2, (), 3, 4, {})),
    "named": (lambda x: x.named(), ("{name}", "{home}")),
    "explicit": (lambda x: x.explicit(), "{home}"),
    "lambda in a method": (lambda x: x.in_lambda(), "{home}"),
    "nested functions": (lambda x: x.in_nested(), "{home}"),
    "comprehension": (lambda x: x.in_comprehension(), ["{home}"] * 2),
    "lambda": (lambda x: x.assigned_lambda(), "{home}"),
    "classmethod": (lambda x: x.class_method(), ("{home}", "{name}")),
    "classmethod on the class": (lambda x: type(x).class_method(), ("{home}", "{name}")),
    "staticmethod": (lambda x: type(x).static_method(x), "{home}"),
    "property": (lambda x: x.prop, "{home}"),
    "property setter": (_set, ("{home}", "x")),
    "property deleter": (_delete, ("{home}", None)),
    "cached_property": (lambda x: (x.cached[0], x.cached is x.cached), ("{home}", True)),
    "lru_cache": (lambda x: (x.lru(), x.lru()), ("{home}", "{home}")),
    "partialmethod": (lambda x: x.partial_method(), ("{home}", 1, 2, (), 3, 4, {})),
    "partial": (lambda x: type(x).partial(x), ("{name}", "{home}")),
    "singledispatchmethod": (lambda x: x.dispatch(1.5), ("any", "{home}")),
    "singledispatchmethod on int": (lambda x: x.dispatch(1), ("int", "{home}")),
    "singledispatchmethod to classmethod": (lambda x: x.dispatch("a"), ("str", "{home}")),
    "singledispatch": (lambda x: x.dispatch_on_self(), "{home}"),
    "functools.wraps": (lambda x: x.with_wraps(), ("{name}", "{home}")),
    "closure without wraps": (lambda x: x.with_closure(), ("{name}", "{home}")),
    "stacked decorators": (lambda x: x.with_two(), ("{name}", "{home}")),
    "function as default": (lambda x: x.with_default(), ("{name}", "{home}")),
    "function as keyword default": (lambda x: x.with_keyword_default(), ("{name}", "{home}")),
    "function in containers": (lambda x: x.with_table(), ("{name}", "{home}")),
    "function behind a bound method": (lambda x: x.with_bound_method(), ("{name}", "{home}")),
    "callable object": (lambda x: x.with_object(), ("{name}", "{home}")),
    "descriptor with slots": (lambda x: x.with_slots, ("{name}", "{home}")),
    "classmethod of a decorated": (lambda x: x.classmethod_of_wrapped(), ("{home}", "{home}")),
    "property of a decorated": (lambda x: x.property_of_wrapped, ("{name}", "{home}")),
    "property subclass": (lambda x: (x.loud, type(x).loud.volume), (("{name}", "{home}"), 11)),
    "dict of functions": (lambda x: x.table["named"](x), ("{name}", "{home}")),
    "context manager": (_enter, "{home}"),
    "generator": (lambda x: list(x.generator()), ["{home}"] * 2),
    "coroutine": (lambda x: asyncio.run(x.coroutine()), "{home}"),
    "async generator": (lambda x: _collect(x.async_generator()), ["{home}"]),
    "special method": (repr, "T<{home}>"),
    "__new__": (lambda x: x.made_by, "{name}"),
    "__init_subclass__": (lambda x: type("Sub", (type(x),), {}).initialised, "Sub"),  # type: ignore[attr-defined]
    "__class_getitem__": (lambda x: type(x)[1], ("{name}", "{home}", 1)),
    "mangled name": (lambda x: x.mangled(), "{home}"),
    "nested class": (lambda x: x.Nested().where(), ("nested", "host")),
}


def filled(expected: Any, **words: str) -> Any:
    if isinstance(expected, str):
        return expected.format(**words)
    if isinstance(expected, (tuple, list)):
        return type(expected)(filled(item, **words) for item in expected)
    return expected


class Fixed(Ours):
    """A class that got the members one by one."""


for _name, _member in fix_new_class_closures(vars(Template), Template, Fixed).items():
    if _name not in ("__module__", "__dict__", "__weakref__", "__doc__", "__qualname__", "__firstlineno__"):
        setattr(Fixed, _name, _member)

Clone: Any = make_cls(Template, bases=(Ours,), name="Clone")
Again: Any = make_cls(Clone, bases=(Ours,), name="Again")


@pytest.mark.parametrize("member", USES)
@pytest.mark.parametrize(
    ("cls", "home"),
    [(Clone, "ours"), (Again, "ours"), (Fixed, "ours"), (Template, "host")],
    ids=["clone", "clone's clone", "fixed", "template"],
)
def test_super_in_every_kind_of_member(cls: Any, home: str, member: str) -> None:
    use, expected = USES[member]
    assert use(cls()) == filled(expected, home=home, name=cls.__name__)
