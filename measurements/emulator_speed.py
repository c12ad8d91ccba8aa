"""Speed of the emulator on one processor, this tree beside another one: thread instructions a second of user time.

    python -m measurements.emulator_speed --against FOLDER [--rounds 5] [--kernels saxpy,chain]

FOLDER is a checkout of the repository, of an earlier commit say: `git worktree add FOLDER COMMIT`. The two take turns, each in a
process of its own that launches for 1.5 s at least and tells its best launch, on the same PTX. Writes emulator_speed.json and
emulator_speed.md beside this file; --kernels measures some of the kernels and keeps the others' rows, if they are beside the same
commit; each row says which tree it is of.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHILD = """
import json, sys, time
import numpy as np
from gemmgen import emulator
path, entry, grid, block, args, hazards = json.loads(sys.argv[1])
rng = np.random.default_rng(1)
def value(a):
    if isinstance(a, dict):
        return rng.integers(0, 1 << 20, a["count"]).astype(a["type"])
    return a
ptx = open(path).read()
best = spent = 0.0
repeat = 0
while repeat < 2 or spent < 1.5:  # the first launch binds code that later ones find in caches of the process
    given = [value(a) for a in args]
    start = time.process_time()
    result = emulator.launch(ptx, entry, grid=grid, block=block, args=given, hazards=hazards)
    taken = time.process_time() - start
    best = max(best, sum(result.instructions.values()) / taken)
    spent, repeat = spent + taken, repeat + 1
print(json.dumps([sum(result.instructions.values()), best]))
"""
SOURCE = r"""
extern "C" {
__global__ void saxpy(float a, const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
__global__ void chain(float* x, int n) {
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int i = 0; i < n; ++i) v = v * 0.999f + 0.5f;
  x[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
__global__ void hash(unsigned* x, int n) {
  unsigned v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int i = 0; i < n; ++i) { v ^= v << 13; v ^= v >> 17; v ^= v << 5; v += i; }
  x[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
__global__ void naive(const float* a, const float* b, float* c, int n) {
  int row = blockIdx.y * 16 + threadIdx.x / 16, column = blockIdx.x * 16 + threadIdx.x % 16;
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
  c[row * n + column] = sum;
}
__global__ void tiled(const float* a, const float* b, float* c, int n) {
  __shared__ float s[16][16], t[16][16];
  int x = threadIdx.x % 16, y = threadIdx.x / 16, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
  float sum = 0;
  for (int k = 0; k < n; k += 16) {
    s[y][x] = a[row * n + k + x]; t[y][x] = b[(k + y) * n + column];
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += s[y][i] * t[i][x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}
__global__ void reduce(const float* x, float* out, int n) {
  __shared__ float s[256];
  float v = 0;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) v += x[i];
  s[threadIdx.x] = v;
  __syncthreads();
  for (int d = 128; d; d /= 2) { if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d]; __syncthreads(); }
  if (threadIdx.x == 0) out[blockIdx.x] = s[0];
}
__global__ void stencil(const float* x, float* y, int n) {
  __shared__ float s[258];
  int i = blockIdx.x * 256 + threadIdx.x;
  s[threadIdx.x + 1] = x[i];
  if (threadIdx.x == 0) { s[0] = i ? x[i - 1] : 0; s[257] = i + 256 < n ? x[i + 256] : 0; }
  __syncthreads();
  y[i] = s[threadIdx.x] + s[threadIdx.x + 1] + s[threadIdx.x + 2];
}
__global__ void histogram(const int* x, int* h, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(h + (x[i] & 255), 1);
}
__global__ void divergent(const int* x, int* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i] & 1023, steps = 0;
  while (v > 1) { v = v & 1 ? 3 * v + 1 : v / 2; ++steps; }
  y[i] = steps;
}
__global__ void warps(const float* x, float* y) {
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int i = 0; i < 20; ++i) for (int d = 16; d; d /= 2) v += __shfl_xor_sync(0xffffffff, v, d) * 1e-3f;
  y[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
}
"""


@dataclass(frozen=True)
class Kernel:
    """A kernel of SOURCE and its launch."""

    name: str
    grid: Any
    block: int
    args: tuple[Any, ...]


def _array(kind: str, count: int) -> dict[str, Any]:
    return {"type": kind, "count": count}


KERNELS = (
    Kernel("saxpy", 1024, 256, (2.0, _array("f4", 1 << 18), _array("f4", 1 << 18), 1 << 18)),
    Kernel("chain", 64, 256, (_array("f4", 1 << 14), 1000)),
    Kernel("hash", 64, 256, (_array("u4", 1 << 14), 300)),
    Kernel("naive", (16, 16), 256, (_array("f4", 1 << 16), _array("f4", 1 << 16), _array("f4", 1 << 16), 256)),
    Kernel("tiled", (16, 16), 256, (_array("f4", 1 << 16), _array("f4", 1 << 16), _array("f4", 1 << 16), 256)),
    Kernel("reduce", 64, 256, (_array("f4", 1 << 20), _array("f4", 64), 1 << 20)),
    Kernel("stencil", 1024, 256, (_array("f4", 1 << 18), _array("f4", 1 << 18), 1 << 18)),
    Kernel("histogram", 32, 256, (_array("i4", 1 << 16), _array("i4", 256), 1 << 16)),
    Kernel("divergent", 64, 256, (_array("i4", 1 << 14), _array("i4", 1 << 14))),
    Kernel("warps", 64, 256, (_array("f4", 1 << 14), _array("f4", 1 << 14))),
)


def run(tree: Path, ptx: Path, kernel: Kernel, hazards: bool) -> tuple[int, float]:
    """Thread instructions of a launch, and how many a second, in a process that imports the package of `tree`."""
    request = json.dumps([str(ptx), kernel.name, kernel.grid, kernel.block, kernel.args, hazards])
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, request], capture_output=True, text=True, env=environment, cwd=tempfile.gettempdir()
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    instructions, speed = json.loads(done.stdout.splitlines()[-1])
    return int(instructions), float(speed)


def commit_of(tree: Path) -> str:
    """The commit that a checkout is at."""
    return subprocess.run(["git", "-C", str(tree), "log", "-1", "--format=%h of %cs"], capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Measures, prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    names = [kernel.name for kernel in KERNELS]
    parser.add_argument("--kernels", type=lambda text: text.split(","), default=names, metavar="NAME,NAME")
    options = parser.parse_args()
    if unknown := set(options.kernels) - set(names):
        parser.error(f"no kernel {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    from gemmgen.toolchain.nvrtc import compile_source

    trees = (options.against.resolve(), HERE.parent)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "kernels.ptx"
        ptx.write_text(compile_source(SOURCE, architecture="sm_80", name="kernels.cu").ptx)
        for kernel in (kernel for kernel in KERNELS if kernel.name in options.kernels):
            for hazards in (False, True):
                speeds: tuple[list[float], list[float]] = ([], [])
                for _ in range(options.rounds):
                    for tree, found in zip(trees, speeds, strict=True):
                        instructions, speed = run(tree, ptx, kernel, hazards)
                        found.append(speed)
                ratios = [after / before for before, after in zip(*speeds, strict=True)]
                rows.append(
                    {
                        "kernel": kernel.name,
                        "hazards": hazards,
                        "tree": commit_of(trees[1]),
                        "instructions": instructions,
                        "before": statistics.median(speeds[0]),
                        "after": statistics.median(speeds[1]),
                        "ratio": statistics.median(ratios),
                        "ratios": [round(ratio, 3) for ratio in ratios],
                    }
                )
                mode, last = "checks" if hazards else "plain", rows[-1]
                print(f"{kernel.name:10} {mode:6} {last['before'] / 1e6:7.1f} {last['after'] / 1e6:7.1f} {last['ratio']:.2f}", flush=True)
    about = {
        "before": commit_of(trees[0]),
        "after": commit_of(trees[1]),
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}",
        "rounds": options.rounds,
    }
    stored = HERE / "emulator_speed.json"
    earlier = json.loads(stored.read_text()) if stored.exists() else {}
    if all(earlier.get(key) == about[key] for key in ("before", "rounds")):
        rows += [row for row in earlier["rows"] if row["kernel"] not in options.kernels]
        rows.sort(key=lambda row: (names.index(row["kernel"]), row["hazards"]))
        about["after"] = " and ".join(sorted({row["tree"] for row in rows}))
    stored.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    (HERE / "emulator_speed.md").write_text(markdown(about, rows))


def markdown(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The table of both trees."""
    lines = [
        "# Speed of the emulator",
        "",
        f"Millions of thread instructions a second of processor time, one process, by `python -m measurements.emulator_speed`; before:"
        f" {about['before']}, after: {about['after']}. Medians of {about['rounds']} turns and, pair by pair, of the ratio;"
        f" {about['machine']}, {about['date']}.",
        "",
        "| kernel | thread instructions | plain, before | after | ratio | with checks, before | after | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for plain, checked in zip(rows[::2], rows[1::2], strict=True):
        cells = [
            f"{number:.1f}" if key != "ratio" else f"{number:.2f}"
            for row in (plain, checked)
            for key, number in (("before", row["before"] / 1e6), ("after", row["after"] / 1e6), ("ratio", row["ratio"]))
        ]
        lines.append(f"| {plain['kernel']} | {plain['instructions']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
