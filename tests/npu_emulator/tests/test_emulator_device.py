# SPDX-License-Identifier: Apache-2.0
"""The device itself: where tensors may be, what they hold, and its random numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
import torch_npu


def test_tensors_say_that_they_are_on_the_npu():
    x = torch.ones(2, 3, device="npu")
    assert x.device == torch.device("npu", 0)
    assert x.is_npu
    assert x.cpu().device.type == "cpu"
    assert torch.empty(1).npu().device.type == "npu"


@pytest.mark.parametrize(
    "mix",
    [
        lambda npu, cpu: npu + cpu,
        lambda npu, cpu: torch.cat((npu, cpu)),
        lambda npu, cpu: npu.mul_(cpu),
        lambda npu, cpu: torch.where(npu > 0, cpu, npu),
        lambda npu, cpu: npu.gather(0, cpu.long()),
        lambda npu, cpu: torch.mm(npu[:, None], cpu[None]),
    ],
    ids=["add", "cat", "in_place", "where", "gather", "mm"],
)
def test_mixing_npu_and_host_tensors_raises(mix):
    with pytest.raises(RuntimeError, match="same device"):
        mix(torch.ones(3, device="npu"), torch.ones(3))


def test_mixing_two_npus_raises():
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="npu:0") + torch.ones(3, device="npu:1")


def test_host_numbers_and_host_indices_are_welcome():
    x = torch.arange(6, device="npu")
    assert (x + torch.tensor(2)).tolist() == [2, 3, 4, 5, 6, 7]
    assert x[torch.tensor([4, 1])].tolist() == [4, 1]


def test_fused_operators_refuse_host_tensors():
    with pytest.raises(RuntimeError, match="npu_swiglu: expected an npu tensor, got one on cpu"):
        torch_npu.operators.norms.npu_swiglu(torch.ones(2, 4))


def test_views_share_memory_and_operators_write_in_place():
    x = torch.zeros(4, 3, device="npu")
    row = x[1]
    row.add_(2)
    x.t()[0].fill_(5)
    assert x.tolist() == [[5, 0, 0], [5, 2, 2], [5, 0, 0], [5, 0, 0]]
    assert x.untyped_storage().data_ptr() == row.untyped_storage().data_ptr()


def test_out_arguments_that_grow_take_the_new_shape():
    out = torch.empty(0, device="npu")
    torch.add(torch.ones(2, 3, device="npu"), 1, out=out.resize_(0))
    assert out.shape == (2, 3)
    assert out.device.type == "npu"
    assert out.tolist() == [[2, 2, 2], [2, 2, 2]]


def test_results_have_the_types_that_cpu_results_have():
    number = torch.tensor(2.5, dtype=torch.float64, device="npu")
    assert (torch.ones(2, dtype=torch.float16, device="npu") * number).dtype == torch.float16
    assert (torch.ones(2, dtype=torch.int32, device="npu") / 2).dtype == torch.float32


def test_factories_honour_the_device_index():
    assert torch.arange(3, device="npu:3").device.index == 3
    assert torch.randperm(3, device="npu:2").device.index == 2
    with torch.npu.device(1):
        assert torch.ones(1, device="npu").device.index == 1
        assert torch.npu.current_device() == 1
    assert torch.npu.current_device() == 0


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(RuntimeError, match="Invalid NPU device id 8"):
        torch.npu.set_device(8)


def test_autograd_works_on_the_device():
    x = torch.tensor([1.0, 2.0], device="npu", requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_memory_is_counted_while_it_lives():
    before = torch.npu.memory_allocated()
    x = torch.empty(1 << 20, dtype=torch.uint8, device="npu")
    assert torch.npu.memory_allocated() == before + (1 << 20)
    assert torch.npu.mem_get_info()[0] == torch.npu.mem_get_info()[1] - torch.npu.memory_allocated() - 1
    del x
    assert torch.npu.memory_allocated() == before
    assert torch.npu.max_memory_allocated() >= before + (1 << 20)


SWITCHED = """
import json, torch  # which finds the backend by itself
indices = torch.tensor([1, 0])
print(json.dumps({
    "fresh": torch.empty(2, dtype=torch.int32, device="npu").tolist(),
    "zeros": torch.zeros(1, device="npu").tolist(),
    "mixed": torch.arange(2, device="npu").gather(0, indices).tolist(),
    "count": torch.npu.device_count(),
    "memory": torch.npu.mem_get_info()[1],
    "custom": hasattr(torch.ops._C_ascend, "npu_gemma_rms_norm"),
}))
"""


def test_switches_of_the_environment():
    switches = {"POISON": "1", "STRICT": "0", "DEVICE_COUNT": "3", "MEMORY": "1000000", "CUSTOM_OPS": "0"}
    environment = {**os.environ, **{f"NPU_EMU_{name}": value for name, value in switches.items()}}
    result = subprocess.run(
        [sys.executable, "-c", SWITCHED], env=environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
        "fresh": [0x7F7F7F7F, 0x7F7F7F7F],
        "zeros": [0.0],
        "mixed": [1, 0],
        "count": 3,
        "memory": 1000000,
        "custom": False,
    }


# ---------------------------------------------------------------- random numbers
def test_the_same_seed_gives_the_same_numbers():
    torch.npu.manual_seed(5)
    first = torch.rand(4, device="npu")
    torch.npu.manual_seed(5)
    assert torch.equal(first.cpu(), torch.rand(4, device="npu").cpu())
    assert torch.npu.initial_seed() == 5


def test_host_and_device_draw_from_different_generators():
    torch.manual_seed(3)  # seeds the device too
    host = torch.rand(4)
    device = torch.rand(4, device="npu").cpu()
    assert torch.equal(host, device)  # own generators of the same seed, not one generator
    torch.rand(1, device="npu")
    torch.npu.manual_seed(3)
    assert torch.equal(torch.randperm(9, device="npu").cpu(), torch.randperm(9, generator=seeded("cpu", 3)))


def seeded(device: str, seed: int) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed)


def test_generators_of_the_device_drive_its_operators():
    draws = [torch.empty(5, device="npu").exponential_(generator=seeded("npu", 7)).cpu() for _ in range(2)]
    assert torch.equal(*draws)
    generator = seeded("npu", 7)
    state = generator.get_state()
    first = torch.rand(3, device="npu", generator=generator).cpu()
    generator.set_state(state)
    assert torch.equal(first, torch.rand(3, device="npu", generator=generator).cpu())
    assert not torch.equal(first, torch.rand(3, device="npu", generator=generator).cpu())


def test_generator_state_can_be_saved_and_restored():
    state = torch.npu.get_rng_state()
    first = torch.rand(3, device="npu").cpu()
    torch.npu.set_rng_state(state, "npu:0")
    assert torch.equal(first, torch.rand(3, device="npu").cpu())


# ---------------------------------------------------------------- streams and events
def test_streams_nest_and_events_measure_time():
    stream = torch.npu.Stream()
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    start.record()
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() == stream
        stream.record_event(end)
    assert torch.npu.current_stream() == torch.npu.default_stream()
    assert end.query()
    assert start.elapsed_time(end) >= 0


def test_what_is_not_emulated_says_so():
    with pytest.raises(NotImplementedError, match="no npu_mrope"):
        torch_npu.npu_mrope(1)
    with pytest.raises(AttributeError):
        torch_npu.something_else  # noqa: B018
