# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters in PEFT's format, and what they must equal: their targets with the weights merged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

RANK, ALPHA = 8, 16
_PREFIX = "base_model.model."  # PEFT's, before the names of transformers


@dataclass(frozen=True)
class Adapter:
    """A random adapter of ``source``: it changes nearly every token, and drafts are accepted as often."""

    source: str
    modules: tuple[str, ...]
    seed: int

    def __call__(self, root: Path, out: Path) -> None:
        torch.manual_seed(self.seed)
        weights = {}
        for name, weight in _load(root / self.source).state_dict().items():
            module = name.removesuffix(".weight")
            if module.rpartition(".")[2] in self.modules:
                rows, columns = weight.shape
                a, b, embedding = (
                    (columns, rows, "") if "embed" not in module else (rows, columns, "embedding_")
                )
                suffix = "" if embedding else ".weight"
                strength = weight.std() / 4 / RANK**0.5  # a change of a quarter of the weight
                weights[f"{_PREFIX}{module}.lora_{embedding}A{suffix}"] = torch.randn(RANK, a) * strength
                weights[f"{_PREFIX}{module}.lora_{embedding}B{suffix}"] = torch.randn(b, RANK) * RANK / ALPHA
        save_file(weights, out / "adapter_model.safetensors", metadata={"format": "pt"})
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": list(self.modules)}
        (out / "adapter_config.json").write_text(json.dumps({**config, "bias": "none"}, indent=1))


@dataclass(frozen=True)
class Merged:
    """``source`` with the products of ``adapter`` added to its weights."""

    source: str
    adapter: str

    def __call__(self, root: Path, out: Path) -> None:
        model = _load(root / self.source)
        weights = load_file(root / self.adapter / "adapter_model.safetensors")
        state = model.state_dict()
        for name, a in weights.items():
            if "_A" in name:
                module = name.removeprefix(_PREFIX).partition(".lora_")[0]
                change = weights[name.replace("_A", "_B")] @ a * (ALPHA / RANK)
                state[f"{module}.weight"] += change.t() if "embedding" in name else change
        model.save_pretrained(out)


def _load(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
