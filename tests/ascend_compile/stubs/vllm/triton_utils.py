# SPDX-License-Identifier: Apache-2.0
"""Triton as vLLM hands it out; here always triton-ascend."""

import triton
import triton.language as tl

HAS_TRITON = True

__all__ = ["HAS_TRITON", "tl", "triton"]
