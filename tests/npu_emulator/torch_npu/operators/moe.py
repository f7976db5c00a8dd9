# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts: routing, grouped matrix products, and putting tokens back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._operator import cpu, host_ints, npu, operator, refuse, require_npu


def _keep_groups(scores: Tensor, groups: int, kept: int, by_best_two: bool) -> Tensor:
    """-inf for the experts outside the `kept` best of `groups` groups."""
    grouped = scores.view(scores.shape[0], groups, -1)
    strength = grouped.topk(2, -1)[0].sum(-1) if by_best_two else grouped.amax(-1)
    dropped = torch.ones_like(strength, dtype=torch.bool).scatter_(1, strength.topk(kept, -1)[1], False)
    return scores.masked_fill(dropped.repeat_interleave(grouped.shape[2], 1), float("-inf"))


@operator
def npu_moe_gating_top_k(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:
    """(weights, experts, scores if out_flag). norm_type: 0 softmax, 1 sigmoid; the bias only chooses."""
    require_npu("npu_moe_gating_top_k", x, bias)
    logits = cpu(x).float()
    scores = logits.sigmoid() if norm_type else logits.softmax(-1)
    choice = scores if bias is None else scores + cpu(bias).float()
    if group_count > 1:
        choice = _keep_groups(choice, group_count, k_group, by_best_two=bool(group_select_mode))
    experts = choice.topk(k, -1)[1]
    weights = scores.gather(1, experts)
    if norm_type or renorm:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    weights = (weights * routed_scaling_factor).to(x.dtype)
    return npu(weights), npu(experts.int()), npu(scores if out_flag else scores.new_empty(0))


@operator
def npu_moe_init_routing_v2(
    x: Tensor,
    expert_idx: Tensor,
    *,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = 0,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(rows of x by expert, where each (token, choice) went or -1, tokens of each expert, unused scales)."""
    name = "npu_moe_init_routing_v2"
    require_npu(name, x, expert_idx)
    if quant_mode != -1 or drop_pad_mode or expert_tokens_num_type != 1 or row_idx_type:
        raise NotImplementedError(
            f"{name}: the NPU emulator has only unquantised, dropless, count mode, gather index"
        )
    if expert_idx.dtype != torch.int32:
        raise RuntimeError(f"{name}: expert_idx must be int32, got {expert_idx.dtype}")
    tokens, chosen = cpu(x), cpu(expert_idx).long()
    first, last = active_expert_range or (0, expert_num)
    flat = chosen.reshape(-1)
    active = (flat >= first) & (flat < last)
    order = torch.where(active, flat, expert_num).argsort(stable=True)[: int(active.sum())]
    rows = tokens.new_zeros(flat.numel(), tokens.shape[1])
    rows[: order.numel()] = tokens[order // chosen.shape[1]]
    position = torch.full((flat.numel(),), -1, dtype=torch.int32)
    position[order] = torch.arange(order.numel(), dtype=torch.int32)
    counts = torch.bincount(flat[active] - first, minlength=last - first)
    return npu(rows), npu(position), npu(counts), npu(torch.zeros(flat.numel()))


@operator
def npu_grouped_matmul(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    *,
    bias: Sequence[Tensor] | None = None,
    scale: Any = None,
    antiquant_scale: Any = None,
    group_list: Tensor | None = None,
    split_item: int = 0,
    group_type: int | None = None,
    group_list_type: int = 0,
    output_dtype: torch.dtype | None = None,
    **options: Any,
) -> list[Tensor]:
    """Rows of x[0] times the weight of their group. group_list: ends of groups (type 0) or sizes (1)."""
    name = "npu_grouped_matmul"
    require_npu(name, *x, *weight, group_list)
    refuse(name, scale=scale, antiquant_scale=antiquant_scale)
    if len(x) != 1 or len(weight) != 1 or group_type != 0 or group_list is None:
        raise NotImplementedError(
            f"{name}: the NPU emulator takes one x and one weight, split along M by group_list"
        )
    rows, weights = cpu(x[0]), cpu(weight[0])
    given = host_ints(cpu(group_list)) or []
    ends = given if group_list_type == 0 else list(itertools.accumulate(given))
    product = rows.new_zeros(rows.shape[0], weights.shape[2])
    for group, (start, end) in enumerate(itertools.pairwise([0, *ends])):
        if end > start:
            product[start:end] = rows[start:end] @ weights[group]
            if bias is not None:
                product[start:end] += cpu(bias[0])[group].to(rows.dtype)
    return [npu(product if output_dtype is None else product.to(output_dtype))]


@operator
def npu_moe_token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> Tensor:
    """Back in the order of the tokens; with `probs`, the weighted sum over each token's experts."""
    require_npu("npu_moe_token_unpermute", permuted_tokens, sorted_indices, probs)
    tokens = cpu(permuted_tokens)[cpu(sorted_indices).long()]
    if probs is not None:
        weights = cpu(probs)
        tokens = (tokens.view(*weights.shape, -1) * weights.unsqueeze(-1)).sum(1)
    return npu(tokens)
