# SPDX-License-Identifier: Apache-2.0
"""Heads over several ranks and engines. draft_model with two is in test_draft_model.py; what it refuses, in
test_bad_input.py."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from tests.e2e.cases import Case
from tests.e2e.checks import Check

TWO_RANKS = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case("pred", "eagle", "pred_eagle", engine=TWO_RANKS), id="eagle"),
        pytest.param(
            Case("dsv3_hi", "mtp", engine={**TWO_RANKS, "enable_expert_parallel": True}),
            id="mtp-expert-parallel",
        ),
    ],
)
def test_tensor_parallel_size_2(check: Check, case: Case) -> None:
    outcome = check.as_reference(replace(case, processes="spawn", timeout=300))
    assert len(outcome.workers) == 2
    assert outcome.workers[0]["drafts"] == outcome.workers[1]["drafts"]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case("dsv3_hi", "mtp"), id="mtp"),
        pytest.param(Case("dsv3_alone", "draft_model", "dsv3_alone"), id="draft_model"),
    ],
)
def test_data_parallel_size_2(check: Check, case: Case) -> None:
    """Two engines with the experts shared between them. One ends long before the other, and runs empty
    batches for its sake."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"VLLM_DP_SIZE": "2", "VLLM_DP_MASTER_IP": "127.0.0.1", "VLLM_DP_MASTER_PORT": str(port)}
    experts = replace(case, engine={"enable_expert_parallel": True}, processes="spawn", timeout=300)
    ranks = [
        replace(experts, prompts=prompts, env={**common, "VLLM_DP_RANK": rank, "VLLM_DP_RANK_LOCAL": rank})
        for rank, prompts in (("0", "mixed"), ("1", "one"))
    ]
    check.harness.run_together(ranks)
    for rank in ranks:
        check.as_reference(rank)
