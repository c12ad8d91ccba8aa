"""The compile cache on disk: content-addressed, written atomically, checked on every read, bounded in size.

Layout under the cache directory: `v1/<key>/` holds an entry's files, `meta.json` with their checksums, and `used`, the
time of the last read; `v1.tmp/` holds entries being built or removed. An entry is built in `v1.tmp`, its meta file
written last, and renamed into place as a whole. Whatever does not match its checksums is a miss and is removed. A
cache that cannot be written works as far as it can and warns once; it never makes a compilation fail.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DIRECTORY_VARIABLE = "GEMMGEN_CACHE_DIR"
LIMIT_VARIABLE = "GEMMGEN_CACHE_LIMIT"
DEFAULT_LIMIT_BYTES = 1024**3

_FORMAT = "v1"
_META = "meta.json"
_USED = "used"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ABANDONED_NS = 3600 * 10**9
_STORES_BETWEEN_SCANS = 64
_FILL_AFTER_EVICTION = 0.9
_SIZE = re.compile(r"\s*(\d+)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)


class CacheWarning(UserWarning):
    """The cache cannot be used as asked; the work goes on without it."""


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What a cache holds: complete entries, the bytes of their files, its limit, and whether it can be written."""

    directory: Path
    entries: int
    size_bytes: int
    limit_bytes: int
    writable: bool


def cache_key(*parts: str | bytes) -> str:
    """A SHA-256 over the parts, each framed by its length, so that no two lists of parts share a key."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


def default_directory() -> Path:
    """GEMMGEN_CACHE_DIR if set, else the per-user cache directory of the platform."""
    if override := os.environ.get(DIRECTORY_VARIABLE):
        return Path(override)
    import platformdirs  # here, because it is not needed when the directory is given

    return Path(platformdirs.user_cache_dir("gemmgen", appauthor=False))


def default_limit_bytes() -> int:
    """GEMMGEN_CACHE_LIMIT if set ("500M", "2GiB", bytes without a unit; K is 1024), else 1 GiB."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    if not text:
        return DEFAULT_LIMIT_BYTES
    match = _SIZE.fullmatch(text)
    if match is None:
        warnings.warn(f"{LIMIT_VARIABLE}={text!r} is not a size like 500M or 2GiB; using 1 GiB", CacheWarning, stacklevel=2)
        return DEFAULT_LIMIT_BYTES
    exponent = " KMGT".index(match[2].upper() or " ")
    return int(match[1]) << (10 * exponent)


class Cache:
    """Named byte strings under a key, on disk. Safe to share among threads and processes."""

    def __init__(self, directory: str | os.PathLike[str] | None = None, limit_bytes: int | None = None) -> None:
        """The directory is made on the first write; see `default_directory` and `default_limit_bytes`."""
        self.directory = Path(os.path.abspath(default_directory() if directory is None else directory))
        self.limit_bytes = default_limit_bytes() if limit_bytes is None else limit_bytes
        self._entries = self.directory / _FORMAT
        self._building = self.directory / f"{_FORMAT}.tmp"
        self._warned = False
        self._estimated_bytes = 0

    def load(self, key: str) -> dict[str, bytes] | None:
        """The files stored under `key`, or None. An incomplete or damaged entry is removed and counts as absent."""
        entry = self._entry(key)
        try:
            files = _read_entry(entry, key)
        except FileNotFoundError:
            if not entry.exists():
                return None
            files = None
        except OSError:
            return None
        if files is None:
            self._remove(entry)
            return None
        with contextlib.suppress(OSError):
            (entry / _USED).write_text(str(time.time_ns()))
        return files

    def store(self, key: str, files: Mapping[str, bytes]) -> bool:
        """Stores `files` under `key`; returns whether the entry is on disk. An intact entry of another is kept."""
        if any(_NAME.fullmatch(name) is None or name in (_META, _USED) for name in files):
            raise ValueError(f"not file names for a cache entry: {sorted(files)}")
        entry = self._entry(key)
        try:
            built = self._build(key, files)
            try:
                self._place(built, entry, key)
            finally:
                shutil.rmtree(built, ignore_errors=True)
        except OSError as error:
            self._warn(f"the compile cache {self.directory} cannot be written, so kernels are compiled anew: {error}")
            return False
        self._keep_within_limit(sum(map(len, files.values())))
        return True

    def info(self) -> CacheInfo:
        """Counts what is there. Never raises."""
        sizes = [size for _, size, _ in self._list()]
        return CacheInfo(self.directory, len(sizes), sum(sizes), self.limit_bytes, _writable(self.directory))

    def clear(self) -> int:
        """Removes all entries, but nothing foreign and nothing that others are building; returns how many it removed."""
        removed = sum(self._remove(entry) for entry, _, _ in self._list())
        self._remove_abandoned()
        self._estimated_bytes = 0
        return removed

    def _entry(self, key: str) -> Path:
        if _NAME.fullmatch(key) is None:
            raise ValueError(f"not a cache key: {key!r}")
        return self._entries / key

    def _temporary(self) -> Path:
        self._building.mkdir(parents=True, exist_ok=True)
        return self._building / f"{time.time_ns()}-{os.getpid()}-{secrets.token_hex(4)}"

    def _build(self, key: str, files: Mapping[str, bytes]) -> Path:
        built = self._temporary()
        built.mkdir()
        for name, data in files.items():
            (built / name).write_bytes(data)
        (built / _USED).write_text(str(time.time_ns()))
        checksums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        (built / _META).write_text(json.dumps({"format": _FORMAT, "key": key, "sha256": checksums}))
        return built

    def _place(self, built: Path, entry: Path, key: str) -> None:
        self._entries.mkdir(parents=True, exist_ok=True)
        for _ in range(8):
            try:
                os.rename(built, entry)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            # Somebody else was first. Theirs is as good as ours if it is whole.
            with contextlib.suppress(OSError):
                if _read_entry(entry, key) is not None:
                    return
            self._remove(entry)
        raise OSError(f"entry {key} keeps being replaced")

    def _remove(self, entry: Path) -> bool:
        """Takes an entry out of sight in one step, then deletes it."""
        try:
            doomed = self._temporary()
            os.rename(entry, doomed)
        except OSError:
            return False
        _delete(doomed)
        return True

    def _list(self) -> list[tuple[Path, int, int]]:
        """The entries with their sizes in bytes and when each was last used."""
        found = []
        with contextlib.suppress(OSError):
            for entry in self._entries.iterdir():
                with contextlib.suppress(OSError):
                    size = sum(file.stat().st_size for file in entry.iterdir())
                    found.append((entry, size, _last_used(entry)))
        return found

    def _keep_within_limit(self, added_bytes: int) -> None:
        """Removes the least recently used entries if the limit is exceeded.

        Looking costs time in proportion to the entries, so it happens when this process alone has stored enough to
        exceed the limit, and at random otherwise, for what other processes have stored.
        """
        self._estimated_bytes += added_bytes
        if self._estimated_bytes <= self.limit_bytes and secrets.randbelow(_STORES_BETWEEN_SCANS):
            return
        self._remove_abandoned()
        listing = sorted(self._list(), key=lambda item: item[2])
        total = sum(size for _, size, _ in listing)
        goal = self.limit_bytes * _FILL_AFTER_EVICTION if total > self.limit_bytes else total
        for entry, size, _ in listing:
            if total <= goal:
                break
            if self._remove(entry):
                total -= size
        self._estimated_bytes = total

    def _remove_abandoned(self) -> None:
        """Deletes what a killed process left half-built; the time in its name tells that it is old."""
        with contextlib.suppress(OSError):
            for leftover in self._building.iterdir():
                born = leftover.name.split("-")[0]
                if born.isdigit() and time.time_ns() - int(born) > _ABANDONED_NS:
                    _delete(leftover)

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(message, CacheWarning, stacklevel=3)


def _read_entry(entry: Path, key: str) -> dict[str, bytes] | None:
    """The files of a whole entry, None for a damaged one. Raises OSError where they cannot be read."""
    try:
        meta = json.loads((entry / _META).read_bytes())
        if meta["format"] != _FORMAT or meta["key"] != key:
            return None
        files = {}
        for name, checksum in meta["sha256"].items():
            if _NAME.fullmatch(name) is None:
                return None
            files[name] = (entry / name).read_bytes()
            if hashlib.sha256(files[name]).hexdigest() != checksum:
                return None
        return files
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _last_used(entry: Path) -> int:
    """Nanoseconds since the epoch, as the entry itself says; 0 if it does not."""
    try:
        return int((entry / _USED).read_text())
    except (OSError, ValueError):
        return 0


def _writable(directory: Path) -> bool:
    """Whether the directory, or the nearest existing one above it, can be written."""
    for candidate in (directory, *directory.parents):
        if candidate.exists():
            return candidate.is_dir() and os.access(candidate, os.W_OK | os.X_OK)
    return False
