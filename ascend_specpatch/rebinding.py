# SPDX-License-Identifier: Apache-2.0
"""Puts new objects in the place of old ones, inside whatever holds them."""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from types import CellType, FunctionType, GeneratorType, MappingProxyType, MemberDescriptorType, MethodType
from typing import Any, Final

from ascend_specpatch import others
from ascend_specpatch.edits import Edit
from ascend_specpatch.holders import CACHE, Graph, Node


class AliasError(RuntimeError):
    """An alias of a replaced object that cannot be rebound; the message names who holds it."""


class Rebinding:
    """One pass over a graph. What cannot be changed (a tuple, a bound method) is made anew, once, and put in
    its own place in whatever holds it."""

    def __init__(self, edit: Edit, graph: Graph, successor: dict[int, Any]) -> None:
        self._edit = edit
        self._graph = graph
        self._new: dict[int, Any] = dict(successor)  # by the id of what it stands in for
        self._remade: dict[int, Node] = {}  # affected, not made yet

    def run(self) -> None:
        """Rebind all, through the edit.

        Raises:
            AliasError: a holder cannot be changed. What was changed until then is in the journal.
        """
        if not self._graph.is_complete:
            names = ", ".join(others.path(node.obj) for node in self._graph.olds)
            raise AliasError(f"{names} is held by so many objects that not all of its aliases can be found")
        for node in self._affected():
            try:
                done = self._change(node)
            except AliasError:
                raise
            # A host's class may refuse in any way; it is a reason to give.
            except Exception as error:
                raise AliasError(f"{self._describe(node)} and cannot be changed: {error!r}") from error
            if not done:
                raise AliasError(f"{self._describe(node)}, which cannot be changed")

    def _affected(self) -> list[Node]:
        """The live holders to change in place. Those to make anew are noted."""
        holders: dict[int, Node] = {}
        pending = list(self._graph.olds)
        for node in pending:  # grows
            for parent in node.live_parents():
                key = id(parent.obj)
                if key in holders or key in self._remade or key in self._new:
                    continue
                if _is_made_anew(parent, node):
                    self._remade[key] = parent
                    pending.append(parent)
                else:
                    holders[key] = parent
        return list(holders.values())

    def _describe(self, node: Node) -> str:
        kind = type(node.obj)
        olds = [child.obj for child in node.children if child in self._graph.olds]
        what = f"{others.path(olds[0])}" if olds else "a replaced object"
        return f"{self._graph.path(node)} holds {what} in a {kind.__module__}.{kind.__qualname__}"

    # What stands in for an object

    def _hit(self, obj: Any) -> bool:
        return id(obj) in self._new or id(obj) in self._remade

    def _renewed(self, obj: Any) -> Any:
        if id(obj) in self._new:
            return self._new[id(obj)]
        if id(obj) in self._remade:
            made = self._new[id(obj)] = self._remake(obj)
            return made
        return obj

    def _remake(self, obj: Any) -> Any:
        kind = type(obj)
        if isinstance(obj, tuple):
            return _with_state(tuple.__new__(kind, map(self._renewed, tuple.__iter__(obj))), obj)
        if isinstance(obj, frozenset):
            items = frozenset.__iter__(obj)
            return _with_state(frozenset.__new__(kind, map(self._renewed, items)), obj)
        if kind is MethodType:
            if id(obj.__self__) in self._new and hasattr(self._renewed(obj.__self__), obj.__name__):
                return getattr(self._renewed(obj.__self__), obj.__name__)  # a class method
            return MethodType(self._renewed(obj.__func__), self._renewed(obj.__self__))
        cache: Any = functools.lru_cache(**obj.cache_parameters())(self._renewed(obj.__wrapped__))
        attributes = {name: value for name, value in vars(obj).items() if name not in vars(cache)}
        vars(cache).update(attributes)
        return cache

    # In-place changes: each returns whether it found something to change and, if so, has changed it.

    def _change(self, node: Node) -> bool:
        obj = node.obj
        if any(type(obj) is child.obj for child in node.children):
            raise AliasError(
                f"{self._graph.path(node)} leads to an instance of {others.path(type(obj))} that was built "
                "before the class was replaced"
            )
        for kind, change in _CHANGES.items():
            if issubclass(type(obj), kind):  # a proxy would pass for what it stands for
                return change(self, node)
        return self._change_attributes(node)

    def _change_dict(self, node: Node) -> bool:
        obj = node.obj
        module = self._graph.module_of(obj)
        owner = module or next((p.obj for p in node.live_parents() if issubclass(type(p.obj), type)), None)
        if owner is not None:
            for name, value in list(dict.items(obj)):
                if self._hit(value) and not self._edit.is_settled(owner, name):
                    self._edit.rebind(owner, name, self._renewed(value))
            return True
        if isinstance(obj, defaultdict) and self._hit(obj.default_factory):
            self._edit.rebind(obj, "default_factory", self._renewed(obj.default_factory))
        values = {key: value for key, value in _items(obj) if self._hit(value)}
        for key, value in values.items():
            self._swap(_InDict(obj, key, value, self._renewed(value)))
        # A cached result goes on belonging to the arguments it was computed for.
        if not any(type(parent.obj) is CACHE for parent in node.parents):
            keys = [key for key, _ in _items(obj) if self._hit(key)]
            if any(dict.__contains__(obj, self._renewed(key)) for key in keys):
                raise AliasError(f"{self._describe(node)} that has what replaces it as a key, too")
            if keys:
                self._swap(_Keys(obj, [(key, self._renewed(key)) for key in keys], _cache_clearers(node)))
        return True

    def _change_list(self, node: Node) -> bool:
        for index, value in enumerate(list(node.obj)):
            if self._hit(value):
                self._swap(_InList(node.obj, index, value, self._renewed(value)))
        return True

    def _change_set(self, node: Node) -> bool:
        for value in [value for value in set.__iter__(node.obj) if self._hit(value)]:
            self._swap(_InSet(node.obj, value, self._renewed(value)))
        return True

    def _change_cell(self, node: Node) -> bool:
        functions = [above.obj for parent in node.parents for above in parent.parents]
        for function in functions:
            if type(function) is FunctionType:
                names = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
                if any(cell is node.obj and name == "__class__" for name, cell in names):
                    return True
        self._edit.rebind(node.obj, "cell_contents", self._renewed(node.obj.cell_contents))
        return True

    def _change_function(self, node: Node) -> bool:
        if self._hit(node.obj.__defaults__):
            self._edit.rebind(node.obj, "__defaults__", self._renewed(node.obj.__defaults__))
        return True

    def _change_partial(self, node: Node) -> bool:
        func, args, keywords, attributes = node.obj.__reduce__()[2]
        self._edit.undo_with(_Call(node.obj.__setstate__, (func, args, keywords, attributes)))
        node.obj.__setstate__((self._renewed(func), self._renewed(args), keywords, attributes))
        return True

    def _change_method_wrapper(self, node: Node) -> bool:
        base = classmethod if isinstance(node.obj, classmethod) else staticmethod
        if self._hit(node.obj.__func__):
            self._initialise(node.obj, base, (node.obj.__func__,))
        return self._change_attributes(node) or True

    def _change_property(self, node: Node) -> bool:
        prop = node.obj
        functions = (prop.fget, prop.fset, prop.fdel)
        if any(map(self._hit, functions)):
            doc = None if prop.__doc__ == getattr(prop.fget, "__doc__", None) else prop.__doc__
            self._initialise(prop, property, (*functions, doc))
        return self._change_attributes(node) or True

    def _change_cache(self, node: Node) -> bool:
        # A key is left: its result was computed for the old object. A bounded cache hides its results.
        return all(isinstance(child.obj, (tuple, dict)) for child in node.children)

    def _leave(self, node: Node) -> bool:
        return True

    def _change_attributes(self, node: Node) -> bool:
        obj, found = node.obj, False
        for name, value, put in _attributes(obj):
            if self._hit(value):
                found = True
                self._swap(_Attribute(obj, name, value, self._renewed(value), put))
        return found

    def _initialise(self, obj: Any, base: Any, args: tuple[Any, ...]) -> None:
        attributes = dict(vars(obj)) if hasattr(obj, "__dict__") else {}
        self._edit.undo_with(_Initialise(base, obj, args, attributes))
        base.__init__(obj, *map(self._renewed, args))

    def _swap(self, swap: _Swap) -> None:
        self._edit.undo_with(swap)
        swap.put(swap.old, swap.new)


_CHANGES: Final[dict[Any, Callable[[Rebinding, Node], bool]]] = {
    dict: Rebinding._change_dict,
    (list, deque): Rebinding._change_list,
    set: Rebinding._change_set,
    CellType: Rebinding._change_cell,
    FunctionType: Rebinding._change_function,
    functools.partial: Rebinding._change_partial,
    (staticmethod, classmethod): Rebinding._change_method_wrapper,
    property: Rebinding._change_property,
    CACHE: Rebinding._change_cache,
    (type, MappingProxyType, GeneratorType): Rebinding._leave,
}


class _Call:
    """A call to make later."""

    __slots__ = ("args", "function")

    def __init__(self, function: Any, *args: Any) -> None:
        self.function = function
        self.args = args

    def __call__(self) -> None:
        self.function(*self.args)


class _Initialise(_Call):
    """Gives a static or class method or a property back what it was made with."""

    __slots__ = ("attributes", "obj")

    def __init__(self, base: Any, obj: Any, args: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        super().__init__(base.__init__, obj, *args)
        self.obj = obj
        self.attributes = attributes

    def __call__(self) -> None:
        super().__call__()
        if hasattr(self.obj, "__dict__"):
            vars(self.obj).clear()
            vars(self.obj).update(self.attributes)


class _Swap:
    """A new object in the place of an old one; called, it puts the old one back where the new one is still
    there. Whoever has put something else there since keeps it."""

    __slots__ = ("holder", "new", "old", "place")

    def __init__(self, holder: Any, place: Any, old: Any, new: Any) -> None:
        self.holder = holder
        self.place = place
        self.old = old
        self.new = new

    def __call__(self) -> None:
        self.put(self.new, self.old)

    def put(self, out: Any, into: Any) -> None:
        raise NotImplementedError


class _InDict(_Swap):
    __slots__ = ()

    def put(self, out: Any, into: Any) -> None:
        if dict.get(self.holder, self.place) is out:
            _setter(self.holder)(self.holder, self.place, into)


class _InList(_Swap):
    __slots__ = ()

    def put(self, out: Any, into: Any) -> None:
        base: Any = list if isinstance(self.holder, list) else deque
        if self.place < len(self.holder) and base.__getitem__(self.holder, self.place) is out:
            base.__setitem__(self.holder, self.place, into)
            return
        for index, value in enumerate(list(self.holder)):  # moved since
            if value is out:
                base.__setitem__(self.holder, index, into)
                return


class _InSet(_Swap):
    __slots__ = ()

    def __init__(self, holder: Any, old: Any, new: Any) -> None:
        super().__init__(holder, None, old, new)

    def put(self, out: Any, into: Any) -> None:
        if set.__contains__(self.holder, out):
            set.discard(self.holder, out)
            set.add(self.holder, into)


class _Keys(_Swap):
    """Keys of a dict, which keeps its order."""

    __slots__ = ()

    def __init__(self, holder: Any, pairs: list[tuple[Any, Any]], then: list[Callable[[], object]]) -> None:
        super().__init__(holder, then, [old for old, _ in pairs], [new for _, new in pairs])

    def put(self, out: Any, into: Any) -> None:
        change = {id(key): other for key, other in zip(out, into, strict=True)}
        items = _items(self.holder)
        base: Any = OrderedDict if isinstance(self.holder, OrderedDict) else dict
        base.clear(self.holder)
        for key, value in items:
            base.__setitem__(self.holder, change.get(id(key), key), value)
        for clear in self.place:
            clear()


class _Attribute(_Swap):
    __slots__ = ("set",)

    def __init__(self, holder: Any, name: str, old: Any, new: Any, put: Callable[[Any], object]) -> None:
        super().__init__(holder, name, old, new)
        self.set = put

    def put(self, out: Any, into: Any) -> None:
        if any(name == self.place and value is out for name, value, _ in _attributes(self.holder)):
            self.set(into)


def _is_made_anew(parent: Node, child: Node) -> bool:
    obj = parent.obj
    if type(obj) is CACHE:
        return vars(obj).get("__wrapped__") is child.obj
    return issubclass(type(obj), (tuple, frozenset, MethodType)) and type(obj) is not child.obj


def _with_state(new: Any, old: Any) -> Any:
    if hasattr(old, "__dict__"):
        vars(new).update(vars(old))
    return new


def _items(obj: Any) -> list[tuple[Any, Any]]:
    base: Any = OrderedDict if isinstance(obj, OrderedDict) else dict
    return list(base.items(obj))


def _setter(obj: Any) -> Any:
    return OrderedDict.__setitem__ if isinstance(obj, OrderedDict) else dict.__setitem__


def _attributes(obj: Any) -> Iterator[tuple[str, Any, Callable[[Any], object]]]:
    """(name, value, what sets it) of the attributes that are kept in an object, past any ``__setattr__``."""
    try:
        names = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        names = {}
    for name, value in list(names.items()):
        yield name, value, functools.partial(names.__setitem__, name)
    for base in type(obj).__mro__:
        for name, slot in vars(base).items():
            if type(slot) is MemberDescriptorType:
                try:
                    yield name, slot.__get__(obj, type(obj)), functools.partial(slot.__set__, obj)
                except AttributeError:  # not filled
                    continue
    if others.is_wrapt(type(obj)):
        yield "__wrapped__", obj.__wrapped__, functools.partial(setattr, obj, "__wrapped__")


def _cache_clearers(node: Node) -> list[Callable[[], object]]:
    """Those of the ``functools.singledispatch`` functions whose registry a dict is: each remembers which
    class got which implementation."""
    holders: Collection[Node] = [
        above for parent in node.parents if type(parent.obj) is MappingProxyType for above in parent.parents
    ]
    return [
        holder.obj["_clear_cache"]
        for holder in holders
        if isinstance(holder.obj, dict) and callable(holder.obj.get("_clear_cache"))
    ]
