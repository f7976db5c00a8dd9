# SPDX-License-Identifier: Apache-2.0
"""End-to-end tests: real vLLM and vllm-ascend on the emulated NPU. See README.md."""
