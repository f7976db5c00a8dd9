# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.ascend_block_verify

What: ``rejection_random_sample_block_verify_kernel`` of ``vllm_ascend.ops.triton.reject_sample``: which
    drafts of requests that sample are accepted (three drafts and more). Corrects the distribution of the
    output.
Why: what it accepts as a block is not distributed as the target model's tokens (docs/kernels.md). It also
    loads at index -1, uses a draft of -1 as an offset, and is compiled anew for each of many batch sizes.
How: ``kernels/rejection_block_verify.py`` stands in under the kernel's name and calling convention, verifies
    token by token, which keeps the target's distribution, and chooses its own grid.
Until: vllm-ascend verifies by blocks only where it is told the draft's probabilities, which its runner does
    not know (0.18.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import replace_kernel

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm_ascend.ops.triton.reject_sample:rejection_random_sample_block_verify_kernel",
    "vllm_ascend.sample.rejection_sampler:rejection_sample",
    "vllm_ascend.ops.triton.reject_sample:cal_grid_and_block_size",
)


def apply(edit: Edit) -> None:
    replace_kernel(edit, "rejection_random_sample_block_verify_kernel")
