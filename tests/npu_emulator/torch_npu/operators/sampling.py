# SPDX-License-Identifier: Apache-2.0
"""Sampling."""

from __future__ import annotations

import torch
from torch import Tensor

from ._operator import cpu, npu, operator


def top_k_top_p(logits: Tensor, p: Tensor | None, k: Tensor | None) -> Tensor:
    """On the host: -inf outside the k[b] highest logits of row b and the smallest set that holds p[b]."""
    ascending, index = logits.sort(-1)
    if k is not None:
        kth = (ascending.shape[1] - k.long()).clamp(min=0).unsqueeze(1)
        ascending.masked_fill_(ascending < ascending.gather(1, kth), float("-inf"))
    if p is not None:
        outside = ascending.softmax(-1).cumsum(-1) <= 1 - p.unsqueeze(1)
        outside[:, -1] = False  # the best one always stays
        ascending.masked_fill_(outside, float("-inf"))
    return torch.empty_like(logits).scatter_(1, index, ascending)


@operator
def npu_top_k_top_p(logits: Tensor, p: Tensor | None, k: Tensor | None) -> Tensor:
    return npu(top_k_top_p(cpu(logits), None if p is None else cpu(p), None if k is None else cpu(k)))
