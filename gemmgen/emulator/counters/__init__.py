"""Costs of a launch: wavefronts of shared memory, sectors of global memory, instructions; by line of the source."""

from gemmgen.emulator.counters.observer import CounterObserver
from gemmgen.emulator.counters.report import Counters, GlobalTraffic, LineCounters, SharedTraffic, SiteCounters, Tally, TensorWork

__all__ = ["CounterObserver", "Counters", "GlobalTraffic", "LineCounters", "SharedTraffic", "SiteCounters", "Tally", "TensorWork"]
