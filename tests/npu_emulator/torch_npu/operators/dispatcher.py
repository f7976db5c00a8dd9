# SPDX-License-Identifier: Apache-2.0
"""torch.ops.npu: the operators that hosts also reach by the dispatcher, or that compiled graphs must see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._operator import TABLE


def like(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def rstd_of(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


def _int8(x: Tensor) -> Tensor:
    return torch.empty_like(x, dtype=torch.int8)


def _by_token(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[:-1], dtype=torch.float32)


# schema -> what the result looks like (shapes and types, for meta tensors)
_SCHEMAS: dict[str, Callable[..., Any]] = {
    "npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)":
        lambda x, *rest, **options: (like(x), rstd_of(x)),
    "npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor, Tensor)":
        lambda x, *rest, **options: (like(x), rstd_of(x), like(x)),
    "npu_swiglu(Tensor self, int dim=-1) -> Tensor":
        lambda x, dim=-1: x.new_empty((*x.shape[:-1], x.shape[-1] // 2)),
    "npu_fast_gelu(Tensor self) -> Tensor":
        like,
    "npu_rotary_mul(Tensor self, Tensor r1, Tensor r2, str rotary_mode='half') -> Tensor":
        lambda x, *rest, **options: like(x),
    "npu_dynamic_quant(Tensor input) -> (Tensor, Tensor)":
        lambda x: (_int8(x), _by_token(x)),
    "npu_quantize(Tensor self, Tensor scales, Tensor? zero_points, ScalarType? dtype=None, int axis=-1,"
    " bool div_mode=True) -> Tensor":
        lambda x, *rest, **options: _int8(x),
    "npu_add_rms_norm_quant(Tensor x1, Tensor x2, Tensor gamma, Tensor scales1, Tensor? zero_points1=None,"
    " Tensor? beta=None, *, float epsilon=1e-06) -> (Tensor, Tensor, Tensor)":
        lambda x, *rest, **options: (_int8(x), _int8(x), like(x)),
    "npu_add_rms_norm_dynamic_quant(Tensor x1, Tensor x2, Tensor gamma, *, Tensor? beta=None,"
    " float epsilon=1e-06) -> (Tensor, Tensor, Tensor, Tensor, Tensor)":
        lambda x, *rest, **options: (_int8(x), _int8(x), like(x), _by_token(x), _by_token(x)),
}  # fmt: skip

_library = torch.library.Library("npu", "DEF")


def register() -> None:
    """Defines the operators and puts their dispatcher entries into `TABLE`, in place of the functions."""
    for schema, meta in _SCHEMAS.items():
        name = schema.split("(")[0]
        _library.define(schema)
        _library.impl(name, TABLE[name], "PrivateUse1")
        _library.impl(name, meta, "Meta")
        TABLE[name] = getattr(torch.ops.npu, name)
