"""Times the tuned GEMM instances beside cuBLAS, in one run, over shapes from a small square to a language model's last layer.

    python -m measurements.sgemm            on a machine with a GPU and torch

Every instance of specs/gemm/h200 that can take a shape is a candidate for it. Writes sgemm.json and sgemm.md beside this file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gemmgen.api import plan
from gemmgen.core.errors import PlanError
from gemmgen.kernels import family_of
from gemmgen.library.listing import takes
from gemmgen.perf.benchmark import Candidate, benchmark
from gemmgen.runtime.cuda.driver import gpu
from gemmgen.toolchain.compilation import compile_plan

HERE = Path(__file__).resolve().parent
SPECS = HERE.parent / "specs" / "gemm" / "h200"
SQUARES = (128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 1023, 2047, 4095, 1000)
SHAPES = [(n, n, n) for n in SQUARES] + [
    (16, 4096, 4096),
    (64, 4096, 4096),
    (128, 4096, 4096),
    (4096, 4096, 64),
    (4096, 64, 4096),
    (512, 512, 16384),
    (128, 128, 65536),
    (8192, 128, 1024),
    (50257, 1024, 768),
]


def measure(candidates: list[tuple[str, Candidate]], shape: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    """Times of all candidates and of cuBLAS for one shape."""
    # Packed for the instance that promises least: the leading dimensions are the extents themselves.
    first = min((candidate.plan for _, candidate in candidates), key=lambda plan: sum(array.alignment for array in plan.sequence.arrays))
    problem = family_of(first.spec).problem(first, shape)
    fitting = [(label, c) for label, c in candidates if takes(c.plan, problem)]
    report = benchmark([candidate for _, candidate in fitting], problem, rounds=rounds)
    labels = {candidate.plan.name: label for label, candidate in fitting}
    rows = [
        {
            "instance": labels.get(timing.name, timing.name),
            "kind": timing.kind,
            "median_us": timing.median_us,
            "p10_us": timing.p10_us,
            "p90_us": timing.p90_us,
            "checked": timing.checked,
        }
        for timing in report.timings
    ]
    clocks = report.clocks
    return {"shape": shape, "timings": rows, "clocks": f"SM {clocks.sm_lowest} to {clocks.sm_highest} MHz"}


def markdown(about: dict[str, str], rows: list[dict[str, Any]]) -> str:
    """The table, one line a shape."""
    lines = [
        "# SGEMM beside cuBLAS",
        "",
        "Device time by CUDA-graph replay, random data, operands rotated beyond the L2 where they fit in it, candidates and cuBLAS",
        "(through torch, TF32 off) interleaved in one run; medians, with the 10th and 90th percentile for the best instance.",
        "Every candidate's result was first compared with cuBLAS's on small integers, for equality.",
        f"`python -m measurements.sgemm` makes this file. {about['device']}, {about['date']}, {about['clocks']}.",
        "",
        "| m×n×k | cuBLAS µs | best µs | 10–90% | TFLOP/s | cuBLAS / best | instance |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    ratios = []
    for row in rows:
        peer = next(timing for timing in row["timings"] if timing["kind"] == "peer")
        best = min((timing for timing in row["timings"] if timing["kind"] != "peer"), key=lambda timing: timing["median_us"])
        ratios.append(peer["median_us"] / best["median_us"])
        rate = 2 * math.prod(row["shape"]) / best["median_us"] / 1e6
        lines.append(
            f"| {'×'.join(map(str, row['shape']))} | {peer['median_us']:.1f} | {best['median_us']:.1f} | "
            f"{best['p10_us']:.1f}–{best['p90_us']:.1f} | {rate:.1f} | {ratios[-1]:.3f} | {best['instance']} |"
        )
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    lines += ["", f"Geometric mean of cuBLAS's time over the best instance's: **{mean:.3f}**."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compiles, measures and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="replays of each candidate for a shape")
    parser.add_argument("--output", type=Path, default=HERE / "sgemm", help="where to write, without .json and .md")
    arguments = parser.parse_args()
    device = gpu(0)
    assert device.architecture is not None
    plans = []
    for path in sorted(SPECS.glob("*.yaml")):
        try:
            plans.append((path.stem, plan(path, device.architecture)))
        except PlanError as error:
            print(f"{path.stem}: {error}")
    with ThreadPoolExecutor() as pool:
        binaries = list(pool.map(lambda item: compile_plan(item[1]), plans))
    candidates = [(label, Candidate(planned, binary)) for (label, planned), binary in zip(plans, binaries, strict=True)]
    rows = []
    for shape in SHAPES:
        started = time.monotonic()
        rows.append(measure(candidates, shape, arguments.rounds))
        print(f"{shape}: {len(rows[-1]['timings'])} timed in {time.monotonic() - started:.1f} s", flush=True)
    about = {"device": str(device), "date": datetime.date.today().isoformat(), "clocks": rows[-1]["clocks"]}
    arguments.output.with_suffix(".json").write_text(json.dumps({**about, "shapes": rows}, indent=1) + "\n")
    text = markdown(about, rows)
    arguments.output.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
