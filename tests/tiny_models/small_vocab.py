# SPDX-License-Identifier: Apache-2.0
"""A target of eight tokens whose text is far from certain, and what drafts for it: for tests that count how
often each token is sampled."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from .eagle_heads import eagle_head
from .shapes import DENSE, random_model

VOCAB = 8
_SHAPE = {**DENSE, "vocab_size": VOCAB, "num_hidden_layers": 2}


def dice(root: Path, out: Path) -> None:
    random_model(LlamaConfig(**_SHAPE), seed=61).save_pretrained(out)


def dice_draft(root: Path, out: Path) -> None:
    """The first layer of ``dice``."""
    target = AutoModelForCausalLM.from_pretrained(root / "dice", dtype=torch.float32).state_dict()
    draft = random_model(LlamaConfig(**{**_SHAPE, "num_hidden_layers": 1}), seed=0)
    draft.load_state_dict({name: target[name] for name in draft.state_dict()})
    draft.save_pretrained(out)


def dice_eagle(root: Path, out: Path) -> None:
    eagle_head(out, seed=62, vocab_size=VOCAB)
