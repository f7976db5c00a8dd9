# SPDX-License-Identifier: Apache-2.0
"""Targets with a multi-token-prediction layer: MiMo-like and DeepSeek-V3-like (MLA, MoE)."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, Qwen2Config

from .shapes import (
    DENSE,
    HEAD_DIM,
    HIDDEN,
    INTERMEDIATE,
    STD,
    VOCAB,
    edit_config,
    mostly_last_token,
    random_model,
)

_HEADS, _KV_HEADS, _LAYERS = 2, 1, 3


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape) * STD


def _append(out: Path, weights: dict[str, torch.Tensor]) -> None:
    """Add the MTP layer's weights to a written target."""
    path = out / "model.safetensors"
    save_file({**load_file(path), **weights}, path, metadata={"format": "pt"})


@dataclass(frozen=True)
class MiMo:
    """A Qwen2 target with MiMo's MTP layer. Smaller numbers: more drafts accepted."""

    attention: float = 0.10  # scale of the target's attention output
    mlp: float = 0.05  # scale of its MLP output
    hidden_share: float = 0.3  # how much of the hidden state the MTP layer mixes into the embedding

    def __call__(self, root: Path, out: Path) -> None:
        shape = {
            **DENSE,
            "num_hidden_layers": _LAYERS,
            "num_attention_heads": _HEADS,
            "num_key_value_heads": _KV_HEADS,
        }
        del shape["head_dim"]
        model = random_model(Qwen2Config(**shape), seed=31)
        mostly_last_token(model, attention=self.attention, mlp=self.mlp).save_pretrained(out)
        _append(out, {f"model.mtp_layers.0.{name}": weight for name, weight in self._layer().items()})
        edit_config(out, architectures=["MiMoForCausalLM"], num_nextn_predict_layers=1)

    def _layer(self) -> dict[str, torch.Tensor]:
        eye, query, key = torch.eye(HIDDEN), _HEADS * HEAD_DIM, _KV_HEADS * HEAD_DIM
        norms = (
            "token_layernorm",
            "hidden_layernorm",
            "final_layernorm",
            "input_layernorm",
            "post_attention_layernorm",
        )
        layer = {f"{name}.weight": torch.ones(HIDDEN) for name in norms}
        layer["input_proj.weight"] = torch.cat([eye * self.hidden_share, eye], 1)
        for name, rows in (("q_proj", query), ("k_proj", key), ("v_proj", key)):
            layer[f"self_attn.{name}.weight"] = _random(rows, HIDDEN)
            layer[f"self_attn.{name}.bias"] = _random(rows) / 3
        layer["self_attn.o_proj.weight"] = _random(HIDDEN, query) * 0.1
        layer["mlp.gate_proj.weight"] = _random(INTERMEDIATE, HIDDEN)
        layer["mlp.up_proj.weight"] = _random(INTERMEDIATE, HIDDEN)
        layer["mlp.down_proj.weight"] = _random(HIDDEN, INTERMEDIATE) * 0.05
        return layer


@dataclass(frozen=True)
class DeepSeekV3:
    """MLA, one dense layer, then MoE layers with grouped sigmoid routing, and one MTP layer."""

    attention: float = 0.15
    mlp: float = 0.15
    hidden_share: float = 0.3
    own_head: bool = True  # whether the checkpoint repeats the target's head for the MTP layer
    head_noise: float = 0.0  # by which the MTP layer's head differs from the target's

    def __call__(self, root: Path, out: Path) -> None:
        config = DeepseekV3Config(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            intermediate_size=INTERMEDIATE,
            moe_intermediate_size=64,
            num_hidden_layers=_LAYERS,
            num_attention_heads=4,
            num_key_value_heads=4,
            n_shared_experts=1,
            n_routed_experts=16,
            n_group=4,
            topk_group=2,
            num_experts_per_tok=4,
            routed_scaling_factor=2.5,
            norm_topk_prob=True,
            first_k_dense_replace=1,
            q_lora_rank=48,
            kv_lora_rank=64,
            qk_rope_head_dim=32,
            qk_nope_head_dim=64,
            v_head_dim=64,
            max_position_embeddings=1024,
            rope_interleave=True,
            rope_scaling=None,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            tie_word_embeddings=False,
        )
        model = mostly_last_token(random_model(config, seed=41), attention=self.attention, mlp=self.mlp)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if "e_score_correction_bias" in name:
                    buffer.copy_(torch.randn(buffer.shape) * 0.05)
        model.save_pretrained(out)
        _append(out, self._layer(load_file(out / "model.safetensors")))
        edit_config(
            out,
            architectures=["DeepseekV3ForCausalLM"],
            topk_method="noaux_tc",
            scoring_func="sigmoid",
            num_nextn_predict_layers=1,
        )

    def _layer(self, target: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        last, prefix = f"model.layers.{_LAYERS - 1}.", f"model.layers.{_LAYERS}."
        layer = {}
        for name, weight in target.items():  # the block has the shapes of the last MoE layer
            if not name.startswith(last):
                continue
            fresh = torch.randn_like(weight) * (0.05 if weight.dim() < 2 else STD)
            if "norm" in name:
                fresh = torch.ones_like(weight)
            elif "o_proj" in name or "down_proj" in name:
                fresh *= 0.1
            layer[name.replace(last, prefix)] = fresh
        layer |= {
            f"{prefix}{name}.weight": torch.ones(HIDDEN) for name in ("enorm", "hnorm", "shared_head.norm")
        }
        eye = torch.eye(HIDDEN)
        layer[prefix + "eh_proj.weight"] = torch.cat([eye, eye * self.hidden_share], 1)
        layer[prefix + "embed_tokens.weight"] = target["model.embed_tokens.weight"].clone()
        if self.own_head:
            head = target["lm_head.weight"].clone()
            if self.head_noise:
                head += torch.randn_like(head) * self.head_noise
            layer[prefix + "shared_head.head.weight"] = head
        return layer


@dataclass(frozen=True)
class WithoutMtp:
    """A DeepSeekV3 without its MTP layer, of a type that vLLM does not take for a model that has one."""

    source: str

    def __call__(self, root: Path, out: Path) -> None:
        shutil.copytree(root / self.source, out, dirs_exist_ok=True)
        path, layer = out / "model.safetensors", f"model.layers.{_LAYERS}."
        weights = {name: w for name, w in load_file(path).items() if not name.startswith(layer)}
        save_file(weights, path, metadata={"format": "pt"})
        edit_config(out, model_type="deepseek_v2", num_nextn_predict_layers=0)


@dataclass(frozen=True)
class DeepSeekV32:
    """DeepSeekV3 with an indexer in every layer, which chooses 2,048 keys to attend to. In tests that is all
    there are, so text and drafts are those of the model it is made from."""

    source: str
    heads: int = 2
    head_dim: int = 64

    def __call__(self, root: Path, out: Path) -> None:
        shutil.copytree(root / self.source, out, dirs_exist_ok=True)
        source = json.loads((out / "config.json").read_text())
        torch.manual_seed(43)
        layers = {}
        for layer in range(source["num_hidden_layers"] + source["num_nextn_predict_layers"]):
            prefix = f"model.layers.{layer}.self_attn.indexer."
            layers[f"{prefix}wq_b.weight"] = _random(self.heads * self.head_dim, source["q_lora_rank"])
            layers[f"{prefix}wk.weight"] = _random(self.head_dim, HIDDEN)
            layers[f"{prefix}k_norm.weight"] = torch.ones(self.head_dim)
            layers[f"{prefix}k_norm.bias"] = torch.zeros(self.head_dim)
            layers[f"{prefix}weights_proj.weight"] = _random(self.heads, HIDDEN)
        _append(out, layers)
        edit_config(
            out,
            architectures=["DeepseekV32ForCausalLM"],
            model_type="deepseek_v32",
            index_n_heads=self.heads,
            index_head_dim=self.head_dim,
            index_topk=2048,
        )
