# SPDX-License-Identifier: Apache-2.0
"""The form of some patches on vllm-ascend 0.17.0rc1 and 0.18.0, by stage."""
