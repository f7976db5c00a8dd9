# SPDX-License-Identifier: Apache-2.0
"""Forms of patches for vllm-ascend 0.23.0, which has the hierarchy of proposers that 0.16 lacks."""
