# SPDX-License-Identifier: Apache-2.0
"""What the tests of kernels share: memory that notices stray accesses, batches, the hosts' kernels."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch_npu  # noqa: F401  before triton: it has it interpret
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from triton.runtime.interpreter import InterpreterBuilder

from ascend_specpatch.kernels import TABLE, stand_in

NPU = torch.device("npu")
# Examples of each property; 0: as many as the property asks for.
EXAMPLES = int(os.environ.get("SPECPATCH_FUZZ_EXAMPLES", "0"))
GUARD = 256  # bytes before and behind every tensor
POISON = 0x5A


def examples(number: int) -> Callable[[Any], Any]:
    return settings(
        deadline=None, max_examples=EXAMPLES or number, suppress_health_check=[HealthCheck.too_slow]
    )


class Memory:
    """Tensors between poisoned borders, and a watch on what Triton's interpreter loads and stores.

    An access to a border is an error, and so is an address before a tensor even where its mask is false: an
    NPU faults on it. Borders that were written to by other means are found at the end.
    """

    def __init__(self) -> None:
        self._whole: list[torch.Tensor] = []
        self._low: list[tuple[int, int]] = []
        self._high: list[tuple[int, int]] = []

    def tensor(self, values: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """`values` on the NPU."""
        values = torch.as_tensor(values, dtype=dtype)
        size = values.numel() * values.element_size()
        whole = torch.full((size + 2 * GUARD,), POISON, dtype=torch.uint8, device=NPU)
        inner = whole[GUARD : GUARD + size].view(dtype).view(values.shape)
        inner.copy_(values)
        start = whole.data_ptr()
        self._whole.append(whole)
        self._low.append((start, start + GUARD))
        self._high.append((start + GUARD + size, start + 2 * GUARD + size))
        return inner

    def filled(self, shape: tuple[int, ...], value: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return self.tensor(torch.full(shape, value, dtype=dtype), dtype)

    def __enter__(self) -> Memory:
        self._load, self._store = (
            InterpreterBuilder.create_masked_load,
            InterpreterBuilder.create_masked_store,
        )
        load, store, watch = self._load, self._store, self._watch

        def watched_load(builder: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
            watch("load", ptrs.data, mask.data)
            return load(builder, ptrs, mask, *rest)

        def watched_store(builder: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
            watch("store", ptrs.data, mask.data)
            return store(builder, ptrs, value, mask, *rest)

        InterpreterBuilder.create_masked_load = watched_load
        InterpreterBuilder.create_masked_store = watched_store
        return self

    def __exit__(self, error: Any, *rest: Any) -> None:
        InterpreterBuilder.create_masked_load = self._load
        InterpreterBuilder.create_masked_store = self._store
        if error is None:
            for whole in self._whole:
                borders = torch.cat([whole[:GUARD], whole[-GUARD:]]).cpu()
                assert (borders == POISON).all(), "a border was written to"

    def _watch(self, what: str, addresses: Any, mask: Any) -> None:
        addresses, mask = np.atleast_1d(addresses).ravel(), np.atleast_1d(mask).ravel()
        taken = addresses[mask]
        # A block may end behind its tensor, in what is another's border, where its mask is false; it may not
        # begin so.
        for where, borders, hits in (
            ("before", self._low, (np.array([addresses.min()]), taken)),
            ("behind", self._high, (taken,)),
        ):
            for hit in hits:
                for start, end in borders if hit.size else ():
                    assert not ((hit >= start) & (hit < end)).any(), f"{what} {where} a tensor"


@dataclass
class Drafts:
    """A batch: for each request its number of draft tokens, all of them one after the other."""

    drafted: list[int]
    max_spec_len: int

    @property
    def cu(self) -> list[int]:
        return list(torch.tensor(self.drafted).cumsum(0).tolist())

    @property
    def num_tokens(self) -> int:
        return sum(self.drafted)

    @property
    def starts(self) -> list[int]:
        return [0, *self.cu][: len(self.drafted)]


@st.composite
def drafts(draw: Any, max_requests: int = 50, max_spec_len: int = 7) -> Drafts:
    longest = draw(st.integers(1, max_spec_len))
    number = draw(st.one_of(st.integers(1, 6), st.integers(1, max_requests)))
    return Drafts([draw(st.integers(0, longest)) for _ in range(number)], longest)


def randomness(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def hosts_kernel(name: str) -> Any:
    """The kernel of the installed host that the table lists as `name`."""
    from importlib import import_module

    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def ours(name: str) -> Any:
    """What stands in for it."""
    return stand_in(name, hosts_kernel(name))


def takes(name: str, argument: str) -> bool:
    """Whether the installed host's kernel has an argument, which another release's may not have."""
    return argument in inspect.signature(hosts_kernel(name).fn).parameters


_RANDOM = (
    "output_token_ids_ptr", "cu_num_draft_tokens_ptr", "draft_token_ids_ptr", "draft_probs_ptr",
    "target_probs_ptr", "bonus_token_ids_ptr", "recovered_token_ids_ptr", "uniform_probs_ptr",
    "is_greedy_ptr", "max_spec_len", "vocab_size", "vec_len",
)  # fmt: skip
_ARGUMENTS = {
    "rejection_greedy_sample_kernel": (
        "output_token_ids_ptr", "cu_num_draft_tokens_ptr", "draft_token_ids_ptr", "target_argmax_ptr",
        "bonus_token_ids_ptr", "is_greedy_ptr", "max_spec_len",
    ),
    "rejection_random_sample_kernel": _RANDOM,
    "rejection_random_sample_block_verify_kernel": _RANDOM,
    "sample_recovered_tokens_kernel": (
        "output_token_ids_ptr", "cu_num_draft_tokens_ptr", "draft_token_ids_ptr", "draft_probs_ptr",
        "target_probs_ptr", "q_ptr", "vocab_size", "PADDED_VOCAB_SIZE",
    ),
}  # fmt: skip


def call(find: Callable[[str], Any], name: str, grid: tuple[int, ...], *values: Any, **options: Any) -> None:
    """Launch the kernel that the table lists as `name`, or what stands in for it, with what it takes in vLLM
    0.16.0 and vllm-ascend 0.16.0rc1. Later releases take more, for modes that are off here."""
    given = dict(zip(_ARGUMENTS[name.partition(":")[2]], values, strict=False), **options)
    if takes(name, "inv_q_ptr"):
        given |= {"inv_q_ptr": given["q_ptr"].reciprocal(), "BLOCK_SIZE": given["PADDED_VOCAB_SIZE"]}
    off = {"NO_ORI_TARGET_PROBS": True, "global_vocab_size": given.get("vocab_size")}
    taken = inspect.signature(hosts_kernel(name).fn).parameters.values()
    arguments = {
        each.name: given.get(each.name, off.get(each.name, False if each.name.isupper() else None))
        for each in taken
        if each.name in given or each.default is each.empty
    }
    # An option of Ascend's compiler, which Triton's interpreter does not know.
    find(name)[grid](**arguments, **({"multibuffer": False} if find is ours else {}))


VLLM = {name.partition(":")[2]: name for name in TABLE if name.startswith("vllm.")}
ASCEND = {name.partition(":")[2]: name for name in TABLE if name.startswith("vllm_ascend.")}
