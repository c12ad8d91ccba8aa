"""Reductions on a GPU: every ready-made spec verified, then sums from 2^10 to 2^30 and along axes beside CUB and torch.

    python -m measurements.reduction --out measurements

writes ``reduction.json``, ``reduction.md`` and ``reduction.svg`` there. Needs a GPU, torch, nvcc with CUB, and gemmgen.
``--build LIBRARY`` only builds the part that calls CUB, and needs no GPU; ``--cub LIBRARY`` then uses it. ``--no-sweep`` leaves
the variants out, ``--sums`` and ``--axes`` choose problems.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gemmgen import api
from gemmgen.core.files import write_atomically
from gemmgen.perf.clocks import ClockReader
from gemmgen.runtime.cuda import GpuBackend
from gemmgen.runtime.cuda.driver import current_device, gpu
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.runner import verify_binary
from measurements.reduction_candidates import AXES, EXPONENTS, RULE, SPECS, axis_specs, compile_specs, sum_specs
from measurements.reduction_cub import Cub
from measurements.reduction_report import summary_lines, write

VERIFYING_PROCESSES = 6
RESIDENT = tuple(exponent for exponent in EXPONENTS if exponent <= 22)
"""Sizes whose sums are also measured on one input that stays in the L2."""


def verify_everything() -> dict[str, Any]:
    """Every spec on its own cases."""
    started = time.perf_counter()

    def verify(file: Path) -> dict[str, Any]:
        backend = GpuBackend()
        try:
            plan = api.plan(file, backend.architecture)
            report = verify_binary(plan, compile_plan(plan), backend)
        finally:
            backend.close()
        failures = [f"{result.case.name} ({result.case.data}): {result.failure}" for result in report.failures]
        return {
            "spec": file.name,
            "cases": len(report.results),
            "elements": report.elements,
            "worst_ratio": report.worst_ratio,
            "failures": failures,
        }

    with ThreadPoolExecutor(VERIFYING_PROCESSES) as pool:
        specs = list(pool.map(verify, sorted(SPECS.glob("*.yaml"))))
    return {"specs": specs, "seconds": round(time.perf_counter() - started, 1)}


def main() -> None:
    """Verifies, measures, writes and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--build", type=Path, metavar="LIBRARY")
    parser.add_argument("--cub", type=Path, metavar="LIBRARY", default=Path(tempfile.gettempdir()) / f"reduction_cub_{os.getuid()}.so")
    parser.add_argument("--sums", type=int, nargs="*", default=list(EXPONENTS), metavar="EXPONENT")
    parser.add_argument("--axes", type=int, nargs="*", default=list(range(len(AXES))), metavar="NUMBER")
    parser.add_argument("--no-sweep", action="store_true")
    parser.add_argument("--skip-verification", action="store_true")
    options = parser.parse_args()
    if options.build:
        Cub(options.build).wait()
        return
    started = time.perf_counter()
    cub = Cub(options.cub)
    device = gpu(0)
    assert device.architecture is not None
    sweep = not options.no_sweep
    problems = {("sum", e): sum_specs(e, sweep) for e in options.sums} | {("axis", n): axis_specs(AXES[n], sweep) for n in options.axes}
    wanted = {(problem, name): spec for problem, specs in problems.items() for name, spec in specs.items()}
    instances = compile_specs(wanted, device.architecture.name)
    by_problem = {
        problem: {name: instances[problem, name] for name in specs if (problem, name) in instances} for problem, specs in problems.items()
    }
    print(f"compiled {len(instances)} instances, {time.perf_counter() - started:.0f} s since the start", flush=True)
    verification = {"specs": [], "seconds": 0.0} if options.skip_verification else verify_everything()
    for spec in verification["specs"]:
        if spec["failures"]:
            print(f"{spec['spec']}: {len(spec['failures'])} of {spec['cases']} cases failed, first {spec['failures'][0]}")
    print(f"verified {len(verification['specs'])} specs in {verification['seconds']} s", flush=True)

    import torch

    from measurements.reduction_contest import Contest

    torch.cuda.init()
    clocks = ClockReader(device.pci_bus_id)
    cub.load()
    sums: list[dict[str, Any]] = []
    resident: list[dict[str, Any]] = []
    axes: list[dict[str, Any]] = []
    with current_device(0):
        largest = max([1 << e for e in options.sums] + [AXES[n].rows * AXES[n].columns for n in options.axes])
        contest = Contest(max(largest, 1 << 28), cub, clocks)
        for exponent in options.sums:
            timings, copies = contest.sum(by_problem["sum", exponent], 1 << exponent)
            cold = (copies << (exponent + 2)) > device.l2_bytes
            sums.append({"exponent": exponent, "copies": copies, "cold": cold, "timings": [asdict(t) for t in timings]})
            if exponent in RESIDENT:
                few = {RULE: by_problem["sum", exponent][RULE]}
                timings, _ = contest.sum(few, 1 << exponent, resident=True)
                resident.append({"exponent": exponent, "copies": 1, "cold": False, "timings": [asdict(t) for t in timings]})
        print(f"sums done, {time.perf_counter() - started:.0f} s since the start", flush=True)
        for number in options.axes:
            timings, copies = contest.axis(by_problem["axis", number], AXES[number])
            axes.append({"axis": AXES[number].name, "copies": copies, "timings": [asdict(t) for t in timings]})
            torch.cuda.empty_cache()
    report = {
        "device": device.name,
        "driver": clocks.driver_version,
        "torch": torch.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "clocks": asdict(clocks.summary()),
        "verification": verification,
        "specs": {f"{kind} {which}": dict(specs) for (kind, which), specs in problems.items()},
        "sums": sums,
        "resident": resident,
        "axes": axes,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out / "reduction.json", json.dumps(report, indent=1) + "\n")
    write(report, options.out)
    print("\n".join(summary_lines(report)))
    print(f"{time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
