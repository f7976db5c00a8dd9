# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.prepare_next_token

What: ``eagle_prepare_next_token_padded_kernel`` of ``vllm.v1.spec_decode.utils``: the token each request
    goes on with, and how many of its sampled tokens are valid.
Why: it does not compile for an NPU (a branch gives uint32, the other int1), and its sum of bools is wrong
    there.
How: ``kernels/prepare_next_token_padded.py`` stands in under the kernel's name and calling convention,
    and chooses its own grid.
Until: vLLM's kernel runs on an NPU as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import replace_kernel

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.spec_decode.utils:eagle_prepare_next_token_padded_kernel",
    "vllm.v1.spec_decode.eagle:SpecDecodeBaseProposer.prepare_next_token_ids_padded",
)


def apply(edit: Edit) -> None:
    replace_kernel(edit, "eagle_prepare_next_token_padded_kernel")
