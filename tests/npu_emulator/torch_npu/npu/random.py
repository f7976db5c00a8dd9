# SPDX-License-Identifier: Apache-2.0
"""Random numbers: one generator a device, which draws what a CPU generator of that seed draws."""

from __future__ import annotations

import torch

from .. import _emulator
from .device import DeviceLike, device_count, index_of

default_generators: list[
    torch.Generator
] = []  # torch_npu fills it at its lazy initialisation, which there is not


def _generator(device: DeviceLike = None) -> torch.Generator:
    return _emulator.default_generator(index_of(device))


def manual_seed(seed: int) -> None:
    _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        _generator(index).manual_seed(int(seed))


def initial_seed() -> int:
    return _generator().initial_seed()


def seed() -> int:
    return _generator().seed()


def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    return _generator(device).get_state()


def set_rng_state(state: torch.Tensor, device: DeviceLike = None) -> None:
    _generator(device).set_state(state)
