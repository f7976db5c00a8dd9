# SPDX-License-Identifier: Apache-2.0
"""What happens to a process: its patches are planned and watched for, announced, and taken back."""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import threading
from dataclasses import dataclass

from ascend_specpatch import bootstrap, hosts, processes, report
from ascend_specpatch.activation import Activation, PatchRefused
from ascend_specpatch.registry import Plan, Registry, RegistryError, State, load
from ascend_specpatch.report import Report
from ascend_specpatch.settings import Settings, SettingsError

logger = logging.getLogger("vllm.ascend_specpatch")


class _Planning(threading.local):
    """Whether this thread is planning: patches of other distributions are loaded then, which may import a
    host."""

    active = False


_planning = _Planning()
_lock = threading.RLock()
_active: Activation | None = None
_announced_by: int | None = None


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    if _active is not None:
        _active.in_forked_child()


# A thread that does not exist in the child may have held the lock, or taken on a patch.
os.register_at_fork(after_in_child=_after_fork)


def activate(route: str = "activate()", registry: Registry | None = None) -> Report:
    """Plan, watch the targets, and apply what is already loaded. Does nothing where the patches are active.

    Raises:
        SettingsError, RegistryError, PatchRefused: under ``ASCEND_SPECPATCH_STRICT=1`` only, else they are
        one warning.
    """
    global _active
    if _planning.active:
        return report.current()
    if _active is None:
        _planning.active = True
        try:
            planned = _plan(registry)
        finally:
            _planning.active = False
        with _lock:
            if _active is None:
                _say(planned.troubles)
                _active = Activation(planned.plan, strict=planned.strict, route=route, progressed=_progressed)
                _active.watch()
                multiprocessing.util.register_after_fork(_active, _in_child)
                report.set_current(_active.report)
    active = _active
    if active is not None:  # not uninstalled by another thread meanwhile
        active.advance()
    return report.current()


def register() -> None:
    """The body of vLLM's plugin entry point; see :func:`ascend_specpatch.bootstrap.register`."""
    activate("vllm.general_plugins")
    if _active is not None:
        _active.settle()
    if _announced_by != os.getpid():
        _warn_of_hidden_platform()
        _announce()


def refresh() -> Report:
    """The report of this process, with what other patchers have done up to now."""
    if _active is not None:
        _active.note_other_patchers()
    return report.current()


def uninstall() -> None:
    """Restore the hosts exactly and disarm; a later :func:`activate` starts anew.

    Raises:
        EditError: a change could not be taken back; all others were.
    """
    global _active, _announced_by
    bootstrap.disarm()
    with _lock:
        active, _active = _active, None
        _announced_by = None
        report.set_current(Report())
    processes.forget()
    if active is not None:
        active.undo()


def _announce() -> None:
    """Log the one line of this process and let ``ascend-specpatch status`` see it."""
    global _announced_by
    _announced_by = os.getpid()
    found = refresh()
    if found.ids(State.APPLIED, State.WAITING, State.OFF):
        logger.info("%s", found.line())
    processes.write(found.as_dict())


def _progressed() -> None:
    """States have changed: what ``ascend-specpatch status`` shows of an announced process follows."""
    if _announced_by is not None:
        processes.write(refresh().as_dict())


def _in_child(active: Activation) -> None:
    """A forked child has the patches, and has inherited from vLLM that its plugins ran: it says so itself."""
    if active is _active and _announced_by is not None:
        _announce()


@dataclass(frozen=True)
class _Planned:
    """A plan, whether a refusal is an error, and what keeps patches from being in it: the error for
    STRICT and the words for a warning."""

    plan: Plan
    strict: bool
    troubles: tuple[tuple[Exception, str], ...] = ()


def _plan(registry: Registry | None) -> _Planned:
    pair = hosts.installed()
    settings, unclear = Settings(), None
    try:
        settings = Settings.from_environ()
    except SettingsError as error:
        unclear = error
    try:
        # Where everything is off, nothing of others is loaded.
        registry = registry or load(others=settings.enabled)
    except RegistryError as error:
        text = f"the list of patches is wrong: {error}. Reinstall ascend-specpatch"
        return _Planned(Plan(pair), False, ((error, text),) if settings.enabled else ())
    try:
        if unclear is not None:
            raise unclear
        plan = registry.choose(settings, pair)
    except SettingsError as error:
        said = str(error) if str(error).endswith("?") else f"{error}."
        text = f"{said} Nothing is patched, because it is not clear what is wanted: correct the setting"
        return _Planned(registry.refuse(pair, str(error)), False, ((error, text),))
    if not settings.enabled:
        return _Planned(plan, False)
    troubles = [(PatchRefused(problem), problem) for problem in plan.problems]
    if plan.choices and all(choice.state is State.NOT_FOR_THIS_HOST for choice in plan.choices):
        text = (
            f"found {pair}, and the patches are for {hosts.supported_text()}. Nothing is patched: install a "
            "supported pair"
        )
        troubles.append((PatchRefused(f"{text}, or unset ASCEND_SPECPATCH_STRICT"), text))
    return _Planned(plan, settings.strict, tuple(troubles))


def _say(troubles: tuple[tuple[Exception, str], ...]) -> None:
    for error, text in troubles:
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
