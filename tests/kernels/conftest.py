# SPDX-License-Identifier: Apache-2.0
"""Kernels run in Triton's interpreter on the emulated NPU, which must be said before torch is imported; the
hosts are left as they are, to be compared with."""

from __future__ import annotations

import os
import sys

import pytest

if "torch" not in sys.modules:
    os.environ["NPU_EMU_TRITON"] = "1"
    os.environ["ASCEND_SPECPATCH_DISABLE"] = "*"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
elif os.environ.get("NPU_EMU_TRITON") != "1":
    raise pytest.UsageError(
        "run tests/kernels in a process of its own (`make test-kernels`): torch is loaded already"
    )
