"""``ops.matmul`` beside the fastest of all algorithms that cuBLASLt offers, on products that a seed draws.

    python -m measurements.products bf16 e4m3 int8 --seed 101 202      on a machine with a GPU and torch
    python -m measurements.products --report                           writes the table again from its data

Linear layers of language models from 1 to 8192 rows, squares and odd blocks, no shape chosen manually. The calls are captured in CUDA
graphs that rotate among enough sets of arrays for the operands to exceed the L2, and replayed in turns on random data. Results are
compared first. 8-bit floats are promoted to float32 within the sum by both. Writes products_DEVICE.json and .md beside this file.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import random
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemmgen import ops
from gemmgen.core.errors import GemmgenError
from gemmgen.core.files import write_atomically
from gemmgen.kernels.gemm.cublaslt import Epilogue, Product
from gemmgen.kernels.gemm.peer import fastest_product, operand
from gemmgen.perf.contestants import median_seconds

HERE = Path(__file__).resolve().parent
SETS_BYTES = 160 << 20
MAX_SETS = 24
GRAPH_SECONDS = 2e-3
ROUNDS = 9
AGREEMENT = 2e-2
"""Largest difference allowed, as a part of the largest result: both round to the result's type, and sum in different orders."""
RESULTS_RANGE = 0.01
"""Scale of int8 results over the inverse root of k: their standard deviation is then 33."""

WIDTHS = (2560, 3072, 3584, 4096, 5120, 5632, 6144, 7168, 8192, 9216, 12288, 14336, 18432, 28672)
ROWS = (1, 3, 8, 16, 24, 48, 64, 96, 128, 192, 256, 384, 640, 1024, 1536, 2048, 3000, 4096, 5000, 8192)
SQUARES = (1600, 2880, 4608, 5760, 7680)
BLOCKS = 4
BYTE_ROWS = 16
"""Rows of 8-bit products are a multiple of this, which cuBLASLt needs."""


@dataclass(frozen=True)
class Kind:
    """Types of a product, by their names in torch, and its epilogue."""

    title: str
    factor: str
    result: str
    types: tuple[str, str]
    epilogue: Epilogue = "none"
    scaled: bool = False
    """True if ours reads a scale for each row and each column; all are equal, and the peer takes their product as one number."""


KINDS = {
    "bf16": Kind("bf16", "bfloat16", "bfloat16", ("bf16", "bf16")),
    "f16": Kind("f16", "float16", "float16", ("f16", "f16")),
    "e4m3": Kind("e4m3 to bf16", "float8_e4m3fn", "bfloat16", ("e4m3", "bf16")),
    "int8": Kind("int8 to int32", "int8", "int32", ("s8", "s32")),
    "int8_scaled": Kind("int8 to int8 with scales", "int8", "int8", ("s8", "s8"), scaled=True),
    "f32": Kind("float32", "float32", "float32", ("f32", "f32")),
    "gelu": Kind("bf16 with bias and GELU (tanh)", "bfloat16", "bfloat16", ("bf16", "bf16"), "bias_gelu"),
}


@dataclass(frozen=True)
class Shape:
    """One product; ``letters`` say for A and for B whether it is stored transposed."""

    m: int
    n: int
    k: int
    letters: str


@dataclass
class Row:
    """One product's times in microseconds."""

    kind: str
    shape: Shape
    ours: float = math.nan
    peer: float = math.nan
    peer_name: str = ""
    first_call: float = math.nan
    """Seconds until the first result, compilation included."""
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.peer / self.ours


def draw(seed: int, kind: str) -> list[Shape]:
    """The products of one seed; those of 8 bits have both operands contiguous along k."""
    rng = random.Random(seed)
    shapes = [Shape(m, rng.choice(WIDTHS), rng.choice(WIDTHS[:10]), "nt") for m in ROWS]
    shapes += [Shape(side, side, side, rng.choice(("nn", "nt"))) for side in SQUARES]
    for _ in range(BLOCKS):
        m, n, k = 64 * rng.randint(8, 60), 64 * rng.randint(8, 60), 64 * rng.randint(16, 90)
        shapes.append(Shape(m, n, k, rng.choice("nt") + rng.choice("nt")))
    if kind in ("e4m3", "int8", "int8_scaled"):
        shapes = [Shape(-(-shape.m // BYTE_ROWS) * BYTE_ROWS, shape.n, shape.k, "nt") for shape in shapes if shape.m >= BYTE_ROWS]
    return shapes


def measure(torch: Any, kind: str, shape: Shape) -> Row:
    """Times one product; a note in the row says why there is no time."""
    types = KINDS[kind]
    row = Row(kind, shape)
    factor, result = getattr(torch, types.factor), getattr(torch, types.result)
    size = (shape.m * shape.k + shape.k * shape.n) * factor.itemsize
    sets = max(1, min(MAX_SETS, SETS_BYTES // size + 1))

    def matrix(rows: int, columns: int, letter: str) -> Any:
        extents = (columns, rows) if letter == "t" else (rows, columns)
        if factor == torch.int8:
            made = torch.randint(-100, 100, extents, dtype=factor, device="cuda")
        else:
            made = (torch.randn(extents, device="cuda") / 4).to(factor)
        return made.t() if letter == "t" else made

    a = [matrix(shape.m, shape.k, shape.letters[0]) for _ in range(sets)]
    b = [matrix(shape.k, shape.n, shape.letters[1]) for _ in range(sets)]
    bias = torch.randn(shape.n, device="cuda").to(result) if types.epilogue != "none" else None
    own, theirs = (torch.empty(shape.m, shape.n, dtype=result, device="cuda") for _ in range(2))
    extra = {} if bias is None else {"bias": bias, "activation": "gelu_tanh"}
    scale = RESULTS_RANGE / shape.k**0.5 if types.scaled else 1.0
    if types.scaled:
        extra = {"scale_a": torch.full((shape.m, 1), scale, device="cuda"), "scale_b": torch.ones(1, shape.n, device="cuda")}
    began = time.perf_counter()
    try:
        ops.matmul(a[0], b[0], out=own, **extra)
    except GemmgenError as error:
        row.note = str(error).splitlines()[0]
        return row
    torch.cuda.synchronize()
    row.first_call = time.perf_counter() - began
    product = Product(operand(a[0], types.types[0]), operand(b[0], types.types[0]), operand(own, types.types[1]), types.epilogue)
    peers = [fastest_product(product, (a[index], b[index], theirs), bias, scale, 0.0) for index in range(sets)]
    if isinstance(peers[0], str):
        row.note = peers[0]
        return row
    row.peer_name = peers[0].name
    ops.matmul(a[0], b[0], out=own, **extra)
    peers[0].run()
    torch.cuda.synchronize()
    difference, largest = (own.double() - theirs.double()).abs().max().item(), theirs.double().abs().max().item()
    if not difference <= AGREEMENT * largest:
        row.note = f"results differ by {difference:.3g} of {largest:.3g}: not timed"
        return row
    calls = {"ours": lambda index: ops.matmul(a[index], b[index], out=own, **extra), "peer": lambda index: peers[index].run()}
    times = median_seconds(torch, calls, sets=sets, rounds=ROUNDS, graph_seconds=GRAPH_SECONDS)
    row.ours, row.peer = (times[name] * 1e6 for name in ("ours", "peer"))
    return row


def report(data: dict[str, Any]) -> str:
    """The tables as Markdown: mean and worst of each kind, then every product."""
    rows = [Row(**{**row, "shape": Shape(**row["shape"])}) for row in data["rows"]]
    seeds = [str(seed) for seed in data["seeds"]]
    command = f"`python -m measurements.products --seed {' '.join(seeds)}`"
    lines = [
        f"# Products beside the fastest algorithm of cuBLASLt, {'seed' if len(seeds) == 1 else 'seeds'} {' and '.join(seeds)}",
        "",
        f"{data['device']}, {data['date']}, torch {data['torch']}; made by {command}. Ratios are the peer's time over",
        "ours: above 1, gemmgen is faster. The peer is the fastest of all algorithms that cuBLASLt's heuristic offers, with 64 MiB of",
        "workspace; a seed draws the shapes.",
        "",
        "| product | shapes | geometric mean | least | below 1 |",
        "|---|---:|---:|---:|---:|",
    ]
    timed = {kind: [row for row in rows if row.kind == kind and math.isfinite(row.ratio)] for kind in KINDS}
    for kind, found in timed.items():
        if found:
            ratios = [row.ratio for row in found]
            below = sum(ratio < 1 for ratio in ratios)
            lines.append(f"| {KINDS[kind].title} | {len(found)} | {statistics.geometric_mean(ratios):.3f} | {min(ratios):.3f} | {below} |")
    for kind in timed:
        found = [row for row in rows if row.kind == kind]
        if not found:
            continue
        lines += [
            "",
            f"## {KINDS[kind].title}",
            "",
            "| m × n × k | ours, µs | peer, µs | ratio | peer | first call, s |",
            "|---|---:|---:|---:|---|---:|",
        ]
        for row in found:
            shape = f"{row.shape.m} × {row.shape.n} × {row.shape.k} {row.shape.letters}"
            if math.isfinite(row.ratio):
                lines.append(f"| {shape} | {row.ours:.1f} | {row.peer:.1f} | {row.ratio:.3f} | {row.peer_name} | {row.first_call:.2f} |")
            else:
                lines.append(f"| {shape} | – | – | – | {row.note} | – |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures the problems of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="kinds of products; all if none is given")
    parser.add_argument("--seed", type=int, nargs="+", default=[101])
    parser.add_argument("--seconds", type=float, default=math.inf, help="no product is begun after this time")
    parser.add_argument("--out", type=Path, help="the data's file; its table goes beside it")
    parser.add_argument("--report", action="store_true", help="writes the table again from --out")
    arguments = parser.parse_args()
    if arguments.report:
        write_atomically(arguments.out.with_suffix(".md"), report(json.loads(arguments.out.read_text())).encode())
        return
    import torch

    began = time.monotonic()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(arguments.seed[0])
    device = torch.cuda.get_device_name()
    out = arguments.out or HERE / f"products_{'h100' if 'H100' in device else 'h200' if 'H200' in device else 'gpu'}.json"
    data: dict[str, Any] = {
        "device": device,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "seeds": arguments.seed,
        "rows": [],
    }
    # Kinds take turns, so that a run that ends early has a part of each.
    kinds = arguments.kinds or list(KINDS)
    drawn = [[[(kind, shape) for shape in draw(seed, kind)] for kind in kinds] for seed in arguments.seed]
    pairs = [pair for of_seed in drawn for turn in itertools.zip_longest(*of_seed) for pair in turn if pair is not None]
    for kind, shape in pairs:
        if time.monotonic() - began > arguments.seconds:
            break
        row = measure(torch, kind, shape)
        data["rows"].append(asdict(row))
        print(kind, shape, f"{row.ours:.1f} {row.peer:.1f} us, {row.ratio:.3f}", row.note, flush=True)
        torch.cuda.empty_cache()
        write_atomically(out, json.dumps(data, indent=1).encode())
    write_atomically(out.with_suffix(".md"), report(data).encode())


if __name__ == "__main__":
    main()
