# SPDX-License-Identifier: Apache-2.0
"""LoRA under speculative decoding: each request gets what its adapter's merged model says.

Every prompt is asked three times in one batch: with an adapter of the linear layers, without one, and with an
adapter of embeddings and head as well, which drafters share with the target. Adapters are for the target:
what drafts has none, so the reference drafts with the target's own embeddings and head, from the states of
the target with its adapter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.cases import Case
from tests.e2e.checks import Check

ADAPTERS = ("pred_lora", None, "pred_lora_ends")
PLAIN = Case("pred", prompts="thrice", adapters=ADAPTERS)


@pytest.mark.parametrize(("method", "draft"), [("eagle", "pred_eagle"), ("draft_model", "pred_draft")])
def test_text_is_the_adapters_and_drafts_are_the_drafters_own(check: Check, method: str, draft: str) -> None:
    outcome = check.as_reference(replace(PLAIN, method=method, draft=draft))
    assert outcome.accepted > 0


def test_a_batch_with_and_without_the_only_adapter_in_captured_graphs(check: Check) -> None:
    """Tracing sees a batch that has the adapter throughout; the hosts alone give it to the wrong rows."""
    graphs = {"cudagraph_mode": "PIECEWISE", "cudagraph_capture_sizes": [4, 16, 32]}
    engine = {"enforce_eager": False, "max_loras": 1, "compilation_config": graphs}
    check.as_reference(replace(PLAIN, method="eagle", draft="pred_eagle", engine=engine))


@pytest.mark.parametrize(("method", "draft"), [("ngram", None), ("eagle", "pred_eagle")])
def test_full_graphs_that_would_hang_are_refused(check: Check, method: str, draft: str | None) -> None:
    engine = {"enforce_eager": False, "compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}}
    outcome = check.harness.run(replace(PLAIN, method=method, draft=draft, engine=engine))
    assert outcome.error is not None
    first = outcome.error.splitlines()[0]
    assert first.startswith(f"ValueError: speculative method {method!r} would hang with LoRA"), first


def test_ngram_drafts_from_the_adapters_text(check: Check) -> None:
    spec: dict[str, Any] = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
    outcome = check.same_text(replace(PLAIN, method="ngram", spec=spec))
    assert 0 < outcome.accepted < outcome.drafted


def test_adapters_change_what_is_said(check: Check) -> None:
    """Else the others would show nothing."""
    texts = check.oracle.text(PLAIN)
    for first in range(0, len(texts), len(ADAPTERS)):
        assert len({tuple(text) for text in texts[first : first + len(ADAPTERS)]}) == len(ADAPTERS)
