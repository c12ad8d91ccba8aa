"""Reductions that no table was tuned for, drawn by a seeded generator over kinds of shapes, beside torch on the same arrays.

    python -m measurements.odd_reductions                              # writes odd_reductions.json and .md beside itself (--out: elsewhere)
    python -m measurements.odd_reductions --seeds 1 2 --compiled --prepare
    python -m measurements.odd_reductions --seeds 1 2 --compiled --seconds 90

Every call is checked before it is timed. Launches rotate through copies of the input beyond the L2 and are replayed as CUDA
graphs, ours and torch's in turns. ``--compiled``: beside torch.compile (max-autotune) too, whose code ``--prepare`` makes in several
processes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measurements.preparation import in_processes
from measurements.row_operations import keep_compiled_code

SEED = 20260117
COLD_BYTES = 192 << 20
"""Copies of an input reach this far: more than three times the L2."""
GRAPH_SECONDS = 1.2e-3
ROUNDS = 9
PROCESSES = 12
MIN_LEFT = 3.0
"""Seconds that a problem needs to be begun."""


@dataclass(frozen=True)
class Problem:
    """One reduction: an array of ``base`` extents, seen with its axes in another order, broadcast or cut, reduced over ``axes``."""

    kind: str
    base: tuple[int, ...]
    operation: str
    axes: tuple[int, ...]
    dtype: str = "float32"
    order: tuple[int, ...] | None = None
    """Order in which the axes of the array are seen."""
    cut: int = 0
    """Elements that are left out at the end of every row of the last axis."""
    expanded: int = 0
    """Extent of an axis in front along which the array is broadcast; 0: none."""

    @property
    def text(self) -> str:
        seen = f" seen as {self.order}" if self.order else ""
        cut = f" without the last {self.cut} columns" if self.cut else ""
        wide = f" broadcast {self.expanded} times" if self.expanded else ""
        return f"{self.operation} of {self.dtype} {self.base}{seen}{cut}{wide} over {self.axes}"

    def view(self, array: Any) -> Any:
        """Operand of a reduction, in an array of the base extents."""
        seen = array.permute(self.order) if self.order else array
        seen = seen[..., : seen.shape[-1] - self.cut] if self.cut else seen
        return seen.expand(self.expanded, *seen.shape) if self.expanded else seen


def drawn(seed: int) -> list[Problem]:
    """Two problems of each of twelve kinds."""
    rng = random.Random(seed)

    def near(power: float) -> int:
        return round(2 ** (power + rng.uniform(-0.5, 0.5)))

    def floats() -> str:
        return rng.choice(["float32", "float32", "bfloat16", "float16"])

    found: list[Problem] = []
    for _ in range(2):
        few = rng.randint(2, 7)
        found.append(Problem("few long rows", (few, near(25)), rng.choice(["sum", "max"]), (1,)))
        found.append(Problem("few rows, over them", (rng.randint(2, 7), near(24.5)), "sum", (0,)))
        found.append(Problem("an axis of length 1", (near(23.5), 1), rng.choice(["sum", "max"]), (1,)))
        found.append(Problem("few columns, over the rows", (near(20), rng.randint(3, 15)), rng.choice(["sum", "mean"]), (0,)))
        found.append(Problem("short rows", (near(20), rng.randint(3, 31)), rng.choice(["sum", "max"]), (1,), floats()))
        side = rng.choice([28, 56, 112, 224])
        channels = rng.choice([3, 16, 64, 96])
        images = max(2, (1 << 25) // (channels * side * side))
        found.append(Problem("kept axis between", (images, channels, side, side), rng.choice(["sum", "mean"]), (0, 2, 3), floats()))
        rows, words = near(12), rng.choice([50257, 50304, 32001, 128257])
        found.append(Problem("logsumexp of vocabularies", (rows, words), "logsumexp", (1,), "bfloat16"))
        found.append(Problem("argmax of vocabularies", (near(12.5), rng.choice([50257, 32003])), "argmax", (1,), "float32"))
        found.append(Problem("odd middle", (near(5), near(10), near(9) | 1), rng.choice(["sum", "max"]), (1,), floats()))
        extents = (near(5), near(4), near(6), near(8))
        order = rng.choice([(0, 2, 1, 3), (2, 0, 3, 1), (3, 1, 0, 2)])
        axes = tuple(sorted(rng.sample(range(4), 2)))
        found.append(Problem("four axes in another order", extents, "sum", axes, floats(), order=order))
        found.append(Problem("cut rows, broadcast", (near(11), near(11)), "sum", rng.choice([(0, 2), (1,), (2,)]), cut=3, expanded=5))
    found.append(Problem("beyond 2^31 elements", (2, (1 << 30) + (rng.randint(1, 1 << 20) | 1)), "sum", (0, 1), "int8"))
    found.append(Problem("beyond 2^31 elements", ((1 << 26) + rng.randint(1, 999), 33), "max", (1,), "int8"))
    return found


@dataclass
class Row:
    """Outcome of one problem; times in microseconds of device time a call."""

    problem: dict[str, Any]
    text: str
    instance: str = ""
    ours: float = 0.0
    torch: float = 0.0
    tbps: float = 0.0
    error: float = 0.0
    """Largest error relative to the check's bound."""
    failure: str = ""
    compiled: float | None = None
    seed: int = SEED

    @property
    def ratio(self) -> float:
        """The faster peer's time over ours."""
        return min(self.torch, self.compiled or self.torch) / self.ours if self.ours else 0.0


def torch_call(torch: Any, problem: Problem) -> Callable[[Any, Any], Any]:
    """torch's reduction: from x and out."""
    axes: Any = problem.axes
    one = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "logsumexp": torch.logsumexp}.get(problem.operation)
    if problem.operation == "argmax":
        return lambda x, out: torch.argmax(x, axes[0], out=out)
    if problem.operation in ("sum", "mean"):
        return lambda x, out: one(x, axes, dtype=out.dtype, out=out)
    return lambda x, out: one(x, axes, out=out)


def compiled_call(torch: Any, problem: Problem, out: str) -> Callable[[Any], Any]:
    """torch's reduction to elements of the type ``out``, compiled; measurements capture CUDA graphs themselves."""
    axes: Any = problem.axes if len(problem.axes) > 1 else problem.axes[0]
    kind = getattr(torch, out)
    calls: dict[str, Callable[[Any], Any]] = {
        "sum": lambda x: torch.sum(x, axes, dtype=kind),
        "mean": lambda x: torch.mean(x, axes, dtype=kind),
        "max": lambda x: torch.amax(x, axes),
        "argmax": lambda x: torch.argmax(x, axes),
        "logsumexp": lambda x: torch.logsumexp(x, axes),
    }
    made: Callable[[Any], Any] = torch.compile(calls[problem.operation], mode="max-autotune-no-cudagraphs", dynamic=False)
    return made


def result_type(problem: Problem) -> str:
    """The type that torch stores a result in."""
    return "int64" if problem.operation == "argmax" or (problem.dtype == "int8" and problem.operation == "sum") else problem.dtype


def prepare_some(chosen: list[Problem], until: float, compiled: bool) -> None:
    """Calls ours on each problem, then the compiled peer, so that their code is in the caches."""
    import torch

    from gemmgen import ops

    for problem in chosen:
        if time.time() > until:
            return
        axes: Any = problem.axes if len(problem.axes) > 1 else problem.axes[0]
        try:
            view = problem.view(torch.ones(problem.base, device="cuda", dtype=getattr(torch, problem.dtype)))
            result = ops.reduce(view, problem.operation, axes)
            ops.reduce(
                view, problem.operation, axes, out=torch.empty(result.shape, dtype=getattr(torch, result_type(problem)), device="cuda")
            )
            if compiled:
                compiled_call(torch, problem, result_type(problem))(view)
            torch.cuda.synchronize()
        except Exception as error:
            print(f"{problem.text}: {type(error).__name__}: {error}"[:300], flush=True)
        view = result = None
        torch.cuda.empty_cache()


def worst_error(torch: Any, problem: Problem, x: Any, got: Any) -> float:
    """Largest error of a result over its bound: exactly for extrema and integers, else 2^-12 or the result's own rounding."""
    axes: Any = problem.axes
    if problem.operation == "argmax":
        return 0.0 if torch.equal(x.gather(1, got[:, None])[:, 0], x.amax(1)) else math.inf
    if problem.operation == "max":
        return 0.0 if torch.equal(got.to(x.dtype), torch.amax(x, axes)) else math.inf
    if not x.dtype.is_floating_point:
        return 0.0 if torch.equal(got, torch.sum(x, axes, dtype=torch.int64)) else math.inf
    allowed = max(2.0**-12, torch.finfo(got.dtype).eps)
    if problem.operation == "logsumexp":
        expected = torch.logsumexp(x.float(), axes)
        return float(((got.float() - expected).abs() / expected.abs()).max()) / allowed
    expected, scale = torch.sum(x, axes, dtype=torch.float64), x.abs().sum(axes, dtype=torch.float64)
    if problem.operation == "mean":
        count = x.numel() // expected.numel()
        expected, scale = expected / count, scale / count
    return float(((got.double() - expected).abs() / scale).max()) / allowed


def measure(torch: Any, problem: Problem, compiled: bool = False) -> Row:
    """One problem, checked and timed."""
    from gemmgen import ops
    from gemmgen.core.errors import GemmgenError
    from gemmgen.ops.functions.reduce import OPERATOR
    from gemmgen.perf.contestants import median_seconds

    row = Row(asdict(problem), problem.text)
    kind = getattr(torch, problem.dtype)
    elements = math.prod(problem.base)
    size = torch.empty((), dtype=kind).element_size()
    copies = max(1, min(64, math.ceil(COLD_BYTES / (elements * size))))
    generator = torch.Generator(device="cuda").manual_seed(SEED)
    if kind.is_floating_point:
        arrays = [torch.empty(problem.base, device="cuda", dtype=kind).normal_(generator=generator) for _ in range(copies)]
    else:
        arrays = [torch.randint(-100, 101, problem.base, device="cuda", dtype=kind, generator=generator) for _ in range(copies)]
    views = [problem.view(array) for array in arrays]
    axes: Any = problem.axes if len(problem.axes) > 1 else problem.axes[0]
    try:
        known = set(OPERATOR._calls)
        result = ops.reduce(views[0], problem.operation, axes)
        fresh = [call for key, call in OPERATOR._calls.items() if key not in known]
        row.instance = fresh[-1].choice.chosen.plan.name if fresh else ""
        # torch stores extrema, and sums of floats, in the elements' type; ours are asked for the same bytes.
        if problem.operation == "max" or (problem.operation in ("sum", "mean", "logsumexp") and kind.is_floating_point):
            result = torch.empty(result.shape, dtype=kind, device="cuda")
            ops.reduce(views[0], problem.operation, axes, out=result)
            row.instance = list(OPERATOR._calls.values())[-1].choice.chosen.plan.name
    except GemmgenError as error:
        row.failure = f"refused: {error}"
        return row
    torch.cuda.synchronize()
    row.error = worst_error(torch, problem, views[0], result)
    if row.error > 1:
        row.failure = f"wrong: {row.error:.3g} times the bound"
        return row
    other = torch.empty_like(result)
    peer = torch_call(torch, problem)

    def ours(index: int) -> None:
        ops.reduce(views[index], problem.operation, axes, out=result)

    def theirs(index: int) -> None:
        peer(views[index], other)

    turns = {"ours": ours, "torch": theirs}
    if compiled:
        made = compiled_call(torch, problem, result_type(problem))
        made(views[0])
        turns["compiled"] = lambda index: made(views[index])
    times = {name: 1e6 * one for name, one in median_seconds(torch, turns, sets=copies, rounds=ROUNDS, graph_seconds=GRAPH_SECONDS).items()}
    row.ours, row.torch, row.compiled = times["ours"], times["torch"], times.get("compiled")
    row.tbps = (elements * size + result.numel() * result.element_size()) / row.ours * 1e-6
    return row


def report(rows: list[Row], device: str, version: str, date: str) -> str:
    """The tables as Markdown, one for each seed."""
    compiled = any(row.compiled for row in rows)
    peers = f"PyTorch {version}{' and torch.compile (max-autotune)' * compiled}"
    lines = [
        "# Reductions over odd axes",
        "",
        f"Drawn by `measurements.odd_reductions` on {device}, {date}, beside {peers}: microseconds",
        "of device time, inputs rotating beyond the L2, CUDA graphs replayed in turns. The ratio is the faster peer's time over ours.",
    ]
    for seed in dict.fromkeys(row.seed for row in rows):
        lines += ["", f"## Seed {seed}", "", f"| kind | reduction | ours | PyTorch |{' torch.compile |' * compiled} TB/s | ratio |"]
        lines.append(f"|---|---|---:|---:|{'---:|' * compiled}---:|---:|")
        of_seed = [row for row in rows if row.seed == seed]
        timed = [row for row in of_seed if not row.failure]
        for row in of_seed:
            figures = f"{row.ours:.1f} | {row.torch:.1f} |{f' {row.compiled:.1f} |' if row.compiled else ' |' * compiled} {row.tbps:.2f}"
            shown = f"{figures} | {row.ratio:.2f}" if not row.failure else f"| |{' |' * compiled} | {row.failure[:120]}"
            lines.append(f"| {row.problem['kind']} | {row.text} | {shown} |")
        lines += ["", f"Beside PyTorch: geometric mean and least {_summary([row.torch / row.ours for row in timed])} of {len(timed)};"]
        lines[-1] += f" beside the faster of both {_summary([row.ratio for row in timed])};" if compiled else ""
        lines[-1] += f" {len(of_seed) - len(timed)} refused or wrong."
    return "\n".join([*lines, ""])


def _summary(ratios: list[float]) -> str:
    return f"**{math.exp(statistics.fmean(map(math.log, ratios))):.2f}** and {min(ratios):.2f}" if ratios else "none"


def main() -> None:
    """Measures everything and writes both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seeds", type=int, nargs="+", default=[SEED])
    parser.add_argument("--compiled", action="store_true", help="also beside torch.compile (max-autotune)")
    parser.add_argument("--prepare", action="store_true", help="compile, and time nothing")
    parser.add_argument("--seconds", type=float, default=1e6, help="of the measurement or of the preparation")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="processes that prepare")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    keep_compiled_code()
    every = [(seed, problem) for seed in arguments.seeds for problem in drawn(seed)]
    if arguments.prepare:
        in_processes(prepare_some, [problem for _, problem in every], arguments.processes, arguments.seconds, arguments.compiled)
        return
    import torch

    compiler: Any = torch
    compiler._dynamo.config.recompile_limit = len(every) + 1
    rows = []
    for seed, problem in every:
        started = time.monotonic()
        if until - started < MIN_LEFT:
            break
        try:
            row = measure(torch, problem, arguments.compiled)
        except Exception as error:
            row = Row(asdict(problem), problem.text, failure=f"{type(error).__name__}: {error}"[:200])
        row.seed = seed
        rows.append(row)
        torch.cuda.empty_cache()
        print(
            f"{row.ratio:5.2f} {row.ours:9.1f} us, torch {row.torch:.1f}, compiled {row.compiled or 0:.1f} {row.tbps:5.2f} TB/s {row.text} "
            f"[{row.instance}] {row.failure[:150]} ({time.monotonic() - started:.1f} s)",
            flush=True,
        )
    device, date = torch.cuda.get_device_name(), time.strftime("%Y-%m-%d")
    data = {
        "device": device,
        "torch": torch.__version__,
        "date": date,
        "rounds": ROUNDS,
        "rows": [{**asdict(row), "ratio": row.ratio} for row in rows],
    }
    (arguments.out / "odd_reductions.json").write_text(json.dumps(data, indent=1) + "\n")
    (arguments.out / "odd_reductions.md").write_text(report(rows, device, torch.__version__, date))


if __name__ == "__main__":
    main()
