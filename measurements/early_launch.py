"""Early launches of products: the kernels that ``ops.matmul`` chooses, started while the work before them still runs, and not.

    python -m measurements.early_launch                   on a machine with an H100 or H200, and torch

Launches of both ways, and torch's product, are captured in CUDA graphs that rotate among enough sets of arrays for the operands to exceed
the L2, and replayed in turns. Writes early_launch.json and early_launch.md beside this file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemmgen.dispatch.devices import gpu_device
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import LONGEST_EARLY, Option, choose
from gemmgen.perf.contestants import median_seconds
from measurements.choice import launch, launcher_of
from measurements.odd_shapes import SEEN, Shape, arrays, shapes, theirs

HERE = Path(__file__).resolve().parent
ROUNDS = 7
GRAPH_SECONDS = 3e-4
SEEDS = (77, 78)


@dataclass(frozen=True)
class Row:
    """One product. Times in microseconds."""

    problem: str
    instance: str
    expected_us: float
    early_us: float
    after_us: float
    """Not early: after the work before it."""
    torch_us: float


def products() -> list[tuple[Shape, str, Option]]:
    """Products of many kinds whose kernels can start early, in an order in which any first part is a sample."""
    drawn = [(shape, type) for type in ("bf16", "f32") for seed in SEEDS for shape in shapes(seed)]
    drawn += [(shape, type) for type in ("bf16", "f32") for shape in SEEN]
    random.Random(SEEDS[0]).shuffle(drawn)
    device = gpu_device(0)
    chosen = [(shape, type, choose(parse_problem(shape.problem(type)), device).chosen) for shape, type in drawn]
    return [one for one in chosen if any(launch.programmatic for launch in one[2].plan.sequence.launches)]


def measure(torch: Any, shape: Shape, type: str, option: Option) -> Row:
    """Times one product both ways, beside torch."""
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[type]
    size = torch.empty(0, dtype=kind).element_size()
    count = max(1, min(64, math.ceil(2 * torch.cuda.get_device_properties(0).L2_cache_size / shape.bytes(size))))
    sets = [arrays(torch, shape, kind, integers=False) for _ in range(count)]
    ways: dict[str, Any] = {"torch": lambda index: theirs(torch, *sets[index])}
    for name, early in (("early", True), ("after", False)):
        launcher = launcher_of(torch, option, early)
        ways[name] = lambda index, launcher=launcher: launch(torch, launcher, sets[index])
    times = {
        name: seconds * 1e6 for name, seconds in median_seconds(torch, ways, sets=count, rounds=ROUNDS, graph_seconds=GRAPH_SECONDS).items()
    }
    return Row(shape.problem(type), option.candidate.label, option.seconds * 1e6, times["early"], times["after"], times["torch"])


def markdown(about: dict[str, Any], rows: list[Row]) -> str:
    """The table."""
    lines = [
        "# Early launches of products",
        "",
        f"{about['device']}, {about['date']}. Device time by CUDA-graph replay, operands rotated beyond the L2, both ways in turns.",
        f"`ops.matmul` lets kernels start early up to an expected {LONGEST_EARLY * 1e6:.0f} us.",
        "`python -m measurements.early_launch` makes this file.",
        "",
        "| expected | products | time without it / with it, mean | least | most |",
        "|---|---:|---:|---:|---:|",
    ]
    for low, high in ((0, 12), (12, 20), (20, math.inf)):
        ratios = [row.after_us / row.early_us for row in rows if low <= row.expected_us < high]
        if ratios:
            span = f"{low} to {high} us" if high < math.inf else f"beyond {low} us"
            lines.append(f"| {span} | {len(ratios)} | {statistics.geometric_mean(ratios):.3f} | {min(ratios):.2f} | {max(ratios):.2f} |")
    lines += ["", "| product | instance | expected us | early us | not early us | torch us |", "|---|---|---:|---:|---:|---:|"]
    for row in sorted(rows, key=lambda row: row.expected_us):
        times = f"{row.expected_us:.1f} | {row.early_us:.1f} | {row.after_us:.1f} | {row.torch_us:.1f}"
        lines.append(f"| `{row.problem}` | {row.instance} | {times} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90.0, help="begin no further product after so long")
    parser.add_argument("-o", "--output", type=Path, default=HERE)
    arguments = parser.parse_args()
    import torch

    from gemmgen.ops.engine import compiled

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    found = products()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: compiled(one[2].plan), found))
    started = time.monotonic()
    rows: list[Row] = []
    for shape, type, option in found:
        if time.monotonic() - started > arguments.seconds:
            break
        rows.append(measure(torch, shape, type, option))
        torch.cuda.empty_cache()
    about = {"device": torch.cuda.get_device_name(0), "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "early_launch.json").write_text(json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    (arguments.output / "early_launch.md").write_text(markdown(about, rows))


if __name__ == "__main__":
    main()
