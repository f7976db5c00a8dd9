# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.rejection_greedy

What: ``rejection_greedy_sample_kernel`` of ``vllm.v1.sample.rejection_sampler``: which greedy drafts are
    accepted.
Why: a program a request that walks its drafts one by one, each step a scalar load, compare and store.
How: ``kernels/rejection_greedy.py`` stands in under the kernel's name and calling convention, and chooses
    its own grid.
Until: vLLM's kernel runs on an NPU as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import replace_kernel

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.sample.rejection_sampler:rejection_greedy_sample_kernel",
    "vllm.v1.sample.rejection_sampler:rejection_sample",
)


def apply(edit: Edit) -> None:
    replace_kernel(edit, "rejection_greedy_sample_kernel")
