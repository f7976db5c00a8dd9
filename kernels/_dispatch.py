# SPDX-License-Identifier: Apache-2.0
"""Which implementation a launcher runs, and on how many cores."""

from __future__ import annotations

import functools


@functools.cache
def use_triton() -> bool:
    """Whether launchers run their Triton kernel: ``ASCEND_SPECPATCH_KERNELS`` decides, else whether Triton
    can run here."""
    from vllm.triton_utils import HAS_TRITON

    from ascend_specpatch.settings import current

    choice = current().kernels
    if choice is None:
        return bool(HAS_TRITON)
    if choice == "triton" and not HAS_TRITON:
        raise RuntimeError(
            "ASCEND_SPECPATCH_KERNELS=triton, but vLLM finds no usable Triton in this process: install "
            "triton-ascend, or unset the variable to use the torch implementations"
        )
    return choice == "triton"


@functools.cache
def vector_cores() -> int:
    """Vector cores of the NPU this process uses; each runs one program of a vector kernel at a time."""
    import torch
    from vllm.triton_utils import triton

    return int(
        triton.runtime.driver.active.utils.get_device_properties(torch.npu.current_device())["num_vectorcore"]
    )
