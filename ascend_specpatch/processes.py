# SPDX-License-Identifier: Apache-2.0
"""The small JSON file in which each process says what became of its patches, and the reader of them all.

The files lie in a folder of mode 0700, ``ascend-specpatch-UID`` in ``$TMPDIR`` or else in ``/tmp``. The
reader looks in both; a server with another TMPDIR than the shell's is read by giving the command that one.
``$XDG_RUNTIME_DIR`` is not used: a service has none, and a user's is gone at log-out.

A file is named after its process's pid and start time, which tells a reused pid apart. It is removed when the
process exits, also where multiprocessing ends its children without Python's own exit. What was killed, or
leaves through ``os._exit`` otherwise, leaves its file behind: it is ignored, and removed by the next process
that starts to write. A child that was forked by multiprocessing writes a file of its own at once. One of a
plain ``os.fork`` has none, and is not listed, until something calls :func:`write` in it: most of them go on
to run another program.

Nothing here raises for what it finds on disk, no link is followed, and JSON is all that is read. What empties
/tmp of old files takes these too: the process is then no longer listed.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from ascend_specpatch import private_folder
from ascend_specpatch.private_folder import Refusal

MAX_BYTES = 1024 * 1024  # of a file, for who writes it and who reads it
_LARGE = 64 * 1024  # bytes from which the strings of a report are shortened
_MAX_TEXT = 500  # of one string of such a report

_NAME = re.compile(r"([1-9][0-9]*)-([0-9]+)\.json")
_UNFINISHED = re.compile(r"\.[1-9][0-9]*-[0-9]+\.[0-9]+\.tmp")
_UNFINISHED_S = 60  # a file is written within a millisecond; what is unfinished for so long is abandoned

logger = logging.getLogger("vllm.ascend_specpatch")


@dataclass(frozen=True)
class ProcessReport:
    """One process and its report.

    Attributes:
        pid: its process id.
        start: when it started, in clock ticks since the machine did.
        pid_namespace: e.g. ``pid:[4026531836]``; the pid means that process in this namespace only.
        name: multiprocessing's name of it, e.g. ``EngineCore`` or ``VllmWorker-0``.
        program: the last part of its ``sys.argv[0]``.
        parent: its parent's process id when it wrote.
        python: its Python version.
        report: :meth:`ascend_specpatch.report.Report.as_dict` of that moment.
        written_at: that moment, in seconds since 1970.
    """

    pid: int
    start: int
    pid_namespace: str
    name: str
    program: str
    parent: int
    python: str
    report: dict[str, Any]
    written_at: float

    def title(self) -> str:
        """What the process calls itself now, e.g. ``VLLM::Worker_TP0``, else its name."""
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/cmdline", "rb") as file:
            first = file.read(256).split(b"\0")[0].decode(errors="replace").split(" ")[0]
            if first.startswith(("VLLM::", "ray::")):
                return first
        return self.name


def write(report: dict[str, Any]) -> None:
    """Write this process's file, or replace it. Never raises: see :func:`problem`.

    Args:
        report: :meth:`ascend_specpatch.report.Report.as_dict`.
    """
    global _last, _problem
    with _lock:
        _last = report
        try:
            _write(report)
            _problem = None
        # A report is never worth a failure of the process that it is about.
        except Exception as error:
            _problem = str(error)
            logger.debug("ascend-specpatch: no runtime file is written: %s", _problem)


def problem() -> str | None:
    """Why the last :func:`write` of this process wrote nothing; None where it did."""
    return _problem


def forget() -> None:
    """Remove this process's own file, if there is one. Never raises."""
    global _own, _last
    with _lock:
        own, _own, _last = _own, None, None
    if own is not None:
        private_folder.remove(*own)


def read_all() -> tuple[list[ProcessReport], list[str]]:
    """The reports of this user's living processes, by pid, and what could not be read, as sentences."""
    found: dict[tuple[int, int], ProcessReport] = {}
    problems: list[str] = []
    for path in _candidates():
        try:
            with private_folder.opened(path) as folder:
                for report in _read_folder(folder, path, problems):
                    found[report.pid, report.start] = report
        except FileNotFoundError:
            continue
        except Refusal as refusal:
            problems.append(f"{refusal}.")
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror}.")
    return [found[key] for key in sorted(found)], problems


# ---- this process ------------------------------------------------------------------------------------------


_lock = threading.Lock()
_own: tuple[str, str] | None = None  # folder and name of the file of this very process, never of its parent
_last: dict[str, Any] | None = None
_problem: str | None = None
_numbers = itertools.count()


def _write(report: dict[str, Any]) -> None:
    global _own
    start = _start_of("self")
    if start is None:
        raise Refusal("/proc is not mounted, so a process cannot be told from a later one with its pid")
    data = _encoded(report, start)
    name = f"{os.getpid()}-{start}.json"
    unfinished = f".{os.getpid()}-{start}.{next(_numbers)}.tmp"
    refusal: Exception | None = None
    for path in _candidates():
        try:
            private_folder.make(path)
            with private_folder.opened(path) as folder:
                if _own != (path, name):
                    _prune(folder)
                private_folder.replace(folder, name, unfinished, data)
        except (OSError, Refusal) as error:
            refusal = refusal or error
            continue
        if _own is not None and _own != (path, name):  # TMPDIR has changed
            private_folder.remove(*_own)
        _own = path, name
        _follow_the_process()
        return
    raise refusal or Refusal("there is no folder for temporary files")


def _encoded(report: dict[str, Any], start: int) -> bytes:
    content = {
        "pid": os.getpid(),
        "start": start,
        "pid_namespace": _pid_namespace(),
        "name": _process_name(),
        "program": os.path.basename(sys.argv[0])[:_MAX_TEXT] if getattr(sys, "argv", None) else "",
        "parent": os.getppid(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "report": report,
        "written_at": time.time(),
    }
    data = json.dumps(content, default=str).encode()
    if len(data) > _LARGE:
        data = json.dumps(_shortened(content), default=str).encode()
    if len(data) > MAX_BYTES:
        raise Refusal(f"its report has {len(data)} bytes, and {MAX_BYTES} is what is read of one")
    return data


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT] + "..."
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    return [_shortened(item) for item in value] if isinstance(value, (list, tuple)) else value


def _process_name() -> str:
    # multiprocessing gives its children names; a process that has not imported it is none of them.
    multiprocessing = sys.modules.get("multiprocessing.process")
    return str(multiprocessing.current_process().name) if multiprocessing else "MainProcess"


_exit_pid: int | None = None
_forks_followed = False


def _follow_the_process() -> None:
    """Have the file removed when this process exits, once a process.

    A child that multiprocessing forked leaves through ``os._exit``: it runs the finalizers of
    multiprocessing that it registered itself, and no function of atexit.
    """
    global _exit_pid
    _follow_forks()
    if _exit_pid != os.getpid():
        if _exit_pid is None:  # a child inherits this
            atexit.register(forget)
        _exit_pid = os.getpid()
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, forget, exitpriority=0)


def _follow_forks() -> None:
    """Have multiprocessing say, once, when one of its children starts: it has its own name then."""
    global _forks_followed
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _forks_followed:
        util.register_after_fork(_write_again, _write_again)
        _forks_followed = True


def _in_forked_child() -> None:
    global _lock, _own
    _lock = threading.Lock()  # a thread that does not exist here may hold the old one
    _own = None
    _follow_forks()


def _write_again(_: object) -> None:
    global _exit_pid
    _exit_pid = 0  # multiprocessing has just cleared the finalizers
    if _last is not None:
        write(_last)


os.register_at_fork(after_in_child=_in_forked_child)


# ---- folders and files -------------------------------------------------------------------------------------


def _candidates() -> list[str]:
    """Where the folder may be, the first choice first."""
    places = [os.environ.get("TMPDIR", ""), "/tmp"]
    name = f"ascend-specpatch-{os.getuid()}"
    return list(dict.fromkeys(os.path.join(place, name) for place in places if os.path.isabs(place)))


def _prune(folder: int) -> None:
    """Remove the files of this namespace's dead processes."""
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if match is not None and not _is_alive(int(match[1]), int(match[2])):
            with contextlib.suppress(OSError, Refusal):
                if _load(folder, name).pid_namespace == _pid_namespace():
                    os.unlink(name, dir_fd=folder)
        elif _UNFINISHED.fullmatch(name):
            with contextlib.suppress(OSError):
                if time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > _UNFINISHED_S:
                    os.unlink(name, dir_fd=folder)


def _read_folder(folder: int, path: str, problems: list[str]) -> Iterator[ProcessReport]:
    elsewhere = 0
    for name in sorted(os.listdir(folder)):
        if _UNFINISHED.fullmatch(name):
            continue
        try:
            report = _load(folder, name)
        except FileNotFoundError:
            continue  # its process has exited meanwhile
        except Refusal as refusal:
            problems.append(f"{os.path.join(path, name)} {refusal}; remove it.")
            continue
        except OSError as error:
            problems.append(f"{os.path.join(path, name)} cannot be read: {error.strerror}.")
            continue
        if report.pid_namespace != _pid_namespace():
            elsewhere += 1
        elif _is_alive(report.pid, report.start):
            yield report
    if elsewhere:
        problems.append(
            f"{path} holds {elsewhere} file{'s' if elsewhere > 1 else ''} from another container or pid "
            "namespace: run this command there."
        )


def _load(folder: int, name: str) -> ProcessReport:
    """Read one file.

    Raises:
        OSError: it cannot be read, or is a link.
        Refusal: it is not what :func:`write` writes; the text goes on after the file's name.
    """
    if not _NAME.fullmatch(name):
        raise Refusal("is no file of ours")
    data = private_folder.read(folder, name, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise Refusal(f"has more than {MAX_BYTES} bytes")
    try:
        content = json.loads(data)
        json.dumps(content, allow_nan=False)  # NaN and infinity are none
    except (ValueError, RecursionError) as error:
        raise Refusal(f"is not JSON ({type(error).__name__})") from error
    return _validated(content, name)


_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("pid", "start", "parent"), int),
    **dict.fromkeys(("pid_namespace", "name", "program", "python"), str),
    "report": dict,
    "written_at": (int, float),
}
_ROW_TYPES: dict[str, type] = {"id": str, "state": str, "reason": str, "notes": list}
_LATEST = 1e11  # seconds since 1970, some 3,000 years


def _validated(content: Any, name: str) -> ProcessReport:
    names = [field.name for field in fields(ProcessReport)]
    if not isinstance(content, dict) or not all(
        isinstance(content.get(field), _TYPES[field]) for field in names
    ):
        raise Refusal("is not a report of a process")
    if not 0 <= content["written_at"] <= _LATEST or not _is_readable(content["report"]):
        raise Refusal("is not as this release writes it, which its process may not have")
    report = ProcessReport(**{field: content[field] for field in names})
    if name != f"{report.pid}-{report.start}.json":
        raise Refusal(f"is about process {report.pid}")
    return report


def _is_readable(report: dict[str, Any]) -> bool:
    """Whether what the commands read of a report is there; without rows it is one of no patches."""
    rows = report.get("patches", [])
    return isinstance(rows, list) and all(
        isinstance(row, dict)
        and all(isinstance(row.get(key), kind) for key, kind in _ROW_TYPES.items())
        and all(isinstance(note, str) for note in row["notes"])
        for row in rows
    )


# ---- processes ---------------------------------------------------------------------------------------------


def _is_alive(pid: int, start: int) -> bool:
    return _start_of(str(pid)) == start


def _start_of(pid: str) -> int | None:
    """When a process started, in clock ticks since the machine did; None where there is none, or only the
    rest of one that nobody has waited for."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The second field is the name of the program in parentheses, and may hold some itself.
            state, *others = file.read().rpartition(b")")[2].split()
        return None if state in (b"Z", b"X") else int(others[18])
    except (OSError, ValueError, IndexError):
        return None


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
