# SPDX-License-Identifier: Apache-2.0
"""Patches of ``spec_decode.kernels`` in their form for these hosts: the kernels are the same, and are called
from elsewhere."""
