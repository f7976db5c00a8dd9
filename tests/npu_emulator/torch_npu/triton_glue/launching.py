# SPDX-License-Identifier: Apache-2.0
"""A Triton launch as an operator of the device: counted once, recorded in graphs, run on CPU aliases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import switches
from ..operators._operator import cpu, launch_operator


def _to_host(value: Any, where: str) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if switches.STRICT and value.device.type != "npu":
        raise ValueError(f"Pointer argument ({where}) cannot be accessed from Triton (cpu tensor?)")
    return cpu(value)


def launch_kernel(name: str, run: Callable, args: tuple, kwargs: dict[str, Any]) -> None:
    """Calls `run` with CPU aliases in place of the npu tensors."""

    def on_host(*args: Any, **kwargs: Any) -> None:
        run(
            *(_to_host(arg, f"at {index}") for index, arg in enumerate(args)),
            **{key: _to_host(value, key) for key, value in kwargs.items()},
        )

    launch_operator(f"triton::{name}", on_host, args, kwargs)
