# SPDX-License-Identifier: Apache-2.0
"""The environment variables, read strictly into one frozen value.

Patch names are checked where they are known, in :meth:`ascend_specpatch.registry.Registry.choose`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from ascend_specpatch.bootstrap import OFF_WORDS

PREFIX = "ASCEND_SPECPATCH"
ON_WORDS = ("1", "true", "yes", "on")
KERNELS = ("triton", "torch", "upstream")
VARIABLES = tuple(f"{PREFIX}{suffix}" for suffix in ("", "_DISABLE", "_ENABLE", "_STRICT", "_KERNELS"))

_SHOWN = 80  # characters of a value in a message


class SettingsError(ValueError):
    """A setting that cannot be understood; the message names the variable and what it may be.

    Attributes:
        variable: the name of the variable.
    """

    def __init__(self, text: str, variable: str) -> None:
        super().__init__(text)
        self.variable = variable


@dataclass(frozen=True)
class Settings:
    """What the operator asks for. ``kernels`` is None by default: triton where it can run, else torch."""

    enabled: bool = True
    disable: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()
    strict: bool = False
    kernels: Literal["triton", "torch", "upstream"] | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read ``environ`` (default: this process's).

        Raises:
            SettingsError: a value is not one of those allowed, or a variable looks like a misspelt one of
                ours.
        """
        environ = os.environ if environ is None else environ
        if not _switch(environ, PREFIX, default=True):
            return cls(enabled=False)  # off silences everything, a mistake in the other variables too
        _check_spelling(environ)
        return cls(
            disable=_names(environ, f"{PREFIX}_DISABLE"),
            enable=_names(environ, f"{PREFIX}_ENABLE"),
            strict=_switch(environ, f"{PREFIX}_STRICT", default=False),
            kernels=_kernels(environ),
        )


def current() -> Settings:
    """The settings of this process.

    Raises:
        SettingsError: see :meth:`Settings.from_environ`.
    """
    return Settings.from_environ()


def shown(value: str) -> str:
    """A value as a message may quote it: in one line of plain characters, however it came to be set."""
    plain = value.encode("unicode_escape").decode("ascii")
    return plain if len(plain) <= _SHOWN else f"{plain[:_SHOWN]}..."


def nearest(name: str, known: tuple[str, ...] | list[str]) -> str:
    """A hint to end a message about an unknown ``name`` with."""
    close = get_close_matches(name[:_SHOWN], known, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"


def _switch(environ: Mapping[str, str], variable: str, *, default: bool) -> bool:
    value = environ.get(variable, "").strip().lower()
    if not value:
        return default
    if value not in ON_WORDS + OFF_WORDS:
        raise SettingsError(
            f"{variable}={shown(environ[variable])}: use 1 (true, yes, on) or 0 (false, no, off)", variable
        )
    return value in ON_WORDS


def _names(environ: Mapping[str, str], variable: str) -> tuple[str, ...]:
    return tuple(name for part in environ.get(variable, "").split(",") if (name := part.strip()))


def _kernels(environ: Mapping[str, str]) -> Literal["triton", "torch", "upstream"] | None:
    variable = f"{PREFIX}_KERNELS"
    value = environ.get(variable, "").strip().lower() or None
    if value is not None and value not in KERNELS:
        raise SettingsError(
            f"{variable}={shown(environ[variable])}: use one of {', '.join(KERNELS)}", variable
        )
    return value  # type: ignore[return-value]


def _check_spelling(environ: Mapping[str, str]) -> None:
    """Only what resembles a variable of ours is a mistake: Kubernetes gives every container of a service
    named ascend-specpatch variables such as ``ASCEND_SPECPATCH_SERVICE_HOST``."""
    suffixes = [variable.removeprefix(f"{PREFIX}_") for variable in VARIABLES[1:]]
    for variable in environ:
        if variable.startswith(f"{PREFIX}_") and variable not in VARIABLES:
            close = get_close_matches(variable.removeprefix(f"{PREFIX}_"), suffixes, n=1)
            if close:
                raise SettingsError(
                    f"{shown(variable)} is not a setting; did you mean {PREFIX}_{close[0]}?", variable
                )
