# SPDX-License-Identifier: Apache-2.0
"""Which devices there are: NPU_EMU_DEVICE_COUNT Ascend 910B3, whose memory is the host's."""

from __future__ import annotations

import types
from typing import Any, TypeAlias

import torch

from .. import _emulator, switches

DeviceLike: TypeAlias = int | str | torch.device | None

device_count = _emulator.device_count
current_device = _emulator.current_device
config = types.SimpleNamespace(allow_internal_format=False)


def index_of(device: DeviceLike) -> int:
    """Index of `device`; None, or a device without an index, is the current one."""
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return current_device() if index is None else index


def set_device(device: DeviceLike) -> None:
    index = index_of(device)
    if not 0 <= index < device_count():
        raise RuntimeError(
            f"Invalid NPU device id {index}: there are {device_count()} (NPU_EMU_DEVICE_COUNT)"
        )
    _emulator.set_device(index)


class device:  # torch's name
    """Context manager that selects a device."""

    def __init__(self, device: DeviceLike) -> None:
        self.idx = index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = current_device()
        _emulator.set_device(self.idx)

    def __exit__(self, *exception: Any) -> None:
        _emulator.set_device(self.prev_idx)


def init() -> None:
    """Nothing is lazy here."""


_lazy_init = init


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


def is_available() -> bool:
    return device_count() > 0


def get_device_name(device: DeviceLike = None) -> str:
    return "Ascend910B3"


def get_device_properties(device: DeviceLike = None) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        name=get_device_name(),
        total_memory=switches.MEMORY,
        cube_core_num=20,
        vector_core_num=40,
        multi_processor_count=20,
        uuid=f"NPU-EMU-{index_of(device)}",
        major=0,
        minor=0,
    )


def get_soc_version() -> int:
    return 222  # Ascend 910B3


def get_device_capability(device: DeviceLike = None) -> None:
    """A CUDA notion: torch_npu has none either."""


def set_compile_mode(**options: Any) -> None:
    """Operators are never compiled."""


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(*args: Any) -> bool:
    return True


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    return True
