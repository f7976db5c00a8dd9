# SPDX-License-Identifier: Apache-2.0
"""One end-to-end case and what came of it, as plain data that crosses process boundaries as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

Processes = Literal["one", "fork", "spawn", "ray"]

# Small, greedy and exact: every case changes only what it is about.
ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
    "num_gpu_blocks_override": 64,
    "seed": 0,
    "disable_log_stats": False,  # acceptance is reported through the metrics
}
_CHANGES_TEXT = ("max_model_len", "dtype")
LORA: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
SAMPLING: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "detokenize": False}


@dataclass(frozen=True)
class Case:
    """``LLM(model, **engine).generate(prompts)`` in an environment, perhaps speculatively."""

    model: str
    method: str | None = None
    draft: str | None = None
    k: int = 3
    prompts: str = "mixed"
    max_tokens: int = 24
    engine: Mapping[str, Any] = field(default_factory=dict)  # over ENGINE
    spec: Mapping[str, Any] = field(default_factory=dict)  # added to speculative_config
    sampling: Mapping[str, Any] = field(default_factory=dict)  # over SAMPLING
    adapters: Sequence[str | None] = ()  # LoRA adapters of the prompts, in turn; None: the model as it is
    env: Mapping[str, str] = field(default_factory=dict)
    # One; engine core and workers started by fork or spawn; or the workers by Ray, with the engine core here.
    processes: Processes = "one"
    fresh: bool = False  # an interpreter of its own even in one process, so that the log has the imports too
    timeout: float = 120.0  # seconds, start included
    # Instead of prompts all at once: requests that come and go while the engine steps (see traffic.Arrival).
    arrivals: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    def plain(self) -> Case:
        """The same text without speculation, in the plainest engine that can make it."""
        engine = {name: value for name, value in self.engine.items() if name in _CHANGES_TEXT}
        if self.prompts == "many":
            engine["num_gpu_blocks_override"] = 128
        return Case(
            self.model,
            prompts=self.prompts,
            max_tokens=self.max_tokens,
            engine=engine,
            adapters=self.adapters,
        )

    def with_env(self, **env: str) -> Case:
        return replace(self, env={**self.env, **env})

    def adapter(self, request: int) -> str | None:
        """The LoRA adapter of a request."""
        return self.adapters[request % len(self.adapters)] if self.adapters else None

    def speaker(self, request: int) -> str:
        """The model that must say what a request is answered: its adapter's is merged."""
        adapter = self.adapter(request)
        return self.model if adapter is None else f"{adapter}_merged"

    @property
    def max_model_len(self) -> int:
        return int(self.engine.get("max_model_len", ENGINE["max_model_len"]))

    @property
    def in_parallel(self) -> bool:
        """Whether one pass drafts all tokens."""
        return bool(self.spec.get("parallel_drafting"))

    def engine_arguments(self, models: Path) -> dict[str, Any]:
        """Keyword arguments of ``vllm.LLM``."""
        arguments = {**ENGINE, **self.engine, "model": str(models / self.model)}
        if self.adapters:
            arguments = {**LORA, **arguments}
        if self.processes == "ray":
            arguments["distributed_executor_backend"] = "ray"
        if self.method is not None:
            speculation: dict[str, Any] = {"method": self.method, "num_speculative_tokens": self.k}
            if self.draft is not None:
                speculation["model"] = str(models / self.draft)
            arguments["speculative_config"] = {**speculation, **self.spec}
        return arguments

    def sampling_arguments(self) -> dict[str, Any]:
        """Keyword arguments of ``vllm.SamplingParams``."""
        return {**SAMPLING, "max_tokens": self.max_tokens, **self.sampling}

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Case:
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Draft:
    """One call of the drafter for one request."""

    request: int
    known: int  # tokens known then, prompt and output, the newest included
    newest: int  # the newest of them
    tokens: tuple[int, ...]
    logits: bytes  # float32 [k, vocabulary], of each pass; empty where a graph was replayed


@dataclass
class Outcome:
    """What a case returned. ``error`` is set, and the rest is empty, when it ended with an exception."""

    tokens: list[list[int]] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)  # vLLM's own names, without the "vllm:"
    workers: list[dict[str, Any]] = field(default_factory=list)  # see probe.collect
    processes: list[dict[str, Any]] = field(default_factory=list)  # see probe.processes
    answers: list[dict[str, Any]] = field(default_factory=list)  # by arrival, see traffic.play
    left: dict[str, Any] = field(
        default_factory=dict
    )  # what the engine still held at the end, see traffic.play
    error: str | None = None  # "Type: message", causes included, one a line
    seconds: float = 0.0
    log: str = ""  # path

    @property
    def num_drafts(self) -> int:
        return int(self.metrics.get("spec_decode_num_drafts", 0))

    @property
    def drafted(self) -> int:
        return int(self.metrics.get("spec_decode_num_draft_tokens", 0))

    @property
    def accepted(self) -> int:
        return int(self.metrics.get("spec_decode_num_accepted_tokens", 0))

    @property
    def accepted_at(self) -> list[int]:
        return [int(value) for value in self.metrics.get("spec_decode_num_accepted_tokens_per_pos", [])]

    @property
    def facts(self) -> dict[str, Any]:
        """Of the first worker."""
        return self.workers[0]

    @property
    def drafts(self) -> list[Draft]:
        """Every proposal the first worker's drafter made, prefill chunks included."""
        return [
            Draft(*place, tuple(tokens), base64.b64decode(logits))
            for *place, tokens, logits in self.facts["drafts"]
        ]

    def log_text(self) -> str:
        return Path(self.log).read_text(errors="replace") if self.log else ""

    def last_lines(self, count: int = 25) -> str:
        """The end of the log, for the message of a failing test."""
        return f"{self.log}:\n" + "\n".join(self.log_text().splitlines()[-count:])

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        return cls(**json.loads(text))
