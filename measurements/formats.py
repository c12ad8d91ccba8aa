"""Formats for serving models: weights of 4 and 8 bits, experts whose rows are gathered and scattered, and quantisation.

    python -m measurements.formats                       on a machine with an NVIDIA GPU from sm_80 on, and torch
    python -m measurements.formats --only narrow --seconds 40
    python -m measurements.formats --compile             only compiles the kernels that the others would launch for weights
    python -m measurements.formats --report              writes the tables again from their data

Peers: cuBLASLt's fastest algorithm on bfloat16 weights, torch's grouped product with index operations, and the memory's rate. Results are
compared first. Calls are captured in CUDA graphs that rotate among enough sets of arrays for them to exceed the L2, and are replayed in
turns on random data. Block scales of 8-bit floats are measured by ``measurements.block_scales``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from gemmgen import ops
from gemmgen.core.errors import GemmgenError
from gemmgen.core.files import write_atomically
from gemmgen.hardware.target import architecture as find_architecture
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels.gemm.cublaslt import Product
from gemmgen.kernels.gemm.family import plan_gemm
from gemmgen.kernels.gemm.packed_weights import packed_shape
from gemmgen.kernels.gemm.peer import fastest_product, operand
from gemmgen.ops.weight_forms import Numbers
from gemmgen.ops.weight_kernels import Product as WeightProduct
from gemmgen.ops.weight_kernels import call_of, kernel_of, slices_of, spec_of
from gemmgen.perf.contestants import median_seconds
from gemmgen.runtime.kernel import Kernel
from gemmgen.toolchain.compilation import compile_plan
from measurements.weight_reads import ALONE, EARLY, fastest, reads

HERE = Path(__file__).resolve().parent
DEVICE = "H200"
READ_RATE, COPY_RATE = 4.55e12, 4.3e12
"""Bytes a second of an H200's memory for kernels that read, and for kernels that read and write as much, as measured."""
LAYERS = ((4096, 4096), (14336, 4096), (4096, 14336), (11008, 4096), (8192, 8192), (14336, 14336))
"""Columns and depth of weights."""
ROWS = ((16, LAYERS), (1, LAYERS), (64, LAYERS), (8, LAYERS[:2]), (32, LAYERS[:1]), (1024, LAYERS), (4096, LAYERS[:2]))
"""Rows of activations, and the weights that they are multiplied by."""
GROUP = 128
WIDTHS = (4, 8)
OLDER = "sm_80"
"""Architecture whose kernels are timed too, up to FEW_ROWS."""
FEW_ROWS = 16
READ_ROWS = (1, 8, 16)
"""Rows of products beside which kernels are timed that only read the same bytes."""
EXPERTS, TAKEN = 64, 8
EXPERT_CASES = ((512, 4096, 4096), (4096, 4096, 2048), (4096, 2048, 7168))
"""Tokens, columns and depth."""
QUANTISED = ((4096, 7168), (128, 7168), (16384, 4096))
BLOCKS: tuple[Any, ...] = ((1, 128), (128, 128), "row", "tensor")
SETS_BYTES = 200 << 20
MAX_SETS = 24
GRAPH_SECONDS = 1e-3
ROUNDS = 7
AGREEMENT = 1e-2
"""Largest difference allowed, as a part of the largest result."""


def weight_bytes(n: int, k: int, bits: int) -> int:
    """Bytes of packed weights, their scales, and the zero points of those of 4 bits."""
    return n * k * bits // 8 + k // GROUP * n * 2 * (2 if bits == 4 else 1)


def numbers_of(bits: int) -> Numbers:
    """The format of the weights that are timed."""
    return Numbers("bf16", bits, GROUP, bits == 4)


def random_weight(n: int, k: int, bits: int) -> Any:
    """A weight of random codes, scales and, for 4 bits, zero points: packed words are drawn as they are, since every word is valid."""
    import torch

    small = torch.zeros(GROUP, 32, device="cuda", dtype=torch.uint8)
    zeros = torch.zeros(1, 32, device="cuda", dtype=torch.int32) if bits == 4 else None
    weight = ops.Weight(small, torch.ones(1, 32, device="cuda", dtype=torch.bfloat16), zeros, bits=bits)
    words = torch.randint(-(2**31), 2**31 - 1, packed_shape(k, n, bits), device="cuda", dtype=torch.int32).view(torch.uint32)
    arrays = {"B": words, "scales": (torch.randn(k // GROUP, n, device="cuda") / 8).bfloat16()}
    if bits == 4:
        arrays["zeros"] = torch.randint(0, 17, (k // GROUP, n), device="cuda").bfloat16()
    weight.shape, weight.group, weight._arrays = (k, n), GROUP, arrays
    weight._numbers = numbers_of(bits)
    return weight


def older_kernel(m: int, n: int, k: int, bits: int) -> tuple[Kernel, dict[str, int]]:
    """The kernel that an older architecture takes for a product, compiled for the device, and its slices of k."""
    device, product = find_device(DEVICE), WeightProduct(m, n, k, 8, 8)
    call = call_of(product, numbers_of(bits), device, architecture=find_architecture(OLDER))
    plan = plan_gemm(spec_of(call), device.architecture)
    return Kernel(plan.sequence, compile_plan(plan)), slices_of(call, plan, product, device)


def checked(bits: int, rows: int) -> float:
    """The largest difference between a product by a weight and float64, as a part of the largest result."""
    import torch

    k, n = 1024, 384
    generator = np.random.default_rng(bits + rows)
    codes = generator.integers(0, 2**bits, (k, n), dtype=np.uint8)
    zeros = generator.integers(0, 2**bits + 1, (k // GROUP, n), dtype=np.int32)
    scales = torch.from_numpy(generator.standard_normal((k // GROUP, n)).astype(np.float32)).cuda().bfloat16()
    weight = ops.Weight(torch.from_numpy(codes).cuda(), scales, torch.from_numpy(zeros).cuda(), bits=bits)
    full = (torch.from_numpy(codes).double() - torch.from_numpy(zeros).double().repeat_interleave(GROUP, 0)).cuda()
    full *= scales.double().repeat_interleave(GROUP, 0)
    x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
    want = x.double() @ full
    return float((ops.matmul(x, weight).double() - want).abs().max() / want.abs().max())


def microseconds(calls: dict[str, Callable[[int], Any]], sets: int) -> dict[str, float]:
    """Median device microseconds of a call of each, in turns."""
    import torch

    found = median_seconds(torch, calls, sets=sets, rounds=ROUNDS, graph_seconds=GRAPH_SECONDS)
    return {name: round(seconds * 1e6, 2) for name, seconds in found.items()}


def sets_of(size: int) -> int:
    """Sets of arrays of so many bytes that exceed the L2."""
    return max(1, min(MAX_SETS, SETS_BYTES // size + 1))


def narrow() -> Iterator[dict[str, Any]]:
    """Products by weights of 4 and 8 bits beside bfloat16 weights by cuBLASLt, and beside the memory's rate."""
    import torch

    for bits in WIDTHS:
        for rows in (1, 8, 16, 40, 64, 300):
            error = checked(bits, rows)
            yield {"part": "check", "bits": bits, "rows": rows, "error": round(error, 5), "passed": error < AGREEMENT}
    for m, layers in ROWS:
        for (n, k), bits in ((layer, bits) for layer in layers for bits in WIDTHS):
            sets = sets_of(n * k * bits // 8)
            weights = [random_weight(n, k, bits) for _ in range(sets)]
            dense = [torch.randn(k, n, device="cuda", dtype=torch.bfloat16) for _ in range(min(sets, sets_of(2 * n * k)))]
            a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
            out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            product = Product(operand(a, "bf16"), operand(dense[0], "bf16"), operand(out, "bf16"))
            peers = [fastest_product(product, (a, one, out), None, 1.0, 0.0) for one in dense]
            calls: dict[str, Callable[[int], Any]] = {"ops": lambda i, a=a, weights=weights, out=out: ops.matmul(a, weights[i], out=out)}
            if m <= FEW_ROWS:
                kernel, slices = older_kernel(m, n, k, bits)
                others = {"A": a, "C": out, **slices}
                calls[OLDER] = lambda i, weights=weights, kernel=kernel, others=others: kernel(**others, **weights[i]._arrays)
            if not isinstance(peers[0], str):
                calls["cublaslt"] = lambda i, peers=peers: peers[i % len(peers)].run()
            found = microseconds(calls, sets)
            if m in READ_ROWS:
                alone = reads(torch, [tuple(one._arrays.values()) for one in weights], a, out, "sm_90a")
                found |= fastest(microseconds(alone, sets))
            moved = weight_bytes(n, k, bits) + 2 * m * (n + k)
            yield {
                "part": "narrow",
                "m": m,
                "n": n,
                "k": k,
                "bits": bits,
                "microseconds": found,
                "of_roof": round(moved / READ_RATE * 1e6 / found["ops"], 3),
                "of_cublaslt": round(found["cublaslt"] / found["ops"], 3) if "cublaslt" in found else None,
            }
            del weights, dense, peers, calls


def experts() -> Iterator[dict[str, Any]]:
    """A mixture of experts with rows gathered and scattered in the kernel, and with masked rows, beside torch's path."""
    import torch

    for tokens, n, k in EXPERT_CASES:
        x = torch.randn(tokens, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(EXPERTS, n, k, device="cuda", dtype=torch.bfloat16)
        chosen = torch.rand(tokens, EXPERTS, device="cuda").topk(TAKEN, 1).indices.flatten()
        order = torch.argsort(chosen, stable=True).int()
        counts = torch.bincount(chosen, minlength=EXPERTS)
        ends, gather, long, views = counts.cumsum(0).int(), (order // TAKEN).int(), order.long(), b.transpose(1, 2)
        out, other = (torch.empty(tokens * TAKEN, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        room = torch.randn(EXPERTS, -(-int(counts.max()) // 64) * 64, k, device="cuda", dtype=torch.bfloat16)
        masks = counts.int()

        def moved(_: int) -> Any:
            return ops.grouped_matmul(x, views, ends, gather=gather, scatter=order, out=out)  # noqa: B023

        def masked(_: int) -> Any:
            return ops.grouped_matmul(room, views, counts=masks)  # noqa: B023

        def theirs(_: int) -> Any:
            return other.index_copy_(0, long, torch._grouped_mm(x.index_select(0, gather), views, offs=ends))  # noqa: B023

        moved(0)
        theirs(0)
        error = float((out.float() - other.float()).abs().max() / other.float().abs().max())
        found = microseconds({"moved": moved, "masked": masked, "torch": theirs}, 1)
        yield {"part": "experts", "tokens": tokens, "n": n, "k": k, "error": round(error, 5), "microseconds": found}


def quantise() -> Iterator[dict[str, Any]]:
    """``ops.quantize`` from bfloat16 to e4m3."""
    import torch

    for m, k in QUANTISED:
        for block in BLOCKS:
            sets = sets_of(3 * m * k)
            x = [torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
            found = microseconds({"quantize": lambda i, x=x, block=block: ops.quantize(x[i], block=block)}, sets)
            share = round(3 * m * k / COPY_RATE * 1e6 / found["quantize"], 3)
            yield {"part": "quantize", "m": m, "k": k, "block": str(block), "microseconds": found, "of_roof": share}


PARTS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {"narrow": narrow, "experts": experts, "quantise": quantise}


def measured(parts: list[str], seconds: float) -> dict[str, Any]:
    """Rows of the parts that there is time for; a refusal is a row too."""
    import torch

    until = time.monotonic() + seconds
    rows: list[dict[str, Any]] = []
    for part in parts:
        try:
            for row in PARTS[part]():
                rows.append(row)
                print(json.dumps(row), flush=True)
                if time.monotonic() > until:
                    break
        except GemmgenError as error:
            rows.append({"part": part, "refused": str(error)[:400]})
            print(json.dumps(rows[-1]), flush=True)
    return {
        "device": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "rows": rows,
    }


def of(rows: list[dict[str, Any]], part: str) -> list[dict[str, Any]]:
    """The rows of a part that were timed."""
    return [row for row in rows if row["part"] == part and "microseconds" in row]


def read_summary(rows: list[dict[str, Any]]) -> list[str]:
    """Shares of the roof of products of the most rows and of kernels that only read, a sentence for each width of weights."""
    lines = []
    for bits in WIDTHS:
        own = [row for row in rows if (row["m"], row["bits"]) == (FEW_ROWS, bits) and EARLY in row["microseconds"]]
        if own:
            ours = [row["of_roof"] for row in own]
            early = [row["of_roof"] * row["microseconds"]["ops"] / row["microseconds"][EARLY] for row in own]
            lines.append(
                f"At {FEW_ROWS} rows and {bits} bits `ops.matmul` attains {min(ours):.2f} to {max(ours):.2f} of the roof, the early read"
                f" {min(early):.2f} to {max(early):.2f}."
            )
    return lines


def report(data: dict[str, Any]) -> str:
    """The tables."""
    rows, lines = data["rows"], ["# Formats for serving models, on an H200", ""]
    lines += [
        f"{data['device']}, {data['date']}, torch {data['torch']}. Device time by CUDA-graph replay, all ways in turns, operands rotated",
        "beyond the L2; results were compared first. The data is in [formats.json](formats.json), written by",
        "`python -m measurements.formats`.",
    ]
    if of(rows, "narrow"):
        lines += [
            "",
            "## Narrow weights, groups of 128, `ops.Weight`",
            "",
            f"*Roof*: bytes of packed weights, scales, zero points (4 bits) and activations at {READ_RATE / 1e12} TB/s,",
            "the rate at which an H200 reads.",
            f"*{OLDER}*: kernels without features of later architectures, on the same GPU.",
            "*Read*: a kernel that only reads the same bytes (`measurements/weight_reads.py`). *Alone*: its launches do not overlap;",
            "*early*: the next one begins once all weights of this one were read. Launches of `ops.matmul` overlap too, but the next",
            "one reads rows of A, and multiplies, after this one has ended. *Early / roof* is therefore about the most that a kernel which",
            f"waits for earlier work attains of the roof, *early / ours* our part of that. {OLDER}'s launches cannot overlap:",
            f"*alone / {OLDER}*.",
            *read_summary(of(rows, "narrow")),
            "",
            f"| m × n × k | bits | ops.matmul, µs | {OLDER}, µs | cuBLASLt bfloat16, µs | cuBLASLt / ours | of the roof "
            f"| {OLDER} of the roof | read alone, µs | read early, µs | early / roof | early / ours | alone / {OLDER} |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
    for row in of(rows, "narrow"):
        found = row["microseconds"]
        older, roof = "", ""
        if OLDER in found:
            older, roof = f"{found[OLDER]:.1f}", f"{row['of_roof'] * found['ops'] / found[OLDER]:.2f}"
        reading = [""] * 5
        if EARLY in found:
            parts = [row["of_roof"] * found["ops"] / found[EARLY], found[EARLY] / found["ops"], found[ALONE] / found[OLDER]]
            reading = [f"{found[ALONE]:.1f}", f"{found[EARLY]:.1f}", *(f"{part:.2f}" for part in parts)]
        ratio = f"{row['of_cublaslt']:.2f}" if row["of_cublaslt"] is not None else ""
        lines.append(
            f"| {row['m']} × {row['n']} × {row['k']} | {row['bits']} | {found['ops']:.1f} | {older} "
            f"| {found.get('cublaslt', float('nan')):.1f} | {ratio} | {row['of_roof']:.2f} | {roof} | {' | '.join(reading)} |"
        )
    if of(rows, "experts"):
        lines += [
            "",
            f"## Experts: {EXPERTS}, of which a token takes {TAKEN}; bfloat16",
            "",
            "*Moved*: gather and scatter within the kernel. *Masked*: a fixed number of rows for each expert. *torch*: its grouped product",
            "with index operations.",
            "",
            "| tokens | n × k | moved, µs | masked, µs | torch, µs | torch / moved |",
            "|---:|---|---:|---:|---:|---:|",
        ]
    for row in of(rows, "experts"):
        found = row["microseconds"]
        lines.append(
            f"| {row['tokens']} | {row['n']} × {row['k']} | {found['moved']:.0f} | {found['masked']:.0f} | {found['torch']:.0f} "
            f"| {found['torch'] / found['moved']:.2f} |"
        )
    if of(rows, "quantize"):
        lines += ["", "## ops.quantize, bfloat16 to e4m3", "", "| m × k | block | µs | of the roof |", "|---|---|---:|---:|"]
    for row in of(rows, "quantize"):
        lines.append(f"| {row['m']} × {row['k']} | {row['block']} | {row['microseconds']['quantize']:.1f} | {row['of_roof']:.2f} |")
    return "\n".join([*lines, ""])


def compiled(case: tuple[int, int, int, int, str]) -> str:
    """Compiles the kernel of a product by a weight into the cache; its name."""
    m, n, k, bits, architecture = case
    if architecture == OLDER:
        return older_kernel(m, n, k, bits)[0].sequence.name
    return kernel_of(call_of(WeightProduct(m, n, k, 8, 8), numbers_of(bits), find_device(DEVICE)))[0].name


def compile_all() -> None:
    """Compiles the kernels of weights in several processes."""
    newest = find_device(DEVICE).architecture.name
    shapes = [(m, n, k, bits) for m, layers in ROWS for n, k in layers for bits in WIDTHS]
    cases = [(*shape, newest) for shape in shapes] + [(*shape, OLDER) for shape in shapes if shape[0] <= FEW_ROWS]
    with ProcessPoolExecutor() as pool:
        for name in sorted(set(pool.map(compiled, cases))):
            print(name)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=600.0, help="no measurement begins after this")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of formats.json and formats.md")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    if args.compile:
        compile_all()
        return
    data_file = args.out / "formats.json"
    data = json.loads(data_file.read_text()) if args.report else measured(args.only, args.seconds)
    if not args.report:
        write_atomically(data_file, json.dumps(data, indent=1) + "\n")
    write_atomically(args.out / "formats.md", report(data))


if __name__ == "__main__":
    main()
