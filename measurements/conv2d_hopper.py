"""Times the convolution instances for Hopper's tensor cores beside cuDNN: ResNet-50's layers, three large ones, int8 and float16.

    python measurements/conv2d_hopper.py          on a machine with an H100 or H200, and torch

Writes conv2d_hopper.json and conv2d_hopper.md beside this file. Device time only: launches are captured in CUDA graphs that rotate among
enough copies of the tensors for them to exceed twice the L2, and are replayed in turns; random data. What is timed was compared with
sums in float64 before, element by element for int8. cuDNN's NCHW32 is left out: conv2d.md has it, 10 to 60 times slower on an H200.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from conv2d_cudnn import NO_REORDER, Cudnn, CudnnError

from gemmgen import api
from gemmgen.core.errors import GemmgenError
from gemmgen.core.files import write_atomically
from gemmgen.dispatch.devices import gpu_device
from gemmgen.dispatch.selection import choose
from gemmgen.kernels.conv2d.matcher import Conv2dRequest
from gemmgen.kernels.conv2d.oracle import RESNET50
from gemmgen.kernels.conv2d.problem import complete
from gemmgen.kernels.conv2d.spec import Input
from gemmgen.kernels.conv2d.warpgroup import WarpgroupPlan
from gemmgen.kernels.epilogue.operations import Relu
from gemmgen.layouts import reorder_filter
from gemmgen.perf.cost_model import cost_model_of
from gemmgen.perf.timing import Replay, capture, replay_seconds
from gemmgen.runtime.cuda.driver import LoadedBinary, gpu
from gemmgen.runtime.cuda.launcher import Launcher
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.nvrtc import Binary

HERE = Path(__file__).resolve().parent
SPECS = HERE.parent / "specs" / "conv2d" / "hopper"
LARGE = ((128, 56, 256, 3, 1), (320, 80, 320, 3, 1), (64, 112, 64, 3, 1))
"""c, h = w, k, r = s, stride; the padding is r // 2."""
CONTESTS = (("s8", 128, RESNET50), ("s8", 16, RESNET50), ("s8", 1, RESNET50), ("s8", 64, LARGE), ("f16", 128, RESNET50))
COPY_BYTES = 4.30e12
"""Device memory of an H200, read and written, measured."""
RATES = {"s8": 1933e12, "f16": 946e12}
"""``wgmma`` on operands that stay in shared memory, measured on an H200."""
LAUNCHES, ROUNDS = 24, 7
WORDS = {"s8": torch.int8, "f16": torch.float16}
FLOAT_ERROR = 0.02
"""Largest difference that a float16 result may have, as a share of the largest one."""

Layer = tuple[int, int, int, int, int]
Enqueue = Callable[[int], Any]


@dataclass
class Result:
    """One layer: microseconds by contestant."""

    type: str
    n: int
    layer: Layer
    floor_us: float
    bound: str
    times: dict[str, float] = field(default_factory=dict)
    cudnn: dict[str, float] = field(default_factory=dict)
    chosen: str = ""
    """The instance that ``gemmgen.ops`` takes."""
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> str:
        return min(self.times, key=lambda name: self.times[name])

    @property
    def ratio(self) -> float:
        """cuDNN's best time by ours."""
        return min(self.cudnn.values()) / self.times[self.best]


@dataclass
class Tensors:
    """Random copies of x and y, a filter and a bias."""

    x: list[torch.Tensor]
    y: list[torch.Tensor]
    filter: torch.Tensor
    bias: torch.Tensor


def tensors(kind: str, problem: Mapping[str, int], l2_bytes: int) -> Tensors:
    """So many copies that they exceed twice the L2."""
    n, c, h, w, k, r, s, p, q = (problem[name] for name in "nchwkrspq")
    size = 1 if kind == "s8" else 2
    copies = max(2, min(LAUNCHES, -(-2 * l2_bytes // (size * (n * c * h * w + n * k * p * q)))))

    def random(*shape: int) -> torch.Tensor:
        if kind == "s8":
            return torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8)
        return torch.randn(shape, device="cuda").half()

    y = [torch.empty((n, p, q, k), device="cuda", dtype=WORDS[kind]) for _ in range(copies)]
    return Tensors([random(n, h, w, c) for _ in range(copies)], y, random(k, c, r, s), torch.randn(k, device="cuda") * 20)


def expected(data: Tensors, problem: Mapping[str, int], alpha: float, kind: str) -> torch.Tensor:
    """relu(alpha * convolution + bias) of the first images, in float64, rounded and saturated for int8."""
    x = data.x[0][:2].permute(0, 3, 1, 2).double()
    sums = torch.nn.functional.conv2d(x, data.filter.double(), stride=problem["stride_h"], padding=problem["padding_h"])
    value = (sums.permute(0, 2, 3, 1) * alpha + data.bias.double()).clamp(min=0)
    return value.float().round().clamp(max=127) if kind == "s8" else value


def agrees(data: Tensors, wanted: torch.Tensor, enqueue: Enqueue, kind: str) -> bool:
    """Whether a launch writes what it should."""
    data.y[0].fill_(99)
    torch.cuda.synchronize()
    enqueue(0)
    torch.cuda.synchronize()
    error = (data.y[0][:2].double() - wanted).abs().max().item()
    return error == 0 if kind == "s8" else error <= FLOAT_ERROR * float(wanted.max())


def timed(contestants: Mapping[str, Enqueue], copies: int, stream: torch.cuda.Stream) -> dict[str, float]:
    """Median microseconds of a launch."""
    launches = -(-LAUNCHES // copies) * copies
    with ExitStack() as cleanup:
        graphs: list[Replay] = []
        for enqueue in contestants.values():

            def all_copies(enqueue: Enqueue = enqueue) -> None:
                for launch in range(launches):
                    enqueue(launch % copies)

            graphs.append(capture(cleanup, int(stream.cuda_stream), all_copies))
        replay_seconds(int(stream.cuda_stream), graphs, 2, lambda: None)
        samples = replay_seconds(int(stream.cuda_stream), graphs, ROUNDS, lambda: None)
    return {name: statistics.median(times) / launches * 1e6 for name, times in zip(contestants, samples, strict=True)}


class Contest:
    """All instances, loaded."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        architecture = gpu(0).architecture
        plans = [api.plan(path, architecture) for path in sorted(SPECS.glob("*.yaml"))]
        with ThreadPoolExecutor() as pool:
            binaries: list[Binary] = list(pool.map(compile_plan, plans))
        self.stream, self.handle = stream, int(stream.cuda_stream)
        self.names = {plan.name: path.stem for plan, path in zip(plans, sorted(SPECS.glob("*.yaml")), strict=True)}
        self.instances = [(plan, LoadedBinary(binary.cubin, binary.architecture, 0)) for plan, binary in zip(plans, binaries, strict=True)]
        self.cudnn = Cudnn(self.handle)

    def measure(self, kind: str, n: int, layer: Layer) -> Result:
        """One layer at one batch size."""
        c, h, k, r, stride = layer
        own = [(plan, loaded) for plan, loaded in self.instances if plan.spec.input.type == plan.spec.output.type == kind]
        sizes = {"n": n, "c": c, "h": h, "w": h, "k": k, "r": r, "s": r, "stride_h": stride, "padding_h": r // 2}
        general = next(plan for plan, _ in own if plan.spec.convolution.s == "argument")
        problem = complete(general.spec, sizes)
        cost = cost_model_of("conv2d").cost(general, problem)
        arithmetic, memory = cost.operations / RATES[kind], cost.bytes / COPY_BYTES
        result = Result(kind, n, layer, max(arithmetic, memory) * 1e6, "arithmetic" if arithmetic > memory else "memory")
        alpha = 2.0 ** -round(math.log2((c * r * r) ** 0.5 * 74.0**2 / 64)) if kind == "s8" else 1.0
        data = tensors(kind, problem, gpu(0).l2_bytes)
        wanted = expected(data, problem, alpha, kind)
        contestants: dict[str, Enqueue] = {}
        for plan, loaded in own:
            enqueue = self._instance(plan, loaded, problem, data, alpha)
            if enqueue is None:
                continue
            name = self.names[plan.name]
            if agrees(data, wanted, enqueue, kind):
                contestants[name] = enqueue
            else:
                result.notes.append(f"{name} computes something else")
        peers = self._cudnn(problem, data, alpha, result.notes) if kind == "s8" else self._torch(problem, data)
        times = timed({**contestants, **peers}, len(data.x), self.stream)
        result.times = {name: times[name] for name in contestants}
        result.cudnn = {name: times[name] for name in peers}
        request = Conv2dRequest(
            tuple(problem.items()), kind, "nhwc", "f32", alpha=True, activation=Relu(op="relu"), input=Input(type=kind, layout="nhwc")
        )  # type: ignore[arg-type]
        result.chosen = choose(request, gpu_device(0)).chosen.candidate.label.rpartition("/")[2]
        return result

    def _instance(
        self, plan: WarpgroupPlan, loaded: LoadedBinary, problem: Mapping[str, int], data: Tensors, alpha: float
    ) -> Enqueue | None:
        if not all(constraint.condition.evaluate(problem) for constraint in plan.sequence.constraints):
            return None
        try:
            launcher = Launcher(loaded, plan.sequence.resolve(problem), problem)
        except GemmgenError:
            return None
        filters = reorder_filter(data.filter, plan.filter_order)
        values = [
            launcher.values(
                {"x": x.data_ptr(), "y": y.data_ptr(), "filter": filters.data_ptr(), "bias": data.bias.data_ptr()}, {"alpha": alpha}
            )
            for x, y in zip(data.x, data.y, strict=True)
        ]
        kept = filters  # as long as the launches

        def enqueue(index: int, kept: Any = kept) -> None:
            launcher.launch(self.handle, *values[index])

        return enqueue

    def _cudnn(self, problem: Mapping[str, int], data: Tensors, alpha: float, notes: list[str]) -> dict[str, Enqueue]:
        """cuDNN's int8 convolution with bias and ReLU, by both of its algorithms."""
        found: dict[str, Enqueue] = {}
        workspaces: list[torch.Tensor] = []

        def allocate(size: int) -> int:
            workspaces.append(torch.empty(size, dtype=torch.int8, device="cuda"))
            return int(workspaces[-1].data_ptr())

        filters = reorder_filter(data.filter, "rows")
        for algorithm in ("implicit_precomp_gemm", "implicit_gemm"):
            name = f"cuDNN {algorithm}"
            try:
                launch = self.cudnn.convolution(
                    problem, vectorised=False, algorithm=algorithm, reorder=NO_REORDER, allocate=allocate, alpha=alpha
                )

                def enqueue(index: int, launch: Any = launch, kept: Any = workspaces) -> None:
                    launch(data.x[index].data_ptr(), filters.data_ptr(), data.bias.data_ptr(), data.y[index].data_ptr())

                enqueue(0)
                torch.cuda.synchronize()
            except CudnnError as error:
                notes.append(f"{name}: {error}")
                continue
            found[name] = enqueue
        return found

    def _torch(self, problem: Mapping[str, int], data: Tensors) -> dict[str, Enqueue]:
        """cuDNN's float16 convolution through torch, without bias and ReLU."""
        torch.backends.cudnn.benchmark = True  # cuDNN takes the fastest algorithm
        filters = data.filter.contiguous(memory_format=torch.channels_last)
        images = [x.permute(0, 3, 1, 2) for x in data.x]

        def enqueue(index: int) -> None:
            with torch.cuda.stream(self.stream):
                torch.nn.functional.conv2d(images[index], filters, stride=problem["stride_h"], padding=problem["padding_h"])

        enqueue(0)
        torch.cuda.synchronize()
        torch.backends.cudnn.benchmark = False
        return {"cuDNN (torch)": enqueue}


def geometric_mean(values: list[float]) -> float:
    """Of ratios."""
    return math.exp(sum(map(math.log, values)) / len(values))


def markdown(results: list[Result], device: str, when: str, rounds: str = f"medians over {ROUNDS} rounds") -> str:
    """The tables."""
    lines = [
        "# Convolution on `wgmma` beside cuDNN",
        "",
        f"{device}, {when}. Microseconds of device time, {rounds}; activations in NHWC, bias and ReLU in the same "
        "kernel. cuDNN: the best of its algorithms in NHWC, with bias and ReLU; for float16 through torch, without. `share`: "
        "of the roof that binds, 4.30 TB/s or 1933 TOP/s (946 TFLOP/s for float16). `ops` takes the instance in the last column.",
    ]
    for kind, n, layers in CONTESTS:
        rows = [result for result in results if (result.type, result.n) == (kind, n) and result.layer in layers]
        if not rows:
            continue
        ratios = [row.ratio for row in rows]
        regret = geometric_mean([row.times[row.chosen] / row.times[row.best] for row in rows if row.chosen in row.times] or [1.0])
        lines += [
            "",
            f"## {kind}, batch {n}",
            "",
            f"cuDNN's time by ours: geometric mean {geometric_mean(ratios):.2f}, least {min(ratios):.2f}. "
            f"What `ops` takes costs {100 * (regret - 1):.0f}% more than the best.",
            "",
            "| c | h = w | k | filter | stride | ours | instance | cuDNN | ratio | bound | share | `ops` |",
            "|--:|--:|--:|:-:|--:|--:|---|--:|--:|---|--:|---|",
        ]
        for row in rows:
            c, h, k, r, stride = row.layer
            time, peer = row.times[row.best], min(row.cudnn.values())
            lines.append(
                f"| {c} | {h} | {k} | {r} x {r} | {stride} | {time:.2f} | {row.best} | {peer:.2f} | **{row.ratio:.2f}** "
                f"| {row.bound} | {100 * row.floor_us / time:.0f}% | {row.chosen} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, writes and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    torch.cuda.init()
    contest = Contest(torch.cuda.Stream())
    results: list[Result] = []
    for kind, n, layers in CONTESTS:
        for layer in layers:
            results.append(contest.measure(kind, n, layer))
            row = results[-1]
            print(
                f"{kind} {n} {layer}: {row.times[row.best]:.2f} us, x{row.ratio:.2f}, {row.best}; ops takes {row.chosen}",
                *row.notes,
                flush=True,
            )
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    written = {"device": gpu(0).name, "date": when, "results": [asdict(result) for result in results]}
    write_atomically(options.out / "conv2d_hopper.json", (json.dumps(written, indent=1) + "\n").encode())
    write_atomically(options.out / "conv2d_hopper.md", markdown(results, gpu(0).name, when).encode())


if __name__ == "__main__":
    main()
