# SPDX-License-Identifier: Apache-2.0
"""Whoever took an object before it was replaced is given the new one: globals of host modules, bases of
classes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import Any

from ascend_specpatch.edits import Edit


class AliasError(RuntimeError):
    """An alias of a replaced object that cannot be rebound; the message names who holds it."""


def rebind(edit: Edit, packages: Collection[str]) -> None:
    """Rebind, through ``edit``, the aliases of what it replaced that loaded modules of ``packages``
    (top-level names) hold.

    Names that the patch itself has set are left alone: it may keep the original under a name of its own.

    Raises:
        AliasError: a class stands on a replaced one and cannot be moved.
    """
    replaced = tuple(edit.replaced)
    if not replaced:
        return
    successor = {id(old): new for old, new in replaced}
    for module, namespace in _loaded(packages):
        for name, value in list(namespace.items()):
            if id(value) in successor and not edit.wrote(module, name):
                edit.set(module, name, successor[id(value)])
    for old, new in replaced:
        if isinstance(old, type):
            subclasses: list[type] = type.__subclasses__(old)
            for subclass in subclasses:
                if subclass.__module__.partition(".")[0] in packages:
                    _move(edit, subclass, old, new)


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
        edit.set(subclass, "__bases__", bases)
    except TypeError as error:
        raise AliasError(
            f"{holder} was made before {old.__qualname__} was replaced and cannot be moved: {error}"
        ) from error


def _loaded(packages: Collection[str]) -> Iterator[tuple[ModuleType, dict[str, Any]]]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in packages and isinstance(module, ModuleType):
            # Past any __getattribute__: looking at a lazy module must not load it.
            yield module, object.__getattribute__(module, "__dict__")
