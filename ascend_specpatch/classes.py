# SPDX-License-Identifier: Apache-2.0
"""Class surgery: give a class ABCMeta in place, and clone a class onto other bases.

``add_abc_meta`` keeps the identity of the class: whoever took it earlier holds the class that has
``register``. ``make_cls`` builds a class at run time from the members of another one.
``fix_new_class_closures`` is the part of it that makes zero-argument ``super()`` right, for a class that
exists already.
"""

from __future__ import annotations

import sys
import types
from abc import ABCMeta
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ascend_specpatch.closures import Transplant, is_python_class

__all__ = ["add_abc_meta", "fix_new_class_closures", "make_cls"]

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE

# Members that ``type`` and ``abc`` make for each class anew.
_MADE_BY_TYPE = frozenset({"__dict__", "__weakref__", "__slots__", "__module__", "__qualname__"})
_MADE_BY_BASES = frozenset({"__orig_bases__", "__parameters__", "_abc_impl", "__abstractmethods__"})


def add_abc_meta(cls: type) -> Callable[[], None]:
    """Turn ``cls``, and every existing subclass, into ABCMeta classes, so that ``cls.register(...)`` works.

    The classes keep their identity, instances and attributes. Those that have ABCMeta already, or a metaclass
    derived from it, are left alone with what was registered on them. Nor does it change whether a class can
    be instantiated: an ``@abstractmethod`` that was only a remark so far stays one.

    Args:
        cls: a class made by a class statement, with the metaclass ``type``.

    Returns:
        A function that gives the changed classes their metaclass back and forgets what was registered on
        them. Calling it again does nothing.

    Raises:
        TypeError: ``cls`` is a builtin or extension class, or it or a subclass has a metaclass of its own
            (combining it with ABCMeta is safe only if all its methods are cooperative, which nobody can
            check). Nothing is changed then.
    """
    tree = _with_subclasses(cls)
    for each in tree:
        _require_python_class(each, "be given ABCMeta")
        if type(each) is not type and not issubclass(type(each), ABCMeta):
            raise TypeError(
                f"{cls.__qualname__} can not be given ABCMeta: the metaclass {type(each).__qualname__} of "
                f"{each.__module__}.{each.__qualname__} does not derive from ABCMeta; make it derive from it"
            )
    changed: list[Any] = []

    def undo() -> None:
        while changed:
            each = changed.pop()
            _set_metaclass(each, type)
            del each._abc_impl, each.__abstractmethods__

    for each in tree:
        if type(each) is type:
            _make_abc(each)
            changed.append(each)
    return undo


def make_cls(
    template: type,
    *,
    bases: tuple[Any, ...],
    name: str | None = None,
    module: str | None = None,
    qualname: str | None = None,
    namespace: Mapping[str, Any] | type | None = None,
    exclude: Collection[str] = (),
) -> type:
    """Make a class that has ``template``'s own members and stands on ``bases``; ``template`` stays as it is.

    The clone has its own functions, with their attributes, annotations and wrappers (an ``lru_cache`` starts
    empty). It shares with the template: code objects, globals, closure cells that have nothing to do with the
    class (a counter kept with ``nonlocal`` counts for both), nested classes, and class attributes that are
    plain data.

    The metaclass follows from ``bases`` alone; their ``__init_subclass__`` and the members' ``__set_name__``
    run.

    Args:
        template: a class made by a class statement. What it inherits is not cloned.
        bases: as in a class statement, so ``Generic[T]`` is allowed.
        name: default: the template's.
        module: ``__module__`` of the clone and of its functions. Default: the template's.
        qualname: default: the template's, ending in ``name``. Instances pickle once the clone can
            be found there.
        namespace: members to add, or to put in place of the template's. Of a class, the own members are
            taken, and zero-argument ``super()`` in them means the clone as well.
        exclude: members of the template to leave out.

    Raises:
        TypeError: ``template`` is a builtin or extension class, or a member uses ``super()`` of the template
            in a way that can not be moved: inside an object that can not be copied, or as ``super(Template,
            ...)`` with a global name. The message names the member.
        ValueError: ``exclude`` has a name that ``template`` does not define.
    """
    _require_python_class(template, "be cloned")
    name = name or template.__name__
    module = module or template.__module__
    qualname = qualname or ".".join([*template.__qualname__.split(".")[:-1], name])
    members = _own_members(template)
    slots = _own_slots(template)
    if unknown := sorted(set(exclude).difference(members, slots)):
        raise ValueError(f"exclude names {', '.join(unknown)}, which {template.__qualname__} does not define")

    added = _members_to_add(namespace, members)
    members = {key: value for key, value in members.items() if key not in exclude} | added
    if module != template.__module__:
        members.pop("__firstlineno__", None)  # inspect would take it for a line of the new module's file
    if "__slots__" in vars(template):
        gone = {*exclude, *added, *_storage_of(bases)}
        members.setdefault("__slots__", _like(slots, vars(template)["__slots__"], gone))

    cell = types.CellType()  # type.__new__ fills it, before __set_name__ and __init_subclass__ run
    old = (template, namespace) if isinstance(namespace, type) else (template,)
    body = Transplant(old, cell, module, qualname).members(members)
    body |= {"__module__": module, "__qualname__": qualname, "__classcell__": cell}
    return types.new_class(name, bases, exec_body=lambda target: target.update(body))


def fix_new_class_closures(members: Mapping[str, Any], old_cls: type, new_cls: type) -> dict[str, Any]:
    """Copy ``members`` so that zero-argument ``super()`` means ``new_cls`` where it meant ``old_cls``.

    Args:
        members: name -> member, raw (as in ``vars(old_cls)``).
        old_cls: the class that the members' ``__class__`` cells name.
        new_cls: the class that the copies' cells name. It is not changed: the caller sets the copies on it.

    Returns:
        The members under the same names. Functions of ``old_cls``, with or without ``super()``, and what
        wraps them are copies, named after ``new_cls``; everything else comes back as it is.

    Raises:
        TypeError: as for ``make_cls``.
    """
    cell = types.CellType(new_cls)
    return Transplant((old_cls,), cell, new_cls.__module__, new_cls.__qualname__).members(members)


def _with_subclasses(cls: type) -> list[type]:
    tree = [cls]
    for each in tree:
        subclasses: list[type] = type.__subclasses__(each)
        tree += [subclass for subclass in subclasses if subclass not in tree]
    return tree


def _require_python_class(cls: type, purpose: str) -> None:
    if not isinstance(cls, type) or not is_python_class(cls):
        raise TypeError(f"{cls!r} can not {purpose}: it is not a class made by a Python class statement")


def _make_abc(cls: Any) -> None:
    from _abc import _abc_init  # type: ignore[import-not-found]

    _set_metaclass(cls, ABCMeta)
    _abc_init(cls)
    cls.__abstractmethods__ = frozenset()


def _set_metaclass(cls: type, metaclass: type) -> None:
    """Do what ``cls.__class__ = metaclass`` would.

    CPython allows that between metaclasses of equal layout, except from and to ``type``, which is immutable.
    The change itself is the same there: the type pointer, which ends the header of every object, and the
    reference that an object holds to its type if that was made at run time. A class keeps nothing else of its
    metaclass.
    """
    import ctypes

    old = type(cls)
    address = id(cls) + object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)
    pointer = ctypes.c_void_p.from_address(address)
    if sys.implementation.name != "cpython" or pointer.value != id(old) or _layout(old) != _layout(metaclass):
        raise TypeError(
            f"the metaclass of {cls!r} can not be changed by {sys.version}; use CPython 3.10 to 3.13"
        )
    if _flags(metaclass) & _HEAP_TYPE:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(metaclass))
    pointer.value = id(metaclass)
    if _flags(old) & _HEAP_TYPE:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(old))


def _flags(cls: type) -> int:
    flags: Any = cls.__flags__
    return int(flags)


def _layout(cls: type) -> tuple[int, ...]:
    return cls.__basicsize__, cls.__itemsize__, cls.__dictoffset__, cls.__weakrefoffset__


def _own_members(cls: type) -> dict[str, Any]:
    return {
        key: dict(value) if key == "__annotations__" else value
        for key, value in vars(cls).items()
        if key not in _MADE_BY_TYPE | _MADE_BY_BASES and not _is_slot_of(cls, value)
    }


def _is_slot_of(cls: type, value: object) -> bool:
    slot_types = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return type(value) in slot_types and getattr(value, "__objclass__", None) is cls


def _own_slots(cls: type) -> list[str]:
    """Read from the descriptors: ``__slots__`` may be a spent iterator and has the names before mangling."""
    return [key for key, value in vars(cls).items() if _is_slot_of(cls, value)]


def _like(slots: list[str], declared: Any, gone: set[str]) -> Any:
    kept = [slot for slot in slots if slot not in gone]
    if isinstance(declared, dict):  # name -> docstring
        return {slot: declared.get(slot) for slot in kept}
    return tuple(kept)


def _members_to_add(namespace: Mapping[str, Any] | type | None, members: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(namespace, type):
        return dict(namespace or {})
    _require_python_class(namespace, "give its members to a clone")
    if "__slots__" in vars(namespace):
        raise TypeError(f"{namespace.__qualname__} can not give its members to a clone: it has __slots__")
    added = _own_members(namespace)
    for key in ("__firstlineno__", "__static_attributes__"):  # Python 3.13, about the class statement
        added.pop(key, None)
    if added.get("__doc__") is None:
        added.pop("__doc__", None)
    if "__annotations__" in added:
        added["__annotations__"] = {**members.get("__annotations__", {}), **added["__annotations__"]}
    return added


def _storage_of(bases: tuple[Any, ...]) -> set[str]:
    """The slots ``__dict__`` and ``__weakref__`` that the bases have already; ``type`` refuses them twice."""
    resolved = types.resolve_bases(bases)
    offsets = {"__dict__": "__dictoffset__", "__weakref__": "__weakrefoffset__"}
    return {slot for slot, offset in offsets.items() if any(getattr(base, offset) for base in resolved)}
