# SPDX-License-Identifier: Apache-2.0
"""The same function in another shape.

A draft model that computes exactly what its target computes must have every draft accepted,
whatever its hidden size, KV heads, head size or depth. Nothing else separates "the draft model
is fed correctly" from "its buffers happen to fit" as sharply.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel


@dataclass(frozen=True)
class Reshape:
    """Which dimensions of a Llama model grow while its function stays."""

    source: str
    hidden: bool = False  # hidden and intermediate size doubled, zero-padded
    kv_heads: bool = False  # one KV head for each query head, repeated
    head_dim: bool = False  # head size doubled, rotary halves kept on their frequencies
    extra_layers: int = 0  # layers whose output projections are zero

    def __call__(self, root: Path, out: Path) -> None:
        source = AutoModelForCausalLM.from_pretrained(root / self.source, dtype=torch.float32)
        result = AutoModelForCausalLM.from_config(self._config(source.config), dtype=torch.float32)
        with torch.no_grad():
            _Transplant(source, result).run()
        result.save_pretrained(out)

    def _config(self, old: LlamaConfig) -> LlamaConfig:
        width = 2 if self.hidden else 1
        return LlamaConfig(
            **{
                **old.to_diff_dict(),
                "hidden_size": width * old.hidden_size,
                "intermediate_size": width * old.intermediate_size,
                "num_hidden_layers": old.num_hidden_layers + self.extra_layers,
                "num_key_value_heads": old.num_attention_heads if self.kv_heads else old.num_key_value_heads,
                "head_dim": (2 if self.head_dim else 1) * old.head_dim,
                **self._rope(old),
                # The mean square over a zero-padded vector is smaller by the width; epsilon follows.
                "rms_norm_eps": old.rms_norm_eps / width,
            }
        )

    def _rope(self, old: LlamaConfig) -> dict[str, Any]:
        # Head i of a doubled head size rotates by theta'**(-i/D) = theta**(-2i/2D) only if theta' = theta**2.
        power = 2 if self.head_dim else 1
        parameters = getattr(old, "rope_parameters", None)
        if parameters is None:  # transformers 4
            return {"rope_theta": old.rope_theta**power}
        return {"rope_parameters": {**parameters, "rope_theta": parameters["rope_theta"] ** power}}


class _Transplant:
    """Copies weights of one Llama model into a larger one so that the function is unchanged."""

    def __init__(self, source: PreTrainedModel, result: PreTrainedModel) -> None:
        self.old, self.new = source.config, result.config
        self.weights, self.into = source.state_dict(), result.state_dict()
        # Zero padding lowers the RMS by sqrt(width); the norm weights give it back.
        self.norm_scale = (self.old.hidden_size / self.new.hidden_size) ** 0.5

    def run(self) -> None:
        for name, tensor in self.into.items():
            layer = int(name.split(".")[2]) if name.startswith("model.layers.") else -1
            if layer >= self.old.num_hidden_layers:
                self._identity(name, tensor, seed=layer)
            else:
                tensor.copy_(self._reshaped(name, tensor))

    @staticmethod
    def _identity(name: str, tensor: torch.Tensor, seed: int) -> None:
        if "norm" in name:
            tensor.fill_(1.0)
        elif "o_proj" in name or "down_proj" in name:
            tensor.zero_()
        else:
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed)) * 0.1)

    def _reshaped(self, name: str, like: torch.Tensor) -> torch.Tensor:
        weight = self.weights[name]
        old, new = self.old, self.new
        halves = old.head_dim // 2
        rotary = torch.cat([torch.arange(halves), torch.arange(halves) + new.head_dim // 2])
        plain = torch.arange(old.head_dim)
        if "q_proj" in name:  # scores are divided by sqrt(head size)
            scale = (new.head_dim / old.head_dim) ** 0.5
            return self._heads(weight * scale, old.num_attention_heads, new.num_attention_heads, rotary, like)
        if "k_proj" in name:
            return self._heads(weight, old.num_key_value_heads, new.num_key_value_heads, rotary, like)
        if "v_proj" in name:
            return self._heads(weight, old.num_key_value_heads, new.num_key_value_heads, plain, like)
        if "o_proj" in name:
            by_head = self._heads(
                weight.t(), old.num_attention_heads, new.num_attention_heads, plain, like.t()
            )
            return by_head.t()
        return _padded(weight * self.norm_scale if "norm" in name else weight, like)

    def _heads(
        self, weight: torch.Tensor, heads: int, new_heads: int, places: torch.Tensor, like: torch.Tensor
    ) -> torch.Tensor:
        """(heads * head_dim, hidden) -> the shape of ``like``: heads repeated, rows put at ``places``."""
        by_head = weight.reshape(heads, self.old.head_dim, -1).repeat_interleave(new_heads // heads, 0)
        result = torch.zeros(new_heads, self.new.head_dim, like.shape[1])
        result[:, places, : weight.shape[1]] = by_head
        return result.reshape(like.shape)


def _padded(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    result = torch.zeros_like(like)
    result[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return result
