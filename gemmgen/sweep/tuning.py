"""The end of a tuning: the winner is verified once more, timed against the runner-up in one run, and written as a spec."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from gemmgen.core.errors import LaunchError, VerificationError
from gemmgen.sweep.encoding import encodable
from gemmgen.sweep.records import SweepError
from gemmgen.sweep.search import SearchResult, Trial

if TYPE_CHECKING:
    from gemmgen.kernels.family import KernelPlan
    from gemmgen.perf.measuring import TimedInstance, TimingReport
    from gemmgen.runtime.backend import Backend
    from gemmgen.verification.runner import VerificationReport


@dataclass(frozen=True)
class Conclusion:
    """The winner of a search, with its final verification and measurement."""

    winner: Trial
    plan: KernelPlan
    """The winner's, on the architecture that it was verified for."""
    runner_up: Trial | None
    """None if there was no second instance."""
    runner_up_name: str
    verification: VerificationReport
    benchmarks: tuple[TimingReport, ...]
    """For each problem a run with the winner, the runner-up and the peer; empty if nothing can be timed here."""
    overturned: bool = False
    """True if the last measurement made the search's second its first."""
    notes: tuple[str, ...] = ()


class Measure(Protocol):
    """Times plans on one problem, in one run."""

    def __call__(self, plans: Sequence[KernelPlan], sizes: Sequence[int]) -> TimingReport: ...


def conclude(
    result: SearchResult,
    backend: Backend,
    *,
    architecture: str | None = None,
    rounds: int = 50,
    with_peer: bool = True,
    measure: Measure | None = None,
    progress: Callable[[str], None] | None = None,
) -> Conclusion:
    """Proves and measures the winner of ``found`` on ``backend``; of several objectives the first one decides.

    If times were measured and ``backend`` is no emulator, the winner and the best other instance are timed in one run for each
    problem; if the other one is faster there, by more than the spread, it is the winner. ``architecture`` is that of the
    emulator's code, the spec's own if None; on a GPU it is the device's. ``measure`` takes the place of the benchmark, which
    is ``gemmgen.perf.measuring.time_instances`` with ``rounds`` and ``with_peer``.

    Raises ``SweepError`` if no point of the search can be taken and ``VerificationError`` if the winner is wrong after all.
    """
    from gemmgen.kernels.planning import plan

    tell = progress or (lambda text: None)
    ranking = result.ranking
    if not ranking:
        raise SweepError("there is no winner: no point of the search came out right on all problems")
    first = ranking[0]
    second = next((trial for trial in ranking if trial.results[0].instance != first.results[0].instance), None)
    target = backend.architecture or architecture
    plans = [plan(trial.results[0].spec, target) for trial in (first, second) if trial is not None]
    tell(f"verifying {plans[0].name} once more")
    verification = _verified(plans[0], backend)
    notes: list[str] = []
    benchmarks: tuple[TimingReport, ...] = ()
    if _was_timed(first):
        if backend.name != "emulator" or measure is not None:
            tell("timing it against the runner-up")
            measured = measure or _Benchmark(rounds, with_peer)
            benchmarks = _measure(plans, first, measured, notes)
        else:
            notes.append("not timed again: there is no GPU here")
    overturned = second is not None and _faster(plans, benchmarks)
    if overturned and second is not None:
        tell(f"the runner-up was faster: verifying {plans[1].name}")
        plans.reverse()
        verification = _verified(plans[0], backend)
        first, second = second, first
    runner_up_name = plans[1].name if len(plans) > 1 else ""
    return Conclusion(first, plans[0], second, runner_up_name, verification, benchmarks, overturned, tuple(notes))


def winner_yaml(result: SearchResult, conclusion: Conclusion, origin: str) -> str:
    """The winner as a spec file, headed by its measurements, the device and the date. ``origin`` says in words where it was found."""
    from gemmgen.codegen.rendering import spec_lines

    lines = [f"{origin}, {datetime.now(UTC):%Y-%m-%d}."]
    values = [f"{goal} {_value(goal.metric, value)}" for goal, value in zip(result.objectives, conclusion.winner.values, strict=True)]
    tried = f"{len(result.trials):,} points tried"
    lines.append(f"Chosen for {', then '.join(str(goal) for goal in result.objectives)}; {tried}: {', '.join(values)}.")
    if conclusion.overturned:
        lines.append("It was the search's second, and faster than its first when both were timed in one run.")
    for report in conclusion.benchmarks:
        lines += _benchmark_lines(conclusion, report)
    evidence = conclusion.verification
    cases = f"{len(evidence.results)} case{'' if len(evidence.results) == 1 else 's'}"
    lines.append(
        f"Verified for {evidence.architecture} on {evidence.device}: {cases}, {evidence.elements:,} elements, "
        f"worst error {evidence.worst_ratio:.3g} of its bound."
    )
    lines += [f"Note: {note}." for note in conclusion.notes]
    comment = "\n".join(f"# {_one_line(line)}" for line in lines)
    return "\n".join([comment, *spec_lines(conclusion.plan.spec)]) + "\n"


def _benchmark_lines(conclusion: Conclusion, report: TimingReport) -> list[str]:
    sizes = ",".join(str(size) for size in _sizes(conclusion.winner, report))
    lines = [f"Timed on {report.conditions}, size {sizes}:"]
    own = _timing(report, conclusion.plan.name)
    lines.append(f"  this {own.us:.2f} µs ({own.range_us[0]:.2f} to {own.range_us[1]:.2f})")
    for timing in report.timings:
        if timing is not own:
            title = f"runner-up {timing.name}" if timing.kind == "candidate" else f"peer {timing.name}"
            lines.append(f"  {title} {timing.us:.2f} µs, {timing.us / own.us:.3f} times this")
    return lines


def _sizes(trial: Trial, report: TimingReport) -> Sequence[int]:
    """The problem as the sweep gives it."""
    for result in trial.results:
        if result.problem.items() <= report.problem.items():
            return tuple(result.problem.values())
    return tuple(report.problem.values())


@dataclass(frozen=True)
class _Benchmark:
    """Times plans as ``gemmgen bench`` does, on GPU 0 or this processor, in this process."""

    rounds: int
    with_peer: bool

    def __call__(self, plans: Sequence[KernelPlan], sizes: Sequence[int]) -> TimingReport:
        from gemmgen.kernels import family_of
        from gemmgen.perf.measuring import TimingOptions, time_instances
        from gemmgen.runtime.targets import target_of

        target = target_of(plans[0].spec.kind)
        problem = family_of(plans[0].spec).problem(plans[0], sizes)
        options = TimingOptions(self.rounds, self.with_peer)
        return time_instances(target, [(plan, target.compile(plan)) for plan in plans], problem, options)


def _measure(plans: Sequence[KernelPlan], trial: Trial, measure: Measure, notes: list[str]) -> tuple[TimingReport, ...]:
    """A run for each problem. Instances whose arrays differ cannot share one: then the winner is timed alone."""
    reports = []
    for result in trial.results:
        sizes = tuple(result.problem.values())
        try:
            reports.append(measure(plans, sizes))
        except LaunchError as error:
            if len(plans) == 1:
                raise
            notes.append(f"timed without the runner-up: {error}")
            reports.append(measure(plans[:1], sizes))
    return tuple(reports)


def _faster(plans: Sequence[KernelPlan], reports: Sequence[TimingReport]) -> bool:
    """True if the second plan is faster than the first: over all problems, and by more than the spread on one of them."""
    pairs = []
    for report in reports:
        names = {timing.name for timing in report.timings}
        if len(plans) > 1 and plans[1].name in names:
            pairs.append((_timing(report, plans[0].name), _timing(report, plans[1].name)))
    if not pairs:
        return False
    gain = math.fsum(math.log(first.us / second.us) for first, second in pairs)
    spreads = [max(high - low for low, high in (first.range_us, second.range_us)) for first, second in pairs]
    clear = any(first.us - second.us > spread for (first, second), spread in zip(pairs, spreads, strict=True))
    return gain > 0 and clear


def _timing(report: TimingReport, name: str) -> TimedInstance:
    return next(timing for timing in report.timings if timing.name == name)


def _was_timed(trial: Trial) -> bool:
    return all("median_us" in result.metrics and result.problem for result in trial.results)


def _verified(plan: KernelPlan, backend: Backend) -> VerificationReport:
    from gemmgen.runtime.targets import target_of
    from gemmgen.verification.runner import verify_binary

    report = verify_binary(plan, target_of(plan.spec.kind).compile(plan), backend)
    if not report.passed:
        wrong = report.failures[0]
        raise VerificationError(f"the winner {plan.name} is wrong after all: case {wrong.case.name}: {wrong.failure}")
    return report


def _value(metric: str, value: float) -> str:
    units: dict[str, Any] = {"_us": " µs", "operations_per_second": "/s", "bytes_per_second": " B/s"}
    unit = next((unit for ending, unit in units.items() if metric.endswith(ending)), "")
    return f"{value:.4g}{unit}"


def _one_line(text: str) -> str:
    """Text that stays within a comment of YAML: no line ends, and no other characters that YAML does not allow."""
    return "".join(letter if letter.isprintable() else " " for letter in encodable(text)).rstrip()
