# SPDX-License-Identifier: Apache-2.0
"""add_abc_meta: a class gets ABCMeta where it stands, and everybody who knows it notices only `register`."""

from __future__ import annotations

import abc
import copy
import datetime
import functools
import gc
import inspect
import pickle
import subprocess
import sys
import weakref
from typing import Any, Generic, TypeVar

import pytest

from ascend_specpatch.classes import add_abc_meta


class Picklable:
    """A class that pickle can find."""

    def __init__(self, value: int = 0, *, scale: float = 1.0) -> None:
        self.value = value


def make_family() -> tuple[Any, Any, Any, Any]:
    """A root, two children of it, and a child of both."""

    class Root:
        def __init__(self) -> None:
            self.value = 1

        def who(self) -> str:
            return "root"

    class Left(Root):
        def who(self) -> str:
            return "left of " + super().who()

    class Right(Root):
        pass

    class Both(Left, Right):
        pass

    return Root, Left, Right, Both


def test_a_registered_class_counts_as_a_subclass() -> None:
    Root, *_ = make_family()

    class Clone:
        pass

    assert not isinstance(Clone(), Root)
    add_abc_meta(Root)
    assert Root.register(Clone) is Clone
    assert isinstance(Clone(), Root)
    assert issubclass(Clone, Root)
    assert not isinstance(object(), Root)


def test_who_took_the_class_earlier_has_register_too() -> None:
    Root, *_ = make_family()
    importer = {"Root": Root}
    add_abc_meta(Root)

    class Clone:
        pass

    importer["Root"].register(Clone)
    assert isinstance(Clone(), Root)


def test_a_root_class_keeps_instance_dict_weakrefs_and_instances() -> None:
    Root, *_ = make_family()
    before = Root()
    members = dict(vars(Root))
    add_abc_meta(Root)
    after = Root()
    after.extra = 2
    assert before.__dict__ == {"value": 1}
    assert after.__dict__ == {"value": 1, "extra": 2}
    assert weakref.ref(before)() is before
    assert isinstance(before, Root)
    assert {key: value for key, value in vars(Root).items() if key in members} == members
    assert vars(Root).keys() - members.keys() == {"_abc_impl", "__abstractmethods__"}


def test_a_root_class_with_slots_keeps_them() -> None:
    class Slotted:
        __slots__ = ("x",)

    instance: Any = Slotted()
    add_abc_meta(Slotted)
    instance.x = 3
    assert instance.x == 3
    assert not hasattr(instance, "__dict__")
    with pytest.raises(AttributeError):
        instance.y = 1


def test_existing_subclasses_become_abc_classes_with_registrations_of_their_own() -> None:
    Root, Left, Right, Both = make_family()
    instance = Both()
    add_abc_meta(Root)
    assert [type(cls) for cls in (Root, Left, Right, Both)] == [abc.ABCMeta] * 4
    assert instance.who() == "left of root"

    class Clone:
        pass

    Left.register(Clone)
    assert isinstance(Clone(), Left)
    assert isinstance(Clone(), Root)
    assert not isinstance(Clone(), Right)
    assert not isinstance(Clone(), Both)


def test_classes_made_later_join_without_a_metaclass_conflict() -> None:
    Root, Left, Right, _ = make_family()
    add_abc_meta(Root)
    AlsoAbc = abc.ABCMeta("AlsoAbc", (), {})
    Later = type(Left)("Later", (Left, Right, AlsoAbc), {})
    Plain: Any = type("Plain", (Left,), {})
    assert isinstance(Later, abc.ABCMeta)
    assert isinstance(Plain, abc.ABCMeta)
    assert Plain().who() == "left of root"


def test_only_the_subclasses_change_and_not_the_bases() -> None:
    Root, Left, Right, Both = make_family()
    add_abc_meta(Left)
    assert [type(cls) for cls in (Root, Left, Right, Both)] == [type, abc.ABCMeta, type, abc.ABCMeta]


def test_applied_twice_keeps_the_class_and_what_was_registered() -> None:
    Root, *_ = make_family()

    class Clone:
        pass

    add_abc_meta(Root)
    impl = Root._abc_impl
    Root.register(Clone)
    undo_second = add_abc_meta(Root)
    assert Root._abc_impl is impl
    assert isinstance(Clone(), Root)
    undo_second()
    assert isinstance(Clone(), Root)


def test_an_abc_class_and_a_metaclass_derived_from_abcmeta_stay_as_they_are() -> None:
    class DerivedMeta(abc.ABCMeta):
        pass

    class Clone:
        pass

    for metaclass in (abc.ABCMeta, DerivedMeta):
        cls: Any = metaclass("Already", (), {})
        cls.register(Clone)
        add_abc_meta(cls)()
        assert type(cls) is metaclass
        assert isinstance(Clone(), cls)


def test_undo_restores_the_metaclass_of_everything_it_changed() -> None:
    Root, Left, Right, Both = make_family()
    members = [dict(vars(cls)) for cls in (Root, Left, Right, Both)]

    class Clone:
        pass

    undo = add_abc_meta(Root)
    Root.register(Clone)
    assert isinstance(Clone(), Root)
    undo()
    assert [type(cls) for cls in (Root, Left, Right, Both)] == [type] * 4
    assert [dict(vars(cls)) for cls in (Root, Left, Right, Both)] == members
    assert not isinstance(Clone(), Root)
    assert not hasattr(Root, "register")
    assert Both().who() == "left of root"
    undo()
    add_abc_meta(Root)
    assert not isinstance(Clone(), Root)


def test_abstract_methods_of_an_existing_class_stay_remarks() -> None:
    class Remark:
        @abc.abstractmethod
        def todo(self) -> str:
            return "base"

    class Done(Remark):
        def todo(self) -> str:
            return "done " + super().todo()

    add_abc_meta(Remark)
    assert Remark().todo() == "base"  # type: ignore[abstract]
    assert Done().todo() == "done base"

    class Later(Remark):
        @abc.abstractmethod
        def more(self) -> None: ...

    with pytest.raises(TypeError, match="more"):
        Later()  # type: ignore[abstract]


def test_init_subclass_runs_for_later_subclasses_only() -> None:
    seen = []

    class Root:
        def __init_subclass__(cls, *, tag: str = "", **kwargs: Any) -> None:
            seen.append((cls.__name__, tag))
            super().__init_subclass__(**kwargs)

    class Early(Root, tag="e"):
        pass

    add_abc_meta(Root)
    assert seen == [("Early", "e")]

    class Late(Root, tag="l"):
        pass

    assert seen == [("Early", "e"), ("Late", "l")]


def test_pickling_copying_and_inspection_give_what_they_gave() -> None:
    instance = Picklable(7)
    facts = (
        str(inspect.signature(Picklable)),
        inspect.getsource(Picklable),
        Picklable.__qualname__,
        Picklable.__module__,
        Picklable.__doc__,
    )
    undo = add_abc_meta(Picklable)
    try:
        assert facts == (
            str(inspect.signature(Picklable)),
            inspect.getsource(Picklable),
            Picklable.__qualname__,
            Picklable.__module__,
            Picklable.__doc__,
        )
        assert copy.deepcopy(instance).value == 7
        assert copy.copy(Picklable) is Picklable
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(instance, protocol)).value == 7
            assert pickle.loads(pickle.dumps(Picklable, protocol)) is Picklable
    finally:
        undo()


def test_generic_classes_stay_subscriptable() -> None:
    T = TypeVar("T")

    class Box(Generic[T]):
        pass

    add_abc_meta(Box)
    assert Box[int].__origin__ is Box  # type: ignore[attr-defined]
    assert isinstance(Box[int](), Box)


def test_a_metaclass_of_its_own_is_refused_and_nothing_is_changed() -> None:
    class Meta(type):
        pass

    class Root:
        pass

    class Fine(Root):
        pass

    class Odd(Root, metaclass=Meta):
        pass

    with pytest.raises(TypeError, match=r"Root can not be given ABCMeta: the metaclass .*Meta of .*Odd"):
        add_abc_meta(Root)
    assert (type(Root), type(Fine), type(Odd)) == (type, type, Meta)


@pytest.mark.parametrize("cls", [int, object, type, functools.partial, datetime.date, type(gc)])
def test_builtin_and_extension_classes_are_refused(cls: type) -> None:
    with pytest.raises(TypeError, match="not a class made by a Python class statement"):
        add_abc_meta(cls)
    assert type(cls) is type


def test_a_changed_class_can_still_be_collected_and_counts_as_a_user_of_abcmeta() -> None:
    def rounds(count: int) -> None:
        for _ in range(count):
            undo = add_abc_meta(make_family()[0])
            undo()
            add_abc_meta(make_family()[0])
        del undo
        gc.collect()

    rounds(3)
    uses, alive = sys.getrefcount(abc.ABCMeta), len(object.__subclasses__())
    rounds(50)
    assert abs(sys.getrefcount(abc.ABCMeta) - uses) < 5
    assert abs(len(object.__subclasses__()) - alive) < 5


def test_code_specialised_for_the_class_notices_the_change() -> None:
    Root, Left, *_ = make_family()

    class Clone:
        pass

    def ask(obj: object) -> tuple[bool, bool, Any]:
        return isinstance(obj, Root), issubclass(type(obj), Root), getattr(Root, "register", None)

    def build() -> Any:
        return Root().who(), Left().who()

    for _ in range(200):
        assert ask(Clone()) == (False, False, None)
        assert build() == ("root", "left of root")
    undo = add_abc_meta(Root)
    Root.register(Clone)
    for _ in range(200):
        assert ask(Clone())[:2] == (True, True)
        assert build() == ("root", "left of root")
    undo()
    for _ in range(200):
        assert ask(Clone()) == (False, False, None)
        assert build() == ("root", "left of root")


def test_importing_the_module_does_not_load_ctypes() -> None:
    code = "import sys; import ascend_specpatch.classes; print('ctypes' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
