# SPDX-License-Identifier: Apache-2.0
"""The table of kernels, who runs what, and how often a kernel is compiled."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch

from ascend_specpatch import kernels
from ascend_specpatch.kernels import (
    _dispatch,
    copy_and_expand_inputs,
    expand,
    prepare_inputs_padded,
    prepare_next_token_padded,
    recovered_tokens,
    rejection_greedy,
    rejection_random,
)

from .support import NPU, hosts_kernel


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets ASCEND_SPECPATCH_KERNELS, as if the process had been started with it."""

    def choose(value: str) -> None:
        monkeypatch.setenv("ASCEND_SPECPATCH_KERNELS", value)
        _dispatch.implementation.cache_clear()

    yield choose
    _dispatch.implementation.cache_clear()


def test_triton_runs_here() -> None:
    assert _dispatch.use_triton()
    assert _dispatch.vector_cores() == 40
    assert _dispatch.on_npu()


@pytest.mark.parametrize(
    ("choice", "runs"), [("triton", "triton"), ("torch", "torch"), ("upstream", "upstream"), ("", "triton")]
)
def test_the_setting_chooses_the_implementation(
    choice: str, runs: str, setting: Callable[[str], None]
) -> None:
    setting(choice)
    assert _dispatch.implementation() == runs
    assert _dispatch.use_triton() is (runs == "triton")


def test_without_triton_it_is_torch(setting: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.triton_utils.HAS_TRITON", False)
    setting("")
    assert _dispatch.implementation() == "torch"


def test_asking_for_triton_without_it_says_what_to_do(
    setting: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm.triton_utils.HAS_TRITON", False)
    setting("triton")
    with pytest.raises(RuntimeError, match="install triton-ascend, or unset"):
        _dispatch.use_triton()


def test_the_table_loads_nothing() -> None:
    program = "import sys, ascend_specpatch.kernels; print(*sys.modules)"
    environment = {
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "PYTHONPATH": ":".join(sys.path),
        "ASCEND_SPECPATCH": "0",
    }
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert "ascend_specpatch.kernels" in found.stdout.split()
    assert {"torch", "triton", "vllm", "vllm_ascend"}.isdisjoint(found.stdout.split())


@pytest.mark.parametrize("name", kernels.TABLE)
def test_a_stand_in_takes_what_the_kernel_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every release, and whether given by position or by name."""
    file, function = import_module(f"ascend_specpatch.kernels.{kernels.TABLE[name]}"), name.partition(":")[2]
    signature = inspect.signature(getattr(file, function))
    given: list[dict[str, Any]] = []

    def launch(*args: Any, **options: Any) -> None:
        given.append(signature.bind(*args, **options).arguments)

    launch.__signature__ = signature  # type: ignore[attr-defined]
    monkeypatch.setattr(file, function, launch)
    upstream = hosts_kernel(name)
    values = {n: 0 if n in _dispatch._MODES else f"<{n}>" for n in inspect.signature(upstream.fn).parameters}
    stand_in = kernels.stand_in(name, upstream)
    stand_in[(1,)](**values)
    stand_in[(1,)](
        *[value for n, value in values.items() if not n.isupper()],
        **{n: value for n, value in values.items() if n.isupper()},
    )
    assert len(given) == 2
    for arguments in given:
        taken = {
            n: value for n, value in arguments.items() if n in signature.parameters and n.endswith("_ptr")
        }
        assert taken == {n: values[n] for n in taken}
        assert {
            n for n, p in signature.parameters.items() if p.default is p.empty and n.endswith("_ptr")
        } <= {*taken}


def test_every_kernel_of_the_hosts_modules_is_in_the_table() -> None:
    inlined = {"bonus_renew", "bonus_renew_1"}  # called by other kernels only
    not_ours = {
        "eagle_step_slot_mapping_metadata_kernel",  # of vLLM's own draft loop, which does not run on an NPU
        "copy_and_expand_dflash_inputs_kernel",  # of a method that is left to the hosts
        "copy_and_expand_dflash_inputs_kernel_single_grid",
    }
    for module in {name.partition(":")[0] for name in kernels.TABLE}:
        found = {
            name
            for name, value in vars(import_module(module)).items()
            if hasattr(value, "fn") and hasattr(value, "__getitem__") and value.fn.__module__ == module
        }
        assert {f"{module}:{name}" for name in found - inlined - not_ours} <= set(kernels.TABLE), module


def test_upstream_runs_where_it_is_asked_for(setting: Callable[[str], None]) -> None:
    calls: list[tuple[Any, ...]] = []

    class Upstream:
        fn = staticmethod(hosts_kernel("vllm.v1.sample.rejection_sampler:expand_kernel").fn)

        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **options: calls.append((grid, args, options))

    name = "vllm.v1.sample.rejection_sampler:expand_kernel"
    stand_in = kernels.stand_in(name, Upstream())
    setting("upstream")
    stand_in[(3,)](1, 2, MAX_NUM_TOKENS=128)
    assert calls == [((3,), (1, 2), {"MAX_NUM_TOKENS": 128})]
    setting("torch")
    output, values, cu = (torch.tensor(x, dtype=torch.int32, device=NPU) for x in ([0, 0, 0], [5, 6], [1, 3]))
    stand_in[(2,)](output, values, cu, 0, 0, MAX_NUM_TOKENS=128)
    assert output.tolist() == [5, 6, 6]
    assert len(calls) == 1
    assert "expand.expand_kernel in place of" in repr(stand_in)


def test_in_a_mode_that_only_the_hosts_have_their_kernel_runs() -> None:
    calls: list[str] = []

    class Upstream:
        @staticmethod
        def fn(draft_ptr: Any, output_ptr: Any, SYNTHETIC_MODE: bool) -> None: ...

        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **options: calls.append(f"theirs {grid} {args}")

    def launch(grid: Any, output_ptr: Any, draft_ptr: Any, *, more_ptr: Any = None, **options: Any) -> None:
        calls.append(f"ours {grid} {output_ptr} {draft_ptr} {more_ptr}")

    stand_in = _dispatch.StandIn(launch, Upstream())
    stand_in[(3,)]("draft", "output", SYNTHETIC_MODE=False)
    stand_in[(3,)]("draft", "output", SYNTHETIC_MODE=True)
    assert calls == ["ours (3,) output draft None", "theirs (3,) ('draft', 'output')"]


# ---- how often a kernel is compiled, and on how many programs it runs


class Recorder:
    """In place of a Triton kernel: the grids it is launched on, and what Triton compiles a variant for."""

    def __init__(
        self, kernel: Any, name: str, found: dict[str, set[Any]], grids: list[tuple[int, ...]]
    ) -> None:
        self.parameters = list(inspect.signature(kernel.fn).parameters)
        self.kept = LEFT_ALONE[name]
        self.name, self.found, self.grids = name, found, grids

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            variant = [("options", tuple(sorted(options.items())))]
            for name, value in zip(self.parameters, args, strict=False):
                if value is None or isinstance(value, torch.Tensor):
                    variant.append((name, None if value is None else value.dtype))
                elif name not in self.kept:
                    variant.append((name, (value == 1, value % 16 == 0)))
            self.found.setdefault(self.name, set()).add(tuple(variant))
            self.grids.append(grid)

        return launch


MODULES = (
    copy_and_expand_inputs, expand, prepare_inputs_padded, prepare_next_token_padded, recovered_tokens,
    rejection_greedy, rejection_random,
)  # fmt: skip


def launched(module: ModuleType) -> list[str]:
    return [name for name in ("_kernel", "_best_of_tiles", "_best_of_all") if hasattr(module, name)]


def not_specialised(module: ModuleType, name: str) -> set[str]:
    """The names in the decorator of a kernel: Triton's interpreter forgets them."""
    import ast

    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            (decorator,) = node.decorator_list
            assert isinstance(decorator, ast.Call), f"{module.__name__}.{name} lists nothing"
            return set(ast.literal_eval(decorator.keywords[0].value))
    raise LookupError(name)


LEFT_ALONE = {f"{m.__name__}.{name}": not_specialised(m, name) for m in MODULES for name in launched(m)}


def launch_all(number: int, length: int = 3, vocab: int = 32_000) -> None:
    """Every launcher of ours with `number` requests of `length` draft tokens each."""

    def integers(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32)

    tokens, rows = number * length, integers(number, length + 1)
    probs, q = torch.empty((tokens, vocab), device="meta"), torch.empty((number, vocab), device="meta")
    one, flat, bonus = integers(number), integers(tokens), integers(number, 1)
    mask = torch.zeros(number, dtype=torch.bool)
    random = (one, flat, probs, probs, bonus, flat, torch.zeros(tokens), mask)
    rejection_greedy.rejection_greedy(rows, one, flat, flat.long(), bonus)
    rejection_random.rejection_random(rows, *random)
    recovered_tokens.recovered_tokens(flat, one, flat, probs, probs, q, length)
    expand.expand(torch.zeros(tokens), torch.zeros(number), one)
    prepare_inputs_padded.prepare_inputs_padded(one, one, integers(number + 1))
    prepare_next_token_padded.prepare_next_token_padded(rows, mask, one, vocab)
    total = number * (length + 1)
    outputs = [
        integers(total + number),
        integers(total + number).long(),
        *(integers(total + number).bool() for _ in "12"),
    ]
    copy_and_expand_inputs.copy_and_expand_inputs(
        integers(total), integers(total).long(), one, *outputs, one, integers(total),
        integers(number + 1), one, 0, 1, 1, False,
    )  # fmt: skip


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, set[Any]], list[tuple[int, ...]]]:
    found: dict[str, set[Any]] = {}
    grids: list[tuple[int, ...]] = []
    for module in MODULES:
        for name in launched(module):
            recorder = Recorder(getattr(module, name), f"{module.__name__}.{name}", found, grids)
            monkeypatch.setattr(module, name, recorder)
    return found, grids


@pytest.mark.parametrize("npu", [True, False], ids=["npu", "gpu"])
def test_batches_of_1_to_256_compile_no_kernel_more_than_twice(
    npu: bool, recorded: tuple[dict[str, set[Any]], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_dispatch, "_device", lambda: (npu, 40 if npu else 132))
    for number in range(1, 257):
        launch_all(number)
    found, _ = recorded
    assert found.keys() == LEFT_ALONE.keys()
    assert {name: len(variants) for name, variants in found.items() if len(variants) > 2} == {}


@pytest.mark.parametrize("number", [1, 39, 40, 41, 4096, 70_000])
def test_an_npu_is_given_as_many_programs_as_it_has_cores(
    number: int, recorded: tuple[Any, list[tuple[int, ...]]]
) -> None:
    launch_all(number)
    _, grids = recorded
    assert len(grids) == len(LEFT_ALONE)
    for grid in grids:
        assert 1 <= torch.tensor(grid).prod() <= 40
