# SPDX-License-Identifier: Apache-2.0
"""Attention: npu_fused_infer_attention_score in its variants, and paged attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import attention_lengths, switches
from ._operator import cpu, host_ints, no_launch, npu, operator, refuse, require_npu
from .kv_cache import gather_blocks

_FIA = "npu_fused_infer_attention_score"
_UNLIMITED = 2147483647
_COMPRESSED_MASK = (2048, 2048)


def attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, hidden: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One request, on the host, in float32.

    Args:
        query: (queries, heads, head_size).
        key, value: (keys, kv_heads, head_size).
        hidden: (queries, keys), True where the query does not see the key; None when it sees all.
    Returns:
        output (queries, heads, value_head_size), zeros in rows that see no key, and the log of the sum of the
        exponentials of the scores (queries, heads), -inf in those rows.
    """
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), key.float()) * scale
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    output = torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), value.float())
    if hidden is not None:
        output[hidden.all(-1)] = 0.0  # softmax of nothing is not a number
    return output, torch.logsumexp(scores, -1).t()


@dataclass
class _Call:
    """Arguments of one call; the tensors are CPU aliases."""

    num_heads: int
    num_kv_heads: int
    scale: float
    sparse_mode: int
    pre_tokens: int
    next_tokens: int
    mask: Tensor | None
    block_table: Tensor | None
    block_size: int
    query_lengths: list[int] | None
    kv_lengths: list[int] | None

    def hidden(self, queries: int, keys: int, request: int) -> Tensor | None:
        """(queries, keys), True where the query does not see the key.

        Queries are the last tokens of the request: query i has position i + keys - queries.
        """
        if self.sparse_mode == 0:
            return self._given_mask(queries, keys, request)
        position = torch.arange(queries)[:, None] + (keys - queries)
        key = torch.arange(keys)[None]
        if self.sparse_mode == 3:
            self._check_causal_mask()
            return key > position
        if self.sparse_mode == 4:
            return (key > position + self.next_tokens) | (key < position - self.pre_tokens)
        raise NotImplementedError(f"{_FIA}: the NPU emulator has no sparse_mode {self.sparse_mode}")

    def _given_mask(self, queries: int, keys: int, request: int) -> Tensor | None:
        if self.mask is None:
            return None
        mask = self.mask.bool()
        return mask if mask.dim() == 2 else mask[request].reshape(mask.shape[-2:])[:queries, :keys]

    def _check_causal_mask(self) -> None:
        # The device reads tiles of the mask, relative to the diagonal.
        mask = self.mask
        if mask is None or tuple(mask.shape[-2:]) != _COMPRESSED_MASK:
            got = "none" if mask is None else tuple(mask.shape)
            raise RuntimeError(f"{_FIA}: sparse_mode 3 needs an atten_mask of {_COMPRESSED_MASK}, got {got}")
        corner = mask.reshape(_COMPRESSED_MASK)[:2, :2].bool().tolist()
        if corner != [[False, True], [False, False]]:
            raise RuntimeError(
                f"{_FIA}: sparse_mode 3 needs ones above the diagonal of atten_mask and zeros elsewhere"
            )

    def gather(self, cache: Tensor, request: int, length: int, head_size: int) -> Tensor:
        assert self.block_table is not None
        row = self.block_table[request]
        return gather_blocks(_FIA, cache, row, length, self.block_size, self.num_kv_heads, head_size)


def _check_tnd(call: _Call, query: Tensor) -> tuple[list[int], list[int]]:
    """(cumulative query lengths, KV lengths) of a TND call, or an error as the device would have it."""
    ends, kv_lengths = call.query_lengths, call.kv_lengths
    if not ends or kv_lengths is None:
        raise RuntimeError(f"{_FIA}: TND needs actual_seq_lengths and actual_seq_lengths_kv")
    if ends[-1] != query.shape[0] or sorted(ends) != ends:
        raise RuntimeError(
            f"{_FIA}: TND needs cumulative actual_seq_lengths up to the {query.shape[0]} queries, got {ends}"
        )
    if call.block_table is not None and len(kv_lengths) < len(ends) and not switches.attention_strict():
        kv_lengths = kv_lengths + [0] * (len(ends) - len(kv_lengths))
    if len(kv_lengths) != len(ends):
        raise RuntimeError(f"{_FIA}: {len(ends)} query lengths, {len(kv_lengths)} KV lengths")
    if call.block_table is not None:
        rows = max((row + 1 for row, length in enumerate(kv_lengths) if length > 0), default=0)
        if call.block_table.shape[0] < rows:  # a row is read only if it has keys
            raise RuntimeError(f"{_FIA}: block_table {tuple(call.block_table.shape)} for {rows} requests")
    return ends, kv_lengths


def _tnd(query: Tensor, key: Tensor, value: Tensor, call: _Call) -> tuple[Tensor, Tensor]:
    """Tokens of all requests in one dimension; keys paged, or laid out alike with cumulative KV lengths."""
    ends, kv_lengths = _check_tnd(call, query)
    starts = [0, *ends[:-1]]
    if call.block_table is None:
        kv_starts = [0, *kv_lengths[:-1]]
        keys = [end - start for start, end in zip(kv_starts, kv_lengths, strict=True)]
    else:
        keys = kv_lengths
    output = torch.zeros((*query.shape[:2], value.shape[-1] if call.block_table is None else query.shape[-1]))
    lse = torch.full((query.shape[0], call.num_heads, 1), float("-inf"))
    for request, (start, end, length) in enumerate(zip(starts, ends, keys, strict=True)):
        if end == start or length <= 0:
            continue
        if call.block_table is None:
            k, v = (tensor[kv_starts[request] : kv_lengths[request]] for tensor in (key, value))
        else:
            k, v = (call.gather(cache, request, length, query.shape[-1]) for cache in (key, value))
        hidden = call.hidden(end - start, length, request)
        output[start:end], lse[start:end, :, 0] = attend(query[start:end], k, v, call.scale, hidden)
    attention_lengths.note(_FIA, [end - start for start, end in zip(starts, ends, strict=True)], keys)
    return output, lse


def _bsnd(query: Tensor, key: Tensor, value: Tensor, call: _Call) -> tuple[Tensor, Tensor]:
    """One row a request, (batch, tokens, heads, head_size) or with the last two in one dimension."""
    batch, tokens = query.shape[:2]
    heads = query.view(batch, tokens, call.num_heads, -1)
    output = torch.zeros(heads.shape)
    lse = torch.full((batch, call.num_heads, tokens, 1), float("-inf"))
    queries = call.query_lengths or [tokens] * batch
    keys = call.kv_lengths or [key.shape[1]] * batch
    for request, k, v in _bsnd_keys(key, value, keys, heads.shape[-1], call):
        asked, length = queries[request], keys[request]
        hidden = call.hidden(asked, length, request)
        if tokens == 1 and call.pre_tokens < length:  # a sliding window
            hidden = torch.arange(length)[None] < length - 1 - call.pre_tokens
        rows, row_lse = attend(heads[request, :asked], k, v, call.scale, hidden)
        output[request, :asked], lse[request, :, :asked, 0] = rows, row_lse.t()
    attention_lengths.note(_FIA, queries, keys)
    return output.view(query.shape), lse


def _bsnd_keys(
    key: Tensor, value: Tensor, lengths: list[int], head_size: int, call: _Call
) -> Iterator[tuple[int, Tensor, Tensor]]:
    for request, length in enumerate(lengths):
        if length <= 0:
            continue
        if call.block_table is not None:
            k, v = (call.gather(cache, request, length, head_size) for cache in (key, value))
        else:
            k, v = (
                t.view(*t.shape[:2], call.num_kv_heads, head_size)[request, :length] for t in (key, value)
            )
        yield request, k, v


_TRANSPOSED_OUTPUT = {"TND_NTD": (1, 0, 2), "BNSD_NBSD": (2, 0, 1, 3), "BSND_NBSD": (2, 0, 1, 3)}
_LAYOUTS = {"TND": _tnd, "BSND": _bsnd, "BSH": _bsnd, "BNSD": _bsnd}


def _fused_infer_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: Any = None,
    actual_seq_lengths_kv: Any = None,
    block_table: Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = _UNLIMITED,
    next_tokens: int = _UNLIMITED,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    block_size: int = 0,
    softmax_lse_flag: bool = False,
    antiquant_mode: int = 0,
    inner_precise: int = 0,
    **unsupported: Any,
) -> tuple[Tensor, Tensor]:
    """(output, log-sum-exp), on the host, in the type of the query and in float32."""
    require_npu(_FIA, query, key, value, query_rope, key_rope, atten_mask, block_table)
    refuse(_FIA, **unsupported)
    layout, _, transposed = input_layout.partition("_")
    if layout not in _LAYOUTS or (transposed and input_layout not in _TRANSPOSED_OUTPUT):
        raise NotImplementedError(f"{_FIA}: the NPU emulator has no input_layout {input_layout}")
    call = _Call(
        num_heads=num_heads,
        num_kv_heads=num_key_value_heads or num_heads,
        scale=scale,
        sparse_mode=sparse_mode,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        mask=None if atten_mask is None else cpu(atten_mask),
        block_table=None if block_table is None else cpu(block_table),
        block_size=block_size,
        query_lengths=host_ints(actual_seq_lengths),
        kv_lengths=host_ints(actual_seq_lengths_kv),
    )
    q, k, v = cpu(query), cpu(key), cpu(value)
    value_size = v.shape[-1]
    if (
        query_rope is not None and key_rope is not None
    ):  # MLA: heads come in two parts, values have only the first
        q, k = torch.cat((q, cpu(query_rope)), -1), torch.cat((k, cpu(key_rope)), -1)
        v = torch.nn.functional.pad(v, (0, k.shape[-1] - value_size))
    if layout == "BNSD":
        q = q.transpose(1, 2).contiguous()
        if block_table is None:
            k, v = k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
    output, lse = _LAYOUTS[layout](q, k, v, call)
    if query_rope is not None:
        output = output[..., :value_size]
    if transposed:
        output = output.permute(_TRANSPOSED_OUTPUT[input_layout])
    elif layout == "BNSD":
        output = output.transpose(1, 2)
    return output.to(query.dtype).contiguous(), lse


@operator
def npu_fused_infer_attention_score(
    query: Tensor, key: Tensor, value: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    output, lse = _fused_infer_attention(query, key, value, **options)
    return npu(output), npu(lse)


def _write_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    workspace: Tensor | None = None,
    out: list[Tensor],
    **options: Any,
) -> list[Tensor]:
    """Writes out[0], whose tail beyond the output (padding) keeps its contents."""
    output, _ = _fused_infer_attention(query, key, value, **options)
    cpu(out[0])[: output.shape[0]].view(output.shape).copy_(output)
    return out


npu_fused_infer_attention_score.out = operator(_write_attention, name=_FIA)

_V1_NAMES = {
    "num_query_heads": "num_heads",
    "softmax_scale": "scale",
    "actual_seq_qlen": "actual_seq_lengths",
    "actual_seq_kvlen": "actual_seq_lengths_kv",
}


def _as_v1(options: dict[str, Any]) -> dict[str, Any]:
    return {_V1_NAMES.get(name, name): value for name, value in options.items()}


@operator
def npu_fused_infer_attention_score_v2(
    query: Tensor, key: Tensor, value: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    output, lse = _fused_infer_attention(query, key, value, **_as_v1(options))
    return npu(output), npu(lse)


@operator(name=f"{_FIA}_v2")
def _write_attention_v2(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> list[Tensor]:
    return _write_attention(query, key, value, **_as_v1(options))


npu_fused_infer_attention_score_v2.out = _write_attention_v2


@operator
def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    sparse_mode: int = 0,
    **options: Any,
) -> tuple[Tensor]:
    """The attention of training, as encoders use it; options of training (dropout) are of no effect."""
    output, _ = _fused_infer_attention(
        query,
        key,
        value,
        num_heads=head_num,
        scale=scale,
        num_key_value_heads=key.shape[1],
        input_layout=input_layout,
        atten_mask=atten_mask,
        sparse_mode=sparse_mode,
        actual_seq_lengths=actual_seq_qlen,
        actual_seq_lengths_kv=actual_seq_kvlen,
    )
    return (npu(output),)


@operator
def _npu_paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Any,
    out: Tensor,
    workspace: Tensor | None = None,
) -> None:
    """One query a request, which sees all of its context_lens[b] keys."""
    name = "_npu_paged_attention"
    require_npu(name, query, key_cache, value_cache, block_table, out)
    q, rows, output = cpu(query), cpu(block_table), cpu(out)
    lengths = host_ints(context_lens) or []
    for request, length in enumerate(lengths):
        if length > 0:
            k, v = (
                gather_blocks(
                    name, cpu(cache), rows[request], length, cache.shape[1], num_kv_heads, q.shape[-1]
                )
                for cache in (key_cache, value_cache)
            )
            attended, _ = attend(q[request : request + 1], k, v, scale_value, None)
            output[request] = attended[0].to(output.dtype)
    attention_lengths.note(name, [1] * len(lengths), lengths)


@no_launch
def _npu_fused_infer_attention_score_get_max_workspace(query: Tensor, *args: Any, **options: Any) -> Tensor:
    return torch.empty(1, dtype=torch.uint8, device=query.device)


@no_launch
def _npu_fused_infer_attention_score_v2_get_max_workspace(
    query: Tensor, *args: Any, **options: Any
) -> Tensor:
    return torch.empty(1, dtype=torch.uint8, device=query.device)


@no_launch
def _npu_paged_attention_get_workspace(query: Tensor, *args: Any, **options: Any) -> Tensor:
    return torch.empty(1, dtype=torch.uint8, device=query.device)
