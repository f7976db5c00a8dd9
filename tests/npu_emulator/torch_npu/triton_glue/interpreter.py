# SPDX-License-Identifier: Apache-2.0
"""Stock Triton looking like triton-ascend, its kernels run by Triton's interpreter (NPU_EMU_TRITON=1)."""

from __future__ import annotations

import functools
import os
import sys
import types
from typing import Any

import numpy as np
import torch

from .launching import launch_kernel


class _Utils:
    @staticmethod
    def get_device_properties(device: int) -> dict[str, int]:
        return {"num_aicore": 20, "num_vectorcore": 40, "max_shared_mem": 192 * 1024}  # Ascend 910B3


class _Driver:
    """The one active driver, which vLLM asks for before it uses Triton."""

    utils = _Utils()

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(backend="npu", arch="Ascend910B3", warp_size=0)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("npu", 0)

    def get_benchmarker(self) -> Any:
        raise RuntimeError("times of an interpreter say nothing: do not autotune on the NPU emulator")


def _replace_driver() -> None:
    import triton.backends
    from triton.runtime.driver import driver

    triton.backends.backends.clear()
    triton.backends.backends["npu"] = types.SimpleNamespace(compiler=None, driver=_Driver)
    driver.set_active(_Driver())


def _launch_as_operator() -> None:
    """The interpreter copies tensors to the host and back; aliases need no copy, and graphs record them."""
    from triton.runtime.interpreter import GridExecutor

    run = GridExecutor.__call__

    @functools.wraps(run)
    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.pop("warmup", False):
            return
        launch_kernel(self.fn.__name__, functools.partial(run, self), args, kwargs)

    GridExecutor.__call__ = launch


def _take_flags() -> None:
    """Triton 3.6's interpreter puts a bool among the arguments into an int32, for which int1 has no room."""
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._implicit_cvt

    @functools.wraps(convert)
    def converting(arg: Any) -> Any:
        if isinstance(arg, bool):
            return tl.tensor(interpreter.TensorHandle(np.array([arg]), tl.int1), tl.int1)
        return convert(arg)

    interpreter._implicit_cvt = converting


# ---------------------------------------------------------------- triton-ascend's extensions of the language
def _number(value: Any) -> int:
    """Of a constexpr, an interpreter's scalar or an int."""
    value = getattr(value, "value", value)
    handle = getattr(value, "handle", None)
    return int(value) if handle is None else int(handle.data.item())


def _tensor(array: Any, like: Any) -> Any:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    array, scalar = np.asarray(array), like.dtype.scalar
    handle = TensorHandle(array if array.ndim else array.reshape(1), like.handle.dtype)
    return tl.core.tensor(handle, tl.core.block_type(scalar, list(array.shape)) if array.ndim else scalar)


def _slices(offsets: Any, sizes: Any, strides: Any) -> tuple[slice, ...]:
    numbers = ((_number(o), _number(n), _number(s)) for o, n, s in zip(offsets, sizes, strides, strict=True))
    return tuple(slice(offset, offset + size * stride, stride) for offset, size, stride in numbers)


def get_element(source: Any, indices: Any, **options: Any) -> Any:
    return _tensor(source.handle.data[tuple(_number(index) for index in indices)], source)


def extract_slice(source: Any, offsets: Any, sizes: Any, strides: Any, **options: Any) -> Any:
    return _tensor(source.handle.data[_slices(offsets, sizes, strides)].copy(), source)


def insert_slice(source: Any, part: Any, offsets: Any, sizes: Any, strides: Any, **options: Any) -> Any:
    array = source.handle.data.copy()
    array[_slices(offsets, sizes, strides)] = part.handle.data
    return _tensor(array, source)


def _add_language_extensions() -> None:
    import triton.language.extra as extra

    cann = types.ModuleType("triton.language.extra.cann")
    extension = types.ModuleType("triton.language.extra.cann.extension")
    for module in (cann, extension):
        module.__path__ = []  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module
    extension.__dict__.update(get_element=get_element, extract_slice=extract_slice, insert_slice=insert_slice)
    cann.extension = extension  # type: ignore[attr-defined]
    extra.cann = cann


def install() -> None:
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are decorated, and by child processes
    _replace_driver()
    _launch_as_operator()
    _take_flags()
    _add_language_extensions()
