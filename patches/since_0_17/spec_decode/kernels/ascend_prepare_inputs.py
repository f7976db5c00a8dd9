# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.ascend_prepare_inputs, for vllm-ascend 0.17.0rc1 and 0.18.0

What: ``prepare_inputs_padded_kernel`` of ``vllm_ascend.ops.triton.spec_decode.utils``: rows to sample from
    and numbers of rejected tokens of a padded batch.
Why: a count of 0 valid tokens gives a row of another request, and one rejected token more than there were.
    That of 0.17.0rc1 also loads at index -1, which faults on an NPU even under a false mask.
How: as for vllm-ascend 0.16.0rc1; the host's proposers call it in another class.
Until: vllm-ascend's kernel has none of these faults.
"""

from __future__ import annotations

from ascend_specpatch.patches.spec_decode.kernels.ascend_prepare_inputs import apply

__all__ = ["apply"]

LEANS_ON: tuple[str, ...] = (
    "vllm_ascend.ops.triton.spec_decode.utils:prepare_inputs_padded_kernel",
    "vllm_ascend.spec_decode.eagle_proposer:SpecDecodeBaseProposer.prepare_inputs_padded",
)
