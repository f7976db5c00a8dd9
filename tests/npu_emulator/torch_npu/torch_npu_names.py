# SPDX-License-Identifier: Apache-2.0
"""Submodules of the real torch_npu that vllm-ascend imports names from."""

from __future__ import annotations

import sys
import types
from typing import Any

from . import _emulator
from .operators import kv_cache, mla


def _module(name: str, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(f"torch_npu.{name}")
    module.__dict__.update(attributes)
    module.__path__ = []  # type: ignore[attr-defined]  # submodules may be imported from it
    sys.modules[module.__name__] = module
    parent, _, leaf = module.__name__.rpartition(".")
    setattr(sys.modules[parent], leaf, module)
    return module


class _HCCLOptions:
    def __init__(self) -> None:
        self.hccl_config: dict[str, Any] = {}
        self.global_ranks_in_group: list[int] = []
        self.is_high_priority_stream = False
        self.op_timeout = None


class _ProcessGroupHCCL:
    Options = _HCCLOptions


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Profiling is not emulated: it may be switched on and records nothing."""


def install() -> None:
    _module(
        "_C",
        _weak_ref_tensor=_emulator.weak_reference,
        _NPUTaskGroupHandle=type("_NPUTaskGroupHandle", (), {}),
    )
    _module("_C._distributed_c10d", ProcessGroupHCCL=_ProcessGroupHCCL)
    _module("op_plugin")
    _module("op_plugin.atb")
    _module("op_plugin.atb._atb_ops", _register_atb_extensions=_nothing)
    _module("atb", npu_ring_mla=mla.npu_ring_mla, npu_paged_cache_load=kv_cache.npu_paged_cache_load)
    _module("_inductor")
    _module(
        "profiler",
        profile=None,
        tensorboard_trace_handler=_nothing,
        _ExperimentalConfig=_nothing,
        ExportType=types.SimpleNamespace(Text="text"),
        ProfilerLevel=types.SimpleNamespace(Level1=1),
        AiCMetrics=types.SimpleNamespace(AiCoreNone=0),
        ProfilerActivity=types.SimpleNamespace(CPU="CPU", NPU="NPU"),
    )
    _module("profiler.dynamic_profile", init=_nothing, step=_nothing, start=_nothing)
