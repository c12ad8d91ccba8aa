"""Output of a launch's counters: a table of the lines that access memory, and the instructions by class."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gemmgen.cli.output import Column, count, counted, print_table, styled
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from rich.text import Text

    from gemmgen.emulator.counters import Counters, LineCounters, Tally

_QUANTITIES = ("shared ld", "shared st", "conflicts", "ideal", "sectors", "efficiency")
_TABLE_WIDTH = 110
"""Columns of a terminal from which on the table leaves room for the source."""


def print_counters(counters: Counters) -> None:
    """The table by line, totals below it, and the meaning of the columns. A narrow terminal has two lines for each line of the source."""
    lines = counters.memory_lines
    files = {line.file for line in lines}
    rows = [[_where(line, len(files) > 1), line.text, *_cells(line.tally)] for line in lines]
    rows.append([styled("total", "bold"), "", *_cells(counters.total)])
    columns = [Column("line", "right"), Column("source", folds=True), *(Column(name, "right") for name in _QUANTITIES)]
    width = terminal_width()
    if width is not None and width < _TABLE_WIDTH:
        for row in rows:
            _print_lines([str(cell) for cell in row], width)
    else:
        print_table(columns, rows)
    classes = sorted(counters.total.instructions.items(), key=lambda item: -item[1])
    sentences = [
        "Instructions of warps: " + ", ".join(f"{count(number)} {name}" for name, number in classes) + ".",
        f"Blocks passed {counted(counters.barriers, 'barrier')}.",
        "shared ld, st: wavefronts of shared memory, of which conflicts are due to banks; ideal: the fewest for as many words.",
        "sectors: pieces of 32 bytes of global memory; efficiency: the part of their bytes that was asked for.",
    ]
    atomics = counters.total.shared_memory.get("atomic")
    if atomics is not None:
        sentences.append(f"Wavefronts of {counted(atomics.requests, 'shared-memory atomic')} are not predicted.")
    click.echo()
    for text in sentences:
        click.echo(text if width is None else textwrap.fill(text, width))


def terminal_width() -> int | None:
    """Columns of the terminal, or those that COLUMNS tells; None where neither is known."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else None


def _print_lines(cells: Sequence[str], width: int) -> None:
    """A source line, cut off if necessary, and its counts below it."""
    where, source, *values = cells
    indent = " " * (len(where) + 2)
    room = max(width - len(indent), 20)
    click.echo(printable(f"{where}  {source if len(source) <= room else source[: room - 3] + '...'}".rstrip()))
    quantities = ", ".join(f"{value} {name}" for value, name in zip(values, _QUANTITIES, strict=True) if value)
    click.echo(textwrap.fill(quantities, width, initial_indent=indent, subsequent_indent=indent))


def _where(line: LineCounters, name_file: bool) -> str | Text:
    place = str(line.line) if line.line else "?"
    return f"{line.file}:{place}" if name_file else place


def _cells(tally: Tally) -> list[str | Text]:
    traffic, total = tally.global_total, tally.shared_total
    return [
        _number(tally.shared_loads),
        _number(tally.shared_stores),
        styled(count(total.conflicts), "red") if total.conflicts else _number(0),
        _number(total.ideal),
        _number(traffic.sectors),
        f"{traffic.efficiency:.0%}" if traffic.sectors else "",
    ]


def _number(value: int) -> str:
    return count(value) if value else ""
