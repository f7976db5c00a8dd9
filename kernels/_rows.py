# SPDX-License-Identifier: Apache-2.0
"""Batches of requests with a number of draft tokens each, one after the other in one vector: what kernels
and references share."""

from __future__ import annotations

import torch
from vllm.triton_utils import tl, triton


@triton.jit
def tokens_of(cu_num_draft_tokens_ptr, request, max_spec_len):  # type: ignore[no-untyped-def]
    """First draft token and number of draft tokens of a request, those that a row of the output holds."""
    # A load before the first element is a fault on the NPU even where its mask is false.
    before = tl.load(cu_num_draft_tokens_ptr + tl.maximum(request - 1, 0))
    start = tl.where(request > 0, before, 0)
    length = tl.load(cu_num_draft_tokens_ptr + request) - start
    return start, tl.minimum(tl.maximum(length, 0), max_spec_len)


def drafted(cu_num_draft_tokens: torch.Tensor, max_spec_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """First draft token, int64 [num_reqs], and number of draft tokens, int64 [num_reqs, 1], of each request;
    as :func:`tokens_of`."""
    end = cu_num_draft_tokens.long()
    start = torch.cat([end.new_zeros(1), end])[: end.shape[0]]
    return start, (end - start).clamp(0, max_spec_len).unsqueeze(1)


def in_rows(flat: torch.Tensor, start: torch.Tensor, width: int) -> torch.Tensor:
    """[num_reqs, width]: for each request the `width` elements of `flat` from its `start` on; zero behind the
    end of `flat`."""
    columns = torch.arange(width, device=flat.device)
    return torch.nn.functional.pad(flat, (0, width))[start.unsqueeze(1) + columns]


def probability(probs: torch.Tensor, start: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """[num_reqs, width] of `probs` [num_tokens, vocab_size] at `token_ids` [num_reqs, width]; zero for a
    token that is not in the vocabulary and for a row that `probs` does not have."""
    num_tokens, vocab_size = probs.shape
    token = start.unsqueeze(1) + torch.arange(token_ids.shape[1], device=probs.device)
    known = (token_ids >= 0) & (token_ids < vocab_size) & (token < num_tokens)
    if probs.numel() == 0:
        return torch.zeros(token_ids.shape, dtype=probs.dtype, device=probs.device)
    found = probs.flatten()[torch.where(known, token * vocab_size + token_ids, 0)]
    return torch.where(known, found, 0.0)


def write_rows(
    output: torch.Tensor, tokens: torch.Tensor, last: torch.Tensor, wanted: torch.Tensor | None
) -> None:
    """Write `tokens` [num_reqs, width] up to column `last` [num_reqs, 1] into int32 `output`; only the rows
    that are `wanted`, bool [num_reqs], if there is that."""
    written = torch.arange(output.shape[1], device=output.device) <= last
    if wanted is not None:
        written &= wanted.unsqueeze(1)
    output.copy_(torch.where(written, tokens.int(), output))
