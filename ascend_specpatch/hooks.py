# SPDX-License-Identifier: Apache-2.0
"""Applies the plan as target modules load.

A patch is applied once its target is loaded, the earlier patches on that target are settled and everything it
requires is applied. No lock is held while a patch is applied or a module imported: the import system holds
locks of its own then, and two threads that take both kinds in different order would wait for each other. The
lock here only guards who takes a patch on.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import traceback
from types import ModuleType

from ascend_specpatch import HOSTS, aliases, bootstrap, hosts, report
from ascend_specpatch.aliases import AliasError
from ascend_specpatch.edits import Edit, EditError
from ascend_specpatch.registry import Patch, Plan, Registry, RegistryError, State, load
from ascend_specpatch.report import Report
from ascend_specpatch.settings import Settings, SettingsError

logger = logging.getLogger("vllm.ascend_specpatch")


class PatchRefused(RuntimeError):
    """A patch, or all of them, cannot be applied and ``ASCEND_SPECPATCH_STRICT=1`` asks to stop. No
    ImportError: the optional imports of the hosts would swallow that."""


class Activation:
    """A plan being carried out in this process."""

    def __init__(self, plan: Plan, *, strict: bool, route: str) -> None:
        self.report = Report(plan, route)
        self.live = True
        self._strict = strict
        self._patches = plan.chosen
        self._edits: list[Edit] = []
        # Targets whose code has run to its end, by name. Being in sys.modules is not enough: a module is
        # there while it runs, and one whose import failed is gone from there, or replaced by the next try.
        self._loaded: dict[str, ModuleType] = {}
        self._taken: set[str] = set()

    def watch(self) -> None:
        """Have wrapt tell when a target has loaded. Applies nothing yet."""
        from wrapt import register_post_import_hook

        for target in dict.fromkeys(patch.target for patch in self._patches):
            register_post_import_hook(_LoadedHook(self, target), target)

    def advance(self) -> None:
        """Apply what can be applied now, in order; import the targets of requirements where that is what is
        missing."""
        self._notice_loaded()
        while self.live:
            patch = self._take_next()
            if patch is not None:
                self._apply(patch)
                self._notice_loaded()
            elif not self._import_a_requirement():
                return

    def settle(self) -> None:
        """Late check: apply what has become possible since and rebind aliases that were taken meanwhile."""
        for patch in self._patches:
            module = sys.modules.get(patch.target)
            if module is not None and _is_loading(module):
                # Waits where another thread is loading it, returns at once where this one is.
                self._import(patch.target)
        self.advance()
        for edit in list(self._edits):
            try:
                aliases.rebind(edit, self._packages())
            except AliasError as error:
                if self._strict:
                    raise PatchRefused(f"{edit.patch_id}: {error}") from error
                logger.warning("ascend-specpatch: %s is applied, but %s", edit.patch_id, error)
        refused = self.report.ids(State.REFUSED)
        if self._strict and refused:  # and whoever imported the target then has swallowed the error
            raise _refusal(refused[0], self.report.row(refused[0]).reason)

    def undo(self) -> None:
        """Take every patch back, the last one first."""
        self.live = False
        failures: list[EditError] = []
        while self._edits:
            try:
                self._edits.pop().undo()
            except EditError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def mark_loaded(self, target: str, module: ModuleType) -> None:
        with _lock:
            self._loaded[target] = module

    def _is_loaded(self, target: str) -> bool:
        return target in self._loaded and sys.modules.get(target) is self._loaded[target]

    def _notice_loaded(self) -> None:
        """Targets that wrapt could not announce, because they were loaded or loading when it was asked to."""
        for patch in self._patches:
            module = sys.modules.get(patch.target)
            if module is not None and not _is_loading(module):
                self.mark_loaded(patch.target, module)

    def _take_next(self) -> Patch | None:
        """Take on the first patch that can be applied; refuse those whose requirements were refused."""
        for patch in self._patches:
            failed = [r for r in patch.requires if self.report.row(r).state is State.REFUSED]
            if failed and self._take(patch):
                self._refuse(patch, f"needs {failed[0]}, which is refused")
        with _lock:
            blocked: set[str] = set()
            for patch in self._patches:
                if self.report.row(patch.id).state is State.WAITING:
                    ready = self._is_loaded(patch.target) and all(map(self.report.is_applied, patch.requires))
                    if ready and patch.target not in blocked and self._take(patch):
                        return patch
                    blocked.add(patch.target)
        return None

    def _apply(self, patch: Patch) -> None:
        edit = Edit(patch.id, self._loaded[patch.target], tuple(self._edits))
        try:
            importlib.import_module(patch.body).apply(edit)
            aliases.rebind(edit, self._packages())
        # Whatever a patch raises, an interrupt too, leaves its target as it was.
        except BaseException as error:
            reason = _describe(error)
            try:
                edit.undo()
            except EditError as failure:
                reason += f"; moreover {failure}: {failure.__cause__!r}. Restart with this patch disabled"
            if not isinstance(error, Exception):
                with _lock:
                    self._taken.discard(patch.id)
                raise
            self._refuse(patch, reason, error)
        else:
            with _lock:
                live = self.live
                if live:
                    self._edits.append(edit)
                    self.report.mark(patch.id, State.APPLIED)
            if not live:  # uninstalled by another thread meanwhile
                edit.undo()
                return
            logger.debug("ascend-specpatch: %s applied to %s", patch.id, patch.target)

    def _refuse(self, patch: Patch, reason: str, error: BaseException | None = None) -> None:
        with _lock:
            self.report.mark(patch.id, State.REFUSED, reason)
        if self._strict:
            raise _refusal(patch.id, reason) from error
        logger.warning(
            "ascend-specpatch: %s is refused: %s. vLLM goes on without it; ASCEND_SPECPATCH_DISABLE=%s says "
            "that this is wanted, ASCEND_SPECPATCH_STRICT=1 makes it an error.",
            patch.id,
            reason,
            patch.id,
        )

    def _import_a_requirement(self) -> bool:
        """Import the target that the first patch with a loaded target is waiting for. False where there is
        none to import."""
        for patch in self._patches:
            if self._is_loaded(patch.target) and self.report.row(patch.id).state is State.WAITING:
                for required in patch.requires:
                    row = self.report.row(required)
                    if row.state is State.WAITING and row.target not in sys.modules:
                        error = self._import(row.target)
                        if error is not None and self._take(patch):
                            self._refuse(
                                patch,
                                f"needs {required}, whose module does not import: {_describe(error)}",
                                error,
                            )
                        return True
        return False

    def _import(self, target: str) -> Exception | None:
        try:
            importlib.import_module(target)
        except PatchRefused:
            raise
        # A host module may fail in any way; that is a reason to give, not ours to raise.
        except Exception as error:
            return error
        self._notice_loaded()
        return None

    def _take(self, patch: Patch) -> bool:
        """Claim a patch for this thread. False where it is claimed: one thread settles it, once."""
        with _lock:
            free = patch.id not in self._taken
            self._taken.add(patch.id)
            return free

    def _packages(self) -> set[str]:
        return {*HOSTS, *(patch.target.partition(".")[0] for patch in self._patches)}


class _LoadedHook:
    """What wrapt calls with a target that has loaded.

    It cannot be unregistered: after an uninstall it does nothing. And wrapt calls it at once for what is in
    sys.modules, even for a module that is still running its code: those are left to ``_notice_loaded``.
    """

    def __init__(self, activation: Activation, target: str) -> None:
        self._activation = activation
        self._target = target

    def __call__(self, module: ModuleType) -> None:
        if not _starting.active:
            # A module may have put another object in its place.
            self._activation.mark_loaded(self._target, sys.modules.get(self._target, module))
            self._activation.advance()


class _Starting(threading.local):
    """Whether this thread is activating: nothing is applied before the whole plan is watched."""

    active = False


_starting = _Starting()
_lock = threading.RLock()
_active: Activation | None = None
_logged_by: int | None = None


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


# A thread that does not exist in the child may hold the lock at the moment of the fork.
os.register_at_fork(after_in_child=_renew_lock)


def activate(route: str = "activate()", registry: Registry | None = None) -> Report:
    """Plan, watch the targets, and apply what is already loaded. Does nothing where the patches are active.

    Raises:
        SettingsError, RegistryError, PatchRefused: under ``ASCEND_SPECPATCH_STRICT=1`` only, else they are
        one warning.
    """
    global _active
    with _lock:
        if _starting.active:
            return report.current()
        if _active is None:
            _starting.active = True
            try:
                plan, strict = _plan(registry)
                started = Activation(plan, strict=strict, route=route)
                started.watch()
            finally:
                _starting.active = False
            _active = started
            report.set_current(started.report)
        active = _active
    active.advance()
    return active.report


def register() -> None:
    """The body of vLLM's plugin entry point; see :func:`ascend_specpatch.bootstrap.register`."""
    global _logged_by
    activate("vllm.general_plugins")
    if _active is not None:
        _active.settle()
    if _logged_by != os.getpid():
        _logged_by = os.getpid()
        _warn_of_hidden_platform()
        if report.current().ids(State.APPLIED, State.WAITING, State.OFF):
            logger.info("%s", report.current().line())


def uninstall() -> None:
    """Restore the hosts exactly and disarm; a later :func:`activate` starts anew.

    Raises:
        EditError: a change could not be taken back; all others were.
    """
    global _active, _logged_by
    bootstrap.disarm()
    with _lock:
        active, _active = _active, None
        _logged_by = None
        report.set_current(Report())
    if active is not None:
        active.undo()


def _plan(registry: Registry | None) -> tuple[Plan, bool]:
    """The plan and whether a refusal is an error. What keeps every patch from being applied is said here,
    once."""
    pair = hosts.installed()
    try:
        registry = registry or load()
    except RegistryError as error:
        _stop_or_warn(error, f"the list of patches is wrong: {error}. Reinstall ascend-specpatch")
        return Plan(pair), False
    try:
        settings = Settings.from_environ()
        plan = registry.choose(settings, pair)
    except SettingsError as error:
        said = str(error) if str(error).endswith("?") else f"{error}."
        _stop_or_warn(
            error, f"{said} Nothing is patched, because it is not clear what is wanted: correct the setting"
        )
        return registry.refuse(pair, str(error)), False
    if settings.enabled and plan.choices and all(c.state is State.NOT_FOR_THIS_HOST for c in plan.choices):
        text = (
            f"found {pair}, and the patches are for {hosts.supported_text()}. Nothing is patched: install a "
            "supported pair"
        )
        _stop_or_warn(PatchRefused(f"{text}, or unset ASCEND_SPECPATCH_STRICT"), text)
    return plan, settings.strict


def _refusal(patch_id: str, reason: str) -> PatchRefused:
    return PatchRefused(
        f"{patch_id} is refused: {reason}. ASCEND_SPECPATCH_STRICT=1 stops vLLM here; set "
        f"ASCEND_SPECPATCH_DISABLE={patch_id} to run without it."
    )


def _stop_or_warn(error: Exception, text: str) -> None:
    if bootstrap.strict():
        raise error
    logger.warning("ascend-specpatch: %s, or set ASCEND_SPECPATCH=0 to silence this.", text)


def _warn_of_hidden_platform() -> None:
    plugins = os.environ.get("VLLM_PLUGINS")
    if plugins is not None and "ascend" not in plugins.split(",") and report.current().pair.vllm_ascend:
        logger.warning(
            "ascend-specpatch: VLLM_PLUGINS=%s hides vllm-ascend's platform plugin; add ascend to it.",
            plugins,
        )


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _describe(error: BaseException) -> str:
    """Type, message, where it was raised and, if that is elsewhere, the last place in an ``apply``."""
    text = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    places = [frame for frame in frames if frame.name == "apply"][-1:] + frames[-1:]
    where = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in reversed(places)]
    return f"{text} ({', from '.join(dict.fromkeys(where))})" if where else text
