# SPDX-License-Identifier: Apache-2.0
"""Triton kernels on the emulated device: in Triton's interpreter, or by name as torch functions."""
