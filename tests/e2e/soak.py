# SPDX-License-Identifier: Apache-2.0
"""Random traffic from a seed, and what must hold after it went through an engine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from .cases import Case, Outcome
from .traffic import Arrival

METHODS: dict[str, Case] = {
    "ngram": Case("cyc", "ngram", spec={"prompt_lookup_max": 3, "prompt_lookup_min": 1}),
    "eagle": Case("pred", "eagle", "pred_eagle"),
    "eagle3": Case("pred8", "eagle3", "pred8_eagle3"),
    "mtp": Case("mimo_hi", "mtp"),
    "draft_model": Case("pred", "draft_model", "pred_draft"),
}
ENGINE: dict[str, Any] = {
    "max_num_seqs": 16,
    "max_num_batched_tokens": 192,  # prompts come in chunks
    "num_gpu_blocks_override": 20,  # preempts now and then
    "enable_prefix_caching": True,
    "max_model_len": 384,
}
ENVIRONMENT = {"NPU_EMU_POISON": "1"}
_VOCABULARY = range(3, 320)


def case(method: str, seed: int, count: int, **engine: Any) -> Case:
    return replace(
        METHODS[method],
        arrivals=[arrival.to_dict() for arrival in arrivals(seed, count)],
        engine={**ENGINE, **engine},
        env=ENVIRONMENT,
        timeout=60 + 2.0 * count,
    )


def plain(case: Case) -> Case:
    """The greedy requests of a case, without speculation, nobody leaving, memory for all."""
    greedy = [{**arrival, "abort_after": None} for arrival in case.arrivals if not _random_sampling(arrival)]
    engine = {
        **case.engine,
        "num_gpu_blocks_override": 256,
        "enable_prefix_caching": False,
        "async_scheduling": False,
    }
    return Case(case.model, arrivals=greedy, engine=engine, timeout=case.timeout, max_tokens=case.max_tokens)


def arrivals(seed: int, count: int) -> list[Arrival]:
    source = random.Random(seed)
    prefix = [source.choice(_VOCABULARY) for _ in range(256)]
    step, made = 0, []
    for _ in range(count):
        step += source.choice((0, 0, 0, 1, 1, 2, 5))
        made.append(
            Arrival(
                prompt=_prompt(source, prefix),
                sampling=_sampling(source),
                step=step,
                abort_after=source.randrange(12) if source.random() < 0.08 else None,
            )
        )
    return made


def _prompt(source: random.Random, prefix: list[int]) -> list[int]:
    length = source.choice((1, 2, 5, 17, 40, 64, 100, 126, 127, 128, 129, 200, 300))
    kind = source.random()
    if kind < 0.2:
        return prefix[: max(length, 128)] + [
            source.choice(_VOCABULARY) for _ in range(source.randrange(1, 50))
        ]
    if kind < 0.4:
        part = [source.choice(_VOCABULARY) for _ in range(source.randrange(1, 6))]
        return (part * length)[:length]
    return [source.choice(_VOCABULARY) for _ in range(length)]


def _sampling(source: random.Random) -> dict[str, Any]:
    asked: dict[str, Any] = {"max_tokens": source.choice((1, 2, 3, 4, 8, 16, 24, 40, 100))}
    if source.random() < 0.4:
        asked["temperature"] = source.choice((0.3, 0.8, 1.0, 1.5))
        if source.random() < 0.5:
            asked["top_k"] = source.choice((1, 5, 40))
        if source.random() < 0.5:
            asked["top_p"] = source.choice((0.5, 0.9))
        if source.random() < 0.5:
            asked["seed"] = source.randrange(1000)
        if source.random() < 0.3:
            asked["n"] = source.choice((2, 3))  # greedy requests have one answer
    if source.random() < 0.2:
        asked["logprobs"] = source.choice((0, 2, 5))
    if source.random() < 0.1:
        asked["prompt_logprobs"] = 1
    if source.random() < 0.3:
        asked["stop_token_ids"] = source.sample(_VOCABULARY, 40)
    if source.random() < 0.1:
        asked["allowed_token_ids"] = source.sample(_VOCABULARY, 50)
    if source.random() < 0.2:
        asked |= {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3}
    return asked


def _random_sampling(arrival: Any) -> bool:
    return arrival["sampling"].get("temperature", 0) > 0


def faults(case: Case, outcome: Outcome, plain: Outcome) -> list[str]:
    """In words, what is not as it must be."""
    for run in (outcome, plain):
        if run.error is not None:
            return [f"{run.error}\n{run.last_lines()}"]
    found = [
        f"{value} {name} at the end" for name, value in outcome.left.items() if name != "steps" and value
    ]
    expected = iter(plain.answers)
    for number, (arrival, answer) in enumerate(zip(case.arrivals, outcome.answers, strict=True)):
        found += [
            f"request {number}, prompt of {len(arrival['prompt'])}, {arrival['sampling']}: {fault}"
            for fault in _request_faults(arrival, answer, expected)
        ]
    return found


def _request_faults(
    arrival: Mapping[str, Any], answer: dict[str, Any], expected: Iterator[dict[str, Any]]
) -> Iterator[str]:
    if not answer["aborted"] and not answer["finished"]:
        yield "never finished"
    right = None if _random_sampling(arrival) else next(expected)["outputs"][0]["tokens"]
    for output in answer["outputs"]:
        tokens = output.get("tokens", [])
        if not tokens and not answer["aborted"]:
            yield "no tokens"
        if len(tokens) > arrival["sampling"]["max_tokens"] or not all(0 <= token < 320 for token in tokens):
            yield f"{tokens}"
        if right is not None:
            cut = right[: len(tokens)] if answer["aborted"] else right
            if tokens != cut:
                yield f"{tokens}, plain {cut}"
