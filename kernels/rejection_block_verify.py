# SPDX-License-Identifier: Apache-2.0
"""Rejection sampling of random requests by blocks: the longest prefix that passes is accepted, whatever came
of the tokens within it.

Stands for vllm-ascend's ``rejection_random_sample_block_verify_kernel``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from vllm.triton_utils import tl, triton

from ._dispatch import MAX_SPEC_LEN, MIN_POSITIONS, lanes_up_to, on_npu, programs, use_triton
from ._rows import drafted, in_rows, probability


@triton.jit(do_not_specialize=["num_reqs", "max_spec_len"])  # type: ignore[untyped-decorator]
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
    position = tl.arange(0, POSITIONS)
    one = tl.arange(0, 1)
    end = num_reqs if STRIDE else tl.program_id(0) + 1
    for request in range(tl.program_id(0), end, tl.num_programs(0) if STRIDE else 1):
        greedy = False if is_greedy_ptr is None else tl.load(is_greedy_ptr + request)
        if not greedy:
            # A load before the first element is a fault on the NPU even where its mask is false.
            before = tl.load(cu_num_draft_tokens_ptr + tl.maximum(request - 1, 0))
            start = tl.where(request > 0, before, 0)
            length = tl.load(cu_num_draft_tokens_ptr + request) - start
            length = tl.minimum(tl.maximum(length, 0), max_spec_len)
            accepted = 0
            ratio = 1.0  # of the probabilities of the prefix, never more than 1
            uniform = 1.0
            for i in range(length):
                token = start + i
                draft = tl.load(draft_token_ids_ptr + token)
                known = (draft >= 0) & (draft < vocab_size)
                # All rows together may have more than 2^31 elements.
                at = token.to(tl.int64) * vocab_size + tl.where(known, draft, 0)
                uniform = uniform * tl.load(uniform_probs_ptr + token).to(tl.float32)
                ratio = ratio * tl.load(target_probs_ptr + at)
                if draft_probs_ptr is not None:
                    draft_prob = tl.load(draft_probs_ptr + at)
                    known = known & (draft_prob > 0)
                    ratio = ratio / draft_prob
                # What is not a number is not above 0 either.
                ratio = tl.where(known & (ratio > 0), tl.minimum(ratio, 1.0), 0.0)
                accepted = tl.where((ratio > 0) & (ratio >= uniform), i + 1, accepted)
            draft_ids = tl.load(draft_token_ids_ptr + start + position, mask=position < accepted, other=0)
            last = tl.load(bonus_token_ids_ptr + request + one)
            if accepted < length:
                last = tl.load(recovered_token_ids_ptr + start + accepted + one)
            tl.store(
                output_token_ids_ptr + request * (max_spec_len + 1) + position,
                tl.where(position < accepted, draft_ids, last),
                mask=position < accepted + 1,
            )


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
    :func:`rejection_block_verify`."""
    width = output_token_ids.shape[1]
    start, length = drafted(cu_num_draft_tokens)
    length = length.clamp(0, width - 1)
    draft = in_rows(draft_token_ids, start, width)
    known = (draft >= 0) & (draft < target_probs.shape[1])
    target_prob = probability(target_probs, start, draft)
    draft_prob = torch.ones_like(target_prob)
    if draft_probs is not None:
        draft_prob = probability(draft_probs, start, draft)
        known &= draft_prob > 0
    uniforms = in_rows(uniform_probs.float(), start, width)
    accepted, ratio, uniform = torch.zeros_like(length), torch.ones_like(target_prob[:, 0]), 1.0
    for i in range(width - 1):
        uniform = uniform * uniforms[:, i]
        ratio = ratio * target_prob[:, i] / draft_prob[:, i]
        ratio = torch.where(known[:, i] & (ratio > 0), ratio.clamp(max=1.0), 0.0)
        accepted = torch.where((i < length) & (ratio > 0) & (ratio >= uniform), i + 1, accepted)
    accepted, length = accepted.unsqueeze(1), length.unsqueeze(1)
    position = torch.arange(width, device=output_token_ids.device)
    recovered = in_rows(recovered_token_ids, start, width)
    last = torch.where(accepted < length, recovered.gather(1, accepted), bonus_token_ids.view(-1, 1))
    written = position <= accepted
    if is_greedy is not None:
        written &= ~is_greedy.unsqueeze(1)
    tokens = torch.where(position < accepted, draft, last).int()
    output_token_ids.copy_(torch.where(written, tokens, output_token_ids))


def rejection_block_verify(
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
    """Write the tokens of random requests: the longest prefix of the draft whose ratio of probabilities,
    never let past 1 on the way, is at least the product of its uniform numbers, then the recovered token, or
    the bonus token where all are accepted.

    The arguments are those of :func:`..rejection_random.rejection_random`. No prefix passes that has a token
    outside the vocabulary, of probability 0, or whose probabilities are not numbers.
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
            POSITIONS=max(MIN_POSITIONS, triton.next_power_of_2(width)),
            STRIDE=number < num_reqs,
            num_warps=1,
        )
    return None


def rejection_random_sample_block_verify_kernel(
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
    max_spec_len: int,
    vocab_size: int,
    vec_len: int,
    **options: Any,
) -> None:
    """In place of vllm-ascend's."""
    rejection_block_verify(
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
    for positions, strides in product(lanes_up_to(MAX_SPEC_LEN + 1, MIN_POSITIONS), (False, True)):
        size: dict[str, Any] = {"POSITIONS": positions, "STRIDE": strides}
        name = f"{positions} positions" + ", many" * strides
        yield name, _kernel, {**types, **greedy, **probs}, size
        yield f"{name}, no draft probs", _kernel, {**types, **greedy}, {**size, "draft_probs_ptr": None}
        yield f"{name}, none greedy", _kernel, {**types, **probs}, {**size, "is_greedy_ptr": None}
