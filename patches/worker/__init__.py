# SPDX-License-Identifier: Apache-2.0
"""Patches of the stage ``worker``; the list that orders them is ``patches/__init__.py``."""
