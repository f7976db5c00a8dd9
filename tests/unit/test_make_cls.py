# SPDX-License-Identifier: Apache-2.0
"""make_cls: what a clone has, and what it shares with its template."""

from __future__ import annotations

import abc
import copy
import functools
import inspect
import pickle
import sys
import weakref
from dataclasses import FrozenInstanceError, dataclass, field, fields
from typing import Any, Generic, TypeVar

import pytest

from ascend_specpatch.classes import add_abc_meta, make_cls

from .two_bases import Host, Ours

T = TypeVar("T")


class Template(Host):
    """What the template is for."""

    limit: int = 3
    shared: list[int] = []  # noqa: RUF012

    def documented(self, a: int = 1, /, b: str = "b", *, c: float = 0.5) -> tuple[int, str, float, str]:
        """What it does."""
        return a, b, c, super().where()

    documented.tag = ["attribute"]  # type: ignore[attr-defined]  # noqa: RUF012

    def without_super(self) -> str:
        return "without"

    @staticmethod
    def static() -> str:
        return "static"

    @functools.lru_cache(maxsize=7, typed=True)  # noqa: B019
    def cached(self, key: int) -> tuple[int, str]:
        return key, super().where()


Clone: Any = make_cls(Template, bases=(Ours,), name="Clone")
Moved: Any = make_cls(Template, bases=(Ours,), name="Moved", module="elsewhere", qualname="Outer.Moved")


def test_names_and_text_are_those_of_a_class_written_there() -> None:
    assert (Clone.__name__, Clone.__qualname__, Clone.__module__) == ("Clone", "Clone", __name__)
    assert (Moved.__name__, Moved.__qualname__, Moved.__module__) == ("Moved", "Outer.Moved", "elsewhere")
    assert Moved.documented.__qualname__ == "Outer.Moved.documented"
    assert Moved.documented.__module__ == "elsewhere"
    assert Clone.without_super.__qualname__ == "Clone.without_super"
    assert Clone.__doc__ == Template.__doc__
    assert Clone.__mro__ == (Clone, Ours, object)
    assert Clone.__annotations__ == Template.__annotations__


def test_functions_keep_what_they_carry_and_share_no_state_with_the_original() -> None:
    old, new = Template.documented, Clone.documented
    for attribute in ("__defaults__", "__kwdefaults__", "__annotations__", "__doc__", "__name__", "__dict__"):
        assert getattr(new, attribute) == getattr(old, attribute)
    assert new.__code__ is old.__code__
    assert new.__globals__ is old.__globals__
    assert inspect.signature(new) == inspect.signature(old)
    assert inspect.getsource(new) == inspect.getsource(old)
    for attribute in ("__kwdefaults__", "__annotations__", "__dict__"):
        assert getattr(new, attribute) is not getattr(old, attribute)
    assert Clone.without_super is not Template.without_super
    assert Clone().documented(c=2.0) == (1, "b", 2.0, "ours")


def test_the_template_is_not_changed() -> None:
    before = dict(vars(Template))
    details = [dict(vars(Template.documented)), Template.documented.__closure__[0].cell_contents]  # type: ignore[index]
    make_cls(Template, bases=(Ours,), namespace={"extra": 1})
    assert dict(vars(Template)) == before
    assert details == [dict(vars(Template.documented)), Template]
    assert Template().documented()[-1] == "host"


def test_data_is_shared_and_caches_are_not() -> None:
    assert Clone.shared is Template.shared
    template, clone = Template(), Clone()
    assert (template.cached(1), clone.cached(1), clone.cached(1)) == ((1, "host"), (1, "ours"), (1, "ours"))
    assert Template.cached.cache_info()[:2] == (0, 1)
    assert Clone.cached.cache_info()[:2] == (1, 1)
    assert Clone.cached.cache_parameters() == {"maxsize": 7, "typed": True}
    assert Clone.cached.__wrapped__.__qualname__ == Clone.cached.__qualname__ == "Clone.cached"


def test_cells_shared_by_functions_stay_shared() -> None:
    count = 0

    def counted(function: Any) -> tuple[Any, Any]:
        @functools.wraps(function)
        def call(self: Any) -> Any:
            nonlocal count
            count += 1
            return function(self)

        def replace(replacement: Any) -> None:
            nonlocal function
            function = replacement

        return call, replace

    class Local(Host):
        def method(self) -> str:
            return super().where()

        call, replace = counted(method)

    New: Any = make_cls(Local, bases=(Ours,))
    assert (Local().call(), New().call(), count) == ("host", "ours", 2)
    New.replace(lambda self: "replaced")
    assert (Local().call(), New().call(), count) == ("host", "replaced", 4)


def test_a_decorator_that_refers_to_itself_is_copied_once() -> None:
    def recursive(function: Any) -> Any:
        def call(self: Any, depth: int) -> Any:
            return function(self) if depth == 0 else (call.__qualname__, call(self, depth - 1))

        call.again = call  # type: ignore[attr-defined]
        call.__qualname__ = function.__qualname__
        return call

    class Local(Host):
        @recursive
        def method(self) -> str:
            return super().where()

    New: Any = make_cls(Local, bases=(Ours,), qualname="New")
    assert New().method(1) == ("New.method", "ours")
    assert New.method.again is New.method


def test_wrapped_chains_lead_to_the_copy() -> None:
    def decorate(function: Any) -> Any:
        return functools.wraps(function)(lambda *args: function(*args))

    class Local(Host):
        @decorate
        @decorate
        def method(self, a: int) -> str:
            return super().where()

    New: Any = make_cls(Local, bases=(Ours,), qualname="New")
    inner = inspect.unwrap(New.method)
    assert inner.__closure__[0].cell_contents is New
    assert [New.method.__qualname__, inner.__qualname__] == ["New.method"] * 2
    assert str(inspect.signature(New.method)) == "(self, a: 'int') -> 'str'"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters came with Python 3.12")
def test_type_parameters_are_kept() -> None:
    scope: dict[str, Any] = {"Host": Host, "__name__": __name__}
    exec("class Local[T](Host):\n    def method[S](self, x: S) -> T: return super().where()\n", scope)
    Local = scope["Local"]
    New: Any = make_cls(Local, bases=(Ours, Generic[Local.__type_params__[0]]))
    assert New.method.__type_params__ == Local.method.__type_params__ != ()
    assert New.__type_params__ == Local.__type_params__
    assert New[int]().method(1) == "ours"


def test_instances_and_functions_pickle_where_the_clone_can_be_found() -> None:
    assert type(pickle.loads(pickle.dumps(Clone()))) is Clone
    assert pickle.loads(pickle.dumps(Clone.static)) is Clone.static
    assert pickle.loads(pickle.dumps(Clone().documented))()[-1] == "ours"
    instance = Clone()
    instance.value = [1]
    assert copy.deepcopy(instance).value == [1]
    assert weakref.ref(instance)() is instance


def test_existing_users_of_the_upstream_class_accept_the_registered_clone() -> None:
    class Upstream(Host):
        def method(self) -> str:
            return super().where()

    undo = add_abc_meta(Upstream)
    New: Any = make_cls(Upstream, bases=(Ours,))
    Upstream.register(New)  # type: ignore[attr-defined]
    again: Any = make_cls(Upstream, bases=(Ours,))
    add_abc_meta(Upstream)
    assert type(New) is type
    assert (isinstance(New(), Upstream), isinstance(again(), Upstream)) == (True, False)
    assert not issubclass(New, Host)
    assert (New().method(), again().method()) == ("ours", "ours")
    undo()
    assert not isinstance(New(), Upstream)


def test_the_metaclass_follows_from_the_bases() -> None:
    class Abstract(Ours, abc.ABC):
        @abc.abstractmethod
        def missing(self) -> None: ...

    class Local(Host, abc.ABC):
        @abc.abstractmethod
        def own(self) -> str:
            return super().where()

    plain: Any = make_cls(Local, bases=(Ours,))
    assert type(plain) is type
    assert not hasattr(plain, "_abc_impl")
    assert plain.own.__isabstractmethod__
    assert plain().own() == "ours"
    abstract: Any = make_cls(Local, bases=(Abstract,))
    assert abstract.__abstractmethods__ == {"own", "missing"}
    assert abstract._abc_impl is not Local._abc_impl  # type: ignore[attr-defined]

    class Meta(type):
        pass

    with pytest.raises(TypeError, match="metaclass conflict"):
        make_cls(Local, bases=(Abstract, Meta("Odd", (), {})))


def test_hooks_of_bases_and_members_run_with_super_ready() -> None:
    events: list[Any] = []

    class Hooked(Ours):
        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            events.append(("init", cls.__name__, cls().method()))  # type: ignore[attr-defined]

    class Descriptor:
        owner: Any = None

        def __set_name__(self, owner: Any, name: str) -> None:
            self.owner = owner
            events.append(("name", owner.__name__, name, owner().method()))

    class Local(Host):
        descriptor = Descriptor()

        def method(self) -> str:
            return super().where()

    original = vars(Local)["descriptor"]
    events.clear()
    New: Any = make_cls(Local, bases=(Hooked,), name="New")
    assert events == [("name", "New", "descriptor", "ours"), ("init", "New", "ours")]
    assert original.owner is Local
    assert New.descriptor.owner is New


def test_a_dispatched_method_does_not_meet_that_of_an_equal_object_of_the_template() -> None:
    class Local(Host):
        @functools.singledispatchmethod
        def method(self, value: Any) -> str:
            return super().where()

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

    New: Any = make_cls(Local, bases=(Ours,))
    template, clone = Local(), New()
    assert (template.method(1), clone.method(1)) == (
        "host",
        "ours",
    )  # Python 3.13 keeps bound methods by object


def test_generic_bases_work_as_in_a_class_statement() -> None:
    class Local(Host, Generic[T]):
        def method(self) -> str:
            return super().where()

    New: Any = make_cls(Local, bases=(Ours, Generic[T]))
    assert New.__orig_bases__ == (Ours, Generic[T])
    assert New.__parameters__ == (T,)
    assert New[int]().method() == "ours"
    assert not hasattr(make_cls(Local, bases=(Ours,)), "__parameters__")


def test_dataclasses_stay_dataclasses() -> None:
    @dataclass(order=True)
    class Local(Host):
        a: int
        b: list[int] = field(default_factory=list)

        def __post_init__(self) -> None:
            self.place = super().where()

    New: Any = make_cls(Local, bases=(Ours,), qualname="New")
    assert repr(New(1)) == "New(a=1, b=[])"
    assert (New(1, [2]) == New(1, [2]), New(1) < New(2), New(1) == Local(1)) == (True, True, False)
    assert [each.name for each in fields(New)] == ["a", "b"]
    assert (New(1).place, Local(1).place) == ("ours", "host")


def test_frozen_dataclasses_stay_frozen() -> None:
    @dataclass(frozen=True)
    class Local:
        a: int

    class Writable:
        pass

    New: Any = make_cls(Local, bases=(Writable,))
    with pytest.raises(FrozenInstanceError):
        New(1).a = 2
    instance = type("Sub", (New,), {})(1)
    instance.other = 3  # goes through super(cls, self).__setattr__ in a function that dataclasses made
    assert (instance.a, instance.other) == (1, 3)


def test_methods_under_inference_mode_and_no_grad() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its decorators were not tried")

    class Local(Host):
        @torch.inference_mode()  # type: ignore[misc]
        def inference(self) -> Any:
            return super().where(), torch.is_inference_mode_enabled()

        @torch.no_grad()  # type: ignore[misc]
        def no_grad(self) -> Any:
            return super().where(), torch.is_grad_enabled()

    New: Any = make_cls(Local, bases=(Ours,), qualname="New")
    assert New().inference() == ("ours", True)
    assert New().no_grad() == ("ours", False)
    assert Local().inference() == ("host", True)
    assert New.inference.__qualname__ == "New.inference"
