# SPDX-License-Identifier: Apache-2.0
"""Dense targets and draft models."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from .shapes import DENSE, HEAD_DIM, LAYERS, VOCAB, edit_config, mostly_last_token, random_model


def llama(root: Path, out: Path) -> None:
    random_model(LlamaConfig(**DENSE), seed=0).save_pretrained(out)


def qwen3(root: Path, out: Path) -> None:
    random_model(Qwen3Config(**DENSE), seed=1).save_pretrained(out)


def llama_draft(root: Path, out: Path) -> None:
    """Unrelated to every target: nothing it drafts is accepted but by chance."""
    random_model(LlamaConfig(**{**DENSE, "num_hidden_layers": 1}), seed=3).save_pretrained(out)


def llama8(root: Path, out: Path) -> None:
    """Eight layers: the least for which EAGLE-3's three default aux layers (2, L/2, L-3) are distinct."""
    random_model(LlamaConfig(**{**DENSE, "num_hidden_layers": 8}), seed=8).save_pretrained(out)


def pred(root: Path, out: Path) -> None:
    model = random_model(LlamaConfig(**{**DENSE, "num_hidden_layers": 2 * LAYERS}), seed=11)
    mostly_last_token(model, attention=0.10, mlp=0.05).save_pretrained(out)


def pred8(root: Path, out: Path) -> None:
    model = random_model(LlamaConfig(**{**DENSE, "num_hidden_layers": 8}), seed=13)
    mostly_last_token(model, attention=0.05, mlp=0.03).save_pretrained(out)


def pred_draft(root: Path, out: Path) -> None:
    """The first layer of ``pred``, with its embeddings and head."""
    target = AutoModelForCausalLM.from_pretrained(root / "pred", dtype=torch.float32).state_dict()
    draft = random_model(LlamaConfig(**{**DENSE, "num_hidden_layers": 1}), seed=0)
    draft.load_state_dict({name: target[name] for name in draft.state_dict()})
    draft.save_pretrained(out)


def pred_pard(root: Path, out: Path) -> None:
    """``pred_draft``, told which token marks the slots of parallel drafting."""
    pred_draft(root, out)
    edit_config(out, pard_token=VOCAB - 1)


def cyc(root: Path, out: Path) -> None:
    """The next token is a function of the last one alone: greedy text runs into a cycle of n-grams."""
    model = random_model(LlamaConfig(**DENSE), seed=21)
    mostly_last_token(model, attention=0.0, mlp=0.0, embedding=1.0).save_pretrained(out)


def other_vocab(root: Path, out: Path) -> None:
    """``llama`` with a smaller vocabulary: must be refused as its draft."""
    random_model(LlamaConfig(**{**DENSE, "vocab_size": VOCAB - 64}), seed=4).save_pretrained(out)


def mrope(root: Path, out: Path) -> None:
    """A text model whose config asks for M-RoPE: enough for vLLM's ``uses_mrope``."""
    llama(root, out)
    section = [HEAD_DIM // 8, 3 * HEAD_DIM // 16, 3 * HEAD_DIM // 16]
    edit_config(out, rope_scaling={"rope_type": "default", "type": "mrope", "mrope_section": section})
