# SPDX-License-Identifier: Apache-2.0
"""The journal of one patch: every change to a host is made through it and can be taken back exactly."""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType, ModuleType
from typing import Any, Final

_ABSENT: Final = object()

# Values that mean themselves: that two names hold the same one says nothing about one being an alias of the
# other.
_ATOMS = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, EllipsisType, ModuleType)


class EditError(RuntimeError):
    """A change that could not be taken back."""


class Edit:
    """What a patch's ``apply`` is given.

    Attributes:
        module: the target, loaded.
        replaced: (old, new) of the module-level objects that this patch replaced where they are defined.
            Aliases of the old ones in other host modules are rebound; append to it to have an object followed
            that is defined elsewhere.
    """

    def __init__(self, patch_id: str, module: ModuleType, earlier: tuple[Edit, ...] = ()) -> None:
        """``earlier``: the edits applied before, whose replacements this one may replace again."""
        self.patch_id = patch_id
        self.module = module
        self.replaced: list[tuple[Any, Any]] = []
        self._earlier = earlier
        self._undo: list[Callable[[], object]] = []
        self._written: set[tuple[int, str]] = set()

    def __repr__(self) -> str:
        return f"Edit({self.patch_id}, {self.module.__name__}, {len(self._undo)} changes)"

    def set(self, owner: Any, name: str, value: Any, *, aliases: bool = True) -> None:
        """Set an attribute of a module, class or object.

        Args:
            aliases: whether other modules that hold the object which `value` replaces are given `value` too.
                False where the name is to mean something else in this module alone.
        """
        old = _own_value(owner, name)
        setattr(owner, name, value)
        self._undo.append(_inverse(owner, name, old))
        self._written.add((id(owner), name))
        if aliases and isinstance(owner, ModuleType) and self._is_replacement(owner, old, value):
            self.replaced.append((old, value))

    def delete(self, owner: Any, name: str) -> None:
        """Delete an attribute of a module, class or object.

        Raises:
            AttributeError: ``owner`` itself has no such attribute.
        """
        old = _own_value(owner, name)
        delattr(owner, name)
        self._undo.append(_inverse(owner, name, old))
        self._written.add((id(owner), name))

    def undo_with(self, inverse: Callable[[], object]) -> None:
        """Register how to take back a change that was made by other means."""
        self._undo.append(inverse)

    def wrote(self, owner: Any, name: str) -> bool:
        """Whether this edit set or deleted that attribute."""
        return (id(owner), name) in self._written

    def undo(self) -> None:
        """Take all changes back, the last one first.

        Raises:
            EditError: some could not be taken back; all others were.
        """
        failures: list[Exception] = []
        while self._undo:
            try:
                self._undo.pop()()
            # An inverse is anyone's code, and the ones before it must run all the same.
            except Exception as error:
                failures.append(error)
        self.replaced.clear()
        self._written.clear()
        if failures:
            raise EditError(
                f"{self.patch_id}: {len(failures)} changes could not be taken back"
            ) from failures[0]

    def _is_replacement(self, owner: ModuleType, old: Any, new: Any) -> bool:
        if old is _ABSENT or old is new or isinstance(old, _ATOMS):
            return False
        if any(old is known and new is value for known, value in self.replaced):
            return False
        # Setting a name that the module merely imported concerns this module alone, unless an earlier patch
        # put the object there.
        at_home: bool = getattr(old, "__module__", None) == owner.__name__
        return at_home or any(old is value for edit in self._earlier for _, value in edit.replaced)


def _own_value(owner: Any, name: str) -> Any:
    """The value to restore: raw from the owner's own namespace, so that a staticmethod comes back as one, and
    inherited values are seen as absent. What a data descriptor governs (``__bases__``, ``__code__``, slots,
    properties) is asked of the descriptor."""
    for base in type(owner).__mro__:
        if name in vars(base):
            if hasattr(type(vars(base)[name]), "__set__"):
                return getattr(owner, name, _ABSENT)
            break
    return getattr(owner, "__dict__", {}).get(name, _ABSENT)


def _inverse(owner: Any, name: str, old: Any) -> Callable[[], object]:
    if old is _ABSENT:
        return lambda: delattr(owner, name)
    return lambda: setattr(owner, name, old)
