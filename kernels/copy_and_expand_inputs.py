# SPDX-License-Identifier: Apache-2.0
"""From the target's inputs to those of a drafting model that needs more rows a request.

Stands for vLLM's ``copy_and_expand_eagle_inputs_kernel``. A request of the target

    a0 a1 a2 ax ax      (ax: rejected, past the request's query end)

becomes, with its next token a3 and two slots more,

    a0 a1 a2 a3 ma 00 00      (ma: masked, for parallel drafting; 00: rejected)

and without a0, which moves to the end as one row less, where the input ids are shifted (a model that is also
given hidden states).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from vllm.triton_utils import tl, triton

from ._dispatch import MAX_SPEC_LEN, lanes_up_to, programs, use_triton
from ._loads import load_inside

# Rows a program writes at a time, where requests are long and where they only decode.
BLOCK_SIZE = 256
SMALL_BLOCK_SIZE = 32


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=[
        "padding_token_id",
        "parallel_drafting_token_id",
        "total_input_tokens",
        "num_reqs",
        "num_slots",
    ]
)
def _kernel(  # type: ignore[no-untyped-def]
    target_token_ids_ptr,
    target_positions_ptr,
    next_token_ids_ptr,
    out_input_ids_ptr,
    out_positions_ptr,
    out_is_rejected_token_mask_ptr,
    out_is_masked_token_mask_ptr,
    out_new_token_indices_ptr,
    out_hidden_state_mapping_ptr,
    query_start_loc_ptr,
    query_end_loc_ptr,
    padding_token_id,
    parallel_drafting_token_id,
    total_input_tokens,
    num_reqs,
    num_slots,
    SHIFT: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
):
    slot = tl.arange(0, SLOTS)
    last = num_reqs if STRIDE else tl.program_id(0) + 1
    for request in range(tl.program_id(0), last, tl.num_programs(0) if STRIDE else 1):
        start = tl.load(query_start_loc_ptr + request)
        next_start = tl.load(query_start_loc_ptr + request + 1)
        end = tl.load(query_end_loc_ptr + request)
        # A shifted request loses its first token: a row less, and every row is read one further on.
        valid = end - start + 1 - SHIFT
        out_start = start + request * (num_slots - SHIFT)
        num_rows = valid + num_slots + next_start - end - 1
        next_token = tl.load(next_token_ids_ptr + request)
        # A request without rows may start behind the last position.
        first_position = tl.load(
            target_positions_ptr + tl.maximum(tl.minimum(start, total_input_tokens - 1), 0)
        ).to(tl.int32)
        tl.store(
            out_new_token_indices_ptr + request * num_slots + slot,
            out_start + valid + slot,
            mask=slot < num_slots,
        )
        step = tl.num_programs(1) * BLOCK_SIZE
        for block in range(tl.program_id(1) * BLOCK_SIZE, num_rows, step):
            row = block + tl.arange(0, BLOCK_SIZE)
            token = load_inside(target_token_ids_ptr + start + SHIFT + row, row < valid)
            rejected = row >= valid + num_slots
            token = tl.where(row < valid, token, parallel_drafting_token_id)
            token = tl.where(row == valid, next_token, token)
            token = tl.where(rejected, padding_token_id, token)
            position = tl.where(rejected, 0, first_position + row)
            is_rejected = tl.where(rejected, 1, 0)
            is_masked = tl.where(row > valid, 1, 0) - is_rejected
            inside = row < num_rows
            tl.store(out_input_ids_ptr + out_start + row, token, mask=inside)
            # 64-bit only as it is stored: an NPU has no 64-bit vector arithmetic.
            tl.store(out_positions_ptr + out_start + row, position.to(tl.int64), mask=inside)
            tl.store(out_is_rejected_token_mask_ptr + out_start + row, is_rejected.to(tl.int8), mask=inside)
            tl.store(out_is_masked_token_mask_ptr + out_start + row, is_masked.to(tl.int8), mask=inside)
            if SHIFT:
                tl.store(
                    out_hidden_state_mapping_ptr + start + row, out_start + row, mask=row < next_start - start
                )


def reference(
    target_token_ids: torch.Tensor,
    target_positions: torch.Tensor,
    next_token_ids: torch.Tensor,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    is_rejected_token_mask: torch.Tensor,
    is_masked_token_mask: torch.Tensor,
    new_token_indices: torch.Tensor,
    hidden_state_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    query_end_loc: torch.Tensor,
    padding_token_id: int,
    parallel_drafting_token_id: int,
    num_slots: int,
    shift_input_ids: bool,
) -> None:
    """The same in torch, on the device of its arguments, without a copy to the host. See
    :func:`copy_and_expand_inputs`."""
    num_reqs, num_tokens, shift = query_end_loc.shape[0], target_token_ids.shape[0], int(shift_input_ids)
    num_rows = num_tokens + (num_slots - shift) * num_reqs
    device = target_token_ids.device
    starts, end = query_start_loc[: num_reqs + 1].long(), query_end_loc.long()
    requests = torch.arange(num_reqs + 1, device=device)
    out_start = starts + requests * (num_slots - shift)
    valid = end - starts[:-1] + 1 - shift

    row = torch.arange(num_rows, device=device)
    request = torch.searchsorted(out_start[1:].contiguous(), row, right=True)
    known = request < num_reqs  # the batch may be padded with tokens of no request
    request = request.clamp(max=num_reqs - 1)
    column = row - out_start[request]
    behind = column - valid[request]
    rejected = behind >= num_slots
    source = (starts[request] + shift + column).clamp(max=num_tokens - 1)
    token = torch.where(behind < 0, target_token_ids[source], parallel_drafting_token_id)
    token = torch.where(behind == 0, next_token_ids[request], token).masked_fill(rejected, padding_token_id)
    position = target_positions[starts[request].clamp(max=num_tokens - 1)] + column
    masked = (behind > 0) & ~rejected
    for output, values in (
        (input_ids, token),
        (positions, position.masked_fill(rejected, 0)),
        (is_rejected_token_mask, rejected),
        (is_masked_token_mask, masked),
    ):
        output[:num_rows] = torch.where(known, values.to(output.dtype), output[:num_rows])

    slot = torch.arange(num_slots, device=device)
    to_sample = (out_start[:-1] + valid).unsqueeze(1) + slot
    new_token_indices[: num_reqs * num_slots] = to_sample.flatten().to(new_token_indices.dtype)
    if shift_input_ids:
        token_index = torch.arange(num_tokens, device=device)
        request = torch.searchsorted(starts[1:].contiguous(), token_index, right=True)
        moved = token_index + request * (num_slots - shift)
        mapping = hidden_state_mapping[:num_tokens]
        hidden_state_mapping[:num_tokens] = torch.where(request < num_reqs, moved.to(mapping.dtype), mapping)


def copy_and_expand_inputs(
    target_token_ids: torch.Tensor,
    target_positions: torch.Tensor,
    next_token_ids: torch.Tensor,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    is_rejected_token_mask: torch.Tensor,
    is_masked_token_mask: torch.Tensor,
    new_token_indices: torch.Tensor,
    hidden_state_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    query_end_loc: torch.Tensor,
    padding_token_id: int,
    parallel_drafting_token_id: int,
    num_slots: int,
    shift_input_ids: bool,
) -> None:
    """Write the inputs of the first draft pass. With ``grow = num_slots - shift_input_ids`` rows more a
    request:

    Args:
        target_token_ids: int32 [num_tokens].
        target_positions: int64 [num_tokens]; positions of a request go up by one from its first.
        next_token_ids: int32 [num_reqs].
        input_ids: int32, positions: int64, is_rejected_token_mask, is_masked_token_mask: bool
            [num_tokens + grow * num_reqs] or longer, written to.
        new_token_indices: int32 [num_reqs * num_slots], rows of the next token and the masked slots; written
            to.
        hidden_state_mapping: int32 [num_tokens], the row each of the target's goes to; written to if
            `shift_input_ids`.
        query_start_loc: int32 [num_reqs + 1] or longer, first row of each request.
        query_end_loc: int32 [num_reqs], last row of each request that is not rejected.
        padding_token_id: id of the rows of rejected tokens; their position is 0.
        parallel_drafting_token_id: id of masked slots.
        num_slots: the next token and the masked slots.
        shift_input_ids: drop the first token of each request.
    """
    num_reqs, num_tokens = query_end_loc.shape[0], target_token_ids.shape[0]
    if num_reqs == 0 or num_tokens == 0:
        return
    if not use_triton():
        reference(
            target_token_ids,
            target_positions,
            next_token_ids,
            input_ids,
            positions,
            is_rejected_token_mask,
            is_masked_token_mask,
            new_token_indices,
            hidden_state_mapping,
            query_start_loc,
            query_end_loc,
            padding_token_id,
            parallel_drafting_token_id,
            num_slots,
            shift_input_ids,
        )
        return
    # Programs that are left over when each request has one share the rows.
    requests = programs(num_reqs)
    rows = triton.cdiv(num_tokens, num_reqs) + num_slots
    block_size = SMALL_BLOCK_SIZE if rows <= SMALL_BLOCK_SIZE else BLOCK_SIZE
    blocks = triton.cdiv(rows, block_size)
    _kernel[(requests, programs(requests * blocks) // requests)](
        target_token_ids,
        target_positions,
        next_token_ids,
        input_ids,
        positions,
        is_rejected_token_mask.view(torch.int8),
        is_masked_token_mask.view(torch.int8),
        new_token_indices,
        hidden_state_mapping,
        query_start_loc,
        query_end_loc,
        padding_token_id,
        parallel_drafting_token_id,
        num_tokens,
        num_reqs,
        num_slots,
        SHIFT=int(shift_input_ids),
        SLOTS=max(8, triton.next_power_of_2(num_slots)),
        BLOCK_SIZE=block_size,
        STRIDE=requests < num_reqs,
        num_warps=1,
    )


def copy_and_expand_eagle_inputs_kernel(
    grid: tuple[int, int],
    target_token_ids_ptr: torch.Tensor,
    target_positions_ptr: torch.Tensor,
    next_token_ids_ptr: torch.Tensor,
    out_input_ids_ptr: torch.Tensor,
    out_positions_ptr: torch.Tensor,
    out_is_rejected_token_mask_ptr: torch.Tensor,
    out_is_masked_token_mask_ptr: torch.Tensor,
    out_new_token_indices_ptr: torch.Tensor,
    out_hidden_state_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    query_end_loc_ptr: torch.Tensor,
    padding_token_id: int,
    parallel_drafting_token_id: int,
    total_input_tokens: int,
    num_padding_slots_per_request: int,
    shift_input_ids: bool,
    BLOCK_SIZE_TOKENS: int,
) -> None:
    """In place of vLLM's, whose grid is the number of requests by blocks of tokens."""
    copy_and_expand_inputs(
        target_token_ids_ptr[:total_input_tokens],
        target_positions_ptr,
        next_token_ids_ptr,
        out_input_ids_ptr,
        out_positions_ptr,
        out_is_rejected_token_mask_ptr,
        out_is_masked_token_mask_ptr,
        out_new_token_indices_ptr,
        out_hidden_state_mapping_ptr,
        query_start_loc_ptr,
        query_end_loc_ptr[: grid[0]],
        padding_token_id,
        parallel_drafting_token_id,
        num_padding_slots_per_request,
        shift_input_ids,
    )


def compile_cases() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any]]]:
    """What the launcher can have compiled for an NPU: name, kernel, signature, constants."""
    types = {
        "target_token_ids_ptr": "*i32",
        "target_positions_ptr": "*i64",
        "next_token_ids_ptr": "*i32",
        "out_input_ids_ptr": "*i32",
        "out_positions_ptr": "*i64",
        "out_is_rejected_token_mask_ptr": "*i8",
        "out_is_masked_token_mask_ptr": "*i8",
        "out_new_token_indices_ptr": "*i32",
        "out_hidden_state_mapping_ptr": "*i32",
        "query_start_loc_ptr": "*i32",
        "query_end_loc_ptr": "*i32",
        "padding_token_id": "i32",
        "parallel_drafting_token_id": "i32",
        "total_input_tokens": "i32",
        "num_reqs": "i32",
        "num_slots": "i32",
    }
    blocks, slots = (SMALL_BLOCK_SIZE, BLOCK_SIZE), lanes_up_to(MAX_SPEC_LEN + 1)
    for block_size, shift, size, strides in product(blocks, (0, 1), slots, (False, True)):
        name = f"block {block_size}, {size} slots" + ", shifted" * shift + ", many" * strides
        constants = {"BLOCK_SIZE": block_size, "SHIFT": shift, "SLOTS": size, "STRIDE": strides}
        yield name, _kernel, types, constants
