# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of drafting, against slow loops that say the same one request at a time. Needs no host."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="drafting is arithmetic on tensors")

from ascend_specpatch.patches.spec_decode import next_token_ids  # noqa: E402
from ascend_specpatch.patches.spec_decode.drafting import graph, later_passes, loop  # noqa: E402
from ascend_specpatch.patches.spec_decode.drafting.first_pass import FirstPass  # noqa: E402
from ascend_specpatch.patches.spec_decode.drafting.later_passes import LaterPasses  # noqa: E402


def _jit(function: Any = None, **options: Any) -> Any:
    return function or _jit


@pytest.fixture(scope="module", autouse=True)
def _kernels_without_a_host() -> Iterator[None]:
    """Kernels run as their references, and take a Triton from vLLM all the same."""
    triton_utils = SimpleNamespace(HAS_TRITON=False, tl=None, triton=SimpleNamespace(jit=_jit))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vllm", ModuleType("vllm"))
        patch.setitem(sys.modules, "vllm.triton_utils", triton_utils)
        yield
    for name in [name for name in sys.modules if name.startswith("ascend_specpatch.kernels.")]:
        del sys.modules[name]


BLOCK = 4
State = enum.Enum("State", "PrefillNoCache DecodeOnly ChunkedPrefill SpecDecoding")


@dataclasses.dataclass
class Metadata:
    """The fields of AscendCommonAttentionMetadata that drafting reads."""

    query_start_loc: Any
    query_start_loc_cpu: Any
    seq_lens: Any
    seq_lens_cpu: Any
    num_computed_tokens_cpu: Any
    num_reqs: int
    num_actual_tokens: int
    num_input_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: Any
    slot_mapping: Any
    positions: Any
    attn_state: Any
    decode_token_per_req: int = 1
    graph_pad_size: int = -1

    def replace(self, **changes: Any) -> Metadata:
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass
class Request:
    """A request in a batch: tokens before it, tokens of this step, and how many of those were rejected."""

    computed: int
    tokens: int
    rejected: int

    @property
    def total(self) -> int:
        return self.computed + self.tokens


class Proposer(FirstPass):
    """The attributes of a proposer that drafting reads, without a host."""

    def __init__(self, k: int, max_model_len: int, *, parallel: bool = False, hidden: bool = False) -> None:
        self.num_speculative_tokens, self.max_model_len = k, max_model_len
        self.parallel_drafting, self.pass_hidden_states_to_model = parallel, hidden
        self.extra_slots_per_request = k if parallel else 1
        self.net_num_new_slots_per_request = self.extra_slots_per_request - int(hidden)
        self.needs_extra_input_slots = self.net_num_new_slots_per_request > 0
        self.kernel_block_size, self.device, self.uses_mrope = BLOCK, torch.device("cpu"), False
        self.method = "draft_model"
        self.parallel_drafting_token_id = 7777
        self.parallel_drafting_hidden_state_tensor = torch.full((2,), -5.0)
        self.max_num_tokens = 4096
        self.arange = torch.arange(self.max_num_tokens, dtype=torch.int32)
        self.input_ids = torch.full((self.max_num_tokens,), 999, dtype=torch.int32)
        self.positions = torch.full((self.max_num_tokens,), 999, dtype=torch.int64)
        self.hidden_states = torch.full((self.max_num_tokens, 2), 99.0)
        self.is_rejected_token_mask = torch.ones(self.max_num_tokens, dtype=torch.bool)
        self.is_masked_token_mask = torch.ones(self.max_num_tokens, dtype=torch.bool)

    def _get_positions(self, count: int) -> Any:
        return self.positions[:count]


def batch_of(requests: list[Request], max_model_len: int) -> tuple[Metadata, Any, Any]:
    """Metadata, token ids and positions of the target's pass over `requests`."""
    lens = torch.tensor([r.tokens for r in requests], dtype=torch.int32)
    start = torch.zeros(len(requests) + 1, dtype=torch.int32)
    start[1:] = lens.cumsum(0)
    totals = torch.tensor([r.total for r in requests], dtype=torch.int32)
    blocks = -(-max_model_len // BLOCK)
    table = torch.arange(1, len(requests) * blocks + 1, dtype=torch.int32).view(len(requests), blocks)
    positions = torch.cat([torch.arange(r.computed, r.total) for r in requests])
    metadata = Metadata(
        query_start_loc=start,
        query_start_loc_cpu=start.clone(),
        seq_lens=totals,
        seq_lens_cpu=totals.clone(),
        num_computed_tokens_cpu=totals - lens,
        num_reqs=len(requests),
        num_actual_tokens=int(start[-1]),
        num_input_tokens=int(start[-1]),
        max_query_len=int(lens.max()),
        max_seq_len=int(totals.max()),
        block_table_tensor=table,
        slot_mapping=torch.zeros(int(start[-1]), dtype=torch.int32),
        positions=positions,
        attn_state=State.ChunkedPrefill,
    )
    return metadata, torch.arange(100, 100 + int(start[-1]), dtype=torch.int32), positions


def slot_of(table: Any, request: int, position: int) -> int:
    return int(table[request, position // BLOCK]) * BLOCK + position % BLOCK


def frozen(metadata: Metadata) -> list[Any]:
    return [v.clone() if torch.is_tensor(v) else v for v in vars(metadata).values()]


def assert_untouched(metadata: Metadata, before: list[Any]) -> None:
    for now, then in zip(vars(metadata).values(), before, strict=True):
        assert torch.equal(now, then) if torch.is_tensor(now) else now == then


@st.composite
def drafted_batches(draw: Any, k: int, max_model_len: int) -> list[Request]:
    """Requests that decode k drafts, some of them rejected, among others that prefill."""
    requests = []
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            drafted = draw(st.integers(0, k))
            tokens = drafted + 1
            computed = draw(st.integers(1, max_model_len - 1 - tokens))
            requests.append(Request(computed, tokens, draw(st.integers(0, drafted))))
        else:
            tokens = draw(st.integers(1, min(12, max_model_len - 1)))
            requests.append(Request(draw(st.integers(0, max_model_len - 1 - tokens)), tokens, 0))
    return requests


@settings(deadline=None, max_examples=150)
@given(st.data(), st.integers(1, 5), st.booleans(), st.booleans())
def test_extra_slots_put_the_next_token_behind_the_valid_ones(
    data: Any, k: int, parallel: bool, hidden: bool
) -> None:
    limit = data.draw(st.sampled_from((40, 25)))  # of the drafting model; the target's is 40
    proposer = Proposer(k, limit, parallel=parallel, hidden=hidden)
    if not proposer.needs_extra_input_slots:
        return
    requests = data.draw(drafted_batches(k, 40))
    metadata, tokens, positions = batch_of(requests, 40)
    before = frozen(metadata)
    next_tokens = torch.arange(500, 500 + len(requests))
    target_hidden = torch.arange(2 * len(tokens), dtype=torch.float32).view(-1, 2)
    rejected = torch.tensor([r.rejected for r in requests], dtype=torch.int32)
    if not any(r.rejected for r in requests) and data.draw(st.booleans()):
        rejected = None

    count, to_sample, grown = proposer.set_inputs_first_pass(
        tokens, next_tokens, positions, target_hidden, None, metadata, rejected
    )

    slots, shift = proposer.extra_slots_per_request, int(hidden)
    want_ids, want_pos, want_slot, want_sample, want_hidden = [], [], [], [], []
    source = 0
    for i, r in enumerate(requests):
        kept = list(range(100 + source + shift, 100 + source + r.tokens - r.rejected))
        ids = kept + [500 + i] + [7777] * (slots - 1)
        want_sample += [len(want_ids) + len(kept) + s for s in range(slots)]
        hid = [target_hidden[source + j].tolist() for j in range(r.tokens)] + [[99.0, 99.0]] * slots
        for row in range(r.tokens + proposer.net_num_new_slots_per_request):
            live = row < len(ids)
            position = r.computed + row
            fits = live and position < limit
            want_ids.append(ids[row] if live else 0)
            want_pos.append(position if fits else 0)
            want_slot.append(slot_of(metadata.block_table_tensor, i, position) if fits else -1)
            masked = len(kept) < row < len(ids)
            want_hidden.append([-5.0, -5.0] if masked else hid[row])
        source += r.tokens
    assert count == len(want_ids)
    assert proposer.input_ids[:count].tolist() == want_ids
    assert proposer.positions[:count].tolist() == want_pos
    assert grown.slot_mapping.tolist() == want_slot
    assert to_sample.tolist() == want_sample
    if hidden:
        assert proposer.hidden_states[:count].tolist() == want_hidden
    assert proposer.input_ids[count:].eq(999).all()
    assert proposer.positions[count:].eq(999).all()

    grow = proposer.net_num_new_slots_per_request
    totals = [r.total + grow for r in requests]
    assert grown.seq_lens.tolist() == grown.seq_lens_cpu.tolist() == totals
    assert grown.query_start_loc.tolist() == grown.query_start_loc_cpu.tolist()
    assert grown.query_start_loc_cpu.diff().tolist() == [r.tokens + grow for r in requests]
    assert (grown.max_query_len, grown.max_seq_len) == (
        max(r.tokens for r in requests) + grow,
        max(totals),
    )
    assert_untouched(metadata, before)


@settings(deadline=None, max_examples=150)
@given(st.data(), st.integers(2, 5))
def test_a_later_pass_sees_all_valid_keys_and_no_rejected_one(data: Any, k: int) -> None:
    limit = data.draw(st.sampled_from((30, 18)))  # of the drafting model; the target's is 30
    proposer = Proposer(k, limit, hidden=True)
    requests = data.draw(drafted_batches(k, 30))
    metadata, _, positions = batch_of(requests, 30)
    before = frozen(metadata)
    proposer.positions[: len(positions)] = positions
    rejected = torch.tensor([r.rejected for r in requests], dtype=torch.int32)
    to_sample = metadata.query_start_loc[1:] - 1 - rejected
    if not any(r.rejected for r in requests) and data.draw(st.booleans()):
        rejected = None

    later = LaterPasses.plan(proposer, metadata, to_sample, rejected)
    assert later is not None
    passes = later.metadata(metadata)

    assert len(passes) == k - 1
    for step, common in enumerate(passes):
        written = dict.fromkeys(range(later.num_rows), -1)
        starts = common.query_start_loc_cpu.tolist()
        assert starts == common.query_start_loc.tolist()
        assert starts[-1] == common.num_actual_tokens == later.num_rows
        assert common.seq_lens.tolist() == common.seq_lens_cpu.tolist()
        for i, r in enumerate(requests):
            position = r.total - 1 - r.rejected + step + 1
            row, rows, keys = int(later.rows[step, i]), starts[i + 1] - starts[i], int(common.seq_lens_cpu[i])
            assert starts[i] <= row < starts[i + 1]
            assert rows <= keys <= limit
            if position < limit:
                # Aligned to the end, row j of n over m keys sees keys 0 .. m - n + j.
                assert keys - rows + (row - starts[i]) == position
                assert int(common.positions[row]) == position
                written[row] = slot_of(metadata.block_table_tensor, i, position)
            else:
                assert int(common.positions[row]) == 0
        assert common.slot_mapping.tolist() == list(written.values())
    assert_untouched(metadata, before)


def test_heads_are_given_no_position_behind_their_own_length() -> None:
    class Vllm:
        """Sets positions as vLLM's method does: those of the target."""

        def set_inputs_first_pass(self, tokens: Any, _next: Any, positions: Any, *others: Any) -> Any:
            self.positions[: len(tokens)] = positions
            return len(tokens), None, others[2]

    proposer = type("Both", (Proposer,), {"_vllm_base": Vllm})(3, 8, hidden=True)
    proposer.vllm_config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=64))
    proposer.set_inputs_first_pass(torch.zeros(6), None, torch.arange(4, 10), None, None, None, None)
    assert proposer.positions[:7].tolist() == [4, 5, 6, 7, 0, 0, 999]
    proposer.max_model_len = 64
    proposer.set_inputs_first_pass(torch.zeros(6), None, torch.arange(4, 10), None, None, None, None)
    assert proposer.positions[:7].tolist() == [4, 5, 6, 7, 8, 9, 999]


def test_a_batch_without_drafts_brings_one_row_a_request() -> None:
    proposer = Proposer(4, 64, hidden=True)
    metadata, _, positions = batch_of([Request(0, 9, 0), Request(3, 2, 0)], 64)
    proposer.positions[: len(positions)] = positions
    later = LaterPasses.plan(proposer, metadata, metadata.query_start_loc[1:] - 1, None)
    assert later is not None
    assert later.num_rows == 2
    assert later.rows.tolist() == [[0, 1]] * 3
    assert later.positions.tolist() == [[9, 5], [10, 6], [11, 7]]


@pytest.mark.parametrize(("k", "parallel"), [(1, False), (3, True)])
def test_nothing_is_planned_where_one_pass_drafts_all(k: int, parallel: bool) -> None:
    proposer = Proposer(k, 64, parallel=parallel)
    metadata, _, _ = batch_of([Request(0, 3, 0)], 64)
    assert LaterPasses.plan(proposer, metadata, metadata.query_start_loc[1:] - 1, None) is None


def test_with_mrope_positions_and_keys_are_told_apart() -> None:
    """Image tokens share positions: the KV of the next token still goes behind the last key."""
    proposer = Proposer(3, 64, hidden=True)
    proposer.uses_mrope = True
    mrope = torch.zeros(3, proposer.max_num_tokens, dtype=torch.int64)
    mrope[:, :10] = torch.tensor([[0, 1, 1, 1, 1, 1, 1, 2, 3, 4]] * 3)
    mrope[1, 9] = 5
    proposer._get_positions = lambda count: mrope[:, :count]  # type: ignore[method-assign]
    metadata, _, _ = batch_of([Request(0, 10, 0)], 64)
    later = LaterPasses.plan(proposer, metadata, metadata.query_start_loc[1:] - 1, None)
    assert later is not None
    assert later.positions[:, :, 0].tolist() == [[5, 6, 5], [6, 7, 6]]
    assert later.slots[:, 0].tolist() == [slot_of(metadata.block_table_tensor, 0, p) for p in (10, 11)]


def test_a_dummy_plan_writes_no_kv_and_stays_in_its_rows() -> None:
    later = LaterPasses.dummy(Proposer(3, 64), 5)
    assert later.rows.tolist() == [list(range(5))] * 2
    assert later.slots.eq(later_passes.PADDING_SLOT_ID).all()
    assert later.positions.eq(0).all()


@pytest.mark.parametrize("padding", [0, 5])
def test_padding_of_a_later_pass_stands_at_position_0_and_writes_nothing(padding: int) -> None:
    """Sparse attention takes as many angles and slots as the model has rows, and they are in the metadata."""
    proposer = Proposer(3, 64, hidden=True)
    metadata, _, positions = batch_of([Request(5, 4, 1), Request(9, 4, 3)], 64)
    proposer.positions[:8] = positions
    rejected = torch.tensor([1, 3], dtype=torch.int32)
    to_sample = metadata.query_start_loc[1:] - 1 - rejected
    alone = LaterPasses.plan(proposer, metadata, to_sample, rejected)
    later = LaterPasses.plan(proposer, metadata, to_sample, rejected, 8 + padding)
    assert alone is not None
    assert later is not None
    for common, unpadded in zip(later.metadata(metadata), alone.metadata(metadata), strict=True):
        assert (common.num_actual_tokens, common.num_input_tokens) == (8, 8 + padding)
        assert common.positions.tolist() == unpadded.positions.tolist() + [0] * padding
        assert common.slot_mapping.tolist() == unpadded.slot_mapping.tolist() + [-1] * padding


def test_every_pass_has_its_own_rotary_angles() -> None:
    """MLA's metadata has them with the decodes, that of sparse attention itself."""
    shared = torch.zeros(2)
    angles = [SimpleNamespace(cos=shared[:1], sin=shared[1:]) for _ in range(2)]
    sparse, decode = angles
    sparse.dsa_cp_context = SimpleNamespace(
        actual_seq_lengths_query=shared[:1], actual_seq_lengths_key=shared[1:]
    )
    loop._keep_own_buffers(SimpleNamespace(decode=decode))
    loop._keep_own_buffers(sparse)
    shared.fill_(9.0)
    assert [(one.cos.item(), one.sin.item()) for one in angles] == [(0.0, 0.0)] * 2
    assert all(lengths.item() == 0.0 for lengths in vars(sparse.dsa_cp_context).values())
    loop._keep_own_buffers(SimpleNamespace(decode=None, dsa_cp_context=None))  # a batch of prefills
    loop._keep_own_buffers(SimpleNamespace())  # an attention without rotary angles in its metadata


@pytest.mark.parametrize(("num_rows", "extra"), [(8, []), (16, [12, 16]), (18, [12, 16, 18]), (9, [9])])
def test_a_captured_size_is_filled_up_with_requests_without_keys(num_rows: int, extra: list[int]) -> None:
    metadata, _, _ = batch_of([Request(5, 4, 1), Request(9, 4, 0)], 64)
    before = frozen(metadata)
    full = graph.fill_up(metadata, num_rows, 4)
    assert full.query_start_loc_cpu.tolist() == [0, 4, 8, *extra]
    assert full.query_start_loc_cpu.dtype == torch.int32
    assert full.seq_lens_cpu.tolist() == [9, 13] + [0] * len(extra)
    assert (full.num_reqs, full.num_actual_tokens) == (2 + len(extra), num_rows)
    assert full.block_table_tensor.shape[0] >= full.num_reqs
    assert_untouched(metadata, before)


def test_a_graph_reads_a_plan_from_the_addresses_it_was_captured_with() -> None:
    proposer = Proposer(3, 64, hidden=True)
    proposer.runner = SimpleNamespace(max_num_reqs=6)
    proposer.slot_mapping_group = [torch.full((40,), 55, dtype=torch.int32) for _ in range(3)]
    buffers = graph.GraphBuffers(proposer)
    captured = buffers.passes(LaterPasses.dummy(proposer, 4), 16)
    assert (captured.num_rows, captured.rows.shape, captured.positions.shape) == (16, (2, 4), (2, 16))

    metadata, _, positions = batch_of([Request(5, 4, 1), Request(9, 4, 3)], 64)
    proposer.positions[:8] = positions
    rejected = torch.tensor([1, 3], dtype=torch.int32)
    plan = LaterPasses.plan(proposer, metadata, metadata.query_start_loc[1:] - 1 - rejected, rejected)
    assert plan is not None
    filled = buffers.fill(plan, 4, 16)

    # Requests that are not there are put where no request has a row.
    assert captured.rows.tolist() == [[*rows, 15, 15] for rows in plan.rows.tolist()]
    assert captured.positions[:, :8].tolist() == plan.positions.tolist()
    for step in range(2):
        address = proposer.slot_mapping_group[step + 1]
        assert filled.slots[step].data_ptr() == address.data_ptr()
        assert address.tolist() == plan.slots[step].tolist() + [-1] * 32
    assert filled.metadata(metadata)[1].slot_mapping.data_ptr() == proposer.slot_mapping_group[2].data_ptr()


def test_a_captured_size_may_hold_more_requests_than_may_run() -> None:
    proposer = Proposer(3, 64, hidden=True)
    proposer.max_num_tokens, proposer.runner = 64, SimpleNamespace(max_num_reqs=2)
    proposer.slot_mapping_group = [torch.zeros(64, dtype=torch.int32) for _ in range(3)]
    captured = graph.GraphBuffers(proposer).passes(LaterPasses.dummy(proposer, 16), 64)
    assert captured.rows.shape == (2, 16)


def test_a_full_graph_is_used_for_verified_batches_only() -> None:
    Mode = enum.Enum("CUDAGraphMode", "NONE PIECEWISE FULL")
    asked = []

    def dispatch(**arguments: Any) -> Any:
        asked.append(arguments)
        return Mode.FULL, "descriptor"

    proposer = Proposer(3, 64, hidden=True)
    proposer.use_cuda_graph = True
    proposer.runner = SimpleNamespace(
        cudagraph_batch_sizes=[8, 16, 18],  # before vLLM leaves out what is no multiple of k + 1
        cudagraph_dispatcher=SimpleNamespace(
            _bs_to_padded_graph_size=[0] + [8] * 8 + [16] * 8, dispatch=dispatch
        ),
        _sync_metadata_across_dp=lambda rows, is_draft_model: (rows, None, None),
        input_batch=SimpleNamespace(lora_id_to_lora_request={}),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vllm", ModuleType("vllm"))
        patch.setitem(sys.modules, "vllm.config", SimpleNamespace(CUDAGraphMode=Mode))
        choose = graph.Dispatch.of
        verified = choose(proposer, SimpleNamespace(max_query_len=4), 12, 3)
        mixed = choose(proposer, SimpleNamespace(max_query_len=4), 11, 3)
        prefill = choose(proposer, SimpleNamespace(max_query_len=12), 12, 1)
        long = choose(proposer, SimpleNamespace(max_query_len=17), 17, 1)
        proposer.use_cuda_graph = False
        eager = choose(proposer, SimpleNamespace(max_query_len=4), 12, 3)
    assert (verified.full, verified.mode, verified.num_input_tokens) == (True, Mode.FULL, 16)
    assert [(run.full, run.mode, run.descriptor) for run in (mixed, prefill, long, eager)] == [
        (False, Mode.NONE, None)
    ] * 4
    assert [run.num_input_tokens for run in (mixed, prefill, long, eager)] == [16, 16, 17, 12]
    assert [arguments["uniform_decode"] for arguments in asked] == [True, False, False, False]


class Greedy(loop.DraftLoop):
    """Notes the rows that logits are computed for."""

    def __init__(self) -> None:
        self.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=2))
        self.runner = SimpleNamespace(uniform_decode_query_len=4)
        self.model = SimpleNamespace(compute_logits=self._logits)

    def _logits(self, rows: Any) -> Any:
        self.asked = rows[:, 0].tolist()
        return -(rows - 5).abs()  # the likeliest token is the column nearest to 5


@pytest.mark.parametrize(
    ("split", "dummy", "asked"),
    [(False, False, [3, 1]), (True, False, [3, 1] + [0] * 6), (True, True, [3, 1])],
)
def test_a_split_language_model_head_gets_as_many_rows_on_every_rank(
    monkeypatch: pytest.MonkeyPatch, split: bool, dummy: bool, asked: list[int]
) -> None:
    monkeypatch.setitem(sys.modules, "vllm_ascend", ModuleType("vllm_ascend"))
    monkeypatch.setitem(sys.modules, "vllm_ascend.utils", SimpleNamespace(lmhead_tp_enable=lambda: split))
    hidden = torch.arange(4)[:, None] + torch.tensor([0, 2, 4])  # row 3: 3, 5, 7; row 1: 1, 3, 5
    proposer = Greedy()
    assert proposer._greedy(hidden, torch.tensor([3, 1]), dummy).tolist() == [1, 2]
    assert proposer.asked == asked


def test_a_split_language_model_head_survives_a_dummy_run_of_more_requests_than_may_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An idle data parallel rank runs with as many rows as another one's prompts."""
    monkeypatch.setitem(sys.modules, "vllm_ascend", ModuleType("vllm_ascend"))
    monkeypatch.setitem(sys.modules, "vllm_ascend.utils", SimpleNamespace(lmhead_tp_enable=lambda: True))
    proposer = Greedy()
    drafts = proposer._greedy(torch.ones(4, 3), torch.zeros(11, dtype=torch.int32), False)
    assert len(proposer.asked) == 8  # what every rank brings
    assert drafts.shape == (11,)


@pytest.mark.parametrize("profiles", [True, False])
@pytest.mark.parametrize(("grow", "longest", "rows"), [(0, 100, 40), (2, 100, 46), (2, 43, 43)])
def test_a_profile_run_has_the_slots_that_requests_gain(
    profiles: bool, grow: int, longest: int, rows: int
) -> None:
    class Host:
        def dummy_run(self, num_tokens: int, *others: Any, **named: Any) -> None:
            self.ran = num_tokens, others, named

    proposer = type("Both", (loop.DraftLoop, Host), {})()
    proposer.needs_extra_input_slots, proposer.net_num_new_slots_per_request = grow > 0, grow
    proposer.runner, proposer.max_num_tokens = SimpleNamespace(max_num_reqs=3), longest
    proposer.last_token_indices = torch.ones(5)
    proposer.graph_buffers = SimpleNamespace(rows=torch.ones(2, 3))
    proposer.dummy_run(40, "prefill", is_profile=profiles)
    assert proposer.ran == (rows if profiles else 40, ("prefill",), {"is_profile": profiles})
    # They may have held rows of a longer batch.
    assert proposer.last_token_indices.sum() == proposer.graph_buffers.rows.sum() == 0


def test_discarded_requests_are_told_apart_and_forgotten() -> None:
    proposer = SimpleNamespace()
    indices = torch.tensor([2, 0, 1, 1])  # those behind the number are of earlier steps
    for num_reqs, number, expected in (
        (3, 1, [False, False, True]),
        (3, 0, [False] * 3),
        (5, 2, [True, False, True, False, False]),  # a longer batch than before
        (2, 0, [False] * 2),
    ):
        sampled = torch.zeros(num_reqs, 4, dtype=torch.int32)
        discarded = next_token_ids.discarded(proposer, sampled, indices, number)
        assert discarded.tolist() == expected
        assert discarded.dtype == torch.bool


def test_a_device_may_fill_in_its_own_way() -> None:
    """310P has no ``index_fill_``."""
    proposer, filled = SimpleNamespace(), []

    def fill(mask: Any, dim: int, indices: Any, value: bool) -> Any:
        filled.append((dim, indices.tolist(), value))
        return mask

    sampled = torch.zeros(3, 4, dtype=torch.int32)
    next_token_ids.discarded(proposer, sampled, torch.tensor([2, 0]), 1, fill)
    next_token_ids.discarded(proposer, sampled, torch.tensor([2, 0]), 0, fill)
    assert filled == [(0, [2], True)]


@pytest.mark.parametrize(("threshold", "grow", "longest"), [(4, 0, 4), (4, 1, 5), (16, 1, 16)])
def test_what_a_step_verifies_stays_a_decode_where_a_slot_was_added(
    threshold: int, grow: int, longest: int
) -> None:
    proposer = object.__new__(loop.DraftLoop)
    proposer.needs_extra_input_slots, proposer.net_num_new_slots_per_request = grow > 0, grow
    builder = SimpleNamespace(decode_threshold=threshold)
    with proposer._with_slots(builder):
        assert builder.decode_threshold == longest
    assert builder.decode_threshold == threshold  # the target may have the same builder
    with proposer._with_slots(SimpleNamespace()):  # attention that does not tell apart
        pass
