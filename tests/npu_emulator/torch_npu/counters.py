# SPDX-License-Identifier: Apache-2.0
"""Exact counts of what the device was asked to do.

    with torch_npu.counters.record() as counts:
        drafter.propose(...)
    assert counts.device_to_host.count == 0

Nothing is kept while nobody records. Recordings may overlap and nest. README.md says what counts as what.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from . import _emulator
from ._emulator import EventKind


class Event(NamedTuple):
    kind: EventKind
    name: str  # of the operator: aten::add, npu::npu_rms_norm, triton::kernel_name, hccl::allreduce
    bytes: int  # that a copy moves, else 0
    non_blocking: bool
    thread: int  # threading.get_ident() of the thread that asked
    stack: traceback.StackSummary | None  # the caller last; of copies and synchronizations, if asked for


class Total(NamedTuple):
    count: int
    bytes: int


@dataclass(frozen=True)
class Copies:
    """Copies in one direction between host and device; the host does not wait for `non_blocking` ones."""

    blocking: Total
    non_blocking: Total

    @property
    def count(self) -> int:
        return self.blocking.count + self.non_blocking.count

    @property
    def bytes(self) -> int:
        return self.blocking.bytes + self.non_blocking.bytes


class Counts:
    """What happened since a recording began, up to now or to its end."""

    def __init__(self, thread: int | None) -> None:
        self._thread = thread
        self._first = _emulator.counters_start()
        self._ended: list[Event] | None = None

    @property
    def events(self) -> list[Event]:
        """Everything, in order."""
        if self._ended is not None:
            return self._ended
        numbered = enumerate(_emulator.counters_events_since(self._first), self._first)
        events = [Event(*event, _stacks.get(number)) for number, event in numbered]
        return [event for event in events if self._thread in (None, event.thread)]

    @property
    def names(self) -> list[str]:
        """Names of the launched operators, in order."""
        return self._names(EventKind.LAUNCH)

    @property
    def launches(self) -> int:
        return len(self.names)

    @property
    def by_name(self) -> collections.Counter[str]:
        """Launches of each operator."""
        return collections.Counter(self.names)

    @property
    def device_to_host(self) -> Copies:
        return self._copies(EventKind.DEVICE_TO_HOST)

    @property
    def host_to_device(self) -> Copies:
        return self._copies(EventKind.HOST_TO_DEVICE)

    @property
    def synchronizations(self) -> int:
        """Explicit waits for the device, a stream or an event (a blocking copy waits too: see there)."""
        return self._count(EventKind.SYNCHRONIZE)

    @property
    def graph_replays(self) -> int:
        return self._count(EventKind.GRAPH_REPLAY)

    @property
    def graph_updates(self) -> int:
        return self._count(EventKind.GRAPH_UPDATE)

    @property
    def graph_node_names(self) -> list[str]:
        """Names of the operators that replayed graphs ran, in order; they are no launches of the host's."""
        return self._names(EventKind.GRAPH_NODE)

    @property
    def graph_nodes(self) -> int:
        return len(self.graph_node_names)

    def where(self, kind: EventKind = EventKind.DEVICE_TO_HOST) -> list[str]:
        """`file:line in function: operator` of each event of that kind; needs ``record(stacks=True)``."""
        return [_place(event) for event in self.events if event.kind == kind]

    def _names(self, kind: EventKind) -> list[str]:
        return [event.name for event in self.events if event.kind == kind]

    def _count(self, kind: EventKind) -> int:
        return len(self._names(kind))

    def _copies(self, kind: EventKind) -> Copies:
        copies = [event for event in self.events if event.kind == kind]

        def total(non_blocking: bool) -> Total:
            sizes = [event.bytes for event in copies if event.non_blocking == non_blocking]
            return Total(len(sizes), sum(sizes))

        return Copies(blocking=total(False), non_blocking=total(True))

    def _end(self) -> None:
        self._ended = self.events
        _emulator.counters_stop()

    def __repr__(self) -> str:
        return (
            f"<Counts: {self.launches} launches, device to host {self.device_to_host}, host to device "
            f"{self.host_to_device}, {self.synchronizations} synchronizations, "
            f"{self.graph_replays} graph replays of {self.graph_nodes} nodes, {self.graph_updates} updates>"
        )


# Stacks of the events so far, by number, while a recording asks for them.
_stacks: dict[int, traceback.StackSummary] = {}
_stack_recorders = 0
_lock = threading.Lock()


def _keep_stack(number: int) -> None:
    # Line texts are looked up only when somebody prints the stack.
    frames = list(traceback.walk_stack(sys._getframe(1)))
    _stacks[number] = traceback.StackSummary.extract(reversed(frames), lookup_lines=False)


def _place(event: Event) -> str:
    if not event.stack:
        return f"(no stack kept): {event.name}"
    frame = event.stack[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}: {event.name}"


@contextlib.contextmanager
def record(*, stacks: bool = False, this_thread: bool = False) -> Iterator[Counts]:
    """Counts what this process asks of the device.

    Args:
        stacks: keep the Python stack of every copy and synchronisation (`Event.stack`, `Counts.where`).
        this_thread: leave out what other threads ask for, vLLM's asynchronous output copies for example.
    """
    global _stack_recorders
    counts = Counts(threading.get_ident() if this_thread else None)
    with _lock:
        _stack_recorders += stacks
        if stacks and _stack_recorders == 1:
            _emulator.counters_set_observer(_keep_stack)
    try:
        yield counts
    finally:
        counts._end()
        with _lock:
            _stack_recorders -= stacks
            if stacks and _stack_recorders == 0:
                _emulator.counters_set_observer(None)
                _stacks.clear()
