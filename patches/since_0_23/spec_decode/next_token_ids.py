# SPDX-License-Identifier: Apache-2.0
"""spec_decode.next_token_ids, for vllm-ascend 0.23.0

What: the token each request goes on with and the number of its valid tokens come from one kernel.
Why: the host takes a dozen operators. Each costs an NPU as much as a small kernel.
How: as for vllm-ascend 0.17.0rc1. The host gives no attention metadata, which there says how far a prompt
    has come, and runs on a device without ``index_fill_``.
Until: vllm-ascend fuses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ascend_specpatch.patches.since_0_23.spec_decode.base_proposer import places_of_next_tokens
from ascend_specpatch.patches.spec_decode.next_token_ids import backups, discarded

if TYPE_CHECKING:
    import torch

    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.worker.gpu_input_batch:CachedRequestState.get_token_id",
    "vllm_ascend.device.device_op:Ascend310PDeviceAdaptor.index_fill",
    "vllm_ascend.device.device_op:BaseDeviceAdaptor.index_fill",
    "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer.__init__",
    "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer.prepare_next_token_ids_padded",
    # Who calls it, and what becomes of its results.
    "vllm.v1.worker.gpu_input_batch:InputBatch.__init__",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._copy_valid_sampled_token_count",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.propose_draft_token_ids",
)


def prepare_next_token_ids_padded(
    self: Any,
    sampled_token_ids: torch.Tensor,
    requests: dict[str, Any],
    gpu_input_batch: Any,
    discard_request_indices: torch.Tensor,
    num_discarded_requests: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token each request of a padded batch goes on with; no copy to the host.

    Args:
        sampled_token_ids: int32 [num_reqs, k + 1] on the device, -1 where rejected.
        requests: by id, for the token of a request that has no valid one.
        discard_request_indices: int64 on the device; the first `num_discarded_requests` are the requests
            whose tokens are discarded.

    Returns:
        next_token_ids, valid_sampled_tokens_count: int32 [num_reqs] each, on the device.
    """
    from vllm_ascend.device.device_op import DeviceOperator

    from ascend_specpatch.kernels.prepare_next_token_padded import prepare_next_token_padded

    return prepare_next_token_padded(
        sampled_token_ids,
        discarded(
            self,
            sampled_token_ids,
            discard_request_indices,
            num_discarded_requests,
            DeviceOperator.index_fill,
        ),
        backups(self, places_of_next_tokens(self, gpu_input_batch), requests, gpu_input_batch),
        gpu_input_batch.vocab_size,
    )


def apply(edit: Edit) -> None:
    base = edit.module.AscendSpecDecodeBaseProposer
    edit.set(base, "prepare_next_token_ids_padded", prepare_next_token_ids_padded)
