# SPDX-License-Identifier: Apache-2.0
"""What a template stands on and what its clone stands on: zero-argument super() tells which."""

from __future__ import annotations


class Host:
    def where(self) -> str:
        return "host"


class Ours:
    def where(self) -> str:
        return "ours"
