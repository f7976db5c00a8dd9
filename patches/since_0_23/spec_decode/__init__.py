# SPDX-License-Identifier: Apache-2.0
"""Patches of the stage ``spec_decode`` in their form for these hosts."""
