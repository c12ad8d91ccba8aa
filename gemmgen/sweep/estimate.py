"""Estimated time of a sweep, from earlier measurements or else from typical times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gemmgen.sweep.records import PointResult, Stage, Status

TYPICAL_SECONDS = {
    ("", Stage.COMPILE): 1.0,
    ("emulator", Stage.VERIFY): 10.0,
    ("gpu", Stage.VERIFY): 2.0,
    ("gpu", Stage.BENCH): 2.0,
}
"""By backend and stage, for one kernel: for want of a measurement."""


@dataclass(frozen=True)
class Estimate:
    """Seconds for each stage, summed over all points, and for the whole with all parallel workers."""

    stages: dict[Stage, float]
    measured: dict[Stage, int]
    """Number of measured times that each estimate rests on; 0: on a typical time."""
    seconds: float


def estimate(
    waiting: Sequence[PointResult], measured: Iterable[PointResult], last: Stage, backend: str, cases: int | None, jobs: int, gpus: int
) -> Estimate:
    """Estimate for the points ``waiting``, of which each kernel is compiled and verified once and each problem timed.

    ``cases`` is how many of each are run, None for all; ``jobs`` and ``gpus`` are how many workers there are.
    """
    known = [result for result in measured if result.status is Status.CORRECT and result.backend in ("", backend)]
    kernels = len({(result.instance, result.architecture) for result in waiting})
    stages: dict[Stage, float] = {}
    counts: dict[Stage, int] = {}
    for stage in Stage:
        if not Stage.CHECK.number < stage.number <= last.number:
            continue
        times = _times(known, stage, cases)
        counts[stage] = len(times)
        typical = TYPICAL_SECONDS.get((backend if stage is not Stage.COMPILE else "", stage), 1.0)
        if stage is Stage.VERIFY and cases is not None and not times:
            typical *= min(1.0, cases / 30)
        mean = sum(times) / len(times) if times else typical
        stages[stage] = mean * (len(waiting) if stage is Stage.BENCH else kernels)
    on_gpu = sum(seconds for stage, seconds in stages.items() if stage is not Stage.COMPILE) if backend == "gpu" else 0.0
    on_cpu = sum(stages.values()) - on_gpu
    return Estimate(stages, counts, max(on_cpu / max(jobs, 1), on_gpu / max(gpus, 1)))


def _times(known: Sequence[PointResult], stage: Stage, cases: int | None) -> list[float]:
    times = []
    for result in known:
        seconds = result.seconds.get(str(stage))
        if not seconds:
            continue
        if stage is Stage.VERIFY and cases is not None and result.metrics.get("cases"):
            seconds *= min(cases, result.metrics.get("cases_total", cases)) / result.metrics["cases"]
        times.append(seconds)
    return times
