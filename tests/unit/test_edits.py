# SPDX-License-Identifier: Apache-2.0
"""Every change that a patch makes can be taken back exactly, whatever it was made to."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from ascend_specpatch.edits import ABSENT, Edit, EditError


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


# Other patchers


def _plugin(name: str = "other_plugin.patches") -> Any:
    module = ModuleType(name)
    exec(
        "import functools\n"
        "def around(function):\n"
        "    @functools.wraps(function)\n"
        "    def wrapper(*args): return 'theirs, then ' + function(*args)\n"
        "    return wrapper\n",
        vars(module),
    )
    return module


def test_what_somebody_else_had_put_there_before_is_said(module: ModuleType, edit: Edit) -> None:
    plugin = _plugin()
    module.function = plugin.around(module.function)
    module.Old.method = staticmethod(plugin.around(lambda: "x"))
    edit.set(module, "function", len)
    edit.set(module.Old, "method", len)
    edit.set(module.Old, "method", max)
    edit.set(module, "dumps", len)
    edit.set(module, "added", len)
    said = "had been wrapped or replaced before this patch by other_plugin.patches"
    function, method = edit.foreign()
    assert function == f"vllm.target.function {said} (function function)"
    assert method.startswith(f"vllm.target.Old.method {said} (staticmethod ")
    assert edit.overwritten() == []


def test_what_an_earlier_patch_of_ours_put_there_is_not_somebody_elses(
    module: ModuleType, edit: Edit
) -> None:
    # By a third-party patch, whose objects are from its own package.
    edit.set(module, "function", _plugin().around(module.function))
    later = Edit("spec_decode.later", module, earlier=(edit,))
    later.set(module, "function", len)
    assert later.foreign() == []
    assert edit.overwritten() == []
    later.undo()
    assert edit.overwritten() == []


@pytest.mark.parametrize("owner", ["module", "class", "instance"])
def test_what_somebody_else_has_put_there_since_is_said_and_left(
    module: ModuleType, edit: Edit, owner: str
) -> None:
    old = module.Old
    holder: Any = {"module": module, "class": old, "instance": old()}[owner]
    edit.set(holder, "function", lambda *args: "ours")
    edit.set(module, "number", 7)
    edit.set(old, "other", 7)
    holder.function = theirs = _plugin().around(holder.function)
    (said,) = edit.overwritten()
    path = {"module": "vllm.target", "class": "vllm.target.Old", "instance": "a vllm.target.Old"}[owner]
    assert said.startswith(
        f"{path}.function was wrapped or replaced after this patch by other_plugin.patches (function "
    )
    with pytest.raises(EditError, match=r"function was wrapped .* by other_plugin\.patches .* is left as it"):
        edit.undo()
    assert vars(holder)["function"] is theirs
    assert module.number == 1
    assert not hasattr(old, "other")
    edit.undo()


def test_deleted_by_another_and_set_where_we_deleted(module: ModuleType, edit: Edit) -> None:
    edit.set(module, "number", 2)
    edit.delete(module, "flag")
    del module.number
    module.flag = None
    assert edit.overwritten() == [
        "vllm.target.number was deleted after this patch",
        "vllm.target.flag was wrapped or replaced after this patch by builtins (NoneType)",
    ]
    with pytest.raises(EditError, match="2 changes could not be taken back"):
        edit.undo()
    assert module.flag is None
    assert not hasattr(module, "number")


def test_setting_twice_and_being_overwritten_is_one_sentence(module: ModuleType, edit: Edit) -> None:
    edit.set(module, "number", 2)
    edit.set(module, "number", 3)
    module.number = 4
    assert len(edit.overwritten()) == 1
    with pytest.raises(EditError, match="1 change could not"):
        edit.undo()
    assert module.number == 4


def test_who_changes_an_alias_is_no_concern_of_the_patch(module: ModuleType, edit: Edit) -> None:
    holder = ModuleType("vllm.holder")
    holder.number = 1
    edit.rebind(holder, "number", 2)
    holder.number = 3
    assert edit.overwritten() == edit.foreign() == []
    edit.undo()
    assert holder.number == 3


def test_what_cannot_be_compared_is_restored(module: ModuleType, edit: Edit) -> None:
    class Proxy:
        def __init__(self) -> None:
            self.kept = [0]

        @property
        def value(self) -> list[int]:
            return list(self.kept)

        @value.setter
        def value(self, value: list[int]) -> None:
            self.kept[:] = value

    class Shouting(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            super().__setattr__(name, value.upper())

    class Loud(metaclass=Shouting):
        word = "quiet"

    proxy = Proxy()
    edit.set(proxy, "value", [1])
    edit.set(Loud, "word", "loud")
    assert (proxy.value, Loud.word) == ([1], "LOUD")
    assert edit.overwritten() == []
    edit.undo()
    assert proxy.value == [0]


def test_the_journal_can_be_read(module: ModuleType, edit: Edit) -> None:
    edit.set(Owner, "static", len)
    edit.delete(module, "flag")
    edit.set(module, "added", 1)
    edit.undo_with(lambda: None)
    old = vars(Owner)
    assert [change[1] for change in edit.changes()] == ["static", "flag", "added"]
    (_, _, static, now), (_, _, flag, absent), (_, _, nothing, added) = edit.changes()
    assert isinstance(static, staticmethod)
    assert now is old["static"] is len
    assert (flag, absent, nothing, added) == (True, ABSENT, ABSENT, 1)
    assert repr(ABSENT) == "<absent>"
    edit.undo()
    assert edit.changes() == ()


def test_for_a_module_that_was_loaded_again_own_changes_are_withdrawn_and_aliases_stay(
    module: ModuleType, edit: Edit
) -> None:
    def fails() -> None:
        raise LookupError

    old = Owner.plain
    edit.set(module, "number", 1000)
    edit.set(module, "number", 3)
    edit.set(module, "added", 4)
    edit.set(Owner, "plain", 5)
    edit.undo_with(fails)
    edit.begin_aliases()
    edit.begin_aliases()
    edit.rebind(Owner, "number", 6)
    module.number = 1000  # the module's code ran again
    edit.withdraw()
    assert (module.number, hasattr(module, "added"), Owner.plain, Owner.number) == (1000, False, old, 6)
    assert not edit.wrote(module, "number")
    assert edit.wrote(Owner, "number")
    assert edit.overwritten() == []
    edit.withdraw()
    assert not edit.is_empty()
    edit.undo()
    assert edit.is_empty()
    assert module.number == 1000
    assert not hasattr(Owner, "number")


@pytest.mark.parametrize("failing", range(6))
def test_an_apply_that_fails_at_any_point_leaves_no_trace(failing: int) -> None:
    module = _module()
    before, of_class = dict(vars(module)), dict(vars(module.Old))
    table = {"a": 1, "b": 2}
    edit = Edit("spec_decode.test", module)

    def steps() -> Any:
        yield edit.set(module, "function", len)
        yield edit.set(module.Old, "added", 1)
        yield edit.delete(module, "number")
        yield edit.set(module, "Old", type("New", (), {}))
        yield edit.undo_with(lambda: table.pop("c"))
        yield table.update(c=3)

    old = module.Old
    for count, _ in enumerate(steps()):
        if count == failing:
            break
    if failing == 4:
        table["c"] = 3
    edit.undo()
    assert vars(module) == before
    assert all(vars(module)[name] is value for name, value in before.items())
    assert dict(vars(old)) == of_class
    assert table == {"a": 1, "b": 2}
