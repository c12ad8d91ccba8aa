"""``gemmgen tune``: times instances on this machine's GPU, or its processor, so that operations know which to take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemmgen.cli import exit_codes
from gemmgen.cli.options import NAMED_PATH, Number, json_option
from gemmgen.cli.output import Column, counted, print_json, print_table, progress_bar
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from gemmgen.dispatch.evaluation import Regret
    from gemmgen.dispatch.table import Table


@click.command("tune")
@click.option("kinds", "--kind", metavar="KIND", multiple=True, help="Only problems of this kind. Repeatable; else all kinds.")
@click.option(
    "--problems",
    type=NAMED_PATH,
    metavar="FILE",
    help="Time the problems that FILE lists, one a line: gemm:512,512,512,nt",
)
@click.option(
    "grid_name",
    "--grid",
    type=click.Choice(["coarse", "fine"]),
    default="coarse",
    show_default=True,
    help="Which of the families' own problems to time.",
)
@click.option("--minutes", type=Number(0, 10_000), help="Do not start another problem after this many minutes.")
@click.option(
    "--most",
    type=click.IntRange(1, 1000),
    default=12,
    show_default=True,
    help="Instances to time for each problem: the best ones by the model, and three others.",
)
@click.option("-o", "--output", type=NAMED_PATH, metavar="FILE", help="The table; else that of this device.")
@click.option(
    "evaluated",
    "--evaluate",
    type=NAMED_PATH,
    metavar="TABLE",
    help="Time nothing: report the quality of the model's and the table's choices on problems that neither has seen.",
)
@click.option("processor", "--cpu", is_flag=True, help="Time the kernels for this machine's processor instead; takes some seconds, once.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    kinds: Sequence[str],
    problems: Path | None,
    grid_name: str,
    minutes: float | None,
    most: int,
    output: Path | None,
    evaluated: Path | None,
    processor: bool,
    as_json: bool,
) -> None:
    """Time the suitable instances for each problem on the GPU, and record the ranking in a table that ops.matmul and the other
    operations use.

    The table is written after each problem, so a repeated command continues where it stopped. Exits with 1 if an instance computes
    a wrong result.
    """
    from gemmgen.dispatch.tuning import grid, kinds_of, read_problems

    if processor:
        if kinds or problems or output or evaluated or minutes is not None or as_json:
            raise click.UsageError("--cpu goes with no other option: its few problems are fixed")
        _print_processor_choices()
        return
    chosen = kinds_of(kinds)
    if evaluated is not None:
        _evaluate(evaluated, chosen, as_json)
        return
    requests = read_problems(problems, chosen) if problems is not None else grid(chosen, grid_name == "fine")

    from gemmgen.core.errors import GemmgenError
    from gemmgen.dispatch.devices import as_device
    from gemmgen.dispatch.table import default_path
    from gemmgen.dispatch.tuning import Tuner
    from gemmgen.runtime.cuda.driver import gpu

    device = as_device(gpu())
    path = output or default_path(device.name)
    with progress_bar() as progress:
        task = progress.add_task("choosing kernels to time", total=None)

        def advance(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        tuner = Tuner(requests, path, None if minutes is None else 60 * minutes, lambda text: click.echo(text, err=True), advance, most)
        try:
            table, outcome = tuner.run()
        except OSError as error:
            raise GemmgenError(f"{path}: cannot be written: {error.strerror or error}") from None
    for reasons in (outcome.skipped, outcome.wrong):
        for text, reason in reasons.items():
            click.echo(printable(f"{text}: {reason.splitlines()[0]}"), err=True)
    if as_json:
        print_json(table.to_json())
    left = f", {outcome.left} left for want of time" if outcome.left else ""
    wrong = f", {len(outcome.wrong)} WRONG" if outcome.wrong else ""
    click.echo(
        f"{counted(outcome.timed, 'problem')} timed, {outcome.known} known already, {len(outcome.skipped)} skipped{wrong}{left}; "
        f"{path} holds {len(table.rows)}",
        err=as_json,
    )
    if outcome.wrong:
        context.exit(exit_codes.FAILED)


def _print_processor_choices() -> None:
    from itertools import product

    from gemmgen.core.errors import EnvironmentMissing
    from gemmgen.hardware.cpu import host_name
    from gemmgen.ops.host_tuning import REPRESENTATIVES, TUNED_TRANSPOSES, choice

    rows, seconds = [], 0.0
    for (shape, sizes), transpose in product(REPRESENTATIVES.items(), TUNED_TRANSPOSES):
        chosen = choice(shape, transpose)
        if chosen is None:
            raise EnvironmentMissing("this machine's processor runs none of the kernels of specs/cpu")
        seconds += chosen.seconds
        for name, us in chosen.us.items():
            rate = f"{2e-3 * sizes[0] * sizes[1] * sizes[2] / us:.0f}"
            rows.append(
                [shape, "x".join(map(str, sizes)), transpose.upper(), name, f"{us:.1f}", rate, "chosen" if name == chosen.name else ""]
            )
    columns = [Column("shapes"), Column("m x n x k"), Column("stored"), Column("instance", folds=True), Column("us", "right")]
    print_table([*columns, Column("GFLOP/s", "right"), Column("")], rows)
    click.echo(f"{host_name()}, one thread: found out in {seconds:.1f} s, which the cache remembers for ops.matmul.")


def _evaluate(path: Path, kinds: Sequence[str], as_json: bool) -> None:
    from gemmgen.dispatch.evaluation import regrets
    from gemmgen.dispatch.table import read_table
    from gemmgen.hardware.target import device

    table = read_table(path)
    of_kinds = [regret for regret in regrets(table, device(table.device)) if regret.row.kind in kinds]
    if as_json:
        print_json([_regret_json(regret) for regret in of_kinds])
    else:
        _print_regrets(table, of_kinds)


def _regret_json(regret: Regret) -> dict[str, object]:
    return {
        "kind": regret.row.kind,
        "problem": regret.row.problem,
        "best": regret.best,
        "best_us": regret.row.times[regret.best],
        "peer_us": regret.row.peer,
        "model_pick": regret.model_pick,
        "model_regret": regret.model,
        "table_pick": regret.table_pick,
        "table_regret": regret.table,
    }


def _print_regrets(table: Table, regrets: Sequence[Regret]) -> None:
    from gemmgen.dispatch.evaluation import mean

    rows = []
    for kind in dict.fromkeys(regret.row.kind for regret in regrets):
        mine = [regret for regret in regrets if regret.row.kind == kind]
        speedups = [value for regret in mine if (value := regret.beside_peer) is not None]
        for name, values in (("model", [r.model for r in mine]), ("table", [r.table for r in mine])):
            ordered = sorted(values)
            worst = max(mine, key=lambda r: r.model if name == "model" else r.table)
            beside = f"{_geometric_mean(speedups):.2f}" if speedups and name == "table" else ""
            rows.append(
                [
                    kind,
                    name,
                    str(len(values)),
                    f"{mean(values):.1%}",
                    f"{ordered[len(ordered) // 2]:.1%}",
                    f"{ordered[-1]:.1%}",
                    f"{sum(value <= 0.05 for value in values) / len(values):.0%}",
                    beside,
                    worst.row.problem,
                ]
            )
    columns = [
        Column("kind"),
        Column("chooses"),
        Column("problems", "right"),
        Column("mean", "right"),
        Column("median", "right"),
        Column("worst", "right"),
        Column("within 5%", "right"),
        Column("x peer", "right"),
        Column("worst problem", folds=True),
    ]
    if rows:
        print_table(columns, rows)
    click.echo(
        f"\n{table.device}: time of the chosen kernel over the best measured one, less 1; both choose as operations do, among the "
        "instances that were timed. The model knows no measured time of the table (its few figures are from 25 shapes of SGEMM on an "
        "H200); the table leaves the problem itself out."
    )


def _geometric_mean(values: Sequence[float]) -> float:
    from math import exp, log

    return exp(sum(map(log, values)) / len(values))
