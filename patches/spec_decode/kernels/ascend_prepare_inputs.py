# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.ascend_prepare_inputs

What: ``prepare_inputs_padded_kernel`` of ``vllm_ascend.ops.triton.spec_decode.utils``: rows to sample
    from of a padded batch, for drafting with the host's functions.
Why: it loads at index -1, which faults on an NPU even under a false mask. A count of 0 valid tokens gives a
    row of another request.
How: ``kernels/prepare_inputs_padded.py`` stands in under the kernel's name and calling convention, and
    chooses its own grid.
Until: vllm-ascend's kernel has none of these faults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import replace_kernel

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm_ascend.ops.triton.spec_decode.utils:prepare_inputs_padded_kernel",
    "vllm_ascend.spec_decode.eagle_proposer:AscendEagleProposer.prepare_inputs_padded",
)


def apply(edit: Edit) -> None:
    replace_kernel(edit, "prepare_inputs_padded_kernel")
