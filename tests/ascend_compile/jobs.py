# SPDX-License-Identifier: Apache-2.0
"""The same job in the hosts and here: which kernel of vllm-ascend does what one of ours does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .cases import ours
from .hosts import kernels_of
from .toolchain import Case

_SAMPLE = "vllm_ascend.ops.triton.reject_sample"


@dataclass(frozen=True)
class Job:
    """A kernel of ours and the host's for the same work.

    Ours is the first case of `file` whose types and constants are as `with_` says, and whose pointers in
    `without`, and no others, are None. `strides`: for more requests than cores, where that is a variant.
    """

    file: str
    module: str
    kernel: str
    signature: dict[str, str]
    constants: dict[str, Any]
    with_: dict[str, Any] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    strides: bool | None = None

    def __str__(self) -> str:
        return f"{self.file}{', many requests' * bool(self.strides)}-{self.host_name()}"

    def host_name(self) -> str:
        name = self.kernel
        for key, value in self.constants.items():
            name += f", no {key.removesuffix('_ptr')}" if value is None else f", {key} {value}"
        return name

    def host_case(self) -> Case:
        """Raises: NoHost."""
        kernel = getattr(kernels_of(self.module), self.kernel)
        return Case.of(self.host_name(), kernel, self.signature, self.constants)

    def our_case(self) -> Case:
        """Raises: LookupError if the file declares no such case."""
        for case in ours():
            said = {**case.signature, **case.constants}
            if self.strides is not None and said.get("STRIDE", self.strides) != self.strides:
                continue
            absent = {name for name, value in case.constants.items() if value is None}
            if (
                case.name.split()[0] == self.file
                and absent == self.without
                and self.with_.items() <= said.items()
            ):
                return case
        raise LookupError(f"no case of {self.file} with {self.with_} and without {sorted(self.without)}")


# A request a core, as long as there are cores; with 40, up to 320 requests in blocks of 8.
_BLOCKS = ((1, False), (8, True))

_TOKENS = {"output_token_ids_ptr": "*i32", "cu_num_draft_tokens_ptr": "*i32", "draft_token_ids_ptr": "*i32"}
_GREEDY = dict(
    **_TOKENS,
    target_argmax_ptr="*i64",
    bonus_token_ids_ptr="*i32",
    is_greedy_ptr="*i1",
    vec_len="i32",
    max_spec_len="i32",
)
_RANDOM = dict(
    **_TOKENS,
    draft_probs_ptr="*fp32",
    target_probs_ptr="*fp32",
    bonus_token_ids_ptr="*i32",
    recovered_token_ids_ptr="*i32",
    uniform_probs_ptr="*fp32",
    is_greedy_ptr="*i1",
    max_spec_len="i32",
    vocab_size="i32",
    vec_len="i32",
)
_RECOVERED = dict(
    **_TOKENS, draft_probs_ptr="*fp32", target_probs_ptr="*fp32", q_ptr="*fp32", vocab_size="i32"
)
_EXPAND = {"cu_num_tokens_ptr": "*i32", "replace_from": "i32", "replace_to": "i32", "vec_len": "i32"}
_NO_PROBS = frozenset({"draft_probs_ptr"})
_ONE_VECTOR = frozenset({"second_output_ptr", "second_input_ptr", "third_output_ptr", "third_input_ptr"})


def _but(signature: dict[str, str], *names: str) -> dict[str, str]:
    return {name: kind for name, kind in signature.items() if name not in names}


def _sampling(
    file: str,
    kernel: str,
    signature: dict[str, str],
    constants: dict[str, Any],
    without: frozenset[str] = frozenset(),
    **more: Any,
) -> list[Job]:
    """A job of vllm-ascend's rejection sampler, for few requests and for many."""
    return [
        Job(
            file,
            _SAMPLE,
            kernel,
            signature,
            {**constants, "BLOCK_SIZE": block},
            without=without,
            strides=many,
            **more,
        )
        for block, many in _BLOCKS
    ]


JOBS: tuple[Job, ...] = (
    *(
        Job(
            "prepare_inputs_padded",
            "vllm_ascend.ops.triton.spec_decode.utils",
            "prepare_inputs_padded_kernel",
            {
                "cu_num_draft_tokens_ptr": "*i32",
                "valid_sampled_tokens_count_ptr": "*i32",
                "query_start_loc_gpu_ptr": "*i32",
                "token_indices_to_sample_ptr": "*i32",
                "num_reqs": "i32",
            },
            {"BLOCK_SIZE": 4},
            without=frozenset({"num_rejected_tokens_ptr"}),
            strides=many,
        )
        for _, many in _BLOCKS
    ),
    *_sampling("rejection_greedy", "rejection_greedy_sample_triton", _GREEDY, {}),
    *_sampling(
        "rejection_greedy",
        "rejection_greedy_sample_triton",
        _but(_GREEDY, "is_greedy_ptr"),
        {"is_greedy_ptr": None},
        frozenset({"is_greedy_ptr"}),
    ),
    *_sampling(
        "rejection_greedy",
        "rejection_greedy_sample_spec_len_1_triton",
        _but(_GREEDY, "cu_num_draft_tokens_ptr", "is_greedy_ptr", "max_spec_len"),
        {},
        frozenset({"cu_num_draft_tokens_ptr", "is_greedy_ptr"}),
    ),
    *(
        job
        # Ours verifies blocks token by token.
        for kernel in ("rejection_random_sample_kernel", "rejection_random_sample_block_verify_kernel")
        for job in (
            *_sampling("rejection_random", kernel, _RANDOM, {"NO_DRAFT_PROBS": False}),
            *_sampling(
                "rejection_random",
                kernel,
                _but(_RANDOM, "draft_probs_ptr"),
                {"draft_probs_ptr": None, "NO_DRAFT_PROBS": True},
                _NO_PROBS,
            ),
        )
    ),
    *(
        job
        for kind in ("*i32", "*fp32")
        for job in _sampling(
            "expand",
            "expand_kernel",
            {"output_ptr": kind, "input_ptr": kind, **_EXPAND},
            {"MAX_NUM_TOKENS": 128},
            _ONE_VECTOR,
            with_={"output_ptr": kind},
        )
    ),
    Job(
        "recovered_tokens",
        _SAMPLE,
        "sample_recovered_tokens_kernel",
        _RECOVERED,
        {"PADDED_VOCAB_SIZE": 262_144, "NO_DRAFT_PROBS": False, "SUB_BLOCK": 4096},
    ),
    Job(
        "recovered_tokens",
        _SAMPLE,
        "sample_recovered_tokens_kernel",
        _but(_RECOVERED, "draft_probs_ptr"),
        {"draft_probs_ptr": None, "PADDED_VOCAB_SIZE": 262_144, "NO_DRAFT_PROBS": True, "SUB_BLOCK": 4096},
        without=_NO_PROBS,
    ),
)

# Where upstream's own algorithm goes through the drafts of a request one by one.
SERIAL = frozenset({"rejection_greedy", "rejection_random"})
