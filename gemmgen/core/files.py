"""Writes files so that a reader sees the old content or the new, and leaves alone what would not change."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> bool:
    """Writes `content` (text as UTF-8, line ends as given) to `path`; returns whether the file changed.

    The content goes to a temporary file beside `path`, which then takes its place in one step; a file that already
    holds it is not touched, and a symbolic link is followed. Missing folders are made. A device or a pipe, such as
    /dev/stdout, is written to and stays what it is. Raises OSError.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    if _is_special(path):
        with open(path, "wb") as stream:
            stream.write(data)
        return True
    target = Path(os.path.realpath(path))
    if _holds(target, data):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name[:64]}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        if target.exists():
            os.chmod(temporary, target.stat().st_mode & 0o7777)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return True


def _is_special(path: str | os.PathLike[str]) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False
