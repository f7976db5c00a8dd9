# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.prepare_inputs, for vLLM 0.23.0

What: ``eagle_prepare_inputs_padded_kernel`` of ``vllm.v1.spec_decode.utils``: rows to sample from and
    numbers of rejected tokens of a padded batch.
Why: a program a request: on an NPU each is a launch of a core for six scalars, and more than 65,535
    requests cannot be launched. A count of 0 valid tokens gives a row of another request.
How: as for vLLM 0.16.0; vLLM's proposers call it from another module.
Until: vLLM's kernel runs on an NPU as it is.
"""

from __future__ import annotations

from ascend_specpatch.patches.spec_decode.kernels.prepare_inputs import apply

__all__ = ["apply"]

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.spec_decode.utils:eagle_prepare_inputs_padded_kernel",
    "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.prepare_inputs_padded",
)
