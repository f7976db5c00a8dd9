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


VLLM = {name.partition(":")[2]: name for name in TABLE if name.startswith("vllm.")}
ASCEND = {name.partition(":")[2]: name for name in TABLE if name.startswith("vllm_ascend.")}
