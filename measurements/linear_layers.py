"""Three linear layers in a CUDA graph, with weights that are declared constant and without, beside torch's.

    python -m measurements.linear_layers --seed 83 29    on a machine with an H100 or H200, and torch

Few rows, in bfloat16, widths drawn by the seed. Weights rotate among enough sets to exceed the L2, as those of a model do. Results are
compared with float32 first. Kernels that only read the same bytes, layer by layer, show how much of the time is the memory's. Writes
linear_layers.json and .md beside this file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from gemmgen import ops
from gemmgen.core.files import write_atomically
from gemmgen.perf.contestants import median_seconds
from measurements.weight_reads import EARLY, OVERLAPPED, fastest, reads

HERE = Path(__file__).resolve().parent
WIDTHS = (2560, 3072, 4096, 5120, 6144, 7168, 8192, 9216, 11008, 12288, 14336)
ROWS = (1, 16, 64)
CHAINS = 6
"""Chains of three layers that a seed draws for each number of rows."""
SETS_BYTES = 160 << 20
ROUNDS = 15
GRAPH_SECONDS = 2e-3
AGREEMENT = 3e-2
"""Largest difference allowed, as a part of the largest result: every layer rounds to bfloat16."""


def measure(torch: Any, rows: int, widths: tuple[int, ...]) -> dict[str, Any]:
    """Microseconds of three layers from ``widths[0]`` to ``widths[3]`` values a row, by contestant."""
    pairs = list(zip(widths[1:], widths, strict=False))
    size = sum(2 * out * inner for out, inner in pairs)
    sets = max(1, SETS_BYTES // size + 1)
    weights = [[torch.randn(pair, device="cuda").bfloat16() / pair[1] ** 0.5 for pair in pairs] for _ in range(sets)]
    x = torch.randn((rows, widths[0]), device="cuda").bfloat16()
    outs = {
        name: [torch.empty((rows, out), device="cuda", dtype=torch.bfloat16) for out in widths[1:]]
        for name in ("constant", "plain", "torch")
    }
    constants = [[ops.Constant(w.T) for w in layers] for layers in weights]

    def run(name: str, index: int) -> None:
        value = x
        for layer, out in enumerate(outs[name]):
            if name == "torch":
                torch.mm(value, weights[index][layer].T, out=out)
            else:
                ops.matmul(value, constants[index][layer] if name == "constant" else weights[index][layer].T, out=out)
            value = out

    exact = x.float()
    for w in weights[0]:
        exact = exact @ w.float().T
    for name in outs:
        run(name, 0)
        torch.cuda.synchronize()
        difference = (outs[name][-1].float() - exact).abs().max().item() / exact.abs().max().item()
        if not difference <= AGREEMENT:
            return {"rows": rows, "widths": widths, "note": f"{name} differs by {difference:.3g}: not timed"}
    calls = {name: (lambda index, name=name: run(name, index)) for name in outs}
    inputs = [x, *outs["torch"]]
    layers = [reads(torch, [[one[layer]] for one in weights], inputs[layer], outs["plain"][layer], "sm_90a") for layer in range(len(pairs))]

    def read(name: str, index: int) -> None:
        for layer in layers:
            layer[name](index)

    reading = [name for name in layers[0] if name.split()[0] in (EARLY, OVERLAPPED)]
    calls |= {name: (lambda index, name=name: read(name, index)) for name in reading}
    times = median_seconds(torch, calls, sets=sets, rounds=ROUNDS, graph_seconds=GRAPH_SECONDS)
    found = {name: times[name] for name in outs} | fastest({name: times[name] for name in reading})
    return {"rows": rows, "widths": widths, **{name: seconds * 1e6 for name, seconds in found.items()}}


def report(data: dict[str, Any]) -> str:
    """The page."""
    timed = [row for row in data["rows"] if "torch" in row]
    seeds = " and ".join(map(str, data["seeds"]))
    lines = [
        "# Three linear layers in a CUDA graph",
        "",
        f"{data['device']}, {data['date']}, torch {data['torch']}, seeds {seeds}. bfloat16; device time of the three",
        "layers by graph replay, all ways in turns, weights rotated beyond the L2. *Constant*: `ops.matmul(x, ops.Constant(w))`;",
        "*plain*: without `Constant`. *Read*: kernels that only read the same bytes (`measurements/weight_reads.py`); *early*, the next",
        "one begins once all weights of this one were read, *overlapped*, it reads its weights at once. No product is faster than the",
        "latter, so torch's time over it is the most that there is to gain.",
        "`python -m measurements.linear_layers` makes this file.",
        "",
        "| rows | chains | torch / constant, mean | least | plain / constant, mean | least | torch / read early, mean | least |"
        " torch / read overlapped, mean | least |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for rows in ROWS:
        found = [row for row in timed if row["rows"] == rows]
        if found:
            cells = []
            for peer, own in (("torch", "constant"), ("plain", "constant"), ("torch", EARLY), ("torch", OVERLAPPED)):
                ratios = [row[peer] / row[own] for row in found]
                cells += [f"{statistics.geometric_mean(ratios):.3f}", f"{min(ratios):.3f}"]
            lines.append(f"| {rows} | {len(found)} | {' | '.join(cells)} |")
    lines += [
        "",
        "| rows | widths | constant, µs | plain, µs | torch, µs | read early, µs | overlapped, µs | torch / constant |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in data["rows"]:
        widths = " → ".join(map(str, row["widths"]))
        if "torch" in row:
            times = " | ".join(f"{row[name]:.1f}" for name in ("constant", "plain", "torch", EARLY, OVERLAPPED))
            lines.append(f"| {row['rows']} | {widths} | {times} | {row['torch'] / row['constant']:.3f} |")
        else:
            lines.append(f"| {row['rows']} | {widths} | {row['note']} | | | | | |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, and writes both files."""
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no further chain after so long")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "linear_layers.json")
    arguments = parser.parse_args()
    began, rows = time.perf_counter(), []
    drawn = [random.Random(seed) for seed in arguments.seed]
    chains = [tuple(draws.choice(WIDTHS) for _ in range(4)) for draws in drawn for _ in range(CHAINS)]
    for widths in chains:
        for count in ROWS:
            if time.perf_counter() - began < arguments.seconds:
                rows.append(measure(torch, count, widths))
                print(rows[-1], flush=True)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    data = {"device": torch.cuda.get_device_name(), "date": date, "torch": torch.__version__, "seeds": arguments.seed, "rows": rows}
    write_atomically(arguments.output, (json.dumps(data, indent=1) + "\n").encode())
    write_atomically(arguments.output.with_suffix(".md"), report(data).encode())


if __name__ == "__main__":
    main()
