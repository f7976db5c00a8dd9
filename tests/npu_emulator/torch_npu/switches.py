# SPDX-License-Identifier: Apache-2.0
"""The emulator's environment variables; README.md says what each is for."""

from __future__ import annotations

import os


def _flag(name: str, default: bool) -> bool:
    return os.environ.get(name, "1" if default else "0") == "1"


STRICT = _flag("NPU_EMU_STRICT", True)
POISON = _flag("NPU_EMU_POISON", False)
CUSTOM_OPS = _flag("NPU_EMU_CUSTOM_OPS", True)
TRITON = _flag("NPU_EMU_TRITON", False)
MEMORY = int(os.environ.get("NPU_EMU_MEMORY", 4 << 30))
GRAPH_POISON = _flag("NPU_EMU_GRAPH_POISON", True)
GRAPH_DANGLING = os.environ.get("NPU_EMU_GRAPH_DANGLING", "raise")  # raise | count | off


# Read at each call: tests flip them.
def attention_strict() -> bool:
    return _flag("NPU_EMU_FIA_STRICT", True)


def expand_strict() -> bool:
    return _flag("NPU_EMU_EXPAND_STRICT", False)
