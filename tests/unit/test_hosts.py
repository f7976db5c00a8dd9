# SPDX-License-Identifier: Apache-2.0
"""Installed versions are read from metadata, without their local part."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_specpatch import hosts
from ascend_specpatch.hosts import HostPair


def _install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("local", ["", "+empty", "+cpu"])
def test_local_versions_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: str) -> None:
    _install(tmp_path, "vllm", f"0.16.0{local}")
    _install(tmp_path, "vllm_ascend", f"0.16.0rc1{local}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert hosts.installed() == HostPair("0.16.0", "0.16.0rc1")
    assert hosts.installed() in hosts.SUPPORTED


def test_a_development_version_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, "vllm", "0.16.0.dev3+g1234")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert hosts.installed() == HostPair("0.16.0.dev3", None)


@pytest.mark.parametrize("metadata", [None, "", "Metadata-Version: 2.1\nName: vllm\n"])
def test_a_host_whose_metadata_is_damaged_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: str | None
) -> None:
    _install(tmp_path, "vllm", "0.16.0")
    file = tmp_path / "vllm-0.16.0.dist-info" / "METADATA"
    file.unlink()
    if metadata is not None:
        file.write_text(metadata)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert hosts.installed() == HostPair(None, None)


def test_a_version_that_is_none_is_shown_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, "vllm", "main")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert hosts.installed() == HostPair("main", None)


def test_pairs_read_as_people_write_them() -> None:
    assert str(HostPair("0.16.0", "0.16.0rc1")) == "vllm 0.16.0 + vllm-ascend 0.16.0rc1"
    assert str(HostPair("0.16.0", None)) == "vllm 0.16.0 + no vllm-ascend"
    assert hosts.supported_text().startswith("vllm 0.16.0 + vllm-ascend 0.16.0rc1")


@pytest.mark.parametrize(
    ("release", "reached"),
    [
        ("vllm 0.16.0", True),
        ("vllm 0.16.1", False),
        ("vllm-ascend 0.16.0rc1", True),
        ("vllm-ascend 0.16.0", False),
        ("vllm-ascend 0.9.0", True),
    ],
)
def test_a_pair_has_reached_a_release_or_not(release: str, reached: bool) -> None:
    assert hosts.has_reached(HostPair("0.16.0", "0.16.0rc1"), release) is reached
    assert not hosts.has_reached(HostPair(None, None), release)
    assert not hosts.has_reached(HostPair("main", "main"), release)


@pytest.mark.parametrize("release", ["torch 2.9.1", "vllm", "vllm soon", ""])
def test_only_releases_of_the_hosts_can_be_reached(release: str) -> None:
    with pytest.raises(ValueError, match=r"release|version"):
        hosts.has_reached(HostPair("0.16.0", "0.16.0rc1"), release)
