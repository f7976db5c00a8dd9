# SPDX-License-Identifier: Apache-2.0
"""torch.ops._C_ascend: the operators of vllm-ascend's own extension, which needs CANN.

A module of that name goes into sys.modules, so that vllm-ascend finds it loaded.
"""

from __future__ import annotations

import importlib.metadata
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor

from . import _emulator, switches
from .operators import lora, moe, norms, sampling, sparse_attention
from .operators._operator import cpu, npu, operator
from .operators.dispatcher import like, rstd_of

_custom = operator(namespace="_C_ascend")


@_custom
def npu_gemma_rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    y, rstd = norms.rms_norm(cpu(x), 1.0 + cpu(gamma), epsilon)
    return npu(y), npu(rstd)


@_custom
def npu_add_rms_norm_bias(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor | None = None, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    total = cpu(x1) + cpu(x2)
    y, rstd = norms.rms_norm(total, cpu(gamma), epsilon)
    return npu(y if beta is None else y + cpu(beta)), npu(rstd), npu(total)


@_custom
def npu_apply_top_k_top_p(logits: Tensor, p: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    return npu(
        sampling.top_k_top_p(cpu(logits), None if p is None else cpu(p), None if k is None else cpu(k))
    )


@_custom
def moe_gating_top_k(
    x: Tensor,
    k: int,
    k_group: int,
    group_count: int,
    group_select_mode: int,
    renorm: int,
    norm_type: int,
    out_flag: bool,
    routed_scaling_factor: float,
    eps: float,
    bias_opt: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    return moe.npu_moe_gating_top_k(
        x,
        k,
        bias=bias_opt,
        k_group=k_group,
        group_count=group_count,
        group_select_mode=group_select_mode,
        renorm=renorm,
        norm_type=norm_type,
        out_flag=out_flag,
        routed_scaling_factor=routed_scaling_factor,
        eps=eps,
    )


@_custom
def npu_moe_init_routing_custom(x: Tensor, expert_idx: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return moe.npu_moe_init_routing_v2(x, expert_idx, **options)


@_custom
def get_masked_input_and_mask(
    input: Tensor, org_start: int, org_end: int, org_padding: int, added_start: int, added_end: int
) -> tuple[Tensor, Tensor]:
    """Token ids within this rank's part of the vocabulary, and which of them are not in it."""
    ids = cpu(input)
    original = (ids >= org_start) & (ids < org_end)
    added = (ids >= added_start) & (ids < added_end)
    offset = org_start * original + (added_start - (org_end - org_start) - org_padding) * added
    ours = original | added
    return npu(ours * (ids - offset)), npu(~ours)


def weak_ref_tensor(input: Tensor) -> Tensor:
    return _emulator.weak_reference(input)  # an address: nothing runs on the device


@_custom
def npu_copy_and_expand_eagle_inputs(
    target_token_ids: Tensor,
    target_positions: Tensor,
    next_token_ids: Tensor,
    query_start_loc: Tensor,
    query_end_loc: Tensor,
    padding_token_id: int,
    parallel_drafting_token_id: int,
    num_padding_slots_per_request: int,
    shift_input_ids: bool,
    total_draft_tokens: int,
) -> tuple[Tensor, ...]:
    """Lays out the inputs of the first draft pass, with k = num_padding_slots_per_request slots a request.

    A request's slots: its valid tokens (the first dropped if shift_input_ids), the next token, k - 1
    parallel-drafting tokens, padding in place of the rejected tokens.
    """
    name, k = "npu_copy_and_expand_eagle_inputs", num_padding_slots_per_request
    for what, tensor in (
        ("query_start_loc", query_start_loc),
        ("query_end_loc", query_end_loc),
        ("target_positions", target_positions),
    ):
        if tensor.dtype != torch.int32 and switches.expand_strict():
            raise RuntimeError(f"{name}: {what} must be int32, got {tensor.dtype}")
    tokens, positions, next_tokens = (
        cpu(t).long() for t in (target_token_ids, target_positions, next_token_ids)
    )
    starts, ends = cpu(query_start_loc).tolist(), cpu(query_end_loc).tolist()
    requests = next_tokens.shape[0]
    out_ids, out_positions = (torch.zeros(total_draft_tokens, dtype=torch.int32) for _ in range(2))
    is_rejected, is_masked = (torch.zeros(total_draft_tokens, dtype=torch.int8) for _ in range(2))
    new_token_indices = torch.zeros(requests * k, dtype=torch.int32)
    hidden_state_mapping = torch.zeros(tokens.shape[0], dtype=torch.int32)
    for request in range(requests):
        start, stop, last = starts[request], starts[request + 1], ends[request]
        rejected = max(stop - last - 1, 0)
        valid = max(last - start + (0 if shift_input_ids else 1), 0)
        first = start + request * (k - 1 if shift_input_ids else k)  # the request's first slot
        source = start + 1 if shift_input_ids else start
        new = first + valid
        padding = slice(new + k, new + k + rejected)
        out_ids[first:new] = tokens[source : source + valid].int()
        out_positions[first : new + k] = (positions[start] + torch.arange(valid + k)).int()
        out_ids[new] = int(next_tokens[request])
        out_ids[new + 1 : new + k] = parallel_drafting_token_id
        is_masked[new + 1 : new + k] = 1
        out_ids[padding] = padding_token_id
        is_rejected[padding] = 1
        new_token_indices[request * k : (request + 1) * k] = torch.arange(new, new + k).int()
        if shift_input_ids:
            hidden_state_mapping[start:stop] = torch.arange(first, first + stop - start).int()
    results = (out_ids, out_positions, is_rejected, is_masked, new_token_indices, hidden_state_mapping)
    return tuple(npu(result) for result in results)


@_custom
def bgmv_shrink(x: Tensor, weight: Tensor, indices: Tensor, y: Tensor, scale: float) -> None:
    lora.shrink("bgmv_shrink", cpu(x), cpu(weight), cpu(indices), cpu(y), scale)


@_custom
def bgmv_expand(
    x: Tensor, weight: Tensor, indices: Tensor, y: Tensor, slice_offset: int, slice_size: int
) -> Tensor:
    lora.expand("bgmv_expand", cpu(x), cpu(weight), cpu(indices), cpu(y), slice_offset, slice_size)
    return y


@_custom
def sgmv_shrink(
    x: Tensor, weight: Tensor, lora_indices: Tensor, seq_len: Tensor, y: Tensor, scale: float
) -> None:
    adapters = lora.of_rows(cpu(lora_indices), cpu(seq_len), x.shape[0])
    lora.shrink("sgmv_shrink", cpu(x), cpu(weight), adapters, cpu(y), scale)


@_custom
def sgmv_expand(
    x: Tensor,
    weight: Tensor,
    lora_indices: Tensor,
    seq_len: Tensor,
    y: Tensor,
    slice_offset: int,
    slice_size: int,
) -> Tensor:
    adapters = lora.of_rows(cpu(lora_indices), cpu(seq_len), x.shape[0])
    lora.expand("sgmv_expand", cpu(x), cpu(weight), adapters, cpu(y), slice_offset, slice_size)
    return y


# schema -> implementation
_SCHEMAS: dict[str, Callable] = {
    "npu_copy_and_expand_eagle_inputs(Tensor target_token_ids, Tensor target_positions,"
    " Tensor next_token_ids, Tensor query_start_loc, Tensor query_end_loc, int padding_token_id,"
    " int parallel_drafting_token_id, int num_padding_slots_per_request, bool shift_input_ids,"
    " int total_draft_tokens) -> (Tensor out_input_ids, Tensor out_positions,"
    " Tensor out_is_rejected_token_mask, Tensor out_is_masked_token_mask,"
    " Tensor out_new_token_indices, Tensor out_hidden_state_mapping)":
        npu_copy_and_expand_eagle_inputs,
    "npu_gemma_rms_norm(Tensor x, Tensor gamma, float epsilon=1e-6) -> (Tensor y, Tensor rstd)":
        npu_gemma_rms_norm,
    "npu_add_rms_norm_bias(Tensor x1, Tensor x2, Tensor gamma, Tensor? beta=None, float epsilon=1e-6)"
    " -> (Tensor y, Tensor rstd, Tensor x)":
        npu_add_rms_norm_bias,
    "npu_apply_top_k_top_p(Tensor logits, Tensor? p=None, Tensor? k=None) -> Tensor":
        npu_apply_top_k_top_p,
    "moe_gating_top_k(Tensor x, int k, int k_group, int group_count, int group_select_mode, int renorm,"
    " int norm_type, bool out_flag, float routed_scaling_factor, float eps, Tensor? bias_opt=None)"
    " -> (Tensor y, Tensor expert_idx, Tensor out)":
        moe_gating_top_k,
    "npu_moe_init_routing_custom(Tensor x, Tensor expert_idx, *, Tensor? scale=None, Tensor? offset=None,"
    " int active_num=-1, int expert_capacity=-1, int expert_num=-1, int drop_pad_mode=0,"
    " int expert_tokens_num_type=0, bool expert_tokens_num_flag=False, int quant_mode=0,"
    " int[2] active_expert_range=[], int row_idx_type=0) -> (Tensor, Tensor, Tensor, Tensor)":
        npu_moe_init_routing_custom,
    "get_masked_input_and_mask(Tensor input, int org_vocab_start_index, int org_vocab_end_index,"
    " int num_org_vocab_padding, int added_vocab_start_index, int added_vocab_end_index)"
    " -> (Tensor masked_input, Tensor mask)":
        get_masked_input_and_mask,
    "weak_ref_tensor(Tensor input) -> Tensor":
        weak_ref_tensor,
    "bgmv_shrink(Tensor! x, Tensor! weight, Tensor! indices, Tensor! y, float scale) -> ()":
        bgmv_shrink,
    "bgmv_expand(Tensor! x, Tensor! weight, Tensor! indices, Tensor! y, int slice_offset, int slice_size)"
    " -> Tensor":
        bgmv_expand,
    "sgmv_shrink(Tensor! x, Tensor! weight, Tensor! lora_indices, Tensor! seq_len, Tensor! y, float scale)"
    " -> ()":
        sgmv_shrink,
    "sgmv_expand(Tensor! x, Tensor! weight, Tensor! lora_indices, Tensor! seq_len, Tensor! y,"
    " int slice_offset, int slice_size) -> Tensor":
        sgmv_expand,
}  # fmt: skip
_SPARSE: dict[str, Callable[..., Any]] = {
    "npu_lightning_indexer(Tensor query, Tensor key, Tensor weights, *,"
    " Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None,"
    " Tensor? block_table=None, str layout_query='BSND', str layout_key='PA_BSND', int sparse_count=2048,"
    " int sparse_mode=3) -> Tensor":
        sparse_attention.npu_lightning_indexer,
    "npu_sparse_flash_attention(Tensor query, Tensor key, Tensor value, Tensor sparse_indices,"
    " float scale_value, int sparse_block_size, *, Tensor? block_table=None,"
    " Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_kv=None, Tensor? query_rope=None,"
    " Tensor? key_rope=None, str layout_query='BSND', str layout_kv='PA_BSND', int sparse_mode=3) -> Tensor":
        sparse_attention.npu_sparse_flash_attention,
}  # fmt: skip
_SPARSE_SINCE_0_23: dict[str, Callable[..., Any]] = {
    "npu_lightning_indexer(Tensor query, Tensor key, Tensor weights, *,"
    " Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None,"
    " Tensor? block_table=None, str layout_query='BSND', str layout_key='BSND', int sparse_count=2048,"
    " int sparse_mode=3, int pre_tokens=9223372036854775807, int next_tokens=9223372036854775807,"
    " bool return_value=False) -> (Tensor sparse_indices, Tensor sparse_values)":
        sparse_attention.indexer_since_0_23,
    "npu_sparse_flash_attention(Tensor query, Tensor key, Tensor value, Tensor sparse_indices,"
    " float scale_value, *, Tensor? block_table=None, Tensor? actual_seq_lengths_query=None,"
    " Tensor? actual_seq_lengths_kv=None, Tensor? query_rope=None, Tensor? key_rope=None,"
    " int sparse_block_size=1, str layout_query='BSND', str layout_kv='BSND', int sparse_mode=3,"
    " int pre_tokens=9223372036854775807, int next_tokens=9223372036854775807, int attention_mode=2,"
    " bool return_softmax_lse=False) -> (Tensor attention_out, Tensor softmax_max, Tensor softmax_sum)":
        sparse_attention.attention_since_0_23,
}  # fmt: skip
_META: dict[str, Callable[..., Any]] = {
    "npu_gemma_rms_norm": lambda x, *rest, **options: (like(x), rstd_of(x)),
    "npu_add_rms_norm_bias": lambda x, *rest, **options: (like(x), rstd_of(x), like(x)),
    "npu_apply_top_k_top_p": lambda logits, *rest, **options: like(logits),
    "weak_ref_tensor": like,
    "bgmv_expand": lambda x, weight, indices, y, *slice_: like(y),
    "sgmv_expand": lambda x, weight, indices, lengths, y, *slice_: like(y),
}
_library = torch.library.Library("_C_ascend", "DEF")


def _host_is_of(release: str) -> bool:
    """Whether the vllm-ascend that is installed, if any, is of `release` or newer."""
    try:
        return Version(importlib.metadata.version("vllm-ascend")) >= Version(release)
    except importlib.metadata.PackageNotFoundError:
        return False


def install() -> None:
    sparse = _SPARSE_SINCE_0_23 if _host_is_of("0.23.0") else _SPARSE
    for schema, implementation in (_SCHEMAS | sparse).items():
        _library.define(schema)
        _library.impl(schema.split("(")[0], implementation, "PrivateUse1")
    for name, meta in _META.items():
        _library.impl(name, meta, "Meta")
    sys.modules["vllm_ascend.vllm_ascend_C"] = types.ModuleType("vllm_ascend.vllm_ascend_C")
