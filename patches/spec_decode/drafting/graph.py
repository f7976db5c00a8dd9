# SPDX-License-Identifier: Apache-2.0
"""Drafting inside the host's captured graphs.

A FULL graph holds all passes of a draft and is replayed on the addresses it was captured with: what the
passes read is copied into buffers of the proposer, and a batch smaller than the captured one is filled up
with requests that have no keys. The host captures passes of ``k + 1`` rows a request, which is what later
passes bring for a verified batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from .later_passes import PADDING_SLOT_ID, LaterPasses


@dataclass(frozen=True)
class Dispatch:
    """How a draft runs.

    Attributes:
        num_input_tokens: rows of the first pass, with padding to a captured size or to other ranks' sizes.
        mode: the CUDAGraphMode; descriptor: the batch descriptor of its graph.
        full: whether one captured graph holds all passes.
        tokens_across_dp: rows of the first pass on each data parallel rank, or None.
    """

    num_input_tokens: int
    mode: Any
    descriptor: Any
    full: bool
    tokens_across_dp: Any

    @classmethod
    def of(cls, proposer: Any, metadata: Any, num_tokens: int, batch: int) -> Dispatch:
        """Choose for a first pass of `num_tokens` rows."""
        from vllm.config import CUDAGraphMode

        runner = proposer.runner
        num_rows = num_tokens
        if proposer.use_cuda_graph:
            # The runner's own sizes are those before vLLM left out what is no multiple of k + 1.
            padded = runner.cudagraph_dispatcher._bs_to_padded_graph_size
            num_rows = padded[num_tokens] if num_tokens < len(padded) else num_tokens
        num_rows, across_dp, _ = runner._sync_metadata_across_dp(num_rows, is_draft_model=True)
        if not proposer.use_cuda_graph:
            return cls(num_rows, CUDAGraphMode.NONE, None, False, across_dp)
        rows = proposer.num_speculative_tokens + 1
        uniform = metadata.max_query_len == rows and num_tokens == rows * batch
        adapters = len(
            runner.input_batch.lora_id_to_lora_request
        )  # the target's: its descriptor is asked for
        mode, descriptor = runner.cudagraph_dispatcher.dispatch(
            num_tokens=num_rows,
            uniform_decode=uniform,
            has_lora=adapters > 0,
            num_active_loras=adapters,
        )
        full = mode == CUDAGraphMode.FULL
        if full and not uniform:
            return cls(num_rows, CUDAGraphMode.NONE, None, False, across_dp)
        return cls(num_rows, mode, descriptor, full, across_dp)


class GraphBuffers:
    """The addresses from which captured later passes read their rows, positions and slots."""

    def __init__(self, proposer: Any) -> None:
        steps = proposer.num_speculative_tokens - 1
        positions = proposer._get_positions(proposer.max_num_tokens)
        # The host captures sizes for more requests than may run; their dummy runs fill them.
        most = max(proposer.runner.max_num_reqs, proposer.max_num_tokens // (steps + 2))
        self.rows = positions.new_zeros((steps, most), dtype=torch.int64)
        self.positions = positions.new_zeros((steps, *positions.shape))
        self.slots: list[torch.Tensor] = proposer.slot_mapping_group[1:]

    def passes(self, dummy: LaterPasses, num_rows: int) -> LaterPasses:
        """What is captured: the passes of a dummy batch, with `num_rows` rows, reading the buffers."""
        return replace(
            dummy,
            num_rows=num_rows,
            rows=self.rows[:, : dummy.rows.shape[1]],
            positions=self.positions[..., :num_rows],
        )

    def fill(self, later: LaterPasses, captured: int, num_rows: int) -> LaterPasses:
        """Copy a plan into the buffers, for the graph of `captured` requests and `num_rows` rows.

        Returns:
            The plan, with its slots at the addresses that the graph reads.
        """
        batch = later.rows.shape[1]
        self.rows[:, :batch].copy_(later.rows)
        if batch < captured:
            # Requests that are not there draft in a row that is padding.
            self.rows[:, batch:captured].fill_(num_rows - 1)
        self.positions[..., : later.num_input_tokens].copy_(later.positions)
        for buffer, slots in zip(self.slots, later.slots, strict=True):
            buffer[: later.num_input_tokens].copy_(slots)
            buffer[later.num_input_tokens :].fill_(PADDING_SLOT_ID)
        return replace(later, slots=self.slots)


def fill_up(metadata: Any, num_rows: int, rows_per_request: int) -> Any:
    """`metadata` with requests without keys behind the real ones, so that each of `num_rows` rows has one."""
    missing = num_rows - metadata.num_actual_tokens
    if missing == 0:
        return metadata
    extra = [rows_per_request] * (missing // rows_per_request)
    if missing % rows_per_request:
        extra.append(missing % rows_per_request)
    starts = metadata.query_start_loc_cpu
    more = torch.tensor(extra, dtype=torch.int32).cumsum(0, dtype=torch.int32) + starts[-1]
    no_keys = torch.zeros(len(extra), dtype=metadata.seq_lens_cpu.dtype)
    num_reqs = metadata.num_reqs + len(extra)
    blocks = metadata.block_table_tensor
    if blocks.shape[0] < num_reqs:  # attention wants a row for each request, be there keys or not
        blocks = torch.nn.functional.pad(blocks, (0, 0, 0, num_reqs - blocks.shape[0]))
    return metadata.replace(
        query_start_loc_cpu=torch.cat((starts, more)),
        seq_lens_cpu=torch.cat((metadata.seq_lens_cpu, no_keys)),
        num_reqs=num_reqs,
        num_actual_tokens=num_rows,
        block_table_tensor=blocks,
    )
