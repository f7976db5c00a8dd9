# SPDX-License-Identifier: Apache-2.0
"""Triton kernels by name, for processes without Triton.

vLLM puts a placeholder where Triton cannot run, whose kernels cannot be launched; since 0.23 it launches some
all the same. Here `jit` of the placeholder gives kernels that can be subscripted with a grid and then run the
torch function of `KERNELS` that has their name: much faster than Triton's interpreter.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .launching import launch_kernel


def _compute_slot_mapping_kernel(
    grid: tuple[int, ...],
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: Tensor,
    positions: Tensor,
    block_table: Tensor,
    block_table_stride: int,
    block_size: int,
    slot_mapping: Tensor,
    *,
    TOTAL_CP_WORLD_SIZE: int,
    TOTAL_CP_RANK: int,
    CP_KV_CACHE_INTERLEAVE_SIZE: int,
    PAD_ID: int,
    BLOCK_SIZE: int,
) -> None:
    if TOTAL_CP_WORLD_SIZE != 1:
        raise NotImplementedError("_compute_slot_mapping_kernel: the NPU emulator has no context parallelism")
    slot_mapping[num_tokens:max_num_tokens] = PAD_ID
    starts, blocks = query_start_loc.tolist(), block_table.view(-1)
    for request in range(grid[0] - 1):
        tokens = slice(starts[request], starts[request + 1])
        position = positions[tokens].long()
        block = blocks[request * block_table_stride + position // block_size].long()
        slot_mapping[tokens] = (block * block_size + position % block_size).to(slot_mapping.dtype)


# kernel name -> function(grid, *args, **kwargs) on CPU aliases
KERNELS: dict[str, Callable[..., None]] = {
    function.__name__: function for function in (_compute_slot_mapping_kernel,)
}


class Kernel:
    """What `triton.jit` gives."""

    def __init__(self, function: Callable) -> None:
        self.fn = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        name = self.fn.__name__
        if name not in KERNELS:
            raise NotImplementedError(
                f"the NPU emulator has no Triton kernel {self.fn.__module__}.{name}: add it to "
                f"torch_npu/triton_glue/by_name.py, or set NPU_EMU_TRITON=1"
            )

        def launch(*args: Any, **kwargs: Any) -> None:
            launch_kernel(name, functools.partial(KERNELS[name], grid), args, kwargs)

        return launch


def _jit(function: Callable | None = None, **options: Any) -> Any:
    return Kernel if function is None else Kernel(function)


_PLACEHOLDER_MODULE = "vllm.triton_utils.importing"


class _PlaceholderFinder(importlib.abc.MetaPathFinder):
    """Waits for vLLM's placeholder to be imported, and changes its `jit`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _PLACEHOLDER_MODULE:
            return None
        sys.meta_path.remove(self)  # or it would find itself
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_change(module: types.ModuleType) -> None:
            load(module)
            placeholder = module.TritonPlaceholder
            other_decorators = placeholder._dummy_decorator
            placeholder._dummy_decorator = lambda self, name: (
                _jit if name == "jit" else other_decorators(self, name)
            )

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


def install() -> None:
    sys.meta_path.insert(0, _PlaceholderFinder())
