"""Seconds of whole problems on the emulator with all its checks, on one core: products of 512 x 512 x 512, a sum of 2048 x 2048 elements.

    python -m measurements.emulator_problems            writes emulator_problems.md beside this file

The kernels are specs that ship with gemmgen. They are compiled before they are timed, and each runs several times in one process.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

import gemmgen
from gemmgen.core.files import write_atomically
from gemmgen.kernels.family import KernelPlan
from gemmgen.runtime.backend import HostBuffer
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import compile_plan

HERE = Path(__file__).resolve().parent
EXTENT = 512
ELEMENTS = 2048 * 2048


@dataclass(frozen=True)
class Problem:
    """A spec of the library, which ``gemmgen verify`` verifies, and its computation."""

    spec: str
    meaning: str
    bfloat16: bool = False


PROBLEMS = (
    Problem("gemm/v0_naive", "512 × 512 × 512, float32, a thread for each element"),
    Problem("gemm/v3_double_buffer", "512 × 512 × 512, float32, 8 × 8 elements for each thread"),
    Problem("gemm/tcgen05/bf16_128x128", "512 × 512 × 512, bfloat16, `tcgen05` (sm_100a)", bfloat16=True),
    Problem("reduction/s6_grid_stride", "sum of 2048 × 2048 elements, float32"),
)


def drawn(rng: np.random.Generator, size: int, bfloat16: bool) -> HostBuffer:
    """Small integers, as float32 or as the upper halves of it."""
    values = rng.integers(-2, 3, size).astype(np.float32)
    return HostBuffer((values.view(np.uint32) >> 16).astype(np.uint16) if bfloat16 else values)


def measure(problem: Problem, rounds: int) -> list[float]:
    """Seconds of each run."""
    plan = gemmgen.plan(problem.spec)
    assert isinstance(plan, KernelPlan)
    binary = compile_plan(plan)
    rng = np.random.default_rng(0)
    sums = plan.spec.kind == "reduction"
    sizes = [ELEMENTS] if sums else [EXTENT * EXTENT] * 2
    dimensions = {one.name: ELEMENTS if sums else EXTENT for one in plan.sequence.dimensions}
    scalars = {argument.name: 1.0 for argument in plan.sequence.arguments if argument.name == "alpha"}
    scalars |= {argument.name: 0.0 for argument in plan.sequence.arguments if argument.name == "beta"}
    inputs = [array.name for array in plan.sequence.arrays if array.role == "input"]
    (output,) = [array.name for array in plan.sequence.arrays if array.role not in ("input", "workspace")]
    found = []
    for _ in range(rounds):
        arrays = {name: drawn(rng, size, problem.bfloat16) for name, size in zip(inputs, sizes, strict=True)}
        arrays[output] = HostBuffer(np.zeros(1 if sums else EXTENT * EXTENT, np.uint16 if problem.bfloat16 else np.float32))
        began = time.perf_counter()
        EmulatorBackend().run(binary, plan.sequence, dimensions, scalars, arrays)
        found.append(time.perf_counter() - began)
    return found


def main() -> None:
    """Measures, prints and writes the table."""
    parser = argparse.ArgumentParser(description="times whole problems on the emulator")
    parser.add_argument("--rounds", type=int, default=4)
    rounds = parser.parse_args().rounds
    rows = []
    for problem in PROBLEMS:
        seconds = measure(problem, rounds)
        rows.append(f"| `{problem.spec}` | {problem.meaning} | {median(seconds):.2f} | {max(seconds):.2f} |")
        print(rows[-1], flush=True)
    lines = [
        "# Whole problems on the emulator",
        "",
        f"Seconds of a launch with all checks of hazards, one process, {datetime.date.today()}, {platform.machine()}, made",
        "by `python -m measurements.emulator_problems`; loads and stores run in native code (GEMMGEN_NATIVE=0 prevents that).",
        "",
        f"| spec | problem | median of {rounds} | most |",
        "|---|---|---:|---:|",
        *rows,
        "",
    ]
    write_atomically(HERE / "emulator_problems.md", "\n".join(lines))


if __name__ == "__main__":
    main()
