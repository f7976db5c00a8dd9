# SPDX-License-Identifier: Apache-2.0
"""Memory statistics. Results of ATen operators lie in memory of PyTorch's CPU allocator, not counted here."""

from __future__ import annotations

from .. import _emulator, switches
from .device import DeviceLike


class NPUPluggableAllocator:
    def __init__(self, *args: object) -> None:
        raise RuntimeError("the NPU emulator has no pluggable allocator: do not enable vLLM's sleep mode")


class MemPool:
    def __init__(self, *args: object) -> None:
        raise RuntimeError("the NPU emulator has no memory pools: do not enable vLLM's sleep mode")


def empty_cache() -> None:
    """Nothing is cached outside graph pools, which keep their memory."""


def memory_allocated(device: DeviceLike = None) -> int:
    return _emulator.memory_allocated()


def max_memory_allocated(device: DeviceLike = None) -> int:
    return _emulator.max_memory_allocated()


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    _emulator.reset_max_memory_allocated()


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    return {
        "allocated_bytes.all.peak": max_memory_allocated(),
        "allocated_bytes.all.current": memory_allocated(),
        "reserved_bytes.all.current": memory_reserved(),
        "num_alloc_retries": 0,
    }


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    # One byte less: vLLM takes equal amounts before and after profiling for memory that others freed.
    return switches.MEMORY - memory_allocated() - 1, switches.MEMORY
