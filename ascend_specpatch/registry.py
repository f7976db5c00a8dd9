# SPDX-License-Identifier: Apache-2.0
"""The patches: their order, what they require, and which of them a process wants.

Pure: nothing here imports a host or a patch's body, so all of it is tested without either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from ascend_specpatch import hosts
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.settings import Settings, SettingsError, nearest

STAGES = ("worker", "spec_decode", "model_runner")


class RegistryError(ValueError):
    """A list of patches that contradicts itself; the message names the patch and the contradiction."""


class State(str, Enum):
    """What became of a patch in this process."""

    APPLIED = "applied"
    WAITING = "waiting"
    OFF = "off"
    NOT_FOR_THIS_HOST = "not_for_this_host"
    REFUSED = "refused"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Patch:
    """One named change to one host module.

    Attributes:
        id: ``stage.name``.
        target: the host module it changes.
        summary: what it does, in a few words, for lists.
        requires: ids of the patches it needs applied first.
        default: whether it is on unless ``ASCEND_SPECPATCH_ENABLE`` says so.
        hosts: the pairs it is for; None for all supported ones.
        implementation: the module with its ``apply(edit)``; None for ``ascend_specpatch.patches.<id>``.
    """

    id: str
    target: str
    summary: str
    requires: tuple[str, ...] = ()
    default: bool = True
    hosts: tuple[HostPair, ...] | None = None
    implementation: str | None = None

    @property
    def stage(self) -> str:
        return self.id.partition(".")[0]

    @property
    def body(self) -> str:
        """The name of the module that holds ``apply``."""
        return self.implementation or f"ascend_specpatch.patches.{self.id}"


@dataclass(frozen=True)
class Choice:
    """A patch with WAITING, where it is to be applied, or the state and the reason why it is not."""

    patch: Patch
    state: State = State.WAITING
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """A choice for every patch, in the order of application."""

    pair: HostPair
    choices: tuple[Choice, ...] = ()

    @property
    def chosen(self) -> tuple[Patch, ...]:
        return tuple(choice.patch for choice in self.choices if choice.state is State.WAITING)


class Registry:
    """Patches in order of application: by stage, and within a stage as listed.

    Raises:
        RegistryError: an id is malformed or given twice, or a requirement is unknown, circular, or comes
            later.
    """

    def __init__(self, patches: Iterable[Patch]) -> None:
        patches = tuple(patches)
        for patch in patches:
            stage, _, name = patch.id.partition(".")
            if stage not in STAGES or not name:
                raise RegistryError(
                    f"{patch.id}: an id is stage.name, with the stage one of {', '.join(STAGES)}"
                )
        twice = [patch_id for patch_id, count in Counter(patch.id for patch in patches).items() if count > 1]
        if twice:
            raise RegistryError(f"{twice[0]} is listed twice")
        self.patches = tuple(sorted(patches, key=lambda patch: STAGES.index(patch.stage)))
        self._by_id = {patch.id: patch for patch in self.patches}
        self._check_requirements()

    def __iter__(self) -> Iterator[Patch]:
        return iter(self.patches)

    def __repr__(self) -> str:
        return f"Registry({', '.join(self._by_id)})"

    def choose(self, settings: Settings, pair: HostPair) -> Plan:
        """Decide for every patch whether it is to be applied.

        Raises:
            SettingsError: the settings name a patch that does not exist.
        """
        disabled = self._matching(settings.disable, "ASCEND_SPECPATCH_DISABLE")
        enabled = self._matching(settings.enable, "ASCEND_SPECPATCH_ENABLE")
        choices: dict[str, Choice] = {}
        for patch in self.patches:
            state, reason = State.WAITING, ""
            missing = [
                required for required in patch.requires if choices[required].state is not State.WAITING
            ]
            if not settings.enabled:
                state, reason = State.OFF, "ASCEND_SPECPATCH=0"
            elif pair not in (hosts.SUPPORTED if patch.hosts is None else patch.hosts):
                state, reason = State.NOT_FOR_THIS_HOST, f"found {pair}"
            elif patch.id in disabled:
                state, reason = State.OFF, "ASCEND_SPECPATCH_DISABLE"
            elif not patch.default and patch.id not in enabled:
                state, reason = State.OFF, f"off by default; ASCEND_SPECPATCH_ENABLE={patch.id} turns it on"
            elif missing:
                why = choices[missing[0]]
                state, reason = State.OFF, f"needs {missing[0]}, which is {why.state} ({why.reason})"
            choices[patch.id] = Choice(patch, state, reason)
        return Plan(pair, tuple(choices.values()))

    def refuse(self, pair: HostPair, reason: str) -> Plan:
        """A plan that refuses every patch for one ``reason``."""
        return Plan(pair, tuple(Choice(patch, State.REFUSED, reason) for patch in self.patches))

    def _matching(self, names: tuple[str, ...], variable: str) -> frozenset[str]:
        """The ids that ``names`` (ids, stages or globs) stand for."""
        matching: set[str] = set()
        for name in names:
            pattern = f"{name}.*" if name in STAGES else name
            found = {patch_id for patch_id in self._by_id if fnmatchcase(patch_id, pattern)}
            # A stage may be empty in some release: naming it is not a mistake.
            if not found and name not in STAGES:
                raise SettingsError(
                    f"{variable}: no patch is named {name}; {nearest(name, [*self._by_id, *STAGES])}"
                )
            matching |= found
        return frozenset(matching)

    def _check_requirements(self) -> None:
        for patch in self.patches:
            for required in patch.requires:
                if required not in self._by_id:
                    raise RegistryError(
                        f"{patch.id} requires {required}, which is not listed; "
                        f"{nearest(required, list(self._by_id))}"
                    )
        for patch in self.patches:
            self._check_acyclic(patch, ())
        earlier: set[str] = set()
        for patch in self.patches:
            for required in patch.requires:
                if required not in earlier:
                    raise RegistryError(f"{patch.id} requires {required}, which comes later: list it before")
            earlier.add(patch.id)

    def _check_acyclic(self, patch: Patch, path: tuple[str, ...]) -> None:
        if patch.id in path:
            circle = " -> ".join((*path[path.index(patch.id) :], patch.id))
            raise RegistryError(f"patches require each other: {circle}")
        for required in patch.requires:
            self._check_acyclic(self._by_id[required], (*path, patch.id))


def load() -> Registry:
    """The registry of this distribution: the one place where the engine names the ordered list."""
    from ascend_specpatch.patches import PATCHES

    return Registry(PATCHES)
