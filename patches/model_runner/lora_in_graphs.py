# SPDX-License-Identifier: Apache-2.0
"""model_runner.lora_in_graphs

What: in captured graphs every request of a batch has its own LoRA adapter; an engine that drafts is refused
    full graphs in which it would hang.
Why: Ascend's kernels take adapters by runs of rows, and vLLM hands over as many runs as the batch has.
    Tracing keeps the number of the dummy batch: one with ``max_loras=1``, which is the default. Of a batch of
    requests with the adapter and without it, only the first run then has what it asked for, with or without
    speculation. Full graphs are captured with adapters and without, and what the host updates before a replay
    is kept by size alone: the second graph of a size waits forever for what the first one got.
How: there are always as many runs as requests may be in a batch; those left over have no rows and no adapter.
    ``_set_up_drafter`` raises an error that says what to change.
Until: vllm-ascend's LoRA metadata has one size, and its graphs have parameters of their own.
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
    # What hangs.
    "vllm.config.compilation:CUDAGraphMode",
    "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.full_graph_fia",
    "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.update_graph_params",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._set_up_drafter",
)


def _refuse_two_graphs_of_one_size(vllm_config: Any) -> None:
    compilation = vllm_config.compilation_config
    speculation = vllm_config.speculative_config
    if (
        speculation is not None
        and vllm_config.lora_config is not None
        and compilation.cudagraph_specialize_lora
        and compilation.cudagraph_mode.has_full_cudagraphs()
    ):
        raise ValueError(
            f"speculative method {speculation.method!r} would hang with LoRA and full graphs that are "
            "captured with adapters and without: set cudagraph_mode=PIECEWISE in compilation_config, or "
            "cudagraph_specialize_lora=false (then batches without an adapter run eagerly)"
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

    runner = edit.module.NPUModelRunner
    host_set_up_drafter = runner._set_up_drafter

    @functools.wraps(host_set_up_drafter)
    def _set_up_drafter(self: Any) -> None:
        _refuse_two_graphs_of_one_size(self.vllm_config)
        host_set_up_drafter(self)

    edit.set(runner, "_set_up_drafter", _set_up_drafter)
