# SPDX-License-Identifier: Apache-2.0
"""spec_decode.ngram_at_max_length

What: ngram no longer ends the engine when a request comes within a few tokens of ``max_model_len``.
Why: the host's proposer writes the tokens that were just accepted behind the request's tokens, where they
    are already; a request that is almost as long as the row has no room for them.
How: ``propose`` is told of as many tokens of each request as there is room for. It drafts from the request's
    tokens, not from these.
Until: vllm-ascend's proposer does not write the tokens again.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm_ascend.spec_decode.ngram_proposer:AscendNgramProposer.propose",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.propose_draft_token_ids",
)


def apply(edit: Edit) -> None:
    proposer = edit.module.AscendNgramProposer
    host_propose = proposer.propose

    @functools.wraps(host_propose)
    def propose(self: Any, sampled_token_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        batch = self.runner.input_batch
        length = batch.token_ids_cpu.shape[1]
        fitting = [
            tokens[: max(length - known, 0)]
            for tokens, known in zip(sampled_token_ids, batch.num_tokens_no_spec.tolist(), strict=False)
        ]
        return host_propose(self, fitting, *args, **kwargs)

    edit.set(proposer, "propose", propose)
