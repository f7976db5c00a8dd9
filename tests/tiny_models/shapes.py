# SPDX-License-Identifier: Apache-2.0
"""Sizes and initial weights shared by every tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

VOCAB, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 320, 128, 256, 4, 2, 64, 2

DENSE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}

# Wide enough that greedy decoding of random weights has no near-ties in float32.
STD = 0.15


def random_model(config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """A float32 causal LM with every matrix drawn from N(0, STD)."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=STD)
    return model


def mostly_last_token(
    model: PreTrainedModel, *, attention: float, mlp: float, embedding: float = 6.0
) -> PreTrainedModel:
    """Scale a random model so that its next token depends mostly on the last one.

    A drafter that sees only part of the target then agrees with it often, but not always,
    which is what exercises both acceptance and rejection.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "o_proj" in name:
                parameter.mul_(attention)
            elif parameter.dim() > 1 and "down_proj" in name:
                parameter.mul_(mlp)
            elif "bias" in name:
                torch.nn.init.normal_(parameter, std=0.05)
        model.get_input_embeddings().weight.mul_(embedding)
    return model


def save_head(out: Path, weights: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    """Write a checkpoint that transformers has no class for (an EAGLE head)."""
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=1))


def edit_config(out: Path, **changes: Any) -> None:
    """Change fields of a written ``config.json``."""
    path = out / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}, indent=1))
