# SPDX-License-Identifier: Apache-2.0
"""Fused operators against plain formulas."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
import torch_npu


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def close(npu: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> bool:
    assert npu.device.type == "npu"
    assert npu.dtype == expected.dtype
    return torch.allclose(npu.cpu().float(), expected.float(), atol=tolerance, rtol=tolerance)


# ---------------------------------------------------------------- norms and activations
def test_rms_norm_and_its_reciprocal_deviation():
    x, gamma = torch.randn(3, 8), torch.randn(8)
    y, rstd = torch_npu.npu_rms_norm(x.npu(), gamma.npu(), 1e-5)
    assert close(y, F.rms_norm(x, (8,), gamma, 1e-5))
    assert close(rstd, torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def test_add_rms_norm_gives_the_sum_too():
    x, y, gamma = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    normed, _, total = torch_npu.npu_add_rms_norm(x.npu(), y.npu(), gamma.npu(), 1e-6)
    assert close(total, x + y)
    assert close(normed, F.rms_norm(x + y, (8,), gamma, 1e-6))


def test_gemma_rms_norm_scales_by_one_plus_gamma():
    x, gamma = torch.randn(3, 8), torch.randn(8)
    y, _ = torch.ops._C_ascend.npu_gemma_rms_norm(x.npu(), gamma.npu(), 1e-6)
    assert close(y, F.rms_norm(x, (8,), 1 + gamma, 1e-6))


def test_add_rms_norm_bias_adds_the_bias_after_the_norm():
    x, y, gamma, beta = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8), torch.randn(8)
    normed, _, _ = torch.ops._C_ascend.npu_add_rms_norm_bias(x.npu(), y.npu(), gamma.npu(), beta.npu(), 1e-6)
    assert close(normed, F.rms_norm(x + y, (8,), gamma, 1e-6) + beta)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_swiglu_gates_with_the_first_half(dtype):
    x = torch.randn(3, 8, dtype=dtype)
    gate, up = x.float().chunk(2, -1)
    assert close(torch_npu.npu_swiglu(x.npu()), (F.silu(gate) * up).to(dtype))


def test_fast_gelu():
    x = torch.randn(9)
    assert close(torch_npu.npu_fast_gelu(x.npu()), x * torch.sigmoid(1.702 * x))


def test_operators_have_meta_kernels():
    x = torch.empty(3, 8, device="meta")
    y, rstd = torch.ops.npu.npu_rms_norm(x, x[0])
    assert y.shape == (3, 8)
    assert rstd.shape == (3, 1)
    assert torch.ops.npu.npu_swiglu(x).shape == (3, 4)


# ---------------------------------------------------------------- rotary
def angles(positions: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = positions[:, None] / 100 ** (torch.arange(0, width, 2) / width)
    return frequencies.cos(), frequencies.sin()


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("width", [8, 4])
def test_rotary_embedding_is_a_rotation_in_the_complex_plane(neox, width):
    positions, head_size, heads = torch.tensor([0, 5, 3]), 8, 2
    query, key = torch.randn(3, heads * head_size), torch.randn(3, head_size)
    cos, sin = angles(torch.arange(6), width)
    got_query, got_key = query.npu(), key.npu()
    cache = torch.cat((cos, sin), -1).npu()
    torch_npu._npu_rotary_embedding(positions.npu(), got_query, got_key, head_size, cache, neox)
    for got, given in ((got_query, query), (got_key, key)):
        part = given.view(3, -1, head_size)[..., :width]
        pairs = part.unflatten(-1, (2, -1)).transpose(-1, -2) if neox else part.unflatten(-1, (-1, 2))
        turn = torch.complex(cos, sin)[positions][:, None]
        turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
        expected = given.clone().view(3, -1, head_size)
        expected[..., :width] = (turned.transpose(-1, -2) if neox else turned).flatten(-2)
        assert close(got, expected.view(given.shape))


def test_rotary_mul_takes_whole_width_angles_in_both_modes():
    x = torch.randn(3, 1, 2, 8)
    cos, sin = (t[:, None, None] for t in angles(torch.arange(3), 8))
    a, b = x.chunk(2, -1)
    half = torch_npu.npu_rotary_mul(x.npu(), torch.cat((cos, cos), -1).npu(), torch.cat((sin, sin), -1).npu())
    assert close(half, torch.cat((a * cos - b * sin, b * cos + a * sin), -1))
    even, odd = x[..., ::2], x[..., 1::2]
    by_pair = [t.repeat_interleave(2, -1).npu() for t in (cos, sin)]
    pairs = torch_npu.npu_rotary_mul(x.npu(), *by_pair, rotary_mode="interleave")
    assert close(pairs, torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2))


# ---------------------------------------------------------------- KV cache
def test_reshape_and_cache_skips_negative_slots_and_refuses_slots_past_the_end():
    key, value = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    key_cache, value_cache = (torch.zeros(2, 4, 2, 4, device="npu") for _ in range(2))
    slots = torch.tensor([5, -1, 2], dtype=torch.int32)
    torch_npu._npu_reshape_and_cache(key.npu(), value.npu(), key_cache, value_cache, slots.npu())
    expected = torch.zeros(8, 2, 4)
    expected[5], expected[2] = key[0], key[2]
    assert torch.equal(key_cache.cpu().view(8, 2, 4), expected)
    assert torch.equal(value_cache.cpu().view(8, 2, 4)[5], value[0])
    with pytest.raises(RuntimeError, match="slot 8 of a cache of 2 x 4 slots"):
        torch_npu._npu_reshape_and_cache(key.npu(), value.npu(), key_cache, value_cache, slots.npu() + 3)
    with pytest.raises(RuntimeError, match="must be int32"):
        torch_npu._npu_reshape_and_cache(key.npu(), value.npu(), key_cache, value_cache, slots.long().npu())


def test_paged_cache_load_gathers_each_request_from_its_start():
    cache = torch.randn(3, 4, 1, 2)
    lengths = torch.tensor([3, 2], dtype=torch.int32)
    table = torch.tensor([[2, 0], [1, 1]], dtype=torch.int32)
    key, value = (torch.empty(5, 1, 2, device="npu") for _ in range(2))
    torch_npu.atb.npu_paged_cache_load(
        cache.npu(), (2 * cache).npu(), table.npu(), lengths.npu(),
        seq_starts=torch.tensor([2, 1], dtype=torch.int32).npu(), key=key, value=value,
    )  # fmt: skip
    expected = torch.stack((cache[2, 2], cache[2, 3], cache[0, 0], cache[1, 1], cache[1, 2]))
    assert close(key, expected)
    assert close(value, 2 * expected)


# ---------------------------------------------------------------- sampling
def test_top_k_top_p_keeps_the_smallest_sufficient_set():
    logits = torch.tensor([[1.0, 4.0, 2.0, 3.0]] * 3)
    k = torch.tensor([2, 4, 4], dtype=torch.int32)
    p = torch.tensor([1.0, 1e-6, 0.9])
    kept = torch_npu.npu_top_k_top_p(logits.npu(), p.npu(), k.npu()).isfinite().tolist()
    # softmax of the last row: .03, .64, .09, .24
    assert kept == [[False, True, False, True], [False, True, False, False], [False, True, True, True]]
    assert torch.equal(
        torch.ops._C_ascend.npu_apply_top_k_top_p(logits.npu(), None, k.npu()).cpu(),
        torch_npu.npu_top_k_top_p(logits.npu(), None, k.npu()).cpu(),
    )


# ---------------------------------------------------------------- quantisation
def test_dynamic_quant_is_exact_at_the_extremes_and_within_half_a_step_elsewhere():
    x = torch.randn(5, 16)
    quantized, scale = torch_npu.npu_dynamic_quant(x.npu())
    assert quantized.dtype == torch.int8
    restored = quantized.cpu().float() * scale.cpu()[:, None]
    assert (restored - x).abs().max() <= scale.cpu().max() / 2 + 1e-6
    assert (quantized.cpu().abs().amax(-1) == 127).all()


def test_static_quant_rounds_and_saturates():
    x = torch.tensor([[0.24, -0.26, 100.0, -100.0]])
    scale, zero = torch.tensor([0.5]).npu(), torch.tensor([1.0]).npu()
    assert torch_npu.npu_quantize(x.npu(), scale, zero).tolist() == [[1, 0, 127, -128]]
    assert torch_npu.npu_quantize(x.npu(), scale, None, div_mode=False).tolist() == [[0, 0, 50, -50]]


def test_norms_that_quantise_agree_with_the_norm_followed_by_the_quantisation():
    x, y, gamma = (torch.randn(3, 8).npu() for _ in range(3))
    gamma, scale = gamma[0], torch.tensor([0.05]).npu()
    normed, _, total = torch_npu.npu_add_rms_norm(x, y, gamma)
    static, second, static_total = torch_npu.npu_add_rms_norm_quant(x, y, gamma, scale)
    assert torch.equal(static.cpu(), torch_npu.npu_quantize(normed, scale, None).cpu())
    assert torch.equal(static.cpu(), second.cpu())
    assert torch.equal(static_total.cpu(), total.cpu())
    dynamic, _, _, dynamic_scale, _ = torch_npu.npu_add_rms_norm_dynamic_quant(x, y, gamma)
    expected, expected_scale = torch_npu.npu_dynamic_quant(normed)
    assert torch.equal(dynamic.cpu(), expected.cpu())
    assert torch.equal(dynamic_scale.cpu(), expected_scale.cpu())


# ---------------------------------------------------------------- mixture of experts
def test_gating_chooses_with_the_bias_and_weighs_without_it():
    x, bias = torch.randn(4, 8), torch.randn(8)
    weights, experts, _ = torch_npu.npu_moe_gating_top_k(
        x.npu(), 2, bias=bias.npu(), norm_type=1, routed_scaling_factor=2.5
    )
    scores = x.sigmoid()
    expected = (scores + bias).topk(2, -1)[1]
    chosen = scores.gather(1, expected)
    assert experts.dtype == torch.int32
    assert torch.equal(experts.cpu().long(), expected)
    assert close(weights, 2.5 * chosen / chosen.sum(-1, keepdim=True))


def test_gating_stays_in_the_best_groups():
    x = torch.tensor([[9.0, 0.0, 5.0, 5.1, 1.0, 1.0, 8.0, 0.5]])  # groups of two: sums 9, 10.1, 2, 8.5
    options = {"k_group": 1, "group_count": 4, "renorm": 0}
    _, by_best, _ = torch_npu.npu_moe_gating_top_k(x.npu(), 2, group_select_mode=0, **options)
    assert sorted(by_best.tolist()[0]) == [0, 1]
    _, by_two, _ = torch_npu.npu_moe_gating_top_k(x.npu(), 2, group_select_mode=1, norm_type=1, **options)
    assert sorted(by_two.tolist()[0]) == [2, 3]


def test_routing_grouped_products_and_unpermuting_are_a_mixture_of_experts():
    tokens, experts, choices, hidden = 5, 4, 2, 6
    x, weight = torch.randn(tokens, hidden), torch.randn(experts, hidden, 3)
    chosen = torch.stack([torch.randperm(experts)[:choices] for _ in range(tokens)]).int()
    probs = torch.rand(tokens, choices)
    rows, position, counts, _ = torch_npu.npu_moe_init_routing_v2(
        x.npu(), chosen.npu(), expert_num=experts, expert_tokens_num_type=1, quant_mode=-1
    )
    assert counts.tolist() == torch.bincount(chosen.flatten(), minlength=experts).tolist()
    (product,) = torch_npu.npu_grouped_matmul(
        [rows], [weight.npu()], group_list=counts, group_list_type=1, group_type=0
    )
    mixed = torch_npu.npu_moe_token_unpermute(product, position, probs.npu())
    expected = torch.stack(
        [sum(probs[t, c] * (x[t] @ weight[chosen[t, c]]) for c in range(choices)) for t in range(tokens)]
    )
    assert close(mixed, expected)
    (by_ends,) = torch_npu.npu_grouped_matmul(
        [rows], [weight.npu()], group_list=counts.cumsum(0), group_list_type=0, group_type=0
    )
    assert torch.equal(by_ends.cpu(), product.cpu())


def test_routing_marks_experts_of_other_ranks():
    chosen = torch.tensor([[0, 3], [2, 1]], dtype=torch.int32).npu()
    rows, position, counts, _ = torch_npu.npu_moe_init_routing_v2(
        torch.tensor([[1.0], [2.0]]).npu(), chosen, expert_num=4, expert_tokens_num_type=1, quant_mode=-1,
        active_expert_range=[2, 4],
    )  # fmt: skip
    assert rows.flatten().tolist()[:2] == [2.0, 1.0]
    assert position.tolist() == [-1, 1, 0, -1]
    assert counts.tolist() == [1, 1]


# ---------------------------------------------------------------- MLA
def test_transpose_batchmatmul_permutes_around_the_product():
    x, weight = torch.randn(5, 3, 4), torch.randn(3, 4, 2)
    y = torch_npu.npu_transpose_batchmatmul(x.npu(), weight.npu(), perm_x1=(1, 0, 2), perm_y=(1, 0, 2))
    assert close(y, torch.einsum("thd,hde->the", x, weight))


def test_kv_norm_rope_cache_stores_both_parts_in_the_slots():
    latent, rope, tokens = 6, 4, 3
    kv, gamma = torch.randn(tokens, 1, 1, latent + rope), torch.randn(latent)
    cos, sin = (torch.cat((t, t), -1).view(tokens, 1, 1, rope) for t in angles(torch.arange(tokens), rope))
    rope_cache, latent_cache = torch.zeros(2, 4, 1, rope).npu(), torch.zeros(2, 4, 1, latent).npu()
    slots = torch.tensor([6, -1, 1])
    torch_npu.npu_kv_rmsnorm_rope_cache(
        kv.npu(), gamma.npu(), cos.npu(), sin.npu(), slots.npu(), rope_cache, latent_cache, epsilon=1e-6,
        cache_mode="PA",
    )  # fmt: skip
    normed = F.rms_norm(kv[..., :latent], (latent,), gamma, 1e-6)
    rotated = torch_npu.npu_interleave_rope(kv[..., latent:].npu(), cos.npu(), sin.npu()).cpu()
    pairs = torch.view_as_complex(kv[..., latent:].contiguous().unflatten(-1, (-1, 2)))
    turned = pairs * torch.complex(cos, sin)[..., : rope // 2]
    assert torch.allclose(rotated, torch.cat((turned.real, turned.imag), -1), atol=1e-6)
    assert torch.allclose(latent_cache.cpu().view(8, latent)[6], normed[0, 0, 0], atol=1e-6)
    assert torch.allclose(rope_cache.cpu().view(8, rope)[1], rotated[2, 0, 0], atol=1e-6)
    assert latent_cache.cpu().view(8, latent)[[0, 2, 3, 4, 5, 7]].abs().max() == 0


def test_ring_mla_over_two_chunks_is_attention_over_all_keys():
    heads, nope, rope, value_size, tokens, context = 2, 4, 2, 3, 3, 5
    q_nope, q_rope = torch.randn(tokens, heads, nope), torch.randn(tokens, heads, rope)
    keys = context + tokens
    k_nope, k_rope = torch.randn(keys, heads, nope), torch.randn(keys, heads, rope)
    value = torch.randn(keys, heads, value_size)
    scale = 1 / math.sqrt(nope + rope)
    output, lse = torch.empty(tokens, heads, value_size).npu(), torch.empty(heads, tokens).npu()

    def ring(part: slice, lens: list, mask_type: str, calc_type: str) -> None:
        torch_npu.atb.npu_ring_mla(
            q_nope.npu(), q_rope.npu(), k_nope[part].npu(), k_rope[part].npu(), value[part].npu(), None,
            torch.tensor(lens, dtype=torch.int32), heads, heads, pre_out=output, prev_lse=lse, qk_scale=scale,
            mask_type=mask_type, calc_type=calc_type, output=output, softmax_lse=lse,
        )  # fmt: skip

    ring(slice(context, keys), [tokens], "mask_type_triu", "calc_type_first_ring")
    ring(slice(0, context), [[tokens], [context]], "no_mask", "calc_type_default")
    q, k = torch.cat((q_nope, q_rope), -1), torch.cat((k_nope, k_rope), -1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    scores.masked_fill_(torch.ones(tokens, keys, dtype=torch.bool).triu(context + 1), -math.inf)
    assert close(output, torch.einsum("hqk,khd->qhd", scores.softmax(-1), value))
    assert close(lse, scores.logsumexp(-1))


# ---------------------------------------------------------------- vllm-ascend's own operators
def test_masked_input_keeps_ids_of_this_rank_and_shifts_added_ones():
    ids = torch.tensor([3, 10, 14, 21, 40])
    masked, outside = torch.ops._C_ascend.get_masked_input_and_mask(ids.npu(), 10, 15, 3, 20, 22)
    assert outside.tolist() == [True, False, False, False, True]
    assert masked.tolist() == [0, 0, 4, 9, 0]  # 5 own ids and 3 of padding, then the added ones


def expand(shift: bool, k: int = 1):
    # two requests of 3 and 4 tokens, of which the second one's last was rejected
    out = torch.ops._C_ascend.npu_copy_and_expand_eagle_inputs(
        torch.tensor([11, 12, 13, 21, 22, 23, 24], dtype=torch.int32).npu(),
        torch.tensor([5, 6, 7, 0, 1, 2, 3], dtype=torch.int32).npu(),
        torch.tensor([99, 98], dtype=torch.int32).npu(),
        torch.tensor([0, 3, 7], dtype=torch.int32).npu(),
        torch.tensor([2, 5], dtype=torch.int32).npu(),
        0, 77, k, shift, 7 + 2 * (k - 1 if shift else k),
    )  # fmt: skip
    return [tensor.tolist() for tensor in out]


def test_expanding_for_a_draft_model_adds_the_next_token_after_the_valid_ones():
    ids, positions, rejected, masked, new, _ = expand(shift=False)
    assert ids == [11, 12, 13, 99, 21, 22, 23, 98, 0]
    assert positions[:4] == [5, 6, 7, 8]
    assert positions[4:8] == [0, 1, 2, 3]
    assert rejected == [0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert masked == [0] * 9
    assert new == [3, 7]


def test_expanding_for_eagle_shifts_the_tokens_and_maps_hidden_states():
    ids, _, rejected, _, new, mapping = expand(shift=True)
    assert ids == [12, 13, 99, 22, 23, 98, 0]
    assert rejected == [0, 0, 0, 0, 0, 0, 1]
    assert new == [2, 5]
    assert mapping == [0, 1, 2, 3, 4, 5, 6]


def test_expanding_for_parallel_drafting_adds_mask_tokens():
    ids, _, _, masked, new, _ = expand(shift=False, k=3)
    assert ids == [11, 12, 13, 99, 77, 77, 21, 22, 23, 98, 77, 77, 0]
    assert masked == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0]
    assert new == [3, 4, 5, 9, 10, 11]


def test_expanding_wants_int32_when_asked_to_be_strict(monkeypatch):
    monkeypatch.setenv("NPU_EMU_EXPAND_STRICT", "1")
    lens = torch.tensor([0, 1], device="npu")
    tokens = torch.ones(1, dtype=torch.int32, device="npu")
    with pytest.raises(RuntimeError, match="query_start_loc must be int32"):
        torch.ops._C_ascend.npu_copy_and_expand_eagle_inputs(
            tokens, tokens, tokens, lens, tokens, 0, 0, 1, False, 2
        )


def adapters(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("middle", [(), (1,)])
def test_lora_shrinks_each_row_with_its_own_adapter(dtype, middle):
    x, weight = adapters(5, 32, dtype=dtype), adapters(3, *middle, 8, 32, dtype=dtype)
    untouched = torch.randn(5, 8)
    y = untouched.clone().npu()
    torch.ops._C_ascend.bgmv_shrink(x.npu(), weight.npu(), torch.tensor([2, -1, 0, 2, 1]).npu(), y, 0.5)
    dense = torch.einsum("ri,roi->ro", x.float(), weight.view(3, 8, 32)[[2, 0, 0, 2, 1]].float())
    assert close(y, torch.where(torch.tensor([[1], [0], [1], [1], [1]]) == 1, 0.5 * dense, untouched))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lora_expands_into_a_slice_and_adds(dtype):
    x, weight, start = torch.randn(4, 8), adapters(2, 1, 16, 8, dtype=dtype), adapters(4, 48, dtype=dtype)
    y = start.npu()
    indices = torch.tensor([1, -1, 0, 1]).npu()
    assert torch.ops._C_ascend.bgmv_expand(x.npu(), weight.npu(), indices, y, 20, 16) is not None
    expected = start.float()
    for row, adapter in ((0, 1), (2, 0), (3, 1)):
        expected[row, 20:36] += weight[adapter, 0].float() @ x[row]
    assert close(y, expected.to(dtype))


def test_lora_for_runs_of_rows_is_lora_row_by_row():
    lengths, of_runs = torch.tensor([2, 3, 1]).npu(), torch.tensor([1, -1, 0]).npu()
    by_row = torch.tensor([1, 1, -1, -1, -1, 0, -1, -1]).npu()  # two rows of padding
    x, a, b = (t.npu() for t in (torch.randn(8, 32), adapters(2, 8, 32), adapters(2, 32, 8)))
    low, low_of_runs, y = torch.zeros(8, 8).npu(), torch.zeros(8, 8).npu(), torch.randn(8, 32)
    torch.ops._C_ascend.bgmv_shrink(x, a, by_row, low, 1.0)
    torch.ops._C_ascend.sgmv_shrink(x, a, of_runs, lengths, low_of_runs, 1.0)
    assert close(low_of_runs, low.cpu())
    assert low.cpu().abs().sum(1).bool().tolist() == [True, True, False, False, False, True, False, False]
    full, full_of_runs = y.clone().npu(), y.clone().npu()
    torch.ops._C_ascend.bgmv_expand(low, b, by_row, full, 0, 32)
    torch.ops._C_ascend.sgmv_expand(low, b, of_runs, lengths, full_of_runs, 0, 32)
    assert close(full_of_runs, full.cpu())
    assert not torch.equal(full.cpu(), y)


def test_lora_refuses_what_the_kernels_refuse():
    indices, y, weight = (
        torch.zeros(2, dtype=torch.int64).npu(),
        torch.zeros(2, 16).npu(),
        torch.zeros(1, 16, 8),
    )
    with pytest.raises(RuntimeError, match="3 rows of x, 2 of y"):
        torch.ops._C_ascend.bgmv_expand(torch.zeros(3, 8).npu(), weight.npu(), indices, y, 0, 16)
    with pytest.raises(RuntimeError, match="16 columns from 4 on, of 16"):
        torch.ops._C_ascend.bgmv_expand(torch.zeros(2, 8).npu(), weight.npu(), indices, y, 4, 16)
    with pytest.raises(RuntimeError, match="rank must be one of"):
        torch.ops._C_ascend.bgmv_expand(
            torch.zeros(2, 4).npu(), torch.zeros(1, 16, 4).npu(), indices, y, 0, 16
        )
    with pytest.raises(RuntimeError, match="y must be float32"):
        torch.ops._C_ascend.bgmv_shrink(
            torch.zeros(2, 16).npu(), torch.zeros(1, 8, 16).npu(), indices, y[:, :8].half(), 1.0
        )


def test_attention_over_parts_of_the_keys_is_attention_over_all():
    scores, values = torch.randn(5, 9), torch.randn(9, 4)
    parts = (scores[:, :3], values[:3]), (scores[:, 3:3], values[3:3]), (scores[:, 3:], values[3:])
    lse = [part.logsumexp(1) if part.shape[1] else torch.full((5,), -torch.inf) for part, _ in parts]
    outputs = [part.softmax(1) @ value for part, value in parts]
    expected = scores.softmax(1) @ values
    merged, none = torch_npu.npu_attention_update([x.npu() for x in lse], [x.npu() for x in outputs], 0)
    assert close(merged, expected)
    assert none is None
    _, total = torch_npu.npu_attention_update([x.npu() for x in lse], [x.npu() for x in outputs], 1)
    assert close(total, scores.logsumexp(1))
    with pytest.raises(RuntimeError, match="2 lse and 3 outputs"):
        torch_npu.npu_attention_update([x.npu() for x in lse[:2]], [x.npu() for x in outputs], 0)
