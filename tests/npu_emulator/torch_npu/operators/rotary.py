# SPDX-License-Identifier: Apache-2.0
"""Rotary position embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from ._operator import cpu, npu, operator, require_npu


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotate_pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, neox: bool) -> Tensor:
    """Angles of half the width of x: for its two halves (neox) or for its pairs of neighbours."""
    if neox:
        cos, sin, rotated = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1), rotate_half(x.float())
    else:
        cos, sin, rotated = (
            cos.repeat_interleave(2, -1),
            sin.repeat_interleave(2, -1),
            rotate_pairs(x.float()),
        )
    return (x.float() * cos + rotated * sin).to(x.dtype)


@operator
def _npu_rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox_style: bool
) -> None:
    """In place, on the first cos_sin_cache.shape[-1] elements of each head."""
    require_npu("_npu_rotary_embedding", positions, query, key, cos_sin_cache)
    angles = cpu(cos_sin_cache).float()[cpu(positions).long()]
    cos, sin = (half.unsqueeze(1) for half in angles.chunk(2, -1))
    width = angles.shape[-1]
    for tensor in (query, key):
        heads = cpu(tensor)
        heads = heads.view(heads.shape[0], -1, head_size)
        heads[..., :width] = _rotate(heads[..., :width], cos, sin, is_neox_style)


def _apply(x: Tensor, cos: Tensor, sin: Tensor, rotated: Tensor) -> Tensor:
    return npu((x.float() * cpu(cos).float() + rotated * cpu(sin).float()).to(x.dtype))


@operator
def npu_apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str = "BSH"
) -> tuple[Tensor, Tensor]:
    require_npu("npu_apply_rotary_pos_emb", query, key, cos, sin)
    q, k = cpu(query), cpu(key)
    return _apply(q, cos, sin, rotate_half(q.float())), _apply(k, cos, sin, rotate_half(k.float()))


@operator
def npu_rotary_mul(self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> Tensor:
    require_npu("npu_rotary_mul", self, r1, r2)
    x = cpu(self)
    rotate = rotate_half if rotary_mode == "half" else rotate_pairs
    return _apply(x, r1, r2, rotate(x.float()))
