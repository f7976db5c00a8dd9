# SPDX-License-Identifier: Apache-2.0
"""Whether every rank of an engine is patched alike.

The engine core asks its ranks with :func:`question`, a function that travels by value: a rank that has no
ascend-specpatch, or another release of it, answers as well. :func:`check` compares the answers.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ascend_specpatch import __version__, report, settings
from ascend_specpatch.registry import State

Facts: TypeAlias = Mapping[str, Any]
"""What a process says of itself: ``host``, ``pid`` and either ``lacks``, why there is nothing more, or what
:func:`here` gives. Plain values only, so that another release can read them."""

_ON: Final = "on"
_REFUSED: Final = "refused"
_NOTHING_TO_DO: Final = {"unneeded", "not for this host"}
_MISSED: Final = "not applied, although its target is loaded"


class UnequalRanks(RuntimeError):
    """Ranks of one engine that are patched differently; the message names them, how they differ and what to
    do."""


def here() -> dict[str, Any]:
    """The facts of this process, once its model is loaded.

    A patch that waits for a target which this process does not load is ``on``, as an applied one is.
    """
    states, reasons = {}, {}
    for row in report.current().rows():
        state = str(row.state).replace("_", " ")
        if row.state in (State.APPLIED, State.WAITING):
            state = _MISSED if row.state is State.WAITING and row.target in sys.modules else _ON
        states[row.id] = state
        if row.reason:
            reasons[row.id] = row.reason
    return {
        "version": __version__,
        "hosts": str(report.current().pair),
        "settings": {name: os.environ[name] for name in settings.VARIABLES if name in os.environ},
        "states": states,
        "reasons": reasons,
    }


def question() -> Callable[[Any], dict[str, Any]]:
    """A function that gives the facts of the process where it is called; its argument, the worker, is not
    used.

    It names nothing of this module, so that cloudpickle sends it whole.
    """

    def describe(worker: Any) -> dict[str, Any]:
        import os
        import socket

        facts: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid()}
        try:
            import ascend_specpatch

            facts["version"] = ascend_specpatch.__version__
            from ascend_specpatch import ranks

            facts.update(ranks.here())
        except ImportError as error:
            release = facts.get("version")
            facts["lacks"] = (
                f"ascend-specpatch is {release}, which cannot be asked"
                if release
                else f"no ascend-specpatch is installed ({error})"
            )
        except Exception as error:  # whatever it is, the engine core has to hear of it
            facts["lacks"] = f"it cannot be told how it is patched: {type(error).__name__}: {error}"
        return facts

    return describe


def check(ranks: Sequence[Facts], core: Facts) -> None:
    """Compare the ranks with each other and with what the engine core has chosen.

    Of the engine core only what it chose is compared: it loads no worker, so it does not know what would have
    come of a patch there. One that every rank refuses alike is no difference.

    Args:
        ranks: one answer a rank, in the order of the ranks.
        core: the engine core's.

    Raises:
        UnequalRanks: they are not patched alike.
    """
    against, found = "the engine core", [_differences(facts, core, chosen_only=True) for facts in ranks]
    if not any(found):
        usual = _most_common(ranks)
        against = f"rank {usual}"
        found = [_differences(facts, ranks[usual], chosen_only=False) for facts in ranks]
    if any(found):
        raise UnequalRanks(_message(ranks, found, against, core))


def _differences(facts: Facts, reference: Facts, *, chosen_only: bool) -> tuple[str, ...]:
    """In what a rank is not as ``reference``, in words."""
    if "lacks" in facts:
        return (facts["lacks"],)
    if facts["version"] != reference["version"]:
        return (f"ascend-specpatch is {facts['version']}, not {reference['version']}",)
    if not facts["states"]:
        why = facts["settings"].get("ASCEND_SPECPATCH")
        return (f"not patched at all{f' (ASCEND_SPECPATCH={why})' if why else ''}",)
    states, expected_states = facts["states"], reference["states"]
    if chosen_only:
        states, expected_states = map(_as_chosen, (states, expected_states))
    found = []
    if facts["hosts"] != reference["hosts"]:
        found.append(f"the hosts are {facts['hosts']}, not {reference['hosts']}")
    alike: dict[tuple[str, str, str], list[str]] = {}
    concerned = 0
    for patch in dict.fromkeys((*expected_states, *states)):
        state, expected = states.get(patch, "unknown"), expected_states.get(patch, "unknown")
        if {state, expected} & _NOTHING_TO_DO:
            continue  # as good as off
        concerned += 1
        if state != expected:
            alike.setdefault((state, facts["reasons"].get(patch, ""), expected), []).append(patch)
    for (state, reason, expected), patches in alike.items():
        which = "every patch is" if len(patches) == concerned else _listed(patches)
        found.append(f"{which} {state}{f' ({reason})' if reason else ''}, not {expected}")
    kernels = "ASCEND_SPECPATCH_KERNELS"
    choice, wanted = (side["settings"].get(kernels) or "unset" for side in (facts, reference))
    if choice != wanted:
        found.append(f"{kernels} is {choice}, not {wanted}")
    return tuple(found)


def _listed(patches: Sequence[str], most: int = 4) -> str:
    if len(patches) == 1:
        return f"{patches[0]} is"
    if len(patches) > most:
        return f"{', '.join(patches[:most])} and {len(patches) - most} more are"
    return f"{', '.join(patches[:-1])} and {patches[-1]} are"


def _as_chosen(states: Mapping[str, str]) -> dict[str, str]:
    return {patch: _ON if state in (_REFUSED, _MISSED) else state for patch, state in states.items()}


def _most_common(ranks: Sequence[Facts]) -> int:
    """The first rank of the largest group of equal ones."""
    kinds = [repr((sorted(facts["states"].items()), facts["hosts"])) for facts in ranks]
    return kinds.index(Counter(kinds).most_common(1)[0][0])


def _message(ranks: Sequence[Facts], found: Sequence[tuple[str, ...]], against: str, core: Facts) -> str:
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for rank, (facts, differences) in enumerate(zip(ranks, found, strict=True)):
        if differences:
            groups.setdefault((facts["host"], differences), []).append(rank)
    lines = [
        f"  {_named(numbers, ranks)} on {host}: {'; '.join(differences)}"
        for (host, differences), numbers in groups.items()
    ]
    variables = " ".join(f"{name}={value}" for name, value in sorted(core["settings"].items()))
    return (
        f"the ranks of this engine are not patched alike, compared with {against} on {core['host']}:\n"
        + "\n".join(lines)
        + "\nThey would not draft alike. Install the same ascend-specpatch, vllm and vllm-ascend for every "
        "rank, and give each the ASCEND_SPECPATCH variables that the engine core has "
        f"({variables or 'none'}); with Ray, where `ray start` runs on every node. "
        "ASCEND_SPECPATCH_DISABLE=worker.equal_ranks runs without this check."
    )


def _named(numbers: Sequence[int], ranks: Sequence[Facts]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]} (pid {ranks[numbers[0]]['pid']})"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
