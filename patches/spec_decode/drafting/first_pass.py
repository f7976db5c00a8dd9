# SPDX-License-Identifier: Apache-2.0
"""The inputs of the first draft pass, set in one place for both ways of feeding a drafting model.

EAGLE's way: as many rows as the target had. The tokens move up by one, the new token takes the last valid
row of each request.

    target   a0 a1 a2 | b0 b1      next  a3 | b2
    draft    a1 a2 a3 | b1 b2

With extra slots, for a model that never saw the target's hidden states: every request grows, and its
rejected rows move to the end.

    target   a0 a1 a2 | b0 b1 bx   (bx was rejected)
    draft    a0 a1 a2 a3 | b0 b1 b2 --
"""

from __future__ import annotations

from typing import Any

import torch

from .host import HostFunctions


class FirstPass(HostFunctions):  # type: ignore[misc]
    """``set_inputs_first_pass`` of Ascend's SpecDecodeBaseProposer."""

    def set_inputs_first_pass(
        self,
        target_token_ids: torch.Tensor,
        next_token_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_hidden_states: torch.Tensor,
        token_indices_to_sample: torch.Tensor | None,
        cad: Any,
        num_rejected_tokens_gpu: torch.Tensor | None,
        **host_arguments: Any,
    ) -> tuple[int, torch.Tensor, Any]:
        """Fill ``input_ids``, ``positions`` and ``hidden_states`` for the first draft pass, on the device.

        The contract is that of vLLM 0.16.0's method of this name; Ascend's attention also reads host-side
        lengths, which are kept equal.

        Args:
            target_token_ids: int32 [num_tokens], what the target was given.
            next_token_ids: int [batch_size], the token each request goes on with.
            target_positions: int64 [num_tokens] ([3, num_tokens] with M-RoPE).
            target_hidden_states: [num_tokens, hidden_size]; unused where the model is not passed hidden
                states.
            token_indices_to_sample: int [batch_size], rows to sample from on EAGLE's way; None: the last
                row of each request.
            cad: AscendCommonAttentionMetadata of the target's pass. Never written to.
            num_rejected_tokens_gpu: int [batch_size] rows at the end of each request that hold rejected
                tokens; None: none.

        Returns:
            The number of rows, the rows to sample from (int [batch_size], [batch_size * k] in parallel
            drafting), and the metadata of the first pass.
        """
        if host_arguments and self._host_drafts:
            theirs: tuple[int, torch.Tensor, Any] = super().set_inputs_first_pass(
                target_token_ids=target_token_ids,
                next_token_ids=next_token_ids,
                target_positions=target_positions,
                target_hidden_states=target_hidden_states,
                token_indices_to_sample=token_indices_to_sample,
                cad=cad,
                num_rejected_tokens_gpu=num_rejected_tokens_gpu,
                **host_arguments,
            )
            return theirs
        if self.needs_extra_input_slots:
            return self._set_inputs_with_extra_slots(
                target_token_ids,
                next_token_ids,
                target_positions,
                target_hidden_states,
                cad,
                num_rejected_tokens_gpu,
            )
        result: tuple[int, torch.Tensor, Any] = self._vllm_base.set_inputs_first_pass(
            self,
            target_token_ids,
            next_token_ids,
            target_positions,
            target_hidden_states,
            token_indices_to_sample,
            cad,
            num_rejected_tokens_gpu,
        )
        keep_positions_in_model(self, result[0])
        return result

    def _set_inputs_with_extra_slots(
        self,
        target_token_ids: torch.Tensor,
        next_token_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_hidden_states: torch.Tensor,
        cad: Any,
        num_rejected: torch.Tensor | None,
    ) -> tuple[int, torch.Tensor, Any]:
        from ascend_specpatch.kernels.copy_and_expand_inputs import copy_and_expand_inputs

        batch, num_tokens = next_token_ids.shape[0], target_token_ids.shape[0]
        slots, grow = self.extra_slots_per_request, self.net_num_new_slots_per_request
        num_rows = num_tokens + grow * batch
        start = cad.query_start_loc[: batch + 1]
        last_row = start[1:] - 1
        # What the kernel writes to. The rows of a request: its valid tokens, the next token, masked slots
        # (parallel drafting), rejected tokens.
        positions, rejected = self.positions[:num_rows], self.is_rejected_token_mask[:num_rows]
        masked = self.is_masked_token_mask[:num_rows]
        to_sample, row_of_hidden_state = start.new_empty(batch * slots), start.new_empty(num_tokens)
        copy_and_expand_inputs(
            target_token_ids,
            target_positions,
            next_token_ids.int(),
            self.input_ids[:num_rows],
            positions,
            rejected,
            masked,
            to_sample,
            row_of_hidden_state,
            start,
            last_row if num_rejected is None else last_row - num_rejected,
            padding_token_id=0,
            parallel_drafting_token_id=self.parallel_drafting_token_id,
            num_slots=slots,
            shift_input_ids=self.pass_hidden_states_to_model,
        )
        if self.pass_hidden_states_to_model:
            # Hidden states do not move: input row i of a request stays its row i, masked slots get the
            # model's own.
            hidden = self.hidden_states[:num_rows]
            hidden[row_of_hidden_state] = target_hidden_states
            torch.where(masked.unsqueeze(1), self.parallel_drafting_hidden_state_tensor, hidden, out=hidden)

        new_start = start + grow * self.arange[: batch + 1]
        no_slot = rejected | (positions >= self.max_model_len)
        positions.masked_fill_(no_slot, 0)
        request = torch.repeat_interleave(
            self.arange[:batch], new_start[1:] - new_start[:-1], output_size=num_rows
        )
        blocks = cad.block_table_tensor[request, positions // self.kernel_block_size]
        slot_mapping = (blocks * self.kernel_block_size + positions % self.kernel_block_size).int()
        return num_rows, to_sample, self._grown(cad, batch, new_start, slot_mapping.masked_fill_(no_slot, -1))

    def _grown(self, cad: Any, batch: int, new_start: torch.Tensor, slot_mapping: torch.Tensor) -> Any:
        """`cad` with every query longer by the new slots, on the device and on the host alike; `cad` itself
        is left as it is."""
        grow, num_rows = self.net_num_new_slots_per_request, slot_mapping.shape[0]
        return cad.replace(
            query_start_loc=new_start,
            query_start_loc_cpu=cad.query_start_loc_cpu[: batch + 1]
            + grow * torch.arange(batch + 1, dtype=torch.int32),
            seq_lens=cad.seq_lens[:batch] + grow,
            seq_lens_cpu=cad.seq_lens_cpu[:batch] + grow,
            num_reqs=batch,
            num_actual_tokens=num_rows,
            num_input_tokens=num_rows,
            max_query_len=cad.max_query_len + grow,
            max_seq_len=cad.max_seq_len + grow,
            slot_mapping=slot_mapping,
            positions=self.positions,
            attn_state=state_of_grown(cad.attn_state),
        )


def state_of_grown(state: Any) -> Any:
    """The AscendAttentionState of queries with new slots: a request that decoded one token has two rows."""
    return type(state)["ChunkedPrefill"] if state.name in ("DecodeOnly", "SpecDecoding") else state


def keep_positions_in_model(proposer: Any, num_rows: int) -> None:
    """Positions behind the drafting model's own length, where it has less room than the target, become 0: it
    has no rotary angles for them, and its drafts there are of no use."""
    if proposer.max_model_len < proposer.vllm_config.model_config.max_model_len:
        positions = proposer._get_positions(num_rows)
        positions.masked_fill_(positions >= proposer.max_model_len, 0)
