"""float32 through ``ops.matmul`` beside torch eager: multilayer perceptrons, products whose right factor is kept, and all precisions.

    python -m measurements.f32_ops            on a machine with a GPU and torch

Writes f32_ops.json and f32_ops.md beside this file. Both sides run from CUDA graphs, in turns; results are compared before.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gemmgen import ops
from gemmgen.runtime.cuda.driver import gpu

HERE = Path(__file__).resolve().parent
WIDTHS = (1024, 2048, 4096)
BATCHES = (32, 128, 512, 1024, 2048, 4096)
LAYERS = 3
SHAPES = [(n, n, n) for n in (256, 512, 768, 1024, 2048, 4096, 8192)] + [
    (16, 4096, 4096), (64, 4096, 4096), (128, 4096, 4096), (512, 4096, 4096), (4096, 4096, 64), (4096, 4096, 256), (512, 512, 16384),
    (256, 256, 8192), (8192, 128, 1024), (50260, 1024, 768), (2048, 4096, 11008), (1024, 1024, 65536), (1000, 1000, 1000),
]  # fmt: skip
LAYOUTS = ("nt", "nn", "tn")
GRAPH_SECONDS = 3e-3
WARM_UP_SECONDS = 0.1
Way = Callable[[], Any]


def medians(ways: Mapping[str, Way], rounds: int) -> dict[str, float]:
    """Microseconds of one call of each, replayed from graphs in turns."""
    import torch

    graphs: dict[str, tuple[Any, int]] = {}
    for name, way in ways.items():
        for _ in range(3):
            way()
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        way()
        end.record()
        torch.cuda.synchronize()
        count = max(1, min(256, round(GRAPH_SECONDS / (start.elapsed_time(end) * 1e-3))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                way()
        graphs[name] = graph, count
    samples: dict[str, list[float]] = {name: [] for name in ways}
    spent = 0.0
    while spent < WARM_UP_SECONDS or len(next(iter(samples.values()))) < rounds:
        for name, (graph, count) in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            samples[name].append(start.elapsed_time(end) * 1e3 / count)
            spent += start.elapsed_time(end) * 1e-3
    return {name: median(times[-rounds:]) for name, times in samples.items()}


def compare(name: str, got: Any, expected: Any, tolerance: float) -> None:
    """Raises ``RuntimeError`` if a result is further from torch's than ``tolerance`` times its largest element."""
    error = ((got.double() - expected.double()).abs().max() / expected.double().abs().max()).item()
    if not error <= tolerance:
        raise RuntimeError(f"{name}: results differ by {error:.1e} of the largest")


def perceptrons(rounds: int) -> list[dict[str, Any]]:
    """Three layers with biases, relu between them."""
    import torch

    rows = []
    for width in WIDTHS:
        weights = [torch.randn(width, width, device="cuda") / math.sqrt(width) for _ in range(LAYERS)]
        biases = [torch.randn(width, device="cuda") for _ in range(LAYERS)]
        kept = [ops.Planes(weight.T) for weight in weights]
        for batch in BATCHES:
            x = torch.randn(batch, width, device="cuda")

            def eager(x: Any = x, weights: Any = weights, biases: Any = biases) -> Any:
                for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                    x = torch.nn.functional.linear(x, weight, bias)
                    x = torch.relu(x) if index < LAYERS - 1 else x
                return x

            def own(factors: Sequence[Any], precision: str = "f32", x: Any = x, biases: Any = biases) -> Any:
                for index, (factor, bias) in enumerate(zip(factors, biases, strict=True)):
                    x = ops.matmul(x, factor, bias=bias, activation="relu" if index < LAYERS - 1 else None, precision=precision)
                return x

            plain = [weight.T for weight in weights]
            ways: dict[str, Way] = {
                "torch": eager,
                "ops": lambda own=own, plain=plain: own(plain),
                "ops, ffma": lambda own=own, plain=plain: own(plain, "ffma"),
                "ops, planes kept": lambda own=own, kept=kept: own(kept),
            }
            for name, way in ways.items():
                compare(f"{name}, width {width}, batch {batch}", way(), eager(), 1e-5)
            times = medians(ways, rounds)
            rows.append({"width": width, "batch": batch, "times_us": times})
            print(width, batch, {name: round(time, 1) for name, time in times.items()}, flush=True)
    return rows


def products(rounds: int) -> list[dict[str, Any]]:
    """What is chosen for single products, beside multiply-adds and torch."""
    import torch

    rows = []
    for layout in LAYOUTS:
        for m, n, k in SHAPES if layout == "nt" else [shape for shape in SHAPES if max(shape) <= 4096]:
            a = torch.randn(k, m, device="cuda").T if layout[0] == "t" else torch.randn(m, k, device="cuda")
            b = torch.randn(n, k, device="cuda").T if layout[1] == "t" else torch.randn(k, n, device="cuda")
            ways: dict[str, Way] = {
                "torch": lambda a=a, b=b: torch.matmul(a, b),
                "ops": lambda a=a, b=b: ops.matmul(a, b),
                "ops, ffma": lambda a=a, b=b: ops.matmul(a, b, precision="ffma"),
            }
            if layout != "tn":
                kept = ops.Planes(b)
                ways["ops, planes kept"] = lambda a=a, kept=kept: ops.matmul(a, kept)
            for name, way in ways.items():
                compare(f"{name}, {layout} {m} x {n} x {k}", way(), torch.matmul(a, b), 1e-4)
            times = medians(ways, rounds)
            rows.append({"layout": layout, "shape": [m, n, k], "times_us": times})
            print(layout, m, n, k, {name: round(time, 1) for name, time in times.items()}, flush=True)
    return rows


def markdown(about: Mapping[str, str], layers: Sequence[Mapping[str, Any]], single: Sequence[Mapping[str, Any]]) -> str:
    """Both tables."""
    lines = [
        "# float32 through ops.matmul",
        "",
        "Device time from CUDA graphs, in turns, medians; torch with TF32 off. `ops`: what `ops.matmul` chooses by default, splitting",
        "included; `ffma`: with `precision=\"ffma\"`; `kept`: the right factor as `ops.Planes`. Operands stay in the L2 where they fit.",
        f"`python -m measurements.f32_ops` makes this file. {about['device']}, {about['date']}.",
        "",
        "## Three layers with relu",
        "",
        "| width | batch | torch µs | ops µs | ops / torch | kept | ffma |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip

    def ratios(times: Mapping[str, float]) -> str:
        def ratio(name: str) -> str:
            return f"{times['torch'] / times[name]:.2f}" if name in times else ""

        return f"{times['torch']:.1f} | {times['ops']:.1f} | **{ratio('ops')}** | {ratio('ops, planes kept')} | {ratio('ops, ffma')}"

    lines += [f"| {row['width']} | {row['batch']} | {ratios(row['times_us'])} |" for row in layers]
    lines += ["", "Columns from `ops / torch` on: torch's time over ours.", "", "## Single products", ""]
    lines += ["| layout | m×n×k | torch µs | ops µs | ops / torch | kept | ffma |", "|---|---|---:|---:|---:|---:|---:|"]
    lines += [f"| {row['layout']} | {'×'.join(map(str, row['shape']))} | {ratios(row['times_us'])} |" for row in single]
    mean = math.exp(sum(math.log(row["times_us"]["torch"] / row["times_us"]["ops"]) for row in single) / len(single))
    least = min(row["times_us"]["ops, ffma"] / row["times_us"]["ops"] for row in single)
    lines += ["", f"Geometric mean of torch / ops: **{mean:.2f}**; the least of ffma / ops: **{least:.2f}**."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes."""
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="replays of each way")
    parser.add_argument("--output", type=Path, default=HERE / "f32_ops", help="where to write, without .json and .md")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    layers = perceptrons(arguments.rounds)
    single = products(arguments.rounds)
    about = {"device": str(gpu(0)), "date": datetime.date.today().isoformat()}
    arguments.output.with_suffix(".json").write_text(json.dumps({**about, "layers": layers, "products": single}, indent=1) + "\n")
    text = markdown(about, layers, single)
    arguments.output.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
