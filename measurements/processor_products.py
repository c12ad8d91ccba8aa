"""Products of NumPy's float32 matrices by ``gemmgen.ops`` on this processor, beside NumPy and, where torch is installed, oneDNN.

``python -m measurements.processor_products drawn --seed 4242 --threads 1 --out measurements/processor_products.json``. Everybody takes
turns in one process; a result is compared with float64 before it is timed. One thread is timed by its processor time, several by the clock
on the wall: do that on processors that do nothing else. A time is the least of all rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gemmgen.core.files import write_atomically
from gemmgen.perf.host.benchmark import WARM_SECONDS, wait_for_other_threads

Shape = tuple[int, ...]
SIDES = (1, 2, 3, 5, 8, 13, 31, 64, 100, 256, 1000, 4000)
MAX_GRID_PRODUCTS = 5e8
MIN_DRAWN_PRODUCTS, MAX_DRAWN_PRODUCTS, MAX_DRAWN_SIDE = 1e3, 2e9, 5000
LISTED: tuple[Shape, ...] = (
    *((1, 4096, 4096), (4096, 1, 4096), (32, 4096, 4096), (3000, 64, 64), (128, 128, 20000), (1000, 1000, 1000)),
    *((2000, 2000, 2000), (64, 64, 64), (256, 256, 256), (16, 1024, 1024)),
)
WARMING: tuple[Shape, ...] = ((64, 64, 64), (8, 512, 1024), (12, 4096, 512), (2048, 64, 256), (640, 640, 640), (1, 300, 200), (300, 1, 200))
"""A product of every kind, after which all kernels are compiled."""
LAYOUTS = ("nn", "nt", "tn", "tt")
ERROR_OF_ROOT = 3e-4
"""Largest error, in units of the square root of k, of products of normal numbers."""


def drawn(seed: int, count: int) -> list[Shape]:
    """Shapes whose extents are drawn evenly by their logarithms."""
    generator = random.Random(seed)
    shapes: list[Shape] = []
    while len(shapes) < count:
        m, n, k = (round(math.exp(generator.uniform(0, math.log(MAX_DRAWN_SIDE)))) for _ in range(3))
        if MIN_DRAWN_PRODUCTS < m * n * k < MAX_DRAWN_PRODUCTS:
            shapes.append((m, n, k))
    return shapes


def grid() -> list[Shape]:
    """Every triple of SIDES that does not take long, in an order that mixes kinds."""
    shapes = [shape for shape in itertools.product(SIDES, repeat=3) if math.prod(shape) <= MAX_GRID_PRODUCTS]
    random.Random(0).shuffle(shapes)
    return shapes


def stored(array: Any, transposed: bool) -> Any:
    """The same matrix, stored by columns if ``transposed``."""
    import numpy as np

    return np.ascontiguousarray(array.T).T if transposed else array


def times(calls: dict[str, Callable[[], object]], clock: Callable[[], float], seconds: float, pause: float) -> dict[str, float]:
    """The least microseconds of one call of each."""
    counts: dict[str, int] = {}
    for name, call in calls.items():
        call()
        started = clock()
        call()
        counts[name] = max(1, min(2000, int(2e-4 / max(clock() - started, 1e-7))))
    least = dict.fromkeys(calls, math.inf)
    rounds, end = 0, time.perf_counter() + seconds
    while rounds < 4 or time.perf_counter() < end:
        for name, call in calls.items():
            if pause:
                # Threads of the others wait for work by spinning: they have to sleep, and those of this one to be awake.
                wait_for_other_threads()
                warm = time.perf_counter() + pause
                while time.perf_counter() < warm:
                    call()
            started = clock()
            for _ in range(counts[name]):
                call()
            least[name] = min(least[name], (clock() - started) / counts[name])
        rounds += 1
    return {name: 1e6 * value for name, value in least.items()}


def rows(
    shapes: Sequence[Shape], layouts: Sequence[str], threads: int, seconds: float, limit: float, peers: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """A row for every shape and layout until the time is over."""
    import numpy as np

    from gemmgen import ops

    clock, pause = (time.thread_time, 0.0) if threads == 1 else (time.perf_counter, WARM_SECONDS)
    end = time.monotonic() + limit
    for (m, n, k), layout in itertools.product(shapes, layouts):
        if time.monotonic() > end:
            return
        rng = np.random.default_rng(1)
        a = stored(rng.standard_normal((m, k), dtype=np.float32), layout[0] == "t")
        b = stored(rng.standard_normal((k, n), dtype=np.float32), layout[1] == "t")
        calls: dict[str, Callable[[], object]] = {"ours": partial(ops.matmul, a, b), "numpy": partial(np.matmul, a, b)}
        if "onednn" in peers:
            import torch

            left, right = torch.from_numpy(a), torch.from_numpy(b).t()
            calls["onednn"] = partial(torch.ops.mkldnn._linear_pointwise, left, right, None, "none", [], "")
        exact = a.astype(np.float64) @ b
        for name, call in calls.items():
            error = float(np.abs(np.asarray(call()) - exact).max())
            assert error < ERROR_OF_ROOT * math.sqrt(k), (name, m, n, k, layout, error)
        found = times(calls, clock, seconds, pause)
        yield {"sizes": [m, n, k], "layout": layout, "us": found}


def compile_all(layouts: Sequence[str], limit: float = 120.0) -> float:
    """Has every kernel compiled that serves a kind of product; returns the seconds that this took."""
    import numpy as np

    from gemmgen import ops
    from gemmgen.ops import native
    from gemmgen.ops.plain_products import PLAIN
    from gemmgen.toolchain.compilation import host_plan_is_cached

    started = time.monotonic()
    ops.matmul(np.ones((9, 9), np.float32), np.ones((9, 9), np.float32))
    if PLAIN.first is not None:
        PLAIN.first.wait()
    for (m, n, k), layout in itertools.product(WARMING, layouts):
        ops.matmul(stored(np.ones((m, k), np.float32), layout[0] == "t"), stored(np.ones((k, n), np.float32), layout[1] == "t"))
    while time.monotonic() < started + limit and not all(host_plan_is_cached(served.plan) for served in list(native._known.values())):
        time.sleep(0.2)
    time.sleep(0.5)
    return time.monotonic() - started


def ratios(found: Sequence[dict[str, Any]], peer: str) -> list[float]:
    """The peer's time over ours."""
    return [row["us"][peer] / row["us"]["ours"] for row in found if peer in row["us"]]


def summary(found: Sequence[dict[str, Any]]) -> list[str]:
    """A line for every peer, and one for the better of them."""
    lines = []
    names = sorted({name for row in found for name in row["us"]} - {"ours"})
    for peer in names:
        values = ratios(found, peer)
        mean = math.exp(sum(map(math.log, values)) / len(values))
        lines.append(f"{len(values)} beside {peer}: mean {mean:.3f}, least {min(values):.2f}, below 0.8: {sum(v < 0.8 for v in values)}")
    return lines


def line(row: dict[str, Any]) -> str:
    """The figures of one product."""
    us = row["us"]
    m, n, k = row["sizes"]
    others = " ".join(f"{name} {value:.2f} ({value / us['ours']:.2f})" for name, value in us.items() if name != "ours")
    return f"{m}x{n}x{k} {row['layout']} ours {us['ours']:.2f} {others} {2e-3 * m * n * k / us['ours']:.1f} GFLOP/s"


def markdown(report: dict[str, Any]) -> str:
    """The tables of the runs on one machine."""
    lines = ["# Float32 products on a processor, beside NumPy and oneDNN", "", f"{report['date']}, {report['machine']}.", ""]
    lines += ["Microseconds of a call, and the time of the others over ours; the least of all rounds.", ""]
    for run in report["runs"]:
        threads = "one thread" if run["threads"] == 1 else f"{run['threads']} threads"
        lines += [f"## {run['shapes'].capitalize()}, {threads}", "", *(f"- {one}" for one in summary(run["rows"])), ""]
        names = sorted({name for row in run["rows"] for name in row["us"]} - {"ours"})
        lines += [f"| m × n × k | layout | ours | {' | '.join(names)} | {' | '.join(f'{name} / ours' for name in names)} |"]
        lines += ["|---|---|" + "---:|" * (1 + 2 * len(names))]
        for row in run["rows"]:
            us = row["us"]
            cells = [f"{us['ours']:.2f}", *(f"{us[name]:.2f}" for name in names), *(f"{us[name] / us['ours']:.2f}" for name in names)]
            lines.append(f"| {' × '.join(map(str, row['sizes']))} | {row['layout']} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def join(files: Sequence[Path], machine: str, date: str, out: Path) -> None:
    """Writes the runs of one machine as ``.json`` and ``.md``."""
    runs = [json.loads(file.read_text()) for file in files]
    report = {"machine": machine, "date": date, "runs": runs}
    write_atomically(out.with_suffix(".json"), json.dumps(report) + "\n")
    write_atomically(out.with_suffix(".md"), markdown(report))


def main() -> None:
    """Measures, and prints and writes every row as it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", choices=["drawn", "grid", "listed", "join"], help="join: write the runs in --files as one table")
    parser.add_argument("--files", type=Path, nargs="*", default=[])
    parser.add_argument("--machine", default="")
    parser.add_argument("--date", default="")
    parser.add_argument("--sizes", help="m,n,k and more of them behind semicolons, in place of the shapes")
    parser.add_argument("--seed", type=int, default=4242)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layouts", default="nn")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each product")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of it all")
    parser.add_argument("--no-onednn", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.shapes == "join":
        join(given.files, given.machine, given.date, given.out)
        return
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(given.threads)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(cores[-given.threads :]))
    peers = ["numpy"]
    if not given.no_onednn:
        try:
            import torch

            torch.set_num_threads(given.threads)
            peers.append("onednn")
        except ImportError:
            print("torch is not installed: no oneDNN", file=sys.stderr)
    layouts = given.layouts.split(",")
    print(f"# compiled in {compile_all(layouts):.1f} s", flush=True)
    shapes: list[Shape] = list(LISTED)
    if given.shapes != "listed":
        shapes = drawn(given.seed, given.count) if given.shapes == "drawn" else grid()
    if given.sizes:
        shapes = [tuple(map(int, sizes.split(","))) for sizes in given.sizes.split(";")]
    title = f"drawn, seed {given.seed}" if given.shapes == "drawn" else given.shapes
    found = []
    for row in rows(shapes, layouts, given.threads, given.seconds, given.limit, peers):
        found.append(row)
        print(line(row), flush=True)
        if given.out:
            given.out.write_text(json.dumps({"shapes": title, "threads": given.threads, "rows": found}) + "\n")
    print("\n".join(summary(found)))


if __name__ == "__main__":
    main()
