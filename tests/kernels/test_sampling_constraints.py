# SPDX-License-Identifier: Apache-2.0
"""The patch spec_decode.sampling_constraints: the host's result, with one launch in place of up to three."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_npu import counters
from vllm_ascend.ops.triton.triton_utils import init_device_properties_triton
from vllm_ascend.sample import rejection_sampler, sampler

from ascend_specpatch.edits import Edit
from ascend_specpatch.kernels import _dispatch
from ascend_specpatch.patches.spec_decode import sampling_constraints

from .support import NPU, randomness

HOSTS = rejection_sampler.apply_sampling_constraints
# The top-k that sampling from a part of the vocabulary is given, in releases that have it.
MORE = (None,) if "top_k" in inspect.signature(HOSTS).parameters else ()
DRAFTED = [3, 0, 1, 5, 2]
VOCABULARY = 64


@pytest.fixture(autouse=True)
def whole_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases that can sample from a part of the vocabulary ask the configuration of the engine for it."""
    config = SimpleNamespace(enable_reduce_sample=False)
    for module in (rejection_sampler, sampler):
        monkeypatch.setattr(module, "get_ascend_config", lambda: config, raising=False)


@pytest.fixture
def ours() -> Iterator[Any]:
    init_device_properties_triton()
    edit = Edit("spec_decode.sampling_constraints", rejection_sampler)
    sampling_constraints.apply(edit)
    yield rejection_sampler.apply_sampling_constraints
    edit.undo()


def arguments(top_k: bool, top_p: bool, all_greedy: bool = False) -> tuple[Any, ...]:
    """Logits, cumulative numbers of drafts, and the sampling metadata of greedy and random requests."""
    logits = torch.randn((sum(DRAFTED), VOCABULARY), generator=randomness(3))
    sampling = SimpleNamespace(
        all_greedy=all_greedy,
        temperature=None if all_greedy else torch.tensor([0.5, 0.7, 0.0, 2.0, 1.0], device=NPU),
        top_k=torch.tensor([1, 5, VOCABULARY, 9, 3], dtype=torch.int32, device=NPU) if top_k else None,
        top_p=torch.tensor([0.9, 0.1, 1.0, 0.5, 0.7], device=NPU) if top_p else None,
    )
    return logits.to(NPU), torch.tensor(DRAFTED, device=NPU).cumsum(0).int(), sampling, *MORE


def launches(function: Any, *given: Any) -> tuple[torch.Tensor, list[str]]:
    """What a function returns, and the names of the Triton kernels that it launches."""
    with counters.record() as counts:
        result = function(*given)
    return result, [name for name in counts.names if name.startswith("triton::")]


@pytest.mark.parametrize("top_k", [False, True])
@pytest.mark.parametrize("top_p", [False, True])
@pytest.mark.parametrize("choice", ["triton", "torch"])
def test_the_hosts_logits_with_one_launch(
    ours: Any, top_k: bool, top_p: bool, choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_dispatch, "implementation", lambda: choice)
    expected, of_host = launches(HOSTS, *arguments(top_k, top_p))
    found, of_ours = launches(ours, *arguments(top_k, top_p))
    assert torch.equal(found, expected)
    assert len(of_host) == 1 + top_k + top_p
    assert len(of_ours) == (choice == "triton")


def test_upstream_is_the_hosts_function(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dispatch, "implementation", lambda: "upstream")
    _, names = launches(ours, *arguments(True, True))
    assert names == ["triton::expand_kernel"] * 3


def test_greedy_logits_are_returned_as_they_are(ours: Any) -> None:
    given = arguments(False, False, all_greedy=True)
    result, names = launches(ours, *given)
    assert (result[0] if MORE else result) is given[0]
    assert names == []
