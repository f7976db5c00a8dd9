# SPDX-License-Identifier: Apache-2.0
"""model_runner.async_output_tokens, for vllm-ascend 0.23.0

What: penalties and bad words see the drafts of the step under asynchronous scheduling.
Why: -1 stands for them in what the sampler is told of a request, as it does for the tokens of earlier steps.
    The host puts these in, but not the drafts: one that is verified behind others is not punished for them.
How: ``_sample`` puts the drafts in, with vLLM's own method and at vLLM's place. Nothing is copied or waited
    for unless a request of the batch asks for it.
Until: vllm-ascend's ``_sample`` calls ``update_async_spec_token_ids``, as vLLM's does.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ascend_specpatch.patches.model_runner.async_output_tokens import fill_in_drafts

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.worker.gpu_input_batch:InputBatch.update_async_spec_token_ids",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_draft_token_ids_cpu",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._copy_draft_token_ids_to_cpu",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._sample",
)


def apply(edit: Edit) -> None:
    runner = edit.module.NPUModelRunner
    host_sample = runner._sample

    @functools.wraps(host_sample)
    def _sample(self: Any, logits: Any, spec_decode_metadata: Any) -> Any:
        if self.use_async_scheduling:
            fill_in_drafts(self, spec_decode_metadata)
        return host_sample(self, logits, spec_decode_metadata)

    edit.set(runner, "_sample", _sample)
