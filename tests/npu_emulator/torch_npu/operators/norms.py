# SPDX-License-Identifier: Apache-2.0
"""Normalisations and activations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ._operator import cpu, npu, operator, require_npu


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """On the host, in float32, rounded to gamma's type before gamma applies: (normalised, reciprocal std)."""
    wide = x.float()
    rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return ((wide * rstd).to(gamma.dtype).float() * gamma.float()).to(x.dtype), rstd


@operator
def npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    require_npu("npu_rms_norm", self, gamma)
    y, rstd = rms_norm(cpu(self), cpu(gamma), epsilon)
    return npu(y), npu(rstd)


@operator
def npu_add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    require_npu("npu_add_rms_norm", x1, x2, gamma)
    total = cpu(x1) + cpu(x2)
    y, rstd = rms_norm(total, cpu(gamma), epsilon)
    return npu(y), npu(rstd), npu(total)


@operator
def npu_swiglu(self: Tensor, dim: int = -1) -> Tensor:
    require_npu("npu_swiglu", self)
    gate, up = cpu(self).chunk(2, dim)
    return npu(F.silu(gate.float()).mul_(up.float()).to(self.dtype))


@operator
def npu_fast_gelu(self: Tensor) -> Tensor:
    x = cpu(self)
    return npu(x * torch.sigmoid(1.702 * x))
