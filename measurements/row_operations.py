"""Reductions, softmax and norms along rows beside torch and torch.compile (max-autotune): checks first, then CUDA graphs in turns.

    python -m measurements.row_operations --prepare                       # compiles all that the next line needs, in processes
    python -m measurements.row_operations --seconds 60 --out measurements # one line of JSON for each case
    python -m measurements.row_operations --only rows --seed 7 --compiled

A ratio is the faster peer's time over ours: above 1, ours is faster. Arrays are larger than the L2, or several of them take turns. The
code of torch.compile is kept below GEMMGEN_CACHE_DIR. ``--list`` prints the cases and needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measurements.preparation import in_processes
from measurements.row_reductions import ROTATED_BYTES, drawn, geometric, reference

PROCESSES = 5
TURNS = 9
MIN_LEFT = 1.0
"""Seconds that a case needs to be begun."""
EAGER_PART = 0.55
"""Part of the time in which all cases are measured beside eager torch; the rest is for those beside torch.compile."""

REDUCTIONS = (
    ("argmax", 8192, 4096, "bfloat16"),
    ("mean_variance", 8192, 4096, "bfloat16"),
    ("logsumexp", 8192, 4096, "bfloat16"),
    ("sum", 2048, 1000, "float32"),
    ("l2_norm", 1503, 258, "bfloat16"),
    ("max", 9684, 1961, "bfloat16"),
    ("any", 20000, 777, "int8"),
    ("argmax", 65536, 512, "float16"),
    ("logsumexp", 65536, 512, "float16"),
    ("mean_variance", 2048, 1000, "float32"),
    ("argmax", 4096, 50257, "bfloat16"),
    ("sum", 262144, 513, "float16"),
)
ROWS = (
    ("rms_norm_gradient", 8192, 4096, "bfloat16"),
    ("layer_norm_gradient", 8192, 4096, "bfloat16"),
    ("log_softmax", 2048, 50257, "bfloat16"),
    ("softmax", 8192, 4096, "bfloat16"),
    ("layer_norm", 32768, 768, "float16"),
    ("cumsum", 8192, 4096, "float32"),
    ("rms_norm_residual", 4096, 8192, "bfloat16"),
    ("softmax", 16384, 1000, "float32"),
    ("softmax_gradient", 16384, 999, "float32"),
    ("layer_norm_gradient", 16384, 1024, "float16"),
    ("rms_norm", 8192, 4096, "bfloat16"),
    ("layer_norm", 8192, 4096, "bfloat16"),
    ("softmax_gradient", 8192, 4096, "bfloat16"),
    ("rms_norm", 16384, 2048, "float32"),
    ("cumsum", 1000, 20011, "bfloat16"),
    ("log_softmax_gradient", 8192, 2048, "float32"),
    ("rms_norm_gradient", 16384, 1536, "float32"),
    ("logcumsumexp", 4096, 4096, "float32"),
    ("softmax", 65536, 128, "float16"),
    ("softmax", 128, 131072, "float32"),
    ("topk", 4096, 8192, "float32"),
    ("topk", 8192, 1024, "bfloat16"),
)


@dataclass(frozen=True)
class Case:
    """One operation on rows of one shape and type."""

    operation: str
    rows: int
    columns: int
    type: str


@dataclass(frozen=True)
class Row:
    """Times of one case, in microseconds, and the largest difference from the reference over the largest value."""

    case: Case
    kernel: str
    off: float
    ours: float
    torch: float
    compiled: float | None
    terabytes: float
    """Operands and results a second, by ours, in 10^12 bytes."""

    @property
    def ratio(self) -> float:
        """The faster peer's time over ours."""
        return min(self.torch, self.compiled or self.torch) / self.ours


@dataclass(frozen=True)
class Calls:
    """Ours and torch's function of the same arguments."""

    arguments: Callable[[], tuple[Any, ...]]
    """Makes one set of arguments."""
    ours: Callable[..., Any]
    theirs: Callable[..., Any]


def cases(seed: int, only: str | None) -> list[Case]:
    """Fixed and drawn cases, reductions and operations on rows in turns."""
    reductions = [Case(*one) for one in (*REDUCTIONS, *drawn(seed, 40))]
    rows = [Case(*one) for one in ROWS]
    if only == "reductions":
        return reductions
    if only == "rows":
        return rows
    found = [one for pair in zip(reductions, rows, strict=False) for one in pair]
    return [*found, *reductions[len(rows) :]]


def calls_of(torch: Any, case: Case) -> Calls | None:
    """The two functions; None for an operation that ``ops`` lacks."""
    from gemmgen import ops

    kind, shape, functional = getattr(torch, case.type), (case.rows, case.columns), torch.nn.functional

    def noise(*extents: int) -> Any:
        values = torch.randn(*extents, device="cuda") * 3
        return (values > 9 if case.operation == "any" else values).to(kind)

    if case.operation not in {one for one, *_ in ROWS}:
        theirs = reference(torch, case.operation)
        return Calls(lambda: (noise(*shape),), lambda x: ops.reduce(x, case.operation, 1), theirs)
    ours = getattr(ops, case.operation.removesuffix("_residual"), None)
    if ours is None:
        return None
    aten, columns = torch.ops.aten, case.columns
    wide = torch.float32

    def rms_gradient(dy: Any, x: Any, weight: Any) -> Any:
        """The gradients of x and weight as a user of torch writes them."""
        dy, x, scaled = dy.to(wide), x.to(wide), (dy * weight).to(wide)
        inverse = torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)
        normal = x * inverse
        dx = (scaled - normal * (scaled * normal).mean(1, keepdim=True)) * inverse
        return dx.to(kind), (dy * normal).sum(0).to(kind)

    def layer_gradient(dy: Any, x: Any, weight: Any, bias: Any) -> Any:
        """The gradients of x, weight and bias."""
        dy, x, scaled = dy.to(wide), x.to(wide), (dy * weight).to(wide)
        spread, middle = torch.var_mean(x, 1, correction=0, keepdim=True)
        inverse = torch.rsqrt(spread + 1e-5)
        normal = (x - middle) * inverse
        dx = (scaled - scaled.mean(1, keepdim=True) - normal * (scaled * normal).mean(1, keepdim=True)) * inverse
        return dx.to(kind), (dy * normal).sum(0).to(kind), dy.sum(0).to(kind)

    def rms(x: Any, weight: Any) -> Any:
        return functional.rms_norm(x, (columns,), weight, 1e-6)

    def layer(x: Any, weight: Any, bias: Any) -> Any:
        return functional.layer_norm(x, (columns,), weight, bias, 1e-5)

    def added(x: Any, residual: Any, weight: Any) -> Any:
        whole = x + residual
        return functional.rms_norm(whole, (columns,), weight, 1e-6), whole

    table: dict[str, Calls] = {
        "softmax": Calls(lambda: (noise(*shape),), ours, lambda x: x.softmax(-1)),
        "log_softmax": Calls(lambda: (noise(*shape),), ours, lambda x: x.log_softmax(-1)),
        "softmax_gradient": Calls(
            lambda: (noise(*shape), noise(*shape).softmax(-1)), ours, lambda dy, y: aten._softmax_backward_data(dy, y, -1, kind)
        ),
        "log_softmax_gradient": Calls(
            lambda: (noise(*shape), noise(*shape).log_softmax(-1)), ours, lambda dy, y: aten._log_softmax_backward_data(dy, y, -1, kind)
        ),
        "rms_norm": Calls(lambda: (noise(*shape), noise(columns)), ours, rms),
        "layer_norm": Calls(lambda: (noise(*shape), noise(columns), noise(columns)), ours, layer),
        "rms_norm_residual": Calls(
            lambda: (noise(*shape), noise(*shape), noise(columns)), lambda x, residual, weight: ours(x, weight, residual=residual), added
        ),
        "rms_norm_gradient": Calls(lambda: (noise(*shape), noise(*shape), noise(columns)), ours, rms_gradient),
        "layer_norm_gradient": Calls(
            lambda: (noise(*shape), noise(*shape), noise(columns), noise(columns)),
            lambda dy, x, weight, bias: ours(dy, x, weight),
            layer_gradient,
        ),
        "cumsum": Calls(lambda: (noise(*shape),), ours, lambda x: x.cumsum(-1, dtype=wide).to(kind)),
        "logcumsumexp": Calls(lambda: (noise(*shape),), ours, lambda x: x.logcumsumexp(-1)),
        "topk": Calls(lambda: (noise(*shape),), lambda x: ours(x, 16), lambda x: x.topk(16, -1)),
    }
    return table[case.operation]


def as_list(results: Any) -> list[Any]:
    """One or several results."""
    return list(results) if isinstance(results, list | tuple) else [results]


def difference(torch: Any, case: Case, calls: Calls, arguments: tuple[Any, ...]) -> float:
    """Largest difference of our results from torch's, in float64, over the largest value. Places count by the values there."""
    ours = as_list(calls.ours(*arguments))
    wide = tuple(one.double() if one.is_floating_point() else one for one in arguments)
    if case.operation in ("argmax", "argmin"):
        best = wide[0].amax(1) if case.operation == "argmax" else wide[0].amin(1)
        return float((wide[0].gather(1, ours[0][:, None].long())[:, 0] - best).abs().max())
    if case.operation in ("softmax_gradient", "log_softmax_gradient"):
        dy, y = wide
        whole = (dy * y).sum(1, keepdim=True) if case.operation == "softmax_gradient" else dy.sum(1, keepdim=True)
        theirs = [(dy - whole) * y if case.operation == "softmax_gradient" else dy - y.exp() * whole]
    elif case.operation == "cumsum":
        theirs = [wide[0].cumsum(1)]
    elif case.operation == "l2_norm":
        theirs = [wide[0].square().sum(1).sqrt()]
    else:
        theirs = as_list(calls.theirs(*(wide if case.operation not in ("any",) else arguments)))
    if case.operation == "mean_variance":
        theirs.reverse()
    if case.operation == "topk":
        ours, theirs = ours[:1], theirs[:1]
    found = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        gap, scale = (mine.double() - other.double()).abs().max(), other.double().abs().max()
        found = max(found, float(gap / scale.clamp(min=1e-30)))
    return found


def measured(torch: Any, case: Case, compiled: bool) -> Row | None:
    """Checks and times one case."""
    from gemmgen.perf.contestants import median_seconds

    calls = calls_of(torch, case)
    if calls is None:
        return None
    size = case.rows * case.columns * getattr(torch, case.type).itemsize
    sets = [calls.arguments() for _ in range(max(1, min(16, ROTATED_BYTES // (2 * size))))]
    small = calls if case.rows <= 4096 else None
    off = difference(torch, case, calls, sets[0] if small else tuple(one[:4096] if one.ndim == 2 else one for one in sets[0]))
    turns: dict[str, Callable[[int], Any]] = {
        "ours": lambda index: calls.ours(*sets[index]),
        "torch": lambda index: calls.theirs(*sets[index]),
    }
    if compiled:
        made = compiled_call(torch, calls)
        made(*sets[0])
        turns["compiled"] = lambda index: made(*sets[index])
    times = {name: 1e6 * one for name, one in median_seconds(torch, turns, sets=len(sets), rounds=TURNS, graph_seconds=1e-3).items()}
    kernel = ""
    if case.operation not in {one for one, *_ in ROWS}:
        from gemmgen import ops

        asked: Any = ops.reduce
        kernel = str(asked.kernel(sets[0][0], case.operation, 1).plan.name)
    arrays = [*sets[0], *as_list(calls.ours(*sets[0]))]
    moved = sum(array.numel() * array.element_size() for array in arrays)
    return Row(case, kernel, off, times["ours"], times["torch"], times.get("compiled"), moved / times["ours"] / 1e6)


def compiled_call(torch: Any, calls: Calls) -> Callable[..., Any]:
    """Torch's function, compiled: the mode without CUDA graphs of its own, as the measurement captures graphs itself."""
    made: Callable[..., Any] = torch.compile(calls.theirs, mode="max-autotune-no-cudagraphs", dynamic=False)
    return made


def keep_compiled_code() -> None:
    """Sets the folder of torch.compile's code before torch reads it."""
    folder = os.environ.get("GEMMGEN_CACHE_DIR")
    if folder:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(folder) / "inductor"))
        os.environ.setdefault("TRITON_CACHE_DIR", str(Path(folder) / "triton"))
    os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def prepare_some(chosen: Sequence[Case], until: float, compiled: bool) -> None:
    """Calls ours on each case, then the compiled peer, so that their code is in the caches."""
    import torch

    for case, peer in [(case, peer) for peer in ((False, True) if compiled else (False,)) for case in chosen]:
        if time.time() > until:
            return
        try:
            calls = calls_of(torch, case)
            if calls is None:
                continue
            arguments = calls.arguments()
            if peer:
                compiled_call(torch, calls)(*arguments)
            else:
                calls.ours(*arguments)
            torch.cuda.synchronize()
            del arguments
        except Exception as error:
            print(json.dumps({"failed": asdict(case), "why": str(error)[:300]}), flush=True)


def measure(torch: Any, chosen: Sequence[Case], compiled: bool, until: float) -> list[Row]:
    """Checks and times the cases, one after the other, as far as the time allows; prints a line for each."""
    rows: list[Row] = []
    longest = MIN_LEFT
    for case in chosen:
        since = time.monotonic()
        if until - since < longest + 1:
            break
        try:
            row = measured(torch, case, compiled)
        except Exception as error:
            print(json.dumps({"failed": asdict(case), "why": f"{type(error).__name__}: {error}"[:400]}), flush=True)
            continue
        seconds = time.monotonic() - since
        longest = max(longest, 1.2 * seconds if compiled else 0.0)
        if row is not None:
            rows.append(row)
            print(json.dumps(asdict(row) | {"ratio": round(row.ratio, 3), "seconds": round(seconds, 1)}), flush=True)
    return rows


def report(measured: Sequence[Row], device: str, date: str, seeds: Sequence[int]) -> str:
    """The tables as Markdown: operations on rows, reductions of each seed, and those that are always the same."""
    lines = [
        "# Operations on rows beside PyTorch and torch.compile",
        "",
        f"{device}, {date}, eager, and compiled with `max-autotune` (without its own CUDA graphs); cases and times by",
        "`measurements.row_operations`. Microseconds of device time in CUDA graphs, in turns; arrays beyond the L2. The ratio is the",
        "faster peer's time over ours. A gradient's peer is its formula in torch's operations. TB/s: operands and results, each once, over",
        "our time.",
    ]
    kinds = {operation for operation, *_ in ROWS}
    sections = {"Softmax, norms, gradients and running sums": [row for row in measured if row.case.operation in kinds]}
    for seed in seeds:
        wanted = {Case(*one) for one in drawn(seed, 40)}
        sections[f"Reductions along rows, drawn with seed {seed}"] = [row for row in measured if row.case in wanted]
    always = {Case(*one) for one in REDUCTIONS}
    sections["Reductions along rows, fixed"] = [row for row in measured if row.case in always]
    for title, rows in sections.items():
        if not rows:
            continue
        lines += ["", f"## {title}", "", "| operation | rows × columns | type | ours | PyTorch | torch.compile | ratio | TB/s |"]
        lines.append("|---|---|---|---:|---:|---:|---:|---:|")
        for row in rows:
            case, compiled = row.case, "" if row.compiled is None else f"{row.compiled:.1f}"
            times = f"{row.ours:.1f} | {row.torch:.1f} | {compiled} | {row.ratio:.2f} | {row.terabytes:.2f}"
            lines.append(f"| {case.operation} | {case.rows} × {case.columns} | {case.type} | {times} |")
        eager, best = [row.torch / row.ours for row in rows], [row.ratio for row in rows]
        below = sum(ratio < 0.95 for ratio in best)
        lines += ["", f"Beside eager PyTorch: geometric mean {geometric(eager):.2f} of {len(rows)}, least {min(eager):.2f}."]
        lines[-1] += f" Beside the faster of both: {geometric(best):.2f}, least {min(best):.2f}; {below} below 0.95."
    return "\n".join([*lines, ""])


def main() -> None:
    """Lists, prepares or measures the cases, or writes the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=41)
    parser.add_argument("--only", choices=("reductions", "rows"))
    parser.add_argument("--seconds", type=float, default=60.0, help="of the measurement or of the preparation")
    parser.add_argument("--out", type=Path, help="folder of row_operations.json")
    parser.add_argument("--prepare", action="store_true", help="compile, and time nothing")
    parser.add_argument("--list", action="store_true", help="print the cases")
    parser.add_argument("--eager", action="store_true", help="beside eager torch alone")
    parser.add_argument("--compiled", action="store_true", help="beside torch.compile in all of the time")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="processes that prepare")
    parser.add_argument("--first", type=int, default=1000, help="so many cases at most")
    parser.add_argument("--report", metavar="DEVICE", help="write row_operations.md from row_operations.json in --out")
    parser.add_argument("--seeds", type=int, nargs="*", default=[], help="seeds of the drawn cases in the report")
    options = parser.parse_args()
    if options.report:
        found = json.loads((options.out / "row_operations.json").read_text("utf-8"))
        rows = [Row(**{**row, "case": Case(**row["case"])}) for row in found]
        text = report(rows, options.report, time.strftime("%Y-%m-%d"), options.seeds)
        (options.out / "row_operations.md").write_text(text, encoding="utf-8")
        return
    begun = time.monotonic()
    chosen = cases(options.seed, options.only)[: options.first]
    if options.list:
        for case in chosen:
            print(json.dumps(asdict(case)))
        return
    keep_compiled_code()
    if options.prepare:
        in_processes(prepare_some, chosen, options.processes, options.seconds, not options.eager)
        return
    import torch

    compiler: Any = torch
    compiler._dynamo.config.recompile_limit = len(chosen) + 1
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "seed": options.seed}), flush=True)
    eager_until = options.seconds if options.eager else 0.0 if options.compiled else options.seconds * EAGER_PART
    rows = [*measure(torch, chosen, False, begun + eager_until)]
    if not options.eager:
        rows += measure(torch, chosen, True, begun + options.seconds)
    for name, ratios in {"best": [row.ratio for row in rows], "torch": [row.torch / row.ours for row in rows]}.items():
        if ratios:
            print(json.dumps({"beside": name, "mean": geometric(ratios), "least": min(ratios), "cases": len(ratios)}), flush=True)
    if options.out:
        (options.out / "row_operations.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
