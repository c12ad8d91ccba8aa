"""One problem: every instance, CUB and torch, checked against a float64 sum and replayed in turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gemmgen.kernels.reduction.reference import path_length
from gemmgen.perf.clocks import ClockReader
from gemmgen.perf.contestants import capture_torch
from gemmgen.perf.timing import Replay, capture, replay_seconds
from gemmgen.runtime.cuda.driver import LoadedBinary, call
from gemmgen.runtime.cuda.launcher import Launcher
from measurements.reduction_candidates import Axis, Instance
from measurements.reduction_cub import Cub

GRAPH_SECONDS = 1.5e-3
MAX_LAUNCHES = 1024
"""Launches in a graph at most."""
COLD_BYTES = 160 << 20
"""Inputs rotate through so much memory, more than twice the L2, where the launches of a graph reach that far."""
UNIT_ROUNDOFF = 2.0**-24


@dataclass
class Timing:
    """Device time of one launch in microseconds over the rounds."""

    name: str
    median_us: float
    p10_us: float
    p90_us: float
    tbps: float
    error: float | None
    """Largest error over the bound of the instance's own summation tree; None for a peer."""
    repeats: bool | None
    """True if two launches gave the same bits; None for a peer."""

    @property
    def spread_us(self) -> float:
        """From the 10th to the 90th percentile."""
        return self.p90_us - self.p10_us


@dataclass
class Contestant:
    """Something to be timed: ``enqueue`` puts one launch on copy ``index`` of the input on the stream."""

    name: str
    enqueue: Callable[[int], None]
    is_torch: bool = False
    error: float | None = None
    repeats: bool | None = None


class Contest:
    """Memory and stream of all contests: one pool of random floats, of which every problem takes its copies."""

    def __init__(self, elements: int, cub: Cub, clocks: ClockReader) -> None:
        torch.manual_seed(0)
        self.pool = torch.randn(elements, device="cuda")
        self.y = torch.empty(1 << 25, device="cuda")
        self.stream = torch.cuda.Stream()
        self.handle = int(self.stream.cuda_stream)
        self.cub, self.clocks = cub, clocks

    def sum(self, instances: Mapping[str, Instance], size: int, resident: bool = False) -> tuple[list[Timing], int]:
        """Times of a sum of ``size`` elements, and how many copies of the input the launches rotate among."""
        copies = 1 if resident else max(1, min(len(self.pool) // size, math.ceil(COLD_BYTES / (4 * size)), MAX_LAUNCHES))
        inputs = [self.pool[index * size : (index + 1) * size] for index in range(copies)]
        expected = inputs[0].sum(dtype=torch.float64).reshape(1)
        magnitude = inputs[0].abs().sum(dtype=torch.float64).reshape(1)
        with ExitStack() as cleanup:
            contestants = [
                self._own(cleanup, name, instance, {"reduced": size}, inputs, expected, magnitude) for name, instance in instances.items()
            ]
            workspace = self.cub.workspace(size)
            y = self.y.data_ptr()
            pointers = [part.data_ptr() for part in inputs]
            cub = Contestant("CUB", lambda index: self.cub.enqueue(workspace, pointers[index], y, size, self.handle))
            target = self.y[0]
            peer = Contestant("torch", lambda index: torch.sum(inputs[index], 0, out=target), is_torch=True)
            cub.enqueue(0)  # Its first call loads it, which a capture would not allow.
            call("cuCtxSynchronize")
            timings = self._time(cleanup, [*contestants, cub, peer], copies, 4 * size)
        return timings, copies

    def axis(self, instances: Mapping[str, Instance], axis: Axis) -> tuple[list[Timing], int]:
        """Times of sums along one axis of a matrix."""
        size = axis.rows * axis.columns
        copies = max(1, min(len(self.pool) // size, math.ceil(COLD_BYTES / (4 * size))))
        inputs = [self.pool[i * size : (i + 1) * size].view(axis.rows, axis.columns) for i in range(copies)]
        expected = inputs[0].sum(axis.axis, dtype=torch.float64)
        magnitude = inputs[0].abs().sum(axis.axis, dtype=torch.float64)
        if axis.axis == 1:
            problem = {"outer": axis.rows, "reduced": axis.columns, "stride_outer": axis.columns}
        else:
            problem = {"reduced": axis.rows, "inner": axis.columns, "stride_reduced": axis.columns}
        with ExitStack() as cleanup:
            contestants = [self._own(cleanup, name, instance, problem, inputs, expected, magnitude) for name, instance in instances.items()]
            target = self.y[: len(expected)]
            peer = Contestant("torch", lambda index: torch.sum(inputs[index], axis.axis, out=target), is_torch=True)
            timings = self._time(cleanup, [*contestants, peer], copies, 4 * (size + len(expected)))
        return timings, copies

    def _own(
        self,
        cleanup: ExitStack,
        name: str,
        instance: Instance,
        problem: Mapping[str, int],
        inputs: Sequence[torch.Tensor],
        expected: torch.Tensor,
        magnitude: torch.Tensor,
    ) -> Contestant:
        loaded = LoadedBinary(instance.binary.cubin, instance.binary.architecture, 0)
        cleanup.callback(loaded.unload)
        sequence = instance.plan.sequence
        launcher = Launcher(loaded, sequence.resolve(problem), problem)
        workspace = torch.zeros(max(1, sequence.workspace_bytes.evaluate(problem)), dtype=torch.uint8, device="cuda")
        y = int(self.y.data_ptr())
        space = dict.fromkeys(sequence.workspace_names, int(workspace.data_ptr()))
        values = [launcher.values({"X": int(part.data_ptr()), "Y": y} | space, {}) for part in inputs]

        def enqueue(index: int, keep: Any = workspace) -> None:
            launcher.launch(self.handle, *values[index])

        contestant = Contestant(name, enqueue)
        results = []
        for _ in range(2):
            self.y[: len(expected)].fill_(math.nan)
            torch.cuda.synchronize()
            enqueue(0)
            torch.cuda.synchronize()
            results.append(self.y[: len(expected)].clone())
        roundings = path_length(instance.plan, problem) * UNIT_ROUNDOFF
        bound = roundings / (1 - roundings) * magnitude
        error = ((results[0].double() - expected).abs() / bound).max()
        contestant.error = float(error) if bool(torch.isfinite(error)) else math.inf
        contestant.repeats = bool(torch.equal(*results))
        return contestant

    def _graph(self, cleanup: ExitStack, contestant: Contestant, launches: int, copies: int) -> Replay:
        def enqueue() -> None:
            for launch in range(launches):
                contestant.enqueue(launch % copies)

        if not contestant.is_torch:
            return capture(cleanup, self.handle, enqueue)
        with torch.cuda.stream(self.stream):
            contestant.enqueue(0)
        torch.cuda.synchronize()
        return capture_torch(cleanup, torch, self.stream, enqueue)

    def _time(self, cleanup: ExitStack, contestants: Sequence[Contestant], copies: int, size_bytes: int) -> list[Timing]:
        """Graphs of equally many launches for all, but fewer for the slow ones."""
        trial = replay_seconds(self.handle, [self._graph(cleanup, c, 2, copies) for c in contestants], 3, lambda: None)
        once = [min(times) / 2 for times in trial]
        wanted = min(max(copies, math.ceil(GRAPH_SECONDS / min(once))), MAX_LAUNCHES)
        launches = [wanted if time * wanted < 8 * GRAPH_SECONDS else max(1, math.ceil(2 * GRAPH_SECONDS / time)) for time in once]
        graphs = [self._graph(cleanup, c, count, copies) for c, count in zip(contestants, launches, strict=True)]
        replay_seconds(self.handle, graphs, 2, lambda: None)
        rounds = 21 if size_bytes < 1 << 28 else 11
        samples = replay_seconds(self.handle, graphs, rounds, self.clocks.sample)
        call("cuCtxSynchronize")
        timings = []
        for contestant, seconds, count in zip(contestants, samples, launches, strict=True):
            p10, median, p90 = (float(value) / count for value in np.percentile(np.array(seconds), [10, 50, 90]))
            timings.append(
                Timing(
                    contestant.name, median * 1e6, p10 * 1e6, p90 * 1e6, size_bytes / median * 1e-12, contestant.error, contestant.repeats
                )
            )
        return timings
