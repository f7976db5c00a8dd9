# SPDX-License-Identifier: Apache-2.0
"""ACL graphs: capture, replay, events, task groups, and the mistakes that hang or corrupt a device."""

from __future__ import annotations

import pytest
import torch
import torch_npu

POOL = torch.npu.graph_pool_handle()
CAUSAL_MASK = torch.ones(2048, 2048, dtype=torch.int8).triu(1).npu()


def capture(body, pool=POOL):
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, pool=pool):
        result = body()
    return graph, result


def test_capture_does_not_compute_and_replay_does():
    x, w = torch.ones(4, 3, device="npu"), torch.randn(3, 5, device="npu")
    graph, y = capture(lambda: (x @ w).relu().add_(1))
    assert (y > 1e30).all()  # poison
    address = y.data_ptr()
    for change in (lambda: x.fill_(2.0), lambda: x[1:3].mul_(3.0)):
        change()
        graph.replay()
        assert y.data_ptr() == address
        assert torch.allclose(y.cpu(), x.cpu().mm(w.cpu()).relu() + 1)


def test_fused_operators_are_recorded_with_their_addresses():
    x, gamma = torch.randn(2, 4, device="npu"), torch.ones(4, device="npu")
    graph, (y, _) = capture(lambda: torch_npu.npu_rms_norm(x, gamma))
    assert graph.names() == ["npu::npu_rms_norm"]
    x.copy_(torch.randn(2, 4))
    graph.replay()
    assert torch.equal(y.cpu(), torch_npu.npu_rms_norm(x, gamma)[0].cpu())


def test_views_are_not_recorded_and_lists_of_results_are():
    x = torch.arange(6.0, device="npu")
    graph, parts = capture(lambda: [part + 1 for part in x.view(2, 3).unbind(0)])
    assert graph.names() == ["aten::add", "aten::add"]
    graph.replay()
    assert [part.tolist() for part in parts] == [[1, 2, 3], [4, 5, 6]]
    table, (low, high) = capture(lambda: torch.aminmax(x))
    table.replay()
    assert (low.item(), high.item()) == (0.0, 5.0)


def test_factories_and_replays_in_a_row_give_the_same():
    def body():
        zeros = torch.zeros(2, dtype=torch.long, device="npu")
        return torch.arange(5, device="npu") * 2 + torch.cat([zeros, torch.full((3,), 4, device="npu")])

    graph, result = capture(body)
    for _ in range(2):
        graph.replay()
        assert result.tolist() == [0, 2, 8, 10, 12]


def test_memory_of_freed_results_serves_the_next_graph_of_the_pool():
    pool = torch.npu.graph_pool_handle()
    first, y = capture(lambda: torch.zeros(4, 5, device="npu") + 1, pool)
    weak = torch_npu._C._weak_ref_tensor(y)
    del y
    second, _ = capture(lambda: torch.zeros(4, 5, device="npu") + 7, pool)
    first.replay()
    assert (weak == 1).all()
    second.replay()
    assert not (weak == 1).any()


def test_copies_from_the_host_are_repeated_from_the_same_buffer():
    buffer, x = torch.zeros(3), torch.zeros(3, device="npu")
    graph, _ = capture(lambda: x.copy_(buffer, non_blocking=True))
    buffer.fill_(5)
    graph.replay()
    assert x.tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda x: x.sum().item(), "item"),
        (lambda x: x[x > 0], "synchronizes"),
        (lambda x: x.nonzero(), "synchronizes"),
        (lambda x: x.cpu(), "blocking copy"),
        (lambda x: torch.npu.synchronize(), "synchronize while capturing"),
        (lambda x: torch.equal(x, x), "returns a host value"),
    ],
    ids=["item", "mask", "nonzero", "cpu", "synchronize", "equal"],
)
def test_what_waits_for_the_device_cannot_be_captured(body, message):
    x = torch.ones(4, device="npu")
    with pytest.raises(RuntimeError, match=message):
        capture(lambda: body(x))
    assert not torch.npu.is_current_stream_capturing()
    assert (x + 1).tolist() == [2, 2, 2, 2]


def test_replay_of_a_graph_whose_input_was_freed_raises():
    inputs = [torch.ones(3, device="npu")]
    graph, _ = capture(lambda: inputs[0] * 2)
    graph.replay()
    inputs.clear()
    with pytest.raises(RuntimeError, match=r"1 freed tensors .*aten::mul \[3\]"):
        graph.replay()


def test_replay_needs_a_capture():
    with pytest.raises(RuntimeError, match="not captured"):
        torch.npu.NPUGraph().replay()


# ---------------------------------------------------------------- events and task groups
class AttentionGraph:
    """A graph that waits for an event and then attends, as vllm-ascend captures it."""

    def __init__(self) -> None:
        self.query = torch.randn(4, 2, 8, device="npu")
        self.key, self.value = (torch.randn(3, 128, 16, device="npu") for _ in range(2))
        self.table = torch.tensor([[0], [1]], dtype=torch.int32, device="npu")
        self.output, self.lse = torch.zeros(4, 2, 8, device="npu"), torch.empty(1, device="npu")
        self.event, self.stream = torch.npu.ExternalEvent(), torch.npu.Stream()
        self.captured_lengths = [5, 9]
        self.graph, (self.handle, self.result) = capture(self._body)

    def _options(self, kv_lens: list[int]) -> dict:
        return {
            "query": self.query, "key": self.key, "value": self.value, "block_table": self.table,
            "atten_mask": CAUSAL_MASK, "input_layout": "TND", "block_size": 128, "num_heads": 2,
            "num_key_value_heads": 2, "sparse_mode": 3, "actual_seq_lengths": [2, 4],
            "actual_seq_lengths_kv": kv_lens,
        }  # fmt: skip

    def attend(self, kv_lens: list[int]) -> torch.Tensor:
        return torch_npu.npu_fused_infer_attention_score(**self._options(kv_lens))[0].cpu()

    def attend_out(self, kv_lens: list[int]) -> None:
        torch_npu.npu_fused_infer_attention_score.out(
            **self._options(kv_lens), workspace=None, out=[self.output, self.lse]
        )

    def _body(self):
        stream = torch.npu.current_stream()
        self.event.wait(stream)
        self.event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        self.attend_out(self.captured_lengths)
        handle = torch.npu.graph_task_group_end(stream)
        return handle, self.output * 1

    def update(self, kv_lens: list[int]) -> None:
        with torch.npu.stream(self.stream):
            torch.npu.graph_task_update_begin(self.stream, self.handle)
            self.attend_out(kv_lens)
            torch.npu.graph_task_update_end(self.stream)
            self.event.record(self.stream)


@pytest.fixture
def attention() -> AttentionGraph:
    return AttentionGraph()


def test_a_replay_waits_until_its_attention_was_updated(attention):
    assert attention.graph.names() == ["WAIT", "RESET", "npu::npu_fused_infer_attention_score", "aten::mul"]
    for kv_lens in ([5, 9], [30, 77], [2, 128]):
        attention.graph.replay()
        with pytest.raises(RuntimeError, match="hang"):
            torch.npu.synchronize()
        with pytest.raises(RuntimeError, match="hang"):
            attention.query + 1
        with pytest.raises(RuntimeError, match="hang"):
            torch_npu.npu_swiglu(attention.query)
        attention.update(kv_lens)
        assert torch.equal(attention.result.cpu(), attention.attend(kv_lens))


def test_host_lists_are_read_when_the_operator_is_issued(attention):
    attention.captured_lengths[0] = 1
    attention.graph.replay()
    attention.event.record()
    assert torch.equal(attention.result.cpu(), attention.attend([5, 9]))


def test_an_event_recorded_before_the_replay_lets_it_through(attention):
    attention.event.record()
    attention.graph.replay()
    assert torch.equal(attention.result.cpu(), attention.attend([5, 9]))


def test_an_update_must_issue_the_operators_of_the_group(attention):
    torch.npu.graph_task_update_begin(attention.stream, attention.handle)
    with pytest.raises(
        RuntimeError, match=r"captured \[npu::npu_fused_infer_attention_score;\], updated with \[\]"
    ):
        torch.npu.graph_task_update_end(attention.stream)


def test_updates_without_an_out_argument_are_refused(attention):
    torch.npu.graph_task_update_begin(attention.stream, attention.handle)
    with pytest.raises(RuntimeError, match="must write to out="):
        torch_npu.npu_swiglu(attention.query)
    attention.attend_out([5, 9])
    torch.npu.graph_task_update_end(attention.stream)


def test_lengths_of_a_replay_are_recorded_and_those_of_a_capture_are_not(attention):
    with torch_npu.attention_lengths.record() as records:
        another = AttentionGraph()
        assert records == []
        another.graph.replay()
        another.update([6, 7])
    assert [record[:2] for record in records] == [([2, 2], [6, 7])]


def test_waiting_for_an_event_that_nobody_recorded_raises():
    with pytest.raises(RuntimeError, match="nobody recorded"):
        torch.npu.ExternalEvent().wait()
