# SPDX-License-Identifier: Apache-2.0
"""Sparse attention over latent keys, against scaled_dot_product_attention of one query at a time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torch_npu
from torch_npu.operators import sparse_attention

HEADS, LATENT, ROPE, INDEX, BLOCK = 2, 8, 4, 6, 4
SCALE = 0.3
TABLE = torch.tensor([[7, 2, 9, 4], [1, 0, 3, 15]], dtype=torch.int32)
ENDS, KEYS = torch.tensor([3, 5], dtype=torch.int32), torch.tensor([9, 14], dtype=torch.int32)
WHERE = {"layout_query": "TND", "sparse_mode": 3, "block_table": TABLE.npu()}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def cache(width: int) -> torch.Tensor:
    return torch.randn(16, BLOCK, 1, width)


def queries():
    """Row, keys of its request and how many of them it sees: query i of n over m keys sees m - n + i + 1."""
    for request, rows in enumerate((range(3), range(3, 5))):
        length = int(KEYS[request])
        for i, row in enumerate(rows):
            yield row, TABLE[request].long(), length - len(rows) + i + 1


def first(results):
    """Since vllm-ascend 0.23.0 the operators return more than what they computed then."""
    return (results[0] if isinstance(results, tuple) else results).cpu()


def index(query, keys, weights, count, indexer=torch.ops._C_ascend.npu_lightning_indexer):
    return first(indexer(
        query=query.npu(), key=keys.npu(), weights=weights.npu(), actual_seq_lengths_query=ENDS.npu(),
        actual_seq_lengths_key=KEYS.npu(), layout_key="PA_BSND", sparse_count=count, **WHERE,
    ))  # fmt: skip


@pytest.mark.parametrize(
    "indexer", [torch.ops._C_ascend.npu_lightning_indexer, sparse_attention.indexer_since_0_23]
)
@pytest.mark.parametrize("count", [4, 32])
def test_the_indexer_chooses_the_keys_that_score_best(count, indexer):
    query, keys, weights = torch.randn(6, HEADS, INDEX), cache(INDEX), torch.randn(6, HEADS)
    chosen = index(query, keys, weights, count, indexer)
    assert chosen.shape == (6, 1, count)
    for row, blocks, seen in queries():
        scores = (keys[blocks].reshape(-1, INDEX)[:seen] @ query[row].T).relu() @ weights[row]
        keys_of_row = chosen[row, 0][chosen[row, 0] >= 0].long()
        assert len(keys_of_row.unique()) == len(keys_of_row) == min(count, seen)
        found = scores[keys_of_row].sort(descending=True).values
        torch.testing.assert_close(found, scores.topk(min(count, seen)).values)
    assert chosen[5].eq(-1).all()  # padding


@pytest.mark.parametrize(
    "attention", [torch.ops._C_ascend.npu_sparse_flash_attention, sparse_attention.attention_since_0_23]
)
def test_queries_attend_to_chosen_keys_only(attention):
    query, rope = torch.randn(6, HEADS, LATENT), torch.randn(6, HEADS, ROPE)
    latents, ropes = cache(LATENT), cache(ROPE)
    chosen = index(torch.randn(6, HEADS, INDEX), cache(INDEX), torch.randn(6, HEADS), 4)
    output = first(attention(
        query=query.npu(), key=latents.npu(), value=latents.npu(), sparse_indices=chosen.npu(),
        scale_value=SCALE, sparse_block_size=1, actual_seq_lengths_query=ENDS.npu(),
        actual_seq_lengths_kv=KEYS.npu(), query_rope=rope.npu(), key_rope=ropes.npu(),
        layout_kv="PA_BSND", **WHERE,
    ))  # fmt: skip
    for row, blocks, _ in queries():
        asked = chosen[row, 0][chosen[row, 0] >= 0].long()
        values = latents[blocks].reshape(-1, LATENT)[asked]
        keys = torch.cat((values, ropes[blocks].reshape(-1, ROPE)[asked]), -1)
        right = F.scaled_dot_product_attention(
            torch.cat((query[row], rope[row]), -1)[None], keys[None], values[None], scale=SCALE
        )
        torch.testing.assert_close(output[row], right[0])
    assert output[5].eq(0).all()


def test_what_the_emulator_does_not_return_is_refused():
    tensors = [torch.ones(1).npu() for _ in range(4)]
    with pytest.raises(NotImplementedError, match="no values"):
        sparse_attention.indexer_since_0_23(*tensors[:3], return_value=True)
    with pytest.raises(NotImplementedError, match="return_softmax_lse"):
        sparse_attention.attention_since_0_23(*tensors, SCALE, return_softmax_lse=True)


def test_rows_are_scattered_but_to_negative_places():
    table = torch.zeros(4, 2).npu()
    torch_npu.npu_scatter_nd_update_(table, torch.tensor([[2], [-1]]).npu(), torch.ones(2, 2).npu())
    assert table.cpu().sum(1).tolist() == [0, 0, 2, 0]
