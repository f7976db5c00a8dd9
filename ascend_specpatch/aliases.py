# SPDX-License-Identifier: Apache-2.0
"""Whoever took an object before it was replaced is given the new one, or the patch is refused.

Rebound are, where a module of a host or of a target's package leads to them: module globals under any
name, class attributes, bases of classes, defaults, closure cells, attributes of instances, static and class
methods, properties, partial objects, bound methods, ``lru_cache`` wrappers, and dicts (values and keys),
lists, deques, sets and, rebuilt for whoever holds them, tuples and frozensets, however nested. Rebound are
also the globals of everybody else's modules (a script that did ``from vllm... import X``), but for the
standard library, torch and its kind, this package, the package of the patch, and the one that defines what
was replaced.

Left alone are what the new object and other things of the patches hold (a replacement usually calls what it
replaces), names that the patch has set itself, ``__class__`` cells (``super()`` of a method goes on meaning
its own class), annotations, weak references, keys of caches, and what running code, a registry of somebody
else's package or nobody's module holds.

Refused are instances that were built of a replaced class, classes that cannot be moved, and holders that
cannot be changed, such as an object of an extension module.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from types import FunctionType, ModuleType
from typing import Any

from ascend_specpatch import others
from ascend_specpatch.edits import ABSENT, Edit
from ascend_specpatch.holders import Graph, Inside, loaded, name_of, namespace
from ascend_specpatch.rebinding import AliasError, Rebinding

__all__ = ["AliasError", "rebind"]

_ENGINE = __name__.partition(".")[0]


def rebind(edit: Edit, packages: Collection[str]) -> None:
    """Rebind, through ``edit``, the aliases of what it replaced.

    Costs next to nothing where nobody holds one, some milliseconds where modules and classes do, and a few
    passes over all objects of the process where somebody else does.

    Args:
        packages: top-level names of the hosts and of the targets.

    Raises:
        AliasError: an alias cannot be rebound; the message names who holds it.
    """
    edit.begin_aliases()
    successor = _successors(edit)
    if not successor:
        return
    olds = tuple(old for old, _ in edit.replaced if id(old) in successor)
    news = tuple(successor.values())
    if Inside(olds, news, edit).is_all:
        return
    own = _own_packages(news, packages)
    modules = loaded()
    of_hosts = [module for module in modules if name_of(module).partition(".")[0] in packages]
    _rebind_globals(edit, of_hosts, successor)
    _move_subclasses(edit, successor, packages)
    if Inside(olds, news, edit).is_all:
        return
    _rebind_globals(edit, _strangers(modules, olds, packages, own), successor)
    inside = Inside(olds, news, edit)
    if inside.is_all:
        return
    graph = Graph(olds, packages, _Ours(edit, olds, news, inside.closed, own))
    Rebinding(edit, graph, successor).run()


def give_back(replaced: Collection[tuple[Any, Any]], packages: Collection[str]) -> None:
    """After an undo: module globals of ``packages`` that took a new object once it was there get the old one,
    given as (old, new). Not where the new one is something that a module of theirs has defined itself."""
    origin = {id(new): old for old, new in reversed([*replaced]) if not _is_at_home(new, packages)}
    for module in loaded() if origin else ():
        if name_of(module).partition(".")[0] in packages:
            for name, value in list(namespace(module).items()):
                if id(value) in origin:
                    namespace(module)[name] = origin[id(value)]


def _is_at_home(obj: Any, packages: Collection[str]) -> bool:
    """Whether a module of ``packages`` defines an object and has it: one that patches made is gone from there
    after an undo, whatever module it claims to be of."""
    home, name = getattr(obj, "__module__", None), getattr(obj, "__name__", None)
    if not isinstance(home, str) or not isinstance(name, str) or home not in sys.modules:
        return False
    return home.partition(".")[0] in packages and namespace(sys.modules[home]).get(name) is obj


def _successors(edit: Edit) -> dict[int, Any]:
    """id of each old object -> the last one that was put in its place."""
    step = {id(old): new for old, new in edit.replaced}
    final: dict[int, Any] = {}
    for old, new in edit.replaced:
        for _ in step:
            new = step.get(id(new), new)
        if new is not old and id(new) not in step:
            final[id(old)] = new
    return final


def _own_packages(news: Collection[Any], packages: Collection[str]) -> set[str]:
    """Top-level names of the packages that made the new objects."""
    made = {others.owner(new).partition(".")[0] for new in news}
    return {_ENGINE, *(name for name in made if name not in packages and name not in others.NEUTRAL)}


def _strangers(
    modules: Collection[ModuleType], olds: Collection[Any], packages: Collection[str], own: Collection[str]
) -> list[ModuleType]:
    """The modules of others that are to follow: not those that define an old object themselves."""
    homes = {others.owner(old).partition(".")[0] for old in olds}
    closed = {*own, *others.NEUTRAL, *packages, *homes}
    return [module for module in modules if name_of(module).partition(".")[0] not in closed]


def _rebind_globals(edit: Edit, modules: Collection[ModuleType], successor: dict[int, Any]) -> None:
    for module in modules:
        for name, value in list(namespace(module).items()):
            if id(value) in successor and not edit.is_settled(module, name):
                edit.rebind(module, name, successor[id(value)])


def _move_subclasses(edit: Edit, successor: dict[int, Any], packages: Collection[str]) -> None:
    for old, _ in list(edit.replaced):
        if isinstance(old, type) and id(old) in successor:
            subclasses: list[type] = type.__subclasses__(old)
            for subclass in subclasses:
                if subclass.__module__.partition(".")[0] in packages:
                    _move(edit, subclass, old, successor[id(old)])


def _move(edit: Edit, subclass: type, old: type, new: Any) -> None:
    # A new class may itself stand on the old one: it and what lies between the two stay where they are.
    if isinstance(new, type) and subclass in new.__mro__:
        return
    holder = f"class {subclass.__module__}.{subclass.__qualname__}"
    if not isinstance(new, type):
        raise AliasError(
            f"{holder} stands on {old.__qualname__}, which is replaced by something that is no class"
        )
    bases = tuple(new if base is old else base for base in subclass.__bases__ if base is not new)
    try:
        edit.rebind(subclass, "__bases__", bases)
    except TypeError as error:
        raise AliasError(
            f"{holder} was made before {old.__qualname__} was replaced and cannot be moved: {error}"
        ) from error


class _Ours:
    """Whether an object is part of the patches."""

    def __init__(
        self,
        edit: Edit,
        olds: Collection[Any],
        news: Collection[Any],
        closed: Collection[int],
        own: Collection[str],
    ) -> None:
        family = edit.family()
        values = [value for each in family for value in each.values() if value is not ABSENT]
        self._own = own
        self._ids = {
            *closed,
            *map(id, (olds, news, *news, *values)),
            *(id(step) for each in family for step in each.steps()),
        } - set(map(id, olds))

    def __call__(self, obj: Any) -> bool:
        if id(obj) in self._ids:
            return True
        if type(obj) is FunctionType:
            home = obj.__globals__.get("__name__")
        elif isinstance(obj, type):
            home = obj.__module__
        else:
            home = type(obj).__module__
        return isinstance(home, str) and home.partition(".")[0] in self._own
