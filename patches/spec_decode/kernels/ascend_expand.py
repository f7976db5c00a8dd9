# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.ascend_expand

What: ``expand_kernel`` of ``vllm_ascend.ops.triton.reject_sample``: one value a request becomes one a
    draft token.
Why: it loads at index -1, walks its requests one by one, and is compiled anew for each of many batch
    sizes.
How: ``kernels/expand.py`` stands in under the kernel's name and calling convention, and chooses its own
    grid.
Until: vllm-ascend's kernel has none of these faults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import replace_kernel

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm_ascend.ops.triton.reject_sample:expand_kernel",
    "vllm_ascend.ops.triton.reject_sample:expand_triton",
    "vllm_ascend.sample.rejection_sampler:expand_batch_to_tokens",
)


def apply(edit: Edit) -> None:
    replace_kernel(edit, "expand_kernel")
