# SPDX-License-Identifier: Apache-2.0
"""Who holds an object: the search behind :mod:`ascend_specpatch.aliases`.

Two questions, the cheap one first. :class:`Inside` counts the references to the objects that come from
themselves, their replacements and the journals; where these are all that exist nobody else holds them.
:class:`Graph` then asks the garbage collector, which knows every reference between containers, and climbs
from the holders to the namespaces of modules: what no namespace leads to (frames, a test's variables, a
journal) holds an object for itself and is nobody's alias.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from ascend_specpatch import others
from ascend_specpatch.edits import Edit

CACHE: Final = functools._lru_cache_wrapper

_MEMBERS = (types.GetSetDescriptorType, types.MemberDescriptorType)

# What the count looks into. Of other objects it does not know what they hold; the collector does.
_SIMPLE = (
    *(types.FunctionType, types.CellType, types.MethodType, types.MappingProxyType, *_MEMBERS),
    *(dict, list, tuple, set, frozenset, property, classmethod, staticmethod, functools.partial),
)

# Never aliases: running code, weak references, and annotations, which say nothing to the running program.
_NO_HOLDERS = (
    *(
        types.FrameType,
        types.GeneratorType,
        types.CoroutineType,
        types.AsyncGeneratorType,
        types.TracebackType,
    ),
    *(weakref.ref, types.GenericAlias, types.UnionType),
)

# Where the search gives up. What torch registers for vLLM was seen fifteen levels away from a module of vLLM.
_MOST_LEVELS: Final = 30
_MOST_NODES: Final = 2_000


class Inside:
    """What the old objects, the new ones and the journals hold themselves.

    Attributes:
        closed: ids of the objects that are reached from those alone.
        is_all: whether nobody else has a reference that leads to an old object.
    """

    def __init__(self, olds: Collection[Any], news: Collection[Any], edit: Edit) -> None:
        self._ends = {id(obj) for obj in (*olds, *news)}
        self._nodes: dict[int, Any] = {}
        self._count: dict[int, int] = dict.fromkeys(self._ends, 1)  # by the arguments
        self._holds: dict[int, list[int]] = {}
        steps = {id(step) for each in edit.family() for step in each.steps()}
        journals = (step for each in edit.family() for step in each.steps())
        self._walk([*olds, *news, *journals], _own_classes(olds, news))
        entered = [key for key in self._nodes.keys() - self._ends - steps if self._surplus(key) > 0]
        opened = self._reached(entered)
        self.closed = frozenset(self._nodes.keys() - opened - self._ends)
        old_ids = set(map(id, olds))  # a variable that named one would count
        self.is_all = not (opened & old_ids) and not any(self._surplus(key) > 0 for key in old_ids)
        self._nodes.clear()

    def _walk(self, roots: Iterable[Any], classes: set[int]) -> None:
        pending = list(roots)
        while pending:
            obj = pending.pop()
            if id(obj) in self._nodes:
                continue
            self._nodes[id(obj)] = obj
            held = self._holds[id(obj)] = []
            for part in _all_referents(obj):
                held.append(id(part))
                self._count[id(part)] = self._count.get(id(part), 0) + 1
                if type(part) in _SIMPLE or id(part) in classes:
                    pending.append(part)

    def _surplus(self, key: int) -> int:
        return sys.getrefcount(self._nodes[key]) - self._count.get(key, 0) - self._baseline

    @functools.cached_property
    def _baseline(self) -> int:
        """The references that an object has to which nothing but ``_nodes`` refers."""
        probe = _Probe()
        self._nodes[0] = probe
        del probe
        references = sys.getrefcount(self._nodes[0])
        del self._nodes[0]
        return references

    def _reached(self, starts: Iterable[int]) -> set[int]:
        """``starts`` and what they lead to without passing an old or a new object."""
        pending, reached = list(starts), set()
        while pending:
            key = pending.pop()
            if key not in reached:
                reached.add(key)
                if key not in self._ends:
                    pending += self._holds.get(key, ())
        return reached


class _Probe:
    __slots__ = ()


class Node:
    """An object that leads to an old one.

    Attributes:
        parents, children: the nodes that hold it and those it holds.
        is_live: whether the namespace of a host module leads to it.
    """

    __slots__ = ("children", "is_live", "obj", "parents")

    def __init__(self, obj: Any) -> None:
        self.obj: Final = obj
        self.parents: list[Node] = []
        self.children: list[Node] = []
        self.is_live = False

    def live_parents(self) -> list[Node]:
        return [parent for parent in self.parents if parent.is_live]


class Graph:
    """What leads from host modules to the old objects.

    Attributes:
        olds: the nodes of the old objects, in their order.
        is_complete: whether the search came to its end. Where not, some holders may be missing.
    """

    def __init__(
        self, olds: Collection[Any], packages: Collection[str], is_ours: Callable[[Any], bool]
    ) -> None:
        """
        Args:
            packages: top-level names of the modules whose namespaces count.
            is_ours: whether an object belongs to the patches: what it holds is no alias, and the search does
                not climb beyond it.
        """
        self._packages = packages
        self._is_ours = is_ours
        self._modules = {id(namespace(module)): module for module in loaded()}
        self._nodes = {id(old): Node(old) for old in olds}
        self._old_ids = frozenset(self._nodes)
        self.olds = list(self._nodes.values())
        self._roots: list[Node] = []
        self._climb()
        self._spread()

    def module_of(self, obj: Any) -> types.ModuleType | None:
        """The loaded module whose namespace an object is."""
        return self._modules.get(id(obj))

    def path(self, node: Node) -> str:
        """Where people find a node: the name in a module that leads to it."""
        paths: list[tuple[Node, Node | None]] = [(node, None)]
        seen: set[int] = set()
        for each, below in paths:  # grows; the first root met is the nearest
            module = self.module_of(each.obj)
            if module is not None and below is not None:
                name = next((key for key, value in each.obj.items() if value is below.obj), "?")
                return f"{name_of(module)}.{name}"
            if each in self._roots and issubclass(type(each.obj), (type, types.FunctionType)):
                return others.path(each.obj)
            if id(each) not in seen:
                seen.add(id(each))
                paths += [(parent, each) for parent in each.live_parents()]
        return others.path(node.obj)

    def _climb(self) -> None:
        level = list(self.olds)
        for _ in range(_MOST_LEVELS):
            if not level or len(level) > _MOST_NODES:
                break
            below = {id(node.obj): node for node in level}
            level = []
            holders = _referrers(node.obj for node in below.values())
            while holders:
                holder = holders.pop()
                if self._is_no_holder(holder):
                    continue
                node = self._nodes.get(id(holder))
                if node is None:
                    node = self._nodes[id(holder)] = Node(holder)
                    if not self._is_end(holder):
                        level.append(node)
                    elif self._is_root(holder):
                        self._roots.append(node)
                for part in {id(part) for part in _referents(holder)} & below.keys():
                    node.children.append(below[part])
                    below[part].parents.append(node)
        self.is_complete = not level

    def _spread(self) -> None:
        pending = list(self._roots)
        while pending:
            node = pending.pop()
            if not node.is_live:
                node.is_live = True
                if id(node.obj) not in self._old_ids:
                    pending += node.children

    def _is_no_holder(self, obj: Any) -> bool:
        kind = type(obj)
        return (
            issubclass(kind, _NO_HOLDERS)
            or kind.__module__ in ("typing", __name__, Edit.__module__)
            or self._is_ours(obj)
        )

    def _is_end(self, obj: Any) -> bool:
        """Whether it is known what leads to an object: a namespace, or what is found under its own name."""
        return self.module_of(obj) is not None or self._is_at_home(obj)

    def _is_root(self, obj: Any) -> bool:
        """Whether an end is one of the hosts'."""
        module = self.module_of(obj)
        home = obj.__module__ if module is None else name_of(module)
        return home.partition(".")[0] in self._packages

    def _is_at_home(self, obj: Any) -> bool:
        """Whether a class or function is found in a module under the name it bears."""
        if not issubclass(type(obj), (type, types.FunctionType)):
            return False
        home, qualname = obj.__module__, obj.__qualname__
        module = sys.modules.get(home) if isinstance(home, str) else None
        if not isinstance(module, types.ModuleType):
            return False
        found: Any = None
        names: Any = namespace(module)
        for name in qualname.split("."):
            found = names.get(name)
            if type(found) in (staticmethod, classmethod):
                found = found.__func__
            if found is None or self._is_ours(found) or id(found) in self._old_ids:
                return False
            names = vars(found) if issubclass(type(found), type) else {}
        return found is obj


def loaded() -> list[types.ModuleType]:
    """The modules in ``sys.modules``, each once."""
    modules = {id(module): module for module in list(sys.modules.values())}
    return [module for module in modules.values() if isinstance(module, types.ModuleType)]


def namespace(module: types.ModuleType) -> dict[str, Any]:
    """The globals of a module. Past any ``__getattribute__``: looking at a lazy module must not load it."""
    names: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return names


def name_of(module: types.ModuleType) -> str:
    """What a module says it is called; empty where that is no text."""
    name = namespace(module).get("__name__")
    return name if isinstance(name, str) else ""


def _referrers(objs: Iterable[Any]) -> list[Any]:
    """All containers that refer to ``objs``; also those that ``gc.freeze()`` hides, as vLLM does once it has
    started."""
    args = (*objs,)  # tuple() would fail where the collector shows it half built to another thread
    frozen = gc.get_freeze_count()
    if frozen:
        gc.unfreeze()
    try:
        # Python 3.13 counts the arguments of this very call among the holders.
        return [holder for holder in gc.get_referrers(*args) if holder is not args]
    finally:
        if frozen:
            gc.freeze()


def _own_classes(olds: Collection[Any], news: Collection[Any]) -> set[int]:
    """Ids of the old classes, the new ones, and of what the patch made for these to stand on."""
    family = {id(base) for old in olds if isinstance(old, type) for base in old.__mro__}
    made = {
        id(base)
        for new in news
        if isinstance(new, type)
        for base in new.__mro__
        if id(base) not in family and not _is_named(base)
    }
    return {id(obj) for obj in (*olds, *news) if isinstance(obj, type)} | made


def _is_named(cls: type) -> bool:
    return getattr(sys.modules.get(cls.__module__), cls.__qualname__.partition(".")[0], None) is not None


def _all_referents(obj: Any) -> list[Any]:
    """What an object holds, one entry a reference, without the globals of a function."""
    referents = gc.get_referents(obj)
    if type(obj) is not types.FunctionType:
        return referents
    elsewhere = (obj.__globals__, obj.__builtins__)
    return [part for part in referents if not any(part is each for each in elsewhere)]


def _referents(obj: Any) -> Iterable[Any]:
    """What an object holds that can make it an alias: not the bases of a class (moved by themselves), not the
    annotations of anything."""
    kind = type(obj)
    if kind is types.FunctionType:
        return (obj.__closure__, obj.__defaults__, obj.__kwdefaults__, obj.__dict__)
    if issubclass(kind, type):
        return [kind, *(part for part in gc.get_referents(obj) if type(part) is dict)]
    if kind is dict and "__annotations__" in obj:
        annotations = obj["__annotations__"]
        return [part for part in gc.get_referents(obj) if part is not annotations]
    return gc.get_referents(obj)
