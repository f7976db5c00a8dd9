# SPDX-License-Identifier: Apache-2.0
"""ACL graphs: capture records the operators, replay runs them again on the same addresses.

A replay stops where the graph waits for an ExternalEvent that is not set; recording the event lets it go on
(vllm-ascend updates the attention tasks after it launched the replay). What is issued on that stream
meanwhile, or a synchronize, raises: the device would hang, or need deferred execution.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .. import _emulator, switches
from .streams import Stream, stream, synchronize

# Of this process. "blocked": replays that had to wait; "dangling": freed tensors that replays met.
stats = {"captures": 0, "replays": 0, "updates": 0, "blocked": 0, "dangling": 0, "nodes": 0}

_pool_numbers = itertools.count(1)
_captured: NPUGraph | None = None


def graph_pool_handle() -> tuple[int, int]:
    return (0, next(_pool_numbers))


class NPUGraph:
    def __init__(self) -> None:
        self._graph = _emulator.Graph()
        self._pool: tuple[int, int] | None = None
        self._ready = False

    def capture_begin(
        self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global", **options: Any
    ) -> None:
        global _captured
        self._pool = pool or graph_pool_handle()
        _emulator.capture_begin(self._graph, self._pool[1])
        _captured = self

    def capture_end(self) -> None:
        global _captured
        _emulator.capture_end(switches.GRAPH_POISON)
        _captured = None
        self._ready = True
        stats["captures"] += 1
        stats["nodes"] += len(self._graph.names())

    def capture_abort(self) -> None:
        """Leaves the capture without a graph, after an error."""
        global _captured
        _emulator.capture_abort()
        _captured = None

    def replay(self) -> None:
        if not self._ready:
            raise RuntimeError("replay of a graph that was not captured")
        self._check_dangling()
        stats["replays"] += 1
        _emulator.replay(self._graph)
        stats["blocked"] += _emulator.replay_pending(-1)

    def _check_dangling(self) -> None:
        if switches.GRAPH_DANGLING == "off":
            return
        dangling = self._graph.dangling()
        stats["dangling"] += len(dangling)
        if dangling and switches.GRAPH_DANGLING == "raise":
            raise RuntimeError(
                f"replay: the graph refers to {len(dangling)} freed tensors (use after free on the device): "
                f"{dangling}"
            )

    def pool(self) -> tuple[int, int] | None:
        return self._pool

    def reset(self) -> None:
        self._graph, self._ready = _emulator.Graph(), False

    def names(self) -> list[str]:
        """Names of the recorded operators, in order; WAIT and RESET stand for those of an ExternalEvent."""
        return self._graph.names()


class graph:  # torch's name
    """Context manager that captures what is issued in it."""

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: tuple[int, int] | None = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
        **options: Any,
    ) -> None:
        self._graph, self._pool = npu_graph, pool
        self._stream = stream or Stream()

    def __enter__(self) -> None:
        synchronize()
        gc.collect()
        self._selected = stream(self._stream)
        self._selected.__enter__()
        self._graph.capture_begin(pool=self._pool)

    def __exit__(self, error_type: type[BaseException] | None, *details: Any) -> None:
        try:
            if error_type is None:
                self._graph.capture_end()
            else:
                self._graph.capture_abort()
        finally:
            self._selected.__exit__()


class ExternalEvent:
    """Set by record(), awaited and reset by the graph it was captured in."""

    def __init__(self, **options: Any) -> None:
        self._event = _emulator.ExternalEvent()

    def wait(self, stream: Stream | None = None) -> None:
        if _emulator.recording():
            _emulator.add_wait(self._event)
        elif not self._event.set:
            raise RuntimeError("ExternalEvent.wait: nobody recorded the event (a hang on the device)")

    def reset(self, stream: Stream | None = None) -> None:
        if _emulator.recording():
            _emulator.add_reset(self._event)
        else:
            self._event.set = False

    def record(self, stream: Stream | None = None) -> None:
        if _emulator.recording():
            raise RuntimeError("ExternalEvent.record: the NPU emulator does not capture it")
        self._event.set = True
        _emulator.resume_replays()


def is_current_stream_capturing() -> bool:
    return _emulator.capturing()


# ---------------------------------------------------------------- task groups
class TaskGroupHandle(NamedTuple):
    graph: Any  # _emulator.Graph
    group: int


_handle: TaskGroupHandle | None = None  # of the update that is open


def graph_task_group_begin(stream: Stream) -> None:
    _emulator.task_group_begin()


def graph_task_group_end(stream: Stream) -> TaskGroupHandle:
    group = _emulator.task_group_end()
    assert _captured is not None  # or task_group_end had raised
    return TaskGroupHandle(_captured._graph, group)


def graph_task_update_begin(stream: Stream, handle: TaskGroupHandle) -> None:
    global _handle
    _emulator.update_begin()
    _handle = handle


def graph_task_update_end(stream: Stream) -> None:
    if _handle is None:
        raise RuntimeError("graph_task_update_end without graph_task_update_begin")
    _emulator.update_end(*_handle)
    stats["updates"] += 1


# ---------------------------------------------------------------- operators written in Python
def _snapshot(value: Any) -> Any:
    """An argument as the graph keeps it: npu tensors by address, what lies on the host by value."""
    if isinstance(value, torch.Tensor):
        return _emulator.recorded(value) if value.device.type == "npu" else value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(_snapshot(item) for item in value)
    return value


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def record_operator(name: str, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Adds a call of `function` to the graph (or the task update) and gives its result, as capture knows it.

    In a capture the call runs once, to learn the shapes; the caller is inside the operator already.
    """
    kept_args, kept_kwargs = _snapshot(args), {key: _snapshot(value) for key, value in kwargs.items()}
    if _emulator.updating():
        if "out" not in kwargs:
            raise RuntimeError(f"{name}: in a task group update the operator must write to out=")
        _emulator.add_call(name, lambda: function(*kept_args, **kept_kwargs))
        return kwargs["out"]

    result = function(*args, **kwargs)
    written = {tensor.data_ptr() for tensor in _tensors([*args, *kwargs.values()])}
    # Results that are arguments are written in place; the others have an address that every replay writes to.
    addresses = [None if t.data_ptr() in written else _emulator.recorded(t) for t in _tensors(result)]

    def replay() -> None:
        for address, fresh in zip(addresses, _tensors(function(*kept_args, **kept_kwargs)), strict=True):
            if address is not None:
                _emulator.as_cpu(address).copy_(_emulator.as_cpu(fresh))

    _emulator.add_call(name, replay)
    return result
