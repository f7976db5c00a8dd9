# SPDX-License-Identifier: Apache-2.0
"""Tells when a module's code has run to its end: at its first import, at ``importlib.reload``, and when it is
imported again after somebody took it out of ``sys.modules``.

wrapt's post-import hooks tell of the first import only.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Watcher:
    """A meta path finder that finds what the finders behind it find, and tells when that has loaded."""

    def __init__(self, names: Collection[str], tell: Callable[[str, ModuleType], None]) -> None:
        """``tell`` is called with the name and the module, before the import returns to whoever asked for it.
        What it raises fails that import."""
        self._names = frozenset(names)
        self._tell = tell
        self._searching = threading.local()

    def start(self) -> None:
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # A finder behind this one may ask the import system itself, and so this one once more.
        if name not in self._names or getattr(self._searching, "name", None) == name:
            return None
        outer = getattr(self._searching, "name", None)
        self._searching.name = name
        try:
            spec = find_behind(self, name, path, target)
        finally:
            self._searching.name = outer
        # A loader of the oldest kind executes on its own: such a module is noticed later.
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _TellingLoader(spec.loader, self._tell)  # type: ignore[assignment]
        return spec


class _TellingLoader:
    """Stands in for a module's loader until the module's code runs."""

    __slots__ = ("_loader", "_tell")

    def __init__(self, loader: Any, tell: Callable[[str, ModuleType], None]) -> None:
        self._loader, self._tell = loader, tell

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_loader"), name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create = getattr(self._loader, "create_module", None)
        module: ModuleType | None = create(spec) if create else None
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec: Any = module.__spec__
        name = spec.name if spec is not None else module.__name__
        if spec is not None and spec.loader is self:
            spec.loader = self._loader
        if getattr(module, "__loader__", self) is self:
            module.__loader__ = self._loader
        try:
            self._loader.exec_module(module)
        except BaseException:
            # A reload that fails half way leaves the module in use, with what was set anew until then.
            if not getattr(spec, "_initializing", False):
                self._tell(name, sys.modules.get(name, module))
            raise
        # A module may have put another object in its place.
        self._tell(name, sys.modules.get(name, module))


def find_behind(
    finder: Any, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
) -> ModuleSpec | None:
    """What the import system finds after it has asked ``finder``; where that is not on ``sys.meta_path``,
    what it finds."""
    finders = list(sys.meta_path)
    behind = finders[finders.index(finder) + 1 :] if finder in finders else finders
    for other in behind:
        find_spec = getattr(other, "find_spec", None)
        spec: ModuleSpec | None = find_spec(name, path, target) if find_spec is not None else None
        if spec is not None:
            return spec
    return None
