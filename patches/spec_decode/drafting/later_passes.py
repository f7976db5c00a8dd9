# SPDX-License-Identifier: Apache-2.0
"""The rows of the draft passes after the first, such that rejected tokens are out of their attention.

Ascend's attention takes KV lengths from the host, and the host does not know how many tokens were rejected:
only the device does, and a copy would stall it. So a request brings not one row to a later pass but as many
as might be rejected and one more, and the token that is drafted from stands in the row that the device
picks. The causal mask is aligned to the end: of `n` rows over `m` keys, row `i` sees keys ``0 .. m - n +
i``. With `r` of the last keys rejected, row ``n - 1 - r`` sees exactly the keys before them.

    keys      k0 k1 k2 k3 xx xx   two rejected, known to the device only      length on the host: 6
    rows                 .  T  .  .    T sees k0..k3

The other rows compute what nobody reads, and write no KV (slot -1). A batch in which nothing can have been
rejected (a prefill) brings one row a request. The rows of a verified batch are as many as the target had
for it, so the buffers and the attention layout are at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

PADDING_SLOT_ID = -1


@dataclass(frozen=True)
class LaterPasses:
    """The plan of passes 2 .. k; ``k - 1`` of them, planned at once.

    Attributes:
        num_rows: rows of each pass.
        num_input_tokens: those and the padding that the model is run with; it stands at position 0.
        rows: int [k - 1, batch_size], the row of each request that holds the token drafted from.
        positions: int64 [k - 1, num_input_tokens] ([k - 1, 3, num_input_tokens] with M-RoPE), 0 from the
            model's maximum length on.
        slots: int32 [k - 1, num_input_tokens], KV slots, -1 where nothing is to be written.
        seq_lens: int32 [k - 1, batch_size], keys of each request as the host counts them: with rejected ones.
        query_start_loc: int32 [batch_size + 1], the first row of each request; query_start_loc_cpu is the
            same on the host.
        max_query_len: rows of the request that has most.
        max_model_len: tokens; keys of a request end there.
        state: the AscendAttentionState of the passes.
    """

    num_rows: int
    num_input_tokens: int
    rows: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    max_query_len: int
    max_model_len: int
    state: Any

    @classmethod
    def plan(
        cls,
        proposer: Any,
        metadata: Any,
        to_sample: torch.Tensor,
        num_rejected: torch.Tensor | None,
        padded_to: int | None = None,
    ) -> LaterPasses | None:
        """Plan from the metadata of the first pass and the positions in the proposer's buffers.

        Args:
            proposer: the SpecDecodeBaseProposer, after its inputs of the first pass were set.
            metadata: AscendCommonAttentionMetadata of the first pass.
            to_sample: int [batch_size], the rows of the first pass that are sampled from.
            num_rejected: int [batch_size] on the device; None: nothing was rejected.
            padded_to: rows that the model is run with in every pass; None: as many as there are.

        Returns:
            None where one pass drafts everything.
        """
        steps, longest_model = proposer.num_speculative_tokens - 1, proposer.max_model_len
        if steps == 0 or proposer.parallel_drafting:
            return None
        batch, device = to_sample.shape[0], to_sample.device
        start, start_cpu = _first_rows(proposer, metadata, batch, num_rejected)
        num_rows, longest = int(start_cpu[-1]), int((start_cpu[1:] - start_cpu[:-1]).max())
        num_input_tokens = padded_to or num_rows

        step = proposer.arange[1 : steps + 1].unsqueeze(1)
        lengths = metadata.seq_lens[:batch] + step
        last = start[1:] - 1
        if num_rejected is None:
            key, rows = lengths - 1, last.expand(steps, batch).long()
        else:
            key = lengths - 1 - num_rejected
            # Keys end at the maximum length; what the host cannot add there moves the row instead.
            beyond = torch.clamp(lengths - longest_model, min=0)
            rows = torch.minimum(last - num_rejected + beyond, last).long()
        too_long = key >= longest_model

        # KV goes behind the last valid key, which with M-RoPE is not where the position says.
        key = key.masked_fill(too_long, 0).long()
        size = proposer.kernel_block_size
        blocks = metadata.block_table_tensor[:batch].gather(1, (key // size).t()).t()
        slot = (blocks * size + key % size).int().masked_fill_(too_long, PADDING_SLOT_ID)
        slots = torch.full((steps, num_input_tokens), PADDING_SLOT_ID, dtype=torch.int32, device=device)

        return cls(
            num_rows=num_rows,
            num_input_tokens=num_input_tokens,
            rows=rows,
            positions=_positions(proposer, to_sample, step, rows, too_long, num_input_tokens),
            slots=slots.scatter_(1, rows, slot),
            seq_lens=torch.clamp(lengths, max=longest_model),
            query_start_loc=start,
            query_start_loc_cpu=start_cpu,
            max_query_len=longest,
            max_model_len=longest_model,
            state=type(metadata.attn_state)["SpecDecoding" if proposer.method == "mtp" else "ChunkedPrefill"],
        )

    @classmethod
    def dummy(cls, proposer: Any, batch: int) -> LaterPasses:
        """Passes of one row a request at position 0 that write nothing: for runs that only take time and
        memory."""
        steps, device = proposer.num_speculative_tokens - 1, proposer.device
        start_cpu = torch.arange(batch + 1, dtype=torch.int32)
        positions = proposer._get_positions(batch)
        return cls(
            num_rows=batch,
            num_input_tokens=batch,
            rows=proposer.arange[:batch].expand(steps, batch).long(),
            positions=positions.new_zeros((steps, *positions.shape)),
            slots=torch.full((steps, batch), PADDING_SLOT_ID, dtype=torch.int32, device=device),
            seq_lens=torch.ones((steps, batch), dtype=torch.int32, device=device),
            query_start_loc=proposer.arange[: batch + 1],
            query_start_loc_cpu=start_cpu,
            max_query_len=1,
            max_model_len=proposer.max_model_len,
            state=None,
        )

    def metadata(self, first: Any) -> list[Any]:
        """AscendCommonAttentionMetadata of every later pass, each with lengths, slots and positions of its
        own."""
        batch = self.query_start_loc.shape[0] - 1
        query_lens = self.query_start_loc_cpu[1:] - self.query_start_loc_cpu[:-1]
        common = []
        for step in range(self.rows.shape[0]):
            lens_cpu = torch.clamp(first.seq_lens_cpu[:batch] + step + 1, max=self.max_model_len)
            common.append(
                first.replace(
                    query_start_loc=self.query_start_loc,
                    query_start_loc_cpu=self.query_start_loc_cpu,
                    seq_lens=self.seq_lens[step],
                    seq_lens_cpu=lens_cpu,
                    num_computed_tokens_cpu=lens_cpu - query_lens,
                    num_reqs=batch,
                    num_actual_tokens=self.num_rows,
                    num_input_tokens=self.num_input_tokens,
                    max_query_len=self.max_query_len,
                    max_seq_len=int(lens_cpu.max()),
                    block_table_tensor=first.block_table_tensor[:batch],
                    slot_mapping=self.slots[step],
                    positions=self.positions[step] if self.positions.dim() == 2 else self.positions[step][0],
                    decode_token_per_req=1,
                    attn_state=self.state,
                    graph_pad_size=-1,
                )
            )
        return common


def _first_rows(
    proposer: Any, metadata: Any, batch: int, num_rejected: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """First row of each request and the total, int32 [batch + 1], on the device and on the host."""
    if num_rejected is None:
        return proposer.arange[: batch + 1], torch.arange(batch + 1, dtype=torch.int32)
    ends = metadata.query_start_loc_cpu[: batch + 1]
    # At most every drafted token was rejected, and a request has a row for each and one more.
    rows = torch.clamp(ends[1:] - ends[:-1], max=proposer.num_speculative_tokens + 1)
    start_cpu = torch.zeros(batch + 1, dtype=torch.int32)
    torch.cumsum(rows, 0, out=start_cpu[1:])
    return start_cpu.pin_memory().to(proposer.device, non_blocking=True), start_cpu


def _positions(
    proposer: Any,
    to_sample: torch.Tensor,
    step: torch.Tensor,
    rows: torch.Tensor,
    too_long: torch.Tensor,
    num_input_tokens: int,
) -> torch.Tensor:
    """Positions of the rows of every pass: those of the sampled rows, a step further at each pass."""
    sampled = proposer._get_positions(proposer.max_num_tokens)[..., to_sample]
    axes = sampled.shape[:-1]  # none, or one for each axis of M-RoPE
    for _ in axes:
        step, rows, too_long = step.unsqueeze(1), rows.unsqueeze(1), too_long.unsqueeze(1)
    position = (sampled + step).masked_fill_(too_long, 0)
    positions = sampled.new_zeros((position.shape[0], *axes, num_input_tokens))
    return positions.scatter_(-1, rows.expand_as(position), position)
