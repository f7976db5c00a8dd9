# SPDX-License-Identifier: Apache-2.0
"""spec_decode.sampling_constraints

What: temperature, top-k and top-p of each request become those of its draft tokens in one launch.
Why: the host launches a kernel for each, and an NPU spends as long on a launch as on such a kernel.
How: ``apply_sampling_constraints`` of vllm-ascend, which its worker puts into vLLM's rejection sampler, uses
    ``expand_sampling`` of ``kernels/expand.py``; what else a release gives it is for ``apply_top_k_top_p``.
    With ``ASCEND_SPECPATCH_KERNELS=upstream`` it is the host's.
Until: vllm-ascend fuses them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.sample.metadata:SamplingMetadata",
    "vllm_ascend.patch.worker.patch_rejection_sampler:apply_sampling_constraints",
    "vllm_ascend.sample.rejection_sampler:apply_sampling_constraints",
    "vllm_ascend.sample.rejection_sampler:expand_batch_to_tokens",
    "vllm_ascend.sample.sampler:apply_top_k_top_p",
)


def apply(edit: Edit) -> None:
    module = edit.module
    hosts = module.apply_sampling_constraints

    @functools.wraps(hosts)
    def apply_sampling_constraints(
        logits: torch.Tensor, cu_num_draft_tokens: torch.Tensor, sampling_metadata: Any, *more: Any
    ) -> Any:
        from ascend_specpatch.kernels._dispatch import implementation
        from ascend_specpatch.kernels.expand import expand_sampling

        if sampling_metadata.all_greedy or implementation() == "upstream":
            return hosts(logits, cu_num_draft_tokens, sampling_metadata, *more)
        temperature, top_k, top_p = expand_sampling(
            sampling_metadata.temperature,
            sampling_metadata.top_k,
            sampling_metadata.top_p,
            cu_num_draft_tokens,
            num_tokens=logits.shape[0],
            replace_from=module.GREEDY_TEMPERATURE,
            replace_to=1,
        )
        logits.div_(temperature.unsqueeze(-1))
        return module.apply_top_k_top_p(logits, top_k, top_p, *more)

    edit.set(module, "apply_sampling_constraints", apply_sampling_constraints)
