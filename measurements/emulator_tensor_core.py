"""Time and memory of a product on Hopper's tensor cores on the emulator, without and with all checks.

    python -m measurements.emulator_tensor_core [--rounds 3]

The product is 512 x 512 x 512 in bfloat16, the kernel gemm/wgmma/tour/bf16_128x256: tensor copies, two groups of consumers,
clusters of two blocks. Each launch has a separate process, in which nothing was launched before; its largest memory counts
all that the process did. Every result is compared. Writes emulator_tensor_core.json and emulator_tensor_core.md beside this file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SPEC = "specs/gemm/wgmma/tour.yaml/bf16_128x256"
SIZE = 512
CHILD = """
import json, resource, sys, time
start = time.perf_counter()
import numpy as np
import gemmgen
from gemmgen.runtime.backend import HostBuffer
from gemmgen.runtime.emulation import EmulatorBackend

spec, size, checks = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "checks"
kernel = gemmgen.compile(spec)
rng = np.random.default_rng(1)
a, b = (rng.integers(-2, 3, (size, size)).astype(np.float32) for _ in range(2))

def bf16(values):
    return (values.view(np.uint32) >> 16).astype(np.uint16).ravel()

result = np.zeros(size * size, np.uint16)
buffers = {"A": HostBuffer(bf16(a)), "B": HostBuffer(bf16(b)), "C": HostBuffer(result, initialised=False)}
dimensions = {name: size for name in ("m", "n", "k", "lda", "ldb", "ldc")}
began, used = time.perf_counter(), time.process_time()
EmulatorBackend(hazards=checks).run(kernel.binary, kernel.sequence, dimensions, {}, buffers)
taken, busy = time.perf_counter() - began, time.process_time() - used
bits = (a @ b.T).view(np.uint32)
nearest = (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)
assert np.array_equal(result, nearest.ravel())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print(json.dumps({"launch_s": taken, "processor_s": busy, "process_s": time.perf_counter() - start, "peak_mib": peak}))
"""


def launched(mode: str) -> dict[str, Any]:
    """Seconds and memory of one launch."""
    done = subprocess.run([sys.executable, "-c", CHILD, SPEC, str(SIZE), mode], capture_output=True, text=True, cwd=HERE.parent)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"checks": mode == "checks", **found}


def table(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The page."""
    lines = [
        "# A product on Hopper's tensor cores on the emulator",
        "",
        f"{SIZE} x {SIZE} x {SIZE} in bfloat16, `{SPEC}`: tensor copies, two groups of consumers, clusters of two. By "
        f"`python -m measurements.emulator_tensor_core` at {about['tree']}, {about['machine']}, {about['processors']} processors, load "
        f"{about['load']}, {about['date']}. Slowest of {about['rounds']} launches, each in a separate process.",
        "",
        "| | launch, s | processor time of it, s | whole process, s | largest memory, MiB |",
        "|---|---:|---:|---:|---:|",
    ]
    for checks, name in ((False, "plain"), (True, "with all checks")):
        slowest = max((row for row in rows if row["checks"] is checks), key=lambda row: row["launch_s"])
        numbers = (f"{slowest[key]:.1f}" for key in ("launch_s", "processor_s", "process_s"))
        lines.append(f"| {name} | {' | '.join(numbers)} | {slowest['peak_mib']} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measures, prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = [launched(mode) for _ in range(options.rounds) for mode in ("plain", "checks")]
    commit = subprocess.run(["git", "-C", str(HERE), "log", "-1", "--format=%h of %cs"], capture_output=True, text=True).stdout.strip()
    about = {
        "tree": commit,
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.date.today().isoformat(),
        "rounds": options.rounds,
    }
    (HERE / "emulator_tensor_core.json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    page = table(about, rows)
    (HERE / "emulator_tensor_core.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
