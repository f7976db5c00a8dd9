# SPDX-License-Identifier: Apache-2.0
"""hccl between two processes, eager and in graphs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

# What each of two processes does; it prints a line of JSON.
PROGRAM = """
import json, sys
import torch, torch_npu
import torch.distributed as dist
from torch_npu.counters import record

rank = int(sys.argv[1])
torch.npu.set_device(rank)
dist.init_process_group("hccl", init_method=f"tcp://127.0.0.1:{sys.argv[2]}", rank=rank, world_size=2)
own = torch.tensor([1.0, 2.0], device="npu") * (rank + 1)
result = {"backend": dist.get_backend(), "device": own.device.index}
with record() as counts:
    total = own.clone()
    dist.all_reduce(total)
    gathered = torch.empty(4, device="npu")
    dist.all_gather_into_tensor(gathered, own)
    scattered = torch.empty(1, device="npu")
    dist.reduce_scatter_tensor(scattered, own)
    shared = own.clone()
    dist.broadcast(shared, src=1)
    lists = [torch.empty(2, device="npu") for _ in range(2)]
    dist.all_gather(lists, own)
    swapped = torch.empty(2, device="npu")
    dist.all_to_all_single(swapped, own)
    dist.barrier()
result["names"] = [name for name in counts.names if name.startswith("hccl")]
result["copies"] = counts.device_to_host.count + counts.host_to_device.count
for name in ("total", "gathered", "scattered", "shared", "swapped"):
    result[name] = globals()[name].tolist()
result["lists"] = [tensor.tolist() for tensor in lists]

x = torch.ones(2, device="npu")
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    y = x * (rank + 1)
    dist.all_reduce(y)
    z = y + 1
replays = []
for value in (1.0, 5.0):
    x.fill_(value)
    graph.replay()
    replays.append(z.tolist())
result["graph"] = graph.names()
result["replays"] = replays
print(json.dumps(result))
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_two_processes_exchange_npu_tensors(tmp_path: Path):
    program, port = tmp_path / "program.py", str(free_port())
    program.write_text(PROGRAM)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), port],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    results = [json.loads(output.splitlines()[-1]) for output, _ in outputs]
    for rank, result in enumerate(results):
        assert result["backend"] == "hccl"
        assert result["device"] == rank
        assert result["total"] == [3.0, 6.0]
        assert result["gathered"] == [1.0, 2.0, 2.0, 4.0]
        assert result["scattered"] == [[3.0], [6.0]][rank]
        assert result["shared"] == [2.0, 4.0]
        assert result["lists"] == [[1.0, 2.0], [2.0, 4.0]]
        assert result["swapped"] == [[1.0, 2.0], [2.0, 4.0]][rank]
        assert result["copies"] == 0
        assert result["names"] == [
            "hccl::allreduce", "hccl::_allgather_base", "hccl::_reduce_scatter_base", "hccl::broadcast",
            "hccl::allgather", "hccl::alltoall_base",
        ]  # fmt: skip
        assert result["graph"] == ["aten::mul", "hccl::allreduce", "aten::add"]
        assert result["replays"] == [[4.0, 4.0], [16.0, 16.0]]
