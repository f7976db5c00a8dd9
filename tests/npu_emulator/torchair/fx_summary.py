# SPDX-License-Identifier: Apache-2.0
"""Names that vllm-ascend imports and uses only when it compiles for a real device."""

from __future__ import annotations

from typing import Any, NoReturn


class ValuePack:
    """torchair's pair of a meta value and its NPU counterpart."""


def _unpack_meta_list(values: Any) -> NoReturn:
    raise RuntimeError("the NPU emulator does not lower graphs")


def _unpack_meta(*values: Any) -> NoReturn:
    raise RuntimeError("the NPU emulator does not lower graphs")
