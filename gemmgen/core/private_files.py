"""Folders and files of one user: opened without following links, made for nobody else to read, refused where others may write.

Every name below a folder is looked up through a descriptor of that folder, so that nothing can be exchanged between a check and
its use (openat(2), O_NOFOLLOW in open(2)).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class NotPrivateError(PermissionError):
    """A folder or file belongs to another user, or others may write it, so its contents prove nothing."""


class NotPlainError(OSError):
    """A link, a pipe or a device lies where a plain file must be."""


@contextmanager
def open_folder(name: str | os.PathLike[str], parent: int | None = None) -> Iterator[int]:
    """A descriptor of a folder. Below a ``parent`` its name must not be a link; without one, links lead where the user put them.

    Raises ``OSError`` if there is no such folder.
    """
    descriptor = os.open(name, _FOLDER | (0 if parent is None else os.O_NOFOLLOW), dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_private_folder(name: str | os.PathLike[str], parent: int | None = None, *, create: bool = False) -> Iterator[int]:
    """Like `open_folder`, for a folder that only this user may change; ``create`` makes one that nobody else may even read.

    Raises ``NotPrivateError`` for one that others own or may write.
    """
    if create:
        make_folder(name, parent)
    with open_folder(name, parent) as descriptor:
        require_private(descriptor, str(name))
        yield descriptor


def make_folder(name: str | os.PathLike[str], parent: int | None = None) -> None:
    """Makes a folder, and those above it, with `FOLDER_MODE` regardless of the umask; an existing folder is not changed."""
    try:
        os.mkdir(name, FOLDER_MODE, dir_fd=parent)
    except FileExistsError:
        return
    except FileNotFoundError:
        if parent is not None or Path(name).parent == Path(name):
            raise
        make_folder(Path(name).parent)
        try:  # once: there are folders that hold none, such as /proc
            os.mkdir(name, FOLDER_MODE)
        except FileExistsError:
            return
    os.chmod(name, FOLDER_MODE, dir_fd=parent)


def require_private(descriptor: int, name: str) -> None:
    """Raises ``NotPrivateError`` if the open file belongs to another user or can be written by others."""
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise NotPrivateError(f"{name} belongs to another user (number {status.st_uid})")
    if status.st_mode & _WRITABLE_BY_OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise NotPrivateError(f"others may write {name} (mode {mode:04o}); if nobody has, take that right away: chmod go-w {name}")


def read_file(name: str, folder: int, limit_bytes: int) -> bytes:
    """The content of a plain file in an open folder.

    Raises ``OSError`` if there is none, ``NotPlainError`` for anything else and for one that is larger than the limit.
    """
    with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise NotPlainError(f"{name} is no plain file")
        if status.st_size > limit_bytes:
            raise NotPlainError(f"{name} is larger than {limit_bytes} bytes")
        # Not the limit: memory for all that is asked for is there before the first byte is read.
        return file.read(status.st_size)


def create_file(name: str, folder: int, content: bytes) -> None:
    """Makes a new file with `FILE_MODE` regardless of the umask. Raises ``FileExistsError`` if the name is taken."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, FILE_MODE, dir_fd=folder), "wb") as file:
        os.fchmod(file.fileno(), FILE_MODE)
        file.write(content)


def user_key(path: Path, size: int = 32) -> bytes:
    """The secret in a file of this user's, made at random when there is none.

    Processes that make it at once agree on one. Raises ``OSError`` if it can be neither read nor made, ``NotPrivateError`` if
    others could have read or written it.
    """
    for _ in range(8):
        with open_private_folder(path.parent, create=True) as folder:
            with contextlib.suppress(FileNotFoundError):
                key = _read_key(path, folder, size)
                if len(key) == size:
                    return key
                os.unlink(path.name, dir_fd=folder)  # cut off when its disk was full, say
            temporary = f".{path.name}.{os.urandom(8).hex()}"
            create_file(temporary, folder, os.urandom(size))
            try:
                with contextlib.suppress(FileExistsError):  # somebody else was first
                    os.link(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                os.unlink(temporary, dir_fd=folder)
    raise OSError(f"{path} keeps being replaced")


def _read_key(path: Path, folder: int, size: int) -> bytes:
    with os.fdopen(os.open(path.name, _READ, dir_fd=folder), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise NotPlainError(f"{path} is no plain file")
        require_private(file.fileno(), str(path))
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise NotPrivateError(f"others may read {path}, a secret; delete it, and a new one is made")
        return file.read(size + 1)
