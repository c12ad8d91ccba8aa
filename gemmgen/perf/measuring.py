"""Times instances of one problem on the target that they are made for: a GPU, or this machine's processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gemmgen.runtime.targets import PROCESSOR, Target

if TYPE_CHECKING:
    from gemmgen.kernels.family import KernelPlan


@dataclass(frozen=True)
class TimingOptions:
    """Options that all contestants of a run share. ``l2_resident`` applies to GPUs, ``threads`` to processors (None: all threads)."""

    rounds: int = 50
    with_peer: bool = True
    l2_resident: bool = False
    threads: int | None = None


class TimedInstance(Protocol):
    """A contestant's figures; times in microseconds, of one launch or call."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str:
        """``candidate`` or ``peer``."""

    @property
    def us(self) -> float:
        """The time that stands for the contestant: the median on a GPU, the first quartile on a processor that others use too."""

    @property
    def range_us(self) -> tuple[float, float]:
        """Most of the times lie between."""

    @property
    def operations_per_second(self) -> float: ...


class TimingReport(Protocol):
    """One run on one problem."""

    @property
    def problem(self) -> dict[str, int]: ...
    @property
    def timings(self) -> Sequence[TimedInstance]: ...
    @property
    def conditions(self) -> str:
        """The device, the date and the method in a few words, for people."""

    @property
    def clock_rates(self) -> dict[str, float | None]:
        """Clock rates during the run in MHz, by the names that sweeps record; None for one that is not known."""

    def to_json(self) -> dict[str, Any]: ...


def time_instances(
    target: Target, instances: Sequence[tuple[KernelPlan, Any]], problem: Mapping[str, int], options: TimingOptions
) -> TimingReport:
    """Times compiled instances that take the same arrays, in turns with the libraries that compute the same.

    ``instances`` holds plans and their binaries, as ``target.compile`` makes them. Each result is checked before anything is timed.
    Raises ``EnvironmentMissing`` without the device, ``LaunchError`` if an instance cannot run on the problem, ``VerificationError`` if
    a result is wrong.
    """
    if target is PROCESSOR:
        from gemmgen.perf.host.benchmark import all_threads, benchmark_host

        chosen: Any = instances
        return benchmark_host(chosen, problem, options.threads or all_threads(), options.rounds, options.with_peer)
    from gemmgen.perf.benchmark import Candidate, benchmark

    candidates = [Candidate(plan, binary) for plan, binary in instances]
    return benchmark(candidates, problem, with_peer=options.with_peer, l2_resident=options.l2_resident, rounds=options.rounds)
