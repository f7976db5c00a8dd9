# SPDX-License-Identifier: Apache-2.0
"""Sparse attention over latent keys (DeepSeek-V3.2): an indexer chooses the keys that each query attends to.

Queries of all requests are in one dimension, keys in the paged cache; query i of n over m keys stands at
position ``m - n + i`` and sees no later key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .. import attention_lengths
from ._operator import cpu, npu, operator, require_npu
from .attention import attend
from .kv_cache import gather_blocks

_UNUSED = -1  # in the indices, behind those of the keys there are


def _requests(
    name: str, rows: int, queries: Tensor | None, keys: Tensor | None, layouts: tuple[str, str], mode: int
) -> Iterator[tuple[int, slice, int]]:
    """Number, rows and number of keys of each request, from cumulative query lengths and KV lengths."""
    if layouts != ("TND", "PA_BSND") or mode != 3:
        raise NotImplementedError(
            f"{name}: the NPU emulator has no layouts {layouts} with sparse_mode {mode}"
        )
    require_npu(name, queries, keys)
    if queries is None or keys is None or queries.shape != keys.shape:
        raise RuntimeError(f"{name}: needs as many query lengths as KV lengths")
    ends, lengths = cpu(queries).tolist(), cpu(keys).tolist()
    if sorted(ends) != ends or (ends and ends[-1] > rows):
        raise RuntimeError(f"{name}: cumulative query lengths {ends} of {rows} queries")
    attention_lengths.note(name, [b - a for a, b in zip([0, *ends], ends, strict=False)], lengths)
    for request, (start, end, length) in enumerate(zip([0, *ends], ends, lengths, strict=False)):
        if start < end and length > 0:
            yield request, slice(start, end), length


def _later(queries: int, keys: int) -> Tensor:
    """(queries, keys), True where a key is later than the query."""
    return torch.arange(keys)[None] > torch.arange(queries)[:, None] + (keys - queries)


@operator(namespace="_C_ascend")
def npu_lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    block_table: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "PA_BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
) -> Tensor:
    """int32 (queries, 1, sparse_count): the keys of the largest sums of ``w * relu(q . k)`` over heads."""
    name = "npu_lightning_indexer"
    require_npu(name, query, key, weights, block_table)
    q, w, cache, table = cpu(query).float(), cpu(weights).float(), cpu(key), cpu(block_table)
    chosen = torch.full((q.shape[0], 1, sparse_count), _UNUSED, dtype=torch.int32)
    lengths = actual_seq_lengths_query, actual_seq_lengths_key
    for request, rows, length in _requests(name, len(q), *lengths, (layout_query, layout_key), sparse_mode):
        keys = gather_blocks(name, cache, table[request], length, cache.shape[1], 1, cache.shape[-1])[:, 0]
        scores = (torch.einsum("qhd,kd->qhk", q[rows], keys.float()).relu() * w[rows, :, None]).sum(1)
        later = _later(len(scores), length)
        best = scores.masked_fill(later, float("-inf")).topk(min(sparse_count, length))
        seen = best.values > float("-inf")
        chosen[rows, 0, : best.indices.shape[1]] = torch.where(seen, best.indices, _UNUSED).int()
    return npu(chosen)


@operator(namespace="_C_ascend")
def npu_sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    sparse_block_size: int,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    layout_query: str = "BSND",
    layout_kv: str = "PA_BSND",
    sparse_mode: int = 3,
) -> Tensor:
    """Like `query`: attention of each query over its keys in `sparse_indices` that are not later than it."""
    name = "npu_sparse_flash_attention"
    require_npu(name, query, key, value, sparse_indices, block_table, query_rope, key_rope)
    if sparse_block_size != 1:
        raise NotImplementedError(f"{name}: the NPU emulator has only sparse_block_size 1")
    q, chosen, table = torch.cat((cpu(query), cpu(query_rope)), -1), cpu(sparse_indices), cpu(block_table)
    caches = [cpu(cache) for cache in (key, key_rope, value)]
    output = torch.zeros_like(cpu(query))
    lengths = actual_seq_lengths_query, actual_seq_lengths_kv
    for request, rows, length in _requests(name, len(q), *lengths, (layout_query, layout_kv), sparse_mode):
        latent, rope, values = (
            gather_blocks(name, cache, table[request], length, cache.shape[1], 1, cache.shape[-1])
            for cache in caches
        )
        asked = chosen[rows, 0].long()
        used = torch.zeros(len(asked), length + 1, dtype=torch.bool)
        used.scatter_(1, torch.where(asked == _UNUSED, length, asked), True)
        hidden = ~used[:, :length] | _later(len(asked), length)
        output[rows] = attend(q[rows], torch.cat((latent, rope), -1), values, scale_value, hidden)[0].to(
            q.dtype
        )
    return npu(output)


@operator(namespace="_C_ascend", name="npu_lightning_indexer")
def indexer_since_0_23(
    query: Tensor, key: Tensor, weights: Tensor, *, return_value: bool = False, **options: Any
) -> tuple[Tensor, Tensor]:
    """The keys that :func:`npu_lightning_indexer` chooses, and their sums: none unless asked for."""
    if return_value:
        raise NotImplementedError("npu_lightning_indexer: the NPU emulator returns no values")
    return npu_lightning_indexer(query, key, weights, **options), npu(torch.empty(0))


@operator(namespace="_C_ascend", name="npu_sparse_flash_attention")
def attention_since_0_23(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    *,
    sparse_block_size: int = 1,
    attention_mode: int = 2,
    return_softmax_lse: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`npu_sparse_flash_attention`, and what parts of it are merged by: nothing unless asked for."""
    if return_softmax_lse or attention_mode != 2:
        raise NotImplementedError(
            "npu_sparse_flash_attention: the NPU emulator has attention_mode 2 without return_softmax_lse"
        )
    output = npu_sparse_flash_attention(
        query, key, value, sparse_indices, scale_value, sparse_block_size, **options
    )
    return output, npu(torch.empty(0)), npu(torch.empty(0))


@operator
def npu_scatter_nd_update_(self: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Rows `updates` at the rows `indices` (rows, 1) of `self`; negative ones are left out."""
    name = "npu_scatter_nd_update_"
    require_npu(name, self, indices, updates)
    rows, new = cpu(indices)[:, 0].long(), cpu(updates)
    if len(rows) != len(new):
        raise RuntimeError(f"{name}: {len(rows)} indices of {len(new)} updates")
    cpu(self)[rows[rows >= 0]] = new[rows >= 0]
    return self
