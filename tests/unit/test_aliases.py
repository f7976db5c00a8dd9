# SPDX-License-Identifier: Apache-2.0
"""Holders of a replaced object are found in globals and bases, and nothing else is touched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from ascend_specpatch.aliases import AliasError, rebind
from ascend_specpatch.edits import Edit

Make = Callable[..., ModuleType]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(name: str, source: str = "", **names: object) -> ModuleType:
        module = ModuleType(name)
        vars(module).update(names)
        exec(source, vars(module))
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return make


def test_globals_of_host_modules_follow_and_those_of_others_do_not(make: Make) -> None:
    target = make("fakehost.target", "class Old: pass")
    old = target.Old
    holder = make("fakehost.holder", Old=old, renamed=old, other=1)
    stranger = make("stranger.module", Old=old)
    new = type("New", (), {})
    edit = Edit("worker.test", target)
    edit.set(target, "_kept", old)
    edit.set(target, "Old", new)
    rebind(edit, {"fakehost"})
    assert (holder.Old, holder.renamed, holder.other) == (new, new, 1)
    assert stranger.Old is old
    assert target._kept is old
    edit.undo()
    assert (holder.Old, holder.renamed, target.Old) == (old, old, old)


def test_subclasses_are_moved_and_moved_back(make: Make) -> None:
    target = make("fakehost.target", "class Old: pass")
    old = target.Old
    holder = make(
        "fakehost.holder", "class Mixin: pass\nclass Sub(Mixin, Old): pass\nclass Subsub(Sub): pass", Old=old
    )
    stranger = make("stranger.module", "class Sub(Old): pass", Old=old)
    new = type("New", (), {"__module__": "fakehost.target"})
    edit = Edit("worker.test", target)
    edit.set(target, "Old", new)
    rebind(edit, {"fakehost"})
    assert holder.Sub.__bases__ == (holder.Mixin, new)
    assert issubclass(holder.Subsub, new)
    assert stranger.Sub.__bases__ == (old,)
    edit.undo()
    assert holder.Sub.__bases__ == (holder.Mixin, old)


def test_a_new_class_that_stands_on_the_old_one_keeps_its_bases(make: Make) -> None:
    target = make("fakehost.target", "class Old: pass")
    old = target.Old
    exec("class Between(Old): pass\nclass New(Between): pass", vars(target))
    edit = Edit("worker.test", target)
    edit.set(target, "Old", target.New)
    rebind(edit, {"fakehost"})
    assert target.New.__mro__[1:3] == (target.Between, old)


def test_a_class_that_cannot_be_moved_is_named(make: Make) -> None:
    target = make("fakehost.target", "class Old: pass")
    make("fakehost.holder", "class Sub(Old): pass", Old=target.Old)
    edit = Edit("worker.test", target)
    edit.set(target, "Old", type("New", (), {"__slots__": ("layout",)}))
    with pytest.raises(AliasError, match=r"class fakehost\.holder\.Sub was made before Old was replaced"):
        rebind(edit, {"fakehost"})


def test_looking_for_aliases_does_not_load_lazy_modules(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(f"loaded by asking for {name}")

    monkeypatch.setitem(sys.modules, "fakehost.lazy", Lazy("fakehost.lazy"))
    target = make("fakehost.target", "def old(): pass")
    edit = Edit("worker.test", target)
    edit.set(target, "old", print)
    rebind(edit, {"fakehost"})
    assert edit.replaced
