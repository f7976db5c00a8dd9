# SPDX-License-Identifier: Apache-2.0
"""Counters: exact numbers on small programs."""

from __future__ import annotations

import threading

import pytest
import torch
import torch_npu
from torch_npu.counters import EventKind, Total, record


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(6.0, device="npu").view(2, 3)


def test_operators_count_once_and_views_do_not(x):
    with record() as counts:
        y = (x @ x.t()).relu()
        y.view(4).t()[1:3].unsqueeze(0).expand(2, 2).permute(1, 0).detach().as_strided((1,), (1,))
        y[0, 1].add_(1)
        torch.empty(3, device="npu").resize_(5)
    assert counts.names == ["aten::mm", "aten::relu", "aten::add"]
    assert counts.launches == 3
    assert counts.device_to_host.count == counts.host_to_device.count == counts.synchronizations == 0


def test_factories_count_what_they_launch():
    with record() as counts:
        torch.zeros(2, device="npu")
        torch.arange(2, device="npu")
        torch.rand(2, device="npu")
        torch.empty(2, device="npu")
    assert counts.names == ["aten::zero_", "aten::arange", "aten::uniform_"]


def test_fused_operators_count_as_one_launch_whatever_they_do_inside(x):
    gamma = torch.ones(3, device="npu")
    with record() as counts:
        torch_npu.npu_rms_norm(x, gamma)
        torch.ops.npu.npu_rms_norm(x, gamma)
        torch.ops._C_ascend.npu_gemma_rms_norm(x, gamma)
        torch_npu.npu_format_cast(x, 29)
    assert counts.by_name == {"npu::npu_rms_norm": 2, "_C_ascend::npu_gemma_rms_norm": 1}
    assert counts.launches == 3


def test_copies_are_told_apart_by_direction_and_by_whether_the_host_waits(x):
    host = torch.zeros(2, 3)
    with record() as counts:
        x.cpu()
        x.to("cpu", non_blocking=True)
        host.copy_(x[:1], non_blocking=True)
        x.tolist()
        x.copy_(host)
        x[0].copy_(host[0], non_blocking=True)
        torch.tensor([1, 2, 3], device="npu")
        x.clone()
    assert counts.device_to_host.blocking == Total(2, 48)
    assert counts.device_to_host.non_blocking == Total(2, 48)
    assert counts.device_to_host.count == 4
    assert counts.device_to_host.bytes == 96
    assert counts.host_to_device.blocking == Total(2, 24 + 24)
    assert counts.host_to_device.non_blocking == Total(1, 12)
    assert counts.names == ["aten::copy_"]  # the clone, on the device


def test_type_changes_on_the_device_are_launches(x):
    with record() as counts:
        x.to(torch.int32)
        x.float()
        x.to("npu")
    assert counts.names == ["aten::copy_"]


@pytest.mark.parametrize(
    ("program", "copies", "names"),
    [
        (lambda x: x.sum().item(), 1, ["aten::sum"]),
        (lambda x: int(x[0, 1]), 1, []),
        (lambda x: bool((x > 2).any()), 1, ["aten::gt", "aten::any"]),
        (lambda x: x.nonzero(), 1, ["aten::nonzero"]),
        (lambda x: x[x > 2], 1, ["aten::gt", "aten::nonzero", "aten::index"]),
        (lambda x: x.masked_select(x > 2), 1, ["aten::gt", "aten::masked_select"]),
        (lambda x: x.unique(), 1, ["aten::_unique2"]),
        (lambda x: torch.equal(x, x), 1, ["aten::equal"]),
        (lambda x: x.flatten()[x[0].long()], 0, ["aten::copy_", "aten::index"]),
        (lambda x: x.masked_fill_(x > 2, 0), 0, ["aten::gt", "aten::masked_fill_"]),
        (lambda x: torch.where(x > 2, x, 0), 0, ["aten::gt", "aten::fill_", "aten::where"]),
        (lambda x: x.index_put_((x > 2,), x[0, 0]), 0, ["aten::gt", "aten::_index_put_impl_"]),
        (lambda x: x.index_put_((x > 4,), x[0, :1].expand(1)), 0, ["aten::gt", "aten::_index_put_impl_"]),
        (lambda x: x.index_put_((x > 3,), x[0, :2]), 1, ["aten::gt", "aten::_index_put_impl_"]),
        (lambda x: x[0].long().repeat_interleave(x[0].long()), 1, None),
        (lambda x: x[0].long().repeat_interleave(x[0].long(), output_size=3), 0, None),
    ],
)  # fmt: skip
def test_reads_of_values_by_the_host_are_copies(x, program, copies, names):
    with record() as counts:
        program(x)
    assert counts.device_to_host.count == copies
    assert counts.device_to_host.non_blocking.count == 0
    if names is not None:
        assert counts.names == names


def test_indices_on_the_host_are_copied_to_the_device(x):
    with record() as counts:
        x[torch.tensor([1, 0])]
        x + torch.tensor(1.0)  # a number is an argument, not a copy
    assert counts.host_to_device.blocking == Total(1, 16)
    assert counts.names == ["aten::index", "aten::add"]


def test_waits_of_the_host_are_synchronizations():
    with record() as counts:
        torch.npu.synchronize()
        torch.npu.current_stream().synchronize()
        event = torch.npu.Event()
        event.record()
        event.synchronize()
        torch.npu.current_stream().wait_event(event)
        torch.accelerator.synchronize()
    assert counts.synchronizations == 4
    assert [event.name for event in counts.events] == ["device", "stream", "event", "device"]


def test_captured_operators_are_no_launches_and_replayed_ones_are_nodes(x):
    graph = torch.npu.NPUGraph()
    gamma = torch.ones(3, device="npu")
    with record() as counts, torch.npu.graph(graph):
        y = torch_npu.npu_rms_norm(x + 1, gamma)[0]
    assert counts.launches == counts.graph_nodes == 0
    with record() as counts:
        graph.replay()
        graph.replay()
        y + 1
    assert counts.graph_replays == 2
    assert counts.graph_node_names == ["aten::add", "npu::npu_rms_norm"] * 2
    assert counts.graph_nodes == 4
    assert counts.names == ["aten::add"]
    assert counts.device_to_host.count == 0


def test_host_work_counts_nothing():
    with record() as counts:
        (torch.ones(3) + 1).sum().item()
        torch.ones(2)[torch.ones(2) > 0].tolist()
    assert counts.events == []


def test_counts_can_be_read_while_recording_and_stay_after(x):
    with record() as counts:
        x + 1
        assert counts.launches == 1
        x + 1
    x + 1
    assert counts.launches == 2


def test_recordings_nest_and_overlap(x):
    with record() as outer:
        x + 1
        with record() as inner:
            x * 2
        x - 1
    assert outer.names == ["aten::add", "aten::mul", "aten::sub"]
    assert inner.names == ["aten::mul"]
    first, second = record(), record()
    early = first.__enter__()
    x + 1
    late = second.__enter__()
    x * 2
    first.__exit__(None, None, None)
    x - 1
    second.__exit__(None, None, None)
    assert early.names == ["aten::add", "aten::mul"]
    assert late.names == ["aten::mul", "aten::sub"]


def test_an_error_in_an_operator_leaves_the_counters_usable(x):
    with record() as counts:
        with pytest.raises(RuntimeError):
            torch_npu._npu_reshape_and_cache(x, x, x, x, x)  # wrong type of slots
        x + 1
    assert counts.names[-1] == "aten::add"


def copy_to_host(x: torch.Tensor) -> torch.Tensor:
    return x.cpu()


def test_stacks_say_which_line_copies(x):
    with record(stacks=True) as counts:
        copy_to_host(x)
        x.sum().item()
        torch.npu.synchronize()
    line = copy_to_host.__code__.co_firstlineno + 1
    assert counts.where()[0] == f"{__file__}:{line} in copy_to_host: aten::copy_"
    assert "test_stacks_say_which_line_copies: aten::_local_scalar_dense" in counts.where()[1]
    copy = counts.events[0]
    assert [frame.name for frame in copy.stack][-2:] == ["test_stacks_say_which_line_copies", "copy_to_host"]
    assert len(counts.where(EventKind.SYNCHRONIZE)) == 1
    with record() as plain:
        copy_to_host(x)
    assert plain.events[0].stack is None


def test_other_threads_count_unless_they_are_left_out(x):
    with record() as everything, record(this_thread=True) as ours:
        x + 1
        thread = threading.Thread(target=copy_to_host, args=(x,))
        thread.start()
        thread.join()
    assert ours.device_to_host.count == 0
    assert everything.device_to_host.count == 1
    assert everything.launches == ours.launches == 1
    copy = everything.events[-1]
    assert copy.thread != threading.get_ident()


def test_threads_at_once_lose_nothing(x):
    def work() -> None:
        for _ in range(200):
            x + 1
            x.sum().item()

    with record(stacks=True) as counts:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts.by_name == {"aten::add": 800, "aten::sum": 800}
    assert counts.device_to_host.count == 800
    assert all("in work" in place for place in counts.where())
