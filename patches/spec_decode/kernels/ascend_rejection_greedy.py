# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.ascend_rejection_greedy

What: ``rejection_greedy_sample_triton`` of ``vllm_ascend.ops.triton.reject_sample``: which greedy drafts
    are accepted.
Why: it loads at index -1, reads beyond the batch where that is larger than the number of cores, and is
    compiled anew for each of many batch sizes.
How: ``kernels/rejection_greedy.py`` stands in under the kernel's name and calling convention, and chooses
    its own grid.
Until: vllm-ascend's kernel has none of these faults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import replace_kernel

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm_ascend.ops.triton.reject_sample:rejection_greedy_sample_triton",
    "vllm_ascend.ops.triton.reject_sample:rejection_greedy_sample_with_triton",
    "vllm_ascend.ops.triton.reject_sample:cal_grid_and_block_size",
)


def apply(edit: Edit) -> None:
    replace_kernel(edit, "rejection_greedy_sample_triton")
