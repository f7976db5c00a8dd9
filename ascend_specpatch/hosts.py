# SPDX-License-Identifier: Apache-2.0
"""The installed hosts and the pairs of releases that the patches were written for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostPair:
    """One release of vLLM with one of vllm-ascend; None where it is not installed."""

    vllm: str | None
    vllm_ascend: str | None

    def __str__(self) -> str:
        return " + ".join(
            f"{name} {version}" if version else f"no {name}"
            for name, version in (("vllm", self.vllm), ("vllm-ascend", self.vllm_ascend))
        )


SUPPORTED: tuple[HostPair, ...] = (
    HostPair("0.16.0", "0.16.0rc1"),
    HostPair("0.17.0", "0.17.0rc1"),
    HostPair("0.18.0", "0.18.0"),
    HostPair("0.23.0", "0.23.0"),
)
"""From the oldest to the newest."""


def supported_text() -> str:
    """The supported pairs, in words."""
    *others, last = map(str, SUPPORTED)
    return f"{', '.join(others)} or {last}" if others else last


def has_reached(pair: HostPair, release: str) -> bool:
    """Whether a host of ``pair`` is of ``release``, such as ``vllm-ascend 0.17.0rc1``, or newer.

    Raises:
        ValueError: ``release`` is not the name of a host and a version.
    """
    from packaging.version import InvalidVersion, Version

    name, _, wanted = release.partition(" ")
    if name not in ("vllm", "vllm-ascend"):
        raise ValueError(f"{release!r} is no release of vllm or vllm-ascend")
    found = pair.vllm if name == "vllm" else pair.vllm_ascend
    least = Version(wanted)
    try:
        return found is not None and Version(found) >= least
    except InvalidVersion:  # installed, but nobody can say how old it is
        return False


def installed() -> HostPair:
    """The pair installed in this environment, read from its metadata: no host is imported."""
    return HostPair(version("vllm"), version("vllm-ascend"))


def version(distribution: str) -> str | None:
    """The installed version, without its local part: a build such as ``0.16.0+empty`` has the code of
    ``0.16.0``.

    None also where the metadata is damaged: an interrupted installation leaves a folder without it.
    """
    import importlib_metadata
    from packaging.version import InvalidVersion, Version

    try:
        found: str | None = importlib_metadata.version(distribution)
    except (importlib_metadata.PackageNotFoundError, FileNotFoundError, KeyError, UnicodeDecodeError):
        return None
    try:
        return Version(found).public if found else None
    except InvalidVersion:
        return found
