# SPDX-License-Identifier: Apache-2.0
"""Patches of the stage ``spec_decode`` in the form that they have on vllm-ascend 0.17.0rc1 and 0.18.0."""
