"""Contestants of a measurement, timed in turns as graphs that take about as long: instances, a vendor's library, calls from Python."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from gemmgen.perf.timing import Replay, instantiate, replay_seconds
from gemmgen.runtime.cuda.driver import bindings, call, current_device

GRAPH_SECONDS = 2e-3
"""A graph takes at least this long, which makes the time between two events exact enough."""

WARM_UP_SECONDS = 0.2
ROUNDS_SECONDS = 5.0
"""Rounds are cut down, but not below ``MIN_ROUNDS``, if they would take longer."""
MIN_ROUNDS = 10
MAX_GRAPH_LENGTH = 4096
"""Launches in a graph at most."""


@dataclass
class Contestant:
    """Something to be timed."""

    name: str
    kind: Literal["candidate", "peer"]
    enqueue: Callable[[int], None]
    """Enqueues one launch on the run's stream, on the set of that index."""
    capture: Callable[[Callable[[], None]], Replay]
    checked: str = ""
    deliver: Callable[[int], None] | None = None
    """Brings the results of that set to where candidates write them."""

    def graph(self, launches: int, sets: int) -> Replay:
        """A graph of ``launches`` launches, on one set after the other."""

        def enqueue() -> None:
            for launch in range(launches):
                self.enqueue(launch % sets)

        return self.capture(enqueue)


def trial_seconds(stream: int, contestants: Sequence[Contestant], sets: int) -> list[float]:
    """Seconds of a launch of each, roughly: the least of three graphs that go through all sets."""
    trials = replay_seconds(stream, [contestant.graph(sets, sets) for contestant in contestants], 3, lambda: None)
    return [min(seconds) / sets for seconds in trials]


def measure_in_turns(
    stream: int,
    contestants: Sequence[Contestant],
    sets: int,
    rounds: int,
    sample: Callable[[], None] = lambda: None,
    graph_seconds: float | None = None,
) -> tuple[list[list[float]], list[int]]:
    """Seconds of each graph by contestant and round, and how many launches each contestant's graph holds.

    All graphs take about the same time, so that the cost of starting one weighs the same for slow and fast contestants.
    """
    wanted = GRAPH_SECONDS if graph_seconds is None else graph_seconds
    trials = trial_seconds(stream, contestants, sets)
    launches = [sets * max(1, min(math.ceil(wanted / max(seconds * sets, 1e-9)), MAX_GRAPH_LENGTH // sets)) for seconds in trials]
    graphs = [contestant.graph(count, sets) for contestant, count in zip(contestants, launches, strict=True)]

    warm_until = time.monotonic() + WARM_UP_SECONDS
    warm = replay_seconds(stream, graphs, 3, lambda: None)
    while time.monotonic() < warm_until:
        warm = replay_seconds(stream, graphs, 3, lambda: None)
    round_seconds = sum(min(seconds) for seconds in warm)
    affordable = max(MIN_ROUNDS, int(ROUNDS_SECONDS / max(round_seconds, 1e-9)))
    return replay_seconds(stream, graphs, max(1, min(rounds, affordable)), sample), launches


def median_seconds(
    torch: Any,
    calls: Mapping[str, Callable[[int], object]],
    *,
    sets: int = 1,
    rounds: int = 50,
    graph_seconds: float | None = None,
    ordinal: int = 0,
) -> dict[str, float]:
    """Median device seconds of one call of each, on arrays of torch's, of which there are several sets.

    Calls work on torch's current stream. Each is called on every set before it is captured, because a first call has side effects.
    """
    stream = torch.cuda.Stream(device=ordinal)
    torch.cuda.synchronize()
    with current_device(ordinal), ExitStack() as cleanup:
        contestants = [torch_contestant(cleanup, torch, stream, name, one) for name, one in calls.items()]
        for contestant in contestants:
            for index in range(sets):
                contestant.enqueue(index)
        call("cuCtxSynchronize")
        samples, launches = measure_in_turns(int(stream.cuda_stream), contestants, sets, rounds, graph_seconds=graph_seconds)
    return {name: median(seconds) / count for name, seconds, count in zip(calls, samples, launches, strict=True)}


def torch_contestant(cleanup: ExitStack, torch: Any, stream: Any, name: str, work: Callable[[int], object]) -> Contestant:
    """Work on torch's current stream as a contestant on ``stream``, which is one of torch's."""

    def enqueue(index: int) -> None:
        with torch.cuda.stream(stream):
            work(index)

    return Contestant(name, "peer", enqueue, lambda captured: capture_torch(cleanup, torch, stream, captured))


def capture_torch(cleanup: ExitStack, torch: Any, stream: Any, enqueue: Callable[[], None]) -> Replay:
    """A graph of torch operations, replayed by the driver where torch hands the graph out: its own replay does more."""
    try:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        keeps = hasattr(graph, "raw_cuda_graph")
    except TypeError:
        graph, keeps = torch.cuda.CUDAGraph(), False
    with torch.cuda.device(stream.device), torch.cuda.graph(graph, stream=stream):
        enqueue()
    cleanup.callback(graph.reset)
    if keeps:
        return instantiate(cleanup, int(stream.cuda_stream), bindings().CUgraph(int(graph.raw_cuda_graph())))

    def replay() -> None:
        with torch.cuda.stream(stream):
            graph.replay()

    return replay
