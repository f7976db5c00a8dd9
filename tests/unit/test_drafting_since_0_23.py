# SPDX-License-Identifier: Apache-2.0
"""What vllm-ascend 0.23.0 does differently from the hosts that the draft loop was written on."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ascend_specpatch import aliases  # noqa: E402
from ascend_specpatch.edits import Edit  # noqa: E402
from ascend_specpatch.patches.since_0_23.spec_decode import base_proposer  # noqa: E402
from ascend_specpatch.patches.since_0_23.spec_decode.base_proposer import ProposerBase  # noqa: E402

State = enum.Enum("State", "ChunkedPrefill SpecDecoding")


@dataclass
class Metadata:
    seq_lens_cpu: Any
    _seq_lens_cpu: Any
    seq_lens: Any = None
    positions: Any = "the target's"
    attn_state: Any = State.SpecDecoding
    query_start_loc: Any = torch.tensor([0, 4, 8])  # noqa: RUF009 - never written to
    block_table_tensor: Any = torch.arange(3)  # noqa: RUF009 - with a row of padding

    def replace(self, **changes: Any) -> Metadata:
        return replace(self, **changes)


class Proposer(ProposerBase):
    def __init__(self, parallel: bool = False, extra: bool = False) -> None:
        self.max_model_len, self.parallel_drafting = 8, parallel
        self.needs_extra_input_slots = extra
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=9))
        self.positions = torch.arange(7, 11)
        self._cos, self._sin = torch.zeros(2, 4, 1, 1, 2), torch.zeros(2, 4, 1, 1, 2)

    def _get_positions(self, count: int) -> torch.Tensor:
        return self.positions[:count]

    def set_inputs_first_pass(self, *arguments: Any) -> tuple[int, str, Any, None]:
        return 3, "rows", arguments[-2], None


@pytest.mark.parametrize(
    ("public", "private", "lengths"),
    [
        pytest.param(None, [5, 7], [5, 7], id="asynchronous"),
        pytest.param([5, 7], [5, 7], [5, 7], id="synchronous"),
        pytest.param([5, 7], None, [5, 7], id="without-the-private-field"),
    ],
)
def test_lengths_on_the_host_are_in_one_field(
    public: list[int] | None, private: list[int] | None, lengths: list[int]
) -> None:
    """The loop advances one field for each pass; attention must not find another in the other."""
    *inputs, metadata = Proposer()._inputs_of_first_pass(Metadata(public, private), None)
    assert inputs == [3, "rows"]
    assert (metadata.seq_lens_cpu, metadata._seq_lens_cpu) == (lengths, None)


def test_lengths_of_parallel_drafting_are_not_asked_of_the_device() -> None:
    _, _, metadata = Proposer(parallel=True)._inputs_of_first_pass(
        Metadata([5, 7], None, seq_lens="npu"), None
    )
    assert metadata.seq_lens == [5, 7]
    _, _, metadata = Proposer()._inputs_of_first_pass(Metadata([5, 7], None, seq_lens="npu"), None)
    assert metadata.seq_lens == "npu"


def test_positions_end_with_the_drafting_model() -> None:
    """It has room for 8 tokens, the target for more."""
    proposer = Proposer()
    proposer._inputs_of_first_pass(Metadata([5, 7], None), None)
    assert proposer.positions.tolist() == [7, 0, 0, 10]  # of the three rows of the pass


@pytest.mark.parametrize("extra", [True, False])
def test_attention_is_told_what_grew(extra: bool) -> None:
    """The host leaves the positions of the target, whose rows are the drafting model's where none was added,
    and its state, in which a request may be taken to have one row."""
    proposer = Proposer(extra=extra)
    _, _, metadata = proposer._inputs_of_first_pass(Metadata([5, 7], None), None)
    assert metadata.positions is (proposer.positions if extra else Metadata.positions)
    assert metadata.attn_state is (State.ChunkedPrefill if extra else State.SpecDecoding)


def test_the_block_table_ends_with_the_queries() -> None:
    """vLLM computes the slots of a draft model for as many requests as the table has rows."""
    _, _, metadata = Proposer()._inputs_of_first_pass(Metadata([5, 7], None), None)
    assert metadata.block_table_tensor.tolist() == [0, 1]


def _mla(shared: torch.Tensor) -> Any:
    return SimpleNamespace(decode=SimpleNamespace(cos=shared[0], sin=shared[1]))


def test_every_pass_reads_its_own_angles_from_the_addresses_that_a_dummy_run_captured() -> None:
    proposer, shared = Proposer(), torch.zeros(2, 3, 1, 1, 2)
    captured, built = [_mla(shared) for _ in range(2)], [_mla(shared) for _ in range(2)]
    for step, metadata in enumerate(captured):
        proposer._read_own_rotary(metadata, step)
    for step, metadata in enumerate(built):
        shared.fill_(step + 1)  # each build writes to the same buffer
        proposer._detach(metadata, step)
    shared.fill_(9)
    for step in range(2):
        for angles in ("cos", "sin"):
            read, filled = (getattr(found[step].decode, angles) for found in (captured, built))
            assert read.data_ptr() == filled.data_ptr()
            assert read.eq(step + 1).all()
            assert read.shape == shared[0].shape


def test_attention_without_angles_in_its_metadata_is_left_alone() -> None:
    for metadata in (SimpleNamespace(), SimpleNamespace(decode=None)):
        before = vars(metadata).copy()
        Proposer()._detach(metadata, 0)
        Proposer()._read_own_rotary(metadata, 0)
        assert vars(metadata) == before


class _HostPadded:
    def prepare_next_token_ids_padded(self, sampled: Any, requests: Any, batch: Any, *rest: Any) -> Any:
        """What the host takes where nothing valid was sampled."""
        return [
            requests[name][n - 1] for name, n in zip(batch.req_ids, batch.num_tokens_no_spec, strict=True)
        ]


class _PaddedProposer(ProposerBase, _HostPadded):
    def __init__(self, lengths: list[int]) -> None:
        self.runner = SimpleNamespace(optimistic_seq_lens_cpu=torch.tensor([*lengths, 0, 0]))


def test_a_prompt_that_a_step_ends_in_goes_on_with_its_next_token() -> None:
    """Request a has 6 tokens of its 9 in the KV cache, b all 4 and one that was sampled after them."""
    requests = {"a": list("abcdefghi"), "b": list("wxyzs")}
    batch = SimpleNamespace(
        num_reqs=2, req_ids=["a", "b"], vocab_size=9, num_tokens_no_spec=np.array([9, 5, 7, 7])
    )
    found = _PaddedProposer([6, 4]).prepare_next_token_ids_padded(None, requests, batch, None, 0)
    assert found == ["g", "s"]
    assert batch.num_tokens_no_spec.tolist() == [9, 5, 7, 7]


class _HostDrafting:
    def _run_merged_draft(self, num_input_tokens: int, batch_size: int, is_prefill: Any = None) -> Any:
        return num_input_tokens, batch_size, is_prefill


class _DraftingProposer(ProposerBase, _HostDrafting):
    def __init__(self, method: str = "mtp") -> None:
        self.method, self.pcp_size, self.dcp_size = method, 1, 1
        self.use_sparse = self.use_compress = False
        self.speculative_config = SimpleNamespace(use_step3p5_mtp=lambda: False)


@pytest.mark.parametrize(
    ("method", "on_310p", "hosts"), [("mtp", False, False), ("dflash", False, True), ("mtp", True, True)]
)
def test_what_the_loop_does_not_know_the_host_drafts(
    monkeypatch: pytest.MonkeyPatch, method: str, on_310p: bool, hosts: bool
) -> None:
    for name, members in {
        "vllm_ascend": {},
        "vllm_ascend.ascend_config": {
            "get_ascend_config": lambda: SimpleNamespace(enable_reduce_sample=False)
        },
        "vllm_ascend.utils": {"is_310p": lambda: on_310p},
    }.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**members))
    proposer = _DraftingProposer(method)
    assert proposer._host_drafts is hosts
    if hosts:  # by name, and as the function for 310P does, which calls the one whose place it took
        assert proposer._run_merged_draft(num_input_tokens=8, batch_size=2) == (8, 2, None)
        assert proposer._run_merged_draft(8, 2, True) == (8, 2, True)


def test_requests_are_discarded_as_the_device_can(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_specpatch.patches.since_0_23.spec_decode import next_token_ids

    operator = SimpleNamespace(index_fill=lambda *arguments: "filled as the device can")
    for name, members in {
        "vllm_ascend": {},
        "vllm_ascend.device": {},
        "vllm_ascend.device.device_op": {"DeviceOperator": operator},
        "ascend_specpatch.kernels.prepare_next_token_padded": {
            "prepare_next_token_padded": lambda sampled, discarded, *others: discarded
        },
    }.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**members))
    monkeypatch.setattr(next_token_ids, "backups", lambda *arguments: None)
    monkeypatch.setattr(next_token_ids, "places_of_next_tokens", lambda *arguments: None)
    found = next_token_ids.prepare_next_token_ids_padded(
        SimpleNamespace(), torch.zeros(2, 4), {}, SimpleNamespace(vocab_size=9), torch.tensor([1, 0]), 1
    )
    assert found == "filled as the device can"


def test_it_can_be_applied_again_after_it_was_taken_back() -> None:
    host: Any = ModuleType("host_of_proposers")
    base = type("AscendSpecDecodeBaseProposer", (), {"__module__": host.__name__})
    eagle = type("AscendEagleProposer", (base,), {"__module__": host.__name__})
    host.AscendSpecDecodeBaseProposer, host.AscendEagleProposer = base, eagle
    for _ in range(3):
        edit = Edit("spec_decode.base_proposer", host)
        base_proposer.apply(edit)
        aliases.rebind(edit, (host.__name__,))
        assert issubclass(eagle, ProposerBase)
        assert host.AscendSpecDecodeBaseProposer is eagle.__bases__[0] is not base
        edit.undo()
        assert host.AscendSpecDecodeBaseProposer is eagle.__bases__[0] is base
