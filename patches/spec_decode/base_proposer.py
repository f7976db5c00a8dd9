# SPDX-License-Identifier: Apache-2.0
"""spec_decode.base_proposer

What: ``vllm_ascend.spec_decode.eagle_proposer`` gains ``SpecDecodeBaseProposer``, the base of every Ascend
    proposer that runs a model.
Why: the host has one proposer, on vLLM's EagleProposer, whose constructor fixes
    ``pass_hidden_states_to_model=True``: a draft model can not stand on it. It also prepares the inputs of
    the first pass in the middle of ``_propose``, keeps views of the runner's buffers while metadata
    building overwrites them, and lets rejected tokens of a padded batch into the attention of the later
    passes.
How: the host's own functions are put on vLLM's ``SpecDecodeBaseProposer`` (a clone made at run time), under
    ``ProposerBase`` below::

        vLLM SpecDecodeBaseProposer      what vLLM's methods may rely on
        └─ _VllmConstructor              bridges the host's three-argument super().__init__
           └─ _HostFunctions             the host's AscendEagleProposer, function by function
              └─ SpecDecodeBaseProposer  ProposerBase: construction, loading, drafting

    Context parallelism drafts with the host's functions, unchanged.
Until: vllm-ascend's proposers stand on vLLM's SpecDecodeBaseProposer, or draft as exactly (no release
    measured so far does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ascend_specpatch.classes import make_cls

from .drafting.first_pass import FirstPass
from .drafting.graph import GraphBuffers
from .drafting.loop import DraftLoop

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    # The classes it stands on, and what they are given.
    "vllm.v1.spec_decode.eagle:SpecDecodeBaseProposer",
    "vllm.model_executor.models.utils:process_eagle_weight",
    "vllm_ascend.spec_decode.eagle_proposer:AscendEagleProposer",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.__init__",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._set_up_drafter",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._use_aclgraph",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.load_model",
    # What a draft model is refused for.
    "vllm.config.model:ModelConfig.is_multimodal_model",
    "vllm.config.model:ModelConfig.use_mla",
    "vllm.config.model:ModelConfig.uses_mrope",
    "vllm.config.speculative:SpeculativeConfig.disable_padded_drafter_batch",
    "vllm.config.speculative:SpeculativeConfig.create_draft_parallel_config",
    "vllm.config.speculative:SpeculativeConfig.draft_parallel_config",
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


class ProposerBase(DraftLoop, FirstPass):
    """Construction and loading; stands above the host's functions in the class that :func:`apply` makes."""

    attn_layer_names: list[str]
    maybe_eager_context: Any
    slot_mapping_group: list[Any]
    use_cuda_graph: bool

    def __init__(
        self, vllm_config: Any, device: torch.device, pass_hidden_states_to_model: bool, runner: Any = None
    ) -> None:
        """Set up the proposer as vLLM's base does, with the buffers that Ascend adds.

        Args:
            pass_hidden_states_to_model: whether the drafting model is called with the target's hidden
                states (heads) or is a model of its own.

        Raises:
            ValueError: a draft model is asked to work where it can not; the text says what to change.
        """
        self.pass_hidden_states_to_model = pass_hidden_states_to_model
        if not pass_hidden_states_to_model:
            _refuse_what_draft_models_cannot_do(vllm_config, runner)
            # vLLM leaves this out of the draft's configuration; the host treats experts of all layers alike.
            draft_parallel_config = vllm_config.speculative_config.draft_parallel_config
            draft_parallel_config.enable_expert_parallel = vllm_config.parallel_config.enable_expert_parallel
        self._host_constructor(vllm_config, device, runner)
        # The host gathers all logits whatever is asked; vLLM, which loads, would refuse most heads.
        self.use_local_argmax_reduction = False
        self._end_with_drafting_model()
        if self.needs_extra_input_slots:
            # The first pass is longer than the target's by a slot a request, so it fits none of the
            # captured sizes.
            self._draft_eagerly()
        elif self.method == "mtp" and not self._host_drafts and self._uses_mla and self._full_graphs:
            # The host can update the lengths of one MLA pass in a graph, not of all passes of a draft.
            self._draft_eagerly()
        if self.slot_mapping_group[0].shape[0] < self.max_num_tokens:
            # The host leaves two slots a request; parallel drafting adds one for each drafted token.
            self.slot_mapping_group = [
                slots.new_zeros(self.max_num_tokens) for slots in self.slot_mapping_group
            ]
        self.graph_buffers = GraphBuffers(self) if self.use_cuda_graph else None

    def load_model(self, model: Any) -> None:
        """Load what drafts as vLLM does: embeddings and language-model head are the target's where the
        checkpoint has none of its own or equal ones. The host asks that of embeddings only.

        Raises:
            ValueError: parallel drafting with a head that was not made for it.
        """
        if self._loads_as_host:
            self._host_load_model(model)
            return
        with self.maybe_eager_context:
            self._vllm_base.load_model(self, model)
        if self.needs_extra_input_slots:
            self._make_room_for_rotary_angles()
        self.attn_layer_names = layers = sorted(self._drafting_layers())
        self.kernel_block_size = self._attention_backend(layers[0]).get_supported_kernel_block_sizes()[0]
        self.piece_all_attn_layer_name = [list(layers) for _ in range(self.num_speculative_tokens)]
        if self.use_cuda_graph and self._full_graphs:
            self._capture_all_passes_at_once()

    def _host_constructor(self, vllm_config: Any, device: torch.device, runner: Any) -> None:
        super().__init__(vllm_config, device, runner)

    @property
    def _loads_as_host(self) -> bool:
        """The host captures the passes of context parallelism its own way, and knows the indexers of sparse
        attention."""
        return self._host_drafts or bool(self.use_sparse)

    def _host_load_model(self, model: Any) -> None:
        super().load_model(model)
        if not self._host_drafts:
            self._maybe_share_lm_head(model)

    def _drafting_layers(self) -> Iterable[str]:
        """Names of the drafting model's attention layers, once it is loaded."""
        return self.attn_layer_names

    def _get_model(self) -> Any:
        head = super()._get_model()
        masked = self.parallel_drafting and self.pass_hidden_states_to_model
        if masked and not hasattr(head, "mask_hidden"):
            raise ValueError(
                f"speculative method {self.method!r} cannot draft in parallel with {type(head).__name__}, "
                "which has no hidden state for masked slots (mask_hidden): remove parallel_drafting from "
                "speculative_config, or use an EAGLE-3 head that was trained for it"
            )
        return head

    def _make_room_for_rotary_angles(self) -> None:
        """The host's buffers of MLA's angles have room for the rows of a target's pass; a drafting model with
        extra slots has more. Nothing has been captured yet that would read them."""
        from vllm_ascend.ops import rotary_embedding

        for name in ("_cos_mla", "_sin_mla"):
            angles = getattr(rotary_embedding, name)
            if angles is not None and angles.shape[0] < self.max_num_tokens:
                more = angles.new_zeros((self.max_num_tokens, *angles.shape[1:]))
                setattr(rotary_embedding, name, more)

    def _draft_eagerly(self) -> None:
        if not self.use_cuda_graph:
            return
        from vllm_ascend.spec_decode.eagle_proposer import _maybe_eager_context
        from vllm_ascend.utils import enable_sp

        self.use_cuda_graph = False
        if enable_sp(self.vllm_config):
            self.maybe_eager_context = _maybe_eager_context(self.vllm_config)

    @property
    def _full_graphs(self) -> bool:
        return bool(self.compilation_config.cudagraph_mode.has_full_cudagraphs())

    @property
    def _uses_mla(self) -> bool:
        return bool(self.vllm_config.model_config.is_deepseek_mla)

    def _capture_all_passes_at_once(self) -> None:
        import torch
        from vllm.config import CUDAGraphMode
        from vllm_ascend.compilation.acl_graph import ACLGraphWrapper

        self.update_stream = torch.npu.Stream()
        self._runnable = ACLGraphWrapper(
            self._run_merged_draft, self.vllm_config, runtime_mode=CUDAGraphMode.FULL, **self._graph_options()
        )

    def _graph_options(self) -> dict[str, Any]:
        """What else the host tells ACLGraphWrapper."""
        return {}

    def _attention_backend(self, layer_name: str) -> Any:
        return self.compilation_config.static_forward_context[layer_name].get_attn_backend()


def _refuse_what_draft_models_cannot_do(vllm_config: Any, runner: Any) -> None:
    """Raise before anything is allocated. vLLM's constructor checks that the vocabularies are equal."""
    config, target = vllm_config.speculative_config, vllm_config.model_config
    tensor_parallel = vllm_config.parallel_config.tensor_parallel_size
    draft_tensor_parallel = config.draft_parallel_config.tensor_parallel_size
    reason = None
    if config.disable_padded_drafter_batch:
        reason = "drafts on padded batches only: remove disable_padded_drafter_batch from speculative_config"
    elif draft_tensor_parallel != tensor_parallel:
        reason = (
            f"needs equal tensor parallel sizes, the draft model has {draft_tensor_parallel} and the target "
            f"{tensor_parallel}: set draft_tensor_parallel_size={tensor_parallel} in speculative_config"
        )
    elif target.uses_mrope or config.draft_model_config.uses_mrope or target.is_multimodal_model:
        reason = (
            "supports neither multimodal models nor M-RoPE positions: use a text-only target and draft "
            "model, or a method made for this target (eagle3, mtp, ngram)"
        )
    elif _attention_cache(target) != _attention_cache(config.draft_model_config):
        reason = (
            "needs a draft model with the target's kind of attention: the host lays out all KV caches "
            "alike: without MLA for a target without, with equal MLA and rotary sizes for a target with MLA; "
            "or use another method (mtp, ngram)"
        )
    elif vllm_config.parallel_config.pipeline_parallel_size > 1:
        reason = (
            "drafts on one pipeline stage, whose process group would split the draft model too: set "
            "pipeline_parallel_size=1 (tensor parallelism is supported)"
        )
    elif runner.pcp_size * runner.dcp_size > 1:
        reason = (
            "does not support context parallelism: set prefill_context_parallel_size and "
            "decode_context_parallel_size to 1"
        )
    if reason is not None:
        raise ValueError(f"speculative method {config.method!r} {reason}")


def _attention_cache(model_config: Any) -> tuple[Any, ...]:
    """What two models must have in common to be served by one runner: it cuts the KV cache of all layers as
    the target's MLA needs, and has one table of MLA's rotary angles. Empty without MLA."""
    if not model_config.use_mla:
        return ()
    names = ("kv_lora_rank", "qk_rope_head_dim", "index_topk", "rope_theta", "rope_scaling")
    return tuple(getattr(model_config.hf_text_config, name, None) for name in names)


def vllm_constructor(vllm_base: Any) -> type:
    class _VllmConstructor(vllm_base):  # type: ignore[misc]
        """The host calls ``super().__init__(vllm_config, device, runner)``; vLLM's base wants one argument
        more."""

        _vllm_base = vllm_base

        def __init__(self, vllm_config: Any, device: torch.device, runner: Any = None) -> None:
            super().__init__(vllm_config, device, self.pass_hidden_states_to_model, runner)

    return _VllmConstructor


def apply(edit: Edit) -> None:
    from vllm.v1.spec_decode import eagle

    host = edit.module
    functions = make_cls(
        host.AscendEagleProposer,
        name="_HostFunctions",
        bases=(vllm_constructor(eagle.SpecDecodeBaseProposer),),
    )
    base = type(functions)(
        "SpecDecodeBaseProposer",
        (ProposerBase, functions),
        {"__module__": host.__name__, "__doc__": ProposerBase.__doc__},
    )
    edit.set(host, "SpecDecodeBaseProposer", base)
