# SPDX-License-Identifier: Apache-2.0
"""Tests of the emulator itself; they need it installed, and nothing of vLLM."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch_npu") else ["test_*.py"]
