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


SUPPORTED: tuple[HostPair, ...] = (HostPair("0.16.0", "0.16.0rc1"),)


def supported_text() -> str:
    """The supported pairs, in words."""
    return " or ".join(map(str, SUPPORTED))


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
