"""Results of sweeps in one SQLite file: appended point by point, so that a killed sweep continues where it stopped.

The journal is a write-ahead log: a process that is killed at any moment leaves a whole file, and several may write at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gemmgen.sweep.records import PointResult, SweepError

APPLICATION_ID = 0x67656D73
"""Marks a file as gemmgen's results: ``gems`` in ASCII, in the header of the SQLite file."""

FORMAT = 1
"""Version of the tables."""

WAIT_SECONDS = 60.0
"""Time to wait for another process that writes."""

MAX_RECORD_BYTES = 16 << 20
"""A row with more in it is no result."""

_TABLES = f"""
BEGIN;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
CREATE TABLE results (
    number INTEGER PRIMARY KEY,
    digest TEXT NOT NULL,
    sweep TEXT NOT NULL,
    record TEXT NOT NULL,
    UNIQUE (sweep, digest)
);
CREATE INDEX by_digest ON results (digest);
COMMIT;
"""

_POINTS = """
CREATE TABLE IF NOT EXISTS points (
    sweep TEXT NOT NULL,
    point TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (sweep, point)
) WITHOUT ROWID
"""
"""Maps a point, as it is known before it is checked, to the digest of its result: a point has one result at any time. The table is
absent from files of earlier versions, which ignore it."""


class ResultStore:
    """The results in one file, which is made when it does not exist. Each sweep has at most one result under a digest, and one result
    for a point."""

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        """Opens ``path``. Raises ``SweepError`` if it cannot be used or holds something else, which is left as it is."""
        self.path = Path(path)
        exists = self._exists()
        if read_only and not exists:
            raise SweepError(f"{self.path}: there is no such results file")
        with self._explained():
            if not exists:
                self._create()
            self._require_plain()
            self._require_own()
            self._connection = self._open_to_read() if read_only else self._open_to_write()

    def append(self, result: PointResult, points: Iterable[str] = ()) -> None:
        """Keeps a result on disk; an older one of the same sweep under the same digest gives way.

        ``points`` are the points whose result it is. A result under another digest that one of them had before is removed, unless
        other points share it. A result whose digest is that of an unchecked point is dropped if the point has a result by now.
        """
        record = json.dumps(result.to_json())
        with self._explained(), self._transaction():
            if result.digest in points and self._digest_of(result.sweep, result.digest) not in (None, result.digest):
                return
            self._connection.execute(
                "INSERT OR REPLACE INTO results (digest, sweep, record) VALUES (?, ?, ?)", (result.digest, result.sweep, record)
            )
            for point in points:
                self._assign(result.sweep, point, result.digest)

    def assign(self, sweep: str, point: str, digest: str) -> None:
        """Notes that a point's result is the one that is stored under ``digest``."""
        with self._explained():
            if self._digest_of(sweep, point) != digest:
                with self._transaction():
                    self._assign(sweep, point, digest)

    def digest_of(self, sweep: str, point: str) -> str | None:
        """The digest under which the result of a point is stored; None if it has none."""
        with self._explained():
            return self._digest_of(sweep, point)

    def _digest_of(self, sweep: str, point: str) -> str | None:
        row = self._connection.execute("SELECT digest FROM points WHERE sweep = ? AND point = ?", (sweep, point)).fetchone()
        return None if row is None else str(row[0])

    def _assign(self, sweep: str, point: str, digest: str) -> None:
        before = self._digest_of(sweep, point)
        self._connection.execute("INSERT OR REPLACE INTO points (sweep, point, digest) VALUES (?, ?, ?)", (sweep, point, digest))
        if before not in (None, digest):
            self._connection.execute(
                "DELETE FROM results WHERE sweep = :sweep AND digest = :digest "
                "AND NOT EXISTS (SELECT 1 FROM points WHERE sweep = :sweep AND digest = :digest)",
                {"sweep": sweep, "digest": before},
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def get(self, digest: str, sweep: str | None = None) -> PointResult | None:
        """The newest result under ``digest``, of one sweep or of any; None if there is none."""
        with self._explained():
            row = self._connection.execute(
                "SELECT record FROM results WHERE digest = :digest AND (:sweep IS NULL OR sweep = :sweep) ORDER BY number DESC LIMIT 1",
                {"digest": digest, "sweep": sweep},
            ).fetchone()
        return None if row is None else self._decode(row[0])

    def all(self, sweep: str | None = None) -> list[PointResult]:
        """Every result, of one sweep or of all, oldest first."""
        with self._explained():
            rows = self._connection.execute(
                "SELECT record FROM results WHERE (:sweep IS NULL OR sweep = :sweep) ORDER BY number", {"sweep": sweep}
            ).fetchall()
        return [self._decode(row[0]) for row in rows]

    def sweeps(self) -> list[str]:
        """The names of the sweeps that have results here."""
        with self._explained():
            return [str(row[0]) for row in self._connection.execute("SELECT DISTINCT sweep FROM results ORDER BY sweep")]

    def close(self) -> None:
        """Gives the file back."""
        self._connection.close()

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _exists(self) -> bool:
        try:
            if self.path.is_dir():
                raise SweepError(f"{self.path}: is a directory; name the file that keeps the results")
            return self.path.exists()
        except (OSError, ValueError) as error:
            raise SweepError(f"{str(self.path)!r}: cannot be looked up: {getattr(error, 'strerror', None) or error}") from None

    def _require_plain(self) -> None:
        """SQLite follows links, also those in place of the files that it keeps beside a database (sqlite.org/tempfiles.html)."""
        for suffix in ("", "-wal", "-shm", "-journal"):
            path = self.path.with_name(self.path.name + suffix)
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(path.lstat().st_mode):
                    raise SweepError(f"{path}: is a link, a pipe or a device; name the results file itself")

    def _require_own(self) -> None:
        """Looks at the header only, so that nothing foreign is opened for writing."""
        with self.path.open("rb") as file:
            header = file.read(100)
        if not header:
            raise SweepError(f"{self.path}: the file is empty; name a results file of gemmgen's or one that does not exist yet")
        if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
            raise SweepError(f"{self.path}: not a results file of gemmgen (nor a SQLite file); it was left unchanged")
        # https://www.sqlite.org/fileformat.html#the_database_header: user version at byte 60, application id at byte 68.
        version, application = (int.from_bytes(header[start : start + 4], "big") for start in (60, 68))
        if application != APPLICATION_ID:
            raise SweepError(f"{self.path}: this SQLite file was not made by gemmgen, and was left as it is")
        if version != FORMAT:
            raise SweepError(f"{self.path}: results of format {version}; this gemmgen reads format {FORMAT}; name another file")

    def _create(self) -> None:
        """Makes the file whole under another name first: a process that is killed meanwhile leaves nothing under this one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{self.path.name[:64]}.", dir=self.path.parent) as folder:
            made = Path(folder) / "results"
            connection = sqlite3.connect(made, isolation_level=None)
            connection.executescript(_TABLES)
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.close()
            with contextlib.suppress(FileExistsError):  # somebody else was first
                os.link(made, self.path)

    def _open_to_write(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=WAIT_SECONDS, isolation_level=None)
        try:
            self._require_tables(connection)
            # Safe when a process is killed; when the machine loses power, the newest results may be gone, the file is whole.
            connection.execute("PRAGMA synchronous = NORMAL")
            # A file that cannot be written is reported now, not when there is something to keep.
            connection.execute("DELETE FROM results WHERE 0")
            connection.execute(_POINTS)
            connection.execute("SELECT number, digest, sweep, record FROM results LIMIT 1").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_to_read(self) -> sqlite3.Connection:
        location = self.path.resolve().as_uri()
        connection = sqlite3.connect(f"{location}?mode=ro", uri=True, timeout=WAIT_SECONDS, isolation_level=None)
        try:
            self._require_tables(connection)
            connection.execute("SELECT number, digest, sweep, record FROM results LIMIT 1").fetchone()
        except sqlite3.OperationalError as error:
            connection.close()
            if "no such table" in str(error):
                raise
            # A folder that cannot be written has no room for the log's index; nobody writes there, so none is needed.
            connection = sqlite3.connect(f"{location}?immutable=1", uri=True, isolation_level=None)
            self._require_tables(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _require_tables(self, connection: sqlite3.Connection) -> None:
        """Views, triggers and virtual tables are programs that a query would run, without an end perhaps (sqlite.org/security.html)."""
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_RECORD_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
        program = "type IN ('view', 'trigger') OR sql LIKE 'CREATE VIRTUAL%'"
        other = connection.execute(f"SELECT type, name FROM sqlite_master WHERE {program} LIMIT 1").fetchone()
        if other is not None:
            connection.close()
            raise SweepError(
                f"{self.path}: holds the {other[0]} {other[1]!r}, which gemmgen does not make; name a results file of gemmgen's"
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns SQLite's errors into a message that names the file."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise SweepError(f"{self.path}: the results file cannot be used: {error}") from None
        except sqlite3.DatabaseError as error:
            raise SweepError(f"{self.path}: the results file is damaged ({error}); move it away, or name another one") from None
        except (OSError, ValueError) as error:
            raise SweepError(f"{self.path}: the results file cannot be used: {getattr(error, 'strerror', None) or error}") from None

    def _decode(self, text: object) -> PointResult:
        """A result as a row has it; in a damaged file a row may have a number, bytes or nothing in its place."""
        try:
            return PointResult.from_json(json.loads(str(text)))
        except (ValueError, RecursionError, SweepError) as error:
            raise SweepError(f"{self.path}: the results file holds something that is no result: {error}") from None
