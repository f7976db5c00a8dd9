# SPDX-License-Identifier: Apache-2.0
"""Whoever holds a replaced object in a host is given the new one and, later, the old one back; what the
patches hold is not touched."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from ascend_specpatch.aliases import AliasError, rebind
from ascend_specpatch.edits import Edit

Make = Callable[..., ModuleType]

TARGET = """
class Old:
    def method(self): return "old"
    @classmethod
    def create(cls): return cls
def old(*args, **kwargs): return "old"
"""


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(name: str, source: str = "", **names: object) -> ModuleType:
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
        exec(source, vars(module))
        return module

    return make


@pytest.fixture
def target(make: Make) -> ModuleType:
    return make("fakehost.target", TARGET)


class New:
    @classmethod
    def create(cls) -> type:
        return cls


def new(*args: Any, **kwargs: Any) -> str:
    return "new"


def replace(target: ModuleType, *names: str) -> Edit:
    """Replace ``Old``, ``old`` or both, and rebind."""
    edit = Edit("worker.test", target)
    for name in names or ("Old", "old"):
        edit.set(target, name, {"Old": New, "old": new}[name])
    rebind(edit, {"fakehost"})
    return edit


def test_globals_follow_in_hosts_and_in_the_modules_of_users(make: Make, target: ModuleType) -> None:
    old = target.Old
    holder = make("fakehost.holder", Old=old, renamed=old, other=1)
    user = make("user_script", "class Sub(Old): pass", Old=old)
    library = make("json.imaginary", Old=old)
    engine = make("ascend_specpatch.imaginary", Old=old)
    edit = Edit("worker.test", target)
    edit.set(target, "_kept", old)
    edit.set(target, "Old", New)
    rebind(edit, {"fakehost"})
    assert (holder.Old, holder.renamed, holder.other) == (New, New, 1)
    assert user.Old is New
    assert user.Sub.__bases__ == (old,)
    assert (library.Old, engine.Old, target._kept) == (old, old, old)
    edit.undo()
    assert (holder.Old, holder.renamed, target.Old, user.Old) == (old, old, old, old)


def test_who_defines_what_was_put_into_a_host_keeps_it(make: Make, target: ModuleType) -> None:
    plugin = make("plugin.patches", "def old(): return 'plugin'")
    plugin.old.__module__ = "fakehost.target"  # as functools.wraps does
    target.old = plugin.old
    holder = make("fakehost.holder", old=plugin.old)
    replace(target, "old")
    assert holder.old is new
    assert plugin.old is not new


def test_subclasses_are_moved_and_moved_back(make: Make, target: ModuleType) -> None:
    old = target.Old
    holder = make(
        "fakehost.holder", "class Mixin: pass\nclass Sub(Mixin, Old): pass\nclass Subsub(Sub): pass", Old=old
    )
    edit = replace(target)
    assert holder.Sub.__bases__ == (holder.Mixin, New)
    assert issubclass(holder.Subsub, New)
    edit.undo()
    assert holder.Sub.__bases__ == (holder.Mixin, old)


def test_a_new_class_that_stands_on_the_old_one_keeps_its_bases(target: ModuleType) -> None:
    old = target.Old
    exec("class Between(Old): pass\nclass New(Between): pass", vars(target))
    edit = Edit("worker.test", target)
    edit.set(target, "Old", target.New)
    rebind(edit, {"fakehost"})
    assert target.New.__mro__[1:3] == (target.Between, old)


def test_a_class_that_cannot_be_moved_is_named(make: Make, target: ModuleType) -> None:
    make("fakehost.holder", "class Sub(Old): pass", Old=target.Old)
    edit = Edit("worker.test", target)
    edit.set(target, "Old", type("New", (), {"__slots__": ("layout",)}))
    with pytest.raises(AliasError, match=r"class fakehost\.holder\.Sub was made before Old was replaced"):
        rebind(edit, {"fakehost"})


def test_looking_for_aliases_does_not_load_lazy_modules(
    monkeypatch: pytest.MonkeyPatch, target: ModuleType
) -> None:
    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(f"loaded by asking for {name}")

    monkeypatch.setitem(sys.modules, "fakehost.lazy", Lazy("fakehost.lazy"))
    vars(target)["kept"] = [target.old]
    edit = replace(target)
    assert edit.replaced
    assert target.kept == [new]


# Each holder: what a host module runs after `from fakehost.target import Old, old`, and what reads the alias.
HOLDERS = {
    "a class attribute": ("class C:\n  attr = Old", "C.attr", "Old"),
    "a static method": ("class C:\n  f = staticmethod(old)", "C.__dict__['f'].__func__", "old"),
    "a class method": ("class C:\n  f = classmethod(old)", "C.__dict__['f'].__func__", "old"),
    "a method": ("class C:\n  f = old", "C.f", "old"),
    "a property": ("class C:\n  f = property(old, old, doc='text')", "C.f.fset", "old"),
    "a cached property": ("class C:\n  f = functools.cached_property(old)", "C.f.func", "old"),
    "a default": ("def f(a, b=old): pass", "f.__defaults__[0]", "old"),
    "a keyword default": ("def f(*, b=Old): pass", "f.__kwdefaults__['b']", "Old"),
    "a default of a method": ("class C:\n  def f(self, b=Old): pass", "C.f.__defaults__[0]", "Old"),
    "a closure": ("def g(x):\n  return lambda: x\nf = g(old)", "f()", "old"),
    "a decorator's closure": (
        "def g(x):\n  @functools.wraps(x)\n  def w(): return x\n  return w\nf = g(old)",
        "f()",
        "old",
    ),
    "__wrapped__": ("@functools.wraps(old)\ndef f(): pass", "f.__wrapped__", "old"),
    "a function attribute": ("def f(): pass\nf.cls = Old", "f.cls", "Old"),
    "partial, function": ("p = functools.partial(old, 1)", "p.func", "old"),
    "partial, argument": ("p = functools.partial(print, Old)", "p.args[0]", "Old"),
    "partial, keyword": ("p = functools.partial(print, end=Old)", "p.keywords['end']", "Old"),
    "partialmethod": ("class C:\n  p = functools.partialmethod(old, 1)", "C.__dict__['p'].func", "old"),
    "partialmethod, argument": (
        "class C:\n  p = functools.partialmethod(print, Old)",
        "C.__dict__['p'].args[0]",
        "Old",
    ),
    "a dict value": ("D = {'a': 1, 'k': Old, 'z': 2}", "D['k']", "Old"),
    "a dict key": ("D = {'a': 1, Old: 5, 'z': 2}", "list(D)[1]", "Old"),
    "a nested dict": ("D = {'k': {'k': [1, {'x': Old}]}}", "D['k']['k'][1]['x']", "Old"),
    "a defaultdict": ("D = defaultdict(list, k=Old)", "D['k']", "Old"),
    "a default factory": ("D = defaultdict(Old)", "D.default_factory", "Old"),
    "an OrderedDict value": ("D = OrderedDict(a=1, k=Old, z=2)", "D['k']", "Old"),
    "an OrderedDict key": ("D = OrderedDict([('a', 1), (Old, 2), ('z', 3)])", "list(D)[1]", "Old"),
    "a strict dict": (
        "class D(dict):\n  def __setitem__(self, k, v): raise KeyError(k)\nd = D(k=Old)",
        "d['k']",
        "Old",
    ),
    "a list": ("L = [1, old, 2]", "L[1]", "old"),
    "a deque": ("L = deque([1, old], maxlen=2)", "L[1]", "old"),
    "a set": ("S = {Old}", "next(iter(S))", "Old"),
    "a frozenset": ("S = frozenset({Old})", "next(iter(S))", "Old"),
    "a tuple": ("T = (1, Old)", "T[1]", "Old"),
    "a named tuple": ("N = namedtuple('N', 'a b')\nT = N(1, Old)", "T.b", "Old"),
    "a tuple in a dict in a class": ("class C:\n  d = {'k': (1, (Old,))}", "C.d['k'][1][0]", "Old"),
    "a tuple as a dict key": ("D = {'a': 1, (Old, 'x'): 2}", "list(D)[1][0]", "Old"),
    "a frozenset in a list": ("L = [frozenset({(Old,)})]", "next(iter(L[0]))[0]", "Old"),
    "a tuple that two share": ("t = (Old,)\nL = [t, {'k': t}]", "L[1]['k'][0]", "Old"),
    "an instance": ("class C: pass\nc = C()\nc.attr = Old", "c.attr", "Old"),
    "a registry object": (
        "class R:\n  def __init__(self): self.d = {}\nr = R()\nr.d['x'] = Old",
        "r.d['x']",
        "Old",
    ),
    "slots": ("class C:\n  __slots__ = ('a',)\nc = C()\nc.a = Old", "c.a", "Old"),
    "a frozen dataclass": ("@dataclass(frozen=True)\nclass C:\n  a: Any\nc = C(Old)", "c.a", "Old"),
    "a dataclass factory": (
        "@dataclass\nclass C:\n  a: Any = field(default_factory=Old)",
        "type(C().a)",
        "Old",
    ),
    "a bound method": ("class C:\n  f = old\nm = C().f", "m.__func__", "old"),
    "a bound class method": ("m = Old.create", "m()", "Old"),
    "a cache": ("f = functools.lru_cache(maxsize=3)(old)", "f.__wrapped__", "old"),
    "a cached result": ("@functools.cache\ndef f(): return Old\nf()", "f()", "Old"),
    "single dispatch, implementation": (
        "@functools.singledispatch\ndef f(x): pass\nf.register(int, old)\nf(1)",
        "f.dispatch(int)",
        "old",
    ),
    "single dispatch, class": (
        "@functools.singledispatch\ndef f(x): return 'any'\nf.register(Old, lambda x: 'it')",
        "list(f.registry)[1]",
        "Old",
    ),
    "an exception table": ("class E: pass\nE.table = [('x', {1: (Old,)})]", "E.table[0][1][1][0]", "Old"),
    "a wrapt wrapper": (
        "import wrapt\nf = wrapt.FunctionWrapper(old, lambda w, i, a, k: w(*a, **k))",
        "f.__wrapped__",
        "old",
    ),
    "a module attribute in a namespace": (
        "from types import SimpleNamespace\nN = SimpleNamespace(a=Old)",
        "N.a",
        "Old",
    ),
    "a weak dict of strong values": (
        "import weakref\nclass K: pass\nk = K()\nW = weakref.WeakKeyDictionary({k: Old})",
        "W[k]",
        "Old",
    ),
    "the bases that were written": (
        "T = TypeVar('T')\nclass C(Old, Generic[T]): pass",
        "C.__orig_bases__[0]",
        "Old",
    ),
}
PREAMBLE = """
import functools
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from fakehost.target import Old, old
"""


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
@pytest.mark.parametrize(("source", "alias", "name"), HOLDERS.values(), ids=HOLDERS.keys())
def test_every_holder_in_a_host_follows_and_is_given_the_old_one_back(
    make: Make, target: ModuleType, source: str, alias: str, name: str, frozen: bool
) -> None:
    holder = make("fakehost.holder", PREAMBLE + source)
    old = getattr(target, name)
    before = shape(holder)
    assert eval(alias, vars(holder)) is old
    if frozen:
        gc.freeze()  # as vLLM does once it has started
    try:
        edit = replace(target)
    finally:
        gc.unfreeze()
    assert eval(alias, vars(holder)) is {"Old": New, "old": new}[name]
    assert not leads_to(holder, old)
    edit.undo()
    assert eval(alias, vars(holder)) is old
    assert shape(holder) == before
    assert getattr(target, name) is old


PASSING = ("__dict__", "__weakref__", "__doc__", "__builtins__", "__annotations__")


def parts(obj: Any) -> list[Any]:
    """What a plain reading of the language says that an object holds."""
    if isinstance(obj, (ModuleType, type)):
        return [value for name, value in vars(obj).items() if name not in PASSING]
    held: list[Any] = []
    if isinstance(obj, dict):
        held += [*obj.keys(), *obj.values(), getattr(obj, "default_factory", None)]
    elif isinstance(obj, (list, tuple, set, frozenset, deque)):
        held += obj
    elif isinstance(obj, functools.partial):
        held += [obj.func, obj.args, obj.keywords]
    for name in ("__defaults__", "__kwdefaults__", "__func__", "__self__", "fget", "fset", "fdel"):
        held.append(getattr(obj, name, None))
    held += [cell.cell_contents for cell in getattr(obj, "__closure__", None) or ()]
    held += [getattr(obj, name) for name in getattr(type(obj), "__slots__", ()) if hasattr(obj, name)]
    return [*held, getattr(obj, "__dict__", None)]


def reachable(module: ModuleType) -> Iterator[Any]:
    pending: list[Any] = [module]
    seen: dict[int, Any] = {}
    while pending:
        obj = pending.pop()
        foreign = isinstance(obj, type) and not obj.__module__.startswith("fakehost")
        if id(obj) in seen or isinstance(obj, (str, weakref.ref)) or obj in (new, New):
            continue
        if foreign or (isinstance(obj, ModuleType) and obj is not module):
            continue
        seen[id(obj)] = obj
        yield obj
        pending += parts(obj)


def leads_to(module: ModuleType, old: Any) -> bool:
    return any(obj is old for obj in reachable(module))


def shape(module: ModuleType) -> list[list[int]]:
    """Identities of all that a module leads to, with their order."""
    kept = (object, type(None))
    return [
        [id(part) for part in parts(obj) if not isinstance(part, kept[1])]
        for obj in reachable(module)
        if not isinstance(obj, (set, frozenset)) and type(obj).__name__ != "method-wrapper"
        if isinstance(obj, (ModuleType, type, dict, list, tuple, deque))
    ]


@pytest.mark.parametrize(
    "source",
    [
        "def f(x: Old) -> Old: pass",
        "a: Old",
        "class C:\n  x: Old",
        "import typing\nT = typing.Optional[Old]",
        "T = list[Old]",
        "import weakref\nr = weakref.ref(Old)",
        "@functools.lru_cache\ndef f(x): return 1\nf(Old)",
        "def f():\n  x = Old\n  yield x\ng = f()\nnext(g)",
    ],
)
def test_annotations_weak_references_cache_keys_and_running_code_are_left(
    make: Make, target: ModuleType, source: str
) -> None:
    make("fakehost.holder", PREAMBLE + source)
    replace(target).undo()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("x = Old()", r"fakehost\.holder\.x leads to an instance of fakehost\.target\.Old"),
        ("D = {'k': [Old()]}", r"fakehost\.holder\.D leads to an instance of fakehost\.target\.Old"),
        ("class C:\n  x = Old()", r"fakehost\.holder\.C leads to an instance"),
        ("m = map(Old, [])", r"fakehost\.holder\.m holds fakehost\.target\.Old in a builtins\.map"),
        (
            "@functools.lru_cache\ndef f(): return Old\nf()",
            r"fakehost\.holder\.f holds fakehost\.target\.Old in a functools\._lru_cache_wrapper",
        ),
        ("D = {Old: 1, target.New: 2}", r"fakehost\.holder\.D holds .* what replaces it as a key"),
    ],
)
def test_a_holder_that_cannot_follow_is_named_and_nothing_stays_changed(
    make: Make, target: ModuleType, source: str, says: str
) -> None:
    exec("class New: pass", vars(target))
    holder = make("fakehost.holder", PREAMBLE + source, target=target)
    before = shape(holder)
    edit = Edit("worker.test", target)
    edit.set(target, "Old", target.New)
    with pytest.raises(AliasError, match=says):
        rebind(edit, {"fakehost"})
    edit.undo()
    assert shape(holder) == before


def test_a_new_function_goes_on_calling_the_old_one(make: Make, target: ModuleType) -> None:
    old = target.old
    table = {"old": old}
    holder = make("fakehost.holder", TABLE=table)

    class Callable_:
        def __init__(self) -> None:
            self.inner = [old]

    def outer(inner: Any = old, *, more: Any = ({"k": (old,)},)) -> Any:
        return old, inner, more[0]["k"][0], instance.inner[0], part.func

    instance = Callable_()
    part = functools.partial(old, 1)
    outer.__wrapped__ = old  # type: ignore[attr-defined]
    edit = Edit("worker.test", target)
    edit.set(target, "old", outer)
    # Something else that the patch puts into a host class and that calls the old one.
    exec("class Runner: pass", vars(holder))
    edit.set(holder.Runner, "run", lambda self: old())
    rebind(edit, {"fakehost"})
    assert all(held is old for held in outer())
    assert outer.__wrapped__ is old  # type: ignore[attr-defined]
    assert holder.Runner().run() == "old"
    assert table == {"old": outer}


def test_clones_with_the_globals_of_a_host_are_the_patchs_own(make: Make, target: ModuleType) -> None:
    old = target.old
    holder = make("fakehost.holder", "class Runner: pass\ndef closing(f):\n  return lambda *_: f()", L=[old])
    edit = Edit("worker.test", target)
    edit.set(holder.Runner, "run", holder.closing(old))
    edit.set(target, "old", holder.closing(old))
    rebind(edit, {"fakehost"})
    assert all(f.__closure__[0].cell_contents is old for f in (holder.Runner.run, target.old))
    assert tuple(holder.L) == (target.old,)


def test_a_container_of_the_host_that_the_new_function_holds_too_follows(
    make: Make, target: ModuleType
) -> None:
    table = {"old": target.old}
    make("fakehost.holder", TABLE=table)
    edit = Edit("worker.test", target)
    edit.set(target, "old", lambda: table["old"])
    rebind(edit, {"fakehost"})
    assert table["old"] is target.old


def test_methods_of_the_old_class_keep_their_own_super(make: Make, target: ModuleType) -> None:
    exec(
        "class Root:\n  def f(self): return ['root']\n"
        "class Sup(Root):\n  def f(self): return ['sup', *super().f()]\n"
        "class Borrower(Root):\n  other = Sup.f\n",
        vars(target),
    )
    edit = Edit("worker.test", target)
    edit.set(target, "Sup", type("Sup", (target.Sup,), {"f": lambda self: ["new", *old.f(self)]}))
    old = edit.replaced[0][0]
    rebind(edit, {"fakehost"})
    assert target.Sup().f() == ["new", "sup", "root"]


def test_a_later_patch_that_closes_over_the_original_keeps_it(make: Make, target: ModuleType) -> None:
    old = target.old
    holder = make("fakehost.holder", "def g(): pass\ndef h(): pass", alias=[old])
    first = Edit("worker.first", target)
    first.set(target, "_kept", old)
    first.set(target, "old", lambda: target._kept())
    rebind(first, {"fakehost"})
    second = Edit("worker.second", holder, (first,))
    second.set(holder, "g", lambda: old())
    second.set(holder, "kept", (old,))
    rebind(second, {"fakehost"})
    rebind(first, {"fakehost"})  # the late check
    assert holder.g() == "old"
    assert holder.kept == (old,)
    assert target._kept is old
    second.undo()
    first.undo()
    assert holder.alias == [old]


def test_one_object_replaced_twice_by_one_patch_and_again_by_a_later_one(
    make: Make, target: ModuleType
) -> None:
    old = target.old
    holder = make("fakehost.holder", old=old, L=[old])
    first = Edit("worker.first", target)
    middle, second = lambda: 1, lambda: 2
    middle.__module__ = second.__module__ = "fakehost.target"
    first.set(target, "old", middle)
    first.set(target, "old", second)
    rebind(first, {"fakehost"})
    assert (holder.old, holder.L) == (second, [second])
    later = Edit("worker.later", target, (first,))
    later.set(target, "old", new)
    rebind(later, {"fakehost"})
    assert (holder.old, holder.L) == (new, [new])
    later.undo()
    assert (holder.old, holder.L) == (second, [second])
    first.undo()
    assert (holder.old, holder.L) == (old, [old])


def test_undo_leaves_what_others_have_put_into_a_holder_since(make: Make, target: ModuleType) -> None:
    old = target.old
    holder = make("fakehost.holder", "def f(a=old): pass", D={"a": old, "b": old}, L=[old, old], old=old)
    edit = replace(target)
    holder.D["a"], holder.D["c"] = "theirs", 3
    holder.L.insert(0, "theirs")
    holder.old = None
    edit.undo()
    assert list(holder.D.items()) == [("a", "theirs"), ("b", old), ("c", 3)]
    assert tuple(holder.L) == ("theirs", old, old)
    assert holder.old is None
    assert holder.f.__defaults__ == (old,)


def test_holders_that_no_host_leads_to_keep_what_they_have(make: Make, target: ModuleType) -> None:
    kept = [target.Old, {"k": target.old}, target.Old()]
    make("user_script", KEPT=kept)
    before = list(kept)
    replace(target)
    assert kept == before
    assert kept[1]["k"] is not new  # type: ignore[index]


def test_nobody_is_asked_where_nobody_else_holds_it(
    monkeypatch: pytest.MonkeyPatch, target: ModuleType
) -> None:
    def asked(*args: Any) -> Any:
        raise AssertionError("the collector was asked")

    monkeypatch.setattr(gc, "get_referrers", asked)
    edit = replace(target)
    rebind(edit, {"fakehost"})
    assert target.old is new
