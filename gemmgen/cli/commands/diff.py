"""``gemmgen diff``: two kernels compared, of specs or of files."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemmgen.cli.options import (
    NAMED_PATH,
    architecture_option,
    complete_device,
    complete_override,
    complete_spec,
    json_option,
    parse_dimensions,
)
from gemmgen.cli.output import FOLDED_WIDTH, Column, print_json, print_table, styled
from gemmgen.cli.pictures import require_page
from gemmgen.cli.problem import AskedProblems, problem_options
from gemmgen.cli.selection import PlannedSpec, SpecFile, find_specs, plan_specs, tell_written, write_output
from gemmgen.core.errors import SpecError
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from rich.text import Text

    from gemmgen.hardware.target import Architecture, Device
    from gemmgen.perf.analysis.report import Analysis
    from gemmgen.present.comparison import Change, Comparison, Side
    from gemmgen.toolchain.nvrtc import Binary

LONGEST_VALUE = 32
"""Characters of a value that a table shows; longer ones are sentences, which stand below it."""

WIDTH = 100
"""Columns of the sentences, where the terminal has no fewer."""


@click.command("diff")
@click.argument("first", metavar="[A]", required=False, shell_complete=complete_spec)
@click.argument("second", metavar="[B]", required=False, shell_complete=complete_spec)
@problem_options()
@click.option(
    "set_both",
    "--set",
    metavar="PATH=VALUE",
    multiple=True,
    shell_complete=complete_override,
    help="Replace a field in both specs; with A alone, in the spec that A is compared with.",
)
@click.option(
    "set_first", "--set-a", metavar="PATH=VALUE", multiple=True, shell_complete=complete_override, help="Replace a field of A only."
)
@click.option(
    "set_second",
    "--set-b",
    metavar="PATH=VALUE",
    multiple=True,
    shell_complete=complete_override,
    help="Replace a field of B only; without B, A is compared with its changed form.",
)
@click.option("entries", "--entry", metavar="NAME", multiple=True, help="For files: the kernel; a second one is that of B.")
@click.option("--grid", metavar="X,Y,Z", callback=parse_dimensions, help="For files: blocks of a launch whose counters are compared.")
@click.option("--block", metavar="X,Y,Z", callback=parse_dimensions, help="For files: threads of a block.")
@click.option("arguments", "--arg", metavar="ARG", multiple=True, help="For files: one for each parameter, as gemmgen emulate takes them.")
@click.option("shared_bytes", "--shared", type=click.IntRange(min=0), default=0, metavar="BYTES", help="For files: dynamic shared memory.")
@architecture_option("Architecture to compile both for; else the device's.")
@click.option(
    "device_name", "--device", default="H200", show_default=True, shell_complete=complete_device, help="The GPU of roofs and times."
)
@click.option("source", "--source/--no-source", default=True, help="Show the diff of the sources.")
@click.option("-o", "--output", type=NAMED_PATH, metavar="FILE.html", help="Write a page, with pictures side by side.")
@json_option
def command(
    first: str | None,
    second: str | None,
    asked: AskedProblems,
    set_both: Sequence[str],
    set_first: Sequence[str],
    set_second: Sequence[str],
    entries: Sequence[str],
    grid: tuple[int, ...] | None,
    block: tuple[int, ...] | None,
    arguments: Sequence[str],
    shared_bytes: int,
    architecture: str | None,
    device_name: str,
    source: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compare A and B, specs or files of kernels, or two variants of one: fields, plan, source, registers, machine code, counters,
    predicted time.

    A .cu file that gemmgen rendered is compared like the spec in its header, with the file's current text. For any other file, and for
    PTX, counters are compared if a launch is given.

    \b
    gemmgen diff gemm/v0_naive gemm/v1_tiled
    gemmgen diff gemm/v1_tiled --set-b mainloop.stages=2 -o stages.html
    gemmgen diff mine.cu better.cu --grid 4 --block 256 --arg 'f32[1024]=random' --arg 'f32[1024]'
    """
    from gemmgen.cli.file_comparison import FileLaunch, file_side, is_file_of_kernels
    from gemmgen.hardware.target import architecture as find_architecture
    from gemmgen.hardware.target import device as find_device
    from gemmgen.perf.analysis.report import on_one_case
    from gemmgen.present.comparison import compare

    if any(text.strip().startswith("cpu:") for text in asked.texts):
        raise click.UsageError("diff compares kernels of GPUs; gemmgen analyze shows those of processors")
    named = [name for name in (first, second) if name is not None]
    chosen = {file.label: file for file in asked.files(named[:0], device_name, architecture)} if asked.texts else {}
    first, second, *more = [*chosen, *named, None, None]
    if first is None or more != [None] * len(more):
        raise click.UsageError("give two specs or files, one spec and a --set, or --problem instead of a spec")
    if second is None and not set_first and not set_second:
        if not set_both:
            raise click.UsageError("give two specs or files, or one spec and a --set")
        set_both, set_second = (), set_both
    names, overrides = (first, second or first), ([*set_both, *set_first], [*set_both, *set_second])
    files = [name not in chosen and is_file_of_kernels(name) for name in names]
    if any(of_file and changed for of_file, changed in zip(files, overrides, strict=True)):
        raise click.UsageError("--set changes fields of specs, which a file of kernels does not have")
    if not any(files) and (entries or grid or block or arguments or shared_bytes):
        raise click.UsageError("--entry, --grid, --block, --arg and --shared are for files of kernels")
    if len(entries) > 2 or (grid is None) != (block is None):
        raise click.UsageError("--entry comes once or twice" if len(entries) > 2 else "--grid and --block go together")
    if output is not None:
        require_page(output)
    device = find_device(device_name)
    target = find_architecture(architecture) if architecture else device.architecture
    sides: list[Side] = []
    if any(files):
        for place, (name, changed) in enumerate(zip(names, overrides, strict=True)):
            if files[place]:
                entry = entries[min(place, len(entries) - 1)] if entries else None
                sides.append(file_side(name, FileLaunch(entry, grid, block, shared_bytes, tuple(arguments)), target, device))
            else:
                one = _analysed(
                    chosen.get(name, name), changed, (set_first, set_second)[place], second is None, target, device, traffic=True
                )
                sides.append(_spec_side(*one[:2]))
    else:
        one, other = (
            _analysed(chosen.get(name, name), changed, (set_first, set_second)[place], second is None, target, device, traffic=False)
            for place, (name, changed) in enumerate(zip(names, overrides, strict=True))
        )
        analyses = on_one_case((one[1], one[2]), (other[1], other[2]))
        sides = [_spec_side(side[0], analysis) for side, analysis in zip((one, other), analyses, strict=True)]
    comparison = compare(sides[0], sides[1], device.name)
    if output is not None:
        from gemmgen.present.web.diff import diff_page

        changed_file = write_output(output, diff_page(comparison, device))
        tell_written(output, changed_file, err=as_json)
    if as_json:
        print_json(comparison.to_json())
    elif output is None:
        _print(comparison, source)


def _analysed(
    name: str | SpecFile, overrides: Sequence[str], own: Sequence[str], of_one: bool, target: Architecture, device: Device, *, traffic: bool
) -> tuple[str, Analysis, Binary]:
    """A spec's label, its analysis and its binary."""
    from gemmgen.cli.compilation import compile_plans
    from gemmgen.perf.analysis.report import analyse

    planned = _planned(name, overrides, target)
    (binary,) = compile_plans([planned.plan])
    return _label(planned, own, of_one), analyse(planned.plan, binary, device, traffic=traffic), binary


def _spec_side(label: str, analysis: Analysis) -> Side:
    from gemmgen.dispatch.prediction import predicted_seconds
    from gemmgen.present.comparison import instance_side

    return instance_side(label, analysis, predicted_seconds(analysis.plan, analysis.device))


def _planned(name: str | SpecFile, overrides: Sequence[str], target: Architecture) -> PlannedSpec:
    from gemmgen.cli.host import are_for_processors

    files = [name] if isinstance(name, SpecFile) else find_specs([name])
    if len(files) != 1:
        raise SpecError(f"{name} holds {len(files)} specs; diff takes one on each side")
    if are_for_processors(files):
        raise click.UsageError("diff compares kernels of GPUs; gemmgen analyze shows those of processors")
    (planned,) = plan_specs(files, overrides, target)
    return planned


def _label(side: PlannedSpec, overrides: Sequence[str], with_overrides: bool) -> str:
    return " ".join([side.file.label, *overrides]) if with_overrides or overrides else side.file.label


def _print(comparison: Comparison, source: bool) -> None:
    before, after = comparison.names
    if comparison.same:
        click.echo(printable(f"{before} and {after} are the same kernel."))
        return
    groups = {
        "Spec": comparison.spec,
        "Plan": comparison.plan,
        f"Resources and time ({comparison.device})": comparison.resources,
        "Machine code": comparison.mix,
        f"Counters of one case ({' / '.join(dict.fromkeys(comparison.case))})": comparison.counters,
    }
    for title, changes in groups.items():
        if changes:
            click.secho(printable(f"\n{title}\n"), bold=True)
            print_changes(changes, before, after)
    if comparison.missing:
        click.echo(printable(f"\nMachine code is not compared: {comparison.missing}"))
    if not comparison.counters and "not counted" in (uncounted := next((case for case in comparison.case if case.startswith("not")), "")):
        click.echo(printable(f"\nCounters are not compared: {uncounted.removeprefix('not counted: ')}"))
    if source and comparison.source:
        click.secho("\nSource\n", bold=True)
        for line in comparison.source:
            click.secho(printable(line), fg={"+": "green", "-": "red", "@": "cyan"}.get(line[:1]))


def print_changes(changes: Sequence[Change], before: str, after: str) -> None:
    """A table of values, then the sentences, each folded under its name: first the one of A, then that of B."""
    sentences = [change for change in changes if max(len(change.before), len(change.after)) > LONGEST_VALUE]
    values = [change for change in changes if change not in sentences]
    if values:
        columns = [
            Column("", folds=True),
            Column(before, "right", folds=True),
            Column(after, "right", folds=True),
            Column("change", "right"),
        ]
        rows: list[list[str | Text]] = [
            [change.name, change.before, change.after, styled(f"{change.difference:+,.6g}" if change.difference is not None else "", "dim")]
            for change in values
        ]
        print_table(columns, rows)
    if sentences:
        gap = "\n" if values else ""
        click.echo(printable(f"{gap}- {before}\n+ {after}\n"))
    for change in sentences:
        click.secho(printable(change.name), bold=True)
        for sign, text, colour in (("-", change.before, "red"), ("+", change.after, "green")):
            if text:
                click.secho(_folded(f"  {sign} {printable(text)}"), fg=colour)


def _folded(line: str) -> str:
    """A line of at most ``WIDTH`` columns, or as many as the terminal has; the lines that continue it are indented."""
    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    return textwrap.fill(line, max(width, FOLDED_WIDTH), subsequent_indent="    ", break_on_hyphens=False)
