# SPDX-License-Identifier: Apache-2.0
"""model_runner.accepted_logprobs

What: a request for logprobs works when drafts are verified without asynchronous scheduling.
Why: vLLM 0.16.0's ``RejectionSampler.parse_output`` gives the logprobs of the accepted tokens; the host takes
    them for the numbers of accepted tokens and wraps them into the logprobs of all tokens, on which the
    engine ends. vLLM leaves asynchronous scheduling off for draft_model unless it is asked for.
How: ``_bookkeeping_sync`` returns the logprobs that the host wrapped in place of the wrapping.
Until: vllm-ascend reads the result of ``parse_output`` as vLLM gives it (0.23.0).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.outputs:LogprobsLists",
    "vllm.v1.outputs:LogprobsTensors.tolists",
    "vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._bookkeeping_sync",
)


def unwrapped(logprobs: Any) -> Any:
    """The LogprobsLists inside `logprobs` where its count of tokens is one, else `logprobs`."""
    inner = getattr(logprobs, "cu_num_generated_tokens", None)
    return inner if isinstance(inner, type(logprobs)) else logprobs


def apply(edit: Edit) -> None:
    runner = edit.module.NPUModelRunner
    host_bookkeeping = runner._bookkeeping_sync

    @functools.wraps(host_bookkeeping)
    def _bookkeeping_sync(self: Any, *args: Any, **kwargs: Any) -> Any:
        logprobs, *others = host_bookkeeping(self, *args, **kwargs)
        return unwrapped(logprobs), *others

    edit.set(runner, "_bookkeeping_sync", _bookkeeping_sync)
