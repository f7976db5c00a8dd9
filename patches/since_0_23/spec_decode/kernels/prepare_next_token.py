# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.prepare_next_token, for vLLM 0.23.0

What: ``eagle_prepare_next_token_padded_kernel`` of ``vllm.v1.spec_decode.utils``: the token each request
    goes on with, and how many of its sampled tokens are valid.
Why: it does not compile for an NPU (a branch gives uint32, the other int1), and its sum of bools is wrong
    there.
How: as for vLLM 0.16.0; vLLM's proposers call it from another module.
Until: vLLM's kernel runs on an NPU as it is.
"""

from __future__ import annotations

from ascend_specpatch.patches.spec_decode.kernels.prepare_next_token import apply

__all__ = ["apply"]

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.spec_decode.utils:eagle_prepare_next_token_padded_kernel",
    "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.prepare_next_token_ids_padded",
)
