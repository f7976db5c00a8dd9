# SPDX-License-Identifier: Apache-2.0
"""torch_npu's fused operators in plain PyTorch, one family a module."""

from __future__ import annotations

from . import (
    attention,
    dispatcher,
    formats,
    kv_cache,
    mla,
    moe,
    norms,
    quantization,
    rotary,
    sampling,
    sparse_attention,
)
from ._operator import TABLE

dispatcher.register()

__all__ = [
    "TABLE",
    "attention",
    "formats",
    "kv_cache",
    "mla",
    "moe",
    "norms",
    "quantization",
    "rotary",
    "sampling",
    "sparse_attention",
]
