"""Guided search through spaces too large to enumerate: a sampler of Optuna proposes points, a sweep's engine evaluates them.

The engine stays in charge of results: a search asks it for points and never measures anything. Each distinct point is asked for
once; known results go to the sampler first, so that an interrupted search continues where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gemmgen.sweep.objectives import Objective, combined, worse_by
from gemmgen.sweep.proposals import Proposals, SamplerName
from gemmgen.sweep.records import PointResult, Status, SweepError
from gemmgen.sweep.search_space import Choice, SearchSpace


@dataclass(frozen=True)
class Request:
    """A point that a search wants evaluated on one problem."""

    axes: dict[str, Any]
    """Field path -> value, for every field that an axis sets."""
    sizes: tuple[int, ...]
    """The problem's, in the family's order; empty if nothing is timed."""


Evaluate = Callable[[Sequence[Request]], Sequence[PointResult | None]]
"""Evaluates points, in any order and as parallel as it likes; results in the order of the requests. A None says that the user
stopped the sweep before that point was evaluated; the search then ends with the results so far."""


@dataclass(frozen=True)
class Trial:
    """One point of the space, and its result."""

    number: int
    """In the order of evaluation, from 0."""
    axes: dict[str, Any]
    results: tuple[PointResult, ...]
    """One for each problem that was run, in order."""
    state: Literal["complete", "pruned", "infeasible"]
    """``pruned``: right on all problems that were run, but so slow on the last of them that the others were left out."""
    values: tuple[float, ...]
    """The objectives over all problems; empty unless complete."""
    note: str = ""
    """Part that was left out, or the reason why the point cannot be taken."""
    replayed: bool = False
    """True if its results were known before the search."""


@dataclass(frozen=True)
class SearchResult:
    """Result of a search."""

    objectives: tuple[Objective, ...]
    trials: tuple[Trial, ...]
    exhausted: bool = False
    """True if every point of the space has been tried."""
    interrupted: bool = False

    @property
    def ranking(self) -> tuple[Trial, ...]:
        """The complete trials, best first: by the first objective, then by the others in turn, then as evaluated."""

        def key(trial: Trial) -> tuple[float, ...]:
            return tuple(goal.sign * value for goal, value in zip(self.objectives, trial.values, strict=True))

        return tuple(sorted((trial for trial in self.trials if trial.state == "complete"), key=key))

    @property
    def front(self) -> tuple[Trial, ...]:
        """The complete trials that no other beats in one objective without being beaten in another, best first."""
        chosen: list[Trial] = []
        for trial in self.ranking:
            if not any(self._dominates(other, trial) for other in self.ranking):
                chosen.append(trial)
        return tuple(chosen)

    def count(self, state: Literal["complete", "pruned", "infeasible"]) -> int:
        """Number of trials that ended so."""
        return sum(trial.state == state for trial in self.trials)

    def _dominates(self, one: Trial, other: Trial) -> bool:
        pairs = [
            (goal.sign * ours, goal.sign * theirs) for goal, ours, theirs in zip(self.objectives, one.values, other.values, strict=True)
        ]
        return all(ours <= theirs for ours, theirs in pairs) and any(ours < theirs for ours, theirs in pairs)


def guided(
    space: SearchSpace,
    evaluate: Evaluate,
    *,
    sampler: SamplerName = "tpe",
    trials: int = 100,
    seed: int = 0,
    objectives: Sequence[Objective] = (Objective("median_us"),),
    known: Iterable[PointResult] = (),
    parallel: int = 1,
    slow: float = 1.5,
    progress: Callable[[Trial], None] | None = None,
) -> SearchResult:
    """Evaluates points of ``space`` that ``sampler`` proposes until ``trials`` distinct ones have been tried, known ones included.

    ``known``: results from a store, for the same architecture and device, oldest first; those of points of this space count as
    trials and are not asked for again.
    ``parallel``: how many points are proposed at once. For a given seed and given results the search is the same every time.
    ``slow``: with one objective that is a time or a rate and several problems, a point that is this many times worse than the
    best so far on a problem is not run on the problems after it.
    ``progress`` is called after each trial.

    A point that is rejected or fails is infeasible, and the sampler learns that. Raises ``EnvironmentMissing`` without Optuna
    and ``SweepError`` for arguments that make no sense or an objective that no result has.
    """
    if not objectives or len({goal.metric for goal in objectives}) < len(objectives):
        raise SweepError("a search needs objectives, each metric once")
    if trials < 1 or parallel < 1 or not slow >= 1:
        raise SweepError(f"a search needs trials >= 1, parallel >= 1, slow >= 1; got {trials}, {parallel}, {slow}")
    proposals = Proposals(space, sampler, seed, len(objectives))
    search = _Search(space, evaluate, proposals, tuple(objectives), slow, progress)
    unfinished = search.replay(known)
    exhausted = interrupted = False
    try:
        while len(search.trials) < trials:
            wanted = min(parallel, trials - len(search.trials))
            batch = [unfinished.pop(0) for _ in range(min(wanted, len(unfinished)))]
            batch += proposals.propose(wanted - len(batch), excluded=batch)
            if not batch:
                exhausted = True
                break
            if not search.run(batch):
                interrupted = True
                break
    except KeyboardInterrupt:
        interrupted = True
    exhausted = exhausted or len(search.trials) == space.size
    return SearchResult(tuple(objectives), tuple(search.trials), exhausted, interrupted)


def ranked(space: SearchSpace, results: Iterable[PointResult], objectives: Sequence[Objective]) -> SearchResult:
    """Results that a sweep without a search left, oldest first, as trials with the values that ``guided`` would report. Needs no Optuna."""
    search = _Search(space, lambda requests: [], None, tuple(objectives), math.inf, None)
    search.replay(results)
    return SearchResult(tuple(objectives), tuple(search.trials), len(search.trials) == space.size)


@dataclass
class _Search:
    """The trials so far, and the best of them on each problem."""

    space: SearchSpace
    evaluate: Evaluate
    proposals: Proposals | None
    objectives: tuple[Objective, ...]
    slow: float
    progress: Callable[[Trial], None] | None
    trials: list[Trial] = field(default_factory=list)
    known: dict[tuple[Choice, int], PointResult] = field(default_factory=dict)
    best: dict[int, float] = field(default_factory=dict)

    def replay(self, results: Iterable[PointResult]) -> list[Choice]:
        """Tells the sampler all points whose end is known; returns those of which only some problems were run."""
        order: dict[Choice, None] = {}
        for result in results:
            choice = self.space.choice_of(result.axes)
            sizes = tuple(result.problem.values())
            if not sizes and result.status is not Status.CORRECT:
                sizes = self.space.problems[0]  # its spec could not be read, so that the sizes have no names
            if choice is not None and sizes in self.space.problems:
                self.known[choice, self.space.problems.index(sizes)] = result
                order[choice] = None
        unfinished = []
        for choice in order:
            ran: list[PointResult] = []
            ended = False
            for problem in range(len(self.space.problems)):
                known_result = self.known.get((choice, problem))
                if known_result is None:
                    break
                ran.append(known_result)
                ended = self._ends(problem, known_result)
                if ended:
                    break
            if ended:
                self._tell(choice, ran, replayed=True)
            else:
                unfinished.append(choice)
        if self.proposals is not None:
            self.proposals.reserve(unfinished)
        return unfinished

    def run(self, batch: Sequence[Choice]) -> bool:
        """Evaluates some points, problem after problem; whether all could be, rather than being stopped by the user."""
        ran: dict[Choice, list[PointResult]] = {choice: [] for choice in batch}
        running = list(batch)
        whole = True
        for problem in range(len(self.space.problems)):
            answers = list(self._results(running, problem))
            whole = whole and None not in answers
            going_on = []
            for choice, result in zip(running, answers, strict=True):
                if result is None:
                    del ran[choice]
                    continue
                ran[choice].append(result)
                if not self._ends(problem, result):
                    going_on.append(choice)
            running = going_on
            if not running:
                break
        for choice, results_of in ran.items():
            self._tell(choice, results_of)
        return whole

    def _results(self, choices: Sequence[Choice], problem: int) -> Iterator[PointResult | None]:
        missing = [choice for choice in choices if (choice, problem) not in self.known]
        requests = [self._request(choice, problem) for choice in missing]
        answers = list(self.evaluate(requests)) if requests else []
        if len(answers) != len(requests):
            raise ValueError(f"{len(requests)} points were to be evaluated, {len(answers)} results came back")
        fresh = dict(zip(missing, answers, strict=True))
        for choice in choices:
            yield fresh[choice] if choice in fresh else self.known[choice, problem]

    def _request(self, choice: Choice, problem: int) -> Request:
        return Request(self.space.fields(choice), self.space.problems[problem])

    def _ends(self, problem: int, result: PointResult) -> bool:
        """True if a point is run on no problem after this one; keeps the best so far."""
        last = problem == len(self.space.problems) - 1
        goal = self.objectives[0]
        value = goal.value(result) if result.status is Status.CORRECT else None
        if value is None:
            return True
        best = self.best.get(problem)
        if best is None or goal.sign * value < goal.sign * best:
            self.best[problem] = best = value
        return last or (len(self.objectives) == 1 and goal.is_ratio and worse_by(goal, value, best) > self.slow)

    def _tell(self, choice: Choice, results: Sequence[PointResult], replayed: bool = False) -> None:
        trial = self._trial(choice, tuple(results), replayed)
        self.trials.append(trial)
        if self.proposals is not None:
            values = [goal.sign * value for goal, value in zip(self.objectives, trial.values, strict=False)]
            self.proposals.tell(choice, trial.state, values)
        if self.progress is not None:
            self.progress(trial)

    def _trial(self, choice: Choice, results: tuple[PointResult, ...], replayed: bool) -> Trial:
        number, axes, last = len(self.trials), self.space.fields(choice), results[-1]
        if last.status is not Status.CORRECT:
            return Trial(number, axes, results, "infeasible", (), f"{last.status}: {last.reason}", replayed)
        missing = [goal.metric for goal in self.objectives if goal.value(last) is None]
        if missing:
            finite = any(goal in last.metrics for goal in missing)
            if not finite:
                have = ", ".join(sorted(last.metrics)) or "none"
                raise SweepError(
                    f"objective {missing[0]}: {last.instance or 'a point'} ended at stage {last.stage} without it; "
                    f"its metrics are {have} (try one of them, or --stages bench for times)"
                )
            return Trial(number, axes, results, "infeasible", (), f"{missing[0]} is not a number", replayed)
        if len(results) < len(self.space.problems):
            left = len(self.space.problems) - len(results)
            goal = self.objectives[0]
            factor = worse_by(goal, goal.value(last) or 0.0, self.best[len(results) - 1])
            where = ",".join(str(size) for size in last.problem.values())
            note = f"{factor:.2f} times worse than the best on {where}: not run on {left} more"
            return Trial(number, axes, results, "pruned", (), note, replayed)
        values = tuple(combined(goal, [goal.value(result) or 0.0 for result in results]) for goal in self.objectives)
        return Trial(number, axes, results, "complete", values, "", replayed)
