# SPDX-License-Identifier: Apache-2.0
"""What vLLM's tests ask of the machine that an NPU without network and Triton cannot answer.

A plugin for the pytest that runs them. Their text is never changed; each answer stands below with its reason:

- the models: names on a hub become the tiny models of ``UPSTREAM_MODELS``. The tests take nothing but sizes
  from them, and no weights.
- the attention backends of the platform, asked for when the file is collected, for tests that are not run
  here.
- ``triton.next_power_of_2``, where vLLM has a placeholder for Triton: an argument of the kernels that are
  replaced, which ours do not use.

And it tells the results which Triton kernels were launched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Names in the test file -> the tiny model that stands for it.
_MODELS = {"model_dir": "llama", "eagle_dir": "eagle_llama", "ar_draft_model_dir": "llama_draft"}


def pytest_configure() -> None:
    import tests.utils  # vLLM's
    from vllm.triton_utils import HAS_TRITON, triton

    # None: no test is parametrized with them here.
    tests.utils.get_attn_backend_list_based_on_platform = list
    if not HAS_TRITON:
        triton.next_power_of_2 = lambda number: 1 << (number - 1).bit_length()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    models = Path(os.environ["UPSTREAM_MODELS"])
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        for name, model in _MODELS.items():
            if hasattr(module, name):
                setattr(module, name, str(models / model))


@pytest.fixture(scope="session", autouse=True)
def _launched(record_testsuite_property: Callable[[str, object], None]) -> Iterator[None]:
    from torch_npu import counters

    with counters.record() as counts:
        yield
    names = {name.removeprefix("triton::") for name in counts.names if name.startswith("triton::")}
    record_testsuite_property("launched", " ".join(sorted(names)))
