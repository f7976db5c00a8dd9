# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.expand

What: ``expand_kernel`` of ``vllm.v1.sample.rejection_sampler``: one value a request becomes one a draft
    token.
Why: a program a request, which cannot be launched for more than 65,535 of them on an NPU.
How: ``kernels/expand.py`` stands in under the kernel's name and calling convention, and chooses its own
    grid.
Until: vLLM's kernel runs on an NPU as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import replace_kernel

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.sample.rejection_sampler:expand_kernel",
    "vllm.v1.sample.rejection_sampler:expand_batch_to_tokens",
)


def apply(edit: Edit) -> None:
    replace_kernel(edit, "expand_kernel")
