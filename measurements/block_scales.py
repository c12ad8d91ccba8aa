"""8-bit floats with block scales (A 1 x 128, B 128 x 128) beside gemmgen's product without them and beside cuBLASLt.

    python -m measurements.block_scales                  on a machine with a Hopper GPU and torch
    python -m measurements.block_scales --explore 10     times the ten kernels too that the model likes most, of each kind
    python -m measurements.block_scales --compile        only compiles the kernels that the others would launch
    python -m measurements.block_scales --report         writes the table again from its data

Shapes of a published list and drawn ones; dense, in contiguous groups, and in masked groups. Results are compared first. Calls are
captured in CUDA graphs that rotate among enough sets of arrays for the operands to exceed the L2, and replayed in turns on random data.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gemmgen
from gemmgen import ops
from gemmgen.core.errors import GemmgenError
from gemmgen.core.files import write_atomically
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels.gemm.cublaslt import Product
from gemmgen.kernels.gemm.peer import fastest_product, operand
from gemmgen.perf.contestants import median_seconds

HERE = Path(__file__).resolve().parent
DEVICE = "H200"
LAYERS = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
"""Columns and depth of the layers of DeepSeek V3, which DeepGEMM's README lists."""
ROWS = (4096, 64, 128)
DRAWN = 8
GROUPS, GROUPED_LAYERS = (4, 8), ((4096, 7168), (7168, 2048))
BLOCK = 128
SETS_BYTES = 160 << 20
MAX_SETS = 24
GRAPH_SECONDS = 1.5e-3
ROUNDS = 10
AGREEMENT = 2e-2
"""Largest difference allowed, as a part of the largest result."""
SCALED = "scales_a=1x128,scales_b=128x128"


@dataclass(frozen=True)
class Shape:
    """One product; in groups of rows if there are any, whose number of rows is that of all groups, or of each where they are masked."""

    m: int
    n: int
    k: int
    groups: int = 0
    masked: bool = False

    @property
    def text(self) -> str:
        """The product in words."""
        kind = f", {self.groups} {'masked' if self.masked else 'contiguous'} groups" if self.groups else ""
        return f"{self.m} × {self.n} × {self.k}{kind}"

    def problem(self, *, scaled: bool) -> str:
        """The problem's text."""
        return f"gemm:{self.m},{self.n},{self.k},nt,e4m3_e4m3_bf16" + (f",{SCALED}" if scaled else "")


@dataclass
class Row:
    """Times of one product in microseconds, by contestant."""

    shape: Shape
    times: dict[str, float] = field(default_factory=dict)
    note: str = ""


def draw(seed: int) -> list[Shape]:
    """Products whose sizes a seed draws."""
    rng = random.Random(seed)
    return [
        Shape(2 ** rng.randint(5, 13) - rng.choice((0, 0, 16)), BLOCK * rng.randint(8, 120), BLOCK * rng.randint(8, 120))
        for _ in range(DRAWN)
    ]


def dense(seed: int) -> list[Shape]:
    """The products without groups."""
    return [Shape(m, n, k) for m in ROWS for n, k in LAYERS] + draw(seed)


def grouped() -> list[Shape]:
    """The products of groups."""
    contiguous = [Shape(groups * rows, n, k, groups) for groups, rows in zip(GROUPS, (8192, 4096), strict=True) for n, k in GROUPED_LAYERS]
    return contiguous + [Shape(1024, n, k, groups, masked=True) for groups in (2, 4) for n, k in GROUPED_LAYERS]


def contestants(shape: Shape, wanted: int) -> dict[str, Any]:
    """Specs that the model likes for a product with scales, with one set of products and with two; and without scales, by name."""
    found: dict[str, Any] = {}
    for scaled in (False, True):
        request = parse_problem(shape.problem(scaled=scaled))
        choice = choose(request, find_device(DEVICE))
        listed = list(dict.fromkeys((choice.chosen.plan.spec, *(option.plan.spec for option in choice.options))))
        for spec in listed[: wanted if scaled else 3]:
            fields = spec.model_dump(mode="json", exclude_defaults=True)
            for sets in (1, 2) if scaled else (1,):
                changed = json.loads(json.dumps(fields))
                changed["mainloop"]["product_sets"] = sets
                try:
                    gemmgen.plan(changed)
                except GemmgenError:
                    continue
                found[f"{'scaled' if scaled else 'plain'} {name_of(changed)}"] = changed
    return found


def name_of(spec: dict[str, Any]) -> str:
    """The numbers of a spec."""
    loop = spec["mainloop"]
    cluster = loop.get("cluster", {})
    parts = [
        "x".join(str(loop["tile"][axis]) for axis in "mn"),
        f"s{loop.get('stages', 4)}",
        f"c{loop.get('consumers', 2)}",
        f"i{loop['instruction_n']}" if "instruction_n" in loop else "",
        f"b{loop['min_blocks_per_sm']}" if "min_blocks_per_sm" in loop else "",
        f"cl{cluster.get('m', 1)}{cluster.get('n', 1)}" if cluster else "",
        f"k{spec['decomposition']['slices']}" if "decomposition" in spec else "",
        "turned" if spec.get("order") == "column_major" else "",
        "sets2" if loop.get("product_sets") == 2 else "",
    ]
    return "_".join(part for part in parts if part)


def compiled(spec: dict[str, Any]) -> None:
    """Brings a spec into the cache."""
    try:
        gemmgen.compile(spec, "sm_90a")
    except GemmgenError as error:
        print(name_of(spec), str(error).splitlines()[0], flush=True)


class Arrays:
    """Sets of random arrays of one product on the GPU."""

    def __init__(self, torch: Any, shape: Shape) -> None:
        m, n, k, groups = shape.m, shape.n, shape.k, shape.groups
        size = m * k + k * n * max(1, groups)
        self.sets = max(1, min(MAX_SETS, SETS_BYTES // size + 1))
        rows = (groups, m) if shape.masked else (m,)
        batch = (groups,) if groups else ()
        blocks_n, blocks_k = -(-n // BLOCK), -(-k // BLOCK)

        def bytes_of(*extents: int) -> Any:
            return (torch.randn(extents, device="cuda") / 4).to(torch.float8_e4m3fn)

        self.a = [bytes_of(*rows, k) for _ in range(self.sets)]
        self.b = [bytes_of(*batch, n, k).transpose(-1, -2) for _ in range(self.sets)]
        self.scales_a = [torch.rand(*rows, blocks_k, device="cuda") + 0.5 for _ in range(self.sets)]
        self.scales_b = [(torch.rand(*batch, blocks_n, blocks_k, device="cuda") + 0.5).transpose(-1, -2) for _ in range(self.sets)]
        self.out = torch.empty(*rows, n, dtype=torch.bfloat16, device="cuda")
        self.theirs = torch.empty_like(self.out)

    def expected(self, torch: Any, scaled: bool) -> Any:
        """The product of the first set in float32, by torch."""
        a, b = self.a[0].float(), self.b[0].float()
        if scaled:
            a *= self.scales_a[0].repeat_interleave(BLOCK, -1)[..., : a.shape[-1]]
            spread = self.scales_b[0].repeat_interleave(BLOCK, -1).repeat_interleave(BLOCK, -2)
            b *= spread[..., : b.shape[-2], : b.shape[-1]]
        return a @ b


def measure(torch: Any, shape: Shape, wanted: int) -> Row:
    """Times one product without groups."""
    row = Row(shape)
    arrays = Arrays(torch, shape)
    a, b, out = arrays.a, arrays.b, arrays.out
    want = {scaled: arrays.expected(torch, scaled) for scaled in (False, True)}
    calls: dict[str, Callable[[int], Any]] = {
        "plain": lambda i: ops.matmul(a[i], b[i], out=out),
        "scaled": lambda i: ops.matmul(a[i], b[i], scale_a=arrays.scales_a[i], scale_b=arrays.scales_b[i], out=out),
    }
    for name, spec in (contestants(shape, wanted) if wanted else {}).items():
        try:
            kernel = gemmgen.compile(spec, "sm_90a")
        except GemmgenError as error:
            row.note += f"{name}: {str(error).splitlines()[0]}; "
            continue
        calls[name] = kernel_call(kernel, arrays, spec)
    for name in list(calls):
        out.fill_(math.nan)
        try:
            calls[name](0)
            torch.cuda.synchronize()
        except GemmgenError as error:
            row.note += f"{name}: {str(error).splitlines()[0]}; "
            del calls[name]
            continue
        reference = want[name.startswith("scaled")]
        difference, largest = (out.float() - reference).abs().max().item(), reference.abs().max().item()
        if not difference <= AGREEMENT * largest:
            row.note += f"{name}: differs by {difference:.3g} of {largest:.3g}; "
            del calls[name]
    product = Product(operand(a[0], "e4m3"), operand(b[0], "e4m3"), operand(out, "bf16"), "none")
    peers = [fastest_product(product, (a[i], b[i], arrays.theirs), None, 1.0, 0.0) for i in range(arrays.sets)]
    if isinstance(peers[0], str):
        row.note += peers[0]
    else:
        calls["cublaslt"] = lambda i: peers[i].run()
    times = median_seconds(torch, calls, sets=arrays.sets, rounds=ROUNDS, graph_seconds=GRAPH_SECONDS)
    row.times = {name: seconds * 1e6 for name, seconds in times.items()}
    return row


def kernel_call(kernel: Any, arrays: Arrays, spec: dict[str, Any]) -> Callable[[int], Any]:
    """A call of a kernel, which may compute the transpose."""
    turned = spec.get("order") == "column_major" and spec["transpose"] == "tn"
    scaled = "scales" in spec

    def call(i: int) -> None:
        a, b, out = arrays.a[i], arrays.b[i], arrays.out
        scales_a, scales_b = arrays.scales_a[i], arrays.scales_b[i]
        if turned:
            a, b, out, scales_a, scales_b = b.T, a.T, out.T, scales_b.T, scales_a.T
        kernel(A=a, B=b, C=out, **({"scales_a": scales_a, "scales_b": scales_b} if scaled else {}))

    return call


def measure_groups(torch: Any, shape: Shape) -> Row:
    """Times one product of groups of rows."""
    row = Row(shape)
    arrays = Arrays(torch, shape)
    rng = random.Random(shape.n)
    a, b = arrays.a, arrays.b
    if shape.masked:
        counts = torch.tensor([rng.randint(shape.m // 2, shape.m) for _ in range(shape.groups)], dtype=torch.int32, device="cuda")
        named = {"counts": counts}
    else:
        named = {"offsets": torch.arange(1, shape.groups + 1, dtype=torch.int32, device="cuda") * (shape.m // shape.groups)}
    calls: dict[str, Callable[[int], Any]] = {
        "plain": lambda i: ops.grouped_matmul(a[i], b[i], out=arrays.out, **named),
        "scaled": lambda i: ops.grouped_matmul(a[i], b[i], scale_a=arrays.scales_a[i], scale_b=arrays.scales_b[i], out=arrays.out, **named),
    }
    for name in list(calls):
        try:
            got = calls[name](0).float()
        except GemmgenError as error:
            row.note += f"{name}: {str(error).splitlines()[0]}; "
            del calls[name]
            continue
        left, right = arrays.a[0].float(), arrays.b[0].float()
        if name == "scaled":
            left *= arrays.scales_a[0].repeat_interleave(BLOCK, -1)
            right *= arrays.scales_b[0].repeat_interleave(BLOCK, -1).repeat_interleave(BLOCK, -2)
        if shape.masked:
            held = torch.arange(shape.m, device="cuda")[None, :, None] < named["counts"][:, None, None]
            want, got = (torch.where(held, value, 0) for value in (left @ right, got))
        else:
            want = (left.view(shape.groups, -1, shape.k) @ right).view(shape.m, shape.n)
        difference, largest = (got - want).abs().max().item(), want.abs().max().item()
        if not difference <= AGREEMENT * largest:
            row.note += f"{name}: differs by {difference:.3g} of {largest:.3g}; "
            del calls[name]
    if calls:
        times = median_seconds(torch, calls, sets=arrays.sets, rounds=ROUNDS, graph_seconds=GRAPH_SECONDS)
        row.times = {name: seconds * 1e6 for name, seconds in times.items()}
    return row


def report(data: dict[str, Any]) -> str:
    """The table as Markdown."""
    rows = [Row(Shape(**row["shape"]), row["times"], row["note"]) for row in data["rows"]]
    lines = [
        "# 8-bit floats with block scales",
        "",
        f"{data['device']}, {data['date']}, torch {data['torch']}; made by `python -m measurements.block_scales`. e4m3 to bfloat16,",
        "float32 scales: A has one for 1 × 128 of its elements, B one for 128 × 128. *Per tensor*: gemmgen's product without block",
        "scales, promoted to float32 every 128 or 256 of k. *cuBLASLt*: the fastest of its algorithms, per tensor. Masked groups have half",
        "to all of their rows.",
        "",
        "| m × n × k | block scales, µs | per tensor, µs | cuBLASLt, µs | per tensor / block scales | TFLOP/s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    ratios = []
    for row in rows:
        ours, plain, peer = (row.times.get(name, math.nan) for name in ("scaled", "plain", "cublaslt"))
        shape = row.shape
        if math.isfinite(ours) and math.isfinite(plain):
            ratios.append(plain / ours)
        rate = 2e-6 * shape.m * shape.n * shape.k / ours
        shown = [f"{value:.1f}" if math.isfinite(value) else "–" for value in (ours, plain, peer)]
        last = "–" if shape.masked else f"{rate:.0f}"
        lines.append(f"| {shape.text} | {' | '.join(shown)} | {plain / ours:.3f} | {last} |")
    if ratios:
        lines += ["", f"Per tensor over block scales: geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures the problems of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--explore", type=int, default=0, help="kernels that are timed beside the chosen one")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no product is begun after this time")
    parser.add_argument("--out", type=Path, default=HERE / "block_scales.json", help="the data's file; its table goes beside it")
    parser.add_argument("--compile", action="store_true", help="compiles only")
    parser.add_argument("--report", action="store_true", help="writes the table again")
    arguments = parser.parse_args()
    if arguments.report:
        write_atomically(arguments.out.with_suffix(".md"), report(json.loads(arguments.out.read_text())).encode())
        return
    shapes = dense(arguments.seed)
    if arguments.compile:
        specs = [spec for shape in shapes for spec in contestants(shape, max(1, arguments.explore)).values()]
        unique = list({json.dumps(spec, sort_keys=True): spec for spec in specs}.values())
        with ProcessPoolExecutor() as pool:
            list(pool.map(compiled, unique))
        print(len(unique), "kernels")
        return
    import torch

    began = time.monotonic()
    data: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "seed": arguments.seed,
        "rows": [],
    }
    torch.manual_seed(arguments.seed)
    for shape in [*shapes, *grouped()]:
        if time.monotonic() - began > arguments.seconds:
            break
        row = measure_groups(torch, shape) if shape.groups else measure(torch, shape, arguments.explore)
        data["rows"].append({"shape": vars(shape), "times": row.times, "note": row.note})
        print(json.dumps(data["rows"][-1]), flush=True)
        torch.cuda.empty_cache()
        write_atomically(arguments.out, json.dumps(data, indent=1).encode())
    write_atomically(arguments.out.with_suffix(".md"), report(data).encode())


if __name__ == "__main__":
    main()
