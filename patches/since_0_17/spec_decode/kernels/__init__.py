# SPDX-License-Identifier: Apache-2.0
"""Forms of ``spec_decode.kernels`` for vllm-ascend 0.17.0rc1 and 0.18.0."""
