# SPDX-License-Identifier: Apache-2.0
"""Kernels that stand in for those of the hosts, a patch each; the implementations are in ``kernels/``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit


def replace_kernel(edit: Edit, name: str) -> None:
    """Put what ``kernels.TABLE`` has for a kernel of the target in its place, for whoever imported it too."""
    from ascend_specpatch import kernels

    upstream = getattr(edit.module, name)
    edit.set(edit.module, name, kernels.stand_in(f"{edit.module.__name__}:{name}", upstream))
