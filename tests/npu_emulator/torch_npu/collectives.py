# SPDX-License-Identifier: Apache-2.0
"""The hccl backend of torch.distributed: gloo, on the memory of npu tensors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from . import _emulator


def _create_hccl(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    return _emulator.make_hccl(dist.ProcessGroupGloo(store, rank, size, timeout=timeout))


def _comm_name(backend: Any, rank: int, init_comm: bool = True) -> str:
    return f"hccl_{id(backend)}"


def register() -> None:
    dist.is_hccl_available = lambda: True
    if not dist.is_available() or "HCCL" in dist.Backend._plugins:
        return
    dist.Backend.register_backend("hccl", _create_hccl, devices=["npu"])
    from torch._C._distributed_c10d import Backend

    Backend.get_hccl_comm_name = _comm_name
