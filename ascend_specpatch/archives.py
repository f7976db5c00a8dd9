# SPDX-License-Identifier: Apache-2.0
"""Host source out of wheels, source distributions and folders. Members are read in memory: nothing is
extracted or executed, and links are ignored."""

from __future__ import annotations

import stat
import tarfile
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

from ascend_specpatch.fingerprints import NoSource, Reader

LARGEST_MEMBER = 8 << 20  # bytes; the largest module of vLLM 0.16.0 has 0.3 MB


class ArchiveError(ValueError):
    """A file or folder that no host can be read from; the message says why."""


def reader(path: Path, package: str, modules: Collection[str]) -> Reader:
    """Read ``modules`` of the top-level ``package`` from a wheel, a source distribution (``.tar.gz``,
    ``.zip``) or a folder (unpacked, or site-packages).

    Raises:
        ArchiveError: it is none of these, is damaged, or does not have the package.
    """
    wanted = {f"{package}/__init__.py": package}
    for module in modules:
        name = module.replace(".", "/")
        wanted |= {f"{name}.py": module, f"{name}/__init__.py": module}
    # module -> how deep below the top the file is, whether it is a package, its source. Lower is better.
    best: dict[str, tuple[int, bool, bytes]] = {}
    try:
        for name, content in _files(path, wanted):
            depth, tail = _place(name, wanted)
            rank = (depth, not name.endswith("/__init__.py"))
            module = wanted[tail]
            if module not in best or rank <= best[module][:2]:
                best[module] = (*rank, content)
    except ArchiveError:
        raise
    # What the standard library raises for a damaged archive is of many kinds.
    except Exception as error:
        raise ArchiveError(f"{path} cannot be read: {str(error) or type(error).__name__}") from error
    if not best:
        raise ArchiveError(f"{path} has no package {package}")

    def read(module: str) -> bytes:
        if module not in best:
            raise NoSource("its module is not there")
        return best[module][2]

    return read


def _place(name: str, wanted: Collection[str]) -> tuple[int, str]:
    """How many folders stand above the package, and the rest of the name, which is empty where it is not
    wanted: none in a wheel, one (the name and version) or two (and ``src``) in a source distribution."""
    parts = name.split("/")
    for depth in range(min(3, len(parts))):
        tail = "/".join(parts[depth:])
        if tail in wanted and (depth < 2 or parts[1] == "src"):
            return depth, tail
    return 0, ""


def _files(path: Path, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        return _from_folder(path, wanted)
    if not path.exists():
        raise ArchiveError(f"{path} does not exist")
    if not path.is_file():  # a FIFO would have to be waited for
        raise ArchiveError(f"{path} is neither a regular file nor a folder")
    if zipfile.is_zipfile(path):
        return _from_zip(path, wanted)
    if tarfile.is_tarfile(path):
        return _from_tar(path, wanted)
    raise ArchiveError(f"{path} is no wheel, source distribution or folder")


def _from_folder(path: Path, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
    for above in ("", "src/"):
        for name in wanted:
            file = path / above / name
            if file.is_file() and not file.is_symlink():
                with file.open("rb") as stream:
                    yield above + name, _limited(stream, str(file))


def _from_zip(path: Path, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if _place(member.filename, wanted)[1] and not stat.S_ISLNK(member.external_attr >> 16):
                with archive.open(member) as stream:
                    yield member.filename, _limited(stream, f"{path}: {member.filename}")


def _from_tar(path: Path, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isreg() and _place(member.name, wanted)[1]:
                stream = archive.extractfile(member)
                if stream is not None:
                    yield member.name, _limited(stream, f"{path}: {member.name}")


def _limited(stream: IO[bytes], what: str) -> bytes:
    content = stream.read(LARGEST_MEMBER + 1)
    if len(content) > LARGEST_MEMBER:
        raise ArchiveError(f"{what} is larger than {LARGEST_MEMBER >> 20} MiB, which no host module is")
    return content
