# SPDX-License-Identifier: Apache-2.0
"""Whatever a process imports first, and whenever the patches are activated in it, it ends in one state.

On the real hosts, whose modules import each other. `make fuzz` tries thousands of orders more.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.e2e import host
from tests.order.real_hosts import (
    Outcome,
    every_late_order,
    every_order,
    explore,
    random_orders,
    reference,
    without_patches,
)
from tests.order.real_hosts_state import (
    ASCEND_PROPOSERS,
    ENGINE_CORE,
    HOLDERS,
    MODEL_RUNNER,
    SCHEDULER,
    TARGETS,
)

SEED = random.randrange(2**32)
# Another half of all each time; `python benchmarks/fuzz.py --permutations 5` tries every one.
EARLY = random.Random(SEED).sample(every_order((*TARGETS, "vllm_ascend.spec_decode")), 60)
# Every ninth, with the entry point at each position in turn; `make fuzz` tries many more.
LATE = every_late_order(TARGETS)[::9][:12]
RANDOM = random_orders(random.Random(SEED), 10)

ALONE = without_patches(HOLDERS)
PATCHED = reference(())

# The kernels, and who imported them by name.
IMPORTERS = {
    "vllm.v1.sample.rejection_sampler": {
        "expand_kernel": [],
        "rejection_greedy_sample_kernel": [],
        "rejection_random_sample_kernel": [],
        "sample_recovered_tokens_kernel": [],
    },
    "vllm.v1.spec_decode.utils": {
        "copy_and_expand_eagle_inputs_kernel": ["vllm.v1.spec_decode.eagle"],
        "eagle_prepare_inputs_padded_kernel": ["vllm.v1.spec_decode.eagle"],
        "eagle_prepare_next_token_padded_kernel": ["vllm.v1.spec_decode.eagle"],
    },
    "vllm_ascend.ops.triton.reject_sample": {
        "expand_kernel": [],
        "rejection_greedy_sample_spec_len_1_triton": [],
        "rejection_greedy_sample_triton": [],
        "rejection_random_sample_block_verify_kernel": ["vllm_ascend.sample.rejection_sampler"],
        "rejection_random_sample_kernel": ["vllm_ascend.sample.rejection_sampler"],
        "sample_recovered_tokens_kernel": ["vllm_ascend.sample.rejection_sampler"],
    },
    "vllm_ascend.ops.triton.spec_decode.utils": {
        "prepare_inputs_padded_kernel": ["vllm_ascend.spec_decode.eagle_proposer"],
    },
}

# What patches add or replace, and every place in the hosts that holds it. Changed together with a patch.
NEW = {
    f"{ASCEND_PROPOSERS}.AscendDraftModelProposer": [f"{ASCEND_PROPOSERS}.AscendDraftModelProposer"],
    f"{ASCEND_PROPOSERS}.AscendEagleProposer": [
        "vllm_ascend.spec_decode.AscendEagleProposer",
        f"{ASCEND_PROPOSERS}.AscendEagleProposer",
        f"{MODEL_RUNNER}.AscendEagleProposer[]",
    ],
    f"{ASCEND_PROPOSERS}.SpecDecodeBaseProposer": [
        f"{ASCEND_PROPOSERS}.AscendDraftModelProposer base",
        f"{ASCEND_PROPOSERS}.AscendEagleProposer base",
        f"{ASCEND_PROPOSERS}.SpecDecodeBaseProposer",
        f"{MODEL_RUNNER}.AscendEagleProposer[]",
    ],
    "vllm_ascend.sample.rejection_sampler.rejection_random_sample_block_verify_pytorch": [
        "vllm_ascend.sample.rejection_sampler.rejection_random_sample_block_verify_pytorch",
        "vllm_ascend.sample.rejection_sampler.rejection_random_sample_pytorch",
    ],
    **{
        method: [method]
        for method in (
            "vllm.v1.core.sched.async_scheduler.AsyncScheduler._update_after_schedule",
            "vllm.v1.sample.rejection_sampler.RejectionSampler.apply_logits_processors",
            "vllm.v1.worker.gpu_input_batch.InputBatch.condense",
            "vllm.v1.worker.gpu_input_batch.InputBatch.swap_states",
            "vllm_ascend.lora.punica_npu.PunicaWrapperNPU._update_prefill_metadata",
            "vllm_ascend.sample.rejection_sampler.sample_recovered_tokens",
            "vllm_ascend.spec_decode.ngram_proposer.AscendNgramProposer.propose",
            f"{ENGINE_CORE}.EngineCore._initialize_kv_caches",
            f"{SCHEDULER}.Scheduler.__init__",
            f"{ASCEND_PROPOSERS}.SpecDecodeBaseProposer.prepare_drafting",
            f"{ASCEND_PROPOSERS}.SpecDecodeBaseProposer.prepare_inputs_padded",
            f"{ASCEND_PROPOSERS}.SpecDecodeBaseProposer.prepare_next_token_ids_padded",
            f"{MODEL_RUNNER}.NPUModelRunner._bookkeeping_sync",
            f"{MODEL_RUNNER}.NPUModelRunner._sample",
            f"{MODEL_RUNNER}.NPUModelRunner._build_attn_state",
            f"{MODEL_RUNNER}.NPUModelRunner._set_up_drafter",
            f"{MODEL_RUNNER}.NPUModelRunner.initialize_kv_cache",
            f"{MODEL_RUNNER}.NPUModelRunner.propose_draft_token_ids",
            f"{MODEL_RUNNER}.NPUModelRunner.sample_tokens",
        )
    },
    "vllm_ascend.sample.rejection_sampler.apply_sampling_constraints": [
        "vllm.v1.sample.rejection_sampler.apply_sampling_constraints",
        "vllm_ascend.patch.worker.patch_rejection_sampler.apply_sampling_constraints",
        "vllm_ascend.sample.rejection_sampler.apply_sampling_constraints",
    ],
    **{
        f"{module}.{name}": sorted(f"{holder}.{name}" for holder in (module, *importers))
        for module, kernels in IMPORTERS.items()
        for name, importers in kernels.items()
    },
}

RUNNERS = dict.fromkeys(
    (
        "vllm_ascend._310p.model_runner_310p",
        MODEL_RUNNER,
        "vllm_ascend.worker.worker",
        "vllm_ascend.xlite.xlite_model_runner",
    ),
    f"{MODEL_RUNNER}.NPUModelRunner",
)

# The class that NPUModelRunner builds for a method, and what it is an instance of.
BASES = [
    f"{ASCEND_PROPOSERS}.SpecDecodeBaseProposer",
    "ascend_specpatch.patches.spec_decode.base_proposer.ProposerBase",
    "ascend_specpatch.patches.spec_decode.drafting.loop.DraftLoop",
    "ascend_specpatch.patches.spec_decode.drafting.first_pass.FirstPass",
    f"{ASCEND_PROPOSERS}._HostFunctions",
    "ascend_specpatch.patches.spec_decode.base_proposer.vllm_constructor.<locals>._VllmConstructor",
    "vllm.v1.spec_decode.eagle.SpecDecodeBaseProposer",
]
EAGLE = {
    "class": [f"{ASCEND_PROPOSERS}.AscendEagleProposer", *BASES],
    "is": [
        "vllm.v1.spec_decode.eagle.SpecDecodeBaseProposer",
        "vllm.v1.spec_decode.eagle.EagleProposer",
        f"{ASCEND_PROPOSERS}.SpecDecodeBaseProposer",
        f"{ASCEND_PROPOSERS}.AscendEagleProposer",
        f"{MODEL_RUNNER}.AscendEagleProposer",
        "vllm.v1.worker.gpu_model_runner.EagleProposer",
    ],
}
DRAFT_MODEL = {
    "class": [f"{ASCEND_PROPOSERS}.AscendDraftModelProposer", *BASES],
    "is": [
        "vllm.v1.spec_decode.eagle.SpecDecodeBaseProposer",
        "vllm.v1.spec_decode.draft_model.DraftModelProposer",
        f"{ASCEND_PROPOSERS}.SpecDecodeBaseProposer",
        f"{ASCEND_PROPOSERS}.AscendDraftModelProposer",
        f"{MODEL_RUNNER}.AscendEagleProposer",
        "vllm.v1.worker.gpu_model_runner.DraftModelProposer",
    ],
}
OTHER_METHODS = ("ngram", "suffix", "medusa")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Outcome]:
    """Of every order, by order: all in one tree of processes."""
    orders = {ALONE, PATCHED, *EARLY, *LATE, *RANDOM, *map(reference, RANDOM)}
    log = tmp_path_factory.mktemp("import_orders") / "log"
    return {outcome.order: outcome for outcome in explore(orders, log)}


@pytest.fixture(scope="module")
def patched(outcomes: dict[tuple[str, ...], Outcome]) -> dict[str, Any]:
    return outcomes[PATCHED].state


def test_each_target_is_among_the_modules_that_are_imported() -> None:
    assert {patch.target for patch in host.NEEDED} <= set(HOLDERS)


def test_every_patch_is_applied(patched: dict[str, Any]) -> None:
    assert patched["failed"] == {}
    assert patched["patches"] == host.STATES


def test_the_model_runner_builds_the_patched_classes(patched: dict[str, Any]) -> None:
    found = patched["proposers"]
    assert {method: found[method] for method in ("eagle", "eagle3", "mtp", "draft_model")} == {
        **dict.fromkeys(("eagle", "eagle3", "mtp"), EAGLE),
        "draft_model": DRAFT_MODEL,
    }


def test_methods_that_no_patch_is_about_get_the_classes_of_the_hosts(
    outcomes: dict[tuple[str, ...], Outcome], patched: dict[str, Any]
) -> None:
    alone = outcomes[ALONE].state["proposers"]
    assert all("class" in alone[method] for method in OTHER_METHODS)
    assert [patched["proposers"][method] for method in OTHER_METHODS] == [
        alone[method] for method in OTHER_METHODS
    ]


def test_host_modules_hold_the_new_objects_and_no_replaced_one(patched: dict[str, Any]) -> None:
    assert patched["stale"] == {}
    assert patched["new"] == NEW
    assert patched["runners"] == RUNNERS


@pytest.mark.parametrize(("orders", "count"), [(EARLY, 60), (LATE, 12)], ids=["early", "late"])
def test_permutations_end_in_that_state(
    outcomes: dict[tuple[str, ...], Outcome],
    patched: dict[str, Any],
    orders: list[tuple[str, ...]],
    count: int,
) -> None:
    assert len(set(orders)) == count
    wrong = [order for order in orders if outcomes[order] != Outcome(order, {}, patched)]
    assert not wrong, f"{len(wrong)} orders, the first: {outcomes[wrong[0]]}"


def test_random_orders_end_in_the_state_that_their_settings_give(
    outcomes: dict[tuple[str, ...], Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f" seed {SEED}")
    wrong = [
        order for order in RANDOM if outcomes[order] != Outcome(order, {}, outcomes[reference(order)].state)
    ]
    assert not wrong, f"{len(wrong)} orders, the first: {outcomes[wrong[0]]}"
    assert not any(outcomes[order].state["stale"] for order in RANDOM)
