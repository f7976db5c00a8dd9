# SPDX-License-Identifier: Apache-2.0
"""Quantisation to int8, by token or by tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from ._operator import cpu, npu, operator
from .norms import rms_norm


def _to_int8(x: Tensor) -> Tensor:
    return x.round().clamp(-128, 127).to(torch.int8)


def _by_token(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.float().abs().amax(-1) / 127.0
    return _to_int8(x.float() / scale.unsqueeze(-1)), scale


def _by_scale(x: Tensor, scales: Tensor, zero_points: Tensor | None, divide: bool) -> Tensor:
    scaled = x.float() / scales.float() if divide else x.float() * scales.float()
    return _to_int8(scaled if zero_points is None else scaled + zero_points.float())


def _add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor]:
    total = cpu(x1) + cpu(x2)
    y, _ = rms_norm(total, cpu(gamma), epsilon)
    return (y if beta is None else y + cpu(beta)), total


@operator
def npu_dynamic_quant(input: Tensor) -> tuple[Tensor, Tensor]:
    quantized, scale = _by_token(cpu(input))
    return npu(quantized), npu(scale)


@operator
def npu_quantize(
    self: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    dtype: torch.dtype | None = None,
    axis: int = -1,
    div_mode: bool = True,
) -> Tensor:
    return npu(_by_scale(cpu(self), cpu(scales), None if zero_points is None else cpu(zero_points), div_mode))


@operator
def npu_add_rms_norm_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    scales1: Tensor,
    zero_points1: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor]:
    """(quantised, the same again: the device's second output, sum)."""
    y, total = _add_rms_norm(x1, x2, gamma, beta, epsilon)
    quantized = _by_scale(y, cpu(scales1), None if zero_points1 is None else cpu(zero_points1), divide=True)
    return npu(quantized), npu(quantized.clone()), npu(total)


@operator
def npu_add_rms_norm_dynamic_quant(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor | None = None, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(quantised, the same again, sum, scale, the same again)."""
    y, total = _add_rms_norm(x1, x2, gamma, beta, epsilon)
    quantized, scale = _by_token(y)
    return npu(quantized), npu(quantized.clone()), npu(total), npu(scale), npu(scale.clone())
