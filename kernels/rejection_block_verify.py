# SPDX-License-Identifier: Apache-2.0
"""Rejection sampling of random requests by blocks, which is done token by token here: the output of the
blocks of vllm-ascend's ``rejection_random_sample_block_verify_kernel`` does not have the target's
distribution (docs/kernels.md).

Verifying blocks right takes recovered tokens that are drawn for it, and accepts no more than token by token
where the draft is certain of its tokens, as it is where its probabilities are not known.
"""

from __future__ import annotations

from .rejection_random import rejection_random_sample_kernel

# It takes the same arguments.
rejection_random_sample_block_verify_kernel = rejection_random_sample_kernel
