"""Times the convolution instances for Hopper's tensor cores beside cuDNN: ResNet-50's layers, three large ones, and unusual ones.

    python -m measurements.conv2d_hopper          on a machine with an H100 or H200, and torch

Writes conv2d_hopper.json and conv2d_hopper.md beside this file. Device time only: launches are captured in CUDA graphs that rotate among
enough copies of the tensors for them to exceed twice the L2, at most 24 (those of one image stay there), and are replayed in turns; random
data. Timed results were compared with sums in float64 before, element by element for int8. cuDNN is asked for all its algorithms, in NHWC
and for int8 in NCHW32 (with the filter reordered beforehand), and for float16 through torch as well; the fastest of a trial takes part.
Bias and ReLU are in the same kernel on both sides.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from gemmgen import api
from gemmgen.core.errors import GemmgenError
from gemmgen.core.files import write_atomically
from gemmgen.dispatch.devices import gpu_device
from gemmgen.dispatch.table import load_table
from gemmgen.kernels.conv2d.peer import Layer as PeerLayer
from gemmgen.kernels.conv2d.problem import complete
from gemmgen.kernels.conv2d.warpgroup import WarpgroupPlan
from gemmgen.kernels.vendor import milliseconds, on_any_set
from gemmgen.layouts import reorder_filter
from gemmgen.perf.clocks import ClockReader
from gemmgen.perf.cost_model import cost_model_of
from gemmgen.perf.timing import Replay, capture, replay_seconds
from gemmgen.runtime.cuda.driver import LoadedBinary, gpu
from gemmgen.runtime.cuda.launcher import Launcher
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.nvrtc import Binary
from measurements.conv2d_hopper_report import CONTESTS, COPY_BYTES, RATES, ROUNDS, SPECS, Layer, Result, choose_all, markdown

HERE = Path(__file__).resolve().parent
LAUNCHES = 24
WORDS = {"s8": torch.int8, "f16": torch.float16}
FLOAT_ERROR = 0.02
"""Largest difference that a float16 result may have, as a share of the largest one."""
IMAGES_CHECKED = 2

Enqueue = Callable[[int], Any]


@dataclass
class Tensors:
    """Random copies of x and y, a filter and a bias."""

    x: list[torch.Tensor]
    y: list[torch.Tensor]
    filter: torch.Tensor
    bias: torch.Tensor


def tensors(kind: str, problem: Mapping[str, int], l2_bytes: int) -> Tensors:
    """So many copies that they exceed twice the L2, but no more than launches."""
    n, c, h, w, k, r, s, p, q = (problem[name] for name in "nchwkrspq")
    size = 1 if kind == "s8" else 2
    copies = max(2, min(LAUNCHES, -(-2 * l2_bytes // (size * (n * c * h * w + n * k * p * q)))))

    def random(*shape: int) -> torch.Tensor:
        if kind == "s8":
            return torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8)
        return torch.randn(shape, device="cuda").half()

    y = [torch.empty((n, p, q, k), device="cuda", dtype=WORDS[kind]) for _ in range(copies)]
    bias = torch.randint(-160, 160, (k,), device="cuda").float() / 8  # float16 numbers
    return Tensors([random(n, h, w, c) for _ in range(copies)], y, random(k, c, r, s), bias)


def expected(data: Tensors, problem: Mapping[str, int], alpha: float, kind: str) -> torch.Tensor:
    """relu(alpha * convolution + bias) of the first images, in float64, rounded and saturated for int8."""
    x = data.x[0][:IMAGES_CHECKED].permute(0, 3, 1, 2).double()
    pairs = {name: (problem[f"{name}_h"], problem[f"{name}_w"]) for name in ("stride", "padding", "dilation")}
    sums = torch.nn.functional.conv2d(x, data.filter.double(), **pairs)
    value = (sums.permute(0, 2, 3, 1) * alpha + data.bias.double()).clamp(min=0)
    return value.float().round().clamp(max=127) if kind == "s8" else value


def agrees(data: Tensors, wanted: torch.Tensor, launch: Callable[[], Any], kind: str) -> bool:
    """True if a launch writes the right result."""
    data.y[0].fill_(99)
    torch.cuda.synchronize()
    launch()
    torch.cuda.synchronize()
    error = (data.y[0][:IMAGES_CHECKED].double() - wanted).abs().max().item()
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
    """Instances, loaded: all that are shipped, or those of ``plans``."""

    def __init__(self, stream: torch.cuda.Stream, plans: Mapping[str, WarpgroupPlan] | None = None) -> None:
        if plans is None:
            plans = {path.stem: api.plan(path, gpu(0).architecture) for path in sorted(SPECS.glob("*.yaml"))}
        with ThreadPoolExecutor() as pool:
            binaries: list[Binary] = list(pool.map(compile_plan, plans.values()))
        self.stream, self.handle = stream, int(stream.cuda_stream)
        self.instances = {
            name: (plan, LoadedBinary(binary.cubin, binary.architecture, 0))
            for (name, plan), binary in zip(plans.items(), binaries, strict=True)
        }

    def measure(self, kind: str, n: int, layer: Layer) -> Result:
        """One layer at one batch size."""
        own = {name: entry for name, entry in self.instances.items() if entry[0].spec.input.type == entry[0].spec.output.type == kind}
        general = next(plan for plan, _ in own.values() if plan.spec.convolution.s == "argument")
        problem = complete(general.spec, {"n": n, **layer.sizes})
        cost = cost_model_of("conv2d").cost(general, problem)
        arithmetic, memory = cost.operations / RATES[kind], cost.bytes / COPY_BYTES
        result = Result(kind, n, layer, max(arithmetic, memory) * 1e6, "arithmetic" if arithmetic > memory else "memory")
        alpha = 2.0 ** -round(math.log2((layer.c * layer.r * layer.s) ** 0.5 * 74.0**2 / 64)) if kind == "s8" else 1.0
        data = tensors(kind, problem, gpu(0).l2_bytes)
        wanted = expected(data, problem, alpha, kind)
        contestants: dict[str, Enqueue] = {}
        for name, (plan, loaded) in own.items():
            enqueue = self._instance(plan, loaded, problem, data, alpha)
            if enqueue is None:
                continue
            if agrees(data, wanted, lambda enqueue=enqueue: enqueue(0), kind):
                contestants[name] = enqueue
            else:
                result.notes.append(f"{name} computes something else")
        peer = self._peer(general, problem, data, alpha, wanted, result)
        times = timed({**contestants, **({result.peer: peer} if peer else {})}, len(data.x), self.stream)
        result.times = {name: times[name] for name in contestants}
        result.peer_us = times.get(result.peer, math.nan)
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
        size = plan.sequence.workspace_bytes.evaluate(problem)
        workspace = torch.zeros(max(1, size), dtype=torch.int8, device="cuda")
        common = {"filter": filters.data_ptr(), "bias": data.bias.data_ptr()} | dict.fromkeys(
            plan.sequence.workspace_names, workspace.data_ptr()
        )
        values = [
            launcher.values({"x": x.data_ptr(), "y": y.data_ptr(), **common}, {"alpha": alpha}) for x, y in zip(data.x, data.y, strict=True)
        ]
        held = (filters, workspace)  # as long as the launches

        def enqueue(index: int, held: Any = held) -> None:
            launcher.launch(self.handle, *values[index])

        return enqueue

    def _peer(
        self, plan: WarpgroupPlan, problem: Mapping[str, int], data: Tensors, alpha: float, wanted: torch.Tensor, result: Result
    ) -> Enqueue | None:
        """cuDNN's fastest way of those that compute the same."""
        filters = reorder_filter(data.filter, plan.filter_order)

        def layer_of(index: int) -> PeerLayer:
            arrays = {"x": data.x[index], "y": data.y[index], "filter": filters, "bias": data.bias}
            return PeerLayer(plan, problem, arrays, {"alpha": alpha})

        with torch.cuda.stream(self.stream):
            ways, refusals = layer_of(0).peers()
            result.notes += refusals
            for way, peer in list(ways.items()):

                def launch(peer: Any = peer) -> None:
                    peer.run()
                    if peer.deliver is not None:
                        peer.deliver()

                if not agrees(data, wanted, launch, result.type):
                    result.notes.append(f"{way.name} computes something else")
                    del ways[way]
            if not ways:
                return None
            trials = {way: milliseconds(on_any_set(peer)) * 1e3 for way, peer in ways.items()}
            result.trials = {way.name: microseconds for way, microseconds in trials.items()}
            best = min(trials, key=lambda way: trials[way])
            result.peer = best.name
            peers = [layer_of(index).peer(best) for index in range(len(data.x))]

        def enqueue(index: int) -> None:
            with torch.cuda.stream(self.stream):
                peers[index].run()

        return enqueue


def describe(clocks: ClockReader, library: int) -> dict[str, str]:
    """Machine and versions that the figures hold for."""
    seen = clocks.summary()
    return {
        "device": gpu(0).name,
        "sms": f"{gpu(0).sm_count} SMs",
        "driver": f"driver {clocks.driver_version}",
        "cuda": f"CUDA {'.'.join(map(str, gpu(0).cuda_version))}",
        "cudnn": f"cuDNN {library}",
        "torch": f"torch {torch.__version__}",
        "clocks": f"SM clock {seen.sm_median:.0f} MHz" if seen.sm_median else "clocks unknown",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def main() -> None:
    """Measures, writes and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no layer after so many")
    options = parser.parse_args()
    started = time.monotonic()
    torch.cuda.init()
    clocks = ClockReader(gpu(0).pci_bus_id)
    contest = Contest(torch.cuda.Stream())
    print(f"{len(contest.instances)} instances after {time.monotonic() - started:.0f} s", flush=True)
    results: list[Result] = []
    for kind, n, layers in CONTESTS:
        for layer in layers:
            if time.monotonic() - started > options.seconds:
                break
            results.append(contest.measure(kind, n, layer))
            clocks.sample()
            row = results[-1]
            best = row.times[row.best]
            print(f"{kind} {n} {layer.cells}: {best:.2f} us, {row.best}, x{row.peer_us / best:.2f} of {row.peer}", *row.notes, flush=True)
        torch.cuda.empty_cache()
        choose_all(results, load_table(gpu(0).name), gpu_device(0))
        environment = describe(clocks, torch.backends.cudnn.version())
        written = {"environment": environment, "results": [asdict(result) for result in results]}
        write_atomically(options.out / "conv2d_hopper.json", (json.dumps(written, indent=1) + "\n").encode())
        write_atomically(options.out / "conv2d_hopper.md", markdown(results, environment).encode())
    print(f"{time.monotonic() - started:.0f} s in all")


if __name__ == "__main__":
    main()
