# SPDX-License-Identifier: Apache-2.0
"""Carries out a plan: applies its patches as target modules load.

A patch is applied once its target is loaded, the earlier patches on that target are settled and everything it
requires is applied. No lock is held while a patch is applied or a module imported: the import system holds
locks of its own then, and two threads that take both kinds in different order would wait for each other. The
lock here only guards who takes a patch on.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from types import ModuleType

from ascend_specpatch import HOSTS, aliases, fingerprints, report
from ascend_specpatch.aliases import AliasError
from ascend_specpatch.edits import Edit, EditError
from ascend_specpatch.fingerprints import SourceMismatch
from ascend_specpatch.providers import described
from ascend_specpatch.registry import Patch, Plan, State
from ascend_specpatch.report import Report
from ascend_specpatch.watcher import Watcher

logger = logging.getLogger("vllm.ascend_specpatch")


class PatchRefused(RuntimeError):
    """A patch, or all of them, cannot be applied and ``ASCEND_SPECPATCH_STRICT=1`` asks to stop. No
    ImportError: the optional imports of the hosts would swallow that."""


class Activation:
    """A plan being carried out in this process; ``progressed`` is called when states have changed."""

    def __init__(self, plan: Plan, *, strict: bool, route: str, progressed: Callable[[], None]) -> None:
        self.report = Report(plan, route)
        self.live = True
        self._progressed = progressed
        self._lock = threading.RLock()
        self._pair = plan.pair
        self._strict = strict
        self._patches = plan.chosen
        self._edits: list[Edit] = []
        # Of targets that were loaded again since: what they changed elsewhere can still be taken back.
        self._superseded: list[Edit] = []
        # Targets whose code has run to its end, by name. Being in sys.modules is not enough: a module is
        # there while it runs, and one whose import failed is gone from there, or replaced by the next try.
        self._loaded: dict[str, ModuleType] = {}
        self._taken: set[str] = set()
        # Targets that have just loaded, by the thread that imports them: it alone applies their patches, so
        # that its import does not return before.
        self._told_to: dict[str, int] = {}
        # Patches that others wait for, with the reason why their target cannot be imported.
        self._unreachable: dict[str, str] = {}
        self._watcher = Watcher({patch.target for patch in self._patches}, self._target_loaded)

    def watch(self) -> None:
        """Be told from now on when a target has loaded. Applies nothing yet."""
        self._watcher.start()

    def advance(self) -> None:
        """Apply what can be applied now, in order; import the targets of requirements where that is what is
        missing."""
        self._notice_loaded()
        before = self.report.states()
        asked: set[str] = set()
        while self.live:
            patch = self._take_next()
            if patch is not None:
                self._apply(patch)
                self._notice_loaded()
            elif not self._import_what_is_awaited(asked):
                break
        if self.live and self.report.states() != before:
            self._progressed()

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
        self._watcher.stop()
        with self._lock:
            self.live = False
            edits = [*self._superseded, *self._edits]
            self._edits, self._superseded = [], []
        replaced = [pair for edit in edits for pair in edit.replaced]
        failures: list[EditError] = []
        for edit in reversed(edits):
            try:
                edit.undo()
            except EditError as error:
                failures.append(error)
        aliases.give_back(replaced, self._packages())
        if failures:
            raise failures[0]

    def note_other_patchers(self) -> None:
        """Have the report say what others replaced before our patches came and since."""
        for edit in list(self._edits):
            self.report.note(edit.patch_id, (*edit.foreign(), *edit.overwritten()))

    def _target_loaded(self, target: str, module: ModuleType) -> None:
        """Called by the watcher, in the thread that imports the target."""
        outer = self._told_to.get(target)
        self._told_to[target] = threading.get_ident()
        try:
            self._take_note(target, module)
            self.advance()
        finally:
            if outer is None:
                del self._told_to[target]
            else:
                self._told_to[target] = outer

    def _take_note(self, target: str, module: ModuleType) -> None:
        """A target's code has run to its end. Where that is not the first time (it was reloaded, or imported
        again), its patches are to be applied once more, to what that made."""
        with self._lock:
            before = self._loaded.get(target)
            self._loaded[target] = module
            if before is None:
                return
            for edit in [edit for edit in self._edits if edit.module is before]:
                self._edits.remove(edit)
                edit.withdraw()
                if not edit.is_empty():
                    self._superseded.append(edit)
            for patch in self._patches:
                if patch.target == target:
                    self._taken.discard(patch.id)
                    self.report.mark(patch.id, State.WAITING)

    def _is_loaded(self, target: str) -> bool:
        return target in self._loaded and sys.modules.get(target) is self._loaded[target]

    def _notice_loaded(self) -> None:
        """Targets that the watcher could not tell of, because they were loaded or loading when it started."""
        for patch in self._patches:
            module = sys.modules.get(patch.target)
            known = self._loaded.get(patch.target)
            if module is not None and module is not known and not _is_loading(module):
                self._take_note(patch.target, module)

    def _take_next(self) -> Patch | None:
        """Take on the first patch that can be applied; refuse those whose requirements were refused."""
        for patch in self._patches:
            why = self._missing_requirement(patch)
            if why and self._take(patch):
                self._refuse(patch, why)
        with self._lock:
            blocked: set[str] = set()
            for patch in self._patches:
                if self.report.row(patch.id).state is State.WAITING:
                    ready = (
                        self._is_loaded(patch.target)
                        and all(map(self.report.is_applied, patch.requires))
                        and not any(map(self._is_awaited, patch.after))
                    )
                    told_to = self._told_to.get(patch.target, threading.get_ident())
                    mine = told_to == threading.get_ident() and patch.target not in blocked
                    if ready and mine and self._take(patch):
                        return patch
                    blocked.add(patch.target)
        return None

    def _apply(self, patch: Patch) -> None:
        edit = Edit(patch.id, self._loaded[patch.target], tuple(self._edits))
        try:
            apply = _apply_of(patch, edit)
            fingerprints.check(patch, self._pair)
            apply(edit)
            aliases.rebind(edit, self._packages())
        # Whatever a patch raises, an interrupt too, leaves its target as it was.
        except BaseException as error:
            failed_undo = ""
            try:
                edit.undo()
            except EditError as failure:
                failed_undo = f"; moreover {failure}: {failure.__cause__!r}. Restart with this patch disabled"
            reason = _describe(error) + failed_undo
            if not isinstance(error, (Exception, SystemExit)):
                with self._lock:
                    self._taken.discard(patch.id)
                raise
            self._refuse(patch, reason, error)
        else:
            with self._lock:
                live = self.live
                if live:
                    self._edits.append(edit)
                    self.report.mark(patch.id, State.APPLIED)
            if not live:  # uninstalled by another thread meanwhile
                edit.undo()
                return
            logger.debug("ascend-specpatch: %s applied to %s", patch.id, patch.target)

    def _refuse(self, patch: Patch, reason: str, error: BaseException | None = None) -> None:
        with self._lock:
            self.report.mark(patch.id, State.REFUSED, reason)
        if self._strict:
            raise _refusal(patch.id, reason) from error
        logger.warning(
            "ascend-specpatch: %s is refused: %s. vLLM goes on without it; ASCEND_SPECPATCH_DISABLE=%s says "
            "that this is wanted, ASCEND_SPECPATCH_STRICT=1 makes it an error.",
            patch.id,
            report.plain(reason),
            patch.id,
        )

    def _missing_requirement(self, patch: Patch) -> str | None:
        """Why a patch cannot be applied any more, if it cannot."""
        for required in patch.requires:
            state = self.report.row(required).state
            if state is State.REFUSED:
                return f"needs {required}, which is refused"
            if state is State.WAITING and required in self._unreachable and self._is_loaded(patch.target):
                return f"needs {required}, whose module does not import: {self._unreachable[required]}"
        return None

    def _import_what_is_awaited(self, asked: set[str]) -> bool:
        """Import the target that the first patch with a loaded target is waiting for, or wait for the thread
        that does. False where there is none but those of ``asked``, to which it is added."""
        for patch in self._patches:
            if self._is_loaded(patch.target) and self.report.row(patch.id).state is State.WAITING:
                for other in filter(self._is_awaited, (*patch.requires, *patch.after)):
                    target = self.report.row(other).target
                    module = sys.modules.get(target)
                    if target not in asked and (module is None or _is_loading(module)):
                        asked.add(target)
                        error = self._import(target)
                        if error is not None:
                            self._unreachable[other] = _describe(error)
                        return True
        return False

    def _is_awaited(self, patch_id: str) -> bool:
        """Whether patches that come after this one are still to wait for it."""
        return self.report.row(patch_id).state is State.WAITING and patch_id not in self._unreachable

    def _import(self, target: str) -> BaseException | None:
        try:
            importlib.import_module(target)
        except PatchRefused:
            raise
        # A host module may fail in any way; that is a reason to give, not ours to raise.
        except (Exception, SystemExit) as error:
            return error
        self._notice_loaded()
        return None

    def _take(self, patch: Patch) -> bool:
        """Claim a patch for this thread. False where it is claimed: one thread settles it, once."""
        with self._lock:
            free = patch.id not in self._taken
            self._taken.add(patch.id)
            return free

    def in_forked_child(self) -> None:
        """Of the threads that were at work only one is left: what another held or had taken on is free."""
        self._lock = threading.RLock()
        self._told_to.clear()
        waiting = set(self.report.ids(State.WAITING))
        self._taken -= waiting

    def _packages(self) -> set[str]:
        return {*HOSTS, *(patch.target.partition(".")[0] for patch in self._patches)}


def _apply_of(patch: Patch, edit: Edit) -> Callable[[Edit], object]:
    """The function that makes the change.

    Raises:
        TypeError: the patch's module has none that can be called with an edit.
    """
    apply: Callable[[Edit], object] | None = getattr(importlib.import_module(patch.body), "apply", None)
    if not callable(apply):
        raise TypeError(f"{patch.body} has no function apply(edit)")
    if inspect.iscoroutinefunction(apply):
        raise TypeError(f"{patch.body}.apply is a coroutine function: nobody would run it")
    try:
        signature = inspect.signature(apply)
    except ValueError:  # written in C: calling it will tell
        return apply
    try:
        signature.bind(edit)
    except TypeError as error:
        raise TypeError(f"{patch.body}.apply{signature} is not apply(edit): {error}") from None
    return apply


def _refusal(patch_id: str, reason: str) -> PatchRefused:
    return PatchRefused(
        f"{patch_id} is refused: {reason}. ASCEND_SPECPATCH_STRICT=1 stops vLLM here; set "
        f"ASCEND_SPECPATCH_DISABLE={patch_id} to run without it."
    )


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _describe(error: BaseException) -> str:
    """Type, message and where it was raised; where that is elsewhere, also the last place in a host and the
    last in an ``apply``."""
    if isinstance(error, SourceMismatch):
        return str(error)
    frames = [
        (frame.f_globals.get("__name__", ""), frame.f_code, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    in_hosts = [frame for frame in frames if frame[0].partition(".")[0] in HOSTS]
    in_apply = [frame for frame in frames if frame[1].co_name == "apply"]
    where = [
        f"{code.co_filename}:{line} in {code.co_name}"
        for _, code, line in (*frames[-1:], *in_hosts[-1:], *in_apply[-1:])
    ]
    text = described(error)
    return f"{text} ({', from '.join(dict.fromkeys(where))})" if where else text
