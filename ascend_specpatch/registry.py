# SPDX-License-Identifier: Apache-2.0
"""The patches: their order, what they require, and which of them a process wants.

Pure: nothing here imports a host or a patch's body, so all of it is tested without either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase

from ascend_specpatch import hosts
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.settings import Settings, SettingsError, nearest, shown

STAGES = ("worker", "spec_decode", "model_runner")


class RegistryError(ValueError):
    """A list of patches that contradicts itself; the message names the patch and the contradiction.

    Attributes:
        culprits: ids of the patches that cannot all stay, the one that was listed last first.
    """

    def __init__(self, text: str, *culprits: str) -> None:
        super().__init__(text)
        self.culprits = culprits


class State(str, Enum):
    """What became of a patch in this process."""

    APPLIED = "applied"
    WAITING = "waiting"
    OFF = "off"
    UNNEEDED = "unneeded"
    NOT_FOR_THIS_HOST = "not_for_this_host"
    REFUSED = "refused"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Form:
    """What a patch is on other host pairs than the first: the same change, made elsewhere or by other code.

    Attributes:
        hosts: the pairs that this form is for.
        folder: the folder of ``patches`` that has the body of this form, ``<stage>/<name>.py``; empty where
            one body does for all.
        target: the module it changes there; None for the same one.
    """

    hosts: tuple[HostPair, ...]
    folder: str = ""
    target: str | None = None


@dataclass(frozen=True)
class Patch:
    """One named change to one host module.

    Attributes:
        id: ``stage.name``.
        target: the module it changes.
        summary: what it does, in a few words, for lists.
        requires: ids of the patches it needs applied first: where one is off or refused, so is this.
        after: ids of the patches that come first where they are on; nothing more depends on them.
        before: ids of the patches that come later.
        default: whether it is on unless ``ASCEND_SPECPATCH_ENABLE`` says so.
        hosts: the pairs it is for; None for all supported ones.
        needed_since: the release before which no host has what it changes, such as ``vllm-ascend 0.23.0``;
            empty where all have.
        in_host_since: the release from which a host has it itself; empty where none has.
        forms: what it is on pairs where the host is laid out differently.
        implementation: the module with its ``apply(edit)``; None for ``ascend_specpatch.patches.<id>``.
        provider: the distribution that brings it; empty for ours. Set by the engine.

    Raises:
        RegistryError: a value is malformed.
    """

    id: str
    target: str
    summary: str
    requires: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    default: bool = True
    hosts: tuple[HostPair, ...] | None = None
    needed_since: str = ""
    in_host_since: str = ""
    forms: tuple[Form, ...] = ()
    implementation: str | None = None
    provider: str = ""

    def __post_init__(self) -> None:
        stage, _, name = self.id.partition(".") if isinstance(self.id, str) else ("", "", "")
        if stage not in STAGES or not name:
            raise RegistryError(
                f"{self.id}: an id is stage.name, with the stage one of {', '.join(STAGES)}", self.id
            )
        if not _is_module_name(self.target):
            raise RegistryError(f"{self.id}: target is the name of a module, not {self.target!r}", self.id)
        for field in ("requires", "after", "before"):
            if not _is_tuple_of(str, getattr(self, field)):
                raise RegistryError(
                    f"{self.id}: {field} is a tuple of ids, not {getattr(self, field)!r}", self.id
                )
        if self.hosts is not None and not _is_tuple_of(HostPair, self.hosts):
            raise RegistryError(
                f"{self.id}: hosts is a tuple of HostPair or None, not {self.hosts!r}", self.id
            )
        if not _is_tuple_of(Form, self.forms):
            raise RegistryError(f"{self.id}: forms is a tuple of Form, not {self.forms!r}", self.id)
        for form in self.forms:
            if not _is_tuple_of(HostPair, form.hosts) or (form.target and not _is_module_name(form.target)):
                raise RegistryError(f"{self.id}: a form names HostPairs and a module, not {form!r}", self.id)
        for field in ("needed_since", "in_host_since"):
            try:
                if release := getattr(self, field):
                    hosts.has_reached(HostPair(None, None), release)
            except (ValueError, AttributeError) as error:
                raise RegistryError(f"{self.id}: {field}: {error}", self.id) from error
        if not isinstance(self.summary, str):
            raise RegistryError(f"{self.id}: summary is text, not {self.summary!r}", self.id)
        if self.implementation is not None and not _is_module_name(self.implementation):
            raise RegistryError(
                f"{self.id}: implementation is the name of a module, not {self.implementation!r}", self.id
            )

    @property
    def stage(self) -> str:
        return self.id.partition(".")[0]

    @property
    def body(self) -> str:
        """The name of the module that holds ``apply``."""
        return self.implementation or f"ascend_specpatch.patches.{self.id}"

    def is_for(self, pair: HostPair) -> bool:
        """Whether it is for ``pair``, be it needed there or not."""
        return pair in (hosts.SUPPORTED if self.hosts is None else self.hosts)

    def unneeded_on(self, pair: HostPair) -> str:
        """Why the hosts of ``pair`` do not need it, in a few words; empty where they do."""
        if self.in_host_since and hosts.has_reached(pair, self.in_host_since):
            return f"in the host since {self.in_host_since}"
        if self.needed_since and not hosts.has_reached(pair, self.needed_since):
            return f"needed since {self.needed_since}"
        return ""

    def is_needed_on(self, pair: HostPair) -> bool:
        return self.is_for(pair) and not self.unneeded_on(pair)

    def on(self, pair: HostPair) -> Patch:
        """The patch in its form for ``pair``."""
        form = next((form for form in self.forms if pair in form.hosts), None)
        if form is None:
            return self
        body = f"ascend_specpatch.patches.{form.folder}.{self.id}" if form.folder else self.implementation
        return replace(self, target=form.target or self.target, implementation=body)


def _is_module_name(value: object) -> bool:
    return isinstance(value, str) and all(map(str.isidentifier, value.split(".")))


def _is_tuple_of(kind: type, value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, kind) for item in value)


@dataclass(frozen=True)
class Choice:
    """A patch with WAITING, where it is to be applied, or the state and the reason why it is not."""

    patch: Patch
    state: State = State.WAITING
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """A choice for every patch, in the order of application.

    Attributes:
        problems: what is wrong with patches of other distributions, which are therefore not in the plan.
    """

    pair: HostPair
    choices: tuple[Choice, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def chosen(self) -> tuple[Patch, ...]:
        return tuple(choice.patch for choice in self.choices if choice.state is State.WAITING)


class Registry:
    """Patches in order of application: by stage, within a stage as listed, and where ``requires``, ``after``
    or ``before`` say otherwise, as they say.

    The patches here have what others say of them by ``before`` in their ``after``. ``problems`` are sentences
    about patches that were left out.

    Raises:
        RegistryError: an id is given twice, or a relation names an unknown patch, one of a later stage, or
            goes in a circle.
    """

    def __init__(self, patches: Iterable[Patch], problems: Iterable[str] = ()) -> None:
        self.problems = tuple(problems)
        by_id: dict[str, Patch] = {}
        for patch in patches:
            if patch.id in by_id:
                raise RegistryError(f"{patch.id} is listed twice", patch.id)
            by_id[patch.id] = patch
        self.patches = _ordered(_with_before_as_after(by_id))
        self._by_id = {patch.id: patch for patch in self.patches}

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
            # What the host has itself nobody needs to wait for.
            requires = tuple(
                required for required in patch.requires if choices[required].state is not State.UNNEEDED
            )
            patch = patch.on(pair)
            if requires != patch.requires:
                patch = replace(patch, requires=requires)
            missing = [
                required for required in patch.requires if choices[required].state is not State.WAITING
            ]
            if not settings.enabled:
                state, reason = State.OFF, "ASCEND_SPECPATCH=0"
            elif not patch.is_for(pair):
                state, reason = State.NOT_FOR_THIS_HOST, f"found {pair}"
            elif unneeded := patch.unneeded_on(pair):
                state, reason = State.UNNEEDED, unneeded
            elif patch.id in disabled:
                state, reason = State.OFF, "ASCEND_SPECPATCH_DISABLE"
            elif not patch.default and patch.id not in enabled:
                state, reason = State.OFF, f"off by default; ASCEND_SPECPATCH_ENABLE={patch.id} turns it on"
            elif missing:
                why = choices[missing[0]]
                state, reason = State.OFF, f"needs {missing[0]}, which is {why.state} ({why.reason})"
            choices[patch.id] = Choice(patch, state, reason)
        return Plan(pair, tuple(choices.values()), self.problems)

    def refuse(self, pair: HostPair, reason: str) -> Plan:
        """A plan that refuses every patch for one ``reason``."""
        refused = (Choice(patch, State.REFUSED, reason) for patch in self.patches)
        return Plan(pair, tuple(refused), self.problems)

    def _matching(self, names: tuple[str, ...], variable: str) -> frozenset[str]:
        """The ids that ``names`` (ids, stages or globs) stand for."""
        matching: set[str] = set()
        for name in names:
            pattern = f"{name}.*" if name in STAGES else name
            found = {patch_id for patch_id in self._by_id if fnmatchcase(patch_id, pattern)}
            # A stage may be empty in some release: naming it is not a mistake.
            if not found and name not in STAGES:
                raise SettingsError(
                    f"{variable}: no patch is named {shown(name)}; {nearest(name, [*self._by_id, *STAGES])}",
                    variable,
                )
            matching |= found
        return frozenset(matching)


def _with_before_as_after(by_id: dict[str, Patch]) -> dict[str, Patch]:
    """The patches with all relations between them as ``requires`` or ``after``, each checked."""
    after = {patch_id: list(patch.after) for patch_id, patch in by_id.items()}
    for patch in by_id.values():
        relations = (("requires", patch.requires), ("after", patch.after), ("before", patch.before))
        for relation, others in relations:
            for other in others:
                if other not in by_id:
                    raise RegistryError(
                        f"{patch.id}: {relation} names {other}, which is not listed; "
                        f"{nearest(other, list(by_id))}",
                        patch.id,
                    )
                first, then = (patch, by_id[other]) if relation == "before" else (by_id[other], patch)
                if STAGES.index(first.stage) > STAGES.index(then.stage):
                    raise RegistryError(
                        f"{patch.id}: {relation} names {other}, but all of {then.stage} comes before "
                        f"{first.stage}",
                        patch.id,
                    )
        for other in patch.before:
            after[other].append(patch.id)
    return {
        patch_id: replace(patch, after=tuple(dict.fromkeys(after[patch_id])))
        for patch_id, patch in by_id.items()
    }


def _ordered(by_id: dict[str, Patch]) -> tuple[Patch, ...]:
    """By stage and as listed, each patch right behind those it waits for."""
    place = {
        patch_id: (STAGES.index(patch.stage), number)
        for number, (patch_id, patch) in enumerate(by_id.items())
    }
    order: dict[str, Patch] = {}
    for first in sorted(by_id, key=place.__getitem__):
        path = [first]  # each waits for the next
        while path:
            patch = by_id[path[-1]]
            missing = {*patch.requires, *patch.after} - order.keys()
            if not missing:
                order[patch.id] = patch
                path.pop()
                continue
            other = min(missing, key=place.__getitem__)
            if other in path:
                circle = path[path.index(other) :]
                raise RegistryError(
                    f"patches wait for each other: {' -> '.join((*circle, other))}",
                    *sorted(circle, key=place.__getitem__, reverse=True),
                )
            path.append(other)
    return tuple(order.values())


def load(*, others: bool = True) -> Registry:
    """The registry of this process: the ordered list and, with ``others``, what other distributions add.

    Raises:
        RegistryError: the ordered list itself is wrong. A wrong patch of another distribution is left out,
            with all others of that distribution, and is among the ``problems``.
    """
    from ascend_specpatch import providers
    from ascend_specpatch.patches import PATCHES  # the one place where the engine names the ordered list

    return providers.extend(PATCHES) if others else Registry(PATCHES)
