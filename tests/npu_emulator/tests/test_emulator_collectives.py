# SPDX-License-Identifier: Apache-2.0
"""hccl between two processes, eager and in graphs."""

from __future__ import annotations

import multiprocessing
import socket
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_npu.counters import record


def exchange(rank: int) -> dict[str, Any]:
    """Every collective once, on a tensor of 1, 2 of rank 0 and of 2, 4 of rank 1."""
    own = torch.tensor([1.0, 2.0], device="npu") * (rank + 1)
    total, shared = own.clone(), own.clone()
    gathered, scattered, swapped = (torch.empty(size, device="npu") for size in (4, 1, 2))
    lists = [torch.empty(2, device="npu") for _ in range(2)]
    with record() as counts:
        dist.all_reduce(total)
        dist.all_gather_into_tensor(gathered, own)
        dist.reduce_scatter_tensor(scattered, own)
        dist.broadcast(shared, src=1)
        dist.all_gather(lists, own)
        dist.all_to_all_single(swapped, own)
        dist.barrier()
    return {
        "names": counts.names,
        "copies": counts.device_to_host.count + counts.host_to_device.count,
        "device": own.device.index,
        "total": total.tolist(),
        "gathered": gathered.tolist(),
        "scattered": scattered.tolist(),
        "shared": shared.tolist(),
        "lists": [tensor.tolist() for tensor in lists],
        "swapped": swapped.tolist(),
    }


def replay(rank: int) -> dict[str, Any]:
    """A graph that reduces, replayed on two inputs."""
    x = torch.ones(2, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        partial = x * (rank + 1)
        dist.all_reduce(partial)
        result = partial + 1
    replays = []
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        replays.append(result.tolist())
    return {"graph": graph.names(), "replays": replays}


def run_rank(rank: int, port: int, results: Connection) -> None:
    torch.npu.set_device(rank)
    dist.init_process_group("hccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    results.send({"backend": dist.get_backend(), **exchange(rank), **replay(rank)})
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    """What each of two processes saw."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    fork = multiprocessing.get_context("fork")  # importing torch twice more would cost seconds
    ends = [fork.Pipe(duplex=False) for _ in range(2)]
    processes = [
        fork.Process(target=run_rank, args=(rank, port, sender)) for rank, (_, sender) in enumerate(ends)
    ]
    for process in processes:
        process.start()
    try:
        return [receiver.recv() if receiver.poll(60) else {} for receiver, _ in ends]
    finally:
        for process in processes:
            process.join(10)
            process.kill()


@pytest.mark.parametrize("rank", [0, 1])
def test_two_processes_exchange_npu_tensors(results, rank):
    result = results[rank]
    assert result["backend"] == "hccl"
    assert result["device"] == rank
    assert result["total"] == [3.0, 6.0]
    assert result["gathered"] == [1.0, 2.0, 2.0, 4.0]
    assert result["scattered"] == [[3.0], [6.0]][rank]
    assert result["shared"] == [2.0, 4.0]
    assert result["lists"] == [[1.0, 2.0], [2.0, 4.0]]
    assert result["swapped"] == [[1.0, 2.0], [2.0, 4.0]][rank]


def test_collectives_are_launches_and_copy_nothing_to_the_host(results):
    assert results[0]["names"] == [
        "hccl::allreduce",
        "hccl::_allgather_base",
        "hccl::_reduce_scatter_base",
        "hccl::broadcast",
        "hccl::allgather",
        "hccl::alltoall_base",
    ]
    assert results[0]["copies"] == 0


def test_collectives_are_part_of_graphs(results):
    for result in results:
        assert result["graph"] == ["aten::mul", "hccl::allreduce", "aten::add"]
        assert result["replays"] == [[4.0, 4.0], [16.0, 16.0]]
