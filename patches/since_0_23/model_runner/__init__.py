# SPDX-License-Identifier: Apache-2.0
"""Patches of the stage ``model_runner`` in their form for these hosts."""
