# SPDX-License-Identifier: Apache-2.0
"""What the small patches change of what they wrap, and what they leave, on stand-ins. Needs no host.

tests/e2e/test_server_life.py shows that each is enough for its request on the real hosts.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="batches hold tensors")

from ascend_specpatch.edits import Edit  # noqa: E402
from ascend_specpatch.patches.model_runner import (  # noqa: E402
    allowed_tokens_rows,
    async_output_tokens,
    captured_sizes,
    grammar_bitmask,
    short_mla_prompts,
)
from ascend_specpatch.patches.since_0_23.model_runner import (  # noqa: E402
    async_output_tokens as drafts_since_0_23,
)
from ascend_specpatch.patches.spec_decode import (  # noqa: E402
    allowed_tokens,
    draft_penalties,
    first_draft_slots,
    ngram_at_max_length,
    sampled_verification,
    seeded_recovery,
    skipped_requests,
)


def patched(patch: ModuleType, **host: Any) -> Any:
    """A module with these names, patched."""
    module: Any = ModuleType("host")
    vars(module).update(host)
    patch.apply(Edit(patch.__name__.rpartition(".patches.")[2], module))
    return module


@dataclasses.dataclass
class SamplingMetadata:
    """The fields that are read or replaced."""

    generators: dict[int, str] = dataclasses.field(default_factory=dict)
    allowed_token_ids_mask: Any = None
    output_token_ids: list[list[int]] = dataclasses.field(default_factory=list)


# ---- spec_decode.draft_penalties ------------------------------------------------------------------------


def test_without_triton_penalties_are_applied_as_vllm_does_and_with_it_as_the_host_does() -> None:
    class RejectionSampler:
        @staticmethod
        def apply_penalties(logits: str, *, metadata: str) -> tuple[str, ...]:
            return "vllm", logits, metadata

    class AscendRejectionSampler(RejectionSampler):
        @staticmethod
        def apply_penalties(logits: str, *, metadata: str) -> tuple[str, ...]:
            return "host", logits, metadata

    hosts_own = AscendRejectionSampler.apply_penalties
    classes = {"RejectionSampler": RejectionSampler, "AscendRejectionSampler": AscendRejectionSampler}
    host = patched(draft_penalties, **classes, HAS_TRITON=False)
    sampler = host.AscendRejectionSampler()  # the host calls an instance's
    for it in (host.AscendRejectionSampler, sampler):
        assert it.apply_penalties("logits", metadata="drafts") == ("vllm", "logits", "drafts")
    host.HAS_TRITON = True
    assert sampler.apply_penalties("logits", metadata="drafts") == ("host", "logits", "drafts")
    assert RejectionSampler.apply_penalties("a", metadata="b")[0] == "vllm"
    assert hosts_own("a", metadata="b")[0] == "host"


# ---- spec_decode.first_draft_slots ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connector", "lookahead", "reserves"), [(None, 3, True), (None, 0, False), ("connector", 3, False)]
)
def test_slots_are_reserved_without_a_connector_and_for_drafts_that_write_kv(
    connector: Any, lookahead: int, reserves: bool
) -> None:
    class Scheduler:
        def __init__(self, config: Any, *, log_stats: bool) -> None:
            assert (config, log_stats) == ("config", True)
            self.connector, self.num_lookahead_tokens, self.running = connector, lookahead, ["other"]
            self.kv_cache_manager = SimpleNamespace(allocate_slots=lambda **asked: asked)

    made = patched(first_draft_slots, Scheduler=Scheduler).Scheduler("config", log_stats=True)
    allocated = made.kv_cache_manager.allocate_slots(num_lookahead_tokens=0)
    assert allocated == {"num_lookahead_tokens": 3 if reserves else 0}


# ---- spec_decode.skipped_requests -----------------------------------------------------------------------


def test_only_a_running_request_that_was_left_out_loses_its_placeholders() -> None:
    placeholders = [-1, -1]  # one list for all requests, as vLLM has it

    class AsyncScheduler:
        def _update_after_schedule(self, output: Any) -> None:
            for request in self.running + self.waiting:
                if request.request_id in output.num_scheduled_tokens:
                    request.spec_token_ids = placeholders

    scheduler = patched(skipped_requests, AsyncScheduler=AsyncScheduler).AsyncScheduler()
    requests = {
        name: SimpleNamespace(request_id=name, spec_token_ids=drafts)
        for name, drafts in (("scheduled", []), ("left out", placeholders), ("prefills", []), ("waits", [5]))
    }
    scheduler.running = [requests[name] for name in ("scheduled", "left out", "prefills")]
    scheduler.waiting = [requests["waits"]]
    scheduler._update_after_schedule(SimpleNamespace(num_scheduled_tokens={"scheduled": 3}))
    assert {name: request.spec_token_ids for name, request in requests.items()} == {
        "scheduled": [-1, -1], "left out": [], "prefills": [], "waits": [5],
    }  # fmt: skip
    assert placeholders == [-1, -1]


# ---- spec_decode.seeded_recovery ------------------------------------------------------------------------


def test_generators_of_requests_without_drafts_are_not_drawn_from() -> None:
    metadata = SamplingMetadata({0: "a", 1: "b", 3: "d"}, output_token_ids=[[7]])

    def sample_recovered_tokens(
        max_spec_len: int, num_draft_tokens: list[int], ids: Any, sampling_metadata: Any, device: str
    ) -> tuple[Any, ...]:
        return max_spec_len, num_draft_tokens, ids, sampling_metadata, device

    host = patched(seeded_recovery, sample_recovered_tokens=sample_recovered_tokens)
    for arguments in (
        ((3, [0, 1, 2, 3], "ids", metadata, "npu"), {}),
        ((3, [0, 1, 2, 3], "ids"), {"sampling_metadata": metadata, "device": "npu"}),
    ):
        *others, found, device = host.sample_recovered_tokens(*arguments[0], **arguments[1])
        assert (others, device) == ([3, [0, 1, 2, 3], "ids"], "npu")
        assert found == SamplingMetadata({1: "b", 3: "d"}, output_token_ids=[[7]])
    assert metadata.generators == {0: "a", 1: "b", 3: "d"}  # the bonus tokens are drawn with it


# ---- spec_decode.sampled_verification -------------------------------------------------------------------


def test_blocks_are_verified_one_by_one() -> None:
    one_by_one, blocks = (lambda: "one by one"), (lambda: "blocks")
    host = patched(
        sampled_verification,
        rejection_random_sample_pytorch=one_by_one,
        rejection_random_sample_block_verify_pytorch=blocks,
    )
    assert host.rejection_random_sample_block_verify_pytorch is one_by_one
    assert host.rejection_random_sample_pytorch is one_by_one


# ---- spec_decode.allowed_tokens -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "outputs", "given"),
    [
        ("mask", [], [[], [], []]),
        ("mask", [[4], [], [5]], [[4], [], [5]]),  # penalties are asked for too
        (None, [], []),
        (None, [[4], [], [5]], [[4], [], [5]]),
    ],
)
def test_every_request_has_an_output_where_tokens_are_masked(
    mask: Any, outputs: list[list[int]], given: list[list[int]]
) -> None:
    class RejectionSampler:
        def apply_logits_processors(self, *arguments: Any) -> tuple[Any, ...]:
            return arguments

    sampler = patched(allowed_tokens, RejectionSampler=RejectionSampler).RejectionSampler()
    asked, drafts = SamplingMetadata({}, mask, outputs), SimpleNamespace(num_draft_tokens=[2, 0, 3])
    logits, found, same_drafts = sampler.apply_logits_processors("logits", asked, drafts)
    assert (logits, same_drafts) == ("logits", drafts)
    assert found == SamplingMetadata({}, mask, given)
    assert asked.output_token_ids == outputs


# ---- spec_decode.ngram_at_max_length --------------------------------------------------------------------


def test_ngram_is_told_of_as_many_tokens_as_there_is_room_for() -> None:
    class AscendNgramProposer:
        def propose(self, sampled: Any, *others: Any, more: Any = None) -> Any:
            return sampled, others, more

    proposer = patched(ngram_at_max_length, AscendNgramProposer=AscendNgramProposer).AscendNgramProposer()
    known = torch.tensor([90, 98, 99, 100, 97, 55, 0, 0])  # the batch has room for more requests
    batch = SimpleNamespace(token_ids_cpu=torch.zeros(8, 100), num_tokens_no_spec=known)
    proposer.runner = SimpleNamespace(input_batch=batch)
    sampled = [[1, 2, 3, 4], [1, 2, 3], [1, 2], [1], [1, 2, 3], []]
    told, others, more = proposer.propose(sampled, "other", more="more")
    assert told == [[1, 2, 3, 4], [1, 2], [1], [], [1, 2, 3], []]
    assert (others, more) == (("other",), "more")
    assert sampled[1] == [1, 2, 3]


# ---- model_runner.captured_sizes ------------------------------------------------------------------------


def test_room_is_made_for_the_sizes_that_are_captured_and_what_was_there_stays() -> None:
    def params(*sizes: int) -> SimpleNamespace:
        dicts = {name: {size: [] for size in sizes} for name in ("events", "handles", "attn_params")}
        return SimpleNamespace(**dicts, workspaces=dict.fromkeys(sizes))

    found = params(8, 16)
    found.events[8].append("recorded")
    captured_sizes.make_room(found, [3, 8])
    expected = params(8, 16, 3)
    expected.events[8].append("recorded")
    assert found == expected
    assert found.events[3] is not found.handles[3]


# ---- model_runner.allowed_tokens_rows -------------------------------------------------------------------


class InputBatch:
    """As vLLM moves rows: swapped through views, and left behind where a request moved down."""

    def __init__(self, rows: list[int] | None, requests: list[str | None]) -> None:
        self.allowed_token_ids_mask_cpu_tensor = None if rows is None else torch.tensor(rows)[:, None] == 1
        self._req_ids = requests

    @property
    def num_reqs(self) -> int:
        return len([request for request in self._req_ids if request is not None])

    def swap_states(self, i1: int, i2: int) -> None:
        mask = self.allowed_token_ids_mask_cpu_tensor
        if mask is not None:
            mask[i1], mask[i2] = mask[i2], mask[i1]
        self._req_ids[i1], self._req_ids[i2] = self._req_ids[i2], self._req_ids[i1]

    def condense(self) -> None:
        mask, count = self.allowed_token_ids_mask_cpu_tensor, self.num_reqs
        for free in range(count):
            if self._req_ids[free] is None:
                last = max(row for row, request in enumerate(self._req_ids) if request is not None)
                self._req_ids[free], self._req_ids[last] = self._req_ids[last], None
                if mask is not None:
                    mask[free] = mask[last]
        del self._req_ids[count:]


def batch(rows: list[int] | None, requests: list[str | None]) -> Any:
    return patched(allowed_tokens_rows, InputBatch=type("InputBatch", (InputBatch,), {})).InputBatch(
        rows, requests
    )


def mask_of(batch: Any) -> list[int]:
    found: list[int] = batch.allowed_token_ids_mask_cpu_tensor[:, 0].int().tolist()
    return found


@pytest.mark.parametrize("rows", [[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0]])
def test_masks_change_places_with_their_requests(rows: list[int]) -> None:
    swapped = batch(rows, ["a", "b"])
    swapped.swap_states(0, 1)
    assert mask_of(swapped) == [rows[1], rows[0], 0, 0]
    assert swapped._req_ids == ["b", "a"]


def test_a_row_that_a_request_left_is_as_new() -> None:
    condensed = batch([1, 0, 0, 1, 0], ["a", None, "c", "d"])
    condensed.condense()
    assert condensed._req_ids == ["a", "d", "c"]
    assert mask_of(condensed) == [1, 1, 0, 0, 0]


def test_a_batch_without_masks_moves_all_the_same() -> None:
    moved = batch(None, ["a", None, "c"])
    moved.condense()
    moved.swap_states(0, 1)
    assert moved._req_ids == ["c", "a"]


# ---- model_runner.async_output_tokens -------------------------------------------------------------------


class Runner:
    """NPUModelRunner as far as it is wrapped; writes down what is done in which order."""

    def __init__(self, asynchronous: bool, copied: bool) -> None:
        self.use_async_scheduling, self.done = asynchronous, []
        self._draft_token_req_ids = ["a"] if copied else None
        note = self.done.append
        self.input_batch = SimpleNamespace(
            update_async_output_token_ids=lambda: note("outputs"),
            update_async_spec_token_ids=lambda drafts: note(("drafts", drafts)),
            set_async_sampled_token_ids=lambda tokens, event: note(("kept", tokens, event)),
        )

    def _get_draft_token_ids_cpu(self) -> Any:
        return [[1, 2]], ["a"]

    def _sample(self, logits: Any, spec_decode_metadata: Any) -> Any:
        self.done.append("sampled")
        return logits, spec_decode_metadata

    def sample_tokens(self, output: Any) -> Any:
        return output


def runner(asynchronous: bool, copied: bool = True) -> Any:
    made = patched(async_output_tokens, NPUModelRunner=type("NPUModelRunner", (Runner,), {}))
    return made.NPUModelRunner(asynchronous, copied)


@pytest.mark.parametrize(
    ("asynchronous", "copied", "verifies", "done"),
    [
        (True, True, "metadata", ["outputs", ("drafts", [[1, 2]]), "sampled"]),
        (True, False, "metadata", ["outputs", "sampled"]),
        (True, True, None, ["outputs", "sampled"]),
        (False, True, "metadata", ["sampled"]),
    ],
)
def test_tokens_are_filled_in_before_sampling(
    asynchronous: bool, copied: bool, verifies: Any, done: list[Any]
) -> None:
    made = runner(asynchronous, copied)
    assert made._sample("logits", verifies) == ("logits", verifies)
    assert made.done == done
    # A later step must not take these drafts for its own; without asynchronous scheduling they are the
    # scheduler's to fetch.
    assert (made._draft_token_req_ids is None) == (asynchronous or not copied)


@pytest.mark.parametrize(
    ("asynchronous", "verifies", "done"),
    [
        (True, "metadata", [("drafts", [[1, 2]]), "sampled"]),
        (True, None, ["sampled"]),
        (False, "metadata", ["sampled"]),
    ],
)
def test_a_host_that_fills_in_the_tokens_is_given_the_drafts(
    asynchronous: bool, verifies: Any, done: list[Any]
) -> None:
    made = patched(drafts_since_0_23, NPUModelRunner=type("NPUModelRunner", (Runner,), {}))
    runner = made.NPUModelRunner(asynchronous, copied=True)
    assert runner._sample("logits", verifies) == ("logits", verifies)
    assert runner.done == done
    assert made.NPUModelRunner.sample_tokens is Runner.sample_tokens


def test_tokens_on_their_way_are_kept_for_the_next_step() -> None:
    made = runner(True)
    sampled = SimpleNamespace(sampled_token_ids_cpu="tokens", async_copy_ready_event="event")
    assert made.sample_tokens(sampled) is sampled
    for other in (None, SimpleNamespace(sampled_token_ids=[[1]])):  # nothing was run; what is there already
        assert made.sample_tokens(other) is other
    assert made.done == [("kept", "tokens", "event")]


# ---- model_runner.grammar_bitmask -----------------------------------------------------------------------


@pytest.mark.parametrize("rows", [None, [2, 0]])
def test_the_hosts_masking_gives_xgrammar_a_list(
    monkeypatch: pytest.MonkeyPatch, rows: list[int] | None
) -> None:
    masked = []
    xgrammar: Any = ModuleType("xgrammar")
    xgrammar.apply_token_bitmask_inplace = lambda *given, **named: masked.append((given, named))
    xgrammar.other = "other"
    monkeypatch.setitem(sys.modules, "xgrammar", xgrammar)
    # vLLM's function, in a module with an xgrammar of its own.
    theirs: dict[str, Any] = {"xgr": "vLLM's", "torch": torch}
    exec(
        "def apply_grammar_bitmask(logits, bitmask, rows):\n"
        "    rows = None if rows is None else torch.tensor(rows)\n"
        "    xgr.apply_token_bitmask_inplace(logits, bitmask, indices=rows)\n"
        "    return xgr.other\n",
        theirs,
    )
    vllm_function = theirs["apply_grammar_bitmask"]
    host = patched(grammar_bitmask, apply_grammar_bitmask=vllm_function)
    assert host.apply_grammar_bitmask("logits", "bitmask", rows) == "other"
    assert masked == [(("logits", "bitmask"), {"indices": rows})]
    assert theirs["xgr"] == "vLLM's"


# ---- model_runner.short_mla_prompts ---------------------------------------------------------------------

State = enum.Enum("State", "PrefillNoCache PrefillCacheHit ChunkedPrefill DecodeOnly SpecDecoding")


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(
    ("drafts", "mla", "sparse"),
    [(True, True, False), (False, True, False), (True, False, False), (True, True, True)],
)
def test_prefills_alone_are_chunked_prefills_where_mla_drafts(
    monkeypatch: pytest.MonkeyPatch, state: Any, drafts: bool, mla: bool, sparse: bool
) -> None:
    names: dict[str, Any] = {}
    for name in ("vllm_ascend", "vllm_ascend.attention", "vllm_ascend.attention.attention_v1"):
        names[name] = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, names[name])
    names["vllm_ascend.attention.attention_v1"].AscendAttentionState = State

    class NPUModelRunner:
        speculative_config, use_sparse = "config" if drafts else None, sparse
        model_config = SimpleNamespace(use_mla=mla)

        def _build_attn_state(self, *arguments: Any) -> Any:
            assert arguments == (2, [3, 1])
            self.attn_state = state
            return state

    made = patched(short_mla_prompts, NPUModelRunner=NPUModelRunner).NPUModelRunner()
    prefill = state in (State.PrefillNoCache, State.PrefillCacheHit)
    expected = State.ChunkedPrefill if prefill and drafts and mla and not sparse else state
    assert made._build_attn_state(2, [3, 1]) is made.attn_state is expected
