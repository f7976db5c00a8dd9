# SPDX-License-Identifier: Apache-2.0
"""Copies of a class's functions, and of what wraps them, for another class.

Zero-argument ``super()`` reads its class from a closure cell named ``__class__``. A function can not be given
another cell, so every function that holds one is copied, and with it whatever stands between the class and
that function: descriptors, decorators' closures, partial objects, caches, callable objects, containers.
"""

from __future__ import annotations

import dis
import functools
import gc
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

_SINGLEDISPATCH_CODE = functools.singledispatch(lambda _: None).__code__  # type: ignore[attr-defined]


def is_python_class(cls: type) -> bool:
    """Whether a class statement made ``cls``.

    Builtin classes are not allocated at run time. Extension classes may be, but own slot wrappers or C
    functions.
    """
    heap_type = 1 << 9  # Py_TPFLAGS_HEAPTYPE
    flags: Any = cls.__flags__
    made_in_c = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)
    return bool(flags & heap_type) and not any(
        (type(value) in made_in_c and value.__objclass__ is cls)
        or (type(value) is types.BuiltinFunctionType and value.__self__ is cls)
        for value in vars(cls).values()
    )


class Transplant:
    """One copying of members of the ``old`` classes to the class ``module.qualname``, which ``cell`` names.

    Each object is copied once, so what was shared in the old class is shared in the new one. Objects are told
    apart by ``type(obj)``, because proxies pretend with ``__class__``.
    """

    def __init__(self, old: tuple[type, ...], cell: types.CellType, module: str, qualname: str) -> None:
        self._old = old
        self._cell = cell
        self._module = module
        self._qualname = qualname
        self._member = ""  # the one being copied, for messages
        self._copies: dict[int, tuple[Any, Any]] = {}  # id -> (original, which keeps the id taken; copy)
        self._cells: dict[int, types.CellType] = {}

    def members(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """The members under their names: copied as far as they lead to a function of the old classes.

        Raises:
            TypeError: a member uses ``super()`` of an old class in a way that can not be moved.
        """
        copies = {}
        for self._member, value in members.items():
            # __set_name__ will run for the new class and must not reach the old class's descriptor.
            always = hasattr(type(value), "__set_name__") and self._copier(value) is not None
            copies[self._member] = self._copy(value, always=always)
        return copies

    # Which objects to copy

    def _copy(self, obj: Any, *, always: bool = False) -> Any:
        if id(obj) in self._copies:
            return self._copies[id(obj)][1]
        if not always and not self._leads_to(obj, self._is_to_copy):
            return obj
        if copier := self._copier(obj):
            return self._keep(obj, copier(self, obj))
        if self._leads_to(obj, self._has_class_cell):
            raise TypeError(
                f"{self._old[0].__qualname__}.{self._member} can not be cloned: a function that uses super() "
                f"is held by a {type(obj).__module__}.{type(obj).__qualname__}, which can not be copied; put "
                "another member in its place, or exclude it"
            )
        return obj

    def _keep(self, obj: Any, copy: Any) -> Any:
        return self._copies.setdefault(id(obj), (obj, copy))[1]

    def _leads_to(self, root: Any, test: Callable[[types.FunctionType], bool]) -> bool:
        """Whether calling ``root`` may end in a function that passes ``test``."""
        stack, seen = [root], set()
        while stack:
            obj = stack.pop()
            if id(obj) in seen or not self._is_followed(obj):
                continue
            seen.add(id(obj))
            if type(obj) is types.FunctionType and test(obj):
                return True
            stack += _parts(obj)
        return False

    def _is_followed(self, obj: Any) -> bool:
        """Containers, descriptors, callables; not classes, other data, or what is bound to an old class."""
        kind = type(obj)
        if issubclass(kind, type) or self._is_from_old(kind):
            return False
        if kind is types.MethodType:
            owner = obj.__self__ if isinstance(obj.__self__, type) else type(obj.__self__)
            return not self._is_from_old(owner)
        return (
            kind in _CONTAINERS or callable(obj) or hasattr(kind, "__get__") or hasattr(kind, "__set_name__")
        )

    def _is_from_old(self, kind: type) -> bool:
        return any(old in kind.__mro__ for old in self._old)

    def _is_to_copy(self, function: types.FunctionType) -> bool:
        return self._is_own(function) or self._has_class_cell(function)

    def _is_own(self, function: types.FunctionType) -> bool:
        owner = self._owner(function.__qualname__)
        return owner is not None and owner.__module__ == function.__module__

    def _owner(self, qualname: Any) -> type | None:
        """The old class that a member of this qualified name belongs to."""
        if not isinstance(qualname, str):
            return None
        return next((old for old in self._old if qualname.startswith(f"{old.__qualname__}.")), None)

    def _moved(self, qualname: str) -> str:
        """``Old.f`` -> ``New.f``; anything else as it is."""
        owner = self._owner(qualname)
        return qualname if owner is None else self._qualname + qualname[len(owner.__qualname__) :]

    def _has_class_cell(self, function: types.FunctionType) -> bool:
        return any(self._is_class_cell(function, name, cell) for name, cell in _cells(function))

    def _is_class_cell(self, function: types.FunctionType, name: str, cell: types.CellType) -> bool:
        # Another name than __class__: a local class, or ``cls`` in the __setattr__ of a frozen dataclass.
        content = _content(cell)
        return any(content is old for old in self._old) and (
            name == "__class__" or name in _names_given_to_super(function.__code__)
        )

    # How each kind of object is copied. A copy that its parts may refer to is kept before they are copied.

    def _copier(self, obj: Any) -> Callable[[Transplant, Any], Any] | None:
        kind = type(obj)
        if kind in _CONTAINERS:
            return _CONTAINERS[kind]
        for base in kind.__mro__:
            if base in _WRAPPERS:
                return _WRAPPERS[base]
        if all(is_python_class(base) for base in kind.__mro__[:-1]):
            return Transplant._copy_instance
        return None

    def _copy_function(self, old: types.FunctionType) -> types.FunctionType:
        self._refuse_super_of_global(old)
        to_fill: list[tuple[types.CellType, Any]] = []
        closure = tuple(self._copy_cell(old, name, cell, to_fill) for name, cell in _cells(old))
        new = types.FunctionType(old.__code__, old.__globals__, old.__name__, None, closure)
        self._keep(old, new)
        for cell, content in to_fill:
            cell.cell_contents = self._copy(content)
        new.__defaults__ = self._copy(old.__defaults__)
        if old.__kwdefaults__:
            new.__kwdefaults__ = {key: self._copy(value) for key, value in old.__kwdefaults__.items()}
        new.__annotations__ = dict(old.__annotations__)
        new.__doc__ = old.__doc__
        new.__qualname__ = self._moved(old.__qualname__)
        new.__module__ = self._module if self._is_own(old) else old.__module__
        if sys.version_info >= (3, 12):
            new.__type_params__ = old.__type_params__
        vars(new).update((key, self._copy(value)) for key, value in vars(old).items())
        return new

    def _copy_cell(
        self,
        function: types.FunctionType,
        name: str,
        old: types.CellType,
        to_fill: list[tuple[types.CellType, Any]],
    ) -> types.CellType:
        if self._is_class_cell(function, name, old):
            return self._cell
        if id(old) not in self._cells:
            content = _content(old)
            self._cells[id(old)] = old
            if self._leads_to(content, self._is_to_copy):
                self._cells[id(old)] = new = types.CellType()
                to_fill.append((new, content))
        return self._cells[id(old)]

    def _refuse_super_of_global(self, function: types.FunctionType) -> None:
        scope, code = function.__globals__, function.__code__
        for name in _names_given_to_super(code).difference(code.co_freevars):
            clone_takes_the_name = (scope.get("__name__"), name) == (self._module, self._qualname)
            if any(scope.get(name) is old for old in self._old) and not clone_takes_the_name:
                raise TypeError(
                    f"{function.__qualname__} can not be cloned: it calls super({name}, ...), and the global "
                    f"{name} goes on meaning the old class; put another member in its place, or exclude it"
                )

    def _copy_singledispatch(self, old: Any) -> Any:
        new: Any = functools.singledispatch(self._copy(old.__wrapped__))
        for cls, implementation in old.registry.items():
            new.register(cls, self._copy(implementation))
        for key in vars(old).keys() - vars(new).keys():
            setattr(new, key, self._copy(vars(old)[key]))
        return new

    def _copy_singledispatchmethod(self, old: Any) -> Any:
        new = self._copy_instance(old)
        if "_method_cache" in vars(new):  # Python 3.13: instance -> function of the old class
            new._method_cache = type(old._method_cache)()
        return new

    def _copy_method_wrapper(self, old: Any) -> Any:
        base = classmethod if isinstance(old, classmethod) else staticmethod
        new = _new(base, type(old), self._copy(old.__func__))
        base.__init__(new, self._copy(old.__func__))
        return self._copy_state(old, new)

    def _copy_property(self, old: property) -> Any:
        new = _new(property, type(old))
        doc = None if old.__doc__ == getattr(old.fget, "__doc__", None) else old.__doc__  # None: the getter's
        property.__init__(new, self._copy(old.fget), self._copy(old.fset), self._copy(old.fdel), doc)
        return self._copy_state(old, new)

    def _copy_partial(self, old: functools.partial[Any]) -> Any:
        keywords = {key: self._copy(value) for key, value in old.keywords.items()}
        new = _new(functools.partial, type(old), self._copy(old.func), *self._copy(old.args), **keywords)
        return self._copy_state(old, new)

    def _copy_lru_cache(self, old: Any) -> Any:
        new = functools.lru_cache(**old.cache_parameters())(self._copy(old.__wrapped__))
        return self._copy_state(old, new)

    def _copy_bound_method(self, old: types.MethodType) -> types.MethodType:
        return types.MethodType(self._copy(old.__func__), self._copy(old.__self__))

    def _copy_instance(self, old: Any) -> Any:
        return self._copy_state(old, self._keep(old, object.__new__(type(old))))

    def _copy_state(self, old: Any, new: Any) -> Any:
        qualname: Any = getattr(old, "__dict__", {}).get("__qualname__")
        for slot, value in _filled_slots(old):
            object.__setattr__(new, slot, self._copy(value))
        for key, value in getattr(old, "__dict__", {}).items():
            vars(new)[key] = self._copy(value)
        if self._owner(qualname):  # functools.update_wrapper was here
            vars(new).update(__qualname__=self._moved(qualname), __module__=self._module)
        return new

    def _copy_dict(self, old: dict[Any, Any]) -> dict[Any, Any]:
        new: dict[Any, Any] = self._keep(old, {})
        new.update((key, self._copy(value)) for key, value in old.items())
        return new

    def _copy_list(self, old: list[Any]) -> list[Any]:
        new: list[Any] = self._keep(old, [])
        new.extend(map(self._copy, old))
        return new

    def _copy_items(self, old: Any) -> Any:
        return type(old)(map(self._copy, old))


# Exact types: how to make a subclass of them from its items is not known.
_CONTAINERS: dict[type, Callable[[Transplant, Any], Any]] = {
    dict: Transplant._copy_dict,
    list: Transplant._copy_list,
    tuple: Transplant._copy_items,
    set: Transplant._copy_items,
    frozenset: Transplant._copy_items,
}
# These and their subclasses.
_WRAPPERS: dict[type, Callable[[Transplant, Any], Any]] = {
    types.FunctionType: lambda self, function: (
        self._copy_singledispatch(function) if _is_singledispatch(function) else self._copy_function(function)
    ),
    types.MethodType: Transplant._copy_bound_method,
    classmethod: Transplant._copy_method_wrapper,
    staticmethod: Transplant._copy_method_wrapper,
    property: Transplant._copy_property,
    functools.partial: Transplant._copy_partial,
    functools._lru_cache_wrapper: Transplant._copy_lru_cache,
    functools.singledispatchmethod: Transplant._copy_singledispatchmethod,
}


def _new(base: Any, kind: type, *args: Any, **kwargs: Any) -> Any:
    """An object of ``kind``, a subclass of ``base``, made without what the subclass does at construction."""
    return base.__new__(kind, *args, **kwargs)


def _is_singledispatch(function: types.FunctionType) -> bool:
    return function.__code__ is _SINGLEDISPATCH_CODE


def _parts(obj: Any) -> list[Any]:
    """What an object leads to, one step on."""
    if type(obj) is functools._lru_cache_wrapper:
        return [vars(obj)]  # not the cached values
    if type(obj) is not types.FunctionType:
        return gc.get_referents(obj)
    parts = [obj.__defaults__, obj.__kwdefaults__, vars(obj)]
    if _is_singledispatch(obj):
        return [*parts, *obj.registry.values()]  # type: ignore[attr-defined]
    return [*parts, *(_content(cell) for _, cell in _cells(obj))]


def _cells(function: types.FunctionType) -> Iterator[tuple[str, types.CellType]]:
    return zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that was not assigned yet, or was deleted
        return None


def _filled_slots(obj: Any) -> Iterator[tuple[str, Any]]:
    for cls in filter(is_python_class, type(obj).__mro__):
        for name, value in vars(cls).items():
            if type(value) is types.MemberDescriptorType and value.__objclass__ is cls and hasattr(obj, name):
                yield name, value.__get__(obj)


@functools.lru_cache
def _names_given_to_super(code: types.CodeType) -> frozenset[str]:
    """The names in ``super(NAME, ...)``, also of functions inside the function."""
    names: set[str] = set()
    if "super" in code.co_names:
        steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
        for first, second in pairwise(steps):
            if first.argval == "super" and second.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
                names.add(second.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_given_to_super(constant)
    return frozenset(names)
