# SPDX-License-Identifier: Apache-2.0
"""Random traffic, a little of it: `make soak` sends 2,000 requests through every method's engine."""

from __future__ import annotations

import pytest

from tests.e2e import soak
from tests.e2e.checks import Check

SEED, COUNT = 7, 60


@pytest.mark.parametrize("method", ["draft_model", "eagle"])
def test_random_traffic_gets_the_plain_text_and_leaves_nothing_behind(check: Check, method: str) -> None:
    case = soak.case(method, SEED, COUNT, num_gpu_blocks_override=12)
    outcome = check.harness.run(case)
    faults = soak.faults(case, outcome, check.harness.run(soak.plain(case)))
    assert not faults, "\n".join(faults[:5])
    assert outcome.metrics["num_preemptions"] > 0
    assert any(answer["aborted"] for answer in outcome.answers)
