# SPDX-License-Identifier: Apache-2.0
"""The draft loop of Ascend's SpecDecodeBaseProposer: attention metadata of every pass first, then the
passes."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import torch

from .graph import Dispatch, fill_up
from .host import HostFunctions
from .later_passes import PADDING_SLOT_ID, LaterPasses

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOGGER = logging.getLogger("vllm.ascend_specpatch")
_MOST_ROWS_OF_A_DECODE = 16  # of npu_fused_infer_attention_score


class DraftLoop(HostFunctions):  # type: ignore[misc]
    """``_propose`` and ``_run_merged_draft`` of Ascend's SpecDecodeBaseProposer.

    What hosts call differently is in members of its own, in the form of vllm-ascend 0.16.0rc1; the adapter
    of another host overrides them.
    """

    _rows_argument = "last_token_indices"
    """How the host calls the rows to sample from, as an argument and as a buffer."""

    max_model_len: int

    @property
    def _host_drafts(self) -> bool:
        """Context parallelism splits rows over ranks: the host's functions draft."""
        return bool(self.pcp_size * self.dcp_size > 1)

    @property
    def _passes_are_alike(self) -> bool:
        """Whether all passes have as many rows: captured graphs have one size, and heads that meet other
        ranks in expert parallel layers bring them as many in every pass."""
        return bool(self.method == "mtp" or self.use_cuda_graph)

    @property
    def _sampled_rows(self) -> torch.Tensor:
        """The host's buffer of the rows to sample from."""
        buffer: torch.Tensor = getattr(self, self._rows_argument)
        return buffer

    def _metadata_builder(self) -> Any:
        """What builds the attention metadata of the drafting model's layers."""
        return self._get_attention_metadata_builder()

    def _propose(
        self,
        target_token_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_hidden_states: torch.Tensor,
        next_token_ids: torch.Tensor,
        common_attn_metadata: Any,
        mm_embed_inputs: Any = None,
        **host_arguments: Any,
    ) -> torch.Tensor:
        """Draft ``num_speculative_tokens`` tokens for every request, without a copy to the host.

        Args: those of :meth:`set_inputs_first_pass`, and what the host's ``_propose`` takes beside them, all
            by name: hosts have them in different order.

        Returns:
            int64 [batch_size, num_speculative_tokens].
        """
        if self._host_drafts:
            # The host builds the metadata of later passes over the runner's positions, and reads ours after.
            drafts: torch.Tensor = super()._propose(
                target_token_ids=target_token_ids,
                target_positions=target_positions.clone(),
                target_hidden_states=target_hidden_states,
                next_token_ids=next_token_ids,
                common_attn_metadata=common_attn_metadata,
                mm_embed_inputs=mm_embed_inputs,
                **host_arguments,
            )
            return drafts

        num_rejected_tokens_gpu = host_arguments.get("num_rejected_tokens_gpu")
        if self.method == "eagle3":
            target_hidden_states = self.model.combine_hidden_states(target_hidden_states)
        num_tokens, to_sample, metadata = self._inputs_of_first_pass(
            target_token_ids,
            next_token_ids,
            target_positions,
            target_hidden_states,
            host_arguments.get(self._rows_argument),
            common_attn_metadata,
            num_rejected_tokens_gpu,
        )
        batch = next_token_ids.shape[0]
        run = Dispatch.of(self, metadata, num_tokens, batch)
        if run.full and num_rejected_tokens_gpu is None:
            num_rejected_tokens_gpu = torch.zeros_like(to_sample)  # a graph has rows for rejected tokens
        padded_to = run.num_input_tokens if self._passes_are_alike else None
        later = LaterPasses.plan(self, metadata, to_sample, num_rejected_tokens_gpu, padded_to)
        captured = batch
        if run.full:
            captured = run.num_input_tokens // (self.num_speculative_tokens + 1)
            self._sampled_rows[:batch].copy_(to_sample)
            self._sampled_rows[batch:captured].zero_()
            to_sample = self._sampled_rows[:captured]
            if later is not None:
                later = self.graph_buffers.fill(later, captured, run.num_input_tokens)
        passes = self._metadata_of_all_passes(metadata, later, run)
        with self._forward_context(passes, run, num_tokens):
            if run.full and self._update_comes_first:
                self._update_graph(run, passes)
            drafts = self._runnable(
                num_input_tokens=run.num_input_tokens,
                batch_size=captured,
                target_positions=None,
                inputs_embeds=self._first_pass_embeds(num_tokens, run.num_input_tokens, mm_embed_inputs),
                multi_steps_attn_metadata=passes,
                num_tokens=num_tokens,
                later=later,
                **{self._rows_argument: to_sample},
            )
            if run.full and not self._update_comes_first:
                self._update_graph(run, passes)
        return drafts[:batch]

    def _inputs_of_first_pass(self, *arguments: Any) -> tuple[int, torch.Tensor, Any]:
        """:meth:`set_inputs_first_pass`, with lengths on the host in ``seq_lens_cpu`` and nowhere else."""
        inputs: tuple[int, torch.Tensor, Any] = self.set_inputs_first_pass(*arguments)
        return inputs

    @property
    def _update_comes_first(self) -> bool:
        """Whether the host has the lengths of a captured graph updated before its replay."""
        return bool(getattr(self, "enable_enpu", False))

    def _update_graph(self, run: Dispatch, passes: list[dict[str, Any]]) -> None:
        from vllm.forward_context import get_forward_context

        self._update_full_graph_params(get_forward_context(), run.num_input_tokens, passes)

    def _end_with_drafting_model(self) -> None:
        """Where it has room for fewer tokens than the target, ``max_model_len`` is its own."""
        target = self.max_model_len
        self.max_model_len = min(target, self.draft_model_config.max_model_len)
        if self.max_model_len < target:
            _LOGGER.warning(
                "The drafting model has room for %d tokens, the target for %d: requests go on beyond that, "
                "but not faster than without speculative decoding",
                self.max_model_len,
                target,
            )

    def _first_pass_embeds(
        self, num_tokens: int, num_input_tokens: int, mm_embed_inputs: Any
    ) -> torch.Tensor | None:
        if not self.supports_mm_inputs:
            return None
        embeds, is_multimodal = mm_embed_inputs or (None, None)
        buffer: torch.Tensor = self.inputs_embeds
        buffer[:num_tokens] = self.model.embed_input_ids(
            self.input_ids[:num_tokens], multimodal_embeddings=embeds, is_multimodal=is_multimodal
        )
        return buffer[:num_input_tokens]

    def _metadata_of_all_passes(
        self, metadata: Any, later: LaterPasses | None, run: Dispatch
    ) -> list[dict[str, Any]]:
        """Attention metadata by pass and layer. Nothing a pass reads is written to by the next one."""
        builder = self._metadata_builder()
        layers: list[str] = self.attn_layer_names
        slots = self.slot_mapping_group[0]
        # The buffer keeps one address and ends in padding, which the host's attention may read up to the
        # padded length.
        length = metadata.slot_mapping.shape[0]
        slots[:length].copy_(metadata.slot_mapping)
        slots[length:].fill_(PADDING_SLOT_ID)
        first = metadata.replace(slot_mapping=slots, num_input_tokens=run.num_input_tokens)
        steps = [first] if later is None else [first, *later.metadata(first)]
        passes = []
        for step, common in enumerate(steps):
            if run.full:
                common = fill_up(common, run.num_input_tokens, self.num_speculative_tokens + 1)
            with self._with_slots(builder) if step == 0 else contextlib.nullcontext():
                built = builder.build_for_drafting(common_attn_metadata=common, draft_index=step)
            self._detach(built, step)
            passes.append(dict.fromkeys(layers, built))
        return passes

    @contextlib.contextmanager
    def _with_slots(self, builder: Any) -> Iterator[None]:
        """Where a slot was added, MLA still takes what a step verifies for decodes, by their length: prefills
        see no keys of earlier steps unless they are chunked."""
        threshold = getattr(builder, "decode_threshold", None)
        if threshold is None or not self.needs_extra_input_slots:
            yield
            return
        longest = threshold + self.net_num_new_slots_per_request
        builder.decode_threshold = min(longest, _MOST_ROWS_OF_A_DECODE)
        try:
            yield
        finally:
            builder.decode_threshold = threshold

    def _forward_context(self, passes: list[dict[str, Any]], run: Dispatch, num_tokens: int) -> Any:
        from vllm_ascend.ascend_forward_context import set_ascend_forward_context

        return set_ascend_forward_context(
            passes[0],
            self.vllm_config,
            num_tokens=run.num_input_tokens,
            num_tokens_across_dp=run.tokens_across_dp,
            num_actual_tokens=num_tokens,
            batch_descriptor=run.descriptor,
            aclgraph_runtime_mode=run.mode,
            is_draft_model=True,
            draft_attn_metadatas=passes,
            **self._context_of_host(),
        )

    def _context_of_host(self) -> dict[str, Any]:
        """What else a host puts into the forward context of a draft."""
        return {}

    def _detach(self, built: Any, step: int) -> None:
        """Take what a pass reads out of what the host shares between passes."""
        _keep_own_buffers(built)

    def _run_merged_draft(
        self,
        num_input_tokens: int,
        batch_size: int,
        inputs_embeds: torch.Tensor | None,
        multi_steps_attn_metadata: list[dict[str, Any]],
        is_dummy: bool = False,
        later: LaterPasses | None = None,
        **host_arguments: Any,
    ) -> torch.Tensor:
        """Run the passes; every one after the first is fed by the one before it.

        Args: those of the host, by name, and the plan of the later passes (None in a dummy run: one row a
            request).

        Returns:
            int64 [batch_size, num_speculative_tokens].
        """
        if self._host_drafts:
            if is_dummy:  # not every host has this argument
                host_arguments["is_dummy"] = True
            drafts: torch.Tensor = super()._run_merged_draft(
                num_input_tokens=num_input_tokens,
                batch_size=batch_size,
                inputs_embeds=inputs_embeds,
                multi_steps_attn_metadata=multi_steps_attn_metadata,
                **host_arguments,
            )
            return drafts

        from vllm.forward_context import get_forward_context

        context = get_forward_context()
        last_hidden, hidden = self._run_model(num_input_tokens, inputs_embeds)
        to_sample = host_arguments[self._rows_argument]
        if self.parallel_drafting and to_sample.shape[0] == batch_size:
            # A dummy run may name one row a request; drafting in parallel samples from k of each.
            to_sample = to_sample.repeat_interleave(self.num_speculative_tokens)
        token_ids = self._greedy(last_hidden, to_sample, is_dummy)
        if self.num_speculative_tokens == 1 or self.parallel_drafting:
            return token_ids.view(-1, self.num_speculative_tokens)

        if later is None:
            later = LaterPasses.dummy(self, batch_size)
            if self.graph_buffers is not None:
                later = self.graph_buffers.passes(later, num_input_tokens)
        num_rows = num_input_tokens if self._passes_are_alike else max(later.num_rows, 1)
        context.num_tokens, context.num_accept_tokens = num_rows, batch_size
        hidden = hidden[to_sample]
        drafts_by_step = [token_ids]
        for step in range(self.num_speculative_tokens - 1):
            rows = later.rows[step]
            self.input_ids[rows] = token_ids.int()
            # Not by _set_positions, which takes those of a target with M-RoPE for three axes.
            self._get_positions(later.positions.shape[-1]).copy_(later.positions[step])
            embeds = None
            if self.pass_hidden_states_to_model:
                self.hidden_states[rows] = hidden
            if self.supports_mm_inputs:
                embeds = self.inputs_embeds[:num_rows]
                embeds[rows] = self.model.embed_input_ids(token_ids)
            if multi_steps_attn_metadata:
                context.attn_metadata = multi_steps_attn_metadata[step + 1]
            context.moe_layer_index = 0
            last_hidden, hidden = self._run_model(num_rows, embeds)
            token_ids = self._greedy(last_hidden, rows, is_dummy)
            hidden = hidden[rows]
            drafts_by_step.append(token_ids)
        return torch.stack(drafts_by_step, dim=1)

    def _run_model(
        self, num_rows: int, inputs_embeds: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One pass over the first `num_rows` rows of the buffers; what to sample from, and what to feed
        on."""
        positions = self._get_positions(num_rows)
        inputs: dict[str, Any] = {"input_ids": self.input_ids[:num_rows], "inputs_embeds": inputs_embeds}
        if self.pass_hidden_states_to_model:
            hidden, positions = self.maybe_pad_and_reduce(self.hidden_states[:num_rows], positions)
            inputs["hidden_states"] = hidden
        result = self.model(positions=positions, **inputs)
        last_hidden, hidden = result if self.model_returns_tuple() else (result, result)
        last_hidden, _, hidden = self.maybe_all_gather_and_unpad(last_hidden, positions, hidden)
        return last_hidden, hidden

    def _greedy(self, hidden: torch.Tensor, rows: torch.Tensor, is_dummy: bool) -> torch.Tensor:
        """The likeliest token of each of `rows`, int64."""
        from vllm_ascend.utils import lmhead_tp_enable

        count = rows.shape[0]
        if lmhead_tp_enable() and not is_dummy:
            # Every rank brings the same number of rows to a language-model head that is split over ranks.
            most = self.vllm_config.scheduler_config.max_num_seqs * self.runner.uniform_decode_query_len
            rows = torch.nn.functional.pad(rows, (0, most - count))
        logits: torch.Tensor = self.model.compute_logits(hidden[rows])
        token_ids = logits[:count].argmax(dim=-1)
        if token_ids.shape[0] < count:
            # An idle rank's dummy run may name more rows than a rank brings: nobody reads what it drafts.
            token_ids = torch.nn.functional.pad(token_ids, (0, count - token_ids.shape[0]))
        return token_ids

    def dummy_run(self, num_tokens: int, *args: Any, **kwargs: Any) -> None:
        """The host's dummy run. A profile run makes room for the slot that each request gains in the first
        pass."""
        if kwargs.get("is_profile") and self.needs_extra_input_slots:
            more = self.net_num_new_slots_per_request * self.runner.max_num_reqs
            num_tokens = min(num_tokens + more, self.max_num_tokens)
        # The buffers may hold rows of an earlier, longer batch.
        self._sampled_rows.zero_()
        if self.graph_buffers is not None:
            self.graph_buffers.rows.zero_()
        super().dummy_run(num_tokens, *args, **kwargs)


def _keep_own_buffers(built: Any) -> None:
    """MLA's builders hand every pass views of one cos/sin buffer, which the next build overwrites: take
    copies. With sparse attention the metadata itself has them, and under its context parallelism lengths."""
    for holder, names in (
        (getattr(built, "decode", None), ("cos", "sin")),
        (built, ("cos", "sin")),
        (getattr(built, "dsa_cp_context", None), ("actual_seq_lengths_query", "actual_seq_lengths_key")),
    ):
        for name in names:
            if getattr(holder, name, None) is not None:
                setattr(holder, name, getattr(holder, name).clone())
