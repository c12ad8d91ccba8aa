"""A report that is written anew while a sweep runs, for a browser that loads it again and again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from gemmgen.sweep.exports import write_html
from gemmgen.sweep.records import PointResult

REFRESH_SECONDS = 5
"""Seconds between two versions of the page, at least."""
SHARE = 20
"""Inverse of the share of a sweep's time that writing takes at most."""


class LiveReport:
    """Writes a page of the results so far; an engine's listener."""

    def __init__(self, path: Path, title: str = "", against: tuple[str, Sequence[PointResult]] | None = None) -> None:
        """Writes a first page at once, so that there is one to open. Raises ``SweepError`` if it cannot be written."""
        self.path = path
        self._title = title
        self._against = against
        self._results: dict[str, PointResult] = {}
        self._next = 0.0
        self._write()

    def __call__(self, result: PointResult, known: bool) -> None:
        """Takes a result, and writes the page if it is time."""
        self._results[result.digest] = result
        if time.monotonic() >= self._next:
            self._write()

    def finish(self, results: Sequence[PointResult]) -> None:
        """Writes the page of all results, which is not loaded again."""
        write_html(results, self.path, self._against, title=self._title)

    def _write(self) -> None:
        begin = time.monotonic()
        write_html(list(self._results.values()), self.path, self._against, REFRESH_SECONDS, self._title)
        end = time.monotonic()
        self._next = end + max(REFRESH_SECONDS, SHARE * (end - begin))
