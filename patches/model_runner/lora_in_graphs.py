# SPDX-License-Identifier: Apache-2.0
"""model_runner.lora_in_graphs

What: in captured graphs every request of a batch has its own LoRA adapter.
Why: Ascend's kernels take adapters by runs of rows, and vLLM hands over as many runs as the batch has.
    Tracing keeps the number of the dummy batch: one with ``max_loras=1``, which is the default. Of a batch of
    requests with the adapter and without it, only the first run then has what it asked for, with or without
    speculation.
How: there are always as many runs as requests may be in a batch; those left over have no rows and no adapter.
Until: vllm-ascend's LoRA metadata has one size.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.lora.punica_wrapper.punica_base:PunicaWrapperBase.__init__",
    "vllm.lora.punica_wrapper.punica_base:PunicaWrapperBase._update_prefill_metadata",
    "vllm.lora.punica_wrapper.punica_base:PunicaWrapperBase.prefill_metadata",
    "vllm_ascend.lora.lora_ops:sgmv_expand",
    "vllm_ascend.lora.lora_ops:sgmv_expand_slice",
    "vllm_ascend.lora.lora_ops:sgmv_shrink",
    "vllm_ascend.lora.punica_npu:PunicaWrapperNPU",
)


def apply(edit: Edit) -> None:
    from vllm_ascend.lora.punica_npu import PunicaWrapperNPU

    update = PunicaWrapperNPU._update_prefill_metadata

    @functools.wraps(update)
    def _update_prefill_metadata(self: Any, token_lora_tensor: Any) -> None:
        update(self, token_lora_tensor)
        runs, self.batch_size = self.batch_size, self._seq_lengths.shape[0]
        self._seq_lengths[runs:].fill_(0)
        self._lora_indices_per_batch[runs:].fill_(-1)

    edit.set(PunicaWrapperNPU, "_update_prefill_metadata", _update_prefill_metadata)
