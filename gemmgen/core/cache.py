"""The compile cache on disk: content-addressed, written atomically, proven on every read, bounded in size.

Layout under the cache directory: `v1/<key>/` holds an entry's files and `meta.json` with their checksums; `v1.tmp/` holds
entries being built or removed. An entry is built in `v1.tmp`, its meta file written last, and renamed into place as a whole;
the time of the folder is that of the last read.

The contents of a cache are executed on a GPU, so only entries written by this user are trusted: the folders belong to the user and no other
user may write them, nothing in them is reached through a link, and every meta file carries an HMAC under a secret of the user that lies
outside the cache. Whatever does not prove itself is a miss and is removed. A cache that cannot be used works as far as it can and warns
once; it never makes a compilation fail."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import json
import os
import re
import reprlib
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemmgen.core.private_files import (
    NotPrivateError,
    create_file,
    make_folder,
    open_folder,
    open_private_folder,
    read_file,
    user_key,
)

DIRECTORY_VARIABLE = "GEMMGEN_CACHE_DIR"
LIMIT_VARIABLE = "GEMMGEN_CACHE_LIMIT"
KEY_VARIABLE = "GEMMGEN_CACHE_KEY"
DEFAULT_LIMIT_BYTES = 1024**3

_FORMAT = "v1"
_BUILDING = f"{_FORMAT}.tmp"
_META = "meta.json"
_MAX_META_BYTES = 2**20
_MAX_FILE_BYTES = 2**28
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ABANDONED_NS = 60 * 10**9
_STORES_BETWEEN_SCANS = 64
_FILL_AFTER_EVICTION = 0.9
_NO_FAULT_OF_THE_ENTRY = {errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM}
_SIZE = re.compile(r"\s*(\d{1,18})\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)


class CacheWarning(UserWarning):
    """The cache cannot be used as requested; the command continues without it."""


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Contents of a cache: complete entries, the bytes of their files, its limit, and whether it can be written."""

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
    return _user_directory("cache")


def default_key_file() -> Path:
    """GEMMGEN_CACHE_KEY if set, else a file in the per-user data directory of the platform; never inside a cache."""
    if override := os.environ.get(KEY_VARIABLE):
        return Path(os.path.abspath(override))
    return _user_directory("data") / "cache.key"


def _user_directory(kind: Literal["cache", "data"]) -> Path:
    """The package's folder among a user's caches or data, as platformdirs has it, whose import takes longer than all else here."""
    if sys.platform == "linux":
        variable, usual = {"cache": ("XDG_CACHE_HOME", "~/.cache"), "data": ("XDG_DATA_HOME", "~/.local/share")}[kind]
        named = os.environ.get(variable, "")
        return Path(named if named.strip() else os.path.expanduser(usual)) / "gemmgen"
    import platformdirs

    find = platformdirs.user_cache_dir if kind == "cache" else platformdirs.user_data_dir
    return Path(find("gemmgen", appauthor=False))


def default_limit_bytes() -> int:
    """GEMMGEN_CACHE_LIMIT if set ("500M", "2GiB", bytes without a unit; K is 1024), else 1 GiB."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    if not text:
        return DEFAULT_LIMIT_BYTES
    match = _SIZE.fullmatch(text)
    if match is None:
        warnings.warn(f"{LIMIT_VARIABLE}={reprlib.repr(text)} is not a size like 500M or 2GiB; using 1 GiB", CacheWarning, stacklevel=2)
        return DEFAULT_LIMIT_BYTES
    exponent = " KMGT".index(match[2].upper() or " ")
    return int(match[1]) << (10 * exponent)


class Cache:
    """Named byte strings under a key, on disk. Safe to share among threads and processes of one user."""

    def __init__(self, directory: str | os.PathLike[str] | None = None, limit_bytes: int | None = None, *, quiet: bool = False) -> None:
        """The directory is made on the first write; see `default_directory` and `default_limit_bytes`. ``quiet``: no warnings."""
        self.directory = Path(os.path.abspath(default_directory() if directory is None else directory))
        self.limit_bytes = default_limit_bytes() if limit_bytes is None else limit_bytes
        self._key_file = default_key_file()
        self._warned = quiet
        self._estimated_bytes = 0
        self._looked_for_leftovers = False

    def load(self, key: str) -> dict[str, bytes] | None:
        """The files stored under `key`, or None. An entry that is incomplete, damaged or not this user's is removed."""
        _require_key(key)
        try:
            with self._open(_FORMAT) as entries:
                os.stat(key, dir_fd=entries, follow_symlinks=False)
                try:
                    files = _read_entry(entries, key, self._secret())
                except OSError as error:
                    if error.errno in _NO_FAULT_OF_THE_ENTRY:
                        return None
                    files = None
                if files is None:
                    self._remove(entries, key)
                    return None
                with contextlib.suppress(OSError), open_folder(key, entries) as entry:
                    os.utime(entry)
                return files
        except FileNotFoundError:
            return None
        except NotPrivateError as error:
            self._warn(f"the compile cache {self.directory} is not used, because {error}")
            return None
        except OSError:
            return None

    def store(self, key: str, files: Mapping[str, bytes]) -> bool:
        """Stores `files` under `key`; returns whether the entry is on disk. An intact entry of another is kept."""
        if any(_NAME.fullmatch(name) is None or name == _META for name in files):
            raise ValueError(f"not file names for a cache entry: {sorted(files)}")
        _require_key(key)
        try:
            secret = self._secret()
            with self._open(_FORMAT, create=True) as entries, self._open(_BUILDING, create=True) as building:
                self._remove_leftovers_once(building)
                built = _new_name()
                try:
                    _build(building, built, key, files, secret)
                    self._place(building, built, entries, key, secret)
                finally:
                    _delete(built, building)
        except NotPrivateError as error:
            self._warn(f"the compile cache {self.directory} is not used, because {error}")
            return False
        except OSError as error:
            self._warn(f"the compile cache {self.directory} cannot be written, so kernels are compiled anew: {error}")
            return False
        self._keep_within_limit(sum(map(len, files.values())))
        return True

    def info(self) -> CacheInfo:
        """Counts the contents. Never raises."""
        sizes = [size for _, size, _ in self._list()]
        return CacheInfo(self.directory, len(sizes), sum(sizes), self.limit_bytes, _usable(self.directory))

    def clear(self) -> int:
        """Removes all entries, but nothing foreign and nothing that others are building; returns how many it removed."""
        removed = 0
        with contextlib.suppress(OSError), self._open(_FORMAT) as entries:
            removed = sum(self._remove(entries, name) for name, _, _ in self._list())
        with contextlib.suppress(OSError), self._open(_BUILDING) as building:
            _remove_leftovers(building)
        self._estimated_bytes = 0
        return removed

    def _secret(self) -> bytes:
        return user_key(self._key_file)

    @contextmanager
    def _open(self, part: str, *, create: bool = False) -> Iterator[int]:
        """A descriptor of one of the two folders, after checking the write permissions of it and of its parent."""
        with open_private_folder(self.directory, create=create) as directory, open_private_folder(part, directory, create=create) as folder:
            yield folder

    def _place(self, building: int, built: str, entries: int, key: str, secret: bytes) -> None:
        for _ in range(8):
            try:
                os.rename(built, key, src_dir_fd=building, dst_dir_fd=entries)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            # Somebody else was first. Theirs is as good as ours if it is whole.
            with contextlib.suppress(OSError):
                if _read_entry(entries, key, secret) is not None:
                    return
            self._remove(entries, key)
        raise OSError(f"entry {key} keeps being replaced")

    def _remove(self, entries: int, name: str) -> bool:
        """Takes an entry out of sight in one step, then deletes it."""
        doomed = _new_name()
        try:
            with self._open(_BUILDING, create=True) as building:
                os.rename(name, doomed, src_dir_fd=entries, dst_dir_fd=building)
                _delete(doomed, building)
        except OSError:
            return False
        return True

    def _list(self) -> list[tuple[str, int, int]]:
        """The entries with their sizes in bytes and when each was last used, in nanoseconds since the epoch."""
        listed = []
        with contextlib.suppress(OSError), self._open(_FORMAT) as entries:
            for name in os.listdir(entries):
                with contextlib.suppress(OSError), open_folder(name, entries) as entry:
                    size = sum(os.stat(file, dir_fd=entry, follow_symlinks=False).st_size for file in os.listdir(entry))
                    listed.append((name, size, os.fstat(entry).st_mtime_ns))
        return listed

    def _keep_within_limit(self, added_bytes: int) -> None:
        """Removes the least recently used entries if the limit is exceeded.

        The check takes time in proportion to the entries. It happens when this process alone has stored enough to exceed the limit, and
        otherwise at random, because other processes store entries too."""
        self._estimated_bytes += added_bytes
        if self._estimated_bytes <= self.limit_bytes and int.from_bytes(os.urandom(2)) % _STORES_BETWEEN_SCANS:
            return
        with contextlib.suppress(OSError), self._open(_FORMAT) as entries, self._open(_BUILDING) as building:
            _remove_leftovers(building)
            listing = sorted(self._list(), key=lambda item: item[2])
            total = sum(size for _, size, _ in listing)
            goal = self.limit_bytes * _FILL_AFTER_EVICTION if total > self.limit_bytes else total
            for name, size, _ in listing:
                if total <= goal:
                    break
                if self._remove(entries, name):
                    total -= size
            self._estimated_bytes = total

    def _remove_leftovers_once(self, building: int) -> None:
        if not self._looked_for_leftovers:
            self._looked_for_leftovers = True
            _remove_leftovers(building)

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(message, CacheWarning, stacklevel=3)


def _require_key(key: str) -> None:
    if _NAME.fullmatch(key) is None:
        raise ValueError(f"not a cache key: {key!r}")


def _new_name() -> str:
    return f"{time.time_ns()}-{os.getpid()}-{os.urandom(4).hex()}"


def _build(building: int, name: str, key: str, files: Mapping[str, bytes], secret: bytes) -> None:
    """Writes an entry. The lock on its folder, which ends with the process, tells others that it is not a leftover."""
    make_folder(name, building)
    with open_folder(name, building) as folder:
        fcntl.flock(folder, fcntl.LOCK_SH)
        for file, data in files.items():
            create_file(file, folder, data)
        meta = {"format": _FORMAT, "key": key, "sha256": {file: hashlib.sha256(data).hexdigest() for file, data in files.items()}}
        create_file(_META, folder, json.dumps({**meta, "hmac": _proof(meta, secret)}).encode())


def _proof(meta: Mapping[str, object], secret: bytes) -> str:
    """The HMAC-SHA256 of a meta file's contents (RFC 2104)."""
    return hmac.new(secret, json.dumps(meta, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _read_entry(entries: int, key: str, secret: bytes) -> dict[str, bytes] | None:
    """The files of a whole entry of this user's, None for any other. Raises OSError where they cannot be read."""
    with open_folder(key, entries) as entry:
        try:
            meta = json.loads(read_file(_META, entry, _MAX_META_BYTES))
            proof = meta.pop("hmac")
            if meta["format"] != _FORMAT or meta["key"] != key or not hmac.compare_digest(proof.encode(), _proof(meta, secret).encode()):
                return None
            files = {}
            for name, checksum in meta["sha256"].items():
                files[name] = read_file(name, entry, _MAX_FILE_BYTES)
                if hashlib.sha256(files[name]).hexdigest() != checksum:
                    return None
            return files
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


def _delete(name: str, folder: int) -> None:
    """Deletes a file, a link or a folder with its contents; never the target of a link."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
    except OSError:
        pass


def _remove_leftovers(building: int) -> None:
    """Deletes half-built entries of killed processes: at least a minute old, and not locked."""
    with contextlib.suppress(OSError):
        for name in os.listdir(building):
            born = name.split("-")[0]
            if born.isdecimal() and len(born) < 32 and time.time_ns() - int(born) > _ABANDONED_NS and not _locked(name, building):
                _delete(name, building)


def _locked(name: str, building: int) -> bool:
    try:
        with open_folder(name, building) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def _usable(directory: Path) -> bool:
    """True if the directory is this user's to write; where there is none yet, whether one can be made."""
    try:
        with open_private_folder(directory):
            return os.access(directory, os.W_OK | os.X_OK)
    except FileNotFoundError:
        above = next((folder for folder in directory.parents if folder.exists()), None)
        return above is not None and above.is_dir() and os.access(above, os.W_OK | os.X_OK)
    except OSError:
        return False
