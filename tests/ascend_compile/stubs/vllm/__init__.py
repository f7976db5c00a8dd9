# SPDX-License-Identifier: Apache-2.0
"""Stands for vLLM where only Ascend's compilers are installed: just what kernel files import."""
