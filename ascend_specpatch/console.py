# SPDX-License-Identifier: Apache-2.0
"""What the commands share: stdout for the report alone, sentences on stderr, and the list of patches."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from ascend_specpatch import registry
from ascend_specpatch.providers import described
from ascend_specpatch.registry import Registry, RegistryError
from ascend_specpatch.report import plain


class OutputError(Exception):
    """The report cannot be written; the cause is the OSError."""


_report: io.StringIO | None = None  # what was said so far, while stdout is reserved
_stdout: int | None = None  # a copy of descriptor 1 as it was before it went to stderr, once it has


def say(text: str = "") -> None:
    """Add lines to the report; where stdout is not reserved, print them. What would steer a terminal is
    escaped."""
    print(plain(text, keep="\n\t"), file=_report or sys.stdout)


def say_json(value: Any) -> None:
    """The report as JSON."""
    print(json.dumps(value, indent=2), file=_report or sys.stdout)


def complain(text: str) -> None:
    """Say on stderr, in one line, why a command ends."""
    try:
        print(f"ascend-specpatch: {plain(text)}", file=sys.stderr)
    except OSError:
        _silence(sys.stderr)


@contextlib.contextmanager
def reserved() -> Iterator[io.StringIO]:
    """Keep stdout for the report, which is given, and write it at the end.

    What anything else prints goes to stderr: the patches of other distributions, vLLM's log, native code,
    and functions that run at exit. So descriptor 1, where that is stdout, stays at stderr afterwards.

    Raises:
        OutputError: the report cannot be written.
    """
    global _report
    _open_missing_streams()
    _move_stdout()
    stdout = sys.stdout
    _report = io.StringIO()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield _report
    finally:
        text, _report = _report.getvalue(), None
        encoding = getattr(stdout, "encoding", None) or "utf-8"
        # A reason may quote what this terminal cannot show.
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        try:
            if _stdout is None or not _is_descriptor_1(stdout):
                stdout.write(text)
                stdout.flush()
            else:
                with open(_stdout, "w", encoding=encoding, closefd=False) as stream:
                    stream.write(text)
        except OSError as error:
            _silence(stdout)
            raise OutputError(f"stdout cannot be written: {error.strerror}") from error


def load_registry() -> Registry:
    """The list of patches.

    Raises:
        RegistryError: it is wrong, or what loading it raised, in words.
    """
    try:
        return registry.load()
    except RegistryError:
        raise
    except (Exception, SystemExit) as error:  # foreign code is loaded there
        raise RegistryError(
            f"the patches cannot be listed: {described(error)}. Uninstall what this comes from, or "
            "reinstall ascend-specpatch"
        ) from error


def _open_missing_streams() -> None:
    """A stream that is closed is None, and the next file that is opened would get its descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _move_stdout() -> None:
    global _stdout
    if _stdout is None and _is_descriptor_1(sys.stdout):
        _stdout = os.dup(1)
        os.dup2(2, 1)


def _silence(stream: TextIO) -> None:
    """What is left in the buffer of a stream that fails must not fail once more at exit."""
    with contextlib.suppress(OSError), open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), stream.fileno())


def _is_descriptor_1(stream: object) -> bool:
    """Not where a caller has put a stream of its own there."""
    try:
        return stream.fileno() == 1  # type: ignore[attr-defined, no-any-return]
    except (AttributeError, OSError, ValueError):
        return False
