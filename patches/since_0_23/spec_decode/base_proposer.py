# SPDX-License-Identifier: Apache-2.0
"""spec_decode.base_proposer, for vllm-ascend 0.23.0

What: ``AscendSpecDecodeBaseProposer``, on which every proposer of this host that runs a model stands, drafts
    with the draft loop of this package.
Why: rejected tokens of a padded batch are in the attention of the later passes; with MLA every pass but the
    last rotates by the angles of another one; where a step ends inside a prompt, heads are fed the last token
    of the prompt in place of the next; a head without a language-model head has one that nobody wrote.
How: a subclass of the host's class takes its name before the host's proposers are made::

        vLLM SpecDecodeBaseProposer
        └─ the host's AscendSpecDecodeBaseProposer
           └─ AscendSpecDecodeBaseProposer   ProposerBase: the draft loop, and below how this host calls it
              └─ the host's AscendEagleProposer, AscendDraftModelProposer, ...

    What the loop does not know (see ``_host_drafts``) the host's functions draft, unchanged.
Until: vllm-ascend drafts as exactly.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ascend_specpatch.patches.spec_decode.drafting.first_pass import keep_positions_in_model, state_of_grown
from ascend_specpatch.patches.spec_decode.drafting.graph import GraphBuffers
from ascend_specpatch.patches.spec_decode.drafting.loop import DraftLoop

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    # The class it stands on, those that stand on it, and what they are given.
    "vllm.config.speculative:SpeculativeConfig.use_step3p5_mtp",
    "vllm.model_executor.models.utils:process_eagle_weight",
    "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.__init__",
    "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer._get_positions",
    "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer._maybe_share_lm_head",
    "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.initialize_attn_backend",
    "vllm.v1.worker.gpu_input_batch:CachedRequestState.get_token_id",
    "vllm_ascend.spec_decode.dflash_proposer:AscendDflashProposer",
    "vllm_ascend.spec_decode.draft_proposer:AscendDraftModelProposer",
    "vllm_ascend.spec_decode.eagle_proposer:AscendEagleProposer",
    "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer",
    "vllm_ascend.spec_decode.step3p5:AscendStep3p5MTPProposer",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.__init__",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._correct_optimistic_seq_lens_cpu",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._set_up_drafter",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._use_aclgraph",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.propose_draft_token_ids",
    # Attention metadata: its fields, its builders, and how attention reads rows, keys and slots.
    "vllm.v1.attention.backend:AttentionMetadataBuilder.build_for_drafting",
    "vllm.v1.attention.backend:CommonAttentionMetadata",
    "vllm.v1.spec_decode.utils:PADDING_SLOT_ID",
    "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl._get_fia_params",
    "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.forward_fused_infer_attention",
    "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.full_graph_fia",
    "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.reshape_and_cache",
    "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.update_graph_params",
    "vllm_ascend.attention.attention_v1:AscendAttentionMetadataBuilder",
    "vllm_ascend.attention.attention_v1:AscendAttentionState",
    "vllm_ascend.attention.mla_v1:AscendMLADecodeMetadata",
    "vllm_ascend.attention.mla_v1:AscendMLAImpl._forward_decode",
    "vllm_ascend.attention.mla_v1:AscendMLAImpl._forward_prefill",
    "vllm_ascend.attention.mla_v1:AscendMLAImpl.update_graph_params",
    "vllm_ascend.attention.mla_v1:AscendMLAMetadataBuilder",
    "vllm_ascend.attention.utils:AscendCommonAttentionMetadata",
    "vllm_ascend.attention.utils:split_decodes_and_prefills",
    "vllm_ascend.ops.rotary_embedding:get_cos_and_sin_mla",
    # Running the passes, captured or not.
    "vllm.config.compilation:CUDAGraphMode",
    "vllm.forward_context:ForwardContext",
    "vllm.forward_context:get_forward_context",
    "vllm.v1.cudagraph_dispatcher:CudagraphDispatcher._compute_bs_to_padded_graph_size",
    "vllm.v1.cudagraph_dispatcher:CudagraphDispatcher.dispatch",
    "vllm_ascend.ascend_config:get_ascend_config",
    "vllm_ascend.ascend_forward_context:_ExtraForwardContextProxy",
    "vllm_ascend.ascend_forward_context:set_ascend_forward_context",
    "vllm_ascend.compilation.acl_graph:ACLGraphWrapper",
    "vllm_ascend.compilation.acl_graph:update_full_graph_params",
    "vllm_ascend.utils:is_310p",
    "vllm_ascend.utils:lmhead_tp_enable",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._dummy_run",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._sync_metadata_across_dp",
)

_METHODS = ("eagle", "eagle3", "mtp", "draft_model")


class ProposerBase(DraftLoop):
    """The draft loop, called as this host calls it."""

    _rows_argument = "token_indices_to_sample"

    draft_attn_groups: list[Any]
    use_cuda_graph: bool

    def __init__(self, vllm_config: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(vllm_config, *arguments, **options)
        # The host gathers all logits whatever is asked; vLLM, which shares heads, would refuse most of them.
        self.use_local_argmax_reduction = False
        drafts_here = not self._host_drafts
        if drafts_here:
            self._end_with_drafting_model()
        if (
            drafts_here
            and self.needs_extra_input_slots
            and self.compilation_config.cudagraph_mode.has_full_cudagraphs()
        ):
            # The first pass is longer than the target's by a slot a request, so it fits none of the captured
            # sizes; and the host would start to capture it without what replays need.
            self.use_cuda_graph = False
        self.graph_buffers = GraphBuffers(self) if drafts_here and self.use_cuda_graph else None
        if drafts_here and vllm_config.model_config.is_deepseek_mla:
            size = vllm_config.model_config.hf_text_config.qk_rope_head_dim
            shape = (self.num_speculative_tokens, self.max_num_tokens, 1, 1, size)
            self._cos, self._sin = (self.hidden_states.new_zeros(shape) for _ in range(2))

    @functools.cached_property
    def _host_drafts(self) -> bool:
        """Context parallelism, attention that chooses its keys, methods with a loop of their own, a
        vocabulary that stays split over ranks, and 310P, for which the host has functions of its own."""
        from vllm_ascend.ascend_config import get_ascend_config
        from vllm_ascend.utils import is_310p

        return (
            super()._host_drafts
            or is_310p()
            or self.method not in _METHODS
            or self.speculative_config.use_step3p5_mtp()
            or self.use_sparse
            or self.use_compress
            or get_ascend_config().enable_reduce_sample
        )

    def _maybe_share_lm_head(self, model: Any) -> None:
        """vLLM decides whether the language-model head is the target's. The host's method, which also wraps
        the passes into graphs, asks for the method alone: a head that the checkpoint lacks is left with
        weights that nobody wrote, one that it has is replaced."""
        own = getattr(self.model, "lm_head", None)
        super()._maybe_share_lm_head(model)
        if self._host_drafts:
            return
        from vllm.model_executor.models import supports_multimodal
        from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

        if own is not None:
            self.model.lm_head = own
        language_model = model.get_language_model() if supports_multimodal(model) else model
        SpecDecodeBaseProposer._maybe_share_lm_head(self, language_model)

    def prepare_next_token_ids_padded(
        self, sampled_token_ids: torch.Tensor, requests: Any, gpu_input_batch: Any, *discarded: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A prompt that a step ends in goes on with its next token. The host takes its last one, which then
        stays in the drafting model's KV cache."""
        seen = SimpleNamespace(
            num_reqs=gpu_input_batch.num_reqs,
            req_ids=gpu_input_batch.req_ids,
            vocab_size=gpu_input_batch.vocab_size,
            num_tokens_no_spec=places_of_next_tokens(self, gpu_input_batch) + 1,
        )
        result: tuple[torch.Tensor, torch.Tensor] = super().prepare_next_token_ids_padded(
            sampled_token_ids, requests, seen, *discarded
        )
        return result

    def _inputs_of_first_pass(self, *arguments: Any) -> tuple[int, torch.Tensor, Any]:
        *tensors, metadata, num_rejected = arguments
        # Where the target ran in a padded graph, the block table is longer than the queries, by which the
        # slots of a draft model are computed.
        table = metadata.block_table_tensor[: metadata.query_start_loc.shape[0] - 1]
        num_tokens, to_sample, metadata, _ = self.set_inputs_first_pass(
            *tensors, metadata.replace(block_table_tensor=table), num_rejected
        )
        keep_positions_in_model(self, num_tokens)
        if self.needs_extra_input_slots:
            # MLA rotates by the positions in the metadata, where the host leaves the target's.
            metadata = metadata.replace(
                positions=self.positions, attn_state=state_of_grown(metadata.attn_state)
            )
        # Of two fields for the lengths on the host, attention takes the private one where it is set, and
        # without asynchronous scheduling both are.
        lengths = metadata.seq_lens_cpu if metadata._seq_lens_cpu is None else metadata._seq_lens_cpu
        metadata = metadata.replace(seq_lens_cpu=lengths, _seq_lens_cpu=None)
        if self.parallel_drafting:
            # Attention asks the device for the lengths then, and waits for the answer: the host knows them.
            metadata = metadata.replace(seq_lens=lengths)
        return num_tokens, to_sample, metadata

    def _run_merged_draft(self, *positional: Any, **arguments: Any) -> torch.Tensor:
        if self._host_drafts:
            # The function for 310P, which takes the place of this one, calls it with arguments by position.
            drafts: torch.Tensor = super(DraftLoop, self)._run_merged_draft(*positional, **arguments)
            return drafts
        if arguments.get("later") is None:
            # A dummy run, whose metadata the host builds: it may be captured.
            for step, built in enumerate(arguments["multi_steps_attn_metadata"]):
                self._read_own_rotary(built[self.attn_layer_names[0]], step)
        return super()._run_merged_draft(**arguments)

    def _metadata_builder(self) -> Any:
        return self.draft_attn_groups[0].get_metadata_builder()

    def _context_of_host(self) -> dict[str, Any]:
        runner = self.runner
        return {"eplb_heat_collection_status": runner.dynamic_eplb and runner.eplb_heat_collection_status}

    def _detach(self, built: Any, step: int) -> None:
        """Copy MLA's angles to where a captured graph reads them: this host drafts with MLA in graphs."""
        decode = getattr(built, "decode", None)
        if decode is not None:
            shared = decode.cos, decode.sin
            self._read_own_rotary(built, step)
            decode.cos.copy_(shared[0])
            decode.sin.copy_(shared[1])

    def _read_own_rotary(self, built: Any, step: int) -> None:
        decode = getattr(built, "decode", None)
        if decode is not None:
            rows = decode.cos.shape[0]
            decode.cos, decode.sin = self._cos[step, :rows], self._sin[step, :rows]


def places_of_next_tokens(proposer: Any, batch: Any) -> Any:
    """int [num_reqs]: where in its tokens a request has the one it goes on with, if none was sampled."""
    num_reqs = batch.num_reqs
    computed = proposer.runner.optimistic_seq_lens_cpu[:num_reqs].numpy()
    return np.minimum(batch.num_tokens_no_spec[:num_reqs] - 1, computed)


def apply(edit: Edit) -> None:
    host = edit.module
    base = host.AscendSpecDecodeBaseProposer
    # Made once: after an undo it is among the host's subclasses, which would be moved onto another one.
    made = [cls for cls in type.__subclasses__(base) if ProposerBase in cls.__bases__]
    patched = made[0] if made else _stand_on(base)
    edit.set(host, base.__name__, patched)


def _stand_on(base: Any) -> Any:
    return type(base)(
        base.__name__,
        (ProposerBase, base),
        {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__},
    )
