"""Reads files that others name without waiting for a pipe, and writes files so that a reader sees the old content or the new."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_DESCRIPTORS = ("/dev/fd/", "/dev/std", "/proc/")
"""Names of open files of a process: /dev/stdin, /dev/fd/63 as shells write it for <(command)."""


MAX_BYTES = 2**27
"""Larger than any file of text or JSON that gemmgen reads."""


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """A plain file, open for reading.

    A named pipe is an error instead of a wait for a writer; a pipe made by the shell is opened. Raises OSError.
    """
    waits = _stands_for_open(path)
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if waits else os.O_NONBLOCK)), "rb")
    if not waits and not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise OSError(errno.EINVAL, "is a pipe or a device, not a file", os.fspath(path))
    return stream


def read_plain(path: str | os.PathLike[str], limit_bytes: int) -> bytes:
    """The content of a plain file, and no more than ``limit_bytes`` + 1 of it, which tells that it is larger. Raises OSError."""
    with open_plain(path) as stream:
        # Python clears as much memory as may be read, in development mode, so no more is asked for than a plain file has.
        status = os.fstat(stream.fileno())
        known = stat.S_ISREG(status.st_mode) and status.st_size > 0  # files of /proc say 0
        expected = status.st_size + 1 if known else limit_bytes + 1
        return stream.read(min(expected, limit_bytes + 1))


def read_plain_text(path: str | os.PathLike[str]) -> str:
    """The text of a plain file, UTF-8 with line ends as they are read anywhere. Raises OSError, and UnicodeDecodeError."""
    data = read_plain(path, MAX_BYTES)
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"is larger than {MAX_BYTES} bytes", os.fspath(path))
    return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> bool:
    """Writes `content` to `path`; returns whether the file changed. Text is UTF-8, line ends as given.

    The content goes to a temporary file beside `path`, which then takes its place in one step; a file that already holds it is not touched.
    A symbolic link gives way to the file; where it leads, nothing is written. Missing folders are made. A device or a pipe, such as
    /dev/stdout, is written to and not replaced; a named pipe without a reader is an error. Raises OSError."""
    # A file name of the system may contain bytes that are not UTF-8; each is replaced by a question mark.
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    if _is_special(path):
        with open(path, "wb", opener=None if _stands_for_open(path) else _open_to_write_without_waiting) as stream:
            stream.write(data)
        return True
    target = Path(os.path.abspath(path))
    if _holds(target, data):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name[:64]}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        if not target.is_symlink() and target.exists():
            os.chmod(temporary, target.stat().st_mode & 0o777)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return True


def _stands_for_open(path: str | os.PathLike[str]) -> bool:
    return os.path.abspath(path).startswith(_DESCRIPTORS)


def _open_to_write_without_waiting(path: str, flags: int) -> int:
    """Opens a device, or a named pipe that somebody reads; of another, the system says that there is no such device or address."""
    try:
        opened = os.open(path, flags | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO and stat.S_ISFIFO(os.stat(path).st_mode):
            raise OSError(errno.ENXIO, "is a pipe that nobody reads", path) from None
        raise
    os.set_blocking(opened, True)
    return opened


def _is_special(path: str | os.PathLike[str]) -> bool:
    """True if a path is a pipe or a device, or stands for an open file of any kind."""
    if _stands_for_open(path):
        return True
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode) and not stat.S_ISLNK(mode)


def _holds(path: Path, data: bytes) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode) and path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False
