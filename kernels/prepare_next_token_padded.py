# SPDX-License-Identifier: Apache-2.0
"""The token each request of a padded batch goes on with, and how many of its sampled tokens are valid.

Stands for vLLM's ``eagle_prepare_next_token_padded_kernel``; :func:`prepare_drafting` also does the work of
``eagle_prepare_inputs_padded_kernel`` in the same launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from vllm.triton_utils import tl, triton

from . import prepare_inputs_padded
from ._dispatch import MAX_SPEC_LEN, lanes_up_to, programs, use_triton
from ._loads import load_inside
from .prepare_inputs_padded import BLOCK_SIZE, drafted_tokens, number_of_blocks, rejected_tokens, requests_of


@triton.jit(do_not_specialize=["vocab_size", "num_sampled_tokens", "num_reqs", "stride"])  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    sampled_token_ids_ptr,
    discard_request_mask_ptr,
    backup_next_token_ids_ptr,
    next_token_ids_ptr,
    valid_sampled_tokens_count_ptr,
    cu_num_draft_tokens_ptr,
    query_start_loc_ptr,
    token_indices_to_sample_ptr,
    num_rejected_tokens_ptr,
    vocab_size,
    num_sampled_tokens,
    num_reqs,
    stride,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    STRIDE: tl.constexpr,
):
    lane = tl.arange(0, BLOCK_SIZE)
    column = tl.arange(0, TOKENS)[None, :]
    end = tl.cdiv(num_reqs - 1, BLOCK_SIZE) + 1 if STRIDE else tl.program_id(0) + 1
    for block in range(tl.program_id(0), end, tl.num_programs(0) if STRIDE else 1):
        first, number = requests_of(block, num_reqs, BLOCK_SIZE)
        inside = lane < number
        token = tl.load(
            sampled_token_ids_ptr + (first + lane[:, None]) * stride + column,
            mask=inside[:, None] & (column < num_sampled_tokens),
            other=-1,
        )
        discarded = load_inside(discard_request_mask_ptr + first + lane, inside)
        backup = load_inside(backup_next_token_ids_ptr + first + lane, inside)
        # Sums and maxima of numbers only: triton-ascend 3.2.0 adds bools up in one bit.
        valid = tl.where((token >= 0) & (token < vocab_size), 1, 0)
        count = tl.where(discarded != 0, 0, tl.sum(valid, 1))
        last = tl.max(tl.where(valid > 0, column, -1), 1)
        next_token = tl.sum(tl.where(column == last[:, None], token, 0), 1)
        tl.store(next_token_ids_ptr + first + lane, tl.where(count > 0, next_token, backup), mask=inside)
        tl.store(valid_sampled_tokens_count_ptr + first + lane, count, mask=inside)
        if cu_num_draft_tokens_ptr is not None:
            drafted = drafted_tokens(cu_num_draft_tokens_ptr, first, number, BLOCK_SIZE)
            rejected = rejected_tokens(drafted, count)
            next_row = load_inside(query_start_loc_ptr + first + 1 + lane, inside)
            tl.store(num_rejected_tokens_ptr + first + lane, rejected, mask=inside)
            tl.store(token_indices_to_sample_ptr + first + lane, next_row - 1 - rejected, mask=inside)


def reference(
    sampled_token_ids: torch.Tensor,
    discard_request_mask: torch.Tensor,
    backup_next_token_ids: torch.Tensor,
    vocab_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in torch, on the device of its arguments, without a copy to the host. See
    :func:`prepare_next_token_padded`."""
    num_reqs, width = sampled_token_ids.shape
    valid = (sampled_token_ids >= 0) & (sampled_token_ids < vocab_size)
    valid &= ~discard_request_mask[:num_reqs].bool().unsqueeze(1)
    count = valid.sum(1)
    column = torch.arange(width, device=sampled_token_ids.device)
    last = torch.where(valid, column, 0).amax(1, keepdim=True)
    next_token = sampled_token_ids.gather(1, last).squeeze(1)
    return torch.where(count > 0, next_token, backup_next_token_ids[:num_reqs]).int(), count.int()


def _launch(
    sampled_token_ids: torch.Tensor,
    discard_request_mask: torch.Tensor,
    backup_next_token_ids: torch.Tensor,
    next_token_ids: torch.Tensor,
    valid_sampled_tokens_count: torch.Tensor,
    vocab_size: int,
    cu_num_draft_tokens: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    token_indices_to_sample: torch.Tensor | None = None,
    num_rejected_tokens: torch.Tensor | None = None,
) -> None:
    num_reqs, width = sampled_token_ids.shape
    blocks = number_of_blocks(num_reqs, BLOCK_SIZE)
    number = programs(blocks)
    _kernel[(number,)](
        sampled_token_ids,
        discard_request_mask,
        backup_next_token_ids,
        next_token_ids,
        valid_sampled_tokens_count,
        cu_num_draft_tokens,
        query_start_loc,
        token_indices_to_sample,
        num_rejected_tokens,
        vocab_size,
        width,
        num_reqs,
        sampled_token_ids.stride(0),
        BLOCK_SIZE=BLOCK_SIZE,
        TOKENS=max(8, triton.next_power_of_2(width)),  # rows of 32 bytes
        STRIDE=number < blocks,
        num_warps=1,
    )


def prepare_next_token_padded(
    sampled_token_ids: torch.Tensor,
    discard_request_mask: torch.Tensor,
    backup_next_token_ids: torch.Tensor,
    vocab_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Next tokens and numbers of valid sampled tokens of a padded batch.

    Args:
        sampled_token_ids: int32 [num_reqs, max_spec_len + 1]; -1 and ids outside the vocabulary are not
            valid.
        discard_request_mask: bool [num_reqs] or longer, requests whose tokens are discarded.
        backup_next_token_ids: int32 [num_reqs] or longer, the next token of a request without a valid one.
        vocab_size: of the target.

    Returns:
        next_token_ids: int32 [num_reqs], the last valid token of each request.
        valid_sampled_tokens_count: int32 [num_reqs], 0 for a discarded request.
    """
    num_reqs = sampled_token_ids.shape[0]
    if not use_triton() or num_reqs == 0:
        return reference(sampled_token_ids, discard_request_mask, backup_next_token_ids, vocab_size)
    sampled_token_ids = sampled_token_ids.int()
    next_token_ids, count = (sampled_token_ids.new_empty(num_reqs) for _ in range(2))
    _launch(sampled_token_ids, discard_request_mask, backup_next_token_ids, next_token_ids, count, vocab_size)
    return next_token_ids, count


def prepare_drafting(
    sampled_token_ids: torch.Tensor,
    discard_request_mask: torch.Tensor,
    backup_next_token_ids: torch.Tensor,
    vocab_size: int,
    cu_num_draft_tokens: torch.Tensor,
    query_start_loc: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """:func:`prepare_next_token_padded` and :func:`~.prepare_inputs_padded.prepare_inputs_padded` in one
    launch.

    Returns:
        next_token_ids, valid_sampled_tokens_count, token_indices_to_sample, num_rejected_tokens: int32
            [num_reqs] each.
    """
    num_reqs = sampled_token_ids.shape[0]
    if not use_triton() or num_reqs == 0:
        next_token_ids, count = reference(
            sampled_token_ids, discard_request_mask, backup_next_token_ids, vocab_size
        )
        rows = prepare_inputs_padded.reference(cu_num_draft_tokens, count, query_start_loc)
        return next_token_ids, count, *rows
    sampled_token_ids = sampled_token_ids.int()
    next_token_ids, count, to_sample, rejected = (sampled_token_ids.new_empty(num_reqs) for _ in range(4))
    _launch(
        sampled_token_ids,
        discard_request_mask,
        backup_next_token_ids,
        next_token_ids,
        count,
        vocab_size,
        cu_num_draft_tokens,
        query_start_loc,
        to_sample,
        rejected,
    )
    return next_token_ids, count, to_sample, rejected


def eagle_prepare_next_token_padded_kernel(
    grid: tuple[int],
    sampled_token_ids_ptr: torch.Tensor,
    discard_request_mask_ptr: torch.Tensor,
    backup_next_token_ids_ptr: torch.Tensor,
    next_token_ids_ptr: torch.Tensor,
    valid_sampled_tokens_count_ptr: torch.Tensor,
    vocab_size: int,
    num_sampled_tokens_per_req: int,
    num_reqs: int,
    stride_sampled_token_ids: int,
    BLOCK_SIZE_TOKENS: int,
) -> None:
    """In place of vLLM's."""
    if use_triton() and num_reqs > 0:
        _launch(
            sampled_token_ids_ptr[:num_reqs],
            discard_request_mask_ptr,
            backup_next_token_ids_ptr,
            next_token_ids_ptr,
            valid_sampled_tokens_count_ptr,
            vocab_size,
        )
    else:
        results = reference(
            sampled_token_ids_ptr[:num_reqs], discard_request_mask_ptr, backup_next_token_ids_ptr, vocab_size
        )
        next_token_ids_ptr[:num_reqs], valid_sampled_tokens_count_ptr[:num_reqs] = results


def compile_cases() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any]]]:
    """What the launcher can have compiled for an NPU: name, kernel, signature, constants."""
    types = {
        "sampled_token_ids_ptr": "*i32",
        "discard_request_mask_ptr": "*i1",
        "backup_next_token_ids_ptr": "*i32",
        "next_token_ids_ptr": "*i32",
        "valid_sampled_tokens_count_ptr": "*i32",
        "vocab_size": "i32",
        "num_sampled_tokens": "i32",
        "num_reqs": "i32",
        "stride": "i32",
    }
    inputs = (
        "cu_num_draft_tokens_ptr",
        "query_start_loc_ptr",
        "token_indices_to_sample_ptr",
        "num_rejected_tokens_ptr",
    )
    for tokens, strides in product(lanes_up_to(MAX_SPEC_LEN + 1), (False, True)):
        sizes = {"BLOCK_SIZE": BLOCK_SIZE, "TOKENS": tokens, "STRIDE": strides}
        name = f"{tokens} tokens" + ", many" * strides
        yield name, _kernel, types, {**sizes, **dict.fromkeys(inputs)}
        yield f"{name}, and inputs", _kernel, {**types, **dict.fromkeys(inputs, "*i32")}, sizes
