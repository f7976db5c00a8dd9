# SPDX-License-Identifier: Apache-2.0
"""How a process comes to be patched: what the trigger does at the import of a host, and vLLM's plugin entry
point."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import ascend_specpatch
from ascend_specpatch.watcher import find_behind

OFF_WORDS = ("0", "false", "no", "off")

logger = logging.getLogger("vllm.ascend_specpatch")


def find_host(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """The host's own spec, with a loader that activates the patches first; with ``ASCEND_SPECPATCH=0`` None,
    which leaves the host to the other finders."""
    if os.environ.get("ASCEND_SPECPATCH", "").strip().lower() in OFF_WORDS:
        disarm()
        return None
    spec = find_behind(ascend_specpatch, name, path, target)
    # A folder that merely has a host's name is a namespace package and has no loader: not the host, keep
    # waiting.
    if spec is not None and spec.loader is not None:
        spec.loader = ActivatingLoader(spec.loader)  # type: ignore[assignment]
    return spec


class ActivatingLoader:
    """Stands in for a host's loader until the host is really loaded: asking whether vLLM is installed
    activates nothing."""

    __slots__ = ("_loader",)

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_loader"), name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        _guarded(lambda: _activate(f"import of {spec.name}"))
        # Under STRICT a failure has raised: still armed, it stops whoever swallows that and imports again.
        disarm()
        loaded = sys.modules.get(spec.name)
        if loaded is not None:  # a patch of another distribution imported the host as it was loaded itself
            spec.loader = _Loaded(loaded.__spec__)  # type: ignore[assignment]
            return loaded
        # The search for this host was over before the watcher came, which may be waiting for the host itself.
        again = find_behind(ascend_specpatch, spec.name)
        spec.loader = getattr(again, "loader", None) or self._loader
        create = getattr(spec.loader, "create_module", None)
        module: ModuleType | None = create(spec) if create else None
        return module


class _Loaded:
    """The loader of a module that is there: it is not executed once more."""

    def __init__(self, spec: ModuleSpec | None) -> None:
        self._spec = spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def disarm() -> None:
    """Take the trigger away, if it is set."""
    if ascend_specpatch in sys.meta_path:
        sys.meta_path.remove(ascend_specpatch)


def armed() -> bool:
    """Whether the next import of a host activates the patches."""
    return ascend_specpatch in sys.meta_path


def register() -> None:
    """vLLM's general plugin: make sure that the patches are active in this process, also late, and log the
    one line."""
    _guarded(_register)
    disarm()


def strict() -> bool:
    """Whether ``ASCEND_SPECPATCH_STRICT`` asks for errors; a value that cannot be read does, whoever set it
    wanted to be stopped."""
    return os.environ.get("ASCEND_SPECPATCH_STRICT", "").strip().lower() not in ("", *OFF_WORDS)


def _activate(route: str) -> None:
    from ascend_specpatch import hooks

    hooks.activate(route)


def _register() -> None:
    from ascend_specpatch import hooks

    hooks.register()


def _guarded(step: Callable[[], None]) -> None:
    """Run a step of ours inside an import of vLLM: by default no failure of ours may break that import."""
    try:
        step()
    except Exception:
        if strict():
            raise
        logger.warning(
            "ascend-specpatch could not start: vLLM runs unpatched. `ascend-specpatch status` says more; "
            "ASCEND_SPECPATCH=0 runs without it.",
            exc_info=True,
        )
