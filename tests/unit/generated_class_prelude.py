# SPDX-License-Identifier: Apache-2.0
"""What test_classes_property.py generates classes over: decorators, and a root that says where it is.

Its text is run once for each module that a class is generated in, so that each has bases of its own.
"""

import abc  # noqa: F401
import contextlib  # noqa: F401
import functools

HOME = "set for each module"


def wrapped(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        return "wrapped", f(*args, **kwargs)

    return wrapper


def unnamed(f):
    return lambda *args, **kwargs: ("unnamed", f(*args, **kwargs))


def by_default(f):
    def wrapper(*args, __f=f, **kwargs):
        return "by default", __f(*args, **kwargs)

    return wrapper


def by_table(f):
    table = {"f": [f], "other": (1,)}
    return functools.wraps(f)(lambda *args, **kwargs: ("by table", table["f"][0](*args, **kwargs)))


def counted(f):
    count = 0

    def wrapper(*args, **kwargs):
        nonlocal count
        count += 1
        wrapper.last = f.__name__
        return f(*args, **kwargs)

    wrapper.inner = f
    return wrapper


def with_options(*options):
    def decorate(f):
        @functools.wraps(f)
        def wrapper(*args, **kwargs):
            return options, f(*args, **kwargs)

        wrapper.options = options
        return wrapper

    return decorate


class Decorated:
    def __init__(self, f):
        functools.update_wrapper(self, f)
        self.f = f

    def __call__(self, *args, **kwargs):
        return "object", self.f(*args, **kwargs)

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self, instance)


class Named:
    __slots__ = ("f", "name", "owner")

    def __init__(self, f):
        self.f = f

    def __set_name__(self, owner, name):
        self.owner, self.name = owner, name

    def __get__(self, instance, owner=None):
        return self if instance is None else (self.owner.__name__, self.name, self.f(instance))


def run(coroutine):
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value


async def drain(stream):
    return [item async for item in stream]


class Root:
    put = None

    def __init__(self, *args):
        self.args = args

    def where(self, tag):
        return HOME, tag

    @classmethod
    def cwhere(cls, tag):
        return HOME, cls.__name__, tag

    @property
    def place(self):
        return HOME, "place"

    @place.setter
    def place(self, value):
        self.put = HOME, value

    def __repr__(self):
        return HOME

    def __len__(self):
        return len(HOME)

    def __enter__(self):
        return HOME, "enter"

    def __exit__(self, *error):
        return False

    def __class_getitem__(cls, item):
        return HOME, cls.__name__, item

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.initialised = HOME, cls.__name__
