# SPDX-License-Identifier: Apache-2.0
"""EAGLE and EAGLE-3 heads: random ones, and ones that agree with their target often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from .shapes import DENSE, HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, STD, VOCAB, edit_config, save_head

# Of EAGLE-3's attention: sharp enough for drafts to be accepted, soft enough for a wrong key to show.
_SHARPNESS = 0.08

_CONFIG: dict[str, Any] = {
    **DENSE,
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "dtype": "float32",
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
}


def _layer(prefix: str, attention_input: int, *, output_scale: float = 1.0) -> dict[str, torch.Tensor]:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape) * STD

    return {
        prefix + "self_attn.q_proj.weight": random(HEADS * HEAD_DIM, attention_input),
        prefix + "self_attn.k_proj.weight": random(KV_HEADS * HEAD_DIM, attention_input),
        prefix + "self_attn.v_proj.weight": random(KV_HEADS * HEAD_DIM, attention_input),
        prefix + "self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD_DIM) * output_scale,
        prefix + "mlp.gate_proj.weight": random(INTERMEDIATE, HIDDEN),
        prefix + "mlp.up_proj.weight": random(INTERMEDIATE, HIDDEN),
        prefix + "mlp.down_proj.weight": random(HIDDEN, INTERMEDIATE) * output_scale,
        prefix + "post_attention_layernorm.weight": torch.ones(HIDDEN),
    }


def eagle_llama(root: Path, out: Path) -> None:
    """Unrelated to its target, with states that do not grow from pass to pass."""
    torch.manual_seed(5)
    fc = torch.randn(HIDDEN, 2 * HIDDEN) * (STD / 3)
    weights = {"fc.weight": fc, **_layer("layers.0.", HIDDEN, output_scale=0.1)}
    save_head(out, weights, {**_CONFIG, "architectures": ["LlamaForCausalLM"]})


def pred_eagle(root: Path, out: Path) -> None:
    eagle_head(out, seed=12)


def eagle_head(out: Path, seed: int, **config: Any) -> None:
    """``fc`` passes the embedding through: next token from the last one, as ``pred`` mostly does."""
    torch.manual_seed(seed)
    fc = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], 1)
    weights = {"fc.weight": fc, **_layer("layers.0.", HIDDEN, output_scale=0.05)}
    save_head(out, weights, {**_CONFIG, "architectures": ["LlamaForCausalLM"], **config})


def pred_stateless_eagle(root: Path, out: Path) -> None:
    """``pred_eagle`` with a token, but no state, for the masked slots of parallel drafting."""
    pred_eagle(root, out)
    edit_config(out, ptd_token_id=VOCAB - 1)


def _eagle3(out: Path, weights: dict[str, torch.Tensor], draft_vocab: torch.Tensor) -> None:
    """``draft_vocab``: ascending target ids that the head can draft."""
    in_draft = torch.zeros(VOCAB, dtype=torch.bool)
    in_draft[draft_vocab] = True
    norms = ("midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight", "norm.weight")
    weights |= {name: torch.ones(HIDDEN) for name in norms}
    weights |= {"d2t": draft_vocab - torch.arange(len(draft_vocab)), "t2d": in_draft}
    save_head(
        out,
        weights,
        {**_CONFIG, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(draft_vocab)},
    )


def eagle3_llama8(root: Path, out: Path) -> None:
    torch.manual_seed(6)
    weights = {
        "fc.weight": torch.randn(HIDDEN, 3 * HIDDEN) * STD,
        "lm_head.weight": torch.randn(VOCAB, HIDDEN) * STD,
        **_layer("midlayer.", 2 * HIDDEN),
    }
    _eagle3(out, weights, torch.arange(VOCAB))


def pred8_eagle3(root: Path, out: Path) -> None:
    """Carries the last token's embedding to the output, over a vocabulary that leaves out every fifth token.

    EAGLE-3 has no path from the embedding to the output but attention. Queries and keys that are
    random images of the embedding make each token attend mostly to itself (and its repeats); values
    and the output projection then pass the embedding through.
    """
    torch.manual_seed(14)
    target = load_file(root / "pred8" / "model.safetensors")
    layer = _layer("midlayer.", 2 * HIDDEN, output_scale=0.05)
    image = torch.randn(HEAD_DIM, HIDDEN) * _SHARPNESS
    eye, rows = torch.eye(HIDDEN), HEAD_DIM
    embed_only = torch.zeros(HIDDEN, 2 * HIDDEN)
    embed_only[:, :HIDDEN] = eye
    layer["midlayer.self_attn.q_proj.weight"] = torch.zeros(HEADS * rows, 2 * HIDDEN)
    layer["midlayer.self_attn.q_proj.weight"][:, :HIDDEN] = image.repeat(HEADS, 1)
    layer["midlayer.self_attn.k_proj.weight"] = torch.zeros(KV_HEADS * rows, 2 * HIDDEN)
    layer["midlayer.self_attn.k_proj.weight"][:, :HIDDEN] = image.repeat(KV_HEADS, 1)
    layer["midlayer.self_attn.v_proj.weight"] = embed_only
    output = torch.zeros(HIDDEN, HEADS * rows)
    output[:rows, :rows] = eye[:rows, :rows]  # head 0 reads KV head 0: the first half of the embedding
    output[rows:, 2 * rows : 3 * rows] = eye[:rows, :rows]  # head 2 reads KV head 1: the second half
    layer["midlayer.self_attn.o_proj.weight"] = output
    draft_vocab = torch.tensor([token for token in range(VOCAB) if token % 5 != 4])
    weights = {
        "fc.weight": torch.randn(HIDDEN, 3 * HIDDEN) * 0.002,
        "lm_head.weight": target["lm_head.weight"][draft_vocab].clone(),
        **layer,
    }
    _eagle3(out, weights, draft_vocab)


def pred8_headless_eagle3(root: Path, out: Path) -> None:
    """``pred8_eagle3`` over the whole vocabulary, with its target's head: the checkpoint has none."""
    pred8_eagle3(root, out)
    weights = load_file(out / "model.safetensors")
    for name in ("lm_head.weight", "d2t", "t2d"):
        del weights[name]
    save_head(out, weights, json.loads((out / "config.json").read_text()))
    edit_config(out, draft_vocab_size=VOCAB)


def pred8_parallel_eagle3(root: Path, out: Path) -> None:
    """``pred8_eagle3`` with a state and a token for the masked slots of parallel drafting."""
    pred8_eagle3(root, out)
    path = out / "model.safetensors"
    masked = {"mask_hidden": torch.randn(1, 3 * HIDDEN)}
    save_head(out, {**load_file(path), **masked}, json.loads((out / "config.json").read_text()))
    edit_config(out, ptd_token_id=VOCAB - 1)
