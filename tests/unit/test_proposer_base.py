# SPDX-License-Identifier: Apache-2.0
"""What the constructor of Ascend's proposers adds to the host's, and what it refuses. Needs no host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="proposers hold tensors")

from ascend_specpatch.patches.spec_decode.base_proposer import ProposerBase  # noqa: E402


class Constructed:
    """What the host's constructor leaves, as far as ProposerBase reads it."""

    def __init__(self, vllm_config: Any, device: Any, runner: Any) -> None:
        self.max_model_len, self.draft_model_config = 64, vllm_config.speculative_config.draft_model_config
        self.max_num_tokens, self.needs_extra_input_slots = 40, True
        self.use_cuda_graph = False
        self.slot_mapping_group = [torch.zeros(24, dtype=torch.int32) for _ in range(2)]


def config_of(**parallel: int) -> Any:
    parallel = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, **parallel}
    draft = SimpleNamespace(max_model_len=32, uses_mrope=False, use_mla=False)
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**parallel),
        model_config=SimpleNamespace(uses_mrope=False, is_multimodal_model=False, use_mla=False),
        speculative_config=SimpleNamespace(
            method="draft_model",
            disable_padded_drafter_batch=False,
            draft_model_config=draft,
            draft_parallel_config=SimpleNamespace(tensor_parallel_size=1),
        ),
    )


def construct(config: Any) -> Any:
    made = type("Made", (ProposerBase, Constructed), {})
    return made(config, torch.device("cpu"), False, SimpleNamespace(pcp_size=1, dcp_size=1))


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
