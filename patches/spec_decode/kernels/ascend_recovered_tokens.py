# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.ascend_recovered_tokens

What: ``sample_recovered_tokens_kernel`` of ``vllm_ascend.ops.triton.reject_sample``: the token that takes
    the place of a rejected draft.
Why: one program a draft: a request with three of them leaves 37 of 40 cores idle. It writes to the
    target's probabilities for a while, and takes a draft of -1 as an offset.
How: ``kernels/recovered_tokens.py`` stands in under the kernel's name and calling convention, and chooses
    its own grid.
Until: vllm-ascend's kernel has none of these faults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import replace_kernel

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm_ascend.ops.triton.reject_sample:sample_recovered_tokens_kernel",
    "vllm_ascend.sample.rejection_sampler:sample_recovered_tokens",
)


def apply(edit: Edit) -> None:
    replace_kernel(edit, "sample_recovered_tokens_kernel")
