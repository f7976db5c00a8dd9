# SPDX-License-Identifier: Apache-2.0
"""Logprobs of accepted tokens come out as vLLM gave them."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from ascend_specpatch.edits import Edit
from ascend_specpatch.patches.model_runner import accepted_logprobs


class Lists(NamedTuple):
    """LogprobsLists, as far as it matters."""

    logprobs: list[float]
    cu_num_generated_tokens: Any = None


def patched(result: tuple[Any, ...]) -> Any:
    class NPUModelRunner:
        def _bookkeeping_sync(self, tokens: int, *, more: int) -> tuple[Any, ...]:
            assert (tokens, more) == (1, 2)
            return result

    module: Any = ModuleType("model_runner")
    module.NPUModelRunner = NPUModelRunner
    accepted_logprobs.apply(Edit("model_runner.accepted_logprobs", module))
    return module.NPUModelRunner()


def test_what_the_host_wrapped_is_taken_out() -> None:
    right = Lists([0.1, 0.2], [0, 1, 2])
    runner = patched((Lists([0.1, 9.0, 0.2], right), [[3], [4]], {}))
    assert runner._bookkeeping_sync(1, more=2) == (right, [[3], [4]], {})


def test_other_results_stay_as_they_are() -> None:
    for logprobs in (None, Lists([0.1]), Lists([0.1, 0.2], [0, 1, 2])):
        assert patched((logprobs, [[3]]))._bookkeeping_sync(1, more=2) == (logprobs, [[3]])
