# SPDX-License-Identifier: Apache-2.0
"""Patches that other distributions bring by the entry-point group ``ascend_specpatch.patches``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from ascend_specpatch import providers
from ascend_specpatch.registry import Patch, Registry, RegistryError

OWN = (
    Patch("spec_decode.first", "vllm.a", ""),
    Patch("spec_decode.second", "vllm.a", "", requires=("spec_decode.first",)),
)
Provide = Callable[..., None]


@pytest.fixture
def provide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provide]:
    """Install a distribution whose entry point names ``patches`` in a module with ``code``."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, code: str, points: tuple[str, ...] = ("patches",)) -> None:
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text("from ascend_specpatch.registry import Patch\n" + dedent(code))
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"{point} = {module}:{point}" for point in points]
        (info / "entry_points.txt").write_text("\n".join([f"[{providers.GROUP}]", *lines, ""]))

    before = set(sys.modules)
    yield install
    for name in set(sys.modules) - before:
        del sys.modules[name]


def ids(registry: Registry) -> list[str]:
    return [patch.id for patch in registry]


def test_without_other_distributions_there_is_the_own_list(provide: Provide) -> None:
    assert ids(providers.extend(OWN)) == ["spec_decode.first", "spec_decode.second"]
    assert providers.extend(OWN).problems == ()


def test_a_patch_comes_at_the_end_of_its_stage_or_where_it_asks_to(provide: Provide) -> None:
    provide("one", 'patches = Patch("spec_decode.one", "vllm.a", "", implementation="one.body")')
    provide(
        "two",
        """
        patches = [
            Patch("spec_decode.two", "vllm.a", "", before=("spec_decode.second",), implementation="two.body")
        ]
        """,
    )
    registry = providers.extend(OWN)
    assert ids(registry) == ["spec_decode.first", "spec_decode.two", "spec_decode.second", "spec_decode.one"]
    assert [patch.provider for patch in registry] == ["", "two", "", "one"]
    assert registry.problems == ()


def test_distributions_may_name_each_other_whatever_their_names(provide: Provide) -> None:
    provide(
        "aa", 'patches = (Patch("worker.aa", "vllm.a", "", after=("worker.zz",), implementation="aa.body"),)'
    )
    provide("zz", 'patches = (Patch("worker.zz", "vllm.a", "", implementation="zz.body"),)')
    assert ids(providers.extend(OWN))[:2] == ["worker.zz", "worker.aa"]


WRONG = {
    "raises": ("1 / 0", "the patches of bad (entry point patches) are left out: ZeroDivisionError"),
    "missing": ("other = 1", "AttributeError"),
    "no_patch": ("patches = ['worker.a']", "a sequence of them is wanted, not 'worker.a'"),
    "no_sequence": ("patches = 3", "TypeError: 'int' object is not iterable"),
    "no_body": ("patches = Patch('worker.a', 'vllm.a', '')", "worker.a: implementation must name the module"),
    "wrong_arguments": ("patches = Patch('worker.a', 'vllm.a')", "missing 1 required positional argument"),
    "string_requires": (
        "patches = Patch('worker.a', 'vllm.a', '', requires='worker.b', implementation='b')",
        "requires is a tuple of ids, not 'worker.b'",
    ),
    "unknown_stage": ("patches = Patch('mine.a', 'vllm.a', '', implementation='b')", "an id is stage.name"),
    "own_id": (
        "patches = Patch('spec_decode.first', 'vllm.a', '', implementation='b')",
        "the patches of bad are left out: spec_decode.first is listed twice",
    ),
    "unknown_id": (
        "patches = Patch('spec_decode.a', 'vllm.a', '', after=('spec_decode.frist',), implementation='b')",
        "after names spec_decode.frist, which is not listed; did you mean spec_decode.first?",
    ),
    "circle": (
        """
        patches = Patch("spec_decode.a", "vllm.a", "", requires=("spec_decode.second",),
                        before=("spec_decode.first",), implementation="b")
        """,
        "wait for each other",
    ),
    "stages": (
        "patches = Patch('model_runner.a', 'vllm.a', '', before=('spec_decode.first',), implementation='b')",
        "all of spec_decode comes before model_runner",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_distribution_is_left_out_and_named(provide: Provide, case: str) -> None:
    code, says = WRONG[case]
    provide("bad", code)
    provide("good", 'patches = Patch("worker.good", "vllm.a", "", implementation="good.body")')
    registry = providers.extend(OWN)
    assert ids(registry) == ["worker.good", "spec_decode.first", "spec_decode.second"]
    (problem,) = registry.problems
    assert says in problem
    assert problem.endswith("Mend or uninstall that distribution")


def test_of_a_wrong_distribution_nothing_stays(provide: Provide) -> None:
    provide(
        "bad",
        """
        good = Patch("worker.good", "vllm.a", "", implementation="bad.body")
        patches = "nothing of ours"
        """,
        points=("good", "patches"),
    )
    registry = providers.extend(OWN)
    assert ids(registry) == ["spec_decode.first", "spec_decode.second"]
    assert len(registry.problems) == 1


def test_who_names_a_distribution_that_was_left_out_is_left_out_too(provide: Provide) -> None:
    provide("bad", "patches = Patch('worker.bad', 'vllm.a', '', after=('worker.none',), implementation='b')")
    provide(
        "leaning",
        "patches = Patch('worker.leaning', 'vllm.a', '', after=('worker.bad',), implementation='b')",
    )
    registry = providers.extend(OWN)
    assert ids(registry) == ["spec_decode.first", "spec_decode.second"]
    assert ["worker.none" in registry.problems[0], "worker.bad" in registry.problems[1]] == [True, True]


def test_a_wrong_own_list_is_an_error(provide: Provide) -> None:
    provide("good", 'patches = Patch("worker.good", "vllm.a", "", implementation="good.body")')
    with pytest.raises(RegistryError, match=r"spec_decode\.first is listed twice"):
        providers.extend((*OWN, OWN[0]))
