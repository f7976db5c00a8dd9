# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.copy_and_expand_inputs

What: ``copy_and_expand_eagle_inputs_kernel`` of ``vllm.v1.spec_decode.utils``: the inputs of the first
    pass of a drafting model that gets extra slots.
Why: its int64 positions and scattered stores become scalar loops on an NPU, and its grid grows with the
    longest prefill.
How: ``kernels/copy_and_expand_inputs.py`` stands in under the kernel's name and calling convention, and
    chooses its own grid.
Until: vLLM's kernel runs on an NPU as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import replace_kernel

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.spec_decode.utils:copy_and_expand_eagle_inputs_kernel",
    "vllm.v1.spec_decode.eagle:SpecDecodeBaseProposer.set_inputs_first_pass",
)


def apply(edit: Edit) -> None:
    replace_kernel(edit, "copy_and_expand_eagle_inputs_kernel")
