# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention (DeepSeek)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import attention_lengths
from ._operator import cpu, npu, operator, refuse, require_npu
from .attention import attend
from .kv_cache import slots_in_use
from .norms import rms_norm
from .rotary import rotate_half


@operator
def npu_transpose_batchmatmul(
    input: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int = 1,
) -> Tensor:
    require_npu("npu_transpose_batchmatmul", input, weight)
    refuse("npu_transpose_batchmatmul", bias=bias, scale=scale)

    def permuted(tensor: Tensor, permutation: Sequence[int] | None) -> Tensor:
        return tensor.permute(*permutation) if permutation else tensor

    product = torch.bmm(permuted(cpu(input), perm_x1), permuted(cpu(weight), perm_x2))
    return npu(permuted(product, perm_y).contiguous())


def _interleaved_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates pairs of neighbours (x0, y0, x1, y1, ...) and gives them apart (x0, x1, ..., y0, y1, ...)."""
    halves = torch.cat((x[..., ::2], x[..., 1::2]), -1).float()
    return (halves * cos.float() + rotate_half(halves) * sin.float()).to(x.dtype)


@operator
def npu_interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    require_npu("npu_interleave_rope", x, cos, sin)
    return npu(_interleaved_rope(cpu(x), cpu(cos), cpu(sin)))


@operator
def npu_kv_rmsnorm_rope_cache(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    *,
    k_rope_scale: Tensor | None = None,
    c_kv_scale: Tensor | None = None,
    k_rope_offset: Tensor | None = None,
    c_kv_offset: Tensor | None = None,
    v: Tensor | None = None,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Normalises the latent part of kv, rotates the rest, stores both in their caches at slots `index`."""
    name = "npu_kv_rmsnorm_rope_cache"
    require_npu(name, kv, gamma, cos, sin, index, k_cache, ckv_cache)
    refuse(name, k_rope_scale=k_rope_scale, c_kv_scale=c_kv_scale, k_rope_offset=k_rope_offset)
    refuse(name, c_kv_offset=c_kv_offset, v=v)
    if cache_mode != "PA":
        raise NotImplementedError(f"{name}: the NPU emulator has only cache_mode 'PA', not {cache_mode!r}")
    if index.dtype != torch.int64:
        raise RuntimeError(f"{name}: index must be int64, got {index.dtype}")
    x, slots = cpu(kv), cpu(index)
    latent_size = gamma.shape[0]
    latent, _ = rms_norm(x[..., :latent_size], cpu(gamma), epsilon)
    rope = _interleaved_rope(x[..., latent_size:], cpu(cos), cpu(sin))
    stored = slots_in_use(name, slots, k_cache)
    for part, cache in ((rope, k_cache), (latent, ckv_cache)):
        width = part.shape[-1]
        cpu(cache).view(-1, width)[slots[stored]] = part.reshape(-1, width)[stored]
    return k_cache, ckv_cache, npu(rope) if is_output_kv else None, npu(latent) if is_output_kv else None


def _merge(previous: Tensor, previous_lse: Tensor, output: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two disjoint sets of keys, from the attention over each."""
    total = torch.logaddexp(previous_lse, lse)
    weights = ((part - total).exp()[..., None] for part in (previous_lse, lse))
    return sum(weight * part for weight, part in zip(weights, (previous, output), strict=True)), total


@operator(namespace="atb")
def npu_ring_mla(
    q_nope: Tensor,
    q_rope: Tensor,
    k_nope: Tensor,
    k_rope: Tensor,
    value: Tensor,
    mask: Tensor | None,
    seqlen: Tensor,
    head_num: int,
    kv_head_num: int,
    *,
    pre_out: Tensor | None = None,
    prev_lse: Tensor | None = None,
    qk_scale: float = 1.0,
    mask_type: str | None = None,
    calc_type: str | None = None,
    output: Tensor,
    softmax_lse: Tensor,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Prefill attention over one chunk of the keys, merged with what earlier chunks gave (pre_out, prev_lse).

    `seqlen`, on the host, holds the queries of each request or, in two rows, its queries and its keys.
    `softmax_lse` is (heads, queries).
    """
    name = "npu_ring_mla"
    require_npu(name, q_nope, q_rope, k_nope, k_rope, value, output, softmax_lse)
    if seqlen.dtype != torch.int32 or seqlen.device.type != "cpu":
        raise RuntimeError(
            f"{name}: seqlen must be an int32 host tensor, got {seqlen.dtype} on {seqlen.device}"
        )
    queries, keys = (seqlen.tolist(),) * 2 if seqlen.dim() == 1 else seqlen.tolist()
    q, k = torch.cat((cpu(q_nope), cpu(q_rope)), -1), torch.cat((cpu(k_nope), cpu(k_rope)), -1)
    v, out, lse = cpu(value), cpu(output), cpu(softmax_lse)
    if sum(queries) != q.shape[0] or sum(keys) != k.shape[0]:
        raise RuntimeError(
            f"{name}: seqlen {queries} {keys} does not cover {q.shape[0]} queries, {k.shape[0]} keys"
        )
    merges = calc_type != "calc_type_first_ring"
    if merges:  # copies: the results may be written over them
        previous, previous_lse = cpu(pre_out).float().clone(), cpu(prev_lse).t().clone()
    start = key_start = 0
    for asked, length in zip(queries, keys, strict=True):
        rows, key_rows = slice(start, start + asked), slice(key_start, key_start + length)
        if length:
            causal = mask_type == "mask_type_triu"
            hidden = torch.ones(asked, length, dtype=torch.bool).triu(length - asked + 1) if causal else None
            part, part_lse = attend(q[rows], k[key_rows], v[key_rows], qk_scale, hidden)
        else:
            part = torch.zeros(asked, head_num, v.shape[-1])
            part_lse = torch.full((asked, head_num), float("-inf"))
        if merges:
            part, part_lse = _merge(previous[rows], previous_lse[rows], part, part_lse)
        out[rows], lse[:, rows] = part.to(out.dtype), part_lse.t()
        start, key_start = rows.stop, key_rows.stop
    attention_lengths.note(name, queries, keys)
    return output, softmax_lse


@operator
def npu_attention_update(
    lse: Sequence[Tensor], local_out: Sequence[Tensor], update_type: int
) -> tuple[Tensor, Tensor | None]:
    """One attention from several over parts of the keys: outputs (rows, size) and log-sum-exps (rows).

    The log-sum-exp of all keys comes with `update_type` 1 only.
    """
    if update_type not in (0, 1) or len(lse) != len(local_out):
        raise RuntimeError(
            f"npu_attention_update: update_type {update_type}, {len(lse)} lse and {len(local_out)} outputs"
        )
    output, total = cpu(local_out[0]).float(), cpu(lse[0]).float()
    for part, part_lse in zip(local_out[1:], lse[1:], strict=True):
        output, total = _merge(output, total, cpu(part).float(), cpu(part_lse).float())
    return npu(output.to(local_out[0].dtype)), npu(total) if update_type else None
