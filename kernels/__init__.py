# SPDX-License-Identifier: Apache-2.0
"""NPU kernels: one file a kernel, with the Triton kernel, its launcher and its torch reference side by
side."""
