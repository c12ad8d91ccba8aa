"""Epilogues beside the plain product and beside torch: the time that a formula adds, and two products in one launch.

    python -m measurements.free_epilogues --prepare       compiles kernels and torch's functions in parallel, times nothing
    python -m measurements.free_epilogues                 on a machine with an H100 or H200, and torch

bfloat16, 4096 x 11008 x 4096 and seven products drawn by the seed. Formulas: GELU of a sum with a bias, SiLU with a bias times a gate,
a float32 residual, and GELU whose argument is stored as well, in bfloat16 or float32. Peers are torch, torch.compile of the same
function with dynamic shapes, and on the first product torch.compile with max-autotune. Results are compared with float32 first.
Writes free_epilogues.json and .md beside this file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import random
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemmgen import ops
from gemmgen.core.files import write_atomically
from gemmgen.perf.contestants import median_seconds

HERE = Path(__file__).resolve().parent
SEED = 39
LARGE = (4096, 11008, 4096)
ROWS = (512, 1024, 2048, 3000, 4096, 8192)
COLUMNS = (4096, 5120, 8192, 11008, 14336)
DEPTHS = (2560, 4096, 5120)
GATED = ((4096, 11008, 4096), (16, 11008, 4096), (512, 14336, 4096), (2048, 8192, 5120))
SETS_BYTES = 160 << 20
ROUNDS = 12
GRAPH_SECONDS = 2e-3
BANDWIDTH = 4.2e12
"""Bytes a second of an H200's memory: the most that a product was measured to read (``gemmgen/dispatch/space.py``)."""
PEAK = 989.4e12
"""Operations a second of its tensor cores in bfloat16, as its data sheet states them."""
SMS, CLOCK, SPECIAL_PER_CLOCK = 132, 1.98e9, 16
"""Its SMs, their highest clock, and the special functions that each computes in a clock cycle."""
ALLOWED = 0.04
"""Part of a product's time that an epilogue may add where the product is bound by its arithmetic."""
READ = {"gelu": 0, "gate": 2, "residual": 4, "stored": 0, "stored in float32": 0}
"""Bytes that a formula reads for an element of the result, beside the product's."""
STORED = {"gelu": 0, "gate": 0, "residual": 0, "stored": 2, "stored in float32": 4}
"""Bytes that it stores beside C."""
SPECIAL = {"gelu": 1, "gate": 1, "residual": 0, "stored": 1, "stored in float32": 1}
"""The fewest special functions that it takes for an element."""
AGREEMENT = 2e-2
"""Largest difference allowed beside 1 + |result|: results are rounded to bfloat16."""
BIAS = {"bias": {"per": "column", "type": "bf16"}}
FORMULAS: dict[str, dict[str, Any]] = {
    "gelu": {"inputs": BIAS, "value": "gelu(acc + bias)"},
    "gate": {"inputs": BIAS | {"gate": {"per": "element", "type": "bf16"}}, "value": "silu(acc + bias) * gate"},
    "residual": {"inputs": {"z": {"per": "element", "type": "f32"}}, "value": "acc + z"},
    "stored": {"inputs": BIAS, "let": {"z": "acc + bias"}, "outputs": {"C": "gelu(z)", "pre": {"value": "z", "type": "bf16"}}},
    "stored in float32": {"inputs": BIAS, "let": {"z": "acc + bias"}, "outputs": {"C": "gelu(z)", "pre32": {"value": "z", "type": "f32"}}},
}


def products(seed: int) -> list[tuple[int, int, int]]:
    """The large product and seven drawn ones: m, n, k."""
    draw = random.Random(seed)
    return [LARGE, *((draw.choice(ROWS), draw.choice(COLUMNS), draw.choice(DEPTHS)) for _ in range(7))]


def functions(torch: Any) -> dict[str, Callable[..., Any]]:
    """Each formula in torch, on a, w (n, k) and its operands."""
    F = torch.nn.functional

    def gelu(a: Any, w: Any, bias: Any) -> Any:
        return F.gelu(F.linear(a, w, bias))

    def gate(a: Any, w: Any, bias: Any, gate: Any) -> Any:
        return F.silu(F.linear(a, w, bias)) * gate

    def residual(a: Any, w: Any, z: Any) -> Any:
        return (F.linear(a, w) + z).to(a.dtype)

    def stored(a: Any, w: Any, bias: Any) -> Any:
        z = F.linear(a, w, bias)
        return F.gelu(z), z

    def stored_in_float32(a: Any, w: Any, bias: Any) -> Any:
        z = F.linear(a, w, bias)
        return F.gelu(z), z.float()

    return {"gelu": gelu, "gate": gate, "residual": residual, "stored": stored, "stored in float32": stored_in_float32}


def random_matrix(torch: Any, *shape: int, scale: float = 1.0) -> Any:
    """Normally distributed bfloat16 numbers."""
    return (torch.randn(*shape, device="cuda") * scale).bfloat16()


def inputs(torch: Any, m: int, n: int, k: int, sets: int) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Sets of a and of w, and the operands of all formulas."""
    a = [random_matrix(torch, m, k) for _ in range(sets)]
    w = [random_matrix(torch, n, k, scale=k**-0.5) for _ in range(sets)]
    gate, z = random_matrix(torch, m, n), torch.randn(m, n, device="cuda")
    return a, w, {"bias": random_matrix(torch, n), "gate": gate, "z": z, "pre": torch.empty_like(gate), "pre32": torch.empty_like(z)}


def operands_of(formula: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Operands and further outputs of one formula."""
    names = [*formula.get("inputs", {}), *(name for name in formula.get("outputs", {}) if name != "C")]
    return {name: made[name] for name in names}


def read_only(formula: dict[str, Any], made: dict[str, Any]) -> list[Any]:
    """Operands that torch's function takes, in order."""
    return [made[name] for name in formula.get("inputs", {})]


def first(result: Any) -> Any:
    """C, of a function that may return more."""
    return result[0] if isinstance(result, tuple) else result


def differs(torch: Any, got: Any, expected: Any) -> str:
    """Why two results are not the same, or nothing."""
    worst = ((got.float() - expected.float()).abs() / (1 + expected.float().abs())).max().item()
    return "" if worst <= AGREEMENT else f"differs by {worst:.3g}"


def sets_of(m: int, n: int, k: int) -> int:
    """Sets of arrays, beyond the L2 together."""
    return max(2, SETS_BYTES // (2 * (m * k + n * k)) + 1)


def wrong_results(torch: Any, m: int, n: int, a: Any, w: Any, made: dict[str, Any]) -> dict[str, str]:
    """Formulas whose result differs from float32's, with the difference."""
    wrong, out = {}, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    for name, function in functions(torch).items():
        formula = FORMULAS[name]
        ops.matmul(a, w.T, out=out, epilogue=formula, operands=operands_of(formula, made))
        exact = function(a.float(), w.float(), *(one.float() for one in read_only(formula, made)))
        reason = differs(torch, out, first(exact))
        if not reason and name.startswith("stored"):
            reason = differs(torch, made["pre" if name == "stored" else "pre32"], exact[1])
        if reason:
            wrong[name] = reason
    return wrong


def measure(
    torch: Any, m: int, n: int, k: int, rounds: int, compiled: dict[str, Any], tuned: dict[str, Any], peers: bool = True
) -> dict[str, Any]:
    """Microseconds of one product: plain, with each formula, and of the peers."""
    sets = sets_of(m, n, k)
    a, w, made = inputs(torch, m, n, k, sets)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    wrong = wrong_results(torch, m, n, a[0], w[0], made)
    calls: dict[str, Callable[[int], Any]] = {"plain": lambda i: ops.matmul(a[i], w[i].T, out=out)}
    names = {"plain": ops.matmul.kernel(a[0], w[0].T, out=out).plan.name}
    for name, function in functions(torch).items():
        if name in wrong:
            continue
        formula = FORMULAS[name]
        given, read = operands_of(formula, made), read_only(formula, made)
        names[name] = ops.matmul.kernel(a[0], w[0].T, out=out, epilogue=formula, operands=given).plan.name

        def ours(i: int, formula: dict[str, Any] = formula, given: dict[str, Any] = given) -> Any:
            return ops.matmul(a[i], w[i].T, out=out, epilogue=formula, operands=given)

        calls[name] = ours
        if not peers:
            continue
        calls[f"{name}, torch"] = lambda i, function=function, read=read: function(a[i], w[i], *read)
        calls[f"{name}, compiled"] = lambda i, name=name, read=read: compiled[name](a[i], w[i], *read)
        if (m, n, k) == LARGE and name in tuned:
            calls[f"{name}, max-autotune"] = lambda i, name=name, read=read: tuned[name](a[i], w[i], *read)
    times = median_seconds(torch, calls, sets=sets, rounds=rounds, graph_seconds=GRAPH_SECONDS)
    return {"sizes": [m, n, k], "wrong": wrong, "kernels": names, "us": {name: round(us * 1e6, 2) for name, us in times.items()}}


def measure_gated(torch: Any, m: int, n: int, k: int, rounds: int, pointwise: Any) -> dict[str, Any]:
    """Microseconds of SwiGLU: in one launch, and by two products or one and a compiled function."""
    F = torch.nn.functional
    sets = sets_of(m, 2 * n, k)
    a = [random_matrix(torch, m, k) for _ in range(sets)]
    w = [random_matrix(torch, 2 * n, k, scale=k**-0.5) for _ in range(sets)]
    out, gate, up = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    ops.gated_matmul(a[0], w[0][:n].T, w[0][n:].T, out=out)
    exact = F.silu(a[0].float() @ w[0][:n].float().T) * (a[0].float() @ w[0][n:].float().T)
    wrong = differs(torch, out, exact)
    del exact

    def two(i: int) -> Any:
        torch.mm(a[i], w[i][:n].T, out=gate)
        torch.mm(a[i], w[i][n:].T, out=up)
        return pointwise(gate, up)

    def one(i: int) -> Any:
        both = a[i] @ w[i].T
        return pointwise(both[:, :n], both[:, n:])

    calls = {"one launch": lambda i: ops.gated_matmul(a[i], w[i][:n].T, w[i][n:].T, out=out), "two, compiled": two, "joined, compiled": one}
    times = median_seconds(torch, calls, sets=sets, rounds=rounds, graph_seconds=GRAPH_SECONDS)
    name = ops.gated_matmul.kernel(a[0], w[0][:n].T, w[0][n:].T, out=out).plan.name
    return {
        "gated": [m, n, k],
        "wrong": {"gated": wrong} if wrong else {},
        "kernels": {"one launch": name},
        "us": {name: round(us * 1e6, 2) for name, us in times.items()},
    }


def gated_pointwise(torch: Any) -> Any:
    """SiLU of one matrix times another, compiled."""
    return torch.compile(lambda x, y: torch.nn.functional.silu(x) * y, dynamic=True)


def compiled_functions(torch: Any) -> dict[str, Any]:
    """The formulas compiled for any shape."""
    torch._dynamo.config.recompile_limit = 64
    return {name: torch.compile(function, dynamic=True) for name, function in functions(torch).items()}


def tuned_function(torch: Any, function: Callable[..., Any]) -> Any:
    """One formula compiled with max-autotune, for the shapes it is called with."""
    return torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)


def _prepare(item: tuple[str, tuple[int, ...]]) -> str:
    """One process's part of the preparation."""
    import torch

    kind, sizes = item
    began = time.monotonic()
    try:
        if kind == "gated":
            m, n, k = sizes
            a, w = random_matrix(torch, m, k), random_matrix(torch, 2 * n, k)
            ops.gated_matmul(a, w[:n].T, w[n:].T)
            gated_pointwise(torch)(random_matrix(torch, 64, n), random_matrix(torch, 64, n))
        elif kind == "ours":
            (a,), (w,), made = inputs(torch, *sizes, 1)
            out = torch.empty_like(made["gate"])
            ops.matmul(a, w.T, out=out)
            for formula in FORMULAS.values():
                ops.matmul(a, w.T, out=out, epilogue=formula, operands=operands_of(formula, made))
        elif kind == "compiled":
            for name, function in compiled_functions(torch).items():
                (a,), (w,), made = inputs(torch, *sizes, 1)
                function(a, w, *read_only(FORMULAS[name], made))
        else:
            (a,), (w,), made = inputs(torch, *sizes, 1)
            tuned_function(torch, functions(torch)[kind])(a, w, *read_only(FORMULAS[kind], made))
        torch.cuda.synchronize()
    except Exception as error:  # another part may still be of use
        return f"{item}: {type(error).__name__}: {error}"
    return f"{item}: {time.monotonic() - began:.1f} s"


def prepare(seed: int, processes: int) -> None:
    """Compiles all that ``measure`` calls, into the caches of both."""
    items: list[tuple[str, tuple[int, ...]]] = [(name, LARGE) for name in FORMULAS]
    items += [("compiled", LARGE), *(("ours", sizes) for sizes in products(seed)), *(("gated", sizes) for sizes in GATED)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for told in pool.imap_unordered(_prepare, items):
            print(told, flush=True)


def tile_of(kernel: str) -> tuple[int, int]:
    """Rows and columns of a kernel's tile, by its name."""
    found = re.search(r"_(\d+)x(\d+)x\d+_", kernel)
    assert found is not None, kernel
    return int(found[1]), int(found[2])


def least_expected(row: dict[str, Any], formula: str) -> float:
    """Least part of the product's time that a formula can be expected to add to it, with the tiles of its kernel: what comes after the last
    multiplication, the functions of an SM's last tile and the stores of the last tiles of all, less C's stores, which the
    plain product has as well; and what all bytes take beyond the product's time."""
    (m, n, k), plain = row["sizes"], row["us"]["plain"] * 1e-6
    rows, columns = tile_of(row["kernels"][formula])
    tiles = -(-m // rows) * -(-n // columns)
    last = tiles - (-(-tiles // SMS) - 1) * SMS
    functions = SPECIAL[formula] * rows * columns / (SPECIAL_PER_CLOCK * CLOCK)
    stored = last * rows * columns / BANDWIDTH
    moved = (2 * (m * k + n * k + m * n) + (READ[formula] + STORED[formula]) * m * n) / BANDWIDTH
    after = max(functions, (2 + STORED[formula]) * stored) - 2 * stored
    return (after + max(0.0, moved - plain)) / plain


def through_an_sm(row: dict[str, Any], formula: str) -> float:
    """Bytes that a formula has an SM read and store for a tile, over those of the tile's factors."""
    k = row["sizes"][2]
    rows, columns = tile_of(row["kernels"][formula])
    return (READ[formula] + STORED[formula]) * rows * columns / (2 * k * (rows + columns))


def added_parts(rows: list[dict[str, Any]]) -> list[str]:
    """The part of a product's time that each formula adds, beside the least possible."""
    lines = [
        "",
        "Overhead, and in brackets the least that can be expected with the kernel's tiles: what comes after the last multiplication, the",
        f"special functions of an SM's last tile (one an element, {SPECIAL_PER_CLOCK} a clock at {CLOCK / 1e9:g} GHz) or the stores of all",
        f"last tiles (at the memory's {BANDWIDTH / 1e12:g} TB/s), whichever takes longer, less the stores of C, which the plain product",
        "has as well; and what all bytes take beyond the time of the product. Behind it the bytes that the formula has an SM read and",
        "store for a tile, as a part of those of the tile's factors: kernels whose factors come as fast as the L2 gives them lose as",
        f"much. A star: more than {ALLOWED:.0%} is to be expected.",
        "*Memory* is the part of the arithmetic's time, at the tensor cores' peak, that moving A, B and C once takes, in brackets with a",
        "float32 matrix as well: below 100%, a product is bound by its arithmetic, with any of these formulas.",
        "",
        "| m x n x k | memory |" + "".join(f" {name} |" for name in FORMULAS),
        "|---|---:|" + "---:|" * len(FORMULAS),
    ]
    every, possible = {name: (0, 0) for name in FORMULAS}, {name: (0, 0) for name in FORMULAS}
    for row in rows:
        (m, n, k), us = row["sizes"], row["us"]
        cells = []
        for name in FORMULAS:
            if name not in us:
                cells.append("")
                continue
            added, least = us[name] / us["plain"] - 1, least_expected(row, name)
            cells.append(f"{added:+.1%} ({least:.1%}; {through_an_sm(row, name):.1%}){' *' if least > ALLOWED else ''}")
            for counts in (every, possible) if least <= ALLOWED else (every,):
                counts[name] = counts[name][0] + (added <= ALLOWED), counts[name][1] + 1
        arithmetic = 2 * m * n * k / PEAK
        memory, more = (moved / BANDWIDTH / arithmetic for moved in (2 * (m * k + n * k + m * n), 2 * (m * k + n * k + 3 * m * n)))
        lines.append(f"| {m} x {n} x {k} | {memory:.0%} ({more:.0%}) | {' | '.join(cells)} |")
    for meaning, of in (("all", every), ("those without a star", possible)):
        lines.append(f"| at most {ALLOWED:.0%}, of {meaning} | | {' | '.join(f'{part} of {whole}' for part, whole in of.values())} |")
    return lines


def best_peer(times: dict[str, float], name: str) -> float:
    """The fastest of torch's ways to compute a formula."""
    return min(us for key, us in times.items() if key.startswith(f"{name}, "))


def report(data: dict[str, Any]) -> str:
    """The page."""
    rows = [row for row in data["rows"] if "sizes" in row]
    lines = [
        "# Epilogues beside the plain product and beside torch",
        "",
        f"{data['device']}, {data['date']}, torch {data['torch']}, seed {data['seed']}. bfloat16; device time by graph replay, all",
        "ways in turns, on random data, arrays rotated beyond the L2. *Overhead*: time over that of the plain product of `ops.matmul`.",
        "*Peer*: the better of torch and torch.compile, on the first product also with max-autotune, over `ops.matmul`.",
        "`python -m measurements.free_epilogues` makes this file.",
        "",
        "| formula | products | overhead, largest product | mean | most | peer / ours, mean | least |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, formula in FORMULAS.items():
        found = [row["us"] for row in rows if name in row["us"]]
        if found:
            overheads = [us[name] / us["plain"] - 1 for us in found]
            peers = [best_peer(us, name) / us[name] for us in found]
            text = formula.get("value") or f"gelu(acc + bias), acc + bias {name}"
            cells = f"{overheads[0]:+.1%} | {statistics.fmean(overheads):+.1%} | {max(overheads):+.1%}"
            lines.append(f"| {text} | {len(found)} | {cells} | {statistics.geometric_mean(peers):.3f} | {min(peers):.3f} |")
    lines += ["", "| m x n x k | plain, µs |" + "".join(f" {name}, µs | best of torch |" for name in FORMULAS)]
    lines += ["|---|---:|" + "---:|---:|" * len(FORMULAS)]
    for row in rows:
        cells = [
            f"{row['us'][name]:.1f} | {best_peer(row['us'], name):.1f}" if name in row["us"] else f"{row['wrong'].get(name, '')} | "
            for name in FORMULAS
        ]
        lines.append(f"| {' x '.join(map(str, row['sizes']))} | {row['us']['plain']:.1f} | {' | '.join(cells)} |")
    lines += added_parts(rows)
    gated = [row for row in data["rows"] if "gated" in row]
    if gated:
        ways = ("one launch", "two, compiled", "joined, compiled")
        lines += ["", "SwiGLU, `ops.gated_matmul`, beside two products, or one of both matrices, and a compiled function:", ""]
        columns = [*(f"{way}, µs" for way in ways), "two / ours", "joined / ours"]
        lines += ["| m x n x k | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
        for row in gated:
            us = [row["us"][way] for way in ways]
            cells = " | ".join(f"{one:.1f}" for one in us)
            lines.append(f"| {' x '.join(map(str, row['gated']))} | {cells} | {us[1] / us[0]:.3f} | {us[2] / us[0]:.3f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Prepares, or measures and writes both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prepare", action="store_true", help="compile only")
    parser.add_argument("--report", action="store_true", help="write the page of earlier measurements again")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=70.0, help="begin no further product after so long")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "free_epilogues.json")
    arguments = parser.parse_args()
    if arguments.prepare:
        prepare(arguments.seed, arguments.processes)
        return
    if arguments.report:
        data = json.loads(arguments.output.read_text(encoding="utf-8"))
        write_atomically(arguments.output.with_suffix(".md"), report(data).encode())
        return
    import torch

    began, rows = time.monotonic(), []
    compiled, pointwise = compiled_functions(torch), gated_pointwise(torch)
    tuned = {name: tuned_function(torch, function) for name, function in functions(torch).items()}
    sized = products(arguments.seed)
    works: list[Callable[[], dict[str, Any]]] = [lambda s=s: measure(torch, *s, arguments.rounds, compiled, tuned) for s in sized]
    works[2:2] = [lambda s=s: measure_gated(torch, *s, arguments.rounds, pointwise) for s in GATED]
    for work in works:
        if time.monotonic() - began < arguments.seconds:
            rows.append(work())
            print(json.dumps(rows[-1] | {"seconds": round(time.monotonic() - began, 1)}), flush=True)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    data = {"device": torch.cuda.get_device_name(), "date": date, "torch": torch.__version__, "seed": arguments.seed, "rows": rows}
    write_atomically(arguments.output, (json.dumps(data, indent=1) + "\n").encode())
    write_atomically(arguments.output.with_suffix(".md"), report(data).encode())


if __name__ == "__main__":
    main()
