# SPDX-License-Identifier: Apache-2.0
"""Rejection sampling of random requests: a draft token is accepted with probability target / draft.

Stands for the ``rejection_random_sample_kernel`` of vLLM and of vllm-ascend.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from vllm.triton_utils import tl, triton

from ._dispatch import on_npu, positions, programs, use_triton
from ._rows import drafted, in_rows, probability, tokens_of, write_rows


@triton.jit
def _one_by_one(  # type: ignore[no-untyped-def]
    output_ptr,
    draft_token_ids_ptr,
    draft_probs_ptr,
    target_probs_ptr,
    recovered_token_ids_ptr,
    uniform_probs_ptr,
    bonus,
    start,
    length,
    vocab_size,
):
    """For an NPU, where a gather is a loop over scalars anyway: stops at the first rejected token."""
    accepted = 0
    going_on = length > 0
    while going_on:
        token = start + accepted
        draft = tl.load(draft_token_ids_ptr + token)
        known = (draft >= 0) & (draft < vocab_size)
        # All rows together may have more than 2^31 elements.
        at = token.to(tl.int64) * vocab_size + tl.where(known, draft, 0)
        target_prob = tl.load(target_probs_ptr + at)
        uniform = tl.load(uniform_probs_ptr + token).to(tl.float32)
        if draft_probs_ptr is None:
            accept = known & (target_prob >= uniform)
        else:
            draft_prob = tl.load(draft_probs_ptr + at)
            accept = known & (draft_prob > 0) & (target_prob / draft_prob >= uniform)
        if accept:
            tl.store(output_ptr + accepted, draft)
            accepted += 1
        going_on = accept & (accepted < length)
    one = tl.arange(0, 1)
    if accepted < length:
        bonus = tl.load(recovered_token_ids_ptr + start + accepted + one)
    tl.store(output_ptr + accepted + one, bonus)


@triton.jit  # type: ignore[untyped-decorator]
def _at_once(  # type: ignore[no-untyped-def]
    output_ptr,
    draft_token_ids_ptr,
    draft_probs_ptr,
    target_probs_ptr,
    recovered_token_ids_ptr,
    uniform_probs_ptr,
    bonus,
    start,
    length,
    vocab_size,
    POSITIONS: tl.constexpr,
):
    """For a GPU: no load waits for the verdict on the token before."""
    position = tl.arange(0, POSITIONS)
    inside = position < length
    draft = tl.load(draft_token_ids_ptr + start + position, mask=inside, other=-1)
    uniform = tl.load(uniform_probs_ptr + start + position, mask=inside, other=0.0).to(tl.float32)
    recovered = tl.load(recovered_token_ids_ptr + start + position, mask=inside, other=0)
    known = (draft >= 0) & (draft < vocab_size)
    # All rows together may have more than 2^31 elements, those of one request have not.
    row = start.to(tl.int64) * vocab_size
    column = tl.where(known, position * vocab_size + draft, 0)
    target_prob = tl.load(target_probs_ptr + row + column, mask=known, other=0.0)
    if draft_probs_ptr is None:
        accept = known & (target_prob >= uniform)
    else:
        draft_prob = tl.load(draft_probs_ptr + row + column, mask=known, other=0.0)
        accept = known & (draft_prob > 0) & (target_prob / draft_prob >= uniform)
    accepted = tl.min(tl.where(inside & ~accept, position, length), 0)
    last = tl.where(inside, recovered, bonus)
    tl.store(output_ptr + position, tl.where(position < accepted, draft, last), mask=position <= accepted)


@triton.jit  # type: ignore[untyped-decorator]
def _one_request(  # type: ignore[no-untyped-def]
    output_token_ids_ptr,
    cu_num_draft_tokens_ptr,
    draft_token_ids_ptr,
    draft_probs_ptr,
    target_probs_ptr,
    bonus_token_ids_ptr,
    recovered_token_ids_ptr,
    uniform_probs_ptr,
    is_greedy_ptr,
    request,
    max_spec_len,
    vocab_size,
    POSITIONS: tl.constexpr,
):
    # What is only moved, or comes with a wait anyway, is loaded as a vector of one: a scalar load stalls a
    # core of an NPU.
    one = tl.arange(0, 1)
    greedy = 0 if is_greedy_ptr is None else tl.max(tl.load(is_greedy_ptr + request + one).to(tl.int32), 0)
    start, length = tokens_of(cu_num_draft_tokens_ptr, request, max_spec_len)
    bonus = tl.load(bonus_token_ids_ptr + request + one)
    output_ptr = output_token_ids_ptr + request * (max_spec_len + 1)
    if greedy == 0:
        if POSITIONS == 0:
            _one_by_one(
                output_ptr, draft_token_ids_ptr, draft_probs_ptr, target_probs_ptr, recovered_token_ids_ptr,
                uniform_probs_ptr, bonus, start, length, vocab_size,
            )  # fmt: skip
        else:
            _at_once(
                output_ptr, draft_token_ids_ptr, draft_probs_ptr, target_probs_ptr, recovered_token_ids_ptr,
                uniform_probs_ptr, bonus, start, length, vocab_size, POSITIONS,
            )  # fmt: skip


@triton.jit(do_not_specialize=["num_reqs", "max_spec_len", "vocab_size"])  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    output_token_ids_ptr,
    cu_num_draft_tokens_ptr,
    draft_token_ids_ptr,
    draft_probs_ptr,
    target_probs_ptr,
    bonus_token_ids_ptr,
    recovered_token_ids_ptr,
    uniform_probs_ptr,
    is_greedy_ptr,
    num_reqs,
    max_spec_len,
    vocab_size,
    POSITIONS: tl.constexpr,
    STRIDE: tl.constexpr,
):
    request = tl.program_id(0)
    if STRIDE:
        # Not range(): see rejection_greedy.
        while request < num_reqs:
            _one_request(
                output_token_ids_ptr, cu_num_draft_tokens_ptr, draft_token_ids_ptr, draft_probs_ptr,
                target_probs_ptr, bonus_token_ids_ptr, recovered_token_ids_ptr, uniform_probs_ptr,
                is_greedy_ptr, request, max_spec_len, vocab_size, POSITIONS,
            )  # fmt: skip
            request += tl.num_programs(0)
    else:
        _one_request(
            output_token_ids_ptr, cu_num_draft_tokens_ptr, draft_token_ids_ptr, draft_probs_ptr,
            target_probs_ptr, bonus_token_ids_ptr, recovered_token_ids_ptr, uniform_probs_ptr, is_greedy_ptr,
            request, max_spec_len, vocab_size, POSITIONS,
        )  # fmt: skip


def reference(
    output_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    recovered_token_ids: torch.Tensor,
    uniform_probs: torch.Tensor,
    is_greedy: torch.Tensor | None,
) -> None:
    """The same in torch, on the device of its arguments, without a copy to the host. See
    :func:`rejection_random`."""
    width = output_token_ids.shape[1]
    start, length = drafted(cu_num_draft_tokens, width - 1)
    position = torch.arange(width, device=output_token_ids.device)
    draft = in_rows(draft_token_ids, start, width)
    known = (draft >= 0) & (draft < target_probs.shape[1])
    ratio = probability(target_probs, start, draft)
    if draft_probs is not None:
        draft_prob = probability(draft_probs, start, draft)
        known &= draft_prob > 0
        ratio = ratio / draft_prob
    accept = known & (ratio >= in_rows(uniform_probs.float(), start, width))
    accepted = torch.where(accept, length, position).minimum(length).amin(1, keepdim=True)
    recovered = in_rows(recovered_token_ids, start, width)
    last = torch.where(accepted < length, recovered, bonus_token_ids.view(-1, 1))
    tokens = torch.where(position < accepted, draft, last)
    write_rows(output_token_ids, tokens, accepted, None if is_greedy is None else ~is_greedy)


def rejection_random(
    output_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    recovered_token_ids: torch.Tensor,
    uniform_probs: torch.Tensor,
    is_greedy: torch.Tensor | None,
) -> None:
    """Write the tokens of random requests: draft tokens up to the first that is rejected, the recovered token
    in its place, or the bonus token where all are accepted.

    Args:
        output_token_ids: int32 [num_reqs, max_spec_len + 1], written to; what follows the last token and the
            rows of greedy requests are left as they are.
        cu_num_draft_tokens: int32 [num_reqs], inclusive cumulative sum of the drafted tokens of each request.
            At most max_spec_len of a request are looked at.
        draft_token_ids: int32 [num_tokens]; one that is not in the vocabulary is rejected.
        draft_probs: float32 [num_tokens, vocab_size]; None: 1 for each draft token. A token with probability
            0 or none (NaN) is rejected.
        target_probs: float32 [num_tokens, vocab_size].
        bonus_token_ids: int32 [num_reqs] or [num_reqs, 1].
        recovered_token_ids: int32 [num_tokens].
        uniform_probs: float32 or float64 [num_tokens], compared as float32.
        is_greedy: bool [num_reqs]; None: none is.
    """
    num_reqs, width = output_token_ids.shape
    if not use_triton():
        return reference(
            output_token_ids,
            cu_num_draft_tokens,
            draft_token_ids,
            draft_probs,
            target_probs,
            bonus_token_ids,
            recovered_token_ids,
            uniform_probs,
            is_greedy,
        )
    if num_reqs > 0:
        number = programs(num_reqs)
        _kernel[(number,)](
            output_token_ids,
            cu_num_draft_tokens,
            draft_token_ids,
            draft_probs,
            target_probs,
            bonus_token_ids,
            recovered_token_ids,
            uniform_probs.float() if on_npu() else uniform_probs,  # an NPU has no float64
            is_greedy,
            num_reqs,
            width - 1,
            target_probs.shape[1],
            POSITIONS=positions(width),
            STRIDE=number < num_reqs,
            num_warps=1,
        )
    return None


def rejection_random_sample_kernel(
    grid: tuple[int, ...],
    output_token_ids_ptr: torch.Tensor,
    cu_num_draft_tokens_ptr: torch.Tensor,
    draft_token_ids_ptr: torch.Tensor,
    draft_probs_ptr: torch.Tensor | None,
    target_probs_ptr: torch.Tensor,
    bonus_token_ids_ptr: torch.Tensor,
    recovered_token_ids_ptr: torch.Tensor,
    uniform_probs_ptr: torch.Tensor,
    is_greedy_ptr: torch.Tensor | None,
    *options: Any,
    **more_options: Any,
) -> None:
    """In place of vLLM's and of vllm-ascend's."""
    rejection_random(
        output_token_ids_ptr,
        cu_num_draft_tokens_ptr,
        draft_token_ids_ptr,
        draft_probs_ptr,
        target_probs_ptr,
        bonus_token_ids_ptr,
        recovered_token_ids_ptr,
        uniform_probs_ptr,
        is_greedy_ptr,
    )


def compile_cases() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any]]]:
    """What the launcher can have compiled for an NPU: name, kernel, signature, constants."""
    types = {
        "output_token_ids_ptr": "*i32",
        "cu_num_draft_tokens_ptr": "*i32",
        "draft_token_ids_ptr": "*i32",
        "target_probs_ptr": "*fp32",
        "bonus_token_ids_ptr": "*i32",
        "recovered_token_ids_ptr": "*i32",
        "uniform_probs_ptr": "*fp32",
        "num_reqs": "i32",
        "max_spec_len": "i32",
        "vocab_size": "i32",
    }
    greedy, probs = {"is_greedy_ptr": "*i1"}, {"draft_probs_ptr": "*fp32"}
    for strides in (False, True):
        size: dict[str, Any] = {"POSITIONS": 0, "STRIDE": strides}
        name = "many" if strides else "few"
        yield name, _kernel, {**types, **greedy, **probs}, size
        yield f"{name}, no draft probs", _kernel, {**types, **greedy}, {**size, "draft_probs_ptr": None}
        yield f"{name}, none greedy", _kernel, {**types, **probs}, {**size, "is_greedy_ptr": None}
