# SPDX-License-Identifier: Apache-2.0
"""spec_decode.draft_penalties

What: without Triton, penalties of a request no longer end the engine when its drafts are verified.
Why: the rejection sampler of vllm-ascend 0.23.0 then calls the plain sampler, which takes one row of logits
    for each request; here there is one for each draft.
How: what it calls instead is the method of vLLM's rejection sampler, which repeats the penalties of a request
    for its drafts. With Triton the host's method stays in charge: it does so itself.
Until: vllm-ascend repeats them without Triton too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.sample.rejection_sampler:RejectionSampler.apply_penalties",
    "vllm_ascend.sample.rejection_sampler:AscendRejectionSampler.apply_logits_processors",
    "vllm_ascend.sample.rejection_sampler:AscendRejectionSampler.apply_penalties",
)


def apply(edit: Edit) -> None:
    host = edit.module
    with_triton = host.AscendRejectionSampler.apply_penalties
    without = host.RejectionSampler.apply_penalties

    def apply_penalties(*arguments: Any, **options: Any) -> Any:
        return (with_triton if host.HAS_TRITON else without)(*arguments, **options)

    edit.set(host.AscendRejectionSampler, "apply_penalties", staticmethod(apply_penalties))
