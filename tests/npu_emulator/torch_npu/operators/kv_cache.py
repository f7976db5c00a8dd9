# SPDX-License-Identifier: Apache-2.0
"""The paged KV cache: blocks of `block_size` slots, (blocks, block_size, heads, head_size)."""

from __future__ import annotations

import torch
from torch import Tensor

from ._operator import cpu, host_ints, operator, require_npu


def slots_in_use(name: str, slots: Tensor, cache: Tensor) -> Tensor:
    """Mask of the tokens that are stored: those with a slot >= 0. Raises on a slot past the cache."""
    if (slots >= cache.shape[0] * cache.shape[1]).any():
        raise RuntimeError(
            f"{name}: slot {int(slots.max())} of a cache of {cache.shape[0]} x {cache.shape[1]} slots"
        )
    return slots >= 0


def gather_blocks(
    name: str, cache: Tensor, blocks: Tensor, length: int, block_size: int, heads: int, head_size: int
) -> Tensor:
    """First `length` tokens of a request, (length, heads, head_size); `blocks` is its row of the table."""
    if cache.dim() == 4 and cache.shape[1] == heads and cache.shape[2] == block_size:
        cache = cache.transpose(1, 2)  # (blocks, heads, block_size, head_size)
    count = (length + block_size - 1) // block_size
    used = blocks[:count].long()
    if count > blocks.shape[0] or (used < 0).any() or (used >= cache.shape[0]).any():
        raise RuntimeError(
            f"{name}: block table out of range: {length} keys in blocks {used.tolist()} of a table of "
            f"{blocks.shape[0]} and a cache of {cache.shape[0]} blocks"
        )
    return cache[used].reshape(count * block_size, heads, head_size)[:length]


@operator
def _npu_reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> None:
    name = "_npu_reshape_and_cache"
    require_npu(name, key, value, key_cache, value_cache, slot_indices)
    if slot_indices.dtype != torch.int32:
        raise RuntimeError(f"{name}: slot_indices must be int32, got {slot_indices.dtype}")
    slots = cpu(slot_indices).long()
    stored = slots_in_use(name, slots, key_cache)
    for tokens, cache in ((key, key_cache), (value, value_cache)):
        by_slot = cpu(cache).view(-1, *cache.shape[2:])
        by_slot[slots[stored]] = cpu(tokens)[stored].view(-1, *cache.shape[2:])


@operator(namespace="atb")
def npu_paged_cache_load(
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    seq_starts: Tensor | None = None,
    cumsum: bool = False,
    key: Tensor,
    value: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gathers context_lens[b] tokens of each request, from seq_starts[b] on, one request after the other."""
    require_npu(
        "npu_paged_cache_load", key_cache, value_cache, block_table, context_lens, seq_starts, key, value
    )
    lengths = host_ints(cpu(context_lens)) or []
    starts = [0] * len(lengths) if seq_starts is None else host_ints(cpu(seq_starts)) or []
    blocks, block_size = cpu(block_table).long(), key_cache.shape[1]
    written = 0
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        positions = torch.arange(start, start + length)
        slots = blocks[row, positions // block_size] * block_size + positions % block_size
        for cache, out in ((key_cache, key), (value_cache, value)):
            cpu(out)[written : written + length] = cpu(cache).view(-1, *cache.shape[2:])[slots]
        written += length
    return key, value
