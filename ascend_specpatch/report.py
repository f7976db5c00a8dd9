# SPDX-License-Identifier: Apache-2.0
"""What became of every patch in this process, for people and for programs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ascend_specpatch import __version__
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.registry import Plan, State


@dataclass(frozen=True)
class Row:
    """One patch and its state.

    Attributes:
        reason: where it is not applied, why.
        provider: the distribution that brings it; empty for ours.
        notes: what other patchers did to the same attributes.
    """

    id: str
    target: str
    requires: tuple[str, ...]
    summary: str
    state: State
    reason: str
    provider: str = ""
    notes: tuple[str, ...] = ()


class Report:
    """The states of a plan's patches, kept up to date by whoever carries the plan out.

    Attributes:
        pair: the installed hosts.
        route: what activated the patches, e.g. ``import of vllm``; empty where nothing did.
        problems: patches of other distributions that were left out, and why.
        applied_order: ids in the order in which they came to be applied in this process.
    """

    def __init__(self, plan: Plan | None = None, route: str = "") -> None:
        self.pair = plan.pair if plan else HostPair(None, None)
        self.route = route
        self.problems = plan.problems if plan else ()
        self.applied_order: list[str] = []
        self._rows = {
            choice.patch.id: Row(
                choice.patch.id,
                choice.patch.target,
                choice.patch.requires,
                choice.patch.summary,
                choice.state,
                choice.reason,
                choice.patch.provider,
            )
            for choice in (plan.choices if plan else ())
        }

    def rows(self) -> tuple[Row, ...]:
        """One row a patch, in the registry's order."""
        return tuple(self._rows.values())

    def row(self, patch_id: str) -> Row:
        return self._rows[patch_id]

    def mark(self, patch_id: str, state: State, reason: str = "") -> None:
        """Record what became of a patch."""
        self._rows[patch_id] = replace(self._rows[patch_id], state=state, reason=reason)
        if patch_id in self.applied_order:
            self.applied_order.remove(patch_id)
        if state is State.APPLIED:
            self.applied_order.append(patch_id)

    def note(self, patch_id: str, notes: tuple[str, ...]) -> None:
        """Record what others did to the attributes that a patch changes."""
        self._rows[patch_id] = replace(self._rows[patch_id], notes=notes)

    def is_applied(self, patch_id: str) -> bool:
        return patch_id in self._rows and self._rows[patch_id].state is State.APPLIED

    def ids(self, *states: State) -> list[str]:
        """The ids in any of ``states``, in the registry's order."""
        return [row.id for row in self._rows.values() if row.state in states]

    def states(self) -> tuple[State, ...]:
        """The state of every patch, in the registry's order."""
        return tuple(row.state for row in self._rows.values())

    def digest(self) -> str:
        """16 hex digits that two processes share exactly when they have the same version, hosts, patches and
        states."""
        facts = [__version__, str(self.pair), *(f"{row.id} {row.state}" for row in self.rows())]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]

    def line(self) -> str:
        """The one line a process logs."""
        applied, waiting = self.ids(State.APPLIED), self.ids(State.WAITING)
        count = len(applied) + len(waiting)
        patches = f"{count} patch{'' if count == 1 else 'es'}"
        if not waiting:
            parts = [f"{patches} applied"]
        else:
            parts = [
                f"{patches} on ({len(applied)} applied, {len(waiting)} to be applied as their modules load)"
            ]
        for state in (State.UNNEEDED, State.OFF, State.NOT_FOR_THIS_HOST, State.REFUSED):
            ids = self.ids(state)
            if ids:
                parts.append(f"{len(ids)} {str(state).replace('_', ' ')} ({_shortened(ids)})")
        noted = [row.id for row in self.rows() if row.notes]
        if noted:
            parts.append(f"others changed the same in {len(noted)} ({_shortened(noted)})")
        if self.problems:
            parts.append(f"{len(self.problems)} of other distributions left out")
        return f"ascend-specpatch {__version__}: {', '.join(parts)} on {self.pair}"

    def table(self) -> str:
        """The rows as aligned text."""
        return text_table(
            ("PATCH", "TARGET", "STATE", "REASON"),
            [(row.id, row.target, str(row.state), row.reason) for row in self.rows()],
        )

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "version": __version__,
            "hosts": {"vllm": self.pair.vllm, "vllm_ascend": self.pair.vllm_ascend},
            "route": self.route,
            "digest": self.digest(),
            "applied_order": list(self.applied_order),
            "problems": list(self.problems),
            "patches": [asdict(row) for row in self.rows()],
        }

    def json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)


_current = Report()


def current() -> Report:
    """The report of this process; it has no rows where nothing was activated."""
    return _current


def set_current(report: Report) -> None:
    """Make ``report`` the one of this process."""
    global _current
    _current = report


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns, two spaces apart, without trailing blanks, and each row in one line."""
    lines = [list(map(plain, line)) for line in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def plain(text: str, keep: str = "") -> str:
    """``text`` in one line, with what would steer a terminal escaped; the characters of ``keep`` stay."""
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text
    )


def _shortened(ids: list[str], most: int = 3) -> str:
    return ", ".join(ids[:most]) + (f" and {len(ids) - most} more" if len(ids) > most else "")
