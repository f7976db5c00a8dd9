# SPDX-License-Identifier: Apache-2.0
"""The journal of one patch: every change to a host is made through it and can be taken back exactly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import EllipsisType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, Final

from ascend_specpatch import others


class _Absent:
    def __repr__(self) -> str:
        return "<absent>"


ABSENT: Final = _Absent()

# Values that mean themselves: that two names hold the same one says nothing about one being an alias of the
# other.
_ATOMS = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, EllipsisType, ModuleType)


class EditError(RuntimeError):
    """A change that could not be taken back."""


class _Change:
    """One attribute that was set or deleted. What an attribute held may be ABSENT."""

    __slots__ = ("is_alias", "is_readable", "name", "new", "old", "owner")

    def __init__(self, owner: Any, name: str, old: Any, value: Any, is_alias: bool) -> None:
        self.owner: Final = owner
        self.name: Final = name
        self.old: Final = old
        # As the attribute reads right after the change: a __setattr__ may have put something else there.
        stored = _is_stored(owner, name)
        held = _own_value(owner, name) if stored else ABSENT
        self.is_readable: Final = stored and (held is ABSENT) == (value is ABSENT)
        self.new: Final = held if self.is_readable else value
        self.is_alias: Final = is_alias  # of something replaced elsewhere

    def key(self) -> tuple[int, str]:
        return (id(self.owner), self.name)

    def by_another(self) -> _Found | None:
        """What the attribute holds now, ABSENT included, where that is not what the change left."""
        if not self.is_readable:
            return None
        held = _own_value(self.owner, self.name)
        return None if held is self.new else _Found(held)

    def take_back(self) -> None:
        if self.old is ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.old)

    def path(self) -> str:
        return others.path(self.owner, self.name)


class _Found:
    """A value that may be None."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: Final = value

    def how(self) -> str:
        if self.value is ABSENT:
            return "deleted after this patch"
        return f"wrapped or replaced after this patch by {others.describe(self.value)}"


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
        self._later: list[Edit] = []
        # In the order in which they were made.
        self._journal: list[_Change | Callable[[], object]] = []
        self._first_alias: int | None = None
        self._written: set[tuple[int, str]] = set()
        for edit in earlier:
            edit._later.append(self)

    def __repr__(self) -> str:
        return f"Edit({self.patch_id}, {self.module.__name__}, {len(self._journal)} changes)"

    def is_empty(self) -> bool:
        """Whether there is nothing to take back."""
        return not self._journal

    def set(self, owner: Any, name: str, value: Any, *, aliases: bool = True) -> None:
        """Set an attribute of a module, class or object.

        Args:
            aliases: whether other modules that hold the object which `value` replaces are given `value` too.
                False where the name is to mean something else in this module alone.
        """
        old = self._set(owner, name, value, is_alias=False)
        if aliases and isinstance(owner, ModuleType) and self._is_replacement(owner, old, value):
            self.replaced.append((old, value))

    def rebind(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute that is an alias of what this patch replaced elsewhere: nobody follows it further,
        and it is no concern of this patch who changes it later."""
        self._set(owner, name, value, is_alias=True)

    def delete(self, owner: Any, name: str) -> None:
        """Delete an attribute of a module, class or object.

        Raises:
            AttributeError: ``owner`` itself has no such attribute.
        """
        old = _own_value(owner, name)
        delattr(owner, name)
        self._record(_Change(owner, name, old, ABSENT, is_alias=False))

    def undo_with(self, inverse: Callable[[], object]) -> None:
        """Register how to take back a change that was made by other means."""
        self._journal.append(inverse)

    def wrote(self, owner: Any, name: str) -> bool:
        """Whether this edit set or deleted that attribute."""
        return (id(owner), name) in self._written

    def changes(self) -> tuple[tuple[Any, str, Any, Any], ...]:
        """(owner, name, old, new) of every attribute that was set or deleted, in order, aliases too. ``old``
        and ``new`` are raw values, as in ``vars(owner)``, and ``edits.ABSENT`` where there was none."""
        return tuple((c.owner, c.name, c.old, c.new) for c in self._attributes())

    def family(self) -> tuple[Edit, ...]:
        """The edits applied before this one, this one, and those made since."""
        return (*self._earlier, self, *self._later)

    def steps(self) -> tuple[object, ...]:
        """What the journal holds of hosts and patches: objects that are nobody's aliases."""
        return (*self._journal, *self.replaced)

    def values(self) -> list[Any]:
        """What this patch itself put into attributes, without the aliases of it."""
        return [change.new for change in self._attributes() if not change.is_alias]

    def is_settled(self, owner: Any, name: str) -> bool:
        """Whether this edit or a later one set or deleted that attribute."""
        return any(edit.wrote(owner, name) for edit in (self, *self._later))

    def foreign(self) -> list[str]:
        """Sentences about attributes that did not hold the host's own object when this patch set them."""
        ours = {id(change.new) for edit in self.family() for change in edit._attributes()}
        return [
            f"{change.path()} had been wrapped or replaced before this patch by {others.describe(change.old)}"
            for change in self._attributes()
            if not change.is_alias
            and change.old is not ABSENT
            and id(change.old) not in ours
            and others.is_foreign(change.old, _home(change.owner))
        ]

    def overwritten(self) -> list[str]:
        """Sentences about attributes that no longer hold what this patch set and that no later patch of ours
        changed."""
        return [
            f"{change.path()} was {found.how()}"
            for change in {change.key(): change for change in self._attributes()}.values()
            if not change.is_alias
            and not any(edit.wrote(change.owner, change.name) for edit in self._later)
            and (found := change.by_another()) is not None
        ]

    def begin_aliases(self) -> None:
        """From here on all changes concern aliases of what was replaced."""
        if self._first_alias is None:
            self._first_alias = len(self._journal)

    def withdraw(self) -> None:
        """The target was loaded again and is to be patched again: take back what this patch itself has
        changed, where it is still there, and leave the aliases as they are. Never raises: what a new
        execution of the target's code has set is not ours any more."""
        first_alias = len(self._journal) if self._first_alias is None else self._first_alias
        own, self._journal = self._journal[:first_alias], self._journal[first_alias:]
        self._first_alias = 0
        left: set[tuple[int, str]] = set()
        for step in reversed(own):
            with contextlib.suppress(Exception):
                if not isinstance(step, _Change):
                    step()
                elif step.key() not in left:
                    if step.by_another() is None:
                        step.take_back()
                    else:
                        left.add(step.key())
        self._written = {step.key() for step in self._attributes()}

    def undo(self) -> None:
        """Take all changes back, the last one first.

        What somebody else has put in the place of ours stays there: it may be a wrapper that still calls
        ours, and to throw it away would silently undo their work. That is an error that names the attribute
        and who did it; a changed alias is not, for whoever holds an alias may drop it.

        Raises:
            EditError: some could not be taken back; all others were.
        """
        failures: list[Exception] = []
        left: set[tuple[int, str]] = set()
        while self._journal:
            step = self._journal.pop()
            try:
                if not isinstance(step, _Change):
                    step()
                elif step.key() in left:
                    continue
                elif (found := step.by_another()) is None:
                    step.take_back()
                else:
                    left.add(step.key())
                    if not step.is_alias:
                        raise EditError(f"{step.path()} was {found.how()} and is left as it is")
            # An inverse is anyone's code, and the ones before it must run all the same.
            except Exception as error:
                failures.append(error)
        self.replaced.clear()
        self._written.clear()
        for edit in self._earlier:
            if self in edit._later:
                edit._later.remove(self)
        if failures:
            several = f"{len(failures)} changes" if len(failures) > 1 else "1 change"
            said = "; ".join(
                str(error) if isinstance(error, EditError) else f"{type(error).__name__}: {error}"
                for error in failures
            )
            raise EditError(f"{self.patch_id}: {several} could not be taken back: {said}") from failures[0]

    def _set(self, owner: Any, name: str, value: Any, *, is_alias: bool) -> Any:
        old = _own_value(owner, name)
        setattr(owner, name, value)
        self._record(_Change(owner, name, old, value, is_alias))
        return old

    def _record(self, change: _Change) -> None:
        self._journal.append(change)
        self._written.add(change.key())

    def _attributes(self) -> Iterator[_Change]:
        return (step for step in self._journal if isinstance(step, _Change))

    def _is_replacement(self, owner: ModuleType, old: Any, new: Any) -> bool:
        if old is ABSENT or old is new or isinstance(old, _ATOMS):
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
    if _governing(owner, name) is not None:
        return getattr(owner, name, ABSENT)
    if isinstance(owner, ModuleType):  # a lazy one loads when it is asked
        return object.__getattribute__(owner, "__dict__").get(name, ABSENT)
    return getattr(owner, "__dict__", {}).get(name, ABSENT)


def _is_stored(owner: Any, name: str) -> bool:
    """Whether reading the attribute gives what is kept: a property may make up a value each time."""
    descriptor = _governing(owner, name)
    return descriptor is None or type(descriptor) in (GetSetDescriptorType, MemberDescriptorType)


def _governing(owner: Any, name: str) -> Any:
    """The data descriptor that an attribute belongs to, or None."""
    for base in type(owner).__mro__:
        if name in vars(base):
            descriptor = vars(base)[name]
            return descriptor if hasattr(type(descriptor), "__set__") else None
    return None


def _home(owner: Any) -> str:
    return others.owner(owner)
