# SPDX-License-Identifier: Apache-2.0
"""Products with low-rank weights: each row of a batch has an adapter of its own, or none.

Weights are [adapters, out, in] or [adapters, 1, out, in]. Rows without an adapter are left as they are.
float32 is taken as well, where the device's kernels take half and bfloat16 only.
"""

from __future__ import annotations

import torch
from torch import Tensor

_RANKS = (8, 16, 32, 64)  # what the kernels that expand are written for


def shrink(name: str, x: Tensor, weight: Tensor, adapters: Tensor, y: Tensor, scale: float) -> None:
    """y[i] = scale * x[i] @ weight[adapters[i]].T, in float32."""
    _check(name, x, weight, adapters, y)
    if y.dtype != torch.float32:
        raise RuntimeError(f"{name}: y must be float32, got {y.dtype}")
    if x.shape[1] <= y.shape[1]:
        raise RuntimeError(f"{name}: {x.shape[1]} columns do not shrink to {y.shape[1]}")
    for rows, matrix in _by_adapter(weight, adapters):
        y[rows] = scale * (x[rows].float() @ matrix)


def expand(
    name: str, x: Tensor, weight: Tensor, adapters: Tensor, y: Tensor, slice_offset: int, slice_size: int
) -> None:
    """y[i, slice] += x[i] @ weight[adapters[i]].T, added in float32."""
    _check(name, x, weight, adapters, y)
    if x.shape[1] not in _RANKS:
        raise RuntimeError(f"{name}: the rank must be one of {_RANKS}, got {x.shape[1]}")
    if not 0 <= slice_offset <= slice_offset + slice_size <= y.shape[1] or x.shape[1] > slice_size:
        raise RuntimeError(
            f"{name}: {slice_size} columns from {slice_offset} on, of {y.shape[1]}, for rank {x.shape[1]}"
        )
    part = y[:, slice_offset : slice_offset + slice_size]
    for rows, matrix in _by_adapter(weight, adapters):
        part[rows] = (part[rows].float() + x[rows].float() @ matrix).to(y.dtype)


def of_rows(adapters: Tensor, lengths: Tensor, rows: int) -> Tensor:
    """int64 [rows], from one adapter for each run of rows; -1 behind the last run."""
    by_row = adapters.repeat_interleave(lengths)[:rows]
    return torch.cat((by_row, by_row.new_full((rows - by_row.shape[0],), -1)))


def _check(name: str, x: Tensor, weight: Tensor, adapters: Tensor, y: Tensor) -> None:
    for what, tensor in (("x", x), ("weight", weight), ("y", y)):
        if not tensor.is_contiguous():
            raise RuntimeError(f"{name}: {what} must be contiguous")
    if weight.dim() not in (3, 4) or x.dim() != 2 or y.dim() != 2 or weight.shape[-1] != x.shape[1]:
        raise RuntimeError(
            f"{name}: x {list(x.shape)}, weight {list(weight.shape)} and y {list(y.shape)} do not match"
        )
    if not x.shape[0] == y.shape[0] == adapters.shape[0]:
        raise RuntimeError(
            f"{name}: {x.shape[0]} rows of x, {y.shape[0]} of y, {adapters.shape[0]} of the indices"
        )


def _by_adapter(weight: Tensor, adapters: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The rows of every adapter in use and its matrix, [in, out]."""
    return [
        ((adapters == adapter).nonzero()[:, 0], weight[adapter].view(weight.shape[-2:]).T.float())
        for adapter in adapters.unique().tolist()
        if adapter >= 0
    ]
