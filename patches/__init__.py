# SPDX-License-Identifier: Apache-2.0
"""What is patched, where, and in which order: the whole product on one page.

The body of the patch ``stage.name`` is the file ``<stage>/<name>.py`` beside this page. To add a patch,
write that file and one line here: the position in the list is the order of application, ``requires`` names
what must be on for it to make sense.
"""

from __future__ import annotations

from ascend_specpatch.hosts import HostPair
from ascend_specpatch.registry import Form, Patch

_0_17_TO_0_18 = (HostPair("0.17.0", "0.17.0rc1"), HostPair("0.18.0", "0.18.0"))
_0_23 = (HostPair("0.23.0", "0.23.0"),)
_SINCE_0_17 = Form(_0_17_TO_0_18, folder="since_0_17")
_SINCE_0_23 = Form(_0_23, folder="since_0_23")

_ENGINE_CORE = "vllm.v1.engine.core"
_SCHEDULER = "vllm.v1.core.sched.scheduler"
_WORKER = "vllm_ascend.worker.worker"
_ASYNC_SCHEDULER = "vllm.v1.core.sched.async_scheduler"
_VLLM_PROPOSERS = "vllm.v1.spec_decode.eagle"
_ASCEND_PROPOSERS = "vllm_ascend.spec_decode.eagle_proposer"
_ASCEND_BASE_PROPOSER = "vllm_ascend.spec_decode.llm_base_proposer"
_ASCEND_DRAFT_MODEL = "vllm_ascend.spec_decode.draft_proposer"
_MODEL_RUNNER = "vllm_ascend.worker.model_runner_v1"
_INPUT_BATCH = "vllm.v1.worker.gpu_input_batch"
_VLLM_DRAFTING = "vllm.v1.spec_decode.utils"
_VLLM_SAMPLING = "vllm.v1.sample.rejection_sampler"
_ASCEND_DRAFTING = "vllm_ascend.ops.triton.spec_decode.utils"
_ASCEND_SAMPLING = "vllm_ascend.ops.triton.reject_sample"
_ASCEND_NGRAM = "vllm_ascend.spec_decode.ngram_proposer"
_ASCEND_SAMPLER = "vllm_ascend.sample.rejection_sampler"


def _kernel(name: str, target: str, upstream: str, *forms: Form) -> Patch:
    return Patch(
        f"spec_decode.kernels.{name}",
        target=target,
        forms=forms,
        summary=f"a kernel in place of {upstream}",
    )


PATCHES: tuple[Patch, ...] = (
    Patch(
        "worker.lazy_model_runner",
        target=_WORKER,
        summary="NPUWorker takes NPUModelRunner when it builds it",
    ),
    Patch(
        "worker.equal_ranks",
        target=_ENGINE_CORE,
        summary="an engine does not start where its ranks are patched differently",
    ),
    Patch(
        "spec_decode.abstract_proposers",
        target=_VLLM_PROPOSERS,
        in_host_since="vllm-ascend 0.19.1rc1",
        summary="vLLM's proposers get ABCMeta, so that Ascend's answer isinstance checks",
    ),
    Patch(
        "spec_decode.base_proposer",
        target=_ASCEND_PROPOSERS,
        forms=(
            _SINCE_0_17,
            Form(_0_23, folder="since_0_23", target=_ASCEND_BASE_PROPOSER),
        ),
        requires=("spec_decode.abstract_proposers",),
        summary="Ascend's SpecDecodeBaseProposer, under vLLM's",
    ),
    Patch(
        "spec_decode.eagle_proposer",
        target=_ASCEND_PROPOSERS,
        in_host_since="vllm-ascend 0.19.1rc1",
        requires=("spec_decode.base_proposer",),
        summary="EagleProposer on Ascend's base: eagle, eagle3, mtp",
    ),
    Patch(
        "spec_decode.draft_model_proposer",
        target=_ASCEND_PROPOSERS,
        in_host_since="vllm-ascend 0.19.1rc1",
        forms=(Form(_0_17_TO_0_18, folder="since_0_17", target=_ASCEND_DRAFT_MODEL),),
        requires=("spec_decode.base_proposer",),
        summary="DraftModelProposer on Ascend's base: draft_model",
    ),
    Patch(
        "spec_decode.rejected_token_count",
        target=_ASCEND_PROPOSERS,
        in_host_since="vllm-ascend 0.17.0rc1",
        summary="prepare_inputs_padded counts rejected tokens on the device",
    ),
    Patch(
        "spec_decode.next_token_ids",
        target=_ASCEND_PROPOSERS,
        forms=(
            _SINCE_0_17,
            Form(_0_23, folder="since_0_23", target=_ASCEND_BASE_PROPOSER),
        ),
        requires=("spec_decode.base_proposer", "spec_decode.rejected_token_count"),
        summary="next tokens and inputs of drafting in one launch",
    ),
    Patch(
        "spec_decode.first_draft_slots",
        target=_SCHEDULER,
        summary="the first drafts of a request have KV slots of their own",
    ),
    Patch(
        "spec_decode.sampling_constraints",
        target=_ASCEND_SAMPLER,
        summary="temperature, top-k and top-p of each draft token in one launch",
    ),
    _kernel("prepare_inputs", _VLLM_DRAFTING, "eagle_prepare_inputs_padded_kernel", _SINCE_0_23),
    _kernel("prepare_next_token", _VLLM_DRAFTING, "eagle_prepare_next_token_padded_kernel", _SINCE_0_23),
    _kernel("copy_and_expand_inputs", _VLLM_DRAFTING, "copy_and_expand_eagle_inputs_kernel", _SINCE_0_23),
    _kernel("rejection_greedy", _VLLM_SAMPLING, "rejection_greedy_sample_kernel"),
    _kernel("rejection_random", _VLLM_SAMPLING, "rejection_random_sample_kernel"),
    _kernel("expand", _VLLM_SAMPLING, "expand_kernel"),
    _kernel("recovered_tokens", _VLLM_SAMPLING, "sample_recovered_tokens_kernel"),
    _kernel(
        "ascend_prepare_inputs",
        _ASCEND_DRAFTING,
        "prepare_inputs_padded_kernel",
        _SINCE_0_17,
        _SINCE_0_23,
    ),
    _kernel("ascend_rejection_greedy", _ASCEND_SAMPLING, "rejection_greedy_sample_triton"),
    _kernel(
        "ascend_rejection_greedy_one_draft", _ASCEND_SAMPLING, "rejection_greedy_sample_spec_len_1_triton"
    ),
    _kernel("ascend_rejection_random", _ASCEND_SAMPLING, "rejection_random_sample_kernel"),
    Patch(
        "spec_decode.kernels.ascend_block_verify",
        target=_ASCEND_SAMPLING,
        in_host_since="vllm-ascend 0.18.0",
        summary="rejection_random_sample_block_verify_kernel keeps the target's distribution: token by token",
    ),
    _kernel("ascend_expand", _ASCEND_SAMPLING, "expand_kernel"),
    _kernel("ascend_recovered_tokens", _ASCEND_SAMPLING, "sample_recovered_tokens_kernel"),
    Patch(
        "spec_decode.ngram_at_max_length",
        target=_ASCEND_NGRAM,
        summary="ngram drafts for requests that are almost as long as the model",
    ),
    Patch(
        "spec_decode.sampled_verification",
        target=_ASCEND_SAMPLER,
        in_host_since="vllm-ascend 0.18.0",
        summary="without Triton, drafts of requests that sample are verified one by one",
    ),
    Patch(
        "spec_decode.draft_penalties",
        target=_ASCEND_SAMPLER,
        needed_since="vllm-ascend 0.23.0",
        summary="without Triton, penalties apply to each draft",
    ),
    Patch(
        "spec_decode.seeded_recovery",
        target=_ASCEND_SAMPLER,
        summary="a seed gives one text, whoever else in the batch has drafts",
    ),
    Patch(
        "spec_decode.skipped_requests",
        target=_ASYNC_SCHEDULER,
        summary="a request that a step left out comes back without drafts",
    ),
    Patch(
        "spec_decode.allowed_tokens",
        target=_VLLM_SAMPLING,
        in_host_since="vllm 0.18.0",
        summary="allowed_token_ids work while drafts are verified",
    ),
    Patch(
        "model_runner.drafter_selection",
        target=_MODEL_RUNNER,
        in_host_since="vllm-ascend 0.17.0rc1",
        requires=("spec_decode.base_proposer",),
        summary="NPUModelRunner builds the patched proposers and drafts on padded batches with them",
    ),
    Patch(
        "model_runner.propose_draft_token_ids",
        target=_MODEL_RUNNER,
        in_host_since="vllm-ascend 0.17.0rc1",
        requires=("spec_decode.base_proposer",),
        summary="NPUModelRunner passes num_rejected_tokens_gpu to the drafter",
    ),
    Patch(
        "model_runner.accepted_logprobs",
        target=_MODEL_RUNNER,
        in_host_since="vllm-ascend 0.23.0",
        summary="logprobs of accepted tokens, without asynchronous scheduling",
    ),
    Patch(
        "model_runner.async_output_tokens",
        target=_MODEL_RUNNER,
        forms=(_SINCE_0_23,),
        summary="penalties see the tokens of earlier steps under asynchronous scheduling",
    ),
    Patch(
        "model_runner.grammar_bitmask",
        target=_MODEL_RUNNER,
        in_host_since="vllm 0.18.0",
        summary="structured output in a batch with other requests",
    ),
    Patch(
        "model_runner.allowed_tokens_rows",
        target=_INPUT_BATCH,
        summary="allowed_token_ids stay with their request when rows of the batch move",
    ),
    Patch(
        "model_runner.short_mla_prompts",
        target=_MODEL_RUNNER,
        in_host_since="vllm-ascend 0.18.0",
        summary="with MLA, prompts no longer than a step of drafts are attended to rightly",
    ),
    Patch(
        "model_runner.captured_sizes",
        target=_MODEL_RUNNER,
        needed_since="vllm-ascend 0.17.0rc1",
        in_host_since="vllm-ascend 0.18.0",
        summary="full graphs are captured with any number of drafts",
    ),
    Patch(
        "model_runner.lora_in_graphs",
        target=_MODEL_RUNNER,
        summary="in captured graphs, every request of a batch has its own LoRA adapter",
    ),
)
