# SPDX-License-Identifier: Apache-2.0
"""Where each request of a padded batch is sampled from, and how many of its tokens were rejected.

Stands for vLLM's ``eagle_prepare_inputs_padded_kernel`` and for vllm-ascend's
``prepare_inputs_padded_kernel``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from vllm.triton_utils import tl, triton

from ._dispatch import on_npu, programs, use_triton, vector_cores
from ._loads import load_inside

# Requests a program handles at a time: 8 int32 are the 32 bytes that an NPU moves at least.
BLOCK_SIZE = 8


def number_of_blocks(num_reqs: int, block_size: int) -> int:
    """Request 0 is a block of its own: the others are looked at together with the one before them."""
    return int(triton.cdiv(num_reqs - 1, block_size)) + 1


@triton.jit  # type: ignore[untyped-decorator]
def requests_of(block, num_reqs, BLOCK_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first request of a block, and how many it has."""
    start = (block - 1) * BLOCK_SIZE + 1  # below 0 for the first block
    first = tl.maximum(start, 0)
    return first, tl.minimum(start + BLOCK_SIZE, num_reqs) - first


@triton.jit  # type: ignore[untyped-decorator]
def drafted_tokens(cu_num_draft_tokens_ptr, first, number, BLOCK_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many tokens were drafted for each of `number` requests from `first` on."""
    lane = tl.arange(0, BLOCK_SIZE)
    until = load_inside(cu_num_draft_tokens_ptr + first + lane, lane < number)
    # A load before the first element is a fault on the NPU even where its mask is false.
    before_ptr = cu_num_draft_tokens_ptr + tl.maximum(first - 1, 0)
    before = tl.load(before_ptr + lane, mask=lane < tl.where(first > 0, number, 0), other=0)
    return until - before


@triton.jit
def rejected_tokens(drafted, valid):  # type: ignore[no-untyped-def]
    return tl.where(drafted > 0, drafted + 1 - tl.maximum(valid, 1), 0)


@triton.jit(do_not_specialize=["num_reqs"])  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    cu_num_draft_tokens_ptr,
    valid_sampled_tokens_count_ptr,
    query_start_loc_ptr,
    token_indices_to_sample_ptr,
    num_rejected_tokens_ptr,
    num_reqs,
    BLOCK_SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
):
    lane = tl.arange(0, BLOCK_SIZE)
    end = tl.cdiv(num_reqs - 1, BLOCK_SIZE) + 1 if STRIDE else tl.program_id(0) + 1
    for block in range(tl.program_id(0), end, tl.num_programs(0) if STRIDE else 1):
        first, number = requests_of(block, num_reqs, BLOCK_SIZE)
        inside = lane < number
        drafted = drafted_tokens(cu_num_draft_tokens_ptr, first, number, BLOCK_SIZE)
        # Narrowed as it is loaded where it is 64-bit: an NPU has no 64-bit vector arithmetic.
        valid = load_inside(valid_sampled_tokens_count_ptr + first + lane, inside).to(tl.int32)
        rejected = rejected_tokens(drafted, valid)
        next_row = load_inside(query_start_loc_ptr + first + 1 + lane, inside)
        tl.store(token_indices_to_sample_ptr + first + lane, next_row - 1 - rejected, mask=inside)
        if num_rejected_tokens_ptr is not None:
            tl.store(num_rejected_tokens_ptr + first + lane, rejected, mask=inside)


def reference(
    cu_num_draft_tokens: torch.Tensor, valid_sampled_tokens_count: torch.Tensor, query_start_loc: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in torch, on the device of its arguments, without a copy to the host. See
    :func:`prepare_inputs_padded`."""
    drafted = torch.diff(cu_num_draft_tokens, prepend=cu_num_draft_tokens.new_zeros(1))
    rejected = (drafted + 1 - valid_sampled_tokens_count.clamp(min=1)).masked_fill_(drafted == 0, 0).int()
    return query_start_loc[1 : rejected.shape[0] + 1] - 1 - rejected, rejected


def prepare_inputs_padded(
    cu_num_draft_tokens: torch.Tensor, valid_sampled_tokens_count: torch.Tensor, query_start_loc: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows to sample from and numbers of rejected tokens of a padded batch.

    Args:
        cu_num_draft_tokens: int32 [num_reqs], inclusive cumulative sum of the drafted tokens of each request.
        valid_sampled_tokens_count: int32 or int64 [num_reqs], tokens that came out of verification:
            accepted ones and one more, 0 for a request whose tokens are discarded.
        query_start_loc: int32 [num_reqs + 1] or longer, first row of each request.

    Returns:
        token_indices_to_sample, num_rejected_tokens: int32 [num_reqs] each. A request without drafts has
            none rejected; where no token is valid all drafts are, so the row is always its own.
    """
    num_reqs = cu_num_draft_tokens.shape[0]
    if not use_triton() or num_reqs == 0:
        return reference(cu_num_draft_tokens, valid_sampled_tokens_count, query_start_loc)
    to_sample = torch.empty(num_reqs, dtype=torch.int32, device=cu_num_draft_tokens.device)
    rejected = torch.empty_like(to_sample)
    _launch(cu_num_draft_tokens, valid_sampled_tokens_count, query_start_loc, to_sample, rejected)
    return to_sample, rejected


def _launch(
    cu_num_draft_tokens: torch.Tensor,
    valid_sampled_tokens_count: torch.Tensor,
    query_start_loc: torch.Tensor,
    token_indices_to_sample: torch.Tensor,
    num_rejected_tokens: torch.Tensor | None,
) -> None:
    num_reqs = cu_num_draft_tokens.shape[0]
    # On a GPU a single request is the fastest (H200, 1 request: 1.09 us, 1.24 us in a block of 8), while
    # there is a multiprocessor for each.
    block_size = BLOCK_SIZE if on_npu() or num_reqs > vector_cores() else 1
    blocks = number_of_blocks(num_reqs, block_size)
    number = programs(blocks)
    _kernel[(number,)](
        cu_num_draft_tokens,
        valid_sampled_tokens_count,
        query_start_loc,
        token_indices_to_sample,
        num_rejected_tokens,
        num_reqs,
        BLOCK_SIZE=block_size,
        STRIDE=number < blocks,
        num_warps=1,
    )


def eagle_prepare_inputs_padded_kernel(
    grid: tuple[int],
    cu_num_draft_tokens_ptr: torch.Tensor,
    valid_sampled_tokens_count_ptr: torch.Tensor,
    query_start_loc_gpu_ptr: torch.Tensor,
    token_indices_to_sample_ptr: torch.Tensor,
    num_rejected_tokens_gpu_ptr: torch.Tensor | None,
    num_reqs: int,
) -> None:
    """In place of vLLM's."""
    inputs = cu_num_draft_tokens_ptr[:num_reqs], valid_sampled_tokens_count_ptr, query_start_loc_gpu_ptr
    if use_triton() and num_reqs > 0:
        _launch(*inputs, token_indices_to_sample_ptr, num_rejected_tokens_gpu_ptr)
        return
    to_sample, rejected = reference(inputs[0], inputs[1][:num_reqs], inputs[2])
    token_indices_to_sample_ptr[:num_reqs] = to_sample
    if num_rejected_tokens_gpu_ptr is not None:
        num_rejected_tokens_gpu_ptr[:num_reqs] = rejected


def prepare_inputs_padded_kernel(
    grid: tuple[int],
    cu_num_draft_tokens_ptr: torch.Tensor,
    valid_sampled_tokens_count_ptr: torch.Tensor,
    query_start_loc_gpu_ptr: torch.Tensor,
    token_indices_to_sample_ptr: torch.Tensor,
    num_reqs: int,
    BLOCK_SIZE: int,
    *,
    num_rejected_tokens_gpu_ptr: torch.Tensor | None = None,
) -> None:
    """In place of vllm-ascend's, which gives the number of rejected tokens from 0.17.0rc1 on."""
    eagle_prepare_inputs_padded_kernel(
        grid,
        cu_num_draft_tokens_ptr,
        valid_sampled_tokens_count_ptr,
        query_start_loc_gpu_ptr,
        token_indices_to_sample_ptr,
        num_rejected_tokens_gpu_ptr,
        num_reqs,
    )


def compile_cases() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any]]]:
    """What the launcher can have compiled for an NPU: name, kernel, signature, constants."""
    types = {
        "cu_num_draft_tokens_ptr": "*i32",
        "valid_sampled_tokens_count_ptr": "*i32",
        "query_start_loc_ptr": "*i32",
        "token_indices_to_sample_ptr": "*i32",
        "num_reqs": "i32",
    }
    for strides in (False, True):
        constants = {"BLOCK_SIZE": BLOCK_SIZE, "STRIDE": strides}
        name = "many" if strides else "few"
        yield name, _kernel, {**types, "num_rejected_tokens_ptr": "*i32"}, constants
        yield f"{name}, without counts", _kernel, types, {**constants, "num_rejected_tokens_ptr": None}
