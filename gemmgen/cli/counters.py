"""Output of a launch's counters: a table of the lines that access memory, and the instructions by class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gemmgen.cli.output import Column, count, counted, print_table, styled

if TYPE_CHECKING:
    from rich.text import Text

    from gemmgen.emulator.counters import Counters, LineCounters, Tally

_LOADS = ("load", "ldmatrix")
_STORES = ("store", "stmatrix", "cp.async")


def print_counters(counters: Counters) -> None:
    """The table by line, totals below it, and what the columns mean."""
    lines = counters.memory_lines
    files = {line.file for line in lines}
    rows = [[_where(line, len(files) > 1), line.text, *_cells(line.tally)] for line in lines]
    rows.append([styled("total", "bold"), "", *_cells(counters.total)])
    print_table(
        [
            Column("line", "right"),
            Column("source", folds=True),
            Column("shared ld", "right"),
            Column("shared st", "right"),
            Column("conflicts", "right"),
            Column("ideal", "right"),
            Column("sectors", "right"),
            Column("efficiency", "right"),
        ],
        rows,
    )
    classes = sorted(counters.total.instructions.items(), key=lambda item: -item[1])
    click.echo("\nInstructions of warps: " + ", ".join(f"{count(number)} {name}" for name, number in classes) + ".")
    click.echo(f"Blocks passed {counted(counters.barriers, 'barrier')}.")
    click.echo(
        "shared ld, st: wavefronts of shared memory, of which conflicts are due to banks; ideal: the fewest for as many words.\n"
        "sectors: pieces of 32 bytes of global memory; efficiency: the part of their bytes that was asked for."
    )
    atomics = counters.total.shared_memory.get("atomic")
    if atomics is not None:
        click.echo(f"Wavefronts of {counted(atomics.requests, 'shared-memory atomic')} are not predicted.")


def _where(line: LineCounters, name_file: bool) -> str | Text:
    place = str(line.line) if line.line else "?"
    return f"{line.file}:{place}" if name_file else place


def _cells(tally: Tally) -> list[str | Text]:
    shared, traffic = tally.shared_memory, tally.global_total
    loads = sum(shared[kind].wavefronts for kind in _LOADS if kind in shared)
    stores = sum(shared[kind].wavefronts for kind in _STORES if kind in shared)
    total = tally.shared_total
    return [
        _number(loads),
        _number(stores),
        styled(count(total.conflicts), "red") if total.conflicts else _number(0),
        _number(total.ideal),
        _number(traffic.sectors),
        f"{traffic.efficiency:.0%}" if traffic.sectors else "",
    ]


def _number(value: int) -> str:
    return count(value) if value else ""
