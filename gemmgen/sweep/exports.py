"""Results of sweeps as files that other programs read: CSV, JSON Lines, T4 JSON, JUnit XML, and an HTML report for people.

Every format has the same results in the same order, regardless of their arrival, and a valid file for none at all.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gemmgen.core.files import write_atomically
from gemmgen.sweep.encoding import encodable, plain
from gemmgen.sweep.records import PointResult, SweepError

Export = Callable[[Sequence[PointResult], Path], None]


def export(results: Sequence[PointResult], path: Path, form: str | None = None) -> None:
    """Writes ``results`` to ``path`` in one of ``EXPORTS``; without ``form``, in the one that the file's name ends in.

    Raises ``SweepError`` if the format is not known or the file cannot be written.
    """
    chosen = form or _FORMS.get(path.suffix.lower(), "")
    if chosen not in EXPORTS:
        known = ", ".join(EXPORTS)
        raise SweepError(f"{path}: {f'no format {form!r}' if form else 'its name says no format'}; formats are {known}")
    EXPORTS[chosen](results, path)


def ordered(results: Iterable[PointResult]) -> list[PointResult]:
    """Results in the order of files: by sweep, architecture and problem, then as evaluated."""
    return sorted(results, key=lambda one: (one.sweep, one.architecture, tuple(one.problem.items()), one.date, one.digest))


def write(path: Path, content: str) -> None:
    """Writes a file atomically. Raises ``SweepError`` if it cannot be written."""
    try:
        write_atomically(path, content)
    except (OSError, ValueError) as error:
        raise SweepError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def write_csv(results: Sequence[PointResult], path: Path) -> None:
    """One row for each result (RFC 4180); axes, sizes, metrics and times in separate columns, the spec as JSON.

    Axes' values that are neither numbers nor text are JSON too. Text that a spreadsheet would take for a formula gets an
    apostrophe in front. An empty cell is a value that there is not.
    """
    groups = ("axes", "problem", "metrics", "seconds")
    rows = ordered(results)
    names = {group: list(dict.fromkeys(name for row in rows for name in getattr(row, group))) for group in groups}
    columns = [*_SCALARS, *(f"{group}.{name}" for group in groups for name in names[group]), "spec"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(_cell(column) for column in columns)
    for row in rows:
        cells = [getattr(row, name) for name in _SCALARS]
        cells += [getattr(row, group).get(name, _ABSENT) for group in groups for name in names[group]]
        writer.writerow([*(_cell(cell) for cell in cells), json.dumps(plain(row.spec))])
    write(path, text.getvalue())


def write_jsonl(results: Sequence[PointResult], path: Path) -> None:
    """One JSON object a line, with all that a result holds."""
    write(path, "".join(f"{json.dumps(plain(row.to_json()))}\n" for row in ordered(results)))


def write_t4(results: Sequence[PointResult], path: Path) -> None:
    """The results format of the auto-tuning community."""
    from gemmgen.sweep.t4 import t4

    write(path, json.dumps(t4(ordered(results)), indent=1) + "\n")


def write_junit(results: Sequence[PointResult], path: Path, incomplete: str = "") -> None:
    """A test case for each result, for continuous integration; and one that fails, if the results are ``incomplete``."""
    from gemmgen.sweep.junit import junit

    write(path, junit(ordered(results), incomplete))


def write_html(
    results: Sequence[PointResult],
    path: Path,
    against: tuple[str, Sequence[PointResult]] | None = None,
    live: int = 0,
    title: str = "",
) -> None:
    """A report with plots, in one file that needs nothing else; the rest is as of ``html_report``."""
    from gemmgen.sweep.report.page import html_report

    write(path, html_report(results, title, against, live))


EXPORTS: dict[str, Export] = {
    "csv": write_csv,
    "jsonl": write_jsonl,
    "t4": write_t4,
    "junit": write_junit,
    "html": write_html,
}
"""Format -> the function that writes it."""

_FORMS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "t4", ".xml": "junit", ".html": "html", ".htm": "html"}

_SCALARS = (
    *("sweep", "kind", "instance", "architecture", "device", "backend", "compiler", "stage", "status", "reason_code", "reason"),
    *("date", "digest"),
)

_ABSENT = object()


def _cell(value: object) -> str:
    if value is _ABSENT:
        return ""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if not isinstance(value, str):
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else json.dumps(plain(value))
    text = encodable(value).replace("\0", "\ufffd")
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
