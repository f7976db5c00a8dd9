# SPDX-License-Identifier: Apache-2.0
"""Rejection sampling of greedy requests: draft tokens are accepted while they are the target's own.

Stands for vLLM's ``rejection_greedy_sample_kernel`` and for vllm-ascend's ``rejection_greedy_sample_triton``
and ``rejection_greedy_sample_spec_len_1_triton``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from vllm.triton_utils import tl, triton

from ._dispatch import positions, programs, use_triton
from ._rows import drafted, in_rows, tokens_of, write_rows


@triton.jit
def _one_by_one(  # type: ignore[no-untyped-def]
    output_ptr, draft_token_ids_ptr, target_argmax_ptr, bonus, start, length
):
    """For an NPU: stops at the first rejected token, without a vector operation."""
    one = tl.arange(0, 1)
    accepted = 0
    for i in range(length):
        if accepted == i:
            draft = tl.load(draft_token_ids_ptr + start + i + one)
            target = tl.load(target_argmax_ptr + start + i).to(tl.int32)
            tl.store(output_ptr + i, target)
            accepted = tl.where(tl.max(draft, 0) == target, i + 1, accepted)
    if accepted == length:
        tl.store(output_ptr + length + one, bonus)


@triton.jit  # type: ignore[untyped-decorator]
def _at_once(  # type: ignore[no-untyped-def]
    output_ptr, draft_token_ids_ptr, target_argmax_ptr, bonus, start, length, POSITIONS: tl.constexpr
):
    """For a GPU: no load waits for the verdict on the token before."""
    position = tl.arange(0, POSITIONS)
    inside = position < length
    draft = tl.load(draft_token_ids_ptr + start + position, mask=inside, other=0)
    target = tl.load(target_argmax_ptr + start + position, mask=inside, other=0).to(tl.int32)
    rejected = tl.min(tl.where(draft != target, position, length), 0)
    tl.store(output_ptr + position, tl.where(inside, target, bonus), mask=position <= rejected)


@triton.jit  # type: ignore[untyped-decorator]
def _one_request(  # type: ignore[no-untyped-def]
    output_token_ids_ptr,
    cu_num_draft_tokens_ptr,
    draft_token_ids_ptr,
    target_argmax_ptr,
    bonus_token_ids_ptr,
    is_greedy_ptr,
    request,
    max_spec_len,
    POSITIONS: tl.constexpr,
):
    # What is only moved is loaded as a vector of one: a scalar load stalls a core of an NPU.
    one = tl.arange(0, 1)
    greedy = 1 if is_greedy_ptr is None else tl.max(tl.load(is_greedy_ptr + request + one).to(tl.int32), 0)
    if cu_num_draft_tokens_ptr is None:
        start = request
        length = 1
    else:
        start, length = tokens_of(cu_num_draft_tokens_ptr, request, max_spec_len)
    bonus = tl.load(bonus_token_ids_ptr + request + one)
    output_ptr = output_token_ids_ptr + request * (max_spec_len + 1)
    if greedy != 0:
        if POSITIONS == 0:
            _one_by_one(output_ptr, draft_token_ids_ptr, target_argmax_ptr, bonus, start, length)
        else:
            _at_once(output_ptr, draft_token_ids_ptr, target_argmax_ptr, bonus, start, length, POSITIONS)


@triton.jit(do_not_specialize=["num_reqs", "max_spec_len"])  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    output_token_ids_ptr,
    cu_num_draft_tokens_ptr,
    draft_token_ids_ptr,
    target_argmax_ptr,
    bonus_token_ids_ptr,
    is_greedy_ptr,
    num_reqs,
    max_spec_len,
    POSITIONS: tl.constexpr,
    STRIDE: tl.constexpr,
):
    request = tl.program_id(0)
    if STRIDE:
        # Not range(): Ascend's compiler gives its loops a second set of buffers and flags, of no use where
        # every token is waited for.
        while request < num_reqs:
            _one_request(
                output_token_ids_ptr, cu_num_draft_tokens_ptr, draft_token_ids_ptr, target_argmax_ptr,
                bonus_token_ids_ptr, is_greedy_ptr, request, max_spec_len, POSITIONS,
            )  # fmt: skip
            request += tl.num_programs(0)
    else:
        _one_request(
            output_token_ids_ptr, cu_num_draft_tokens_ptr, draft_token_ids_ptr, target_argmax_ptr,
            bonus_token_ids_ptr, is_greedy_ptr, request, max_spec_len, POSITIONS,
        )  # fmt: skip


def reference(
    output_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    target_argmax: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    is_greedy: torch.Tensor | None,
) -> None:
    """The same in torch, on the device of its arguments, without a copy to the host. See
    :func:`rejection_greedy`."""
    num_reqs, width = output_token_ids.shape
    if cu_num_draft_tokens is None:
        cu_num_draft_tokens = torch.arange(1, num_reqs + 1, device=output_token_ids.device)
    start, length = drafted(cu_num_draft_tokens, width - 1)
    position = torch.arange(width, device=output_token_ids.device)
    target = in_rows(target_argmax, start, width)
    wrong = (in_rows(draft_token_ids, start, width) != target) & (position < length)
    rejected = torch.where(wrong, position, length).amin(1, keepdim=True)
    tokens = torch.where(position < length, target, bonus_token_ids.view(-1, 1))
    write_rows(output_token_ids, tokens, rejected, is_greedy)


def rejection_greedy(
    output_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    target_argmax: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    is_greedy: torch.Tensor | None = None,
) -> None:
    """Write the tokens of greedy requests: the target's up to the first that is not the draft's, and the
    bonus token where all are.

    Args:
        output_token_ids: int32 [num_reqs, max_spec_len + 1], written to; what follows a rejected token and
            the rows of other requests are left as they are.
        cu_num_draft_tokens: int32 [num_reqs], inclusive cumulative sum of the drafted tokens of each request.
            At most max_spec_len of a request are looked at. None: one each.
        draft_token_ids: int32 [num_tokens], any values.
        target_argmax: int64 or int32 [num_tokens].
        bonus_token_ids: int32 [num_reqs] or [num_reqs, 1].
        is_greedy: bool [num_reqs]; None: all are.
    """
    num_reqs, width = output_token_ids.shape
    if not use_triton():
        return reference(
            output_token_ids, cu_num_draft_tokens, draft_token_ids, target_argmax, bonus_token_ids, is_greedy
        )
    if num_reqs > 0:
        number = programs(num_reqs)
        _kernel[(number,)](
            output_token_ids,
            cu_num_draft_tokens,
            draft_token_ids,
            target_argmax,
            bonus_token_ids,
            is_greedy,
            num_reqs,
            width - 1,
            POSITIONS=positions(width),
            STRIDE=number < num_reqs,
            num_warps=1,
        )
    return None


def rejection_greedy_sample_kernel(
    grid: tuple[int, ...],
    output_token_ids_ptr: torch.Tensor,
    cu_num_draft_tokens_ptr: torch.Tensor,
    draft_token_ids_ptr: torch.Tensor,
    target_argmax_ptr: torch.Tensor,
    bonus_token_ids_ptr: torch.Tensor,
    is_greedy_ptr: torch.Tensor | None,
    *options: Any,
    **more_options: Any,
) -> None:
    """In place of vLLM's."""
    rejection_greedy(
        output_token_ids_ptr,
        cu_num_draft_tokens_ptr,
        draft_token_ids_ptr,
        target_argmax_ptr,
        bonus_token_ids_ptr,
        is_greedy_ptr,
    )


def rejection_greedy_sample_triton(
    grid: tuple[int, ...],
    output_token_ids_ptr: torch.Tensor,
    cu_num_draft_tokens_ptr: torch.Tensor,
    draft_token_ids_ptr: torch.Tensor,
    target_argmax_ptr: torch.Tensor,
    bonus_token_ids_ptr: torch.Tensor,
    is_greedy_ptr: torch.Tensor | None,
    *options: Any,
    **more_options: Any,
) -> None:
    """In place of vllm-ascend's."""
    rejection_greedy(
        output_token_ids_ptr,
        cu_num_draft_tokens_ptr,
        draft_token_ids_ptr,
        target_argmax_ptr,
        bonus_token_ids_ptr,
        is_greedy_ptr,
    )


def rejection_greedy_sample_spec_len_1_triton(
    grid: tuple[int, ...],
    output_token_ids_ptr: torch.Tensor,
    draft_token_ids_ptr: torch.Tensor,
    target_argmax_ptr: torch.Tensor,
    bonus_token_ids_ptr: torch.Tensor,
    *options: Any,
    **more_options: Any,
) -> None:
    """In place of vllm-ascend's."""
    rejection_greedy(output_token_ids_ptr, None, draft_token_ids_ptr, target_argmax_ptr, bonus_token_ids_ptr)


def compile_cases() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any]]]:
    """What the launcher can have compiled for an NPU: name, kernel, signature, constants."""
    types = {
        "output_token_ids_ptr": "*i32",
        "draft_token_ids_ptr": "*i32",
        "target_argmax_ptr": "*i64",
        "bonus_token_ids_ptr": "*i32",
        "num_reqs": "i32",
        "max_spec_len": "i32",
    }
    ends, greedy = {"cu_num_draft_tokens_ptr": "*i32"}, {"is_greedy_ptr": "*i1"}
    for strides in (False, True):
        name = "many" if strides else "few"
        size: dict[str, Any] = {"POSITIONS": 0, "STRIDE": strides}
        yield name, _kernel, {**types, **ends, **greedy}, size
        size["is_greedy_ptr"] = None
        yield f"{name}, all greedy", _kernel, {**types, **ends}, size
        yield f"{name}, one draft token each", _kernel, types, {**size, "cu_num_draft_tokens_ptr": None}
