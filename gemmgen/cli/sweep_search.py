"""The part of ``gemmgen sweep`` for ``--search`` and ``--winner``: a guided search on the engine, and the end of a tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmgen.cli.selection import writable
from gemmgen.sweep.records import PointResult, Status, SweepError

if TYPE_CHECKING:
    from gemmgen.runtime.backends import BackendName
    from gemmgen.sweep.cluster import Cluster
    from gemmgen.sweep.engine import Engine, Settings
    from gemmgen.sweep.objectives import Objective
    from gemmgen.sweep.proposals import SamplerName
    from gemmgen.sweep.search import SearchResult
    from gemmgen.sweep.search_space import SearchSpace
    from gemmgen.sweep.space import Space
    from gemmgen.sweep.store import ResultStore


MAX_AT_ONCE = 32


@dataclass(frozen=True)
class Search:
    """Request of the command line."""

    sampler: SamplerName | None
    """None: no search, only a winner."""
    trials: int
    seed: int
    objectives: tuple[Objective, ...]
    winner: Path | None
    """Path to write the winner's spec to."""


def search_of(sampler: SamplerName | None, trials: int, seed: int, objectives: Sequence[str], winner: str | None) -> Search:
    """The options, checked. Raises ``SweepError`` and ``UsageError``."""
    from gemmgen.sweep.objectives import parse_objective

    if objectives and sampler is None and winner is None:
        raise click.UsageError("--objective applies to --search and --winner; add one of them")
    if not objectives:
        objectives = ["median_us", "registers"] if sampler == "nsga2" else ["median_us"]
    return Search(sampler, trials, seed, tuple(map(parse_objective, objectives)), None if winner is None else writable("--winner", winner))


def search_space(space: Space) -> SearchSpace:
    """The points of a sweep, as a search sees them. Raises ``SweepError`` for a sweep over several architectures."""
    from gemmgen.sweep.search_space import SearchAxis, SearchSpace

    if len(space.architectures) > 1:
        listed = ", ".join(str(name) for name in space.architectures)
        raise SweepError(f"architectures: got {listed}; need one, as a search and its winner are for one architecture")
    axes = tuple(SearchAxis(name, tuple(choices)) for name, choices in space.axes.items())
    return SearchSpace(axes, tuple(dict.fromkeys(space.sizes)))


def run_search(
    search: Search, space: Space, settings: Settings, engine: Engine, store: ResultStore, cluster: Cluster | None
) -> SearchResult:
    """Lets the sampler choose points and the engine evaluate them; results of this space in ``store`` count as tried, and is
    among the engine's results afterwards."""
    from gemmgen.sweep.search import Request, guided

    assert search.sampler is not None
    where = search_space(space)
    architecture = space.architectures[0]

    def evaluate(requests: Sequence[Request]) -> list[PointResult | None]:
        return engine.evaluate([space.point(one.axes, one.sizes, architecture) for one in requests])

    outcome = guided(
        where,
        evaluate,
        sampler=search.sampler,
        trials=search.trials,
        seed=search.seed,
        objectives=search.objectives,
        known=known_results(where, space, settings, store),
        parallel=_at_once(settings, cluster),
    )
    for trial in outcome.trials:
        engine.results |= {result.digest: result for result in trial.results}
        engine.reused += len(trial.results) if trial.replayed else 0
    return outcome


def _at_once(settings: Settings, cluster: Cluster | None) -> int:
    """Number of points that are proposed together: as many as are evaluated together, within limits, as none learns of the others."""
    workers = cluster.idle if cluster is not None else len(settings.gpus) or settings.processes
    return min(max(workers, 1), MAX_AT_ONCE)


def known_results(where: SearchSpace, space: Space, settings: Settings, store: ResultStore) -> list[PointResult]:
    """The records in ``store`` of points of this space under the very digest that they have today, in the order of evaluation.

    Digests are found as a dry run finds them: the points are planned and rendered, nothing is compiled.
    """
    from gemmgen.sweep.engine import Engine

    architecture = space.architectures[0]
    tried: dict[tuple[Any, ...], None] = {}
    for result in store.all():
        choice = where.choice_of(result.axes)
        sizes = tuple(result.problem.values()) or where.problems[0]
        if choice is not None and sizes in where.problems:
            tried[choice, sizes] = None
    points = [space.point(where.fields(choice), sizes, architecture) for choice, sizes in tried]
    if not points:
        return []
    with Engine(replace(settings, check_only=True)) as checker:
        digests = [result.digest if result is not None else "" for result in checker.evaluate(points)]
        if checker.interrupted:
            raise KeyboardInterrupt
    again = (Status.TIMEOUT, Status.RUNTIME) if settings.retry else ()
    known = []
    for point, digest in zip(points, digests, strict=True):
        stored = store.get(digest)
        if stored is not None and stored.status not in again:
            known.append(replace(stored, sweep=space.file.name, axes=point.axes))
    return known


def describe_search(search: Search, result: SearchResult) -> list[str]:
    """Result of a search, in lines for people."""
    known = sum(trial.replayed for trial in result.trials)
    parts = [f"{len(result.trials):,} points tried", f"{known:,} of them known before" if known else ""]
    parts += [f"{result.count(state):,} {state}" for state in ("pruned", "infeasible") if result.count(state)]
    lines = [f"Search ({search.sampler}): {', '.join(part for part in parts if part)}."]
    if result.exhausted:
        lines.append("There are no more points in this space.")
    elif known == len(result.trials) and not result.interrupted:
        lines.append(f"All {search.trials:,} trials were known; a larger --trials continues the search.")
    front = result.front if len(search.objectives) > 1 else result.ranking[:1]
    if front:
        goals = " against ".join(str(goal) for goal in search.objectives)
        lines.append(f"{'Best' if len(front) == 1 else 'Those that no other beats'} by {goals}:")
    for trial in front:
        values = ", ".join(f"{goal.metric} {value:.4g}" for goal, value in zip(search.objectives, trial.values, strict=True))
        lines.append(f"  {trial.results[0].instance}: {values}")
    return lines


def search_json(search: Search, search_result: SearchResult) -> dict[str, object]:
    """The result of a search as JSON."""
    return {
        "sampler": search.sampler,
        "objectives": [{"metric": goal.metric, "direction": goal.direction} for goal in search.objectives],
        "trials": [
            {
                "state": trial.state,
                "axes": trial.axes,
                "values": list(trial.values),
                "digests": [result.digest for result in trial.results],
                "note": trial.note,
                "known": trial.replayed,
            }
            for trial in search_result.trials
        ],
        "front": [trial.number for trial in search_result.front],
        "exhausted": search_result.exhausted,
    }


def write_winner(search: Search, result: SearchResult, space: Space, backend: BackendName) -> None:
    """Proves and measures the winner, and writes it to ``search.winner``."""
    from gemmgen.cli.selection import write_output
    from gemmgen.runtime.targets import target_of
    from gemmgen.sweep.tuning import conclude, winner_yaml

    assert search.winner is not None
    conclusion = conclude(
        result,
        target_of(space.kind).backend(backend),
        architecture=space.architectures[0],
        with_peer=space.file.peer,
        progress=lambda text: click.echo(f"Winner: {text}", err=True),
    )
    how = f"gemmgen sweep {space.file.name}" + (f" --search {search.sampler} --seed {search.seed}" if search.sampler else "")
    write_output(search.winner, winner_yaml(result, conclusion, f"Found by {how}"))
    click.echo(f"Winner: {conclusion.plan.name}, written to {search.winner}", err=True)
