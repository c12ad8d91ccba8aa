"""Output of results: tables that fold instead of cutting off, JSON, progress on standard error."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from gemmgen.core.text import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; one that folds gives way when the terminal is narrow."""

    title: str
    align: Literal["left", "right"] = "left"
    folds: bool = False


FOLDED_WIDTH = 20
"""Characters that a column which folds keeps at least, before a table becomes cards."""

LINE_SECONDS = 10.0
"""Between two lines of progress where standard error is no terminal."""


def print_json(data: object) -> None:
    """``data`` as JSON; numbers that JSON does not have become null."""
    click.echo(json.dumps(_finite(data), indent=2))


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str | Text]]) -> None:
    """A table on standard output, as wide as the terminal; as wide as its content where there is none.

    Where the terminal is too narrow to show every column, each row becomes a card: the value of the first column, and below it all others
    by their titles."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    texts = [[Text(printable(cell)) if isinstance(cell, str) else cell for cell in row] for row in rows]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(Text(column.title), justify=column.align, overflow="fold", no_wrap=not column.folds)
    for row in texts:
        table.add_row(*row)
    widths = [max([len(column.title), *(row[index].cell_len for row in texts)]) for index, column in enumerate(columns)]
    gained = sum(max(width - FOLDED_WIDTH, 0) for column, width in zip(columns, widths, strict=True) if column.folds)
    if texts and _natural_width(table) - gained > _console(table).width:
        _print_cards(columns, texts)
    else:
        print_rich(table)


def _print_cards(columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
    """Each row of a table on separate lines, under the value of its first column."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    blocks: list[RenderableType] = []
    for row in rows:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for column, cell in list(zip(columns, row, strict=True))[1:]:
            if cell.plain:
                grid.add_row(Text(f"  {column.title}"), cell)
        blocks += [*([Text("")] if blocks else []), Text(row[0].plain, style="bold"), grid]
    print_rich(Group(*blocks))


def print_rich(renderable: RenderableType) -> None:
    """Anything of rich's on standard output, never cut off."""
    console = _console(renderable)
    with console.capture() as captured:
        console.print(renderable)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def styled(text: str, style: str) -> Text:
    """A piece of text in a colour."""
    from rich.text import Text

    return Text(text, style=style)


@contextmanager
def progress_bar() -> Iterator[Progress | LineProgress]:
    """Progress on standard error: a bar on a terminal, elsewhere a line every ``LINE_SECONDS``."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if not sys.stderr.isatty():
        yield LineProgress()
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield progress


class LineProgress:
    """Progress where no terminal can show a bar: a line on standard error when a task advances ``LINE_SECONDS`` after the last one."""

    def __init__(self) -> None:
        self._began = self._written = time.monotonic()
        self._tasks: list[tuple[str, float, float | None]] = []

    def add_task(self, description: str, total: float | None = None) -> TaskID:
        """A new task; ``total`` is the number of its steps, if that is known."""
        from rich.progress import TaskID

        self._tasks.append((description, 0.0, total))
        return TaskID(len(self._tasks) - 1)

    def update(self, task: TaskID, *, description: str | None = None, completed: float | None = None, total: float | None = None) -> None:
        """Changes the description of a task, its number of completed steps, or that of all its steps."""
        before, done, known = self._tasks[task]
        self._tasks[task] = (
            before if description is None else description,
            done if completed is None else completed,
            known if total is None else total,
        )
        self._write(task)

    def advance(self, task: TaskID, advance: float = 1) -> None:
        """Counts steps of a task as completed."""
        description, done, total = self._tasks[task]
        self._tasks[task] = (description, done + advance, total)
        self._write(task)

    def _write(self, task: TaskID) -> None:
        now = time.monotonic()
        if now - self._written < LINE_SECONDS:
            return
        self._written = now
        description, done, total = self._tasks[task]
        steps = f"{count(done)} of {count(total)}" if total else count(done)
        click.echo(printable(f"{description}: {steps}, {now - self._began:.0f} s"), err=True)


def count(number: float) -> str:
    """``1,234,567``."""
    return f"{number:,.0f}"


def counted(number: int, noun: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it, with three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= factor:
            return f"{_three_digits(seconds / factor)} {unit}"
    return f"{_three_digits(seconds * 1e9)} ns" if seconds else "0 s"


def rate(value: float, unit: str) -> str:
    """A large number with an SI prefix: ``65.5 TFLOP/s``."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{_three_digits(value / factor)} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}"


def operation_unit(peak: str) -> str:
    """Names of operations at that peak of a device."""
    return "OP" if peak.startswith("int") else "FLOP"


def _three_digits(value: float) -> str:
    if 0 < value < 0.1:
        return f"{value:.2g}"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _console(renderable: RenderableType) -> Console:
    from rich.console import Console

    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return Console(highlight=False, width=max(_natural_width(renderable), 1))
    return Console(highlight=False)


def _natural_width(renderable: RenderableType) -> int:
    """Characters that the longest line takes where nothing is folded."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(highlight=False)
    return Measurement.get(console, console.options.update(max_width=100_000), renderable).maximum


def _finite(data: object) -> Any:
    match data:
        case float():
            return data if math.isfinite(data) else None
        case dict():
            return {str(key): _finite(value) for key, value in data.items()}
        case list() | tuple():
            return [_finite(value) for value in data]
    return data
