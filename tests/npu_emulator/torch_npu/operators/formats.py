# SPDX-License-Identifier: Apache-2.0
"""Storage formats, prefetch and other things that change how a device works and not what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._operator import cpu, no_launch, operator


@no_launch
def npu_format_cast(self: Tensor, acl_format: int) -> Tensor:
    return self


@no_launch
def npu_format_cast_(self: Tensor, acl_format: int) -> Tensor:
    return self


@no_launch
def empty_with_format(
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    acl_format: int = 2,
    **options: Any,
) -> Tensor:
    return torch.empty(size, dtype=dtype, device=device or "npu")


@no_launch
def npu_prefetch(self: Tensor, dependency: Tensor | None, max_size: int, offset: int = 0) -> None:
    return None


@no_launch
def argsort(self: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return torch.argsort(self, dim=dim, descending=descending)


@operator
def _npu_matmul_add_fp32(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """out += x.T @ weight, in float32 and in place."""
    cpu(out).add_(cpu(x).float().t() @ cpu(weight).float())
