# SPDX-License-Identifier: Apache-2.0
"""Patches that vLLM and vllm-ascend receive as they are imported.

Every interpreter of the environment imports this file at start, through the startup files of site-packages,
and a process that never imports a host pays for nothing more of ours. So it imports only what is loaded by
then, not even ``__future__``, its annotations are quoted, it reads no setting, and the module is itself the
finder that waits for a host: a class, or a look at the environment, would cost half as much again.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__version__ = "0.1.0"

HOSTS = ("vllm", "vllm_ascend")


def arm() -> None:
    """Make the first import of a host activate the patches. May be called any number of times; the settings
    are read at that import."""
    this = sys.modules[__name__]
    if this not in sys.meta_path:
        sys.meta_path.insert(0, this)


def find_spec(
    name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
) -> "ModuleSpec | None":
    """What the import system asks of a meta path finder: a host's spec, with a loader that activates the
    patches first; None for every other module."""
    if name not in HOSTS:
        return None
    from ascend_specpatch import bootstrap

    return bootstrap.find_host(name, path, target)


def is_applied(patch_id: str) -> bool:
    """Whether the patch ``stage.name`` is applied in this process; False for an id nobody knows."""
    from ascend_specpatch import report

    return report.current().is_applied(patch_id)
