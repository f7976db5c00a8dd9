# SPDX-License-Identifier: Apache-2.0
"""model_runner.propose_draft_token_ids

What: ``NPUModelRunner.propose_draft_token_ids`` treats every proposer that runs a model alike and passes
    ``num_rejected_tokens_gpu`` to it.
Why: the host's method raises for draft_model, drops the counts of rejected tokens, and gathers rows of a
    padded batch that are all its rows.
How: a method of our own for proposers on Ascend's SpecDecodeBaseProposer; ngram, suffix and medusa
    proposers, and context parallelism, go to the host's.
Until: vllm-ascend's method passes the counts on.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    # The method that is replaced, and who calls it.
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.propose_draft_token_ids",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.sample_tokens",
    # What it calls and is given.
    "vllm.v1.spec_decode.eagle:SpecDecodeBaseProposer.prepare_next_token_ids_cpu",
    "vllm.v1.spec_decode.metadata:SpecDecodeMetadata",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._copy_valid_sampled_token_count",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_positions",
    "vllm_ascend.attention.utils:AscendCommonAttentionMetadata",
    "vllm_ascend.spec_decode.eagle_proposer:AscendEagleProposer.prepare_inputs",
    "vllm_ascend.spec_decode.eagle_proposer:AscendEagleProposer.prepare_inputs_padded",
    "vllm_ascend.spec_decode.eagle_proposer:AscendEagleProposer.prepare_next_token_ids_padded",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._prepare_inputs",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._set_up_drafter",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.use_cp",
)


def draft(
    runner: Any,
    sampled_token_ids: Any,
    sampling_metadata: Any,
    scheduler_output: Any,
    spec_decode_metadata: Any,
    metadata: Any,
    num_scheduled_tokens: int,
    hidden_states: torch.Tensor,
    aux_hidden_states: list[torch.Tensor] | None,
) -> torch.Tensor:
    """Draft for the batch that was just sampled.

    Args:
        sampled_token_ids: int [num_reqs, k + 1] on the device, -1 where rejected; unpadded drafting: a list
            of the valid ones per request.
        spec_decode_metadata: SpecDecodeMetadata, or None if nothing had been drafted for this batch.
        metadata: AscendCommonAttentionMetadata of the target's pass.
        hidden_states: [num_tokens, hidden_size] of the target; aux_hidden_states: those of its chosen
            layers (eagle3).

    Returns:
        int [num_reqs, k], on the device.
    """
    drafter = runner.drafter
    padded = not runner.vllm_config.speculative_config.disable_padded_drafter_batch
    # A padded batch keeps all its rows; an unpadded one keeps those of accepted tokens.
    rows: Any = slice(num_scheduled_tokens)
    to_sample = rejected = None
    if padded:
        batch = (
            runner.requests,
            runner.input_batch,
            runner.discard_request_indices.gpu,
            runner.num_discarded_requests,
        )
        prepared = None
        if spec_decode_metadata is not None and hasattr(drafter, "prepare_drafting"):
            next_token_ids, valid_count, prepared = drafter.prepare_drafting(
                metadata, spec_decode_metadata, sampled_token_ids, *batch
            )
        else:
            next_token_ids, valid_count = drafter.prepare_next_token_ids_padded(
                metadata, sampled_token_ids, *batch
            )
        # Before anything else: under asynchronous scheduling the next step waits for these.
        runner._copy_valid_sampled_token_count(next_token_ids, valid_count)
        if spec_decode_metadata is not None:
            if prepared is None:
                prepared = drafter.prepare_inputs_padded(metadata, spec_decode_metadata, valid_count)
            metadata, _, to_sample = prepared
            rejected = getattr(prepared, "num_rejected_tokens_gpu", None)
    else:
        next_token_ids = drafter.prepare_next_token_ids_cpu(
            sampled_token_ids, runner.requests, runner.input_batch, scheduler_output.num_scheduled_tokens
        )
        if spec_decode_metadata is not None:
            metadata, rows = drafter.prepare_inputs(
                metadata, sampled_token_ids, spec_decode_metadata.num_draft_tokens
            )

    if runner.use_aux_hidden_state_outputs:
        target_hidden_states = _torch_cat([h[rows] for h in aux_hidden_states or ()])
    else:
        target_hidden_states = hidden_states[rows]
    positions = runner._get_positions(num_scheduled_tokens if isinstance(rows, slice) else rows)
    drafts: torch.Tensor = drafter._propose(
        target_token_ids=runner.input_ids.gpu[rows],
        target_positions=positions,
        target_hidden_states=target_hidden_states,
        next_token_ids=next_token_ids,
        last_token_indices=to_sample,
        common_attn_metadata=metadata,
        sampling_metadata=sampling_metadata,
        num_rejected_tokens_gpu=rejected,
        req_scheduled_tokens=scheduler_output.num_scheduled_tokens,
        scheduler_output=scheduler_output,
        num_scheduled_tokens=num_scheduled_tokens,
    )
    return drafts


def _torch_cat(tensors: list[torch.Tensor]) -> torch.Tensor:
    import torch

    return torch.cat(tensors, dim=-1)


def apply(edit: Edit) -> None:
    from vllm_ascend.spec_decode import eagle_proposer

    base = eagle_proposer.SpecDecodeBaseProposer
    host_propose = edit.module.NPUModelRunner.propose_draft_token_ids
    host_signature = inspect.signature(host_propose)

    @functools.wraps(host_propose)
    def propose_draft_token_ids(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.use_cp or not isinstance(self.drafter, base):
            return host_propose(self, *args, **kwargs)
        given = host_signature.bind(self, *args, **kwargs).arguments
        return draft(
            self,
            given["valid_sampled_token_ids"],
            given["sampling_metadata"],
            given["scheduler_output"],
            given["spec_decode_metadata"],
            given["spec_decode_common_attn_metadata"],
            given["num_scheduled_tokens"],
            given["hidden_states"],
            given.get("aux_hidden_states"),
        )

    edit.set(edit.module.NPUModelRunner, "propose_draft_token_ids", propose_draft_token_ids)
