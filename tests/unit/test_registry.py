# SPDX-License-Identifier: Apache-2.0
"""Order, contradictions in the list, and the choice that settings and hosts make."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_specpatch import hosts, registry
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.registry import Choice, Form, Patch, Registry, RegistryError, State
from ascend_specpatch.settings import Settings, SettingsError

PAIR = hosts.SUPPORTED[0]
OTHER = HostPair("0.99.0", "0.99.0")


def patch(patch_id: str, *requires: str, **more: object) -> Patch:
    return Patch(patch_id, target="vllm.x", summary="", requires=requires, **more)  # type: ignore[arg-type]


LIST = Registry(
    [
        patch("model_runner.last", "spec_decode.base"),
        patch("spec_decode.base"),
        patch("spec_decode.clone", "spec_decode.base"),
        patch("worker.lazy"),
        patch("spec_decode.extra", default=False),
        patch("spec_decode.newer", hosts=(OTHER,)),
    ]
)


def chosen(pair: HostPair = PAIR, **settings: object) -> dict[str, Choice]:
    plan = LIST.choose(Settings(**settings), pair)  # type: ignore[arg-type]
    return {choice.patch.id: choice for choice in plan.choices}


def on(pair: HostPair = PAIR, **settings: object) -> list[str]:
    return [
        patch_id for patch_id, choice in chosen(pair, **settings).items() if choice.state is State.WAITING
    ]


def test_order_is_by_stage_and_then_as_listed() -> None:
    assert [p.id for p in LIST] == [
        "worker.lazy",
        "spec_decode.base",
        "spec_decode.clone",
        "spec_decode.extra",
        "spec_decode.newer",
        "model_runner.last",
    ]


def test_the_body_of_a_patch_follows_from_its_id() -> None:
    assert patch("spec_decode.base").body == "ascend_specpatch.patches.spec_decode.base"
    assert patch("spec_decode.base", implementation="elsewhere.body").body == "elsewhere.body"


@pytest.mark.parametrize(
    ("patches", "says"),
    [
        ([patch("worker.a"), patch("worker.a")], "worker.a is listed twice"),
        ([patch("worker.a", "worker.lasy"), patch("worker.lazy")], "did you mean worker.lazy?"),
        (
            [patch("worker.a", after=("worker.lasy",)), patch("worker.lazy")],
            "worker.a: after names worker.lasy",
        ),
        (
            [patch("worker.a", before=("spec_decode.b",))],
            "worker.a: before names spec_decode.b, which is not",
        ),
        (
            [patch("worker.a", "spec_decode.b"), patch("spec_decode.b")],
            "worker.a: requires names spec_decode.b, but all of worker comes before spec_decode",
        ),
        (
            [patch("worker.a"), patch("spec_decode.b", before=("worker.a",))],
            "spec_decode.b: before names worker.a, but all of worker comes before spec_decode",
        ),
        ([patch("worker.a", "worker.a")], "wait for each other: worker.a -> worker.a"),
        (
            [patch("worker.a", "worker.c"), patch("worker.b", "worker.a"), patch("worker.c", "worker.b")],
            "wait for each other: worker.a -> worker.c -> worker.b -> worker.a",
        ),
        (
            [patch("worker.a"), patch("worker.b", "worker.a", before=("worker.a",))],
            "wait for each other: worker.a -> worker.b -> worker.a",
        ),
        (  # what only hangs on a circle is not named in it
            [patch("worker.x", "worker.b"), patch("worker.a", "worker.b"), patch("worker.b", "worker.a")],
            "wait for each other: worker.b -> worker.a -> worker.b",
        ),
    ],
)
def test_a_list_that_contradicts_itself_is_an_error(patches: list[Patch], says: str) -> None:
    with pytest.raises(RegistryError) as caught:
        Registry(patches)
    assert says in str(caught.value)
    assert set(caught.value.culprits) & {p.id for p in patches}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"id": "kernel.a"}, "kernel.a: an id is stage.name"),
        ({"id": "worker"}, "worker: an id is stage.name"),
        ({"id": None}, "None: an id is stage.name"),
        ({"target": ""}, "worker.a: target is the name of a module, not ''"),
        ({"target": "vllm/x.py"}, "worker.a: target is the name of a module"),
        ({"requires": "worker.b"}, "worker.a: requires is a tuple of ids, not 'worker.b'"),
        ({"after": ["worker.b"]}, "worker.a: after is a tuple of ids"),
        ({"before": (1,)}, "worker.a: before is a tuple of ids"),
    ],
)
def test_a_malformed_patch_is_an_error_where_it_is_written(values: dict[str, Any], says: str) -> None:
    with pytest.raises(RegistryError) as caught:
        Patch(**{"id": "worker.a", "target": "vllm.x", "summary": "", **values})
    assert says in str(caught.value)


def test_relations_move_a_patch_no_further_than_they_ask() -> None:
    listed = Registry(
        [
            patch("worker.a", "worker.d"),
            patch("worker.b"),
            patch("worker.c", after=("worker.e",)),
            patch("worker.d"),
            patch("worker.e"),
            patch("worker.f", before=("worker.b",)),
        ]
    )
    assert [p.id for p in listed] == [f"worker.{name}" for name in "dafbec"]
    assert {p.id: p.after for p in listed}["worker.b"] == ("worker.f",)


@given(st.data())
def test_an_order_keeps_every_relation_and_does_not_depend_on_chance(data: st.DataObject) -> None:
    names = [f"{stage}.{letter}" for stage in registry.STAGES for letter in "abcd"]
    drawn = st.sampled_from(names)
    edges = data.draw(
        st.lists(st.tuples(drawn, st.sampled_from(("requires", "after", "before")), drawn), max_size=8)
    )
    patches = []
    for name in data.draw(st.permutations(names)):
        own = {kind: tuple(b for a, k, b in edges if a == name and k == kind) for _, kind, _ in edges}
        patches.append(Patch(name, "vllm.x", "", **own))
    earlier = {(b, a) if kind != "before" else (a, b) for a, kind, b in edges}
    try:
        order = [p.id for p in Registry(patches)]
    except RegistryError:
        # Only what cannot be had is refused: a step back to an earlier stage, or a circle.
        stage = {name: registry.STAGES.index(name.partition(".")[0]) for name in names}
        if not any(stage[a] > stage[b] for a, b in earlier):
            with pytest.raises(CycleError):
                TopologicalSorter({name: [a for a, b in earlier if b == name] for name in names}).prepare()
        return
    assert sorted(order) == sorted(names)
    assert order == sorted(order, key=lambda name: registry.STAGES.index(name.partition(".")[0]))
    assert all(order.index(a) < order.index(b) for a, b in earlier)
    assert [p.id for p in Registry(patches)] == order
    if not earlier:
        assert order == sorted(
            (p.id for p in patches), key=lambda n: registry.STAGES.index(n.partition(".")[0])
        )


def test_by_default_all_are_on_but_those_off_by_default_or_for_other_hosts() -> None:
    assert on() == ["worker.lazy", "spec_decode.base", "spec_decode.clone", "model_runner.last"]
    assert chosen()["spec_decode.extra"].reason.endswith(
        "ASCEND_SPECPATCH_ENABLE=spec_decode.extra turns it on"
    )
    assert chosen()["spec_decode.newer"] == Choice(
        chosen()["spec_decode.newer"].patch, State.NOT_FOR_THIS_HOST, f"found {PAIR}"
    )


def test_a_patch_whose_requirement_is_off_is_off_and_says_why() -> None:
    found = chosen(disable=("spec_decode.base",))
    assert found["spec_decode.base"].reason == "ASCEND_SPECPATCH_DISABLE"
    assert found["spec_decode.clone"].state is State.OFF
    assert (
        found["spec_decode.clone"].reason == "needs spec_decode.base, which is off (ASCEND_SPECPATCH_DISABLE)"
    )
    assert on(disable=("spec_decode.base",)) == ["worker.lazy"]


@pytest.mark.parametrize("name", ["spec_decode", "spec_decode.*", "*base"])
def test_stages_and_globs_are_names_too(name: str) -> None:
    assert on(disable=(name,)) == ["worker.lazy"]


def test_enable_turns_on_what_is_off_by_default_and_disable_wins() -> None:
    assert "spec_decode.extra" in on(enable=("spec_decode.extra",))
    assert "spec_decode.extra" not in on(enable=("spec_decode.extra",), disable=("spec_decode.extra",))


def test_switched_off_is_everything_off() -> None:
    assert on(enabled=False) == []
    assert {choice.reason for choice in chosen(enabled=False).values()} == {"ASCEND_SPECPATCH=0"}


def test_other_hosts_get_only_what_is_for_them() -> None:
    assert on(OTHER) == ["spec_decode.newer"]
    assert chosen(OTHER)["worker.lazy"].state is State.NOT_FOR_THIS_HOST


def test_a_patch_has_one_form_on_each_pair() -> None:
    elsewhere = Form((OTHER,), folder="since_0_99", target="vllm.y")
    moved = Form((OTHER,), target="vllm.z")
    first = patch("spec_decode.base", forms=(elsewhere,))
    assert (first.on(PAIR).target, first.on(PAIR).body) == (
        "vllm.x",
        "ascend_specpatch.patches.spec_decode.base",
    )
    assert (first.on(OTHER).target, first.on(OTHER).body) == (
        "vllm.y",
        "ascend_specpatch.patches.since_0_99.spec_decode.base",
    )
    assert patch("spec_decode.base", forms=(moved,)).on(OTHER).body == first.body
    theirs = patch("spec_decode.base", hosts=(PAIR, OTHER), forms=(elsewhere,))
    (choice,) = Registry([theirs]).choose(Settings(), OTHER).choices
    assert (choice.state, choice.patch.target) == (State.WAITING, "vllm.y")


def test_what_the_host_has_is_not_patched_and_nobody_waits_for_it() -> None:
    newer = HostPair("0.17.0", "0.17.0rc1")
    both = (PAIR, newer)
    registry_of_both = Registry(
        [
            patch("spec_decode.base", hosts=both, in_host_since="vllm-ascend 0.17.0rc1"),
            patch("spec_decode.clone", "spec_decode.base", hosts=both),
        ]
    )
    base, clone = registry_of_both.choose(Settings(), newer).choices
    assert (base.state, base.reason) == (State.UNNEEDED, "in the host since vllm-ascend 0.17.0rc1")
    assert (clone.state, clone.patch.requires) == (State.WAITING, ())
    assert {choice.state for choice in registry_of_both.choose(Settings(), PAIR).choices} == {State.WAITING}
    off = registry_of_both.choose(Settings(disable=("spec_decode.base",)), newer).choices
    assert [choice.state for choice in off] == [State.UNNEEDED, State.WAITING]


def test_what_only_newer_hosts_have_wrong_is_not_patched_before() -> None:
    newer = HostPair("0.17.0", "0.17.0rc1")
    new_fault = patch("spec_decode.base", hosts=(PAIR, newer), needed_since="vllm-ascend 0.17.0rc1")
    (before,) = Registry([new_fault]).choose(Settings(), PAIR).choices
    assert (before.state, before.reason) == (State.UNNEEDED, "needed since vllm-ascend 0.17.0rc1")
    (after,) = Registry([new_fault]).choose(Settings(), newer).choices
    assert after.state is State.WAITING
    assert (new_fault.is_needed_on(PAIR), new_fault.is_needed_on(newer)) == (False, True)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"forms": [Form((OTHER,))]}, "forms is a tuple of Form"),
        ({"forms": (Form(("0.99.0",)),)}, "a form names HostPairs and a module"),  # type: ignore[arg-type]
        ({"forms": (Form((OTHER,), target="vllm y"),)}, "a form names HostPairs and a module"),
        ({"in_host_since": "0.17.0"}, "'0.17.0' is no release of vllm or vllm-ascend"),
        ({"in_host_since": "vllm soon"}, "in_host_since: Invalid version"),
        ({"needed_since": "vllm soon"}, "needed_since: Invalid version"),
    ],
)
def test_forms_and_releases_that_say_nothing_are_errors(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(RegistryError, match=says):
        patch("spec_decode.base", **wrong)


@pytest.mark.parametrize(
    ("variable", "name", "says"),
    [
        (
            "disable",
            "spec_decode.bas",
            "ASCEND_SPECPATCH_DISABLE: no patch is named spec_decode.bas; did you mean spec_decode.base?",
        ),
        ("disable", "spec_decoder", "did you mean spec_decode"),
        ("enable", "zzz.*", "ASCEND_SPECPATCH_ENABLE: no patch is named zzz.*; known: worker.lazy"),
    ],
)
def test_unknown_names_are_errors_that_name_the_nearest(variable: str, name: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        chosen(**{variable: (name,)})
    assert says in str(caught.value)


def test_the_list_of_this_distribution_loads_and_every_body_exists(checkout_modules: set[str]) -> None:
    patches = registry.load().patches
    assert patches
    assert {p.body for p in patches} <= checkout_modules


@pytest.fixture
def checkout_modules() -> set[str]:
    """The modules under patches/, found without importing a stage: their bodies may need the hosts."""
    from pathlib import Path

    import ascend_specpatch.patches

    top = Path(ascend_specpatch.patches.__file__).parent
    return {
        ".".join(("ascend_specpatch.patches", *path.relative_to(top).with_suffix("").parts))
        for path in top.rglob("*.py")
    }
