# SPDX-License-Identifier: Apache-2.0
"""Which implementation a launcher runs, on how many programs, and how a launcher stands in for a kernel."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal

# Programs a multiprocessor of a GPU is given at most: as many as it can hold at a time. A core of an NPU runs
# one.
_PROGRAMS_PER_SM = 32

# Draft positions that a GPU looks at at once, at least: a warp finds the least of 32 numbers in one
# instruction.
_MIN_POSITIONS = 32

# Draft tokens of a request at most, as in vLLM.
MAX_SPEC_LEN = 128


@functools.cache
def implementation() -> Literal["triton", "torch", "upstream"]:
    """What runs: ``ASCEND_SPECPATCH_KERNELS`` decides, else whether Triton can run here.

    Raises:
        RuntimeError: Triton is asked for where vLLM finds none.
    """
    from vllm.triton_utils import HAS_TRITON

    from ascend_specpatch.settings import current

    choice = current().kernels
    if choice == "triton" and not HAS_TRITON:
        raise RuntimeError(
            "ASCEND_SPECPATCH_KERNELS=triton, but vLLM finds no usable Triton in this process: install "
            "triton-ascend, or unset the variable to use the torch implementations"
        )
    return choice or ("triton" if HAS_TRITON else "torch")


def use_triton() -> bool:
    """Whether launchers run their Triton kernel; else their torch reference."""
    return implementation() == "triton"


@functools.cache
def _device() -> tuple[bool, int]:
    """Whether this process uses an NPU, and how many cores its device has."""
    from vllm.triton_utils import triton

    driver = triton.runtime.driver.active
    properties = driver.utils.get_device_properties(driver.get_current_device())
    if driver.get_current_target().backend == "npu":
        return True, int(properties["num_vectorcore"])
    return False, int(properties["multiprocessor_count"])


def vector_cores() -> int:
    """Vector cores of the NPU, multiprocessors of the GPU that this process uses."""
    return _device()[1]


def on_npu() -> bool:
    return _device()[0]


def positions(width: int) -> int:
    """How many of a request's draft positions are looked at at once: on a GPU, which would wait for each, all
    `width` of them; on an NPU, which has less to do so, 0: one by one."""
    from vllm.triton_utils import triton

    return 0 if on_npu() else max(_MIN_POSITIONS, triton.next_power_of_2(width))


def programs(items: int, per_sm: int = _PROGRAMS_PER_SM) -> int:
    """How many programs share `items` pieces of work, each striding over them: never more than the device
    runs at a time, so never more than the 65,535 that an NPU can launch."""
    npu, cores = _device()
    return min(items, cores if npu else cores * per_sm)


# Modes of the hosts' kernels that ours have not: acceptance at given rates, sampling from a part of the
# vocabulary, acceptance by entropy, random numbers of 64 bits.
_MODES = frozenset({"SYNTHETIC_MODE", "ENABLE_REDUCE_SAMPLING", "ENTROPY_VERIFY", "USE_FP64_GUMBEL"})


class StandIn:
    """A launcher under the calling convention of the upstream kernel it stands in for.

    ``kernel[grid](*args, **options)`` calls ``launch(grid, *args, **options)``, which chooses a grid of its
    own. Where a release of a host has other arguments, or in another order, the launcher is given them by
    name. The upstream kernel runs where ``ASCEND_SPECPATCH_KERNELS=upstream``, and in modes that only it has.
    """

    __slots__ = ("_launch", "_modes", "_name", "_upstream")

    def __init__(self, launch: Callable[..., None], upstream: Any) -> None:
        arguments = list(inspect.signature(getattr(upstream, "fn", upstream)).parameters)
        self._name = f"{launch.__module__}.{launch.__name__}"
        self._launch = launch if _are_in_order(launch, arguments) else _by_name(launch, arguments)
        self._modes = _MODES.intersection(arguments)
        self._upstream = upstream

    def __getitem__(self, grid: Any) -> Any:
        if implementation() == "upstream":
            return self._upstream[grid]
        return functools.partial(self._unless_in_a_mode if self._modes else self._launch, grid)

    def _unless_in_a_mode(self, grid: Any, *args: Any, **options: Any) -> None:
        if any(options.get(mode) for mode in self._modes):
            self._upstream[grid](*args, **options)
        else:
            self._launch(grid, *args, **options)

    def __repr__(self) -> str:
        return f"<{self._name} in place of {self._upstream!r}>"


def _are_in_order(launch: Callable[..., None], arguments: list[str]) -> bool:
    """Whether what a launcher takes by position, behind the grid, is what a kernel begins with."""
    parameters = inspect.signature(launch).parameters.values()
    own = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD][1:]
    return own == arguments[: len(own)]


def _by_name(launch: Callable[..., None], arguments: list[str]) -> Callable[..., None]:
    def launch_by_name(grid: Any, *args: Any, **options: Any) -> None:
        launch(grid, **dict(zip(arguments, args, strict=False)), **options)

    return launch_by_name


def lanes_up_to(most: int, least: int = 8) -> list[int]:
    """The lengths of vectors that hold 1 to `most` elements: powers of two from `least` on."""
    lengths = [least]
    while lengths[-1] < most:
        lengths.append(2 * lengths[-1])
    return lengths
