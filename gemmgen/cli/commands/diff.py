"""``gemmgen diff``: two kernels compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemmgen.cli.options import NAMED_PATH, architecture_option, complete_device, complete_override, complete_spec, json_option
from gemmgen.cli.output import Column, print_json, print_table, styled
from gemmgen.cli.selection import PlannedSpec, find_specs, plan_specs, write_output
from gemmgen.core.errors import SpecError

if TYPE_CHECKING:
    from rich.text import Text

    from gemmgen.hardware.target import Architecture
    from gemmgen.present.comparison import Change, Comparison


@click.command("diff")
@click.argument("first", metavar="A", shell_complete=complete_spec)
@click.argument("second", metavar="[B]", required=False, shell_complete=complete_spec)
@click.option("set_both", "--set", metavar="PATH=VALUE", multiple=True, shell_complete=complete_override, help="Replace a field of both.")
@click.option("set_first", "--set-a", metavar="PATH=VALUE", multiple=True, help="Replace a field of A only.")
@click.option(
    "set_second", "--set-b", metavar="PATH=VALUE", multiple=True, help="Replace a field of B only; B may then be left out, and is A."
)
@architecture_option("Architecture to compile both for; else the device's.")
@click.option(
    "device_name", "--device", default="H200", show_default=True, shell_complete=complete_device, help="The GPU of roofs and times."
)
@click.option("source", "--source/--no-source", default=True, help="Show the diff of the sources.")
@click.option("output", "-o", "--output", type=NAMED_PATH, metavar="FILE.html", help="Write a page, with pictures side by side.")
@json_option
def command(
    first: str,
    second: str | None,
    set_both: Sequence[str],
    set_first: Sequence[str],
    set_second: Sequence[str],
    architecture: str | None,
    device_name: str,
    source: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compare two specs, A and B, or two variants of one: fields, plan, source, registers, machine code, counters, predicted time.

    \b
    gemmgen diff gemm/v0_naive gemm/v1_tiled
    gemmgen diff gemm/v1_tiled --set-b mainloop.stages=2 -o stages.html
    """  # fmt: skip
    from gemmgen.cli.compilation import compile_plans
    from gemmgen.dispatch.prediction import predicted_seconds
    from gemmgen.hardware.target import architecture as find_architecture
    from gemmgen.hardware.target import device as find_device
    from gemmgen.perf.analysis.report import analyse
    from gemmgen.present.comparison import compare

    if second is None and not set_first and not set_second:
        raise click.UsageError("name two specs, or one and what --set-b changes in it")
    device = find_device(device_name)
    target = find_architecture(architecture) if architecture else device.architecture
    sides = [_planned(first, [*set_both, *set_first], target), _planned(second or first, [*set_both, *set_second], target)]
    binaries = compile_plans([side.plan for side in sides])
    one, other = (analyse(side.plan, binary, device) for side, binary in zip(sides, binaries, strict=True))
    labels = (_label(sides[0], set_first, second is None), _label(sides[1], set_second, second is None))
    times = [predicted_seconds(side.plan, device) for side in sides]
    found = compare(labels, one, other, (times[0], times[1]))
    if output is not None:
        from gemmgen.present.web.diff import diff_page

        changed = write_output(output, diff_page(found, [side.plan for side in sides], device))
        click.echo(f"{'written  ' if changed else 'unchanged'}  {output}", err=as_json)
    if as_json:
        print_json(found.to_json())
    elif output is None:
        _print(found, source)


def _planned(name: str, overrides: Sequence[str], target: Architecture) -> PlannedSpec:
    from gemmgen.cli.host import are_for_processors

    files = find_specs([name])
    if len(files) != 1:
        raise SpecError(f"{name} holds {len(files)} specs; diff takes one on each side")
    if are_for_processors(files):
        raise click.UsageError("diff compares kernels of GPUs; gemmgen analyze shows those of processors")
    (planned,) = plan_specs(files, overrides, target)
    return planned


def _label(side: PlannedSpec, overrides: Sequence[str], with_overrides: bool) -> str:
    return " ".join([side.file.label, *overrides]) if with_overrides or overrides else side.file.label


def _print(found: Comparison, source: bool) -> None:
    before, after = found.names
    if found.same:
        click.echo(f"{before} and {after} are the same kernel.")
        return
    groups = {
        "Spec": found.spec, "Plan": found.plan, f"Resources and time ({found.device})": found.resources,
        "Machine code": found.mix, f"Counters of one case ({' / '.join(dict.fromkeys(found.case))})": found.counters,
    }  # fmt: skip
    for title, changes in groups.items():
        if changes:
            click.secho(f"\n{title}\n", bold=True)
            _print_changes(changes, before, after)
    if found.missing:
        click.echo(f"\nMachine code is not compared: {found.missing}")
    if source and found.source:
        click.secho("\nSource\n", bold=True)
        for line in found.source:
            click.secho(line, fg={"+": "green", "-": "red", "@": "cyan"}.get(line[:1]))


def _print_changes(changes: Sequence[Change], before: str, after: str) -> None:
    columns = [Column("", folds=True), Column(before, "right", folds=True), Column(after, "right", folds=True), Column("change", "right")]
    rows: list[list[str | Text]] = [
        [change.name, change.before, change.after, styled(f"{change.difference:+,.6g}" if change.difference is not None else "", "dim")]
        for change in changes
    ]
    print_table(columns, rows)
