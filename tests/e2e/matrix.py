# SPDX-License-Identifier: Apache-2.0
"""How drafts are made: every method with a tiny model for it, and every mode in which it drafts.

Each drafter agrees with its target on 20% to 80% of the first drafts, so that errors show either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .cases import Case

METHODS: dict[str, Case] = {
    "eagle": Case("pred", "eagle", "pred_eagle"),
    "eagle3": Case("pred8", "eagle3", "pred8_eagle3"),
    "mtp (MiMo)": Case("mimo_hi", "mtp"),
    "mtp (DeepSeek-V3)": Case("dsv3_hi", "mtp"),
    "draft_model": Case("pred", "draft_model", "pred_draft"),
    "eagle3, parallel": Case("pred8", "eagle3", "pred8_parallel_eagle3", spec={"parallel_drafting": True}),
    "draft_model, parallel": Case("pred", "draft_model", "pred_pard", spec={"parallel_drafting": True}),
}
# Drafts that compute what their target computes: all are accepted. Wide models have hidden states of 256, the
# others of 128.
EQUALS: dict[str, Case] = {
    "draft = target": Case("llama", "draft_model", "llama"),
    "wider draft": Case("llama", "draft_model", "llama_wide"),
    "wider target": Case("llama_wide", "draft_model", "llama"),
}
K = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Mode:
    engine: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)

    def of(self, case: Case) -> Case:
        return replace(
            case, engine={**case.engine, **self.engine}, spec={**case.spec, **self.spec}, timeout=240
        )


_CHUNKS = {"max_num_batched_tokens": 64}
_UNPADDED = {"disable_padded_drafter_batch": True}


def _graphs(mode: str) -> dict[str, Any]:
    # mtp drafts inside graphs with synchronous scheduling only.
    graphs = {"cudagraph_mode": mode}
    return {"enforce_eager": False, "async_scheduling": False, "compilation_config": graphs}


MODES: dict[str, Mode] = {
    "padded": Mode(),
    "padded, chunked": Mode(_CHUNKS),
    "unpadded": Mode(spec=_UNPADDED),
    "unpadded, chunked": Mode(_CHUNKS, _UNPADDED),
    "piecewise graphs": Mode(_graphs("PIECEWISE")),
    "full graphs": Mode(_graphs("FULL_DECODE_ONLY")),
}


def can(method: str, mode: str) -> bool:
    """Whether the method drafts in the mode: extra slots are for eager passes over padded batches."""
    return mode.startswith("padded") or ("parallel" not in method and method != "draft_model")


def case_of(method: str, mode: str, k: int) -> Case:
    return MODES[mode].of(replace(METHODS[method], k=k))


def cases(k: tuple[int, ...] = K) -> Iterator[tuple[str, str, int, Case]]:
    """Method, mode, k and the case of every combination there is."""
    for mode in MODES:
        for method in METHODS:
            for drafts in k:
                if can(method, mode):
                    yield method, mode, drafts, case_of(method, mode, drafts)
