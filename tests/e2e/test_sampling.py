# SPDX-License-Identifier: Apache-2.0
"""Speculative sampling has the distribution of plain sampling, request by request of a mixed batch.

Every kind of request is in every batch. Engine and requests have fixed seeds, so a run of unchanged code
repeats its counts; `python benchmarks/sampling.py` counts 20,000 and more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import host, sampling
from tests.e2e.checks import Check
from tests.e2e.sampling import KINDS

COUNT = 1600
UNLIKELY = 1e-4  # of 16 comparisons, one in 600 would be this far off by chance
RANDOM = [kind for kind, asked in KINDS.items() if asked]
METHODS = [method for method in sampling.METHODS if method != "plain"]


@pytest.fixture(scope="module")
def expected(models: Path) -> dict[str, dict[tuple[int, ...], float]]:
    return sampling.expected(models)


@pytest.mark.parametrize("kind", RANDOM)
@pytest.mark.parametrize("method", ["plain", *METHODS])
def test_texts_come_as_often_as_the_model_says(
    check: Check, expected: dict[str, dict[tuple[int, ...], float]], method: str, kind: str
) -> None:
    outcome = check.runs(sampling.case(method, 3, COUNT))
    counted = sampling.counts(outcome, COUNT)[kind]
    fit = sampling.fit(counted, expected[kind])
    assert fit.samples >= COUNT / 4
    assert fit.p > UNLIKELY, fit
    if method != "plain":
        assert 0 < outcome.accepted < outcome.drafted  # both acceptance and rejection were exercised


@pytest.mark.parametrize("method", METHODS)
def test_greedy_requests_among_sampled_ones_stay_greedy(
    check: Check, expected: dict[str, dict[tuple[int, ...], float]], method: str
) -> None:
    counted = sampling.counts(check.runs(sampling.case(method, 3, COUNT)), COUNT)["greedy"]
    assert counted == {max(expected["greedy"], key=expected["greedy"].__getitem__): 8}


def test_the_hosts_verification_of_blocks_would_be_noticed(
    check: Check, expected: dict[str, dict[tuple[int, ...], float]]
) -> None:
    """The count above is large enough to tell a wrong sampler from a right one."""
    blocks = host.verifying_blocks(sampling.case("ngram", 3, COUNT))
    if blocks is None:
        pytest.skip("the host verifies no blocks")
    counted = sampling.counts(check.runs(blocks), COUNT)
    assert all(sampling.fit(counted[kind], expected[kind]).p < 1e-20 for kind in RANDOM)
