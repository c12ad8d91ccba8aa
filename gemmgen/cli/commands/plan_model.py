"""``gemmgen plan-model``: the kernels of a model's problems, and the time that they would take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gemmgen.cli.options import NAMED_PATH, complete_device, json_option
from gemmgen.cli.output import Column, counted, duration, print_json, print_table, progress_bar


@click.command("plan-model")
@click.argument("file", metavar="PROBLEMS", type=NAMED_PATH)
@click.option("device_name", "--device", shell_complete=complete_device, help="The GPU to plan for; else this machine's, or an H200.")
@json_option
def command(file: Path, device_name: str | None, as_json: bool) -> None:
    """Show for each of PROBLEMS, a file with one a line, the kernel that operations take, its expected time and the roof's, and the sum.

    ``# count=32 us=5400`` after a problem gives the number of times the model computes it, and the total of their microseconds;
    gemmgen trace writes such files. If times are known, the gain of the whole model is shown.
    """
    from gemmgen.api import choose
    from gemmgen.core.errors import LaunchError, SpecError
    from gemmgen.dispatch.devices import problem_device
    from gemmgen.dispatch.profiles import read_counted
    from gemmgen.dispatch.table import table_for
    from gemmgen.hardware.target import device as find_device
    from gemmgen.perf.analysis.roofline import roofline
    from gemmgen.perf.cost_model import cost_model_of

    device = find_device(device_name) if device_name else problem_device(None)
    problems = read_counted(file)
    table_for(device)  # a damaged table is an error of none of the problems
    rows: list[dict[str, Any]] = []
    with progress_bar() as progress:
        task = progress.add_task("choosing", total=len(problems))
        for one in problems:
            row: dict[str, Any] = {"problem": one.problem, "count": one.count, "recorded_us": one.microseconds}
            try:
                chosen = choose(one.problem, device)
                assert chosen.choice is not None
                option = chosen.choice.chosen
                roofs = roofline(cost_model_of(chosen.plan.spec.kind).cost(chosen.plan, chosen.dimensions), device)
                row |= {"takes": option.candidate.label, "estimate": option.source, "seconds": option.seconds, "roof": roofs.least_seconds}
            except (LaunchError, SpecError) as error:
                row["unserved"] = str(error).splitlines()[0]
            rows.append(row)
            progress.advance(task)
    served = [row for row in rows if "seconds" in row]
    timed = [row for row in served if row["recorded_us"] is not None]
    totals = {
        "expected_us": sum(row["count"] * row["seconds"] for row in served) * 1e6,
        "roof_us": sum(row["count"] * row["roof"] for row in served) * 1e6,
        "recorded_us": sum(row["recorded_us"] for row in timed) if timed else None,
        "expected_of_recorded_us": sum(row["count"] * row["seconds"] for row in timed) * 1e6 if timed else None,
    }
    if as_json:
        print_json({"device": device.name, "problems": rows, "totals": totals})
        return
    columns = [Column("problem", folds=True), Column("count", "right"), Column("takes", folds=True), Column("each", "right")]
    columns += [Column("roof", "right"), Column("of roof", "right"), Column("all", "right"), Column("recorded", "right")]
    print_table(columns, [_cells(row) for row in rows])
    click.echo(
        f"\nOn the {device.name}: {counted(len(served), 'problem')} take {duration(totals['expected_us'] * 1e-6)} together; ", nl=False
    )
    click.echo(f"the roofs allow {duration(totals['roof_us'] * 1e-6)}.")
    if totals["recorded_us"]:
        before, after = totals["recorded_us"], totals["expected_of_recorded_us"] or 0.0
        gain = f"{before / after:.2f} times as fast" if after else "nothing to compare with"
        click.echo(f"Recorded: {duration(before * 1e-6)} for {counted(len(timed), 'problem')}, expected {duration(after * 1e-6)}: {gain}.")
    for row in rows:
        if "unserved" in row:
            click.echo(f"Not served: {row['problem']}: {row['unserved']}", err=True)


def _cells(row: dict[str, Any]) -> list[str]:
    recorded = "" if row["recorded_us"] is None else duration(row["recorded_us"] * 1e-6)
    if "unserved" in row:
        return [row["problem"], str(row["count"]), "not served", "", "", "", "", recorded]
    each, roof = row["seconds"], row["roof"]
    share = f"{roof / each:.0%}" if each else ""
    return [row["problem"], str(row["count"]), row["takes"], duration(each), duration(roof), share, duration(each * row["count"]), recorded]
