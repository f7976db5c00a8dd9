# SPDX-License-Identifier: Apache-2.0
"""What the constructor of Ascend's proposers adds to the host's, and what it refuses. Needs no host."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="proposers hold tensors")

from ascend_specpatch.patches.spec_decode import base_proposer  # noqa: E402
from ascend_specpatch.patches.spec_decode.base_proposer import ProposerBase  # noqa: E402


class Constructed:
    """What the host's constructor leaves, as far as ProposerBase reads it."""

    def __init__(self, vllm_config: Any, device: Any, runner: Any) -> None:
        self.max_model_len, self.draft_model_config = 64, vllm_config.speculative_config.draft_model_config
        self.max_num_tokens, self.needs_extra_input_slots = 40, not self.pass_hidden_states_to_model
        self.use_cuda_graph, self.method = runner.use_cuda_graph, vllm_config.speculative_config.method
        self.vllm_config, self.compilation_config = vllm_config, vllm_config.compilation_config
        self.pcp_size, self.dcp_size = runner.pcp_size, runner.dcp_size
        self.num_speculative_tokens, self.runner = 3, runner
        self.slot_mapping_group = [torch.zeros(24, dtype=torch.int32) for _ in range(2)]


def config_of(**parallel: int) -> Any:
    parallel = {
        "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "enable_expert_parallel": False, **parallel
    }  # fmt: skip
    draft = SimpleNamespace(max_model_len=32, uses_mrope=False, use_mla=False)
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**parallel),
        model_config=SimpleNamespace(uses_mrope=False, is_multimodal_model=False, use_mla=False),
        speculative_config=SimpleNamespace(
            method="draft_model",
            disable_padded_drafter_batch=False,
            draft_model_config=draft,
            draft_parallel_config=SimpleNamespace(tensor_parallel_size=1, enable_expert_parallel=False),
        ),
        compilation_config=SimpleNamespace(cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: True)),
    )


def construct(config: Any, hidden: bool = False, **runner: Any) -> Any:
    runner = {"pcp_size": 1, "dcp_size": 1, "use_cuda_graph": False, "max_num_reqs": 4, **runner}
    made = type("Made", (ProposerBase, Constructed), {})
    return made(config, torch.device("cpu"), hidden, SimpleNamespace(**runner))


def test_buffers_have_room_for_the_slots_of_parallel_drafting() -> None:
    slots = construct(config_of()).slot_mapping_group
    assert [(buffer.shape, buffer.dtype) for buffer in slots] == [((40,), torch.int32)] * 2


def test_a_shorter_drafting_model_sets_the_length_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="vllm.ascend_specpatch"):
        assert construct(config_of()).max_model_len == 32
    assert "room for 32 tokens, the target for 64" in caplog.text


def test_a_draft_model_is_refused_under_pipeline_parallelism() -> None:
    with pytest.raises(ValueError, match=r"draft_model.*pipeline_parallel_size=1"):
        construct(config_of(pipeline_parallel_size=2))


@pytest.mark.parametrize("draft_rank", [None, 32])
def test_a_draft_model_whose_kv_cache_is_not_cut_as_the_targets_is_refused(draft_rank: int | None) -> None:
    config = config_of()
    config.model_config.use_mla = True
    config.model_config.hf_text_config = SimpleNamespace(kv_lora_rank=64, qk_rope_head_dim=16)
    draft = config.speculative_config.draft_model_config
    draft.use_mla = draft_rank is not None
    draft.hf_text_config = SimpleNamespace(kv_lora_rank=draft_rank, qk_rope_head_dim=16)
    with pytest.raises(ValueError, match=r"draft_model.*MLA"):
        construct(config)
    draft.use_mla, draft.hf_text_config = True, config.model_config.hf_text_config
    assert construct(config).max_model_len == 32


@pytest.mark.parametrize("parallel", [True, False])
def test_experts_of_a_draft_model_are_spread_as_the_targets(parallel: bool) -> None:
    config = config_of(enable_expert_parallel=parallel)
    construct(config)
    assert config.speculative_config.draft_parallel_config.enable_expert_parallel is parallel


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"disable_padded_drafter_batch": True}, "remove disable_padded_drafter_batch"),
        ({"draft_parallel_config": SimpleNamespace(tensor_parallel_size=2)}, "draft_tensor_parallel_size=1"),
    ],
)
def test_a_draft_model_is_refused_where_it_cannot_draft(setting: dict[str, Any], says: str) -> None:
    config = config_of()
    vars(config.speculative_config).update(setting)
    with pytest.raises(ValueError, match=says):
        construct(config)


@pytest.mark.parametrize("target", ["uses_mrope", "is_multimodal_model"])
def test_a_draft_model_is_refused_for_a_target_with_other_positions(target: str) -> None:
    config = config_of()
    setattr(config.model_config, target, True)
    with pytest.raises(ValueError, match="M-RoPE"):
        construct(config)


def test_a_draft_model_is_refused_under_context_parallelism_and_a_head_is_not() -> None:
    with pytest.raises(ValueError, match="context parallelism"):
        construct(config_of(), dcp_size=2)
    construct(config_of(), hidden=True, dcp_size=2)


@pytest.fixture
def hosts_names(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the constructor and load_model import of the host."""
    names: dict[str, Any] = {
        "vllm_ascend.spec_decode.eagle_proposer": {"_maybe_eager_context": lambda config: "eager"},
        "vllm_ascend.utils": {"enable_sp": lambda config: False},
        "vllm_ascend.ops.rotary_embedding": {"_cos_mla": torch.ones(24, 1, 1, 8), "_sin_mla": None},
    }
    for name in ("vllm_ascend", "vllm_ascend.spec_decode", "vllm_ascend.ops", *names):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(names.get(name, {}))
    rotary = sys.modules["vllm_ascend.ops.rotary_embedding"]
    vars(sys.modules["vllm_ascend.ops"])["rotary_embedding"] = rotary
    return rotary


@pytest.mark.parametrize(
    ("method", "hidden", "mla", "full", "context", "captured"),
    [
        ("eagle", True, False, True, 1, True),
        ("mtp", True, False, True, 1, True),
        ("mtp", True, True, False, 1, True),
        ("mtp", True, True, True, 1, False),  # the host updates the lengths of one pass only
        ("mtp", True, True, True, 2, True),  # the host drafts, its own way
        ("draft_model", False, False, True, 1, False),  # its first pass has no captured size
    ],
)
def test_who_drafts_in_captured_graphs(
    hosts_names: Any, method: str, hidden: bool, mla: bool, full: bool, context: int, captured: bool
) -> None:
    config = config_of()
    config.speculative_config.method, config.model_config.is_deepseek_mla = method, mla
    config.compilation_config.cudagraph_mode.has_full_cudagraphs = lambda: full
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_proposer, "GraphBuffers", lambda proposer: "buffers")
        made = construct(config, hidden, use_cuda_graph=True, dcp_size=context)
    assert made.use_cuda_graph is captured
    assert made.graph_buffers == ("buffers" if captured else None)


def test_rotary_angles_of_mla_have_room_for_extra_slots(hosts_names: Any) -> None:
    made = construct(config_of())
    made._make_room_for_rotary_angles()
    assert hosts_names._cos_mla.shape == (40, 1, 1, 8)
    assert hosts_names._sin_mla is None  # a model without MLA
    before = hosts_names._cos_mla
    made._make_room_for_rotary_angles()
    assert hosts_names._cos_mla is before
