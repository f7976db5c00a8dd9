# SPDX-License-Identifier: Apache-2.0
"""The host pair under test: what it can do without us, and what it rounds by itself.

All that the tests and benchmarks need to know of the differences between pairs. It reads installed
versions and imports no host.
"""

from __future__ import annotations

from dataclasses import replace

from ascend_specpatch.hosts import has_reached, installed
from ascend_specpatch.patches import PATCHES

from .cases import Case

PAIR = installed()
NEEDED = tuple(patch.on(PAIR) for patch in PATCHES if patch.is_needed_on(PAIR))  # the hosts have the others
STATES = {patch.id: "applied" if patch.is_needed_on(PAIR) else "unneeded" for patch in PATCHES}
OUR_LOOP = "ascend_specpatch.patches.spec_decode.drafting.loop.DraftLoop"  # a base of each of our proposers

IN_FLOAT32 = 1e-5
IN_BFLOAT16 = 1 / 128  # one step of bfloat16: what another batch shape may round differently

# The values of async_scheduling with which vLLM takes min_tokens together with drafts, and counts rightly:
# before 0.17.0 it refuses them, 0.23.0 counts drafts that may be rejected under asynchronous scheduling.
MIN_TOKENS: tuple[bool, ...] = (False, True)
if not has_reached(PAIR, "vllm 0.17.0"):
    MIN_TOKENS = ()
elif has_reached(PAIR, "vllm 0.23.0"):
    MIN_TOKENS = (False,)


def drafts_alone(method: str) -> bool:
    """Whether the hosts alone have the method, by its name in ``matrix.METHODS``."""
    has_extra_slots = has_reached(PAIR, "vllm-ascend 0.17.0rc1")
    return has_extra_slots or not (method.startswith("draft_model") or "parallel" in method)


def host_drafts(case: Case) -> bool:
    """Whether the hosts' own loop drafts with our patches too: on 0.23.0 with sparse attention."""
    return case.model.startswith("dsv32") and has_reached(PAIR, "vllm-ascend 0.23.0")


def proposers_are_vllms() -> bool:
    """Whether the hosts' proposers stand on vLLM's, so that isinstance says what they are without us."""
    return has_reached(PAIR, "vllm-ascend 0.19.1rc1")


def prepares_in_one_launch() -> bool:
    """Whether our proposers prepare drafting in one: later hosts ask for next tokens and inputs apart."""
    return not has_reached(PAIR, "vllm-ascend 0.17.0rc1")


def has_local_argmax() -> bool:
    """Whether vLLM has ``use_local_argmax_reduction``."""
    return has_reached(PAIR, "vllm 0.17.0")


def verifying_blocks(case: Case) -> Case | None:
    """The case with the hosts' verification of sampled drafts as one block; None where they have none."""
    if has_reached(PAIR, "vllm-ascend 0.23.0"):
        options = {"rejection_sampler_config": {"enable_block_verify": True}}
        return replace(case, engine={**case.engine, "additional_config": options})
    if has_reached(PAIR, "vllm-ascend 0.18.0"):
        return None
    return case.with_env(ASCEND_SPECPATCH_DISABLE="spec_decode.sampled_verification")


def precision(case: Case) -> float:
    """By how much the drafter's logits may differ from the reference's, in parts of the largest.

    Since 0.17.0 vLLM rounds the router logits of DeepSeek's experts to bfloat16, whatever the model's type.
    """
    rounds = case.model.startswith("dsv3") and has_reached(PAIR, "vllm 0.17.0")
    return IN_BFLOAT16 if rounds else IN_FLOAT32
