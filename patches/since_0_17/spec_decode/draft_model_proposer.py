# SPDX-License-Identifier: Apache-2.0
"""spec_decode.draft_model_proposer, on vllm-ascend 0.17.0rc1 and 0.18.0

What: ``vllm_ascend.spec_decode.draft_proposer.AscendDraftModelProposer`` becomes vLLM's DraftModelProposer on
    Ascend's SpecDecodeBaseProposer.
Why: the host's class answers isinstance checks as an EagleProposer, and stands on the host's base for good
    where it was made before that was patched.
How: a clone of vLLM's class, as on vllm-ascend 0.16.0rc1.
Until: vllm-ascend's draft-model proposer stands on vLLM's SpecDecodeBaseProposer (0.19.1rc1).
"""

from __future__ import annotations

from ascend_specpatch.patches.spec_decode.draft_model_proposer import apply as apply

LEANS_ON: tuple[str, ...] = (
    "vllm.config.speculative:SpeculativeConfig.verify_equal_vocab_size_if_draft_model",
    "vllm.v1.spec_decode.draft_model:DraftModelProposer",
    "vllm.v1.spec_decode.utils:create_vllm_config_for_draft_model",
    "vllm_ascend.spec_decode.draft_proposer:AscendDraftModelProposer",
)
