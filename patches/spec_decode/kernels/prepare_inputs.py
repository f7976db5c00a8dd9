# SPDX-License-Identifier: Apache-2.0
"""spec_decode.kernels.prepare_inputs

What: ``eagle_prepare_inputs_padded_kernel`` of ``vllm.v1.spec_decode.utils``: rows to sample from and
    numbers of rejected tokens of a padded batch.
Why: a program a request: on an NPU each is a launch of a core for six scalars, and more than 65,535
    requests cannot be launched. A count of 0 valid tokens gives a row of another request.
How: ``kernels/prepare_inputs_padded.py`` stands in under the kernel's name and calling convention, and
    chooses its own grid.
Until: vLLM's kernel runs on an NPU as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import replace_kernel

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.spec_decode.utils:eagle_prepare_inputs_padded_kernel",
    "vllm.v1.spec_decode.eagle:SpecDecodeBaseProposer.prepare_inputs_padded",
)


def apply(edit: Edit) -> None:
    replace_kernel(edit, "eagle_prepare_inputs_padded_kernel")
