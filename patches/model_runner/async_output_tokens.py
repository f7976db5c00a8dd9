# SPDX-License-Identifier: Apache-2.0
"""model_runner.async_output_tokens

What: penalties and bad words see the tokens of earlier steps under asynchronous scheduling.
Why: a step is prepared before the tokens of the one before it are on the host; -1 stands for them, and for
    drafted ones, in what the sampler is told of a request's output. vLLM's runner puts the tokens in just
    before it samples. The host's runner does not, so every token that was sampled or drafted goes unpunished,
    with speculative decoding and without.
How: ``sample_tokens`` keeps hold of the tokens on their way to the host, ``_sample`` puts them and the drafts
    in, both with vLLM's own methods and at vLLM's places. Nothing is copied or waited for unless a request
    of the batch asks for it.
Until: vllm-ascend's ``sample_tokens`` calls ``set_async_sampled_token_ids``, as vLLM's does.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.worker.gpu_input_batch:InputBatch.set_async_sampled_token_ids",
    "vllm.v1.worker.gpu_input_batch:InputBatch.update_async_output_token_ids",
    "vllm.v1.worker.gpu_input_batch:InputBatch.update_async_spec_token_ids",
    "vllm.v1.worker.gpu_model_runner:AsyncGPUModelRunnerOutput",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._copy_draft_token_ids_to_cpu",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_draft_token_ids_cpu",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._sample",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.sample_tokens",
)


def fill_in_drafts(runner: Any, spec_decode_metadata: Any) -> None:
    """Replace the -1 in what the sampler will be told of every request's drafts."""
    if spec_decode_metadata is not None and runner._draft_token_req_ids is not None:
        drafts, _ = runner._get_draft_token_ids_cpu()
        runner.input_batch.update_async_spec_token_ids(drafts)
    # These drafts are verified now; others are only there once they have been copied.
    runner._draft_token_req_ids = None


def apply(edit: Edit) -> None:
    runner = edit.module.NPUModelRunner
    host_sample, host_sample_tokens = runner._sample, runner.sample_tokens

    @functools.wraps(host_sample)
    def _sample(self: Any, logits: Any, spec_decode_metadata: Any) -> Any:
        if self.use_async_scheduling:
            self.input_batch.update_async_output_token_ids()
            fill_in_drafts(self, spec_decode_metadata)
        return host_sample(self, logits, spec_decode_metadata)

    @functools.wraps(host_sample_tokens)
    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = host_sample_tokens(self, *args, **kwargs)
        sampled = getattr(output, "sampled_token_ids_cpu", None)
        if sampled is not None:
            self.input_batch.set_async_sampled_token_ids(sampled, output.async_copy_ready_event)
        return output

    edit.set(runner, "_sample", _sample)
    edit.set(runner, "sample_tokens", sample_tokens)
