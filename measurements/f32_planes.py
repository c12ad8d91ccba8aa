"""float32 products by planes on tensor cores beside cuBLAS SGEMM and FFMA: speed with splitting included, and accuracy.

    python -m measurements.f32_planes            on a machine with a GPU and torch
    python -m measurements.f32_planes --errors   the errors anew, with the times of the last run

Writes f32_planes.json beside this file, and the report that ``f32_report`` makes of it. ``--errors`` fails if a scheme's error is above
cuBLAS's or that of multiply-adds in order of k, for any data at any depth.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gemmgen import ops
from gemmgen.api import plan
from gemmgen.kernels import family_of
from gemmgen.perf.benchmark import Candidate, benchmark
from gemmgen.runtime.cuda.driver import gpu
from gemmgen.runtime.kernel import Kernel
from gemmgen.toolchain.compilation import compile_plan
from measurements.f32_report import PEERS, write

HERE = Path(__file__).resolve().parent
SPECS = "gemm/split_precision"
SPEC = f"{SPECS}/f16x3/128x128"
FFMA = "gemm/v3_double_buffer"
ONE_GROUP = ("mainloop.tile.m=64", "mainloop.tile.n=64", "mainloop.consumers=1", "mainloop.persistent_blocks=0")
PLAIN = "mainloop.arithmetic.sums=plain"
VARIANTS: dict[str, tuple[str, ...]] = {
    "f16x3 128x128": (),
    "f16x3 128x64": ("mainloop.tile.n=64", "mainloop.stages=4"),
    "f16x3 64x64": (*ONE_GROUP, "mainloop.stages=6"),
    "f16x3 64x64, k by 2": (*ONE_GROUP, "mainloop.stages=6", "decomposition={scheme: split_k_cluster, slices: 2}"),
    "f16x3 128x128 plain sums": (PLAIN,),
    "f16x3 128x64 plain sums": (PLAIN, "mainloop.tile.n=64", "mainloop.stages=4"),
}
"""Instances, as changes of the shipped spec."""
BF16X9 = "mainloop.arithmetic.f32_by=bf16x9"
SCHEMES: dict[str, tuple[str, tuple[str, ...]]] = {
    "f16x3": (SPEC, ()),
    "f16x3, plain sums": (SPEC, (PLAIN,)),
    "bf16x6": (f"{SPECS}/bf16x6", ()),
    "bf16x6, plain sums": (f"{SPECS}/bf16x6", (PLAIN,)),
    "bf16x9": (f"{SPECS}/bf16x6", (BF16X9,)),
    "tf32x3": (f"{SPECS}/tf32x3", ()),
    "bf16x6, split in the mainloop": (f"{SPECS}/bf16x6_decode/64", ("order=row_major", "transpose=nt")),
    "f16x3, mma.sync": (f"{SPECS}/mma_sync/f16x3", ()),
    "bf16x6, mma.sync": (f"{SPECS}/mma_sync/bf16x6", ()),
    "bf16x9, mma.sync": (f"{SPECS}/mma_sync/bf16x6", (BF16X9,)),
    "tf32x3, mma.sync": (f"{SPECS}/mma_sync/tf32x3", ()),
}
"""Ways whose errors are measured, beside the choice of ``ops.matmul``."""
SPEED = [(n, n, n) for n in (512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)] + [
    (16, 4096, 4096),
    (128, 4096, 4096),
    (512, 4096, 4096),
    (4096, 4096, 64),
    (4096, 4096, 256),
    (512, 512, 16384),
    (8192, 128, 1024),
    (50260, 1024, 768),
    (2048, 4096, 11008),
    (1024, 1024, 65536),
]
LAYOUTS = ("nt", "nn", "tn", "tt")
DEPTHS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 20, 24, 27, 31, 32, 40, 45, 46, 48, 56, 63, 64, 65, 96, 128, 255, 256, 1024, 4096, 16384, 65536)
ROWS, COLUMNS = 512, 256


def compiled(overrides: Sequence[str], spec: str = SPEC) -> Candidate:
    """One instance, for the device."""
    planned = plan(spec, gpu(0).architecture, overrides)
    return Candidate(planned, compile_plan(planned))


def speeds(rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Times of all instances beside cuBLAS, shape by shape; none is begun after ``seconds``."""
    started = time.monotonic()
    wanted = [(layout, name) for layout in LAYOUTS for name in VARIANTS]
    with ThreadPoolExecutor() as pool:
        made = dict(zip(wanted, pool.map(lambda key: compiled((f"transpose={key[0]}", *VARIANTS[key[1]])), wanted), strict=True))
    rows = []
    for layout in LAYOUTS:
        candidates = {name: made[layout, name] for name in VARIANTS if (layout, name) in made}
        labels = {candidate.plan.name: name for name, candidate in candidates.items()}
        first = next(iter(candidates.values()))
        for shape in SPEED if layout in ("nt", "nn") else [(n, n, n) for n in (1024, 2048, 4096)]:
            if time.monotonic() - started > seconds:
                print(f"{layout} {shape}: left out for want of time", flush=True)
                continue
            problem = family_of(first.plan.spec).problem(first.plan, shape)
            report = benchmark(list(candidates.values()), problem, rounds=rounds)
            times = {labels.get(t.name, t.name): [t.median_us, t.p10_us, t.p90_us] for t in report.timings}
            peer = next(t.name for t in report.timings if t.kind == "peer")
            rows.append({"layout": layout, "shape": shape, "peer": peer, "times_us": times, "clocks": str(report.clocks.sm_highest)})
            best = min((name for name in times if name != peer), key=lambda name: times[name][0])
            rate = 2 * math.prod(shape) / times[best][0] / 1e6
            print(f"{layout} {shape}: {times[peer][0] / times[best][0]:.2f} of {peer}, {rate:.0f} TFLOP/s by {best}", flush=True)
    return rows


def data(kind: str, rows: int, k: int, torch: Any) -> Any:
    """A float32 matrix (rows, k) on the GPU."""
    normal = torch.randn(rows, k, device="cuda")
    if kind == "normal":
        return normal
    if kind == "uniform positive":
        return torch.rand(rows, k, device="cuda")
    if kind == "2^±20 by element":
        return normal.sign() * torch.exp2(40 * torch.rand(rows, k, device="cuda") - 20)
    if kind == "2^±20 by row":
        return normal * torch.exp2(40 * torch.rand(rows, 1, device="cuda") - 20)
    half = torch.randn(rows, (k + 1) // 2, device="cuda")  # cancelling: pairs that nearly add up to nothing
    return torch.cat([half, half * (1 + 1e-3 * torch.randn_like(half))], 1)[:, :k].contiguous()


KINDS = ("normal", "uniform positive", "2^±20 by element", "2^±20 by row", "cancelling")


def accuracy() -> list[dict[str, Any]]:
    """Errors of every way to multiply: over Σ|a||b|, largest and root mean square; the residual relative to ‖AB‖; and errors over
    |AB|, largest and median, the measure of GEMMul8's tests."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    ways: dict[str, Callable[[Any, Any, Any], None]] = {"cuBLAS": lambda a, b, c: torch.matmul(a, b.T, out=c)}

    def way(candidate: Candidate) -> Callable[[Any, Any, Any], None]:
        kernel = Kernel(candidate.plan.sequence, candidate.binary)
        return lambda a, b, c: kernel(A=a, B=b.T, C=c)

    ways["FFMA in order of k"] = way(compiled(("transpose=nt",), FFMA))
    for name, (spec, changes) in SCHEMES.items():
        ways[name] = way(compiled(changes, spec))
    ways["ops.matmul"] = lambda a, b, c: ops.matmul(a, b.T, out=c)
    rows = []
    for kind in KINDS:
        for k in DEPTHS:
            torch.manual_seed(k)
            pitch = -(-k // 4) * 4
            a = torch.zeros(ROWS, pitch, device="cuda")[:, :k].copy_(data(kind, ROWS, k, torch))
            b = data(kind, COLUMNS, k, torch)
            if kind == "cancelling":
                b[:, (k + 1) // 2 :] = -b[:, : k // 2]
            b = torch.zeros(COLUMNS, pitch, device="cuda")[:, :k].copy_(b)
            exact = a.double() @ b.double().T
            size = a.double().abs() @ b.double().abs().T
            errors = {}
            for name, multiply in ways.items():
                c = torch.full((ROWS, COLUMNS), float("nan"), device="cuda")
                multiply(a, b, c)
                difference = (c.double() - exact).abs()
                relative = difference / size
                residual = (difference.norm() / exact.norm()).item()
                elementwise = difference / exact.abs()
                errors[name] = [
                    relative.max().item(),
                    relative.pow(2).mean().sqrt().item(),
                    residual,
                    elementwise.max().item(),
                    elementwise.median().item(),
                ]
            rows.append({"data": kind, "k": k, "errors": errors})
            print(kind, k, {name: f"{worst:.1e} {rms:.1e}" for name, (worst, rms, *_) in errors.items()}, flush=True)
    return rows


def larger_errors(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Cases where a scheme with compensated sums has a larger error than cuBLAS or multiply-adds: the largest or root mean square."""
    names = [name for name in SCHEMES if "plain" not in name]
    return [
        f"{name}, {row['data']}, k = {row['k']}: {measure} {row['errors'][name][place]:.2e}, {peer} {row['errors'][peer][place]:.2e}"
        for row in rows
        for name in names
        for place, measure in enumerate(("largest", "rms"))
        for peer in PEERS
        if row["errors"][name][place] > row["errors"][peer][place]
    ]


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="replays of each instance for a shape")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no shape after so many, of the times of all")
    parser.add_argument("--errors", action="store_true", help="measure errors alone; times are those of f32_planes.json")
    parser.add_argument("--output", type=Path, default=HERE / "f32_planes", help="where to write, without .json and .md")
    arguments = parser.parse_args()
    measured = accuracy()
    larger = larger_errors(measured)
    print("\n".join(larger) or "no error is larger than cuBLAS's or that of multiply-adds", flush=True)
    if arguments.errors:
        report = {**json.loads((HERE / "f32_planes.json").read_text()), "accuracy": measured}
        report["errors_measured"] = f"{gpu(0)}, {datetime.date.today().isoformat()}"
        arguments.output.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
        write(report, arguments.output)
        raise SystemExit(1 if larger else 0)
    timed = speeds(arguments.rounds, arguments.seconds)
    about = {
        "device": str(gpu(0)),
        "date": datetime.date.today().isoformat(),
        "clocks": f"SM up to {max(int(row['clocks']) for row in timed if row['clocks'].isdigit())} MHz",
    }
    report = {**about, "results": f"{ROWS} × {COLUMNS}", "speed": timed, "accuracy": measured}
    arguments.output.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    write(report, arguments.output)


if __name__ == "__main__":
    main()
