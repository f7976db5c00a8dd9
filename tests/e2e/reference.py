# SPDX-License-Identifier: Apache-2.0
"""The oracle: greedy decoding and drafting by transformers modules alone.

No cache, no batching, no vLLM code: each step recomputes its whole sequence in float32. Equal text is
necessary and not enough, because a wrong draft only costs acceptance. So a :class:`Drafter` here says
which tokens a correct drafter proposes after any prefix, and :func:`speculate` what a correct engine
must report.

How drafts are counted
----------------------
With ``c`` tokens known (prompt and output), a step verifies ``min(k, max_model_len - c - 1)`` drafts:
the step's last position must stay below ``max_model_len - 1``. Nothing is held back because
``max_tokens`` is near: the drafts of the last step are counted as drafted, and as accepted where the target
agrees with them, even when the tokens are then cut off. The first token comes from the prefill, which
verifies nothing. So 24 tokens with k=3 and every draft accepted are 1 + 6 * 4 tokens, of which 24
are kept: 6 steps, 18/18 drafts a request, 108/108 for six.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding


def _load(directory: Path) -> torch.nn.Module:
    kind, options = AutoModelForCausalLM, {"dtype": torch.float32, "attn_implementation": "eager"}
    architectures = json.loads((directory / "config.json").read_text())["architectures"]
    if architectures[0] in ("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"):
        # Of up to index_topk keys DeepSeek-V3.2 attends to all, as V3 does; transformers has only that.
        kind, config = DeepseekV3ForCausalLM, DeepseekV3Config.from_pretrained(directory)
        config.model_type = DeepseekV3Config.model_type  # by which transformers 5 finds the experts' weights
        options["config"] = config
    return kind.from_pretrained(directory, **options).eval()


class Target:
    """A causal LM decoded greedily; sequences are remembered and only ever grow."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.model = _load(directory)
        self.config = self.model.config
        self._grown: dict[tuple[int, ...], list[int]] = {}

    @cached_property
    def architecture(self) -> str:
        return str(json.loads((self.directory / "config.json").read_text())["architectures"][0])

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        return load_file(self.directory / "model.safetensors")

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The first ``count`` tokens after ``prompt``."""
        grown = self._grown.setdefault(tuple(prompt), [])
        while len(grown) < count:
            grown.append(int(self.next_logits((*prompt, *grown)).argmax()))
        return grown[:count]

    @cache  # noqa: B019 - a target lives as long as the session
    @torch.inference_mode()
    def next_logits(self, tokens: tuple[int, ...]) -> Tensor:
        """(vocabulary): what follows ``tokens``."""
        return self.model(torch.tensor([tokens]), use_cache=False).logits[0, -1].clone()

    @lru_cache(maxsize=1)  # noqa: B019 - a target lives as long as the session
    @torch.inference_mode()
    def hidden(self, tokens: tuple[int, ...]) -> Tensor:
        """(tokens, hidden): what a drafter is given. MiMo hands over the states before its final norm."""
        body = self.model.model
        if self.architecture != "MiMoForCausalLM":
            return body(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
        caught: list[Tensor] = []
        hook = body.norm.register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0]))
        try:
            body(torch.tensor([tokens]), use_cache=False)
        finally:
            hook.remove()
        return caught[0][0]

    @lru_cache(maxsize=1)  # noqa: B019 - a target lives as long as the session
    @torch.inference_mode()
    def layer_inputs(self, tokens: tuple[int, ...], layers: tuple[int, ...]) -> Tensor:
        """(tokens, hidden * layers): the inputs of the given layers side by side, as EAGLE-3 wants them."""
        states = self.model.model(torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
        return torch.cat([states.hidden_states[layer][0] for layer in layers], -1)


class Drafter(Protocol):
    def draft(self, text: Sequence[int], known: int, k: int) -> tuple[int, ...]:
        """The ``k`` tokens proposed when the first ``known`` tokens of the target's ``text`` are known.

        Models are causal, so what is computed over the whole text holds for each of its prefixes.
        """

    def logits(self, text: Sequence[int], known: int, drafts: Sequence[int]) -> Tensor:
        """(len(drafts), vocabulary): what each pass says when those before it drafted ``drafts``.

        Over the target's vocabulary, minus infinity for what the drafter can not draft.
        """


class DraftModel:
    """A second causal LM that continues the text greedily."""

    def __init__(self, directory: Path) -> None:
        self._lm = Target(directory)

    def draft(self, text: Sequence[int], known: int, k: int) -> tuple[int, ...]:
        return tuple(self._lm.greedy(text[:known], k))

    def logits(self, text: Sequence[int], known: int, drafts: Sequence[int]) -> Tensor:
        prefixes = [(*text[:known], *drafts[:step]) for step in range(len(drafts))]
        return torch.stack([self._lm.next_logits(prefix) for prefix in prefixes])


class ParallelDraftModel:
    """A causal LM that drafts in one pass: the ``k - 1`` slots behind the text hold a mask token."""

    def __init__(self, directory: Path) -> None:
        self._lm, self._mask = Target(directory), _mask_token(directory)

    def draft(self, text: Sequence[int], known: int, k: int) -> tuple[int, ...]:
        return tuple(self.logits(text, known, [self._mask] * k).argmax(-1).tolist())

    @torch.inference_mode()
    def logits(self, text: Sequence[int], known: int, drafts: Sequence[int]) -> Tensor:
        tokens = [*text[:known], *[self._mask] * (len(drafts) - 1)]
        return self._lm.model(torch.tensor([tokens]), use_cache=False).logits[0, known - 1 :]


def _mask_token(directory: Path) -> int:
    config = json.loads((directory / "config.json").read_text())
    return int(config["pard_token"] if "pard_token" in config else config["ptd_token_id"])


class _FromHiddenStates:
    """What EAGLE, EAGLE-3 and MTP share: pairs (hidden state at p, token at p + 1) in, states out.

    The state that a step puts out for its last position is the hidden state of the next step's.

    The first states are those of ``speaker``: the target, with its adapter merged where it has one. Adapters
    are not for what drafts: embeddings and head are those of the ``target`` as it is.
    """

    layer: torch.nn.Module
    rotary: torch.nn.Module

    def __init__(self, target: Target, speaker: Target) -> None:
        self.target, self.speaker = target, speaker
        # What passes over (the text known, the drafts before) put out: logits, and the state of the last row.
        self._passes: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Tensor, Tensor]] = {}

    def draft(self, text: Sequence[int], known: int, k: int) -> tuple[int, ...]:
        drafts: tuple[int, ...] = ()
        for _ in range(k):
            drafts = (*drafts, int(self._pass(text, known, drafts)[0].argmax()))
        return drafts

    def logits(self, text: Sequence[int], known: int, drafts: Sequence[int]) -> Tensor:
        return torch.stack([self._pass(text, known, tuple(drafts[:step]))[0] for step in range(len(drafts))])

    @torch.inference_mode()
    def _pass(self, text: Sequence[int], known: int, drafts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        key = tuple(text[:known]), drafts
        if key not in self._passes:
            before = [self._pass(text, known, drafts[:step])[1] for step in range(len(drafts))]
            states = torch.cat([self.target_states(tuple(text))[: known - 1], *before])
            following = torch.tensor([*text[1:known], *drafts])
            out = self.step(states, self.target.model.model.embed_tokens(following))
            self._passes[key] = self.over_target_ids(self.head(out[-1])), out[-1:].clone()
        return self._passes[key]

    def target_states(self, text: tuple[int, ...]) -> Tensor:
        return self.speaker.hidden(text)

    def over_target_ids(self, logits: Tensor) -> Tensor:
        return logits

    def step(self, states: Tensor, embeddings: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not say how it makes a step")

    def head(self, state: Tensor) -> Tensor:
        return self.target.model.lm_head(state)

    def _causal(self, x: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Input with a batch dimension, causal mask, rotary cos and sin for positions 0, 1, ..."""
        x = x[None]
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)[None, None]
        return x, mask, self.rotary(x, torch.arange(x.shape[1])[None])

    def _run_layer(self, x: Tensor) -> Tensor:
        x, mask, cos_sin = self._causal(x)
        positions = torch.arange(x.shape[1])[None]
        out = self.layer(x, attention_mask=mask, position_ids=positions, position_embeddings=cos_sin)
        return (out[0] if isinstance(out, tuple) else out)[0]


def _fused_experts(weights: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """A checkpoint's experts as transformers 5 holds them: all in two tensors."""
    gate, up, down = (
        torch.stack([weights[f"mlp.experts.{expert}.{name}_proj.weight"] for expert in range(count)])
        for name in ("gate", "up", "down")
    )
    return {"mlp.experts.gate_up_proj": torch.cat([gate, up], 1), "mlp.experts.down_proj": down}


def _load_layer(layer: torch.nn.Module, weights: dict[str, Tensor], prefix: str) -> torch.nn.Module:
    own = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
    experts = getattr(layer.mlp, "experts", None)
    if hasattr(experts, "gate_up_proj"):
        own |= _fused_experts(own, experts.num_experts)
    missing = layer.load_state_dict(own, strict=False).missing_keys
    if missing:
        raise ValueError(f"the checkpoint lacks {', '.join(prefix + name for name in missing)}")
    return layer.eval()


class Eagle(_FromHiddenStates):
    """One Llama layer without input norm over ``fc(embedding, state)``; the target's own head."""

    def __init__(self, target: Target, speaker: Target, directory: Path) -> None:
        weights = load_file(directory / "model.safetensors")
        config = LlamaConfig.from_pretrained(directory, attn_implementation="eager")
        layer = LlamaDecoderLayer(config, 0)
        layer.input_layernorm = torch.nn.Identity()
        super().__init__(target, speaker)
        self.fc = weights["fc.weight"]
        self.layer, self.rotary = _load_layer(layer, weights, "layers.0."), LlamaRotaryEmbedding(config)

    def step(self, states: Tensor, embeddings: Tensor) -> Tensor:
        return self._run_layer(torch.cat([embeddings, states], -1) @ self.fc.t())


class Eagle3(_FromHiddenStates):
    """One layer that attends over (embedding, state) side by side, with a head over its own vocabulary."""

    def __init__(self, target: Target, speaker: Target, directory: Path) -> None:
        self.weights = load_file(directory / "model.safetensors")
        config = LlamaConfig.from_pretrained(directory, attn_implementation="eager")
        layer = LlamaDecoderLayer(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = getattr(layer.self_attn, name).out_features
            setattr(layer.self_attn, name, torch.nn.Linear(2 * config.hidden_size, rows, bias=False))
        super().__init__(target, speaker)
        self.eps = config.rms_norm_eps
        self.layer, self.rotary = _load_layer(layer, self.weights, "midlayer."), LlamaRotaryEmbedding(config)

    def target_states(self, text: tuple[int, ...]) -> Tensor:
        layers = self.target.config.num_hidden_layers
        aux = self.speaker.layer_inputs(text, (2, layers // 2, layers - 3))
        return aux @ self.weights["fc.weight"].t()

    def step(self, states: Tensor, embeddings: Tensor) -> Tensor:
        normed = _rms(states, self.weights["midlayer.hidden_norm.weight"], self.eps)
        both = torch.cat([self.layer.input_layernorm(embeddings), normed], -1)
        both, mask, cos_sin = self._causal(both)
        attended = self.layer.self_attn(both, position_embeddings=cos_sin, attention_mask=mask)[0][0]
        residual = states + attended
        return residual + self.layer.mlp(self.layer.post_attention_layernorm(residual))

    def head(self, state: Tensor) -> Tensor:
        head = self.weights.get("lm_head.weight", self.target.weights["lm_head.weight"])
        return _rms(state, self.weights["norm.weight"], self.eps) @ head.t()

    def over_target_ids(self, logits: Tensor) -> Tensor:
        if "d2t" not in self.weights:
            return logits
        offsets = self.weights["d2t"]
        spread = logits.new_full((*logits.shape[:-1], self.target.config.vocab_size), float("-inf"))
        spread[..., torch.arange(len(offsets)) + offsets] = logits
        return spread


class ParallelEagle3(Eagle3):
    """EAGLE-3 in one pass: the slots behind the text hold a mask token and the head's own masked state."""

    def __init__(self, target: Target, speaker: Target, directory: Path) -> None:
        super().__init__(target, speaker, directory)
        self._mask = _mask_token(directory)

    def draft(self, text: Sequence[int], known: int, k: int) -> tuple[int, ...]:
        return tuple(self.logits(text, known, [self._mask] * k).argmax(-1).tolist())

    @torch.inference_mode()
    def logits(self, text: Sequence[int], known: int, drafts: Sequence[int]) -> Tensor:
        masked = len(drafts) - 1
        state = self.weights["mask_hidden"].view(1, -1) @ self.weights["fc.weight"].t()
        states = torch.cat([self.target_states(tuple(text))[: known - 1], state.expand(masked, -1)])
        following = torch.tensor([*text[1:known], *[self._mask] * masked])
        out = self.step(states, self.target.model.model.embed_tokens(following))
        return self.over_target_ids(self.head(out[known - 2 :]))


class Mtp(_FromHiddenStates):
    """The multi-token-prediction layer that a MiMo or DeepSeek-V3 checkpoint carries."""

    def __init__(self, target: Target, speaker: Target) -> None:
        config, weights = target.config, target.weights
        super().__init__(target, speaker)
        self.eps, self.rotary = config.rms_norm_eps, target.model.model.rotary_emb
        self.mimo = target.architecture == "MiMoForCausalLM"
        if self.mimo:
            prefix, names = (
                "model.mtp_layers.0.",
                ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
            )
        else:
            prefix, names = (
                f"model.layers.{config.num_hidden_layers}.",
                ("enorm", "hnorm", "eh_proj", "shared_head.norm"),
            )
        self.token_norm, self.state_norm, self.projection, self.final_norm = (
            weights[f"{prefix}{name}.weight"] for name in names
        )
        last = target.model.model.layers[-1]
        self.layer = _load_layer(type(last)(config, config.num_hidden_layers - 1), weights, prefix)

    def step(self, states: Tensor, embeddings: Tensor) -> Tensor:
        embeddings = embeddings.clone()
        embeddings[0] = 0  # both models leave out the embedding at position 0
        token = _rms(embeddings, self.token_norm, self.eps)
        state = _rms(states, self.state_norm, self.eps)
        both = torch.cat([state, token] if self.mimo else [token, state], -1)
        out = self._run_layer(both @ self.projection.t())
        return _rms(out, self.final_norm, self.eps) if self.mimo else out

    def head(self, state: Tensor) -> Tensor:
        return (state if self.mimo else _rms(state, self.final_norm, self.eps)) @ self.target.weights[
            "lm_head.weight"
        ].t()


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


@dataclass
class Speculation:
    """What a correct engine reports for a batch of requests."""

    k: int
    num_drafts: int = 0  # steps that verified at least one draft, summed over requests
    drafted: int = 0
    accepted_at: list[int] = field(default_factory=list)  # by position, k long
    # (request, tokens known) -> the drafts verified there, all k but near max_model_len
    drafts: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.accepted_at = self.accepted_at or [0] * self.k

    @property
    def accepted(self) -> int:
        return sum(self.accepted_at)

    def to_json(self) -> str:
        rows = [[*place, list(tokens)] for place, tokens in self.drafts.items()]
        return json.dumps({**vars(self), "drafts": rows})

    @classmethod
    def from_json(cls, text: str) -> Speculation:
        fields = json.loads(text)
        rows = fields.pop("drafts")
        return cls(**fields, drafts={(request, known): tuple(tokens) for request, known, tokens in rows})


def speculate(
    requests: Sequence[tuple[Target, Drafter, Sequence[int]]],
    max_tokens: int,
    k: int,
    max_model_len: int,
) -> Speculation:
    """Decode every request's prompt speculatively and greedily; see the module's docstring for the
    counting."""
    result = Speculation(k)
    for request, (target, drafter, prompt) in enumerate(requests):
        last = len(prompt) + min(max_tokens, max_model_len - len(prompt))
        text = [*prompt, *target.greedy(prompt, last - len(prompt) + k + 1)]
        known = len(prompt) + 1
        while known < last:
            verified = max(0, min(k, max_model_len - known - 1))
            drafts = drafter.draft(text, known, verified)
            result.drafts[request, known] = drafts
            accepted = 0
            while accepted < verified and drafts[accepted] == text[known + accepted]:
                result.accepted_at[accepted] += 1
                accepted += 1
            result.num_drafts += verified > 0
            result.drafted += verified
            known += accepted + 1
    return result
