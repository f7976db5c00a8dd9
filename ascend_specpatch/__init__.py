# SPDX-License-Identifier: Apache-2.0
"""Patches that vLLM and vllm-ascend receive as they are imported.

Every interpreter of the environment imports this file at start, so it imports nothing itself, not even
``__future__``.
"""

__version__ = "0.1.0"


def is_applied(patch_id: str) -> bool:
    """Whether the patch ``stage.name`` is applied in this process; False for an id nobody knows."""
    from ascend_specpatch import report

    return report.current().is_applied(patch_id)
