# SPDX-License-Identifier: Apache-2.0
"""Who replaced what: the module that an object really comes from."""

from __future__ import annotations

import functools
import sys
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

from ascend_specpatch import HOSTS

_OURS: Final = __name__.partition(".")[0]

# What decorators leave around a host's function, and what hosts import under a name of their own: to meet it
# in a host says nothing about anyone else. unittest is not among them: its mocks are put there on purpose.
NEUTRAL: Final = (sys.stdlib_module_names - {"unittest", "test", "__main__"}) | {
    *("torch", "torch_npu", "torchair", "triton", "numpy", "wrapt", "_wrappers", "decorator"),
    *("pydantic", "pydantic_core", "msgspec", "typing_extensions", "transformers", "cloudpickle"),
}

# Where machinery that is no function keeps what it wraps.
_WRAPPED: Final = ("__wrapped__", "__func__", "func", "fget", "fset", "fdel", "fn", "_init_fn")

_WRAPT: Final = ("wrapt", "_wrappers")  # the second: as its extension module is called in its classes

_DEEPEST: Final = 50


def owner(obj: Any) -> str:
    """The name of the module that ``obj`` really comes from.

    ``__module__`` is what an object says, and ``functools.wraps`` copies it from what is wrapped. So of a
    function it is the module of its globals; of a class its ``__module__``; of a wrapt wrapper where its
    wrapper function is from; of any other object the module of its type. Where that is mere machinery
    (``contextlib``, a ``staticmethod``, a property, a partial object, a cache, a bound method, a Triton
    kernel), it is where what it wraps is from. Nothing of the object's own code is run.
    """
    found = ""
    for _ in range(_DEEPEST):  # wrappers may form a circle
        found = _own_module(obj)
        if found.partition(".")[0] not in NEUTRAL:
            break
        wrapped = _wrapped(obj)
        if wrapped is None:
            break
        obj = wrapped
    return found


def is_foreign(obj: Any, expected_module: str) -> bool:
    """Whether somebody else put ``obj`` where something of ``expected_module`` is expected.

    False for what comes from a host (vllm-ascend patches vLLM: that is part of the pair), from this package,
    from the top-level package of ``expected_module``, or from what hosts are made with: the standard library
    (but not its mocks), torch, triton, numpy and the like.
    """
    package = owner(obj).partition(".")[0]
    return package not in {*HOSTS, _OURS, expected_module.partition(".")[0]} and package not in NEUTRAL


def describe(obj: Any) -> str:
    """``other_plugin.patches (function sample_tokens)``: where an object comes from, and what it is."""
    name = _text(_static(obj, "__qualname__") or _static(obj, "__name__"))
    return f"{owner(obj)} ({type(obj).__name__}{' ' + name if name else ''})"


def path(obj: Any, name: str = "") -> str:
    """How people write an attribute of a module, class or object: ``vllm.x.Class.name``."""
    if issubclass(type(obj), ModuleType):
        text = _text(_static(obj, "__name__")) or "a module"
    elif issubclass(type(obj), (type, FunctionType)):
        text = f"{_text(_static(obj, '__module__')) or '?'}.{_text(_static(obj, '__qualname__'))}"
    else:
        text = f"a {type(obj).__module__}.{type(obj).__qualname__}"
    return f"{text}.{name}" if name else text


def is_wrapt(kind: type) -> bool:
    """Whether a class is one of wrapt's proxies, or derives from one."""
    return any(_text(_static(base, "__module__")).partition(".")[0] in _WRAPT for base in kind.__mro__)


def _own_module(obj: Any) -> str:
    kind = type(obj)
    if kind is ModuleType or issubclass(kind, ModuleType):
        return _text(_static(obj, "__name__"))
    if issubclass(kind, type):
        return _text(_static(obj, "__module__")) or "builtins"
    if kind is FunctionType:
        return _text(obj.__globals__.get("__name__")) or _text(_static(obj, "__module__"))
    home = _static(obj, "__objclass__")  # of slots, and of methods written in C
    if home is not None and issubclass(type(home), type):
        return _own_module(home)
    if kind.__module__ == "builtins" and not _is_wrapper(kind):
        return _text(_static(obj, "__module__")) or "builtins"
    return _text(_static(kind, "__module__"))


def _wrapped(obj: Any) -> Any:
    """What a piece of machinery wraps, or None."""
    kind = type(obj)
    if kind is MethodType:
        return obj.__func__
    if is_wrapt(kind):
        wrapper = getattr(obj, "_self_wrapper", None)
        return obj.__wrapped__ if wrapper is None else wrapper
    if issubclass(kind, type):
        return None
    return next((found for found in (_static(obj, name) for name in _WRAPPED) if found is not None), None)


def _is_wrapper(kind: type) -> bool:
    return issubclass(kind, (staticmethod, classmethod, property, functools.partial, MethodType))


def _static(obj: Any, name: str) -> Any:
    """An attribute that is stored in the object or in a slot of it; asks no ``__getattr__``, property or
    proxy."""
    kind = type(obj)
    if issubclass(kind, type) and name in ("__module__", "__qualname__", "__name__"):
        return type.__getattribute__(obj, name)
    for base in kind.__mro__:
        if name in vars(base):
            slot = vars(base)[name]
            if type(slot).__module__ == "builtins" and type(slot).__name__.endswith("_descriptor"):
                try:
                    return slot.__get__(obj, kind)
                except AttributeError:
                    return None
            break
    try:
        return object.__getattribute__(obj, "__dict__").get(name)
    except AttributeError:
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
