# SPDX-License-Identifier: Apache-2.0
"""spec_decode.next_token_ids

What: the token each request goes on with, the number of its valid tokens, the rows to sample from and the
    counts of rejected tokens come from one kernel.
Why: the host takes a dozen operators for the first two, and a launch more for the others. Each costs an NPU
    as much as a small kernel.
How: ``prepare_next_token_ids_padded`` of Ascend's proposers launches
    ``kernels/prepare_next_token_padded.py``; ``prepare_drafting`` is the fused form for a batch that had
    drafts to verify, which NPUModelRunner calls where ``model_runner.propose_draft_token_ids`` is applied.
Until: vllm-ascend fuses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .rejected_token_count import PaddedInputs, padded_inputs

if TYPE_CHECKING:
    import torch

    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.spec_decode.metadata:SpecDecodeMetadata",
    "vllm.v1.worker.gpu_input_batch:CachedRequestState.get_token_id",
    "vllm_ascend.spec_decode.eagle_proposer:AscendEagleProposer.__init__",
    "vllm_ascend.spec_decode.eagle_proposer:AscendEagleProposer.prepare_next_token_ids_padded",
)


def prepare_next_token_ids_padded(
    self: Any,
    common_attn_metadata: Any,
    sampled_token_ids: torch.Tensor,
    requests: dict[str, Any],
    gpu_input_batch: Any,
    discard_request_indices: torch.Tensor,
    num_discarded_requests: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token each request of a padded batch goes on with; no copy to the host.

    Args:
        common_attn_metadata: AscendCommonAttentionMetadata of the target's pass.
        sampled_token_ids: int32 [num_reqs, k + 1] on the device, -1 where rejected.
        requests: by id, for the token of a request that has no valid one.
        discard_request_indices: int64 on the device; the first `num_discarded_requests` are the requests
            whose tokens are discarded.

    Returns:
        next_token_ids, valid_sampled_tokens_count: int32 [num_reqs] each, on the device.
    """
    from ascend_specpatch.kernels.prepare_next_token_padded import prepare_next_token_padded

    return prepare_next_token_padded(
        sampled_token_ids,
        discarded(self, sampled_token_ids, discard_request_indices, num_discarded_requests),
        backups(self, common_attn_metadata.seq_lens_cpu, requests, gpu_input_batch),
        gpu_input_batch.vocab_size,
    )


def prepare_drafting(
    self: Any,
    common_attn_metadata: Any,
    spec_decode_metadata: Any,
    sampled_token_ids: torch.Tensor,
    requests: dict[str, Any],
    gpu_input_batch: Any,
    discard_request_indices: torch.Tensor,
    num_discarded_requests: int,
) -> tuple[torch.Tensor, torch.Tensor, PaddedInputs]:
    """``prepare_next_token_ids_padded`` and ``prepare_inputs_padded`` in one launch, for a batch with
    SpecDecodeMetadata.

    Returns:
        next_token_ids, valid_sampled_tokens_count: int32 [num_reqs] each, on the device; and what
            ``prepare_inputs_padded`` returns.
    """
    from ascend_specpatch.kernels import prepare_next_token_padded as kernel

    next_token_ids, valid_count, to_sample, rejected = kernel.prepare_drafting(
        sampled_token_ids,
        discarded(self, sampled_token_ids, discard_request_indices, num_discarded_requests),
        backups(self, common_attn_metadata.seq_lens_cpu, requests, gpu_input_batch),
        gpu_input_batch.vocab_size,
        spec_decode_metadata.cu_num_draft_tokens,
        common_attn_metadata.query_start_loc,
    )
    return next_token_ids, valid_count, padded_inputs(self, common_attn_metadata, to_sample, rejected)


def discarded(
    self: Any, sampled_token_ids: torch.Tensor, indices: torch.Tensor, number: int, fill: Any = None
) -> torch.Tensor:
    """bool [num_reqs], on the device. Where nothing is discarded, which is the rule, one that is kept.

    Args:
        fill: in place of ``torch.Tensor.index_fill_``, which not every device has.
    """
    num_reqs = sampled_token_ids.shape[0]
    none = getattr(self, "_none_discarded", None)
    if none is None or none.shape[0] < num_reqs:
        none = self._none_discarded = sampled_token_ids.new_zeros(num_reqs, dtype=bool)
    if number == 0:
        return none[:num_reqs]
    mask: torch.Tensor = none[:num_reqs].clone()
    filled: torch.Tensor = (fill or type(mask).index_fill_)(mask, 0, indices[:number], True)
    return filled


def backups(self: Any, places: Any, requests: dict[str, Any], batch: Any) -> torch.Tensor:
    """int32 [num_reqs], on the device: the tokens that requests without a valid one go on with, which are at
    `places` (int [num_reqs] or longer, on the host) of their requests."""
    num_reqs = batch.num_reqs
    self.backup_next_token_ids.np[:num_reqs] = [
        requests[request].get_token_id(place)
        for request, place in zip(batch.req_ids[:num_reqs], places[:num_reqs].tolist(), strict=True)
    ]
    tokens: torch.Tensor = self.backup_next_token_ids.copy_to_gpu(num_reqs)
    return tokens


def apply(edit: Edit) -> None:
    base = edit.module.SpecDecodeBaseProposer
    edit.set(base, "prepare_next_token_ids_padded", prepare_next_token_ids_padded)
    edit.set(base, "prepare_drafting", prepare_drafting)
