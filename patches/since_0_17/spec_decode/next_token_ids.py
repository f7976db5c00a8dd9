# SPDX-License-Identifier: Apache-2.0
"""spec_decode.next_token_ids, for vllm-ascend 0.17.0rc1 and 0.18.0

What: the token each request goes on with and the number of its valid tokens come from one kernel.
Why: the host takes a dozen operators. Each costs an NPU as much as a small kernel.
How: as for vllm-ascend 0.16.0rc1. There is no fused form: the host's NPUModelRunner drafts with the patched
    proposers itself, and calls ``prepare_inputs_padded`` for the rest.
Until: vllm-ascend fuses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_specpatch.patches.spec_decode.next_token_ids import prepare_next_token_ids_padded

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.worker.gpu_input_batch:CachedRequestState.get_token_id",
    "vllm_ascend.spec_decode.eagle_proposer:SpecDecodeBaseProposer.__init__",
    "vllm_ascend.spec_decode.eagle_proposer:SpecDecodeBaseProposer.prepare_next_token_ids_padded",
    # Who calls it, and what becomes of its results.
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._copy_valid_sampled_token_count",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.propose_draft_token_ids",
)


def apply(edit: Edit) -> None:
    edit.set(
        edit.module.SpecDecodeBaseProposer, "prepare_next_token_ids_padded", prepare_next_token_ids_padded
    )
