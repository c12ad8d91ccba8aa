"""``gemmgen sweep``: every point of a parameter space, checked, compiled, verified and timed independently of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from gemmgen.cli import exit_codes
from gemmgen.cli.options import Number, json_option
from gemmgen.cli.output import counted, print_json
from gemmgen.core.errors import EnvironmentMissing
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from gemmgen.cli.sweep_search import Search
    from gemmgen.runtime.backends import BackendName
    from gemmgen.sweep.cluster import Cluster
    from gemmgen.sweep.engine import Engine, Listener, Settings
    from gemmgen.sweep.live_report import LiveReport
    from gemmgen.sweep.proposals import SamplerName
    from gemmgen.sweep.records import PointResult
    from gemmgen.sweep.selection import Selection
    from gemmgen.sweep.space import Space


Against = tuple[str, Sequence["PointResult"]]
"""The name of other results, and these."""
Exports = list[tuple[Callable[[Sequence["PointResult"], Path, str], None], Path]]
"""Writers, which are given the results, the file, and the reason why results are incomplete; and the files."""


def _complete_sweep(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from gemmgen.sweep.file import shipped_sweeps

    names = [name for name in shipped_sweeps() if name.startswith(incomplete)]
    return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="file")]


def _complete_override(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from gemmgen.cli.options import complete_field
    from gemmgen.core.errors import GemmgenError
    from gemmgen.sweep.file import load_sweep

    try:
        base = load_sweep(context.params.get("sweep") or next(iter(context.args), ""))[0].base
    except GemmgenError:
        return complete_field([], incomplete)
    assert isinstance(base, dict), "load_sweep reads the base"
    return complete_field([str(base["kind"])], incomplete)


@click.command("sweep")
@click.argument("sweep", metavar="SWEEP", required=False, shell_complete=_complete_sweep)
@click.option(
    "overrides",
    "--set",
    metavar="PATH=VALUE",
    multiple=True,
    shell_complete=_complete_override,
    help="Replace one field of the base, or all values of the axis over it: mainloop.stages=[2,3]. Repeatable.",
)
@click.option("--where", metavar="EXPR", help="Only points for which this holds: 'mainloop.stages > 1 and plan.threads == 256'.")
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Only N points, drawn at random.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="S", help="Random seed for --sample and --search.")
@click.option(
    "--stages",
    type=click.Choice(["check", "compile", "verify", "bench"]),
    help="Last stage to run for each point; else the one in the sweep file.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show the number of points, the number that each rule rejects, and the estimated time.",
)
@click.option(
    "results_path", "--results", metavar="FILE", help="File that keeps the results between runs; else NAME.sqlite in this folder."
)
@click.option(
    "exports",
    "--export",
    metavar="FORMAT=FILE",
    multiple=True,
    help="Also write the results as csv, jsonl, t4, junit or html. Repeatable. Without SWEEP: all results in the file.",
)
@click.option("--against", metavar="FILE", help="Compare with the results in FILE, an earlier --results, here and in HTML reports.")
@click.option("--live", metavar="FILE.html", help="Update an HTML report while the sweep runs; open it in a browser.")
@click.option(
    "--backend",
    type=click.Choice(["auto", "emulator", "gpu"]),
    default="auto",
    show_default=True,
    help="Where to verify; auto takes the GPUs if there are any.",
)
@click.option("--jobs", type=click.IntRange(1, 4096), metavar="N", help="Processes beside those of the GPUs; else one for each CPU.")
@click.option(
    "--timeout",
    type=Number(0, 1e6, min_open=True),
    metavar="S",
    help="Seconds that a point may take in each stage, instead of the sweep's limits.",
)
@click.option("--retry", is_flag=True, help="Run points again that ended in timeout or runtime before.")
@click.option("--scheduler", metavar="ADDRESS", help="Run on a Dask cluster: tcp://host:8786, or tls://host:8786.")
@click.option("authority", "--tls-ca-file", metavar="FILE", help="For a tls:// scheduler: certificates of its authorities.")
@click.option("certificate", "--tls-cert", metavar="FILE", help="For a tls:// scheduler: this machine's certificate.")
@click.option("key", "--tls-key", metavar="FILE", help="For a tls:// scheduler: the private key to it.")
@click.option(
    "--search",
    type=click.Choice(["tpe", "nsga2", "random"]),
    help="Let Optuna choose the points instead of trying all.",
)
@click.option("--trials", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="Number of points that a search tries.")
@click.option(
    "objectives",
    "--objective",
    metavar="METRIC",
    multiple=True,
    help="Objective of a search and its winner: median_us (default), min:registers, max:operations_per_second. Repeatable.",
)
@click.option(
    "--winner",
    metavar="FILE",
    help="Verify the best point once more, time it against the second best, and write it as a spec.",
)
@click.option(
    "--allow-invalid",
    is_flag=True,
    help="Continue if axis values make no valid spec, for example because two fields exclude each other; without it, the exit status is 2.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    sweep: str | None,
    overrides: Sequence[str],
    where: str | None,
    sample: int | None,
    seed: int,
    stages: str | None,
    dry_run: bool,
    results_path: str | None,
    exports: Sequence[str],
    against: str | None,
    live: str | None,
    backend: BackendName,
    jobs: int | None,
    timeout: float | None,
    retry: bool,
    scheduler: str | None,
    authority: str | None,
    certificate: str | None,
    key: str | None,
    search: SamplerName | None,
    trials: int,
    objectives: Sequence[str],
    winner: str | None,
    allow_invalid: bool,
    as_json: bool,
) -> None:
    """Take all points of SWEEP, a YAML file or one that ships with gemmgen, through check, compile, verify and bench.

    Each point runs in a process that may hang or die without harm to the others. Results are kept one by one, so an interrupted sweep
    continues when the command is repeated. Exits with 1 if an accepted point fails, with 2 if axis values make no valid spec."""
    from gemmgen.cli.sweep_search import search_of, search_space
    from gemmgen.sweep.expression import Expression
    from gemmgen.sweep.file import Limits, load_sweep
    from gemmgen.sweep.machine import Machine, conditions_of, describe, gpu_environments
    from gemmgen.sweep.records import Stage
    from gemmgen.sweep.selection import Selection
    from gemmgen.sweep.space import Space

    if results_path == "":
        raise click.UsageError("--results needs the name of a file")
    if timeout is not None and not timeout > 0:
        raise click.UsageError("--timeout: need a number of seconds")
    before = _stored(against)
    reports = Reports(_writers(exports, before), before, _live_path(live))
    if sweep is None:
        _show_stored(results_path, reports, as_json)
        return
    _require_one_way(sample, where, search, dry_run)
    wanted = search_of(search, trials, seed, objectives, winner)
    condition = Expression("--where", where) if where is not None else None
    file, _ = load_sweep(sweep, overrides)
    space = Space(file, Stage(stages or file.stages))
    if search is not None or winner is not None:
        search_space(space)
    path = Path(results_path if results_path is not None else f"{file.name}.sqlite")
    limits = file.limits
    if timeout is not None:
        limits = Limits(check=timeout, compile=timeout, verify=timeout, bench=timeout, memory_gib=limits.memory_gib)
    cluster = _cluster(scheduler, limits.memory_gib, authority, certificate, key)
    try:
        try:
            machine: Machine = (
                cluster.describe(backend, space.stage, space.kind) if cluster else describe((backend, space.stage, space.kind))
            )
        except EnvironmentMissing as error:
            if not dry_run:
                raise
            click.echo(printable(f"This would not run here: {error}"), err=True)
            machine = Machine(backend="gpu")
        conditions = conditions_of(space, machine)
        gpus = gpu_environments() if machine.backend == "gpu" and not cluster else ()
        from gemmgen.sweep.engine import Settings

        settings = Settings(conditions, limits, jobs or 0, gpus, retry)
        run = Run(context, space, settings, cluster, path, reports, wanted, backend, as_json, allow_invalid)
        if search is not None:
            run.search()
            return
        selection = Selection(space, conditions, condition, sample, seed)
        if dry_run:
            _dry_run(context, selection, settings, path, as_json, allow_invalid)
            return
        run.evaluate(selection)
    finally:
        if cluster is not None:
            cluster.close()


@dataclass(frozen=True)
class Run:
    """One call of the command: its space, its workers, and where its results go."""

    context: click.Context
    space: Space
    settings: Settings
    cluster: Cluster | None
    path: Path
    reports: Reports
    wanted: Search
    backend: BackendName
    as_json: bool
    allow_invalid: bool

    def evaluate(self, selection: Selection) -> None:
        """Evaluates every point, and reports the results."""
        from gemmgen.cli.sweep_search import search_space, write_winner
        from gemmgen.sweep.engine import Engine
        from gemmgen.sweep.progress import Progress
        from gemmgen.sweep.search import ranked
        from gemmgen.sweep.store import ResultStore

        live = self.reports.begin(self.space.file.name)
        with (
            ResultStore(self.path) as store,
            Progress(self.space.file.name, selection.most) as progress,
            Engine(self.settings, store, _listeners(progress, live), self.cluster) as engine,
        ):
            progress.watch(lambda: selection.most - engine.duplicates)
            engine.evaluate(selection)

        def conclude() -> None:
            ranking = ranked(search_space(self.space), engine.results.values(), self.wanted.objectives)
            write_winner(self.wanted, ranking, self.space, self.backend)

        self._finish(engine, live, selection.left_out, conclude if self.wanted.winner else None)

    def search(self) -> None:
        """Evaluates the points that a sampler proposes, and reports the results."""
        from gemmgen.cli.sweep_search import describe_search, run_search, search_json, write_winner
        from gemmgen.sweep.engine import Engine
        from gemmgen.sweep.progress import Progress
        from gemmgen.sweep.store import ResultStore

        wanted, space = self.wanted, self.space
        live = self.reports.begin(self.space.file.name)
        with (
            ResultStore(self.path) as store,
            Progress(space.file.name, wanted.trials * len(space.sizes)) as progress,
            Engine(self.settings, store, _listeners(progress, live), self.cluster) as engine,
        ):
            outcome = run_search(wanted, space, self.settings, engine, store, self.cluster)
        if not self.as_json:
            click.echo("\n".join(describe_search(wanted, outcome)) + "\n")
        conclude = (lambda: write_winner(wanted, outcome, space, self.backend)) if wanted.winner else None
        self._finish(engine, live, conclude=conclude, search=search_json(wanted, outcome))

    def _finish(
        self,
        engine: Engine,
        live: LiveReport | None,
        left_out: int = 0,
        conclude: Callable[[], None] | None = None,
        search: dict[str, Any] | None = None,
    ) -> None:
        """Writes the exports, prints the summary, settles the winner with ``conclude``, and exits with the matching status."""
        from gemmgen.cli.sweep_output import best_points, by_reason, print_best, print_counts, totals
        from gemmgen.sweep.model_view import unseen_axes

        results = list(engine.results.values())
        if self.as_json:
            print_json(
                {
                    "sweep": self.space.file.name,
                    "stage": str(self.space.stage),
                    "points": len(results),
                    "duplicates": engine.duplicates,
                    "known": engine.reused,
                    "left_out": left_out,
                    "interrupted": engine.interrupted,
                    "counts": by_reason(results),
                    "best": [result.digest for result in best_points(results)],
                    "undistinguished_by_model": list(unseen_axes(results)),
                    **({"search": search} if search is not None else {}),
                    **self.reports.compared_json(results),
                    "results": [result.to_json() for result in results],
                }
            )
        else:
            if results:
                print_counts(results)
                print_best(results)
            self.reports.print_comparison(results)
            more = [
                f"{engine.reused:,} from an earlier run" if engine.reused else "",
                f"{engine.duplicates:,} further combinations give points that others give too" if engine.duplicates else "",
                f"{left_out:,} left out by --where" if left_out else "",
            ]
            click.echo(f"\n{'; '.join(part for part in [totals(results), *more] if part)}. The results are in {printable(str(self.path))}.")
        self.reports.write(results, "the sweep was interrupted: points are missing" if engine.interrupted else "")
        if live is not None:
            live.finish(results)
        if engine.interrupted:
            click.echo("Interrupted: run the same command again to continue from here.", err=True)
            self.context.exit(exit_codes.INTERRUPTED)
        _require_valid(results, self.allow_invalid)
        _tell_none_accepted(results)
        if conclude is not None:
            conclude()
        if any(result.failed for result in results):
            self.context.exit(exit_codes.FAILED)


def _dry_run(context: click.Context, selection: Selection, settings: Settings, path: Path, as_json: bool, allow_invalid: bool) -> None:
    """Checks every point and runs none."""
    from dataclasses import replace

    from gemmgen.cli.sweep_output import by_reason, print_counts, totals
    from gemmgen.sweep.engine import Engine
    from gemmgen.sweep.estimate import estimate
    from gemmgen.sweep.progress import Progress, clock
    from gemmgen.sweep.records import Status
    from gemmgen.sweep.store import ResultStore

    stored: list[PointResult] = []
    if path.exists():
        with ResultStore(path, read_only=True) as store:
            stored = store.all()
    check_only = replace(settings, check_only=True)
    with Progress(selection.space.file.name, selection.most) as progress, Engine(check_only, None, progress) as engine:
        engine.evaluate(selection)
    results = list(engine.results.values())
    known = {result.digest for result in stored}
    waiting = [result for result in results if result.status is Status.CORRECT and result.digest not in known]
    conditions = settings.conditions
    jobs = settings.processes
    expected = estimate(waiting, stored, conditions.stage, conditions.backend, conditions.cases, jobs, len(settings.gpus))
    if as_json:
        print_json(
            {
                "sweep": selection.space.file.name,
                "stage": str(conditions.stage),
                "combinations": selection.space.size,
                "points": len(results),
                "duplicates": engine.duplicates,
                "left_out": selection.left_out,
                "known": len([result for result in results if result.digest in known]),
                "to_run": len(waiting),
                "interrupted": engine.interrupted,
                "counts": by_reason(results),
                "estimate": {
                    "seconds": expected.seconds,
                    "stages": {str(stage): seconds for stage, seconds in expected.stages.items()},
                    "measured": {str(stage): number for stage, number in expected.measured.items()},
                },
            }
        )
        _end_dry_run(context, allow_invalid, engine)
        return
    if results:
        print_counts(results)
    accepted = sum(result.status is Status.CORRECT for result in results)
    click.echo(f"\n{totals(results)}".replace(f"{accepted:,} correct", f"{accepted:,} accepted"))
    if engine.duplicates:
        click.echo(f"{counted(engine.duplicates, 'further combination')} of axis values give points that others give too.")
    if selection.left_out:
        click.echo(f"--where leaves out {counted(selection.left_out, 'point')}.")
    click.echo(
        printable(f"{counted(len(waiting), 'point')} would run up to {conditions.stage}; {path} already holds {accepted - len(waiting):,}.")
    )
    parts = [
        f"{stage} {clock(seconds)} ({f'{expected.measured[stage]:,} measured' if expected.measured[stage] else 'an assumption'})"
        for stage, seconds in expected.stages.items()
    ]
    if parts and waiting:
        gpus = counted(max(len(settings.gpus), 1), "GPU") if conditions.backend == "gpu" else ""
        workers = " and ".join(part for part in (counted(jobs, "CPU"), gpus) if part)
        click.echo(f"It takes about {clock(expected.seconds)} with {workers}. Summed over points: {', '.join(parts)}.")
    _end_dry_run(context, allow_invalid, engine)


def _end_dry_run(context: click.Context, allow_invalid: bool, engine: Engine) -> None:
    if engine.interrupted:
        click.echo("Interrupted: these are the points that were checked before.", err=True)
        context.exit(exit_codes.INTERRUPTED)
    results = list(engine.results.values())
    _require_valid(results, allow_invalid)
    _tell_none_accepted(results)


def _require_valid(results: Sequence[PointResult], allow_invalid: bool) -> None:
    """Raises ``SweepError`` if points are no valid specs, which is a mistake in the sweep, unless that is allowed."""
    from gemmgen.sweep.records import Status, SweepError

    invalid = [result for result in results if result.status is Status.INVALID]
    none_valid = all(result.status is Status.INVALID or result.reason_code == "axes" for result in results)
    if not results or allow_invalid or not (invalid or none_valid):
        return
    first = (invalid or results)[0]
    message = "no point of {} is a valid spec" if none_valid else f"{len(invalid):,} of {len(results):,} points of {{}} make no valid spec"
    reason = first.reason.split("\n", 1)[0]
    raise SweepError(f"{message.format(first.sweep)}: {reason}. Correct the axes, or continue with --allow-invalid")


def _tell_none_accepted(results: Sequence[PointResult]) -> None:
    from gemmgen.sweep.records import Status

    if results and all(result.status in (Status.CONSTRAINTS, Status.INVALID) for result in results):
        click.echo("No point was accepted: nothing was tried.", err=True)


def _show_stored(results_path: str | None, reports: Reports, as_json: bool) -> None:
    """Exports the contents of a results file, and sums them up."""
    from gemmgen.cli.sweep_output import print_best, print_counts, totals
    from gemmgen.sweep.store import ResultStore

    if results_path is None:
        raise click.UsageError("name a SWEEP to run, or --results FILE to show and export its results")
    if reports.live_path is not None:
        raise click.UsageError("--live shows a sweep that runs; of results that are there already, write --export html=FILE")
    with ResultStore(results_path, read_only=True) as store:
        results = store.all()
    reports.write(results)
    if as_json:
        stored = [result.to_json() for result in results]
        print_json({"results": stored, **reports.compared_json(results)} if reports.before else stored)
        return
    if results:
        print_counts(results)
        print_best(results)
    reports.print_comparison(results)
    click.echo(printable(f"\n{totals(results)}. From {results_path}"))


@dataclass(frozen=True)
class Reports:
    """Reports of results beside the summary."""

    writers: Exports
    before: Against | None
    """Other results that are compared with."""
    live_path: Path | None

    def begin(self, title: str) -> LiveReport | None:
        """The page that is written while a sweep runs, if it was asked for."""
        from gemmgen.sweep.live_report import LiveReport

        if self.live_path is None:
            return None
        click.echo(printable(f"{self.live_path}: the report, written anew while the sweep runs"), err=True)
        return LiveReport(self.live_path, title, self.before)

    def write(self, results: Sequence[PointResult], incomplete: str = "") -> None:
        """Writes the exports; ``incomplete`` says why points are missing, if they are."""
        for write, target in self.writers:
            write(results, target, incomplete)

    def print_comparison(self, results: Sequence[PointResult]) -> None:
        """The comparison with other results in words, and the points that changed most."""
        from gemmgen.cli.sweep_output import print_comparison

        if self.before is not None:
            print_comparison(self.before[0], self.before[1], results)

    def compared_json(self, results: Sequence[PointResult]) -> dict[str, object]:
        """The comparison as data."""
        from gemmgen.sweep.comparison import compared

        return {} if self.before is None else {"against": compared(self.before[1], results).to_json()}


def _listeners(progress: Listener, live: LiveReport | None) -> Listener:
    """Both as one."""
    if live is None:
        return progress

    def both(result: PointResult, known: bool) -> None:
        progress(result, known)
        live(result, known)

    return both


def _stored(against: str | None) -> Against | None:
    """The results of ``--against``."""
    if against is None:
        return None
    from gemmgen.sweep.store import ResultStore

    with ResultStore(against, read_only=True) as store:
        return Path(against).name, store.all()


def _live_path(live: str | None) -> Path | None:
    from gemmgen.cli.selection import writable

    if live is not None and not live.lower().endswith((".html", ".htm")):
        raise click.UsageError(f"--live {live!r}: a page's name ends in .html")
    return writable("--live", live) if live is not None else None


def _writers(exports: Sequence[str], before: Against | None) -> Exports:
    """The requests of ``--export``, before anything is run."""
    if not exports:
        return []
    from gemmgen.cli.selection import writable
    from gemmgen.sweep.exports import EXPORTS, write_html, write_junit

    chosen: Exports = []
    for text in exports:
        form, separator, path = text.partition("=")
        if not separator or not path or form not in EXPORTS:
            raise click.UsageError(f"--export {text!r}: expected FORMAT=FILE, with a format of {', '.join(EXPORTS)}")
        write = partial(write_html, against=before) if form == "html" else EXPORTS[form]
        chosen.append((write_junit if form == "junit" else _without_reason(write), writable("--export", path)))
    return chosen


def _without_reason(write: Callable[[Sequence[PointResult], Path], None]) -> Callable[[Sequence[PointResult], Path, str], None]:
    """A writer of a format that has no place for the reason why results are incomplete."""
    return lambda results, path, _: write(results, path)


def _require_one_way(sample: int | None, where: str | None, search: str | None, dry_run: bool) -> None:
    if search is not None and (sample is not None or where is not None or dry_run):
        raise click.UsageError("--search chooses points itself: it goes without --sample, --where and --dry-run")


def _cluster(
    address: str | None, memory_gib: float | None, authority: str | None, certificate: str | None, key: str | None
) -> Cluster | None:
    files = [file for file in (authority, certificate, key) if file]
    if len(files) not in (0, 3) or (files and address is None):
        raise click.UsageError("--tls-ca-file, --tls-cert and --tls-key go together, and with --scheduler tls://host:8786")
    if address is None:
        return None
    from gemmgen.sweep.cluster import Certificates, Cluster

    return Cluster(address, int((memory_gib or 0) * 2**30), Certificates(*files) if files else None)
