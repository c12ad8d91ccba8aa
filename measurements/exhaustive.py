"""The chosen kernel beside every point of the space, on held-out products: the regret of the choice.

    python -m measurements.exhaustive prepare --jobs 20      compiles all points into a folder; needs no GPU
    python -m measurements.exhaustive time                   times them, on a machine with a GPU and torch
    python -m measurements.exhaustive again                  times today's choices beside the fastest points of exhaustive.json
    python -m measurements.exhaustive report                 writes exhaustive.md from exhaustive.json

A seed draws bfloat16 products that no file of timed points holds. A point is left out only if its fullest SM cannot multiply its tiles, the
L2 cannot deliver their rows and columns to the SMs, or the memory the product's bytes, in the time that the chosen kernel was measured to
take: at the highest clock, at the peak of the tensor cores, at 64 bytes per clock and SM, at the rate of the data sheet. All others are
compiled, compared with cuBLASLt's result, and timed once, in a CUDA graph that rotates among enough arrays to exceed the L2; the fastest
``AGAIN`` of them, the choice and cuBLASLt's best are timed again in turns.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import itertools
import json
import math
import pickle
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gemmgen.core.errors import GemmgenError
from gemmgen.core.files import write_atomically
from gemmgen.dispatch.candidates import Candidate
from gemmgen.dispatch.model import seconds_of_many
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import MAX_EARLY, choose, fitted
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels.gemm import space
from gemmgen.kernels.gemm.spec import GemmSpec
from gemmgen.kernels.launch import LaunchSequence
from measurements.points import MAX_SETS, POOL_BYTES, SETS_BYTES, SURVEY_N, SURVEY_ROWS, SURVEY_WEIGHTS, Pool

HERE = Path(__file__).resolve().parent
DEVICE = "H200"
SEED, PRODUCTS = 1234, 10
OPERATIONS_PER_CLOCK, HIGHEST_CLOCK, BANDWIDTH, BYTES_PER_CLOCK = 4096, 1.98e9, 4.8e12, 64
"""Operations of an SM's tensor cores on 16-bit elements in a clock cycle, hertz, bytes per second of an H200's memory, and those that an SM
receives from the L2 in a clock cycle."""
ELEMENT_BYTES = 2
MARGIN = 1.15
"""Points are compiled whose bound is below this many times the time that the model expects of the choice, before that is measured."""
CHUNKS = 48
GRAPH_SECONDS, REPLAYS = 1e-4, 3
AGAIN, ROUNDS, TURN_SECONDS = 14, 11, 1e-3
AGREEMENT = 2e-2
"""Largest difference allowed, as a part of the largest result."""


class Entry(NamedTuple):
    """A compiled point for one product."""

    label: str
    bound: float
    """Seconds in which no kernel of its tiles can do it."""
    expected: float
    arrays: Mapping[str, Any]
    sequence: LaunchSequence
    name: str


def held_out() -> list[str]:
    """Products that the seed draws and the files of timed points do not hold."""
    lines = (HERE / "points_h200.jsonl").read_text().splitlines()
    known = {row["problem"] for row in map(json.loads, lines) if "problem" in row}
    rng, found = random.Random(SEED), list[str]()
    while len(found) < PRODUCTS:
        rows = rng.choices(SURVEY_ROWS, SURVEY_WEIGHTS)[0]
        text = f"{rows},{rng.choice(SURVEY_N)},{rng.choice(SURVEY_N[2:12])},nt,bf16"
        if text not in known and text not in found:
            found.append(text)
    return found


@cache
def _points(text: str) -> tuple[Any, list[Any], list[tuple[float, float, int, int]], Any]:
    """The request, its points, for each the bound, the model's time and its place, and the choice."""
    target = find_device(DEVICE)
    request = parse_problem(f"gemm:{text}").on(target)
    groups, rows = space.points(request, target), []
    for number, points in enumerate(groups):
        works = points.works
        busiest = -(-works.blocks // target.sm_count) * works.steps * works.operations
        bounds = np.maximum(busiest / (OPERATIONS_PER_CLOCK * HIGHEST_CLOCK), works.memory_bytes / BANDWIDTH)
        bounds = np.maximum(bounds, _received(points, request.sizes) / (target.sm_count * BYTES_PER_CLOCK * HIGHEST_CLOCK))
        seconds = seconds_of_many(works, target)
        rows += [(float(bounds[place]), float(seconds[place]), number, place) for place in range(len(points))]
    return request, groups, rows, choose(request, target).chosen


def _received(points: Any, sizes: tuple[int, ...]) -> Any:
    """Bytes of A and B that the SMs receive for all tiles of each point, parts of tiles outside the matrices not counted."""
    tile_m, tile_n = 2.0 ** points.features[:, 0], 2.0 ** points.features[:, 1]
    turned = points.features[:, 6] > 0
    m, n = np.where(turned, sizes[1], sizes[0]), np.where(turned, sizes[0], sizes[1])
    return (np.ceil(n / tile_n) * m + np.ceil(m / tile_m) * n) * sizes[2] * ELEMENT_BYTES


def compile_chunk(folder: Path, number: int, text: str, chunk: int) -> tuple[int, int]:
    """Compiles a part of a product's points, and the choice with the first part; the numbers of points compiled and refused."""
    from gemmgen.toolchain.compilation import compile_plan

    request, groups, rows, choice = _points(text)
    entries, refused = list[Entry](), list[str]()

    def add(spec: GemmSpec, bound: float, expected: float) -> None:
        option = fitted(Candidate(space.label(spec), spec), request, find_device(DEVICE).architecture)
        try:
            binary = compile_plan(option[1]) if not isinstance(option, str) else option
        except GemmgenError as error:
            binary = str(error).splitlines()[0]
        if isinstance(option, str) or isinstance(binary, str):
            refused.append(f"{space.label(spec)}: {binary}")
            return
        path = folder / "binaries" / option[1].name
        if not path.exists():
            write_atomically(path, pickle.dumps(binary))
        entries.append(Entry(space.label(spec), bound, expected, option[0].arrays, option[1].sequence, option[1].name))

    if chunk == 0:
        add(choice.candidate.spec, 0.0, choice.seconds)
    for bound, seconds, group, place in rows[chunk::CHUNKS]:
        if bound < choice.seconds * MARGIN:
            add(groups[group].spec(place, seconds < MAX_EARLY), bound, seconds)
    write_atomically(folder / str(number) / f"{chunk:02}.pickle", pickle.dumps(([tuple(entry) for entry in entries], refused)))
    return len(entries), len(refused)


def prepare(folder: Path, jobs: int, which: Sequence[int]) -> None:
    """Compiles the points of the products with these numbers."""
    texts = held_out()
    (folder / "binaries").mkdir(parents=True, exist_ok=True)
    for number in which:
        (folder / str(number)).mkdir(exist_ok=True)
    tasks = [(folder, number, texts[number], chunk) for number in which for chunk in range(CHUNKS)]
    with ProcessPoolExecutor(jobs) as pool:
        for task, counts in zip(tasks, pool.map(compile_chunk, *zip(*tasks, strict=True)), strict=True):
            print(task[2], f"part {task[3] + 1} of {CHUNKS}", counts, flush=True)


class Bench:
    """Arrays of one product, and ways to time kernels on them."""

    def __init__(self, torch: Any, pool: Pool, text: str, folder: Path) -> None:
        from gemmgen.kernels.gemm.cublaslt import Product
        from gemmgen.kernels.gemm.peer import fastest_product, operand

        self._torch, self._folder, self._stream = torch, folder, torch.cuda.Stream()
        request = parse_problem(f"gemm:{text}")
        m, n, k = request.sizes
        self.sets = max(1, min(MAX_SETS, SETS_BYTES // ((m * k + k * n) * 2) + 1))
        self._a, self._b = ([pool.matrix(layout, torch.bfloat16) for _ in range(self.sets)] for layout in (request.a, request.b))
        self._own, theirs = (torch.zeros(m, n, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        product = Product(operand(self._a[0], "bf16"), operand(self._b[0], "bf16"), operand(self._own, "bf16"), "none")
        with torch.cuda.stream(self._stream):
            peers: list[Any] = [fastest_product(product, (self._a[i], self._b[i], theirs), None, 1.0, 0.0) for i in range(self.sets)]
        self.peer: Callable[[int], Any] = lambda index: peers[index].run()
        self.peer(0)
        torch.cuda.synchronize()
        self._reference = theirs.float()
        self._largest = self._reference.abs().max().item()

    def call(self, entry: Entry) -> Callable[[int], None]:
        """A launch of a point's kernel on a set of arrays."""
        from gemmgen.runtime.kernel import Kernel

        kernel = Kernel(entry.sequence, pickle.loads((self._folder / "binaries" / entry.name).read_bytes()))

        def launch(index: int) -> None:
            arrays = {"a": self._a[index], "b": self._b[index], "out": self._own}
            views = {name: self._torch.as_strided(arrays[of], layout.shape, layout.strides) for name, (of, layout) in entry.arrays.items()}
            kernel(**views)

        return launch

    def is_right(self, call: Callable[[int], None]) -> bool:
        """True if a kernel's result agrees with cuBLASLt's."""
        self._own.zero_()
        with self._torch.cuda.stream(self._stream):
            call(0)
        self._torch.cuda.synchronize()
        difference = (self._own.float() - self._reference).abs().max().item()
        return bool(difference <= AGREEMENT * self._largest)

    def microseconds(self, call: Callable[[int], None], launches: int) -> float:
        """Median of a few replays of one graph."""
        torch, graph = self._torch, self._torch.cuda.CUDAGraph()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
        with torch.cuda.stream(self._stream):
            graph.capture_begin(capture_error_mode="thread_local")
            for index in range(launches):
                call(index % self.sets)
            graph.capture_end()
            graph.replay()
            for event in events[:-1]:
                event.record()
                graph.replay()
            events[-1].record()
        torch.cuda.synchronize()
        times = [first.elapsed_time(second) for first, second in itertools.pairwise(events)]
        graph.reset()
        return statistics.median(times) / launches * 1e3


def search(torch: Any, pool: Pool, folder: Path, number: int, text: str) -> dict[str, Any]:
    """Times all points of one product."""
    from gemmgen.perf.contestants import median_seconds

    parts = [pickle.loads(path.read_bytes()) for path in sorted((folder / str(number)).glob("*.pickle"))]
    entries, refused = [Entry(*one) for part in parts for one in part[0]], [words for part in parts for words in part[1]]
    chosen, points = entries[0], entries[1:]
    bench = Bench(torch, pool, text, folder)
    call = bench.call(chosen)
    launches = bench.sets * math.ceil(GRAPH_SECONDS * 1e6 / bench.microseconds(call, bench.sets) / bench.sets)
    limit = bench.microseconds(call, launches)
    timed, wrong = list[tuple[float, int]](), list[str]()
    for place, entry in enumerate(points):
        if entry.bound * 1e6 > limit:
            continue
        call = bench.call(entry)
        if bench.is_right(call):
            timed.append((bench.microseconds(call, launches), place))
        else:
            wrong.append(entry.label)
    fastest = [points[place] for _, place in sorted(timed)[:AGAIN]]
    calls = {"peer": bench.peer, "choice": bench.call(chosen)} | {
        f"{place} {one.label}": bench.call(one) for place, one in enumerate(fastest)
    }
    seconds = median_seconds(torch, calls, sets=bench.sets, rounds=ROUNDS, graph_seconds=TURN_SECONDS)
    again = {name: round(value * 1e6, 3) for name, value in seconds.items()}
    best = min((name for name in again if name != "peer"), key=again.__getitem__)
    return {
        "problem": text,
        "points": len(points),
        "refused": refused,
        "timed": len(timed),
        "wrong": wrong,
        "choice": chosen.label,
        "best": chosen.label if best == "choice" else best.split(" ", 1)[1],
        "us": {"peer": again["peer"], "choice": again["choice"], "best": again[best]},
        "regret": round(again["choice"] / again[best] - 1, 4),
    }


def again(torch: Any, pool: Pool, folder: Path, row: dict[str, Any]) -> dict[str, Any]:
    """A row with today's choice in the place of the one that was timed with all points, beside the fastest of these, in turns."""
    from gemmgen.perf.contestants import median_seconds
    from gemmgen.toolchain.compilation import compile_plan
    from measurements.fit_points import coordinates

    target = find_device(DEVICE)
    request, groups, rows, choice = _points(row["problem"])
    wanted, bench, calls = np.array(coordinates(row["best"], ELEMENT_BYTES)), Bench(torch, pool, row["problem"], folder), {}
    number, place = min(
        ((number, int(((points.features - wanted) ** 2).sum(axis=1).argmin())) for number, points in enumerate(groups)),
        key=lambda at: float(((groups[at[0]].features[at[1]] - wanted) ** 2).sum()),
    )
    seconds = next(one[1] for one in rows if one[2:] == (number, place))
    for name, spec in (("choice", choice.candidate.spec), ("best", groups[number].spec(place, seconds < MAX_EARLY))):
        option = fitted(Candidate(space.label(spec), spec), request, target.architecture)
        assert not isinstance(option, str)
        (folder / "binaries").mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "binaries" / option[1].name, pickle.dumps(compile_plan(option[1])))
        calls[name] = bench.call(Entry(space.label(spec), 0.0, 0.0, option[0].arrays, option[1].sequence, option[1].name))
        if not bench.is_right(calls[name]):
            raise SystemExit(f"{row['problem']}: {space.label(spec)} computes a wrong result")
    found = median_seconds(torch, {"peer": bench.peer, **calls}, sets=bench.sets, rounds=ROUNDS, graph_seconds=TURN_SECONDS)
    us = {name: round(value * 1e6, 3) for name, value in found.items()}
    # The choice itself is one of the points.
    us["best"] = min(us["best"], us["choice"])
    return row | {"choice": choice.candidate.label, "us": us, "regret": round(us["choice"] / us["best"] - 1, 4)}


def report(data: dict[str, Any]) -> str:
    """The page."""
    rows = data["rows"]
    mean, worst = statistics.mean(row["regret"] for row in rows), max(row["regret"] for row in rows)
    lines = [
        "# The choice beside every point of the space",
        "",
        f"{data['device']}, {data['date']}, torch {data['torch']}; `python -m measurements.exhaustive` makes this file: {len(rows)}",
        f"bfloat16 products that a seed draws and no fit has seen. Regret of the choice: {mean:.1%} on average, {worst:.1%} at most.",
        "",
        "*Timed*: points that were timed, all with the same result as cuBLASLt; the others cannot be faster than the choice by the bounds",
        "that `measurements/exhaustive.py` names. Microseconds: the choice, the fastest of the timed points and cuBLASLt's best in turns;",
        f"the fastest is that of the {AGAIN} fastest of one pass over all. Choices may be of a later day than that pass.",
        "",
        "| m, n, k | points | timed | cuBLASLt's best | choice | µs | fastest point | µs | regret |",
        "|---|---:|---:|---:|---|---:|---|---:|---:|",
    ]
    for row in rows:
        sizes = " × ".join(row["problem"].split(",")[:3])
        names = [f"`{row[name].removeprefix('point/wgmma/')}`" for name in ("choice", "best")]
        us = row["us"]
        lines.append(
            f"| {sizes} | {row['points']} | {row['timed']} | {us['peer']:.1f} | {names[0]} | {us['choice']:.2f} "
            f"| {names[1]} | {us['best']:.2f} | {row['regret']:.1%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compiles, times or reports."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("prepare", "time", "again", "report"))
    parser.add_argument("--folder", type=Path, default=Path("/tmp/gemmgen-points"), help="compiled points")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--products", type=int, nargs="*", default=list(range(PRODUCTS)), help="numbers of products")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no product is begun after this time")
    parser.add_argument("--out", type=Path, default=HERE / "exhaustive.json")
    given = parser.parse_args()
    if given.what == "prepare":
        prepare(given.folder, given.jobs, given.products)
        return
    if given.what == "time":
        import torch

        began, texts = time.monotonic(), held_out()
        # A capture collects garbage, for which it walks through all plans.
        gc.freeze()
        pool = Pool(torch, POOL_BYTES)
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        data: dict[str, Any] = {**about, "date": datetime.datetime.now(datetime.UTC).date().isoformat(), "rows": []}
        for number in given.products:
            if time.monotonic() - began < given.seconds:
                data["rows"].append(search(torch, pool, given.folder, number, texts[number]))
                print(data["rows"][-1], flush=True)
                write_atomically(given.out, (json.dumps(data, indent=1) + "\n").encode())
                torch.cuda.empty_cache()
    if given.what == "again":
        import torch

        data, pool = json.loads(given.out.read_text()), Pool(torch, POOL_BYTES)
        data |= {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "rows": [again(torch, pool, given.folder, row) for row in data["rows"]],
        }
        write_atomically(given.out, (json.dumps(data, indent=1) + "\n").encode())
    write_atomically(given.out.with_suffix(".md"), report(json.loads(given.out.read_text())).encode())


if __name__ == "__main__":
    main()
