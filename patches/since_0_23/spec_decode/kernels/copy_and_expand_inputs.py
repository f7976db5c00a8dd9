# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.copy_and_expand_inputs, for vLLM 0.23.0

What: ``copy_and_expand_eagle_inputs_kernel`` of ``vllm.v1.spec_decode.utils``: the inputs of the first
    pass of a drafting model that gets extra slots.
Why: its int64 positions and scattered stores become scalar loops on an NPU, and its grid grows with the
    longest prefill.
How: as for vLLM 0.16.0; vLLM's proposers call it from another module.
Until: vLLM's kernel runs on an NPU as it is.
"""

from __future__ import annotations

from ascend_specpatch.patches.spec_decode.kernels.copy_and_expand_inputs import apply

__all__ = ["apply"]

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.spec_decode.utils:copy_and_expand_eagle_inputs_kernel",
    "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.set_inputs_first_pass",
)
