# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.rejection_random

What: ``rejection_random_sample_kernel`` of ``vllm.v1.sample.rejection_sampler``: which drafts of requests
    that sample are accepted.
Why: it reads uniform probabilities of fp64, which an NPU has not, and uses a draft of -1 as an offset.
How: ``kernels/rejection_random.py`` stands in under the kernel's name and calling convention, and chooses
    its own grid.
Until: vLLM's kernel runs on an NPU as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import replace_kernel

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.sample.rejection_sampler:rejection_random_sample_kernel",
    "vllm.v1.sample.rejection_sampler:rejection_sample",
    "vllm.v1.sample.rejection_sampler:generate_uniform_probs",
)


def apply(edit: Edit) -> None:
    replace_kernel(edit, "rejection_random_sample_kernel")
