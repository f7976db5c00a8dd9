# SPDX-License-Identifier: Apache-2.0
"""spec_decode.rejected_token_count

What: ``prepare_inputs_padded`` of Ascend's proposers also gives the number of rejected tokens of each
    request, on the device.
Why: the passes after the first must leave rejected tokens out of their attention, and only the device knows
    how many there are.
How: one kernel gives the rows to sample from and the counts. The result unpacks into the host's three
    values, so that the host's callers go on working, and carries the counts as ``num_rejected_tokens_gpu``.
Until: vllm-ascend's method returns the counts, as vLLM 0.16.0's own does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.attention.backend:CommonAttentionMetadata",
    "vllm.v1.spec_decode.metadata:SpecDecodeMetadata",
    "vllm_ascend.attention.utils:AscendCommonAttentionMetadata",
    "vllm_ascend.spec_decode.eagle_proposer:AscendEagleProposer.prepare_inputs_padded",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._build_attn_state",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._set_up_drafter",
)


class PaddedInputs(tuple[Any, "torch.Tensor", "torch.Tensor"]):
    """(metadata, token_indices, token_indices_to_sample), and beside them:

    Attributes:
        num_rejected_tokens_gpu: int32 [num_reqs], on the device.
    """

    num_rejected_tokens_gpu: torch.Tensor


def prepare_inputs_padded(
    self: Any, common_attn_metadata: Any, spec_decode_metadata: Any, valid_sampled_tokens_count: torch.Tensor
) -> PaddedInputs:
    """Inputs of the drafter for a batch that keeps its rejected tokens as padding; no copy to the host.

    Args:
        common_attn_metadata: AscendCommonAttentionMetadata of the target's pass.
        spec_decode_metadata: SpecDecodeMetadata of the batch.
        valid_sampled_tokens_count: int [num_reqs], on the device.
    """
    from ascend_specpatch.kernels.prepare_inputs_padded import prepare_inputs_padded as launch

    to_sample, rejected = launch(
        spec_decode_metadata.cu_num_draft_tokens,
        valid_sampled_tokens_count,
        common_attn_metadata.query_start_loc,
    )
    return padded_inputs(self, common_attn_metadata, to_sample, rejected)


def padded_inputs(
    self: Any, common_attn_metadata: Any, token_indices_to_sample: torch.Tensor, num_rejected: torch.Tensor
) -> PaddedInputs:
    """What ``prepare_inputs_padded`` returns, for int32 [num_reqs] rows to sample from and counts of rejected
    tokens."""
    starts = common_attn_metadata.query_start_loc_cpu
    num_tokens = int(starts[-1])
    metadata = common_attn_metadata.replace(
        num_actual_tokens=common_attn_metadata.num_actual_tokens if self.pcp_size > 1 else num_tokens,
        max_query_len=int((starts[1:] - starts[:-1]).max()),
        actual_seq_lengths_q=self.runner.actual_seq_lengths_q,
        attn_state=self.runner.attn_state,
        decode_token_per_req=self.runner.decode_token_per_req,
    )
    result = PaddedInputs((metadata, self.arange[:num_tokens], token_indices_to_sample))
    result.num_rejected_tokens_gpu = num_rejected
    return result


def apply(edit: Edit) -> None:
    base = getattr(edit.module, "SpecDecodeBaseProposer", edit.module.AscendEagleProposer)
    edit.set(base, "prepare_inputs_padded", prepare_inputs_padded)
