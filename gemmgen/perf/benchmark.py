"""Measures device time of instances on a GPU, beside a vendor library in the same run.

N launches are captured in a CUDA graph that rotates among enough sets of arrays for the inputs to exceed the L2; the
graphs of all contestants are replayed in turns, on random data; what was not checked is not timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.family import Cost, KernelPlan
from gemmgen.perf.clocks import ClockReader, Clocks
from gemmgen.perf.cost_model import cost_model_of

if TYPE_CHECKING:
    from gemmgen.perf.contest import Contestant
    from gemmgen.toolchain.nvrtc import Binary


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance to be timed, compiled for the device."""

    plan: KernelPlan
    binary: Binary


@dataclass(frozen=True, slots=True)
class Timing:
    """Device time of one launch in microseconds: median, and 10th and 90th percentile over the rounds."""

    name: str
    kind: Literal["candidate", "peer"]
    median_us: float
    p10_us: float
    p90_us: float
    operations_per_second: float
    bytes_per_second: float
    checked: str
    """What its result was compared with before it was timed, or why it was not."""
    launches_per_graph: int = 1
    """Launches that were timed together; graphs of all contestants take about the same time."""

    @property
    def spread_us(self) -> float:
        """The distance between the percentiles."""
        return self.p90_us - self.p10_us


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two contestants of one run. ``speedup`` is the other's median time over that of ``name``."""

    name: str
    other: str
    speedup: float
    verdict: Literal["faster", "slower", "tie"]
    """``tie`` if the medians differ by no more than the larger spread."""


@dataclass(frozen=True, slots=True)
class BenchmarkReport:
    """What was measured, on what, and how."""

    problem: dict[str, int]
    scalars: dict[str, float]
    device: str
    compute_capability: tuple[int, int]
    driver: str
    cuda: tuple[int, int]
    date: str
    """UTC, ISO 8601."""
    clocks: Clocks
    inputs: Literal["rotated beyond the L2", "resident in the L2"]
    buffer_sets: int
    input_bytes: int
    """Of all sets."""
    l2_bytes: int
    rounds: int
    timings: tuple[Timing, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


def benchmark(
    candidates: Sequence[Candidate],
    problem: Mapping[str, int],
    *,
    scalars: Mapping[str, float] | None = None,
    ordinal: int = 0,
    with_peer: bool = True,
    l2_resident: bool = False,
    rounds: int = 50,
    seed: int = 0,
) -> BenchmarkReport:
    """Times ``candidates`` of one family on one problem, and the family's peer if torch is there.

    ``problem`` holds a value for every dimension; candidates share the layout of their arrays. ``l2_resident`` uses one
    set of arrays instead of as many as exceed twice the L2. Before anything is timed, each candidate's result on small
    integers, which every summation order gives exactly, is compared with the peer's, or with the family's reference.

    Runs in this process. Raises ``EnvironmentMissing`` without a GPU, ``LaunchError`` if a candidate cannot be launched
    on the problem or faults, ``VerificationError`` if a result is wrong.
    """
    from gemmgen.perf.contest import Contest
    from gemmgen.runtime.cuda.driver import current_device, gpu

    if not candidates:
        raise LaunchError("there is nothing to time: no candidate was given")
    _require_same_arrays(candidates)
    device = gpu(ordinal)
    clocks = ClockReader(device.pci_bus_id)
    defaults = [candidate.plan.sequence.default_scalars for candidate in candidates]
    values = {name: value for each in defaults for name, value in each.items()} | dict(scalars or {})
    known = {scalar.name for candidate in candidates for scalar in candidate.plan.sequence.scalars}
    if unknown := sorted(set(values) - known):
        raise LaunchError(f"no candidate has a scalar argument {unknown[0]}; there are {', '.join(sorted(known)) or 'none'}")
    with ExitStack() as cleanup:
        cleanup.enter_context(current_device(ordinal))
        run = Contest(cleanup, candidates, dict(problem), values, ordinal, 0 if l2_resident else 2 * device.l2_bytes)
        run.prepare(with_peer, seed)
        samples, launches = run.measure(rounds, clocks.sample)
    cost = cost_model_of(candidates[0].plan.spec.kind).cost(candidates[0].plan, problem)
    timings = tuple(
        _timing(contestant, seconds, count, cost) for contestant, seconds, count in zip(run.contestants, samples, launches, strict=True)
    )
    beyond = not l2_resident and run.rotation.input_bytes > device.l2_bytes
    return BenchmarkReport(
        problem=dict(problem),
        scalars=values,
        device=device.name,
        compute_capability=device.compute_capability,
        driver=clocks.driver_version,
        cuda=device.cuda_version,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        clocks=clocks.summary(),
        inputs="rotated beyond the L2" if beyond else "resident in the L2",
        buffer_sets=run.rotation.count,
        input_bytes=run.rotation.input_bytes,
        l2_bytes=device.l2_bytes,
        rounds=len(samples[0]),
        timings=timings,
        comparisons=compare(timings),
        notes=tuple(dict.fromkeys(run.notes)),
    )


def compare(timings: Sequence[Timing]) -> tuple[Comparison, ...]:
    """Each candidate against the peer, and every later candidate against the first."""
    peers = [timing for timing in timings if timing.kind == "peer"]
    own = [timing for timing in timings if timing.kind == "candidate"]
    pairs = [(one, other) for one in own for other in peers] + [(one, own[0]) for one in own[1:]]
    return tuple(_compare(one, other) for one, other in pairs)


def _compare(one: Timing, other: Timing) -> Comparison:
    difference = other.median_us - one.median_us
    verdict: Literal["faster", "slower", "tie"] = "faster" if difference > 0 else "slower"
    if abs(difference) <= max(one.spread_us, other.spread_us):
        verdict = "tie"
    return Comparison(one.name, other.name, other.median_us / one.median_us, verdict)


def _timing(contestant: Contestant, seconds: Sequence[float], launches: int, cost: Cost) -> Timing:
    import numpy as np

    p10, median, p90 = (float(value) / launches for value in np.percentile(np.array(seconds), [10, 50, 90]))
    return Timing(
        name=contestant.name,
        kind=contestant.kind,
        median_us=median * 1e6,
        p10_us=p10 * 1e6,
        p90_us=p90 * 1e6,
        operations_per_second=cost.operations / median,
        bytes_per_second=cost.bytes / median,
        checked=contestant.checked,
        launches_per_graph=launches,
    )


def _require_same_arrays(candidates: Sequence[Candidate]) -> None:
    def layout(candidate: Candidate) -> list[tuple[Any, ...]]:
        arrays = [array for array in candidate.plan.sequence.arrays if array.role != "workspace"]
        return [(a.name, a.type, a.role, [str(s) for s in a.shape], [str(s) for s in a.strides]) for a in arrays]

    first = candidates[0]
    for other in candidates[1:]:
        if layout(other) != layout(first):
            raise LaunchError(f"{first.plan.name} and {other.plan.name} take different arrays, so that they cannot be timed together")
