# SPDX-License-Identifier: Apache-2.0
"""Names that vllm-ascend imports and uses only when it compiles for a real device."""

from __future__ import annotations

from typing import Any, NoReturn


def _is_symlist(value: Any) -> NoReturn:
    raise RuntimeError("the NPU emulator does not lower graphs")
