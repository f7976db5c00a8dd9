# SPDX-License-Identifier: Apache-2.0
"""The same job in the hosts and here: which kernel of vllm-ascend does what one of ours does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .hosts import kernels_of
from .toolchain import Case

_INPUTS = "vllm_ascend.ops.triton.spec_decode.utils"
_SAMPLE = "vllm_ascend.ops.triton.reject_sample"


@dataclass(frozen=True)
class Job:
    """A case of ours and the host's kernel for it.

    `more` is what ours may have more of than the host's, because it does more: `why` says what.
    """

    ours: str
    module: str
    kernel: str
    signature: dict[str, str]
    constants: dict[str, Any]
    more: dict[str, int] = field(default_factory=dict)
    why: str = ""

    def host_case(self) -> Case:
        """Raises: NoHost."""
        name = self.kernel + "".join(f", {k} {v}" for k, v in self.constants.items())
        return Case(name, getattr(kernels_of(self.module), self.kernel), self.signature, self.constants)


JOBS: tuple[Job, ...] = (
    Job(
        "prepare_inputs_padded",
        _INPUTS,
        "prepare_inputs_padded_kernel",
        dict(
            cu_num_draft_tokens_ptr="*i32",
            valid_sampled_tokens_count_ptr="*i32",
            query_start_loc_gpu_ptr="*i32",
            token_indices_to_sample_ptr="*i32",
            num_reqs="i32",
        ),
        dict(BLOCK_SIZE=8),
        more=dict(dma_out=1, flags=2, branches=1),
        why="also gives the rejected tokens",
    ),
)

# Where upstream's own algorithm goes through the drafts of a request one by one.
SERIAL = frozenset({"rejection_greedy", "rejection_random", "rejection_block_verify"})
