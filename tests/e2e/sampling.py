# SPDX-License-Identifier: Apache-2.0
"""How often each text is sampled, and how often it should be.

Requests of several kinds share every batch of one engine. What the first three tokens of each kind must look
like is computed from the model's logits alone, without vLLM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .cases import Case, Outcome

PROMPT = [3, 0, 5, 6, 3, 4, 1, 7, 2, 4, 6, 0, 3, 6, 6, 3]  # every token has a successor for ngram to propose
LENGTH = 3
KINDS: dict[str, dict[str, Any]] = {
    "temperature 1": {"temperature": 1.0},
    "temperature 1.3, top-k 4": {"temperature": 1.3, "top_k": 4},
    "temperature 0.9, top-p 0.8": {"temperature": 0.9, "top_p": 0.8},
    "temperature 0.8, top-k 6, top-p 0.9, seeds": {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "seed": 0},
    "greedy": {},
}
METHODS: dict[str, Case] = {
    "plain": Case("dice"),
    "ngram": Case("dice", "ngram", spec={"prompt_lookup_max": 3, "prompt_lookup_min": 1}),
    "eagle": Case("dice", "eagle", "dice_eagle"),
    "draft_model": Case("dice", "draft_model", "dice_draft"),
}
_ANSWERS = 50  # of a request
_ENGINE = {
    "max_num_seqs": 250,
    "max_num_batched_tokens": 4096,
    "max_model_len": 64,
    "num_gpu_blocks_override": 256,
    "async_scheduling": False,
}


def case(method: str, k: int, count: int, **env: str) -> Case:
    """``count`` answers at temperature 1, a fourth of that of the other kinds; a greedy request has one."""
    arrivals, seed = [], 1
    for kind in _kinds(count):
        sampling = dict(KINDS[kind])
        if "seed" in sampling:
            sampling["seed"] = seed
            seed += _ANSWERS  # vLLM counts on from the seed, answer by answer
        if sampling:
            sampling["n"] = _ANSWERS
        arrivals.append({"prompt": PROMPT, "sampling": sampling})
    return replace(
        METHODS[method],
        k=k,
        arrivals=arrivals,
        max_tokens=LENGTH,
        engine=_ENGINE,
        env=env,
        timeout=120 + count / 10,
    )


def _kinds(count: int) -> Iterator[str]:
    """The kind of each request, in the order of arrival."""
    first, *others = KINDS
    for number in range(count // _ANSWERS):
        yield first
        if number % 4 == 0:
            yield from others


def counts(outcome: Outcome, count: int) -> dict[str, Counter[tuple[int, ...]]]:
    """How often each text came, by kind."""
    found: dict[str, Counter[tuple[int, ...]]] = {kind: Counter() for kind in KINDS}
    for kind, answer in zip(_kinds(count), outcome.answers, strict=True):
        found[kind].update(tuple(output["tokens"]) for output in answer["outputs"])
    return found


@dataclass(frozen=True)
class Fit:
    """A chi-square test; texts of fewer than five expected samples are one cell together."""

    samples: int
    cells: int
    statistic: float
    p: float


def fit(counted: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> Fit:
    """Samples against exact probabilities. A text of probability 0 that was sampled gives p = 0."""
    from scipy.stats import chi2

    total = sum(counted.values())
    cells, rest = [], [0.0, 0.0]
    for text, probability in expected.items():
        if total * probability >= 5:
            cells.append((counted[text], total * probability))
        else:
            rest[0] += counted[text]
            rest[1] += total * probability
    if rest[1] >= 5:
        cells.append((rest[0], rest[1]))
    impossible = sum(number for text, number in counted.items() if expected.get(text, 0.0) == 0.0)
    statistic = sum((seen - right) ** 2 / right for seen, right in cells)
    p = float(chi2.sf(statistic, len(cells) - 1)) if len(cells) > 1 else 1.0
    if impossible:
        p = 0.0
    return Fit(total, len(cells), statistic, p)


def same(one: Counter[tuple[int, ...]], other: Counter[tuple[int, ...]]) -> Fit:
    """Whether two sets of samples come from one distribution."""
    from scipy.stats import chi2_contingency

    totals = sum(one.values()), sum(other.values())
    rows, rest = [], [0, 0]
    for text in one | other:
        row = [one[text], other[text]]
        if sum(row) * min(totals) / sum(totals) >= 5:
            rows.append(row)
        else:
            rest = [a + b for a, b in zip(rest, row, strict=True)]
    if sum(rest) * min(totals) / sum(totals) >= 5:
        rows.append(rest)
    found = chi2_contingency(rows, correction=False)
    return Fit(sum(totals), len(rows), float(found.statistic), float(found.pvalue))


def expected(models: Path) -> dict[str, dict[tuple[int, ...], float]]:
    """The probability of every text of three tokens, by kind."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(models / "dice", dtype=torch.float32)
    found: dict[str, dict[tuple[int, ...], float]] = {kind: {(): 1.0} for kind in KINDS}
    texts: list[tuple[int, ...]] = [()]
    for _ in range(LENGTH):
        with torch.no_grad():
            logits = model(torch.tensor([PROMPT + list(text) for text in texts])).logits[:, -1].double()
        for kind, asked in KINDS.items():
            step = {
                (*text, token): found[kind][text] * p
                for text, row in zip(texts, logits, strict=True)
                for token, p in enumerate(_constrained(row, **asked))
            }
            found[kind] = step
        texts = [(*text, token) for text in texts for token in range(logits.shape[1])]
    return found


def _constrained(
    logits: Any, temperature: float = 0.0, top_k: int | None = None, top_p: float = 1.0, seed: int = 0
) -> list[float]:
    """Probabilities of the next token. Top-p is taken of what top-k leaves; both keep the likeliest token."""
    if temperature == 0:
        return [float(token == logits.argmax()) for token in range(len(logits))]
    probabilities = (logits / temperature).softmax(-1)
    order = probabilities.argsort(descending=True)
    kept = order[: top_k or len(order)]
    share = probabilities[kept] / probabilities[kept].sum()
    before = share.cumsum(0) - share
    kept = kept[before < top_p]
    left = probabilities[kept] / probabilities[kept].sum()
    result = [0.0] * len(logits)
    for token, p in zip(kept.tolist(), left.tolist(), strict=True):
        result[token] = p
    return result
