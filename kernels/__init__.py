# SPDX-License-Identifier: Apache-2.0
"""NPU kernels: one file a kernel, with the Triton kernel, its launcher and its torch reference side by side.

:data:`TABLE` says which upstream kernel each file stands in for. Importing this imports no host, no torch and
no Triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_VLLM_DRAFTING = "vllm.v1.spec_decode.utils"
_VLLM_SAMPLING = "vllm.v1.sample.rejection_sampler"
_ASCEND_DRAFTING = "vllm_ascend.ops.triton.spec_decode.utils"
_ASCEND_SAMPLING = "vllm_ascend.ops.triton.reject_sample"

# Upstream kernel, as module:name -> our file. The file holds a function of the kernel's name that takes the
# kernel's arguments, vLLM's as well as vllm-ascend's where both have a kernel of that name.
TABLE: Mapping[str, str] = MappingProxyType(
    {
        f"{_VLLM_DRAFTING}:eagle_prepare_inputs_padded_kernel": "prepare_inputs_padded",
        f"{_VLLM_DRAFTING}:eagle_prepare_next_token_padded_kernel": "prepare_next_token_padded",
        f"{_VLLM_DRAFTING}:copy_and_expand_eagle_inputs_kernel": "copy_and_expand_inputs",
        f"{_VLLM_SAMPLING}:rejection_greedy_sample_kernel": "rejection_greedy",
        f"{_VLLM_SAMPLING}:rejection_random_sample_kernel": "rejection_random",
        f"{_VLLM_SAMPLING}:expand_kernel": "expand",
        f"{_VLLM_SAMPLING}:sample_recovered_tokens_kernel": "recovered_tokens",
        f"{_ASCEND_DRAFTING}:prepare_inputs_padded_kernel": "prepare_inputs_padded",
        f"{_ASCEND_SAMPLING}:rejection_greedy_sample_triton": "rejection_greedy",
        f"{_ASCEND_SAMPLING}:rejection_greedy_sample_spec_len_1_triton": "rejection_greedy",
        f"{_ASCEND_SAMPLING}:rejection_random_sample_kernel": "rejection_random",
        f"{_ASCEND_SAMPLING}:rejection_random_sample_block_verify_kernel": "rejection_block_verify",
        f"{_ASCEND_SAMPLING}:expand_kernel": "expand",
        f"{_ASCEND_SAMPLING}:sample_recovered_tokens_kernel": "recovered_tokens",
    }
)


def stand_in(name: str, upstream: Any) -> Any:
    """What stands in for the kernel `upstream`, which :data:`TABLE` lists as `name`: to be called as
    ``kernel[grid](*args, **options)``. Needs torch and vLLM."""
    from importlib import import_module

    from ._dispatch import StandIn

    launch = getattr(import_module(f"{__name__}.{TABLE[name]}"), name.partition(":")[2])
    return StandIn(launch, upstream)
