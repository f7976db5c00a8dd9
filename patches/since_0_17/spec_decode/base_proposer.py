# SPDX-License-Identifier: Apache-2.0
"""spec_decode.base_proposer, on vllm-ascend 0.17.0rc1 and 0.18.0

What: ``vllm_ascend.spec_decode.eagle_proposer.SpecDecodeBaseProposer``, the host's base of every proposer
    that runs a model, moves from vLLM's EagleProposer to vLLM's SpecDecodeBaseProposer and drafts exactly.
Why: EagleProposer's constructor fixes ``pass_hidden_states_to_model=True`` before the host sets it, so a
    draft model has no slot of its own in the first pass and is fed by EAGLE's path: 83 of 189 drafts
    accepted where all must be, a crash where hidden sizes differ. Heads draft with KV lengths that count
    rejected tokens and, with MLA, with the rotary angles of another pass.
How: the host's own functions are put on vLLM's base (a clone made at run time), under the ProposerBase of
    vllm-ascend 0.16.0rc1's form; ``Proposer`` below is what the two hosts do differently.
Until: vllm-ascend's proposers stand on vLLM's SpecDecodeBaseProposer (0.19.1rc1) and draft as exactly (no
    release measured so far does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ascend_specpatch.classes import make_cls
from ascend_specpatch.patches.spec_decode.base_proposer import ProposerBase, vllm_constructor

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    # The classes it stands on, and what they are given.
    "vllm.v1.spec_decode.eagle:SpecDecodeBaseProposer",
    "vllm.model_executor.models.utils:process_eagle_weight",
    "vllm_ascend.spec_decode.eagle_proposer:SpecDecodeBaseProposer",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.__init__",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._set_up_drafter",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._use_aclgraph",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.load_model",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.propose_draft_token_ids",
    # What a draft model is refused for.
    "vllm.config.model:ModelConfig.is_multimodal_model",
    "vllm.config.model:ModelConfig.use_mla",
    "vllm.config.model:ModelConfig.uses_mrope",
    "vllm.config.speculative:SpeculativeConfig.create_draft_parallel_config",
    "vllm.config.speculative:SpeculativeConfig.disable_padded_drafter_batch",
    "vllm.config.speculative:SpeculativeConfig.draft_parallel_config",
    # Room for the slot that a draft model adds to each request.
    "vllm.config.vllm:VllmConfig._set_max_num_scheduled_tokens",
    # Attention metadata: its fields, its builders, and how attention reads rows, keys and slots.
    "vllm.v1.attention.backend:AttentionMetadataBuilder.build_for_drafting",
    "vllm.v1.attention.backend:CommonAttentionMetadata",
    "vllm.v1.spec_decode.utils:PADDING_SLOT_ID",
    "vllm_ascend.attention.attention_v1:AscendAttentionBackend.get_supported_kernel_block_sizes",
    "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl._get_fia_params",
    "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.forward_fused_infer_attention",
    "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.full_graph_fia",
    "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.reshape_and_cache",
    "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.update_graph_params",
    "vllm_ascend.attention.attention_v1:AscendAttentionMetadataBuilder",
    "vllm_ascend.attention.attention_v1:AscendAttentionState",
    "vllm_ascend.attention.mla_v1:AscendMLABackend.get_supported_kernel_block_sizes",
    "vllm_ascend.attention.mla_v1:AscendMLADecodeMetadata",
    "vllm_ascend.attention.mla_v1:AscendMLAImpl._forward_decode",
    "vllm_ascend.attention.mla_v1:AscendMLAImpl._forward_prefill",
    "vllm_ascend.attention.mla_v1:AscendMLAMetadataBuilder",
    "vllm_ascend.attention.sfa_v1:AscendSFAImpl.forward",
    "vllm_ascend.attention.sfa_v1:AscendSFAMetadataBuilder",
    "vllm_ascend.attention.utils:AscendCommonAttentionMetadata",
    "vllm_ascend.attention.utils:split_decodes_and_prefills",
    # Running the passes, captured or not.
    "vllm.config.compilation:CUDAGraphMode",
    "vllm.forward_context:ForwardContext",
    "vllm.forward_context:get_forward_context",
    "vllm.v1.cudagraph_dispatcher:CudagraphDispatcher._compute_bs_to_padded_graph_size",
    "vllm.v1.cudagraph_dispatcher:CudagraphDispatcher.dispatch",
    "vllm_ascend.ascend_forward_context:_ExtraForwardContextProxy",
    "vllm_ascend.ascend_forward_context:set_ascend_forward_context",
    "vllm_ascend.compilation.acl_graph:ACLGraphWrapper",
    "vllm_ascend.compilation.acl_graph:update_full_graph_params",
    "vllm_ascend.ops.rotary_embedding:get_cos_and_sin_mla",
    "vllm_ascend.ops.rotary_embedding:set_cos_and_sin",
    "vllm_ascend.spec_decode.eagle_proposer:_maybe_eager_context",
    "vllm_ascend.utils:enable_sp",
    "vllm_ascend.utils:lmhead_tp_enable",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._dummy_run",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._sync_metadata_across_dp",
)


class Proposer(ProposerBase):
    """ProposerBase over the functions of vllm-ascend 0.17.0rc1 and 0.18.0."""

    _rows_argument = "token_indices_to_sample"

    draft_attn_groups: list[Any]

    def _host_constructor(self, vllm_config: Any, device: torch.device, runner: Any) -> None:
        super(ProposerBase, self).__init__(vllm_config, device, self.pass_hidden_states_to_model, runner)

    def _host_load_model(self, model: Any) -> None:
        super(ProposerBase, self).load_model(model)  # shares the language-model head itself

    def _maybe_share_embeddings(self, target: Any) -> None:
        self._who_shares._maybe_share_embeddings(self, target)

    def _maybe_share_lm_head(self, target: Any) -> None:
        self._who_shares._maybe_share_lm_head(self, target)

    @property
    def _who_shares(self) -> Any:
        """vLLM decides what is shared with the target, but where the host loads: its methods also wrap what
        is captured."""
        return self._host_functions if self._loads_as_host else self._vllm_base

    def _metadata_builder(self) -> Any:
        return self.draft_attn_groups[0].get_metadata_builder()

    def _drafting_layers(self) -> Iterable[str]:
        layers: Iterable[str] = self._draft_attn_layer_names
        return layers

    def _graph_options(self) -> dict[str, Any]:
        # 0.18.0's only.
        return {name: getattr(self, name) for name in ("use_eagle", "enable_enpu") if hasattr(self, name)}


def apply(edit: Edit) -> None:
    from vllm.v1.spec_decode import eagle

    host = edit.module
    functions = make_cls(
        host.SpecDecodeBaseProposer,
        name="_HostFunctions",
        bases=(vllm_constructor(eagle.SpecDecodeBaseProposer),),
    )
    base = type(functions)(
        "SpecDecodeBaseProposer",
        (Proposer, functions),
        {"__module__": host.__name__, "__doc__": ProposerBase.__doc__, "_host_functions": functions},
    )
    edit.set(host, "SpecDecodeBaseProposer", base)
