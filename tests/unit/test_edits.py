# SPDX-License-Identifier: Apache-2.0
"""Every change that a patch makes can be taken back exactly, whatever it was made to."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from ascend_specpatch.edits import Edit, EditError


def _module() -> ModuleType:
    module = ModuleType("vllm.target")
    exec(  # the classes and functions must name the module as their home
        "class Old: pass\ndef function(): return 'old'\nnumber = 1\nflag = True\n"
        "import os\nfrom json import dumps\n",
        vars(module),
    )
    return module


@pytest.fixture
def module() -> ModuleType:
    return _module()


@pytest.fixture
def edit(module: ModuleType) -> Edit:
    return Edit("spec_decode.test", module)


class Base:
    inherited = "base"

    def method(self) -> str:
        return "base"


class Owner(Base):
    __slots__ = ("slot",)
    plain = 1

    @staticmethod
    def static() -> str:
        return "old"

    @classmethod
    def klass(cls) -> str:
        return "old"

    @property
    def prop(self) -> str:
        return "old"


@pytest.mark.parametrize(
    "name", ["plain", "static", "klass", "prop", "inherited", "method", "new_name", "__init__", "__doc__"]
)
def test_a_class_attribute_comes_back_as_the_very_object_it_was(edit: Edit, name: str) -> None:
    before = dict(vars(Owner))
    edit.set(Owner, name, "replaced")
    assert getattr(Owner, name) == "replaced"
    edit.undo()
    assert dict(vars(Owner)) == before
    assert all(vars(Owner)[key] is value for key, value in before.items())


def test_set_twice_and_delete_are_taken_back_in_reverse_order(edit: Edit, module: ModuleType) -> None:
    before = dict(vars(module))
    edit.set(module, "number", 2)
    edit.set(module, "number", 3)
    edit.delete(module, "number")
    edit.delete(module, "function")
    edit.set(module, "added", 4)
    assert not hasattr(module, "number")
    edit.undo()
    assert vars(module) == before


def test_what_descriptors_govern_is_restored_through_them(edit: Edit) -> None:
    class Other:
        pass

    class Child(Other):
        pass

    class Root:
        pass

    def function(a: int = 1) -> int:
        return a

    code = function.__code__
    owner = Owner()
    edit.set(owner, "slot", 1)
    edit.set(Child, "__bases__", (Root,))
    edit.set(function, "__code__", (lambda a=2: a * 10).__code__)
    edit.set(function, "__defaults__", (5,))
    assert Child.__mro__ == (Child, Root, object)
    assert function() == 50
    edit.undo()
    assert Child.__bases__ == (Other,)
    assert function.__code__ is code
    assert function() == 1
    assert not hasattr(owner, "slot")


def test_deleting_what_the_owner_only_inherits_is_an_error_and_leaves_no_trace(edit: Edit) -> None:
    with pytest.raises(AttributeError):
        edit.delete(Owner, "inherited")
    edit.undo()
    assert Owner.inherited == "base"


def test_a_change_that_cannot_be_made_leaves_nothing_to_take_back(edit: Edit) -> None:
    with pytest.raises(TypeError):
        edit.set(int, "added", 1)
    edit.undo()


def test_other_inverses_run_in_their_place(edit: Edit, module: ModuleType) -> None:
    calls: list[Any] = []
    edit.undo_with(lambda: calls.append("first"))
    edit.set(module, "number", 2)
    edit.undo_with(lambda: calls.append(module.number))
    edit.undo()
    assert calls == [2, "first"]
    edit.undo()
    assert calls == [2, "first"]


def test_an_inverse_that_fails_does_not_keep_the_others_from_running(edit: Edit, module: ModuleType) -> None:
    edit.set(module, "number", 2)
    edit.undo_with(lambda: [][1])
    with pytest.raises(EditError, match=r"test: 1 change could not be taken back: IndexE") as caught:
        edit.undo()
    assert isinstance(caught.value.__cause__, IndexError)
    assert module.number == 1


def test_only_objects_replaced_at_home_are_followed(edit: Edit, module: ModuleType) -> None:
    old, function = module.Old, module.function
    new = type("New", (), {})
    edit.set(module, "Old", new)
    edit.set(module, "function", len)
    for name in ("number", "flag", "os", "dumps", "added"):
        edit.set(module, name, object())
    edit.set(old, "attribute", 1)
    assert edit.replaced == [(old, new), (function, len)]


def test_an_object_that_an_earlier_patch_put_there_is_followed_as_well(
    edit: Edit, module: ModuleType
) -> None:
    first, second = type("First", (), {}), type("Second", (), {})
    edit.set(module, "Old", first)
    later = Edit("spec_decode.later", module, earlier=(edit,))
    later.set(module, "Old", second)
    assert later.replaced == [(first, second)]


def test_an_edit_knows_what_it_wrote(edit: Edit, module: ModuleType) -> None:
    edit.set(module, "number", 2)
    assert edit.wrote(module, "number")
    assert not edit.wrote(module, "flag")
    assert repr(edit) == "Edit(spec_decode.test, vllm.target, 1 changes)"


def test_a_name_can_be_given_another_meaning_in_one_module_alone() -> None:
    home = ModuleType("home")
    old = type("Old", (), {"__module__": "home"})
    home.Old = old  # type: ignore[attr-defined]
    edit = Edit("spec_decode.some", home)
    edit.set(home, "Old", (old, int), aliases=False)
    assert edit.replaced == []
    edit.undo()
    assert home.Old is old  # type: ignore[attr-defined]
