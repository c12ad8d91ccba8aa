"""One layer at one batch size: every candidate and cuDNN, checked against exact sums and replayed in turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gemmgen import layouts
from gemmgen.kernels.conv2d.cudnn import DEFAULT_REORDER, NO_REORDER, Cudnn, CudnnError
from gemmgen.kernels.conv2d.oracle import layer_problem
from gemmgen.kernels.conv2d.plan import Conv2dPlan
from gemmgen.kernels.family import Cost
from gemmgen.perf.clocks import ClockReader
from gemmgen.perf.cost_model import cost_model_of
from gemmgen.perf.timing import Replay, capture, replay_seconds
from gemmgen.runtime.cuda.driver import LoadedBinary, call
from gemmgen.runtime.cuda.launcher import Launcher
from gemmgen.toolchain.nvrtc import Binary
from measurements.conv2d_candidates import Candidate, Layer

MMA_OPS = 1287e12
"""mma.sync m16n8k32 on an H200, measured."""
COPY_BYTES = 4.30e12
"""Device memory of an H200, read and written, measured."""
GRAPH_SECONDS = 1.5e-3
ROUNDS = 15


@dataclass
class Timing:
    """Device time of one launch in microseconds over the rounds."""

    name: str
    median_us: float
    p10_us: float
    p90_us: float
    tops: float
    tbps: float
    agrees: bool | None
    """True if every element was right; None if it was not checked."""


@dataclass
class LayerResult:
    """One layer at one batch size."""

    layer: Layer
    n: int
    floor_us: float
    bound: str
    candidates: list[Timing] = field(default_factory=list)
    cudnn_nhwc: Timing | None = None
    cudnn_nchw32: Timing | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> Timing:
        """The fastest candidate."""
        return min(self.candidates, key=lambda timing: timing.median_us)


class Tensors:
    """Copies of the tensors of one problem, as bytes: every contestant reads the same memory in its own layout."""

    def __init__(self, problem: Mapping[str, int], l2_bytes: int) -> None:
        sizes = {
            "x": problem["n"] * problem["c"] * problem["h"] * problem["w"],
            "filter": problem["c"] * problem["k"] * problem["r"] * problem["s"],
            "y": problem["n"] * problem["k"] * problem["p"] * problem["q"],
        }
        self.count = max(2, math.ceil(2 * l2_bytes / (sizes["x"] + sizes["filter"])))
        self.memory = {name: torch.randint(-128, 128, (self.count, size), dtype=torch.int8, device="cuda") for name, size in sizes.items()}
        self.bias = torch.randint(-400, 400, (problem["k"],), device="cuda").to(torch.float32) / 8

    def pointers(self, index: int) -> dict[str, int]:
        """Addresses of one copy."""
        return {name: int(memory[index].data_ptr()) for name, memory in self.memory.items()} | {"bias": int(self.bias.data_ptr())}


@dataclass
class Contestant:
    """Something to be timed: ``enqueue`` puts one launch on copy ``index`` on the stream."""

    name: str
    enqueue: Callable[[int], None]
    agrees: bool | None = None


def measure(
    layer: Layer,
    n: int,
    compiled: Mapping[tuple[Layer, Candidate], tuple[Conv2dPlan, Binary]],
    ordinal: int,
    l2_bytes: int,
    clocks: ClockReader,
) -> LayerResult:
    """Checks and times every candidate and cuDNN on one layer."""
    entries = {c.name: entry for (at, c), entry in compiled.items() if at == layer and n in c.batches}
    plan = next(iter(entries.values()))[0]
    problem = layer_problem(plan, layer, n)
    cost = cost_model_of(plan.spec.kind).cost(plan, problem)
    arithmetic, memory = cost.operations / MMA_OPS, cost.bytes / COPY_BYTES
    result = LayerResult(layer, n, max(arithmetic, memory) * 1e6, "arithmetic" if arithmetic > memory else "memory")
    alpha = 2.0 ** -round(math.log2((layer[0] * layer[3] ** 2) ** 0.5 * 74.0**2 / 64))
    with ExitStack() as cleanup, torch.no_grad():
        tensors = Tensors(problem, l2_bytes)
        stream = torch.cuda.Stream()
        handle = int(stream.cuda_stream)
        check = Check(problem, tensors, alpha, stream)
        contestants = []
        for name, (candidate_plan, binary) in entries.items():
            contestant = _candidate(cleanup, name, candidate_plan, binary, problem, tensors, alpha, handle, ordinal)
            contestant.agrees = check.candidate(contestant, candidate_plan)
            contestants.append(contestant)
        cudnn = Cudnn(handle)
        cleanup.callback(cudnn.close)
        nhwc = _fastest(cleanup, _cudnn(cudnn, problem, tensors, alpha, vectorised=False, notes=result.notes), handle)
        if nhwc is not None:
            nhwc.agrees = check.nhwc(nhwc)
        vectorised = _fastest(cleanup, _cudnn(cudnn, problem, tensors, alpha, vectorised=True, notes=result.notes), handle)
        check.release()
        timings = _time(cleanup, [*contestants, *([nhwc] if nhwc else [])], tensors.count, handle, cost, clocks)
        result.candidates = timings[: len(contestants)]
        result.cudnn_nhwc = timings[-1] if nhwc else None
        if vectorised is not None:
            result.cudnn_nchw32 = _time(cleanup, [vectorised], tensors.count, handle, cost, clocks, rounds=5)[0]
        call("cuCtxSynchronize")
    return result


def _candidate(
    cleanup: ExitStack,
    name: str,
    plan: Conv2dPlan,
    binary: Binary,
    problem: Mapping[str, int],
    tensors: Tensors,
    alpha: float,
    stream: int,
    ordinal: int,
) -> Contestant:
    loaded = LoadedBinary(binary.cubin, binary.architecture, ordinal)
    cleanup.callback(loaded.unload)
    launcher = Launcher(loaded, plan.sequence.resolve(problem), problem)
    extra: dict[str, int] = {}
    workspace_bytes = plan.sequence.workspace_bytes.evaluate(problem)
    if workspace_bytes:
        workspace = torch.empty(workspace_bytes, dtype=torch.int8, device="cuda")
        cleanup.callback(workspace.untyped_storage)  # the stack keeps it alive as long as the graphs
        extra = dict.fromkeys(plan.sequence.workspace_names, int(workspace.data_ptr()))
    values = [launcher.values(tensors.pointers(index) | extra, {"alpha": alpha}) for index in range(tensors.count)]
    return Contestant(name, lambda index: launcher.launch(stream, *values[index]))


def _cudnn(
    cudnn: Cudnn, problem: Mapping[str, int], tensors: Tensors, alpha: float, *, vectorised: bool, notes: list[str]
) -> list[Contestant]:
    """cuDNN's two algorithms; for NCHW32 with the filter reordered in every call, or taken to be reordered before."""
    found: list[Contestant] = []
    workspaces: list[torch.Tensor] = []

    def allocate(size: int) -> int:
        workspaces.append(torch.empty(size, dtype=torch.int8, device="cuda"))
        return int(workspaces[-1].data_ptr())

    pointers = [tensors.pointers(index) for index in range(tensors.count)]
    for algorithm in ("implicit_precomp_gemm", "implicit_gemm"):
        for reorder in (NO_REORDER, DEFAULT_REORDER) if vectorised else (NO_REORDER,):
            label = "NCHW32" if vectorised else "NHWC"
            try:
                launch = cudnn.convolution(
                    problem, vectorised=vectorised, algorithm=algorithm, reorder=reorder, allocate=allocate, alpha=alpha
                )

                def enqueue(index: int, launch: Any = launch, keep: Any = workspaces) -> None:
                    at = pointers[index]
                    launch(at["x"], at["filter"], at["bias"], at["y"])

                enqueue(0)
                call("cuCtxSynchronize")
            except CudnnError as error:
                notes.append(f"cuDNN {label} {algorithm}: {error}")
                continue
            found.append(Contestant(f"cuDNN {label} {algorithm}", enqueue))
    return found


def _fastest(cleanup: ExitStack, contestants: Sequence[Contestant], stream: int) -> Contestant | None:
    """The one whose second launch takes the least time."""
    if not contestants:
        return None
    graphs = [_graph(cleanup, contestant, 2, 2, stream) for contestant in contestants]
    seconds = replay_seconds(stream, graphs, 3, lambda: None)
    return contestants[int(np.argmin([min(times) for times in seconds]))]


def _graph(cleanup: ExitStack, contestant: Contestant, launches: int, copies: int, stream: int) -> Replay:
    def enqueue() -> None:
        for launch in range(launches):
            contestant.enqueue(launch % copies)

    return capture(cleanup, stream, enqueue)


def _time(
    cleanup: ExitStack,
    contestants: Sequence[Contestant],
    copies: int,
    stream: int,
    cost: Cost,
    clocks: ClockReader,
    rounds: int = ROUNDS,
) -> list[Timing]:
    """Every contestant's graph takes at least ``GRAPH_SECONDS`` and visits every copy equally often."""
    trial = replay_seconds(stream, [_graph(cleanup, c, 2, 2, stream) for c in contestants], 3, lambda: None)
    graphs, launches = [], []
    for contestant, times in zip(contestants, trial, strict=True):
        once = min(times) / 2
        repeat = max(1, math.ceil(GRAPH_SECONDS / (once * copies)))
        wanted = copies * repeat if once < GRAPH_SECONDS else min(copies, 2)
        launches.append(min(wanted, 2048))
        graphs.append(_graph(cleanup, contestant, launches[-1], copies, stream))
    replay_seconds(stream, graphs, 2, lambda: None)
    samples = replay_seconds(stream, graphs, rounds, clocks.sample)
    timings = []
    for contestant, seconds, count in zip(contestants, samples, launches, strict=True):
        p10, median, p90 = (float(value) / count for value in np.percentile(np.array(seconds), [10, 50, 90]))
        timings.append(
            Timing(
                contestant.name,
                median * 1e6,
                p10 * 1e6,
                p90 * 1e6,
                cost.operations / median * 1e-12,
                cost.bytes / median * 1e-12,
                contestant.agrees,
            )
        )
    return timings


class Check:
    """Expected y for one set of tensors: exact sums in float64, then float32 operations as the kernels do them."""

    def __init__(self, problem: Mapping[str, int], tensors: Tensors, alpha: float, stream: torch.cuda.Stream) -> None:
        self.problem, self.tensors, self.stream = problem, tensors, stream
        shape = [problem[name] for name in ("n", "c", "h", "w")]
        filter_shape = [problem[name] for name in ("k", "c", "r", "s")]
        self.x = torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")
        self.filter = torch.randint(-128, 128, filter_shape, dtype=torch.int8, device="cuda")
        sums = self._sums()
        # alpha is a power of two and the bias a multiple of 1/8, so that float64 holds alpha * sum + bias exactly.
        value = sums.to(torch.float32).double().mul_(alpha).add_(tensors.bias.double()[:, None, None]).float()
        self.expected = value.clamp_(0, 127).round_().to(torch.int8)

    def _sums(self) -> torch.Tensor:
        """Image by image, since float64 tensors are large: one matrix product for each filter tap."""
        problem = self.problem
        p, q = problem["p"], problem["q"]
        stride, padding = problem["stride_h"], problem["padding_h"]
        filters = self.filter.double()
        images = []
        for part in self.x.split(16):
            padded = torch.nn.functional.pad(part, (padding,) * 4).double()
            sums = torch.zeros(len(part), problem["k"], p * q, dtype=torch.float64, device="cuda")
            for row in range(problem["r"]):
                for column in range(problem["s"]):
                    taken = padded[:, :, row : row + (p - 1) * stride + 1 : stride, column : column + (q - 1) * stride + 1 : stride]
                    sums += torch.matmul(filters[:, :, row, column], taken.reshape(len(part), problem["c"], p * q))
            images.append(sums.reshape(len(part), problem["k"], p, q))
        return torch.cat(images)

    def _run(self, contestant: Contestant, x: torch.Tensor, filter: torch.Tensor) -> torch.Tensor:
        memory = self.tensors.memory
        memory["x"][0].copy_(x.reshape(-1))
        memory["filter"][0].copy_(filter.reshape(-1))
        memory["y"][0].fill_(-1)
        torch.cuda.synchronize()
        contestant.enqueue(0)
        torch.cuda.synchronize()
        return memory["y"][0]

    def candidate(self, contestant: Contestant, plan: Conv2dPlan) -> bool:
        """True if a candidate's y is right in every element."""
        y = self._run(contestant, layouts.nchw_to_nchw32(self.x), layouts.reorder_filter(self.filter, plan.filter_order))
        n, k, p, q = (self.problem[name] for name in ("n", "k", "p", "q"))
        return bool(torch.equal(y.reshape(n, k // 32, p, q, 32), layouts.nchw_to_nchw32(self.expected)))

    def nhwc(self, contestant: Contestant) -> bool:
        """True if cuDNN's y is the same in every element."""
        y = self._run(contestant, self.x.permute(0, 2, 3, 1), self.filter.permute(0, 2, 3, 1))
        n, k, p, q = (self.problem[name] for name in ("n", "k", "p", "q"))
        return bool(torch.equal(y.reshape(n, p, q, k), self.expected.permute(0, 2, 3, 1)))

    def release(self) -> None:
        """Frees the tensors, and makes the copies random again."""
        for memory in self.tensors.memory.values():
            memory[0].random_(-128, 128)
        del self.x, self.filter, self.expected
        torch.cuda.synchronize()
