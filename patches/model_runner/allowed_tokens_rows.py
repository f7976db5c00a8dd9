# SPDX-License-Identifier: Apache-2.0
"""model_runner.allowed_tokens_rows

What: ``allowed_token_ids`` stay with their request when the rows of the batch move.
Why: vLLM 0.16.0 swaps two rows of the mask through views of it, after which both hold the second, and leaves
    behind the mask of a request that moved to a free row, where the next request finds it. One request may
    then say what it must not, another is kept from what it may.
How: ``InputBatch.swap_states`` is followed by a swap of copies, ``condense`` by clearing the rows that it
    left.
Until: vLLM does both.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.worker.gpu_input_batch:InputBatch.add_request",
    "vllm.v1.worker.gpu_input_batch:InputBatch.condense",
    "vllm.v1.worker.gpu_input_batch:InputBatch.remove_request",
    "vllm.v1.worker.gpu_input_batch:InputBatch.swap_states",
)


def apply(edit: Edit) -> None:
    batch = edit.module.InputBatch
    vllm_swap_states, vllm_condense = batch.swap_states, batch.condense

    @functools.wraps(vllm_swap_states)
    def swap_states(self: Any, i1: int, i2: int) -> None:
        mask = self.allowed_token_ids_mask_cpu_tensor  # bool [max_num_reqs, vocab_size], or None
        swapped = None if mask is None else mask[[i2, i1]]  # a copy
        vllm_swap_states(self, i1, i2)
        if swapped is not None:
            mask[[i1, i2]] = swapped

    @functools.wraps(vllm_condense)
    def condense(self: Any) -> None:
        rows = len(self._req_ids)
        vllm_condense(self)
        if self.allowed_token_ids_mask_cpu_tensor is not None:
            self.allowed_token_ids_mask_cpu_tensor[self.num_reqs : rows] = False

    edit.set(batch, "swap_states", swap_states)
    edit.set(batch, "condense", condense)
