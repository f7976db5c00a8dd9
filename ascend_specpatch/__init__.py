# SPDX-License-Identifier: Apache-2.0
"""Patches that vLLM and vllm-ascend receive as they are imported.

Every interpreter of the environment imports this file at start, through the startup files of site-packages,
and a process that never imports a host imports nothing more of ours. So it imports only what is loaded by
then, not even ``__future__``, and its annotations are quoted.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__version__ = "0.1.0"

HOSTS = ("vllm", "vllm_ascend")
OFF_WORDS = ("0", "false", "no", "off")


class HostTrigger:
    """Meta path finder that waits for the first import of a host."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name not in HOSTS:
            return None
        from ascend_specpatch import bootstrap

        return bootstrap.find_host(self, name, path, target)


def arm() -> None:
    """Make the first import of a host activate the patches, unless ``ASCEND_SPECPATCH=0``. May be called any
    number of times."""
    if os.environ.get("ASCEND_SPECPATCH", "").strip().lower() in OFF_WORDS:
        return
    if not any(isinstance(finder, HostTrigger) for finder in sys.meta_path):
        sys.meta_path.insert(0, HostTrigger())


def is_applied(patch_id: str) -> bool:
    """Whether the patch ``stage.name`` is applied in this process; False for an id nobody knows."""
    from ascend_specpatch import report

    return report.current().is_applied(patch_id)
