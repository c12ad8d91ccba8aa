"""SGEMM on this machine's processor, beside OpenBLAS and oneDNN: the bars, and the steps of ``specs/cpu`` one after the other.

``python -m measurements.cpu_sgemm --out measurements`` in the repository's root, with the dependencies of ``gemmgen[cpu]``, a C
compiler, and torch if oneDNN is to be there. Everybody takes turns in one run; a result is compared before it is timed. One thread
is timed by its own processor time, several by the clock on the wall: do that on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gemmgen
from gemmgen.core.files import write_atomically
from gemmgen.hardware.cpu import runs_here
from gemmgen.kernels import family_of
from gemmgen.kernels.family import KernelSpec
from gemmgen.ops.host_tuning import TUNED_TRANSPOSES, class_of, general_spec
from gemmgen.perf.host.benchmark import TURN_SECONDS, HostReport, all_threads, benchmark_host
from gemmgen.toolchain.compilation import compile_host_plan
from gemmgen.toolchain.host import find_compiler

SPECS = Path(__file__).resolve().parent.parent / "specs" / "cpu"
CUBES = [(side, side, side) for side in (128, 256, 512, 1024, 2048, 4096)]
SHAPES = [*CUBES, (16, 4096, 4096), (4096, 64, 4096), (1000, 1000, 1000), (777, 3001, 333)]
STEPS = ["c0_naive", "c1_reordered", "c2_blocked", "c3_packed", "c4_avx2_16x6", "c5_threaded", "c6_avx512", "c7_streamed"]
THREADED_STEPS = ("c5_threaded", "c6_avx512", "c7_streamed")
STEP_SIZES = (64, 128, 256, 512, 1024, 2048)
SLOW_STEP_SIZE = 1024
"""Above it, steps without vectors are left out: a call takes seconds."""
SLOW_STEP_ROUNDS = 5
PLAIN_STEPS = ("c0_naive", "c2_blocked", "c3_packed")
MAX_DISTURBED = 0.04
"""Part of the processors' time that other processes may have while a product is measured; above it, that is done again."""
ATTEMPTS = 4
MIN_ROUNDS = 5
FOREIGN_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "NVPL_BLAS_DEBUG_CPU_TYPE")
"""Set, they have a BLAS take other kernels than it would."""


def rounds_for(sizes: tuple[int, ...], seconds: float, threads: int, least: int = MIN_ROUNDS) -> int:
    """Number of rounds that fit into ``seconds`` for each contestant, at 50 GFLOP/s a thread; several threads wait before every turn."""
    if threads == 1:
        return max(least, min(200, int(seconds * 50e9 / (2.0 * math.prod(sizes)))))
    return max(least, min(40, int(seconds / (TURN_SECONDS + 2.0 * math.prod(sizes) / (threads * 50e9)))))


def measured(
    spec: KernelSpec, name: str, sizes: tuple[int, ...], threads: int, seconds: float, peers: bool = True, rounds: int | None = None
) -> HostReport:
    """One interleaved run of a spec and the libraries."""
    plan = gemmgen.plan(spec)
    problem = family_of(plan.spec).problem(plan, sizes)
    chosen = [(plan, compile_host_plan(plan))]
    return benchmark_host(chosen, problem, threads, rounds or rounds_for(sizes, seconds, threads), peers, names=[name])


def busy_seconds() -> tuple[float, float]:
    """Seconds that this machine's processors have worked, and that there were, since it was started; Linux counts hundredths."""
    numbers = [int(number) for number in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = numbers[3] + numbers[4]
    return (sum(numbers) - idle) / 100, sum(numbers) / 100


def undisturbed_row(
    spec: KernelSpec, name: str, sizes: tuple[int, ...], threads: int, seconds: float, attempts: int, least: int
) -> dict[str, Any]:
    """The figures of the first run in which other processes had next to nothing of the processors, else of the least disturbed one."""
    rows = []
    for _ in range(attempts):
        busy, there = busy_seconds()
        own = time.process_time()
        report = measured(spec, name, sizes, threads, seconds, rounds=rounds_for(sizes, seconds, threads, least))
        busy_then, there_then = busy_seconds()
        others = max(0.0, busy_then - busy - (time.process_time() - own)) / (there_then - there)
        rows.append(row_of(report, name) | {"others_share": others})
        if others <= MAX_DISTURBED:
            break
    return min(rows, key=lambda row: float(row["others_share"]))


def bars(threads: int, seconds: float, attempts: int = ATTEMPTS, least: int = MIN_ROUNDS) -> list[dict[str, Any]]:
    """The shapes of the bars, NN and NT, each with the kernel that operations choose for it on this processor."""
    rows = []
    for sizes in SHAPES:
        for transpose in TUNED_TRANSPOSES:
            chosen = general_spec(class_of(*sizes), transpose)
            assert chosen is not None, "this processor runs no kernel of specs/cpu"
            kernel = gemmgen.plan(chosen).name
            row = undisturbed_row(chosen, kernel, sizes, threads, seconds, attempts, least) | {"transpose": transpose}
            rows.append(row)
            others = ", ".join(f"{name} {row['ratios'][name]:.3f}" for name in row["ratios"])
            print(f"{threads} threads {sizes} {transpose}: {row['gflops']:.1f} GFLOP/s, {row['of_fma_rate']:.1%}; {others}", flush=True)
    return rows


def row_of(report: HostReport, name: str) -> dict[str, Any]:
    """The figures of one run."""
    own = next(timing for timing in report.timings if timing.name == name)
    others = [timing for timing in report.timings if timing.kind == "peer"]
    return {
        "spec": name,
        "sizes": [report.problem[dimension] for dimension in "mnk"],
        "us": own.us,
        "median_us": own.median_us,
        "gflops": own.operations_per_second * 1e-9,
        "of_fma_rate": own.of_fma_rate,
        "fma_gflops": report.fma_operations_per_second * 1e-9,
        "rounds": report.rounds,
        "peers": {other.name: other.operations_per_second * 1e-9 for other in others},
        "ratios": {other.name: report.ratio(name, other.name) for other in others},
        "quartiles": {other.name: report.quartiles[name][other.name] for other in others},
        "ratios_of_medians": {other.name: other.median_us / own.median_us for other in others},
    }


def steps(threads: int, seconds: float) -> list[dict[str, Any]]:
    """Every step of the story on cubes; those with threads on all of them."""
    rows = []
    for spec in STEPS:
        plan = gemmgen.plan(SPECS / f"{spec}.yaml")
        if not runs_here(plan.architecture):
            print(f"{spec}: this machine runs no code for {plan.architecture.name}", flush=True)
            continue
        used = threads if spec in THREADED_STEPS else 1
        for side in STEP_SIZES:
            if spec in PLAIN_STEPS and side > SLOW_STEP_SIZE:
                continue
            rounds = SLOW_STEP_ROUNDS if spec in PLAIN_STEPS else None
            row = row_of(measured(plan.spec, spec, (side,) * 3, used, min(seconds, 1.0), False, rounds), spec) | {"threads": used}
            rows.append(row)
            print(f"{spec} {side}: {row['gflops']:.2f} GFLOP/s on {used} threads", flush=True)
    return rows


def environment() -> dict[str, Any]:
    """Machine and libraries of the measurement."""
    import numpy as np
    import threadpoolctl

    from gemmgen.hardware.cpu import host_name

    libraries = [
        {key: found.get(key) for key in ("internal_api", "version", "architecture", "threading_layer")}
        for found in threadpoolctl.threadpool_info()
    ]
    lscpu = subprocess.run(["lscpu"], capture_output=True, text=True).stdout.splitlines()
    caches = [" ".join(line.split()) for line in lscpu if "cache:" in line or "NUMA node(s)" in line]
    return {
        "processor": host_name(),
        "processors": all_threads(),
        "caches": caches,
        "compiler": find_compiler().version,
        "numpy": np.__version__,
        "torch": sys.modules["torch"].__version__ if "torch" in sys.modules else None,
        "libraries": libraries,
        "load": os.getloadavg()[0],
    }


def geometric_mean(values: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The bars' figures: geometric mean and least of the ratios to each library, and the least part of the FMA rate at 1024 and above."""
    peers = list(rows[0]["ratios"])
    large = [row["of_fma_rate"] for row in rows if min(row["sizes"]) >= 1024]
    return {
        "geometric_means": {peer: geometric_mean([row["ratios"][peer] for row in rows]) for peer in peers},
        "least": {peer: min(row["ratios"][peer] for row in rows) for peer in peers},
        "least_of_fma_rate_from_1024": min(large),
    }


def markdown(report: dict[str, Any]) -> str:
    """The tables."""
    where, attempts = report["environment"], report.get("attempts", ATTEMPTS)
    lines = ["# SGEMM on a processor, beside OpenBLAS and oneDNN", ""]
    libraries = "; ".join(f"{found['internal_api']} {found['version']} ({found['architecture']})" for found in where["libraries"])
    lines += [
        f"{where['processor']}, {where['processors']} processors, {'; '.join(where['caches'])}. {where['compiler']}. {libraries}.",
        f"{report['date']}. Made by `python -m measurements.cpu_sgemm --out measurements`.",
        "",
        "Times are the first quartile of all rounds, in each of which every library takes a turn; one thread by its own processor time,",
        "several by the clock on the wall, each when no other library's thread is awake. *of FMA*: part of the rate of multiply-adds that",
        "do nothing else on as many threads, which take turns with the others. A ratio is the library's time over gemmgen's, the median",
        "of all rounds: above 1, gemmgen is faster. Behind the ratio to the first library are its first and third quartile. *others*:",
        "part of the processors' time that other processes had meanwhile"
        + (f"; where it is above {MAX_DISTURBED:.0%}, the product is measured" if attempts > 1 else "."),
        *([f"again, {attempts} times at most in all."] if attempts > 1 else []),
    ]
    for threads, rows in sorted(report["bars"].items(), key=lambda item: int(item[0])):
        peers = list(rows[0]["ratios"])
        load = report["loads"][threads]
        lines += ["", f"## {threads} thread{'s' * (int(threads) > 1)}", ""]
        lines += [f"Load of the machine when this began: {load:.1f}.", ""]
        head = ["m×n×k", "", "GFLOP/s", "of FMA", *(f"{peer} GFLOP/s" for peer in peers), *(f"ratio to {peer}" for peer in peers), "others"]
        lines += [f"| {' | '.join(head)} |", f"|---|---|{'---:|' * (len(head) - 2)}"]
        for row in rows:
            cells = ["×".join(map(str, row["sizes"])), row["transpose"].upper(), f"{row['gflops']:.1f}", f"{row['of_fma_rate']:.0%}"]
            cells += [f"{row['peers'][peer]:.1f}" for peer in peers] + [f"{row['ratios'][peer]:.2f}" for peer in peers]
            least, most = row["quartiles"][peers[0]]
            cells[-len(peers)] += f" ({least:.2f}–{most:.2f})"
            cells.append(f"{row['others_share']:.1%}")
            lines.append(f"| {' | '.join(cells)} |")
        found = summary(rows)
        for peer in peers:
            mean, least = found["geometric_means"][peer], found["least"][peer]
            lines += ["", f"Geometric mean of the ratios to {peer}: **{mean:.3f}**, least **{least:.2f}**."]
        lines += ["", f"At 1024³ and above: at least **{found['least_of_fma_rate_from_1024']:.0%}** of the FMA rate."]
    if not report.get("steps"):
        return "\n".join(lines) + "\n"
    lines += ["", "## Step by step", "", "GFLOP/s of `specs/cpu`, on cubes.", ""]
    sizes = sorted({row["sizes"][0] for row in report["steps"]})
    lines += [f"| step | threads | {' | '.join(map(str, sizes))} |", f"|---|---:|{'---:|' * len(sizes)}"]
    for spec in dict.fromkeys(row["spec"] for row in report["steps"]):
        own = {row["sizes"][0]: row for row in report["steps"] if row["spec"] == spec}
        cells = [f"{own[size]['gflops']:.1f}" if size in own else "" for size in sizes]
        lines.append(f"| {spec} | {next(iter(own.values()))['threads']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def step_gains(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Each step's speed over that of the step before: the geometric mean over the cubes that both were measured on."""
    speeds: dict[str, dict[int, float]] = {}
    for row in rows:
        speeds.setdefault(row["spec"], {})[row["sizes"][0]] = row["gflops"]
    pairs = zip(speeds, list(speeds)[1:], strict=False)
    return {
        step: geometric_mean([speeds[step][size] / speeds[last][size] for size in speeds[step] if size in speeds[last]])
        for last, step in pairs
    }


def plot(report: dict[str, Any], path: Path) -> bool:
    """The steps as a picture; False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "gemmgen"
    from matplotlib import pyplot

    figure, (axes, gains) = pyplot.subplots(1, 2, figsize=(11, 4.6), width_ratios=(2, 1))
    for spec in dict.fromkeys(row["spec"] for row in report["steps"]):
        own = [row for row in report["steps"] if row["spec"] == spec]
        threads = f", {own[0]['threads']} threads" if own[0]["threads"] > 1 else ""
        axes.plot([row["sizes"][0] for row in own], [row["gflops"] for row in own], marker="o", label=f"{spec}{threads}")
    rate = report["bars"]["1"][0]["fma_gflops"]
    axes.axhline(rate, linestyle="--", color="gray", linewidth=1)
    axes.annotate("FMA rate, one thread", (STEP_SIZES[0], rate), textcoords="offset points", xytext=(0, 4), color="gray", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="m = n = k", ylabel="GFLOP/s", title="SGEMM on a processor, step by step")
    axes.set_xticks(STEP_SIZES, [str(size) for size in STEP_SIZES])
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    found = step_gains(report["steps"])
    drawn = gains.barh(list(found), list(found.values()), color="tab:blue")
    gains.bar_label(drawn, [f"{gain:.2f}" for gain in found.values()], fontsize=8, padding=2)
    gains.set(xscale="log", xlabel="speed, of the step before's", title="Gain of each step", xlim=(0.25, 40))
    gains.axvline(1.0, color="gray", linewidth=1)
    gains.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    return True


def write(report: dict[str, Any], directory: Path) -> None:
    """The JSON, and the table and the picture of it."""
    report |= {"environment": environment(), "date": datetime.now(UTC).date().isoformat()}
    write_atomically(directory / "cpu_sgemm.json", json.dumps(report, indent=1) + "\n")
    write_atomically(directory / "cpu_sgemm.md", markdown(report))
    if report.get("steps"):
        plot(report, directory / "cpu_sgemm.svg")


def main() -> None:
    """Measures and writes ``cpu_sgemm.json``, ``.md`` and ``.svg``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--seconds", type=float, default=3.0, help="for each contestant on each shape")
    parser.add_argument("--threads", type=int, nargs="*", help="else 1 and all; the most of them for the steps")
    parser.add_argument("--attempts", type=int, default=ATTEMPTS, help="at one product while others disturb it")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS, help="at least so many for each product, however long they take")
    parser.add_argument("--no-steps", action="store_true", help="keep the steps that the JSON holds, if any")
    given = parser.parse_args()
    foreign = [name for name in FOREIGN_VARIABLES if name in os.environ]
    if foreign:
        sys.exit(f"unset {', '.join(foreign)}: libraries would take other kernels than they do by themselves")
    file = given.out / "cpu_sgemm.json"
    report: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"bars": {}, "loads": {}}
    report["attempts"] = given.attempts
    counts = given.threads or sorted({1, all_threads()})
    for threads in counts:
        report["loads"][str(threads)] = os.getloadavg()[0]
        report["bars"][str(threads)] = bars(threads, given.seconds, given.attempts, given.rounds)
        report.setdefault("summary", {})[str(threads)] = summary(report["bars"][str(threads)])
        write(report, given.out)
    if not given.no_steps:
        report["steps"] = steps(max(counts), given.seconds)
        write(report, given.out)
    print(json.dumps(report["summary"], indent=1))


if __name__ == "__main__":
    main()
