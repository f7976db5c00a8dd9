# SPDX-License-Identifier: Apache-2.0
"""The token that takes the place of a rejected draft token, sampled from what the target has beyond the
draft.

Stands for the ``sample_recovered_tokens_kernel`` of vLLM and of vllm-ascend.

The vocabulary is cut into tiles, and each tile of each draft token is work of its own, so that one request
keeps every core busy. The best of each tile goes to memory; a second, small kernel takes the best of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from vllm.triton_utils import tl, triton

from ._dispatch import lanes_up_to, on_npu, programs, use_triton, vector_cores
from ._loads import load_inside

# Entries of the vocabulary handled at a time. Three float32 tiles, each in two buffers, and what is computed
# from them take 181,672 of the 196,608 bytes of an Ascend 910B's core at 4,096.
TILE = 4096
# Where that would leave cores idle.
SMALL_TILE = 1024
# On a GPU, where more than one program shares a multiprocessor: what its registers have room for.
_PROGRAMS_PER_SM = 4


@triton.jit(do_not_specialize=["num_items", "max_spec_len", "tiles"])  # type: ignore[untyped-decorator]
def _best_of_tiles(  # type: ignore[no-untyped-def]
    best_ptr,
    cu_num_draft_tokens_ptr,
    draft_token_ids_ptr,
    draft_probs_ptr,
    target_probs_ptr,
    q_ptr,
    num_items,
    max_spec_len,
    vocab_size,
    tiles,
    TILE: tl.constexpr,
    LANES: tl.constexpr,
):
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        # Neighbours take the positions of one request and one tile: the same part of q, then in the cache.
        position = item % max_spec_len
        tile = item // max_spec_len % tiles
        request = item // max_spec_len // tiles
        # A load before the first element is a fault on the NPU even where its mask is false.
        before = tl.load(cu_num_draft_tokens_ptr + tl.maximum(request - 1, 0))
        token = tl.where(request > 0, before, 0) + position
        if token < tl.load(cu_num_draft_tokens_ptr + request):
            # Lanes are compared with numbers, not tokens: a vector of those would have to be made.
            lane = tl.arange(0, TILE)
            begin = tile * TILE
            inside = lane < vocab_size - begin
            # All rows together may have more than 2^31 elements.
            row = token.to(tl.int64) * vocab_size + begin
            q = load_inside(q_ptr + request.to(tl.int64) * vocab_size + begin + lane, inside)
            # Behind the vocabulary 0, which divided by anything scores 0.
            prob = tl.load(target_probs_ptr + row + lane, mask=inside, other=0.0)
            if draft_probs_ptr is None:
                prob = tl.where(lane == tl.load(draft_token_ids_ptr + token) - begin, 0.0, prob)
            else:
                prob = prob - tl.load(draft_probs_ptr + row + lane, mask=inside, other=0.0)
            score = prob / q
            # Nothing below zero, and nothing that is not a number.
            score = tl.where(score > 0, score, 0.0)
            best = tl.max(score, 0)
            if LANES:
                first = begin + tl.min(tl.where(score == best, lane, TILE), 0)
            else:  # a GPU takes up to twice as long over the reduction of bare lanes
                first = tl.min(tl.where(score == best, begin + lane, 2147483647), 0)
            # Both in one store. Of floats that are not negative the bits are in the order of the numbers.
            pair = tl.arange(0, 2)
            both = tl.where(pair == 0, best.to(tl.int32, bitcast=True), first)
            tl.store(best_ptr + (token * tiles + tile) * 2 + pair, both)


@triton.jit(do_not_specialize=["num_tokens", "tiles"])  # type: ignore[untyped-decorator]
def _best_of_all(output_token_ids_ptr, best_ptr, num_tokens, tiles, TILES: tl.constexpr):  # type: ignore[no-untyped-def]
    tile = tl.arange(0, TILES)
    for token in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        row_ptr = best_ptr + token * tiles * 2
        score = tl.load(row_ptr + tile * 2, mask=tile < tiles, other=0)
        first = tl.load(row_ptr + tile * 2 + 1, mask=tile < tiles, other=2147483647)
        first = tl.min(tl.where(score == tl.max(score, 0), first, 2147483647), 0)
        tl.store(output_token_ids_ptr + token, first)


def reference(
    cu_num_draft_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    q: torch.Tensor,
) -> torch.Tensor:
    """The same in torch, on the device of its arguments, without a copy to the host. See
    :func:`recovered_tokens`."""
    if draft_probs is None:
        vocab = torch.arange(target_probs.shape[1], device=target_probs.device)
        prob = torch.where(vocab == draft_token_ids.unsqueeze(1), 0.0, target_probs)
    else:
        prob = target_probs - draft_probs
    if prob.numel() == 0:
        return draft_token_ids.new_empty(draft_token_ids.shape)
    token = torch.arange(draft_token_ids.shape[0], device=prob.device)
    request = torch.searchsorted(cu_num_draft_tokens.long(), token, right=True).clamp(max=q.shape[0] - 1)
    score = prob / q[request]
    return torch.where(score > 0, score, 0.0).argmax(1).to(draft_token_ids.dtype)


def recovered_tokens(
    output_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    q: torch.Tensor,
    max_spec_len: int,
) -> None:
    """Write for each draft token the one to take in its place: the largest (target - draft) / q, the lowest
    token of equal ones. With q from the exponential distribution that samples target - draft where it is
    positive.

    Args:
        output_token_ids: int32 [num_tokens], written to. What becomes of tokens that `cu_num_draft_tokens`
            does not count, or of more than `max_spec_len` of a request, is not defined.
        cu_num_draft_tokens: int32 [num_reqs], inclusive cumulative sum of the drafted tokens of each request.
        draft_token_ids: int32 [num_tokens], looked at only without `draft_probs`; any values.
        draft_probs: float32 [num_tokens, vocab_size]; None: 1 for each draft token.
        target_probs: float32 [num_tokens, vocab_size].
        q: float32 [num_reqs, vocab_size].
        max_spec_len: the most draft tokens of a request.

    What is not a number counts as zero; where nothing is above zero, token 0 is taken.
    """
    num_tokens, vocab_size = target_probs.shape
    num_reqs = cu_num_draft_tokens.shape[0]
    if not use_triton():
        output_token_ids.copy_(reference(cu_num_draft_tokens, draft_token_ids, draft_probs, target_probs, q))
    elif num_tokens > 0 and max_spec_len > 0:
        rows = num_reqs * max_spec_len
        tile = TILE if rows * triton.cdiv(vocab_size, TILE) >= vector_cores() else SMALL_TILE
        tiles = triton.cdiv(vocab_size, tile)
        best = torch.empty((num_tokens, tiles, 2), dtype=torch.int32, device=target_probs.device)
        _best_of_tiles[(programs(rows * tiles, _PROGRAMS_PER_SM),)](
            best,
            cu_num_draft_tokens,
            draft_token_ids,
            draft_probs,
            target_probs,
            q,
            rows * tiles,
            max_spec_len,
            vocab_size,
            tiles,
            TILE=tile,
            LANES=on_npu(),
            num_warps=8 if tile == TILE else 4,
        )
        _best_of_all[(programs(num_tokens),)](
            output_token_ids,
            best,
            num_tokens,
            tiles,
            TILES=max(8, triton.next_power_of_2(tiles)),
            num_warps=1,
        )


def sample_recovered_tokens_kernel(
    grid: tuple[int, int],
    output_token_ids_ptr: torch.Tensor,
    cu_num_draft_tokens_ptr: torch.Tensor,
    draft_token_ids_ptr: torch.Tensor,
    draft_probs_ptr: torch.Tensor | None,
    target_probs_ptr: torch.Tensor,
    q_ptr: torch.Tensor | None = None,
    *options: Any,
    inv_q_ptr: torch.Tensor | None = None,
    **more_options: Any,
) -> None:
    """In place of vLLM's and of vllm-ascend's, whose grids are the number of requests by max_spec_len. vLLM
    gives 1 / q from 0.17.0 on."""
    q = q_ptr if inv_q_ptr is None else inv_q_ptr.reciprocal()
    if q is None:
        raise TypeError("sample_recovered_tokens_kernel is given neither q_ptr nor inv_q_ptr")
    recovered_tokens(
        output_token_ids_ptr,
        cu_num_draft_tokens_ptr,
        draft_token_ids_ptr,
        draft_probs_ptr,
        target_probs_ptr,
        q,
        grid[1],
    )


def compile_cases() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any]]]:
    """What the launcher can have compiled for an NPU: name, kernel, signature, constants."""
    types = {
        "best_ptr": "*i32",
        "cu_num_draft_tokens_ptr": "*i32",
        "draft_token_ids_ptr": "*i32",
        "target_probs_ptr": "*fp32",
        "q_ptr": "*fp32",
        "num_items": "i32",
        "max_spec_len": "i32",
        "vocab_size": "i32",
        "tiles": "i32",
    }
    for tile in (TILE, SMALL_TILE):
        constants = {"TILE": tile, "LANES": True}
        yield f"tile {tile}", _best_of_tiles, {**types, "draft_probs_ptr": "*fp32"}, constants
        yield f"tile {tile}, no draft probs", _best_of_tiles, types, {**constants, "draft_probs_ptr": None}
    types = {"output_token_ids_ptr": "*i32", "best_ptr": "*i32", "num_tokens": "i32", "tiles": "i32"}
    # Vocabularies of up to 2^18 tokens, the small tile.
    for tiles in lanes_up_to(2**18 // SMALL_TILE):
        yield f"{tiles} tiles", _best_of_all, types, {"TILES": tiles}
