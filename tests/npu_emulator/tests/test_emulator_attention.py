# SPDX-License-Identifier: Apache-2.0
"""npu_fused_infer_attention_score against scaled_dot_product_attention, and its record of lengths."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torch_npu

HEADS, KV_HEADS, HEAD_SIZE, BLOCK = 4, 2, 8, 4
SCALE = HEAD_SIZE**-0.5
CAUSAL_MASK = torch.ones(2048, 2048, dtype=torch.int8).triu(1).npu()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class Cache:
    """A paged KV cache of 16 blocks, and a block table of 3 requests in no particular order."""

    def __init__(self) -> None:
        self.key, self.value = (torch.randn(16, BLOCK, KV_HEADS, HEAD_SIZE) for _ in range(2))
        self.table = torch.tensor([[7, 2, 9, 4], [1, 0, 3, 15], [8, 12, 5, 6]], dtype=torch.int32)

    def tokens(self, request: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        blocks = self.table[request].long()
        return tuple(cache[blocks].flatten(0, 1)[:length] for cache in (self.key, self.value))


def options(**changes) -> dict:
    return {
        "input_layout": "TND", "block_size": BLOCK, "num_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "scale": SCALE, "sparse_mode": 3, "atten_mask": CAUSAL_MASK, **changes,
    }  # fmt: skip


def fia(cache: Cache, query: torch.Tensor, ends: list[int], kv_lens: list[int], **changes):
    return torch_npu.npu_fused_infer_attention_score(
        query.npu(),
        cache.key.flatten(2).npu(),
        cache.value.flatten(2).npu(),
        block_table=cache.table.npu(),
        actual_seq_lengths=ends,
        actual_seq_lengths_kv=kv_lens,
        **options(**changes),
    )


def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """(tokens, heads, size) of one request, from PyTorch's own attention."""
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, visible, scale=SCALE, enable_gqa=True)[0].transpose(0, 1)


def right_bottom_causal(queries: int, keys: int) -> torch.Tensor:
    return torch.tensor([[j <= i + keys - queries for j in range(keys)] for i in range(queries)])


def test_each_query_sees_the_keys_up_to_its_own_position():
    cache, query = Cache(), torch.randn(8, HEADS, HEAD_SIZE)
    output, _ = fia(cache, query, [1, 4, 8], [9, 16, 4])
    for request, (start, end, length) in enumerate([(0, 1, 9), (1, 4, 16), (4, 8, 4)]):
        key, value = cache.tokens(request, length)
        expected = sdpa(query[start:end], key, value, right_bottom_causal(end - start, length))
        assert torch.allclose(output[start:end].cpu(), expected, atol=1e-5)


def test_rows_that_see_no_key_are_zero_and_the_others_are_not_harmed():
    cache, query = Cache(), torch.randn(6, HEADS, HEAD_SIZE)
    output, lse = fia(
        cache, query, [4, 5, 6], [2, 0, 3]
    )  # 4 queries of which the last two have a key; none; 3
    assert output[:2].count_nonzero().item() == 0
    assert output[4].count_nonzero().item() == 0
    assert (lse[:2] == -torch.inf).all()
    key, value = cache.tokens(0, 2)
    assert torch.allclose(
        output[2:4].cpu(), sdpa(query[2:4], key, value, right_bottom_causal(2, 2)), atol=1e-5
    )
    assert output.isfinite().all()


def test_values_that_are_not_numbers_are_not_hidden():
    cache, query = Cache(), torch.randn(1, HEADS, HEAD_SIZE)
    cache.value[7, 0] = torch.nan
    output, _ = fia(cache, query, [1], [1])
    assert output.isnan().all()


def test_queries_without_padding_do_not_depend_on_keys_beyond_the_length():
    cache, query = Cache(), torch.randn(1, HEADS, HEAD_SIZE)
    before, _ = fia(cache, query, [1], [5])
    cache.key[2, 1:], cache.value[2, 1:] = (
        torch.nan,
        torch.nan,
    )  # of the second block only its first slot counts
    after, _ = fia(cache, query, [1], [5])
    assert torch.equal(before.cpu(), after.cpu())


def test_log_sum_exp_is_that_of_the_scaled_scores():
    cache, query = Cache(), torch.randn(1, HEADS, HEAD_SIZE)
    _, lse = fia(cache, query, [1], [6], softmax_lse_flag=True)
    key, _ = cache.tokens(0, 6)
    scores = torch.einsum("hd,khd->hk", query[0], key.repeat_interleave(2, 1)) * SCALE
    assert torch.allclose(lse[0, :, 0].cpu(), scores.logsumexp(-1), atol=1e-5)


def test_cache_blocks_may_have_heads_before_tokens():
    cache, query = Cache(), torch.randn(3, HEADS, HEAD_SIZE)
    expected, _ = fia(cache, query, [3], [7])
    output, _ = torch_npu.npu_fused_infer_attention_score(
        query.npu(), *(t.transpose(1, 2).contiguous().npu() for t in (cache.key, cache.value)),
        block_table=cache.table.npu(), actual_seq_lengths=[3], actual_seq_lengths_kv=[7], **options(),
    )  # fmt: skip
    assert torch.equal(output.cpu(), expected.cpu())


def test_unpaged_keys_have_cumulative_lengths():
    query, key = torch.randn(5, HEADS, HEAD_SIZE), torch.randn(9, KV_HEADS, HEAD_SIZE)
    value = torch.randn_like(key)
    output, _ = torch_npu.npu_fused_infer_attention_score(
        query.npu(),
        key.npu(),
        value.npu(),
        actual_seq_lengths=[2, 5],
        actual_seq_lengths_kv=[3, 9],
        **options(),
    )
    expected = [
        sdpa(query[:2], key[:3], value[:3], right_bottom_causal(2, 3)),
        sdpa(query[2:], key[3:], value[3:], right_bottom_causal(3, 6)),
    ]
    assert torch.allclose(output.cpu(), torch.cat(expected), atol=1e-5)


@pytest.mark.parametrize("layout", ["BSND", "BSH", "BNSD", "BSND_NBSD"])
def test_batched_layouts(layout):
    query, key, value = torch.randn(2, 3, HEADS, HEAD_SIZE), *torch.randn(2, 2, 5, KV_HEADS, HEAD_SIZE)
    arrange = {
        "BSH": lambda t: t.flatten(2),
        "BNSD": lambda t: t.transpose(1, 2).contiguous(),
    }.get(layout, lambda t: t)
    output, _ = torch_npu.npu_fused_infer_attention_score(
        *(arrange(t).npu() for t in (query, key, value)), **options(input_layout=layout)
    )
    expected = torch.stack(
        [sdpa(q, k, v, right_bottom_causal(3, 5)) for q, k, v in zip(query, key, value, strict=True)]
    )
    if layout == "BSND_NBSD":
        expected = expected.permute(2, 0, 1, 3)
    assert torch.allclose(output.cpu(), arrange(expected), atol=1e-5)


def test_batched_layouts_may_be_paged_with_shorter_queries():
    cache, query = Cache(), torch.randn(2, 3, HEADS, HEAD_SIZE)
    output, _ = fia(cache, query, [3, 1], [6, 4], input_layout="BSND")
    for request, (queries, length) in enumerate([(3, 6), (1, 4)]):
        key, value = cache.tokens(request, length)
        expected = sdpa(query[request, :queries], key, value, right_bottom_causal(queries, length))
        assert torch.allclose(output[request, :queries].cpu(), expected, atol=1e-5)
    assert output[1, 1:].count_nonzero().item() == 0


def test_latent_attention_joins_the_rope_parts_and_keeps_the_value_width():
    query, rope = torch.randn(2, 1, HEADS, 6), torch.randn(2, 1, HEADS, 2)
    latent, key_rope = torch.randn(2, 5, 1, 6), torch.randn(2, 5, 1, 2)
    output, _ = torch_npu.npu_fused_infer_attention_score(
        *(t.npu() for t in (query, latent, latent)), query_rope=rope.npu(), key_rope=key_rope.npu(),
        **options(input_layout="BSND", num_key_value_heads=1, sparse_mode=0, atten_mask=None),
    )  # fmt: skip
    scores = torch.einsum(
        "bqhd,bkd->bhqk", torch.cat((query, rope), -1), torch.cat((latent, key_rope), -1)[:, :, 0]
    )
    expected = torch.einsum("bhqk,bkd->bqhd", (scores * SCALE).softmax(-1), latent[:, :, 0])
    assert output.shape == (2, 1, HEADS, 6)
    assert torch.allclose(output.cpu(), expected, atol=1e-5)


def test_band_mode_is_a_sliding_window():
    cache, query = Cache(), torch.randn(3, HEADS, HEAD_SIZE)
    output, _ = fia(cache, query, [3], [9], sparse_mode=4, pre_tokens=2, next_tokens=0)
    key, value = cache.tokens(0, 9)
    visible = torch.tensor([[i + 6 - 2 <= j <= i + 6 for j in range(9)] for i in range(3)])
    assert torch.allclose(output.cpu(), sdpa(query, key, value, visible), atol=1e-5)


def test_out_variant_leaves_the_padding_of_its_output_alone():
    cache, query = Cache(), torch.randn(2, HEADS, HEAD_SIZE)
    out = torch.full((4, HEADS, HEAD_SIZE), 7.0, device="npu")
    torch_npu.npu_fused_infer_attention_score.out(
        query.npu(), cache.key.flatten(2).npu(), cache.value.flatten(2).npu(), block_table=cache.table.npu(),
        actual_seq_lengths=[1, 2], actual_seq_lengths_kv=[3, 5], workspace=None,
        out=[out, torch.empty(1, device="npu")], **options(),
    )  # fmt: skip
    assert torch.equal(out[:2].cpu(), fia(cache, query, [1, 2], [3, 5])[0].cpu())
    assert (out[2:] == 7).all()


def test_second_version_and_paged_attention_agree_with_the_first():
    cache, query = Cache(), torch.randn(3, HEADS, HEAD_SIZE)
    expected, _ = fia(cache, query, [1, 2, 3], [9, 1, 0])
    renamed = options(num_query_heads=HEADS, softmax_scale=SCALE)
    del renamed["num_heads"], renamed["scale"]
    tensors = query.npu(), cache.key.flatten(2).npu(), cache.value.flatten(2).npu()
    renamed.update(block_table=cache.table.npu(), actual_seq_qlen=[1, 2, 3], actual_seq_kvlen=[9, 1, 0])
    second, _ = torch_npu.npu_fused_infer_attention_score_v2(*tensors, **renamed)
    assert torch.equal(second.cpu(), expected.cpu())
    out = torch.full((4, HEADS, HEAD_SIZE), 7.0, device="npu")
    workspace = torch_npu._npu_fused_infer_attention_score_v2_get_max_workspace(*tensors, **renamed)
    torch_npu.npu_fused_infer_attention_score_v2.out(
        *tensors, workspace=workspace, out=[out, torch.empty(1, device="npu")], **renamed
    )
    assert torch.equal(out[:3].cpu(), expected.cpu())
    assert (out[3:] == 7).all()
    paged = torch.zeros(3, HEADS, HEAD_SIZE, device="npu")
    lengths = torch.tensor([9, 1, 0], dtype=torch.int32)
    torch_npu._npu_paged_attention(
        query.npu(),
        cache.key.npu(),
        cache.value.npu(),
        KV_HEADS,
        HEADS,
        SCALE,
        cache.table.npu(),
        lengths,
        paged,
    )
    assert torch.allclose(paged.cpu(), expected.cpu(), atol=1e-6)


@pytest.mark.parametrize(
    ("ends", "kv_lens", "changes", "message"),
    [
        ([2, 3], [1, 1], {}, "cumulative actual_seq_lengths up to the 4 queries"),
        ([3, 2, 4], [1, 1, 1], {}, "cumulative"),
        ([2, 4], [1], {}, "2 query lengths, 1 KV lengths"),
        ([1, 2, 3, 4], [1, 1, 1, 1], {}, "block_table .* for 4 requests"),
        ([4], [17], {}, "block table out of range"),
        ([4], [4], {"atten_mask": None}, "needs an atten_mask of .*got none"),
        ([4], [4], {"atten_mask": CAUSAL_MASK[:1024]}, "got .1024, 2048"),
        ([4], [4], {"atten_mask": CAUSAL_MASK.t().contiguous()}, "ones above the diagonal"),
        ([4], [4], {"atten_mask": torch.ones(2048, 2048)}, "expected an npu tensor"),
    ],
    ids=["total", "order", "kv", "table", "blocks", "no_mask", "mask_size", "mask_content", "host_mask"],
)  # fmt: skip
def test_calls_that_the_device_refuses_raise(ends, kv_lens, changes, message):
    with pytest.raises(RuntimeError, match=message):
        fia(Cache(), torch.randn(4, HEADS, HEAD_SIZE), ends, kv_lens, **changes)


def test_missing_kv_lengths_can_be_taken_for_empty_requests(monkeypatch):
    monkeypatch.setenv("NPU_EMU_FIA_STRICT", "0")
    output, _ = fia(Cache(), torch.randn(4, HEADS, HEAD_SIZE), [2, 4], [3])
    assert output[2:].count_nonzero().item() == 0
    assert output[:2].count_nonzero().item() > 0


@pytest.mark.parametrize(
    "changes", [{"sparse_mode": 2}, {"input_layout": "SBH"}, {"antiquant_scale": CAUSAL_MASK}]
)
def test_what_is_not_emulated_raises(changes):
    with pytest.raises(NotImplementedError):
        fia(Cache(), torch.randn(4, HEADS, HEAD_SIZE), [4], [4], **changes)


def test_lengths_are_recorded_without_padding_while_somebody_records():
    cache, query = Cache(), torch.randn(4, HEADS, HEAD_SIZE)
    fia(cache, query, [4], [4])
    with torch_npu.attention_lengths.record() as outer:
        fia(cache, query, [1, 3, 4], [9, 5, 0])
        with torch_npu.attention_lengths.record() as inner:
            fia(cache, query[:1], [1], [2])
    fia(cache, query, [4], [4])
    assert [record[:2] for record in outer] == [([1, 2], [9, 5]), ([1], [2])]
    assert inner == outer[1:]
    assert outer[0].operator == "npu_fused_infer_attention_score"
