"""float32 through ``ops.matmul`` beside torch eager: multilayer perceptrons, products whose right factor is kept, and all precisions.

Single products are the shapes of ``sgemm``, and cubes in the other storage orders.

    python -m measurements.f32_ops            on a machine with a GPU and torch

Writes f32_ops.json and f32_ops.md beside this file. Both sides run from CUDA graphs, in turns, single products on as many sets of
operands as exceed the L2; results are compared before.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmgen import ops
from gemmgen.perf.contestants import median_seconds
from gemmgen.runtime.cuda.driver import gpu
from measurements.sgemm import SHAPES

HERE = Path(__file__).resolve().parent
WIDTHS = (1024, 2048, 4096)
BATCHES = (32, 128, 512, 1024, 2048, 4096)
LAYERS = 3
PRODUCTS = [("nn", shape) for shape in SHAPES] + [(letters, (n, n, n)) for letters in ("nt", "tn", "tt") for n in (1024, 2048, 4096)]
"""Storage orders with (m, n, k)."""
MAX_SETS = 64
Way = Callable[[int], Any]
"""Something to be timed, on the set of operands of an index."""


def medians(ways: Mapping[str, Way], rounds: int, sets: int = 1) -> dict[str, float]:
    """Microseconds of one call of each, replayed from graphs in turns."""
    import torch

    return {name: seconds * 1e6 for name, seconds in median_seconds(torch, ways, sets=sets, rounds=rounds).items()}


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
                "torch": lambda index, eager=eager: eager(),
                "ops": lambda index, own=own, plain=plain: own(plain),
                "ops, ffma": lambda index, own=own, plain=plain: own(plain, "ffma"),
                "ops, planes kept": lambda index, own=own, kept=kept: own(kept),
            }
            for name, way in ways.items():
                compare(f"{name}, width {width}, batch {batch}", way(0), eager(), 1e-5)
            times = medians(ways, rounds)
            rows.append({"width": width, "batch": batch, "times_us": times})
            print(width, batch, {name: round(time, 1) for name, time in times.items()}, flush=True)
    return rows


def products(rounds: int) -> list[dict[str, Any]]:
    """Choices for single products, beside multiply-adds and torch."""
    import torch

    rows = []
    beyond = 2 * torch.cuda.get_device_properties(0).L2_cache_size
    for layout, (m, n, k) in PRODUCTS:
        sets = max(1, min(MAX_SETS, math.ceil(beyond / (4 * (m * k + k * n + m * n)))))
        left = [torch.randn(k, m, device="cuda").T if layout[0] == "t" else torch.randn(m, k, device="cuda") for _ in range(sets)]
        right = [torch.randn(n, k, device="cuda").T if layout[1] == "t" else torch.randn(k, n, device="cuda") for _ in range(sets)]
        kept = [ops.Planes(b) for b in right]
        out = [torch.empty(m, n, device="cuda") for _ in range(sets)]
        ways: dict[str, Way] = {
            "torch": lambda i, a=left, b=right, c=out: torch.matmul(a[i], b[i], out=c[i]),
            "ops": lambda i, a=left, b=right, c=out: ops.matmul(a[i], b[i], out=c[i]),
            "ops, ffma": lambda i, a=left, b=right, c=out: ops.matmul(a[i], b[i], out=c[i], precision="ffma"),
            "ops, planes kept": lambda i, a=left, b=kept, c=out: ops.matmul(a[i], b[i], out=c[i]),
        }
        expected = torch.matmul(left[0], right[0])
        for name, way in ways.items():
            compare(f"{name}, {layout} {m} x {n} x {k}", way(0), expected, 1e-4)
            for index in range(sets):
                way(index)  # planes are made at their first use
        times = medians(ways, rounds, sets)
        rows.append({"layout": layout, "shape": [m, n, k], "times_us": times})
        print(layout, m, n, k, {name: round(time, 1) for name, time in times.items()}, flush=True)
        del left, right, kept, out, ways, expected
        torch.cuda.empty_cache()
    return rows


def markdown(about: Mapping[str, str], layers: Sequence[Mapping[str, Any]], single: Sequence[Mapping[str, Any]]) -> str:
    """Both tables."""
    lines = [
        "# float32 through ops.matmul",
        "",
        "Device time from CUDA graphs, in turns, medians; torch with TF32 off. `ops`: the default choice of `ops.matmul`, splitting",
        'included; `ffma`: with `precision="ffma"`; `kept`: the right factor as `ops.Planes`. Operands of single products are rotated',
        f"beyond the L2. `python -m measurements.f32_ops` makes this file. {about['device']}, {about['date']}.",
        "",
        "## Three layers with relu",
        "",
        "| width | batch | torch µs | ops µs | ops / torch | kept | ffma |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]

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
    worst = min(row["times_us"]["torch"] / row["times_us"]["ops"] for row in single)
    text = f"{len(single)} products: geometric mean of torch / ops **{mean:.2f}**, the least **{worst:.2f}**"
    lines += ["", f"{text}; the least of ffma / ops: **{least:.2f}**."]
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
