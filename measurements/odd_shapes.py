"""Products of shapes that nobody tuned for: ``ops.matmul`` beside torch, on shapes that a seeded generator draws over many kinds.

    python -m measurements.odd_shapes                     on a machine with a GPU and torch
    python -m measurements.odd_shapes --seed 5 --types f32

Calls of both libraries are captured in CUDA graphs that rotate among enough sets of arrays for the operands to exceed the L2, and
replayed in turns; every result is first compared with torch's on small integers, for equality. With ``--contenders``, the choice is
held against the best of what it could have taken. Writes odd_shapes.json and odd_shapes.md beside this file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gemmgen import ops
from gemmgen.core.errors import GemmgenError
from gemmgen.dispatch.devices import gpu_device
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import Option, choose
from gemmgen.dispatch.tuning import compile_all, contenders
from gemmgen.perf.benchmark import Candidate, benchmark
from gemmgen.perf.contestants import median_seconds

HERE = Path(__file__).resolve().parent
SEED = 17
MOST_OPERATIONS = 1.4e11
"""Of a product: the larger are drawn again, so that a run stays short."""
MOST_BYTES = 6e8
GRAPH_SECONDS = 4e-4
ROUNDS = 9
CONTESTED = 20
"""Shapes at most, drawn from all, whose choice is held against its alternatives."""
LETTERS = ("nn", "nt", "tn", "tt")


@dataclass(frozen=True)
class Shape:
    """One product. ``offset``: elements by which every pointer starts past a multiple of 16 bytes."""

    kind: str
    m: int
    n: int
    k: int
    letters: str = "nn"
    batch: int = 1
    offset: int = 0
    gelu: bool = False

    @property
    def operations(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch

    def bytes(self, element: int) -> float:
        """That cross the memory bus at least."""
        return float(element * self.batch * (self.m * self.k + self.k * self.n + self.m * self.n))

    def problem(self, type: str) -> str:
        """As ``gemmgen explain --problem`` reads it."""
        words = [self.letters] if self.letters != "nn" else []
        words += [type] if type != "f32" else []
        words += [f"batch={self.batch}"] if self.batch > 1 else []
        words += ["unaligned"] if self.offset else []
        words += ["bias", "gelu"] if self.gelu else []
        return ",".join(["gemm:" + str(self.m), str(self.n), str(self.k), *words])


def spread(rng: random.Random, low: int, high: int, multiple: int = 1) -> int:
    """A number between two others, its logarithm uniform."""
    return max(low, round(math.exp(rng.uniform(math.log(low), math.log(high))) / multiple) * multiple)


Draw = Callable[[random.Random], Shape]


def _vector(rng: random.Random) -> Shape:
    long, k = spread(rng, 1024, 16384, rng.choice([1, 8])), spread(rng, 1024, 16384, rng.choice([1, 8]))
    m, n = rng.choice([(1, long), (long, 1)])
    return Shape("matrix × vector", m, n, k, rng.choice(LETTERS))


def _narrow(rng: random.Random) -> Shape:
    long, few, k = spread(rng, 1024, 16384, 8), rng.randint(2, 16), spread(rng, 1024, 12288, 8)
    m, n = rng.choice([(few, long), (long, few)])
    return Shape("few rows or columns", m, n, k, rng.choice(LETTERS))


def _deep(rng: random.Random) -> Shape:
    side = spread(rng, 3, 128)
    return Shape("deep and tiny", side, side, spread(rng, 1 << 16, 1 << 20, rng.choice([1, 64])), rng.choice(LETTERS))


def _shallow(rng: random.Random) -> Shape:
    if rng.random() < 0.5:
        return Shape("shallow", spread(rng, 32768, 262144, 8), spread(rng, 8, 64, 8), spread(rng, 8, 32, 8), rng.choice(LETTERS))
    side = spread(rng, 2048, 8192)
    return Shape("shallow", side, side, spread(rng, 8, 64), rng.choice(LETTERS))


def _cube(rng: random.Random) -> Shape:
    return Shape("cubes of any size", *[spread(rng, 100, 3200)] * 3, rng.choice(("nn", "nt")))


def _large(rng: random.Random) -> Shape:
    m, n, k = (spread(rng, 1024, 4096, 64) for _ in range(3))
    return Shape("large, every order", m, n, k, rng.choice(LETTERS[1:]))


def _wide(rng: random.Random) -> Shape:
    side = spread(rng, 256, 1536, 64)
    return Shape("long k", side, side, spread(rng, 8192, 65536, 64), rng.choice(LETTERS))


def _layer(rng: random.Random) -> Shape:
    n, k = rng.choice([(4096, 4096), (11008, 4096), (4096, 11008), (30522, 768), (50257, 768), (3072, 768)])
    return Shape("linear layers", spread(rng, 32, 1024), n, k, "nt")


def _fused(rng: random.Random) -> Shape:
    n, k = rng.choice([(4096, 1024), (3072, 768), (8192, 2048)])
    return Shape("linear + GELU", spread(rng, 64, 2048, 8), n, k, "nt", gelu=True)


def _shifted(rng: random.Random) -> Shape:
    return Shape("pointers one element off", *[spread(rng, 512, 3072, 64)] * 3, rng.choice(("nn", "nt")), offset=1)


def _batch(rng: random.Random) -> Shape:
    side = spread(rng, 8, 96)
    return Shape("batches of small ones", side, side, side, rng.choice(("nn", "nt")), batch=spread(rng, 200, 4000))


KINDS: Sequence[tuple[Draw, int]] = (
    (_vector, 6),
    (_narrow, 6),
    (_deep, 5),
    (_shallow, 4),
    (_cube, 6),
    (_large, 5),
    (_wide, 2),
    (_layer, 5),
    (_fused, 2),
    (_shifted, 2),
    (_batch, 3),
)
SEEN = (
    Shape("seen before", 4096, 1, 4096),
    Shape("seen before", 1, 4096, 4096, "nt"),
    Shape("seen before", 64, 64, 1 << 20),
    Shape("seen before", 16, 16, 65536),
    Shape("seen before", 3, 3, 1000003),
    Shape("seen before", 4097, 4097, 31),
    Shape("seen before", 65536, 16, 16),
    Shape("seen before", 2048, 2048, 2048, "nt"),
    Shape("seen before", 1024, 1024, 65536, "tn"),
    Shape("seen before", 512, 30522, 768, "nt"),
    Shape("seen before", 333, 4096, 11008),
    Shape("seen before", 2500, 2500, 2500),
    Shape("seen before", 2048, 2048, 2048, offset=1),
    Shape("seen before", 1024, 4096, 1024, "nt", gelu=True),
    Shape("seen before", 33, 33, 33, batch=1000),
    Shape("seen before", 2047, 2047, 2047),
    Shape("seen before", 4096, 4096, 4096, "nt"),
)
"""Shapes that an earlier measurement found slow."""
THEN = (0.4, 0.79, 0.5, 0.5, 0.24, 0.73, 0.76, 0.9, 0.84, 0.95, 0.92, 0.97, 0.92, 0.88, 0.93)
EARLIER = {shape.problem("f32"): ratio for shape, ratio in zip(SEEN, THEN, strict=False)}
"""Ratios that it found, torch / ours in float32 on an H200, of all but the last two."""


def shapes(seed: int) -> list[Shape]:
    """Shapes of every kind, different ones for each seed."""
    found: list[Shape] = []
    for draw, count in KINDS:
        rng = random.Random(f"{seed}:{draw.__name__}")
        own: list[Shape] = []
        while len(own) < count:
            shape = draw(rng)
            if shape.operations <= MOST_OPERATIONS and shape.bytes(4) <= MOST_BYTES and shape not in own:
                own.append(shape)
        found += own
    return found


@dataclass
class Result:
    """Microseconds of one product, of both libraries, or why there are none."""

    kind: str
    problem: str
    type: str
    torch_us: float = math.nan
    ours_us: float = math.nan
    instance: str = ""
    derived: tuple[str, ...] = ()
    expected_us: float = math.nan
    problem_text: str = ""
    contenders: dict[str, float] = field(default_factory=dict)
    """Microseconds of what the choice could have taken."""
    chosen: str = ""
    chosen_us: float = math.nan
    """Microseconds of what it took, in the same run as the contenders."""

    @property
    def ratio(self) -> float:
        return self.torch_us / self.ours_us


def arrays(torch: Any, shape: Shape, kind: Any, integers: bool) -> tuple[Any, Any, Any, Any]:
    """A, B, the bias (or None) and the result."""

    def matrix(rows: int, columns: int, letter: str) -> Any:
        lies = (columns, rows) if letter == "t" else (rows, columns)
        lies = lies if shape.batch == 1 else (shape.batch, *lies)
        flat = torch.empty(math.prod(lies) + shape.offset, dtype=kind, device="cuda")
        if integers:
            flat.copy_(torch.randint(-2, 3, flat.shape, device="cuda", dtype=torch.int8))
        else:
            flat.uniform_(-1, 1)
        made = flat[shape.offset :].view(lies)
        return made.transpose(-1, -2) if letter == "t" else made

    a, b = matrix(shape.m, shape.k, shape.letters[0]), matrix(shape.k, shape.n, shape.letters[1])
    bias = matrix(1, shape.n, "n").view(shape.n) if shape.gelu else None
    return a, b, bias, matrix(shape.m, shape.n, "n")


def ours(a: Any, b: Any, bias: Any, out: Any) -> None:
    """The product by gemmgen."""
    if bias is None:
        ops.matmul(a, b, out=out)
    else:
        ops.matmul(a, b, bias=bias, activation="gelu", out=out)


def theirs(torch: Any, a: Any, b: Any, bias: Any, out: Any) -> Any:
    """The product by torch."""
    if bias is None:
        return torch.matmul(a, b, out=out)
    return torch.nn.functional.gelu(torch.nn.functional.linear(a, b.transpose(0, 1), bias))


def check(torch: Any, shape: Shape, kind: Any) -> None:
    """Compares both on small integers, whose sums are exact in float32. Raises ``AssertionError``."""
    a, b, bias, out = arrays(torch, shape, kind, integers=True)
    ours(a, b, bias, out)
    expected = theirs(torch, a, b, bias, torch.empty_like(out))
    if shape.gelu:
        assert torch.allclose(out.float(), expected.float(), rtol=2e-2 if kind != torch.float32 else 1e-5, atol=1e-2)
    elif kind == torch.float32:
        assert torch.equal(out, expected)
    else:  # torch may round sums of slices to 16 bits, but not of float32
        assert torch.equal(out, torch.matmul(a.float(), b.float()).to(kind))


def measure(torch: Any, shape: Shape, type: str, result: Result) -> None:
    """Times both, in turns."""
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[type]
    check(torch, shape, kind)
    element = torch.empty(0, dtype=kind).element_size()
    beyond = 2 * torch.cuda.get_device_properties(0).L2_cache_size
    count = max(1, min(64, math.ceil(beyond / shape.bytes(element))))
    sets = [arrays(torch, shape, kind, integers=False) for _ in range(count)]
    ways = {"ours": lambda index: ours(*sets[index]), "theirs": lambda index: theirs(torch, *sets[index])}
    times = median_seconds(torch, ways, sets=count, rounds=ROUNDS, graph_seconds=GRAPH_SECONDS)
    result.ours_us, result.torch_us = (seconds * 1e6 for seconds in times.values())


def compare_contenders(results: Sequence[Result], most: int, enough: Callable[[], bool]) -> None:
    """Times what each choice could have taken, the best of the model first, and two more."""
    device = gpu_device(0)
    jobs: list[tuple[Result, list[Option]]] = []
    for result in results:
        request = parse_problem(result.problem)
        chosen = choose(request, device).chosen
        options = {option.plan.name: option for option in contenders(request, device, device.architecture, most, 2)}
        jobs.append((result, [*({**options, chosen.plan.name: chosen}).values()]))
        result.chosen = chosen.plan.name
    binaries = compile_all((option for _, options in jobs for option in options), lambda: None)
    for result, options in jobs:
        if enough():
            break
        groups: dict[Any, list[Option]] = {}
        for option in options:
            if not isinstance(binaries[option.plan.name], GemmgenError):
                arrays = (array for array in option.plan.sequence.arrays if array.role != "workspace")
                layout = tuple((a.name, a.type, a.role, a.shape, a.strides) for a in arrays)
                groups.setdefault((layout, tuple(sorted(option.dimensions.items()))), []).append(option)
        for members in groups.values():
            tried = [Candidate(option.plan, binaries[option.plan.name]) for option in members]
            try:
                timings = benchmark(tried, members[0].dimensions, with_peer=False, rounds=5).timings
            except GemmgenError as error:
                print(f"  {members[0].candidate.label} and {len(members) - 1} others: {str(error).splitlines()[0]}", flush=True)
                continue
            result.contenders |= {timing.name: timing.median_us for timing in timings}
        result.chosen_us = result.contenders.get(result.chosen, math.nan)
        labels = {option.plan.name: option.candidate.label for option in options}
        best = min(result.contenders, key=lambda name: result.contenders[name], default="")
        if best:
            text = f"chosen {result.chosen_us:.1f}, best {result.contenders[best]:.1f} by {labels[best]}"
            print(f"{result.problem:44s} {text}, of {len(result.contenders)}", flush=True)


def summary(results: Sequence[Result], type: str) -> dict[str, Any]:
    """Geometric mean, least and count of ratios of the drawn shapes."""
    ratios = [result.ratio for result in results if result.type == type and result.kind != "seen before" and result.ratio > 0]
    if not ratios:
        return {}
    return {
        "shapes": len(ratios),
        "geometric_mean": statistics.geometric_mean(ratios),
        "least": min(ratios),
        "below_0.95": sum(ratio < 0.95 for ratio in ratios),
    }


def markdown(about: dict[str, Any], results: Sequence[Result]) -> str:
    """The table."""
    lines = [
        "# Shapes that nobody tuned for",
        "",
        "`ops.matmul` beside torch (cuBLAS, TF32 off) on shapes that a seeded generator draws; device time by CUDA-graph replay, operands",
        "rotated beyond the L2, both in turns in one run, medians. Every result was first compared with torch's on small integers.",
        f"`python -m measurements.odd_shapes` makes this file. {about['device']}, {about['date']}, seed {about['seed']}.",
        "",
        "| type | shapes | geometric mean | least | below 0.95 |",
        "|---|---:|---:|---:|---:|",
    ]
    for type, row in about["summary"].items():
        if row:
            lines.append(f"| {type} | {row['shapes']} | {row['geometric_mean']:.2f} | {row['least']:.2f} | {row['below_0.95']} |")
    regrets = [result.chosen_us / min(result.contenders.values()) - 1 for result in results if result.contenders and result.chosen_us > 0]
    if regrets:
        mean = statistics.mean(regrets)
        lines += ["", f"The choice against the best of what it could have taken, {len(regrets)} shapes: {mean:.1%} longer on average,"]
        lines += [f"{max(regrets):.0%} at most."]
    lines += ["", "| kind | problem | torch µs | ours µs | torch / ours | instance |", "|---|---|---:|---:|---:|---|"]
    for result in results:
        if result.ratio > 0:
            instance = result.instance + (" (derived)" if result.derived else "")
            cells = f"{result.torch_us:.1f} | {result.ours_us:.1f} | {result.ratio:.2f} | {instance}"
            then = EARLIER.get(result.problem) if "H200" in about["device"] else None
            kind = result.kind if then is None else f"{result.kind}, then {then:.2f}"
            lines.append(f"| {kind} | `{result.problem}` | {cells} |")
        else:
            lines.append(f"| {result.kind} | `{result.problem}` | | | | {result.problem_text} |")
    return "\n".join(lines) + "\n"


def run(types: Sequence[str], seed: int, seconds: float) -> tuple[dict[str, Any], list[Result]]:
    """All shapes in all types."""
    import torch

    started = time.monotonic()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(seed)
    device = gpu_device(0)
    jobs = [(shape, type) for type in types for shape in (*shapes(seed), *SEEN)]
    warmed = ops.warm([shape.problem(type) for shape, type in jobs])
    slowest = sorted({one.name: one.seconds for one in warmed}.values())[-3:]
    print(f"warm: {time.monotonic() - started:.1f} s, the slowest {', '.join(f'{value:.2f}' for value in slowest)} s", flush=True)
    results = []
    for shape, type in jobs:
        request = parse_problem(shape.problem(type))
        option = choose(request, device).chosen
        result = Result(shape.kind, shape.problem(type), type, instance=option.candidate.label, derived=option.fit.derived)
        result.expected_us = option.seconds * 1e6
        results.append(result)
        if time.monotonic() - started > seconds:
            result.problem_text = "no time left"
            continue
        try:
            measure(torch, shape, type, result)
        except (GemmgenError, AssertionError, RuntimeError) as error:
            result.problem_text = " ".join(f"{error.__class__.__name__} {error}".split())[:160]
        text = f"{result.torch_us:9.1f} {result.ours_us:9.1f} {result.ratio:6.2f}  expected {result.expected_us:9.1f}"
        print(f"{result.kind:26s} {result.problem:44s} {text}  {result.instance} {result.problem_text}", flush=True)
        torch.cuda.empty_cache()
    about = {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seed": seed,
        "summary": {type: summary(results, type) for type in types},
    }
    return about, results


def write(folder: Path, about: dict[str, Any], results: Sequence[Result]) -> None:
    """Writes both files."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [asdict(result) for result in results]
    (folder / "odd_shapes.json").write_text(json.dumps({**about, "results": rows}, indent=1) + "\n")
    (folder / "odd_shapes.md").write_text(markdown(about, results))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--types", nargs="+", choices=["f32", "f16", "bf16"], default=["f32", "bf16"])
    parser.add_argument("--seconds", type=float, default=110.0, help="begin no further shape after so long")
    parser.add_argument("--contenders", type=int, default=0, help="time so many others beside each choice")
    parser.add_argument("-o", "--output", type=Path, default=HERE)
    arguments = parser.parse_args()
    started = time.monotonic()
    about, results = run(arguments.types, arguments.seed, arguments.seconds)
    write(arguments.output, about, results)
    if arguments.contenders:
        measured = [result for result in results if result.ratio > 0 and result.kind != "seen before"]
        random.Random(arguments.seed).shuffle(measured)
        compare_contenders(measured[:CONTESTED], arguments.contenders, lambda: time.monotonic() - started > arguments.seconds)
        write(arguments.output, about, results)
    print(json.dumps(about["summary"], indent=1))


if __name__ == "__main__":
    main()
