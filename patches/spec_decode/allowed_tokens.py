# SPDX-License-Identifier: Apache-2.0
"""spec_decode.allowed_tokens

What: a request with ``allowed_token_ids`` no longer ends the engine when its drafts are verified.
Why: the rejection sampler of vLLM 0.16.0 and 0.17.0 counts the requests of a batch by their output tokens,
    which it is only given where a request asks for penalties or the like.
How: where there are none, ``apply_logits_processors`` is given an empty output for each request.
Until: vLLM counts requests by their drafts (0.18.0).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.sample.metadata:SamplingMetadata",
    "vllm.v1.sample.rejection_sampler:RejectionSampler.apply_logits_processors",
    "vllm.v1.spec_decode.metadata:SpecDecodeMetadata",
)


def apply(edit: Edit) -> None:
    sampler = edit.module.RejectionSampler
    vllm_function = sampler.apply_logits_processors

    @functools.wraps(vllm_function)
    def apply_logits_processors(self: Any, logits: Any, sampling_metadata: Any, metadata: Any) -> Any:
        if sampling_metadata.allowed_token_ids_mask is not None and not sampling_metadata.output_token_ids:
            outputs: list[list[int]] = [[] for _ in metadata.num_draft_tokens]
            sampling_metadata = dataclasses.replace(sampling_metadata, output_token_ids=outputs)
        return vllm_function(self, logits, sampling_metadata, metadata)

    edit.set(sampler, "apply_logits_processors", apply_logits_processors)
