# SPDX-License-Identifier: Apache-2.0
"""Triton kernels: by name without Triton, and in the interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_npu.counters import record
from torch_npu.triton_glue.by_name import Kernel

CONTEXT_PARALLELISM = {"TOTAL_CP_WORLD_SIZE": 1, "TOTAL_CP_RANK": 0, "CP_KV_CACHE_INTERLEAVE_SIZE": 1}


def _compute_slot_mapping_kernel() -> None:
    """Only its name matters."""


def test_kernels_are_found_by_name_and_count_as_launches():
    slots = torch.zeros(6, dtype=torch.int32, device="npu")
    starts = torch.tensor([0, 2, 4], dtype=torch.int32).npu()
    positions = torch.tensor([3, 4, 0, 9]).npu()
    table = torch.tensor([[5, 6, 7], [1, 2, 3]], dtype=torch.int32).npu()
    with record() as counts:
        Kernel(_compute_slot_mapping_kernel)[(3,)](
            4, 6, starts, positions, table, 3, 4, slots, PAD_ID=-1, BLOCK_SIZE=8, **CONTEXT_PARALLELISM
        )
    assert slots.tolist() == [23, 24, 4, 13, -1, -1]
    assert counts.names == ["triton::_compute_slot_mapping_kernel"]
    assert counts.device_to_host.count == 0


def test_unknown_kernels_say_where_to_add_them():
    def other_kernel() -> None:
        """Never runs."""

    with pytest.raises(NotImplementedError, match=r"has no Triton kernel .*other_kernel.*NPU_EMU_TRITON=1"):
        Kernel(other_kernel)[(1,)]


def test_kernels_can_be_called_as_functions():
    assert Kernel(lambda x: x + 1)(2) == 3


INTERPRETED = """
import torch, torch_npu
import triton, triton.language as tl
from torch_npu.counters import record
import triton.language.extra.cann.extension as extension

@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask) + tl.load(y_ptr + offsets, mask)
    tl.store(out_ptr + offsets, total, mask)

@triton.jit
def slice_kernel(x_ptr, out_ptr):
    x = tl.load(x_ptr + tl.arange(0, 8))
    part = extension.extract_slice(x, [2], [4], [1])
    x = extension.insert_slice(x, part, [0], [4], [1])
    tl.store(out_ptr + tl.arange(0, 8), x)
    tl.store(out_ptr + 7, extension.get_element(x, [1]))

@triton.jit
def flag_kernel(out_ptr, flag):
    if flag:
        tl.store(out_ptr, 1 + flag)

x, y = torch.arange(10.0, device="npu"), torch.ones(10, device="npu")
out = torch.empty(10, device="npu")
with record() as counts:
    add_kernel[(3,)](x, y, out, 10, BLOCK=4)
assert out.tolist() == [i + 1.0 for i in range(10)]
assert counts.names == ["triton::add_kernel"] and counts.device_to_host.count == 0, counts
try:
    add_kernel[(3,)](x, torch.ones(10), out, 10, BLOCK=4)
    raise SystemExit("a host tensor was accepted")
except ValueError as error:
    assert "cannot be accessed from Triton" in str(error)

graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    add_kernel[(3,)](x, y, out, 10, BLOCK=4)
x.fill_(5)
graph.replay()
assert out.tolist() == [6.0] * 10 and graph.names() == ["triton::add_kernel"]

out = torch.empty(8, device="npu")
slice_kernel[(1,)](torch.arange(8.0, device="npu"), out)
assert out.tolist() == [2, 3, 4, 5, 4, 5, 6, 3], out
out = torch.zeros(2, dtype=torch.int32, device="npu")
for i, flag in enumerate((True, False)):
    flag_kernel[(1,)](out[i:], flag)
assert out.tolist() == [2, 0], out
from triton.runtime.driver import driver
assert driver.active.get_current_target().backend == "npu"
print("fine")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_kernels_run_in_the_interpreter_and_in_graphs(tmp_path: Path):
    program = tmp_path / "program.py"  # Triton reads the source of its kernels
    program.write_text(INTERPRETED)
    result = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "NPU_EMU_TRITON": "1"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "fine"
