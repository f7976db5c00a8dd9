# SPDX-License-Identifier: Apache-2.0
"""Emulation of Huawei's torch_npu on a CPU, enough to run vllm-ascend.

The device named npu is a PrivateUse1 backend (C++, ``torch_npu._emulator``): host memory tagged npu, on
which every ATen operator runs its CPU kernel through aliases that copy nothing. The fused ``npu_*`` operators
are plain PyTorch. See README.md for what is faithful and what is not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NoReturn


@contextlib.contextmanager
def _without_autoload() -> Iterator[None]:
    """torch imports its device backends when it is imported: this very module, half-initialised."""
    previous = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    try:
        yield
    finally:
        if previous is None:
            del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
        else:
            os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = previous


with _without_autoload():
    import torch

__version__ = "2.9.0"


def _register_device() -> None:
    torch.utils.rename_privateuse1_backend("npu")
    from . import _emulator, npu, switches

    torch._register_device_module("npu", npu)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True,
        for_module=True,
        for_storage=True,
        for_packed_sequence=True,
        unsupported_dtype=[torch.quint8, torch.qint8],
    )
    torch.version.cann = "8.5.0"
    _emulator.set_strict(switches.STRICT)
    _emulator.set_poison(switches.POISON)


_register_device()

from . import attention_lengths, collectives, counters, npu, operators, switches, torch_npu_names  # noqa: E402

collectives.register()
torch_npu_names.install()
globals().update(operators.TABLE)

__all__ = ["attention_lengths", "counters", "npu", "operators", *operators.TABLE]

if switches.CUSTOM_OPS:
    from . import ascend_custom_ops

    ascend_custom_ops.install()

if switches.TRITON:
    from .triton_glue import interpreter

    interpreter.install()
else:
    from .triton_glue import by_name

    by_name.install()


def __getattr__(name: str) -> Any:
    if not name.startswith(("npu_", "_npu_")):
        raise AttributeError(f"module 'torch_npu' has no attribute '{name}'")

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"the NPU emulator has no {name}: add it to torch_npu/operators")

    missing.__name__ = name
    return missing


def _autoload() -> None:
    """The ``torch.backends`` entry point; importing this module does the work."""
