# SPDX-License-Identifier: Apache-2.0
"""Internals of torchair that vllm-ascend imports."""
