# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.recovered_tokens

What: ``sample_recovered_tokens_kernel`` of ``vllm.v1.sample.rejection_sampler``: the token that takes the
    place of a rejected draft.
Why: it holds the whole vocabulary at once: from 32,768 entries on that is more than an NPU's unified
    buffer. And it is one program a draft: few drafts leave most cores idle.
How: ``kernels/recovered_tokens.py`` stands in under the kernel's name and calling convention, and chooses
    its own grid.
Until: vLLM's kernel runs on an NPU as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import replace_kernel

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.sample.rejection_sampler:sample_recovered_tokens_kernel",
    "vllm.v1.sample.rejection_sampler:sample_recovered_tokens",
)


def apply(edit: Edit) -> None:
    replace_kernel(edit, "sample_recovered_tokens_kernel")
