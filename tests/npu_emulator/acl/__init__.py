# SPDX-License-Identifier: Apache-2.0
"""The part of CANN's pyACL that vllm-ascend imports at start-up."""

from __future__ import annotations

from . import rt

__all__ = ["rt"]
