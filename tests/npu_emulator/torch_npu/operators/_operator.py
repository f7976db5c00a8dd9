# SPDX-License-Identifier: Apache-2.0
"""How an operator is written here: a function on CPU aliases of npu tensors, decorated with `operator`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .. import _emulator
from .._emulator import EventKind

# torch_npu's own operators by name: what becomes torch_npu.NAME.
TABLE: dict[str, Callable] = {}


def operator(
    function: Callable | None = None, *, namespace: str = "npu", name: str | None = None
) -> Callable:
    """One launch on the device, whatever `function` does inside; recorded when a graph is captured.

    Operators of the namespace npu go to `TABLE`, unless they are a variant of another one, named by `name`.
    """
    if function is None:
        return functools.partial(operator, namespace=namespace, name=name)
    full_name = f"{namespace}::{name or function.__name__}"

    @functools.wraps(function)
    def launch(*args: Any, **kwargs: Any) -> Any:
        return launch_operator(full_name, function, args, kwargs)

    if namespace == "npu" and name is None:
        TABLE[function.__name__] = launch
    return launch


def launch_operator(name: str, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    record = _emulator.recording() or _emulator.updating()
    if not record:
        _emulator.check_stream_runs(name)
        _emulator.counters_add(EventKind.LAUNCH, name)
    _emulator.enter_operator()
    try:
        if record:
            from ..npu.graphs import record_operator

            return record_operator(name, function, args, kwargs)
        return function(*args, **kwargs)
    finally:
        _emulator.leave_operator()


def no_launch(function: Callable) -> Callable:
    """For names of torch_npu that start nothing on the device, or only operators that count themselves."""
    TABLE[function.__name__] = function
    return function


# Every operator reads through `cpu` and returns through `npu`.
cpu = _emulator.as_cpu


def npu(result: torch.Tensor) -> torch.Tensor:
    """The result on the device; in the graph's pool while one is captured."""
    if not _emulator.capturing():
        return _emulator.as_npu(result)
    in_pool = _emulator.pool_empty_like(result)
    cpu(in_pool).copy_(result)
    return in_pool


def require_npu(name: str, *values: Any) -> None:
    """Raises if one of `values` is a tensor of the host; numbers wrapped in a tensor are welcome anywhere."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.dim() > 0 and value.device.type != "npu":
            raise RuntimeError(f"{name}: expected an npu tensor, got one on {value.device}")


def host_ints(values: Any) -> list[int] | None:
    """A list of int from a list or a host tensor."""
    if values is None:
        return None
    return [int(value) for value in (values.tolist() if isinstance(values, torch.Tensor) else values)]


def refuse(name: str, **options: Any) -> None:
    """Raises if an option that is not emulated is in use."""
    used = [key for key, value in options.items() if value is not None and value is not False]
    if used:
        raise NotImplementedError(f"{name}: the NPU emulator does not support {', '.join(used)}")
