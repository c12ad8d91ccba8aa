"""int8 convolutions on a GPU: every ready-made spec verified, then ResNet-50's layers timed beside cuDNN in one run.

    python -m measurements.conv2d --out measurements

writes ``conv2d.json`` and ``conv2d.md`` there. Needs a GPU, torch with its cuDNN, and gemmgen. Device time only: launches are
captured in CUDA graphs that rotate among enough copies of the tensors for them to exceed twice the L2; graphs of all contestants
are replayed in turns; random data. Results were compared with exact sums before timing, element by element.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from gemmgen import api
from gemmgen.core.errors import GemmgenError
from gemmgen.core.files import write_atomically
from gemmgen.kernels.conv2d.cudnn import Cudnn
from gemmgen.kernels.conv2d.oracle import RESNET50, layer_problem
from gemmgen.kernels.conv2d.plan import Conv2dPlan
from gemmgen.kernels.family import Case
from gemmgen.perf.clocks import ClockReader
from gemmgen.runtime.cuda import GpuBackend
from gemmgen.runtime.cuda.driver import current_device, gpu
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_case
from measurements.conv2d_candidates import CANDIDATES, compile_candidates
from measurements.conv2d_contest import LayerResult, measure
from measurements.conv2d_report import markdown, summary_lines

SPECS = Path(__file__).resolve().parent.parent / "specs" / "conv2d"
VERIFYING_PROCESSES = 6


def verify_everything() -> dict[str, Any]:
    """Every spec on its own cases, and on ResNet-50's layers with one image where it fits them."""
    started = time.perf_counter()

    def verify(file: Path) -> dict[str, Any]:
        backend = GpuBackend()
        try:
            plan = api.plan(file, backend.architecture)
            assert isinstance(plan, Conv2dPlan)
            binary = compile_plan(plan)
            cases = [*oracle_of(plan.spec.kind).cases(plan), *_layer_cases(plan)]
            results = [verify_case(plan, binary, backend, case) for case in cases]
        finally:
            backend.close()
        failures = [f"{result.case.name}: {result.failure}" for result in results if not result.passed]
        return {"spec": file.name, "cases": len(results), "elements": sum(r.elements for r in results), "failures": failures}

    with ThreadPoolExecutor(VERIFYING_PROCESSES) as pool:
        specs = list(pool.map(verify, sorted(SPECS.glob("*.yaml"))))
    return {"specs": specs, "seconds": round(time.perf_counter() - started, 1)}


def _layer_cases(plan: Conv2dPlan) -> Iterator[Case]:
    for number, layer in enumerate(RESNET50, 1):
        try:
            problem = layer_problem(plan, layer, 1)
        except GemmgenError:
            continue
        if all(constraint.condition.evaluate(problem) for constraint in plan.sequence.constraints):
            depth = layer[0] * layer[3] ** 2
            scalars = {scalar.name: 150.0 / (depth**0.5 * 74.0**2) if scalar.name == "alpha" else 0.5 for scalar in plan.sequence.scalars}
            yield Case(f"layer {number} of ResNet-50", problem, scalars, "extremes", seed=number)


def main() -> None:
    """Verifies, measures, writes and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 128])
    parser.add_argument("--layers", type=int, nargs="+", help="numbers of layers, from 1; all if left out")
    parser.add_argument("--skip-verification", action="store_true")
    options = parser.parse_args()
    started = time.perf_counter()
    device = gpu(0)
    assert device.architecture is not None
    verification = {"specs": [], "seconds": 0.0} if options.skip_verification else verify_everything()
    for spec in verification["specs"]:
        if spec["failures"]:
            print(f"{spec['spec']}: {len(spec['failures'])} of {spec['cases']} cases failed, first {spec['failures'][0]}")
    print(f"verified {len(verification['specs'])} specs in {verification['seconds']} s", flush=True)
    layers = [RESNET50[number - 1] for number in options.layers] if options.layers else list(RESNET50)
    compiled = compile_candidates(layers, device.architecture.name, device.sm_count)
    print(f"compiled {len(compiled)} instances, {time.perf_counter() - started:.0f} s since the start", flush=True)
    clocks = ClockReader(device.pci_bus_id)
    results: list[LayerResult] = []
    torch.cuda.init()
    with current_device(0):
        for n in options.batches:
            for layer in layers:
                results.append(measure(layer, n, compiled, 0, device.l2_bytes, clocks))
                torch.cuda.empty_cache()
            print(f"batch {n} done, {time.perf_counter() - started:.0f} s since the start", flush=True)
        version = Cudnn(0).version
    report = {
        "device": device.name,
        "driver": clocks.driver_version,
        "cudnn": version,
        "torch": torch.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "clocks": asdict(clocks.summary()),
        "verification": verification,
        "candidates": {candidate.name: asdict(candidate) for candidate in CANDIDATES},
        "results": [asdict(result) for result in results],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out / "conv2d.json", json.dumps(report, indent=1) + "\n")
    write_atomically(options.out / "conv2d.md", markdown(report, results))
    print("\n".join(summary_lines(results)))
    for note in sorted({note for result in results for note in result.notes}):
        print(note)
    print(f"{time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
