# SPDX-License-Identifier: Apache-2.0
"""spec_decode.sampled_verification

What: without Triton, three drafts and more of a request that samples are verified one by one, as one or two
    are.
Why: the host verifies them as a block by comparing a product of probabilities with a product of random
    numbers. What comes out does not have the target's distribution (docs/sampling.md has the figures).
How: the host's own function for one or two drafts takes the place of the one for blocks; it is right for any
    number. Verifying a block rightly accepts no more than that where the draft's probabilities are not
    known, which is always so here. With Triton, ``spec_decode.kernels.ascend_block_verify`` does the same.
Until: vllm-ascend verifies drafts of unknown probability one by one (0.18.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm_ascend.sample.rejection_sampler:rejection_random_sample_block_verify_pytorch",
    "vllm_ascend.sample.rejection_sampler:rejection_random_sample_pytorch",
    "vllm_ascend.sample.rejection_sampler:rejection_sample",
)


def apply(edit: Edit) -> None:
    one_by_one = edit.module.rejection_random_sample_pytorch
    edit.set(edit.module, "rejection_random_sample_block_verify_pytorch", one_by_one)
