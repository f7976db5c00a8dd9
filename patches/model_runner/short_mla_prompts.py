# SPDX-License-Identifier: Apache-2.0
"""model_runner.short_mla_prompts

What: with MLA, prompts that are no longer than a step of drafts are attended to rightly.
Why: MLA takes every request of at most ``k + 1`` rows for one that verifies drafts. In a batch of new prompts
    alone the host calls the batch a prefill without cache, and MLA's decode path then takes each row for a
    request of its own: text differs from plain decoding's.
How: such a batch is called a chunked prefill, for which that path masks the rows of a request. MLA asks the
    state for nothing else.
Until: vllm-ascend's MLA masks the rows of a request in such a batch too (0.18.0).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm_ascend.attention.attention_v1:AscendAttentionState",
    "vllm_ascend.attention.mla_v1:AscendMLAImpl._forward_decode",
    "vllm_ascend.attention.utils:split_decodes_and_prefills",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._build_attn_state",
)


def apply(edit: Edit) -> None:
    from vllm_ascend.attention.attention_v1 import AscendAttentionState

    runner = edit.module.NPUModelRunner
    host_state = runner._build_attn_state
    prefills = (AscendAttentionState.PrefillNoCache, AscendAttentionState.PrefillCacheHit)

    @functools.wraps(host_state)
    def _build_attn_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = host_state(self, *args, **kwargs)
        drafts_with_mla = self.speculative_config and self.model_config.use_mla and not self.use_sparse
        if drafts_with_mla and state in prefills:
            state = self.attn_state = AscendAttentionState.ChunkedPrefill
        return state

    edit.set(runner, "_build_attn_state", _build_attn_state)
