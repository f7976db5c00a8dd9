# SPDX-License-Identifier: Apache-2.0
"""A folder that is this user's alone, and the files in it: opened once, checked, and then used by descriptor,
so that nobody can put another in its place meanwhile. No link is followed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Not to wait for the writer of a FIFO that somebody has put there.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Refusal(Exception):
    """Why a folder or a file is not used, in words."""


def make(path: str) -> None:
    """Make the folder, if there is nothing of that name yet."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """A descriptor of the folder, which is nobody else's.

    Raises:
        FileNotFoundError: there is none.
        Refusal: it is not a folder, or another user could write there.
    """
    try:
        folder = os.open(path, _FOLDER_FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Refusal(f"{path} is not a folder that can be opened: {error.strerror}; remove it") from error
    try:
        status = os.fstat(folder)
        if status.st_uid != os.getuid():
            raise Refusal(f"{path} belongs to user {status.st_uid}; have it removed")
        if status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise Refusal(f"{path} has mode {mode:04o} and is open to other users: chmod 700 {path}")
        yield folder
    finally:
        os.close(folder)


def read(folder: int, name: str, most: int) -> bytes:
    """Up to ``most`` bytes of a file.

    Raises:
        OSError: it cannot be read, or is a link.
        Refusal: it is not a regular file of this user.
    """
    descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Refusal("is not a regular file")
        if status.st_uid != os.getuid():
            raise Refusal(f"belongs to user {status.st_uid}")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


def replace(folder: int, name: str, unfinished: str, data: bytes) -> None:
    """Put a whole file in place of an older one, so that a reader sees the one or the other.

    Args:
        unfinished: its name until it is whole; nobody else's.
    """
    descriptor = os.open(unfinished, _NEW_FILE_FLAGS, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished, dir_fd=folder)
        raise


def remove(path: str, name: str) -> None:
    """Remove a file of the folder ``path``, if both are there."""
    with contextlib.suppress(OSError, Refusal), opened(path) as folder:
        os.unlink(name, dir_fd=folder)
