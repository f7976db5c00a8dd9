# SPDX-License-Identifier: Apache-2.0
"""Streams and events.

Work runs at once, in the order it is issued, whatever the stream. The one exception is a replay that waits
for an ExternalEvent, see graphs.py.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch

from .. import _emulator
from .._emulator import EventKind
from .device import DeviceLike, index_of

_ANY_STREAM = -1


def _wait_for(what: str, stream_id: int = _ANY_STREAM) -> None:
    if _emulator.capturing():
        raise RuntimeError("synchronize while capturing an NPU graph")
    if _emulator.replay_pending(stream_id):
        raise RuntimeError(
            "synchronize: a graph replay waits for an ExternalEvent nobody recorded (a hang on the device)"
        )
    _emulator.counters_add(EventKind.SYNCHRONIZE, what)


class Stream:
    _ids = itertools.count(1)  # 0 is the default stream

    def __init__(self, device: DeviceLike = None, priority: int = 0, **options: Any) -> None:
        self.stream_id = options.get("stream_id") if "stream_id" in options else next(self._ids)
        self.npu_stream = self.stream_id
        self.device_index = index_of(device)
        self.device = torch.device("npu", self.device_index)
        self.priority = priority

    def synchronize(self) -> None:
        _wait_for("stream", self.stream_id)

    def wait_stream(self, stream: Stream) -> None:
        """All work that was issued is done."""

    def wait_event(self, event: Event) -> None:
        """All events that were recorded have happened."""

    def query(self) -> bool:
        return True

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._selected = stream(self)
        return self._selected.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._selected.__exit__(*exception)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __repr__(self) -> str:
        return f"<torch_npu.npu.Stream {self.stream_id} of {self.device}>"


class Event:
    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self._time: float | None = None  # in seconds, of the last record

    def record(self, stream: Stream | None = None) -> None:
        self._time = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """An event that was recorded has happened."""

    def reset(self, stream: Stream | None = None) -> None:
        """Nothing waits for events of this kind."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _emulator.counters_add(EventKind.SYNCHRONIZE, "event")

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`."""
        if self._time is None or end._time is None:
            raise RuntimeError("elapsed_time: both events must be recorded first")
        return (end._time - self._time) * 1e3


_default = Stream(device=0, stream_id=0)
_current = _default


def current_stream(device: DeviceLike = None) -> Stream:
    return _current


def default_stream(device: DeviceLike = None) -> Stream:
    return _default


def set_stream(stream: Stream | None) -> None:
    global _current
    if stream is not None:
        _current = stream
        _emulator.set_stream(stream.stream_id)


class stream:  # torch's name
    """Context manager that selects a stream; None leaves the current one."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> Stream | None:
        self._previous = _current
        set_stream(self.stream)
        return self.stream

    def __exit__(self, *exception: Any) -> None:
        set_stream(self._previous)


StreamContext = stream


def synchronize(device: DeviceLike = None) -> None:
    _wait_for("device")


def _subscribe_report(stream: Stream) -> None:
    """Host functions run at once, see below."""


def _unsubscribe_report(stream: Stream) -> None:
    """Host functions run at once, see below."""


def _launch_host_func(stream: Stream, function: Callable, arguments: tuple) -> None:
    function(*arguments)
