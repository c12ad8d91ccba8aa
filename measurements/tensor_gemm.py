"""Times the GEMM instances for Hopper's tensor cores beside cuBLAS through torch, type by type and shape by shape, in one run.

    python -m measurements.tensor_gemm            on a machine with an H100 or H200, and torch

Writes tensor_gemm.json and tensor_gemm.md beside this file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gemmgen.api import load_spec, plan
from gemmgen.core.errors import GemmgenError
from gemmgen.kernels import family_of
from gemmgen.perf.benchmark import Candidate, benchmark
from gemmgen.runtime.cuda.driver import gpu
from gemmgen.toolchain.compilation import compile_plan

HERE = Path(__file__).resolve().parent
SPECS = HERE.parent / "specs" / "gemm"
CUBES = (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
ROWS = (1, 16, 64, 128, 512, 2048, 8192)
LAYERS = ((4096, 4096), (11008, 4096), (4096, 11008), (6144, 4096))
OTHERS = ((8192, 8192, 64), (4096, 4096, 256), (128, 128, 65536), (50257, 1024, 768), (777, 3000, 336))
SHAPES = [(n, n, n) for n in CUBES] + [(m, n, k) for n, k in LAYERS for m in ROWS] + list(OTHERS)
FEW = [(n, n, n) for n in (512, 1024, 2048, 4096, 8192)] + [(m, n, k) for n, k in LAYERS[:2] for m in (16, 128, 2048)] + list(OTHERS[:4])
KINDS: dict[str, tuple[str, ...]] = {
    "bf16": ("hopper/bf16_*",),
    "int8": ("hopper/int8_*",),
    "fp8": ("hopper/fp8_*",),
    "tf32": ("hopper_tf32",),
}
LAYOUTS = {"nt": "nt", "nn": "nn", "tn": "tn", "tt": "tt"}


def candidates(kind: str, layout: str) -> list[tuple[str, bool, Candidate]]:
    """Instances of a type: name, whether they compute the transpose of C, and the instance."""
    made = []
    for pattern in KINDS[kind]:
        for path in sorted(SPECS.glob(f"{pattern}.yaml")):
            turned = load_spec(path).order == "column_major"  # type: ignore[attr-defined]
            if turned and layout != "nt":
                continue
            try:
                made.append((path.stem, turned, plan(path, gpu(0).architecture, () if turned else (f"transpose={layout}",))))
            except GemmgenError as error:
                print(f"{path.stem} {layout}: {error}")
    with ThreadPoolExecutor() as pool:
        binaries = list(pool.map(lambda item: compile_plan(item[2]), made))
    return [(name, turned, Candidate(planned, binary)) for (name, turned, planned), binary in zip(made, binaries, strict=True)]


def measure(fitting: list[tuple[str, bool, Candidate]], shape: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    """Times of the instances that take a shape, and of cuBLAS."""
    times: dict[str, list[float]] = {}
    peers = []
    clocks = ""
    m, n, k = shape
    for turned in (False, True):
        group = [(name, candidate) for name, is_turned, candidate in fitting if is_turned == turned and not (turned and m > 256)]
        kept = []
        for name, candidate in group:
            problem = family_of(candidate.plan.spec).problem(candidate.plan, (n, m, k) if turned else shape)
            if all(constraint.condition.evaluate(problem) for constraint in candidate.plan.sequence.constraints):
                kept.append((name, candidate, problem))
        if not kept:
            continue
        report = benchmark([candidate for _, candidate, _ in kept], kept[0][2], rounds=rounds)
        names = {candidate.plan.name: name for name, candidate, _ in kept}
        clocks = str(report.clocks.sm_highest)
        for timing in report.timings:
            if timing.kind == "peer":
                peers.append([timing.median_us, timing.p10_us, timing.p90_us])
            else:
                times[names[timing.name]] = [timing.median_us, timing.p10_us, timing.p90_us]
    return {"shape": shape, "peer_us": min(peers) if peers else None, "times_us": times, "clocks": clocks}


def markdown(about: dict[str, str], rows: list[dict[str, Any]]) -> str:
    """The tables, one a type."""
    lines = [
        "# GEMM on Hopper's tensor cores beside cuBLAS",
        "",
        "Device time by CUDA-graph replay, random data, operands rotated beyond the L2 where they fit in it, all interleaved in one run",
        "with torch (`matmul`, `_int_mm`, `_scaled_mm`); medians. Every result was first compared on small integers, for equality.",
        f"`python -m measurements.tensor_gemm` makes this file. {about['device']}, {about['date']}, {about['clocks']}.",
    ]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        ratios = []
        table = []
        for row in (row for row in rows if row["kind"] == kind and row["times_us"]):
            best = min(row["times_us"], key=lambda name: row["times_us"][name][0])
            time = row["times_us"][best][0]
            rate = 2 * math.prod(row["shape"]) / time / 1e6
            ratio = ""
            if row["peer_us"]:
                ratios.append(row["peer_us"][0] / time)
                ratio = f"{ratios[-1]:.2f}"
            peer = f"{row['peer_us'][0]:.1f}" if row["peer_us"] else "refuses"
            table.append(f"| {row['layout']} | {'×'.join(map(str, row['shape']))} | {peer} | {time:.1f} | {rate:.0f} | {ratio} | {best} |")
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else float("nan")
        lines += ["", f"## {kind}: {mean:.2f} as a geometric mean, {min(ratios, default=0):.2f} at worst", ""]
        lines += ["| layout | m×n×k | torch µs | best µs | Top/s | torch / best | instance |", "|---|---|---:|---:|---:|---:|---|", *table]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="replays of each instance for a shape")
    parser.add_argument("--few", action="store_true", help="a third of the shapes")
    parser.add_argument("--kinds", default=",".join(KINDS), help="types, with commas")
    parser.add_argument("--output", type=Path, default=HERE / "tensor_gemm", help="where to write, without .json and .md")
    arguments = parser.parse_args()
    rows = []
    for kind in arguments.kinds.split(","):
        for layout in LAYOUTS if kind == "bf16" else ("nt",):
            made = candidates(kind, layout)
            for shape in (FEW if arguments.few else SHAPES) if layout == "nt" else [(n, n, n) for n in (1024, 4096)]:
                if kind in ("int8", "fp8") and any(extent % 16 for extent in shape[1:]):
                    continue
                try:
                    row = measure(made, shape, arguments.rounds)
                except GemmgenError as error:
                    print(f"{kind} {layout} {shape}: {str(error)[:300]}", flush=True)
                    continue
                rows.append({"kind": kind, "layout": layout, **row})
                best = min(row["times_us"], key=lambda name: row["times_us"][name][0], default="")
                ratio = row["peer_us"][0] / row["times_us"][best][0] if row["peer_us"] and best else 0.0
                print(f"{kind} {layout} {shape}: {ratio:.2f} {best}", flush=True)
                about = {
                    "device": str(gpu(0)),
                    "date": datetime.date.today().isoformat(),
                    "clocks": f"SM up to {max(int(row['clocks']) for row in rows if row['clocks'].isdigit())} MHz",
                }
                arguments.output.with_suffix(".json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    text = markdown(about, rows)
    arguments.output.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
