# SPDX-License-Identifier: Apache-2.0
"""make_cls: slots, added and excluded members, and what is refused; single members of a class."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from typing import Any

import pytest

from ascend_specpatch.classes import fix_new_class_closures, make_cls

from .two_bases import Host, Ours


class Template(Host):
    """What the template is for."""

    limit: int = 3

    def documented(self) -> str:
        return super().where()


class GlobalSuper(Host):
    def where(self) -> str:
        return super(GlobalSuper, self).where()  # noqa: UP008


class Slotted(Host):
    __slots__ = ("__private", "public")

    def __init__(self) -> None:
        self.public, self.__private = 1, 2

    def read(self) -> Any:
        return self.public, self.__private, super().where()


def test_slots_are_made_again() -> None:
    class Bare:
        __slots__ = ()
        where = Ours.where

    New: Any = make_cls(Slotted, bases=(Bare,), name="New")
    assert New().read() == (1, 2, "ours")
    assert not hasattr(New(), "__dict__")
    assert New.public is not vars(Slotted)["public"]
    assert New.public.__objclass__ is New
    less: Any = make_cls(Slotted, bases=(Bare,), exclude=("public",), namespace={"_Slotted__private": 5})
    assert less.__slots__ == ()
    assert less._Slotted__private == 5


def test_slots_given_as_iterator_or_with_docs_or_with_storage() -> None:
    class FromIterator:
        __slots__ = iter(("x",))

    class WithDocs:
        __slots__ = {"x": "The x."}

    class WithStorage:
        __slots__ = ("__dict__", "__weakref__", "x")

    assert make_cls(FromIterator, bases=()).__slots__ == ("x",)  # type: ignore[attr-defined]
    assert inspect.getdoc(make_cls(WithDocs, bases=()).x) == "The x."  # type: ignore[attr-defined]
    for bases in ((), (Ours,)):
        instance: Any = make_cls(WithStorage, bases=bases)()
        instance.x, instance.y = 1, 2
        assert instance.__dict__ == {"y": 2}
        assert weakref.ref(instance)() is instance


def test_namespace_adds_and_replaces_members() -> None:
    def documented(self: Any) -> str:
        return "replaced"

    New: Any = make_cls(
        Template,
        bases=(Ours,),
        namespace={"documented": documented, "again": Template.documented, "limit": 9},
    )
    assert New().documented() == "replaced"
    assert New().again() == "ours"
    assert (New.limit, Template.limit) == (9, 3)
    assert New.documented is documented


def test_namespace_can_be_a_class_whose_super_means_the_clone() -> None:
    class Additions:
        """Not for the clone's eyes only."""

        more: str = "m"

        def where(self) -> str:
            return "added to " + super().where()  # type: ignore[misc]

    New: Any = make_cls(Template, bases=(Ours,), namespace=Additions, qualname="New")
    assert New().where() == "added to ours"
    assert New().documented() == "ours"
    assert New.where.__qualname__ == "New.where"
    assert New.__annotations__ == {"limit": "int", "more": "str"}
    assert New.__doc__ == Additions.__doc__
    assert Additions.where.__closure__[0].cell_contents is Additions  # type: ignore[index]

    class Slots:
        __slots__ = ()

    with pytest.raises(TypeError, match="Slots can not give its members to a clone"):
        make_cls(Template, bases=(Ours,), namespace=Slots)


def test_exclude_leaves_members_out_and_knows_them() -> None:
    New = make_cls(Template, bases=(Ours,), exclude=("documented", "limit"))
    assert not hasattr(New, "documented")
    assert not hasattr(New, "limit")
    with pytest.raises(ValueError, match="exclude names nothing_here, which Template does not define"):
        make_cls(Template, bases=(Ours,), exclude=("nothing_here",))


def test_super_with_a_global_name_is_refused_unless_the_clone_takes_the_name() -> None:
    with pytest.raises(
        TypeError, match=r"GlobalSuper\.where can not be cloned: it calls super\(GlobalSuper, \.\.\.\)"
    ):
        make_cls(GlobalSuper, bases=(Ours,), name="Other")
    make_cls(GlobalSuper, bases=(Ours,), name="Other", exclude=("where",))
    original = GlobalSuper
    try:
        globals()["GlobalSuper"] = New = make_cls(GlobalSuper, bases=(Ours,))
        assert New().where() == "ours"  # type: ignore[attr-defined]
    finally:
        globals()["GlobalSuper"] = original


def test_super_with_the_name_of_a_local_class_means_the_clone() -> None:
    class Local(Host):
        def method(self) -> str:
            return (lambda: super(Local, self).where())()

        def factory(self) -> Any:
            return Local

    New: Any = make_cls(Local, bases=(Ours,))
    assert New().method() == "ours"
    assert New().factory() is Local


class Sealed(type(sys.implementation)):  # type: ignore[misc]
    """A callable object that can not be copied: part of it lives in C."""

    def __call__(self, obj: Any) -> Any:
        return self.function(obj)


@pytest.mark.parametrize(
    "layers", [lambda x: x, lambda x: {"deep": [x]}, lambda x: functools.partial(x), staticmethod]
)
def test_a_member_that_can_not_be_copied_is_named(layers: Any) -> None:
    class Local(Host):
        def method(self) -> str:
            return super().where()

        sealed = layers(Sealed(function=method))

    with pytest.raises(
        TypeError, match=r"Local\.sealed can not be cloned: .*super\(\) is held by a .*Sealed"
    ):
        make_cls(Local, bases=(Ours,))
    make_cls(Local, bases=(Ours,), exclude=("sealed",))


def test_an_object_that_can_not_be_copied_is_shared_if_it_holds_no_super() -> None:
    class Local(Host):
        def method(self) -> str:
            return "plain"

        sealed = Sealed(function=method)

    assert make_cls(Local, bases=(Ours,)).sealed is Local.sealed  # type: ignore[attr-defined]


def test_what_is_bound_to_the_template_stays_bound_to_it() -> None:
    class Local(Host):
        @classmethod
        def of(cls) -> Any:
            return cls, super().__subclasshook__

    Local.bound = Local.of  # type: ignore[attr-defined]
    Local.instance = Local()  # type: ignore[attr-defined]
    New: Any = make_cls(Local, bases=(Ours,))
    assert New.bound()[0] is Local
    assert New.instance is Local.instance  # type: ignore[attr-defined]
    assert New.of()[0] is New


@pytest.mark.parametrize("template", [int, dict, functools.partial, types.SimpleNamespace])
def test_builtin_and_extension_classes_are_refused(template: type) -> None:
    with pytest.raises(TypeError, match="not a class made by a Python class statement"):
        make_cls(template, bases=())


def test_fix_new_class_closures_leaves_foreign_members_as_they_are() -> None:
    class Foreign:
        def method(self) -> str:
            return super().__repr__()

    members = {"foreign": Foreign.method, "data": [1], "own": Template.documented, "cls": Foreign}
    fixed = fix_new_class_closures(members, Template, Ours)
    assert {name: fixed[name] is members[name] for name in members} == {
        "foreign": True,
        "data": True,
        "own": False,
        "cls": True,
    }
    assert fixed["own"].__closure__[0].cell_contents is Ours
    assert members["own"].__closure__[0].cell_contents is Template
    twice = fix_new_class_closures(fixed, Template, Ours)
    assert twice["own"] is fixed["own"]
