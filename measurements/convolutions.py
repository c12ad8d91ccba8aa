"""Convolutions beside cuDNN as torch calls it: depthwise, grouped, stems, small images with deep channels, filters of one tap, strides.

    python -m measurements.convolutions --prepare                       # compiles all that the next line needs, in processes
    python -m measurements.convolutions --seconds 60 --out measurements # one line of JSON for each case
    python -m measurements.convolutions --only depthwise --explore      # every instance that takes the layer, the fastest first

A ratio is the faster of torch's times over ours: above 1, ours is faster. Torch has ``cudnn.benchmark`` on with no limit to the engines
tried, and takes part with contiguous (NCHW) and with ``channels_last`` tensors; ours reads ``channels_last`` and a ``Filter``. Neither
adds a bias. Arrays are larger than the L2, or several of them take turns. Results are compared with torch's in float32 before.
``--list`` prints the cases and needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measurements.preparation import in_processes
from measurements.row_reductions import ROTATED_BYTES, geometric

PROCESSES = 6
TURNS = 9
ALLOWED = {"float16": 4e-3, "bfloat16": 3e-2}
"""Largest difference from torch's result in float32, over the largest value: both types round the result once."""


@dataclass(frozen=True)
class Case:
    """One layer: n images of c channels, h x w; k filters of r x s."""

    kind: str
    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int = 1
    padding: int = 0
    groups: int = 1
    type: str = "float16"


CASES = (
    Case("depthwise", 64, 128, 56, 56, 128, 3, 3, 1, 1, 128),
    Case("deep", 1, 512, 7, 7, 512, 3, 3, 1, 1),
    Case("grouped", 64, 128, 56, 56, 128, 3, 3, 1, 1, 32),
    Case("stem", 64, 3, 224, 224, 64, 7, 7, 2, 3),
    Case("depthwise", 64, 192, 28, 28, 192, 7, 7, 1, 3, 192),
    Case("deep", 7, 768, 20, 29, 64, 3, 3, 1, 1),
    Case("grouped", 64, 512, 14, 14, 512, 3, 3, 1, 1, 32),
    Case("stem", 64, 3, 224, 224, 32, 3, 3, 2, 1),
    Case("depthwise", 32, 144, 112, 112, 144, 3, 3, 2, 1, 144),
    Case("deep", 1, 1024, 14, 14, 256, 1, 1),
    Case("depthwise", 64, 240, 28, 28, 240, 5, 5, 1, 2, 240),
    Case("deep", 7, 512, 14, 14, 512, 3, 3, 1, 1),
    Case("pointwise", 64, 256, 56, 56, 64, 1, 1),
    Case("stem", 64, 3, 224, 224, 96, 4, 4, 4, 0),
    Case("grouped", 64, 1024, 7, 7, 1024, 3, 3, 1, 1, 32),
    Case("strided", 64, 128, 56, 56, 128, 3, 3, 2, 1),
    Case("depthwise", 64, 960, 7, 7, 960, 3, 3, 1, 1, 960),
    Case("deep", 1, 64, 56, 56, 64, 3, 3, 1, 1),
    Case("large", 64, 64, 76, 79, 608, 3, 3, 1, 1),
    Case("deep", 1, 256, 14, 14, 256, 3, 3, 1, 1),
    Case("depthwise", 1, 512, 14, 14, 512, 3, 3, 1, 1, 512),
    Case("deep", 1, 2048, 7, 7, 512, 1, 1),
    Case("grouped", 32, 224, 28, 28, 224, 3, 3, 1, 1, 4),
    Case("strided", 64, 256, 56, 56, 512, 1, 1, 2, 0),
    Case("stem", 64, 3, 224, 224, 768, 16, 16, 16, 0),
    Case("depthwise", 64, 96, 57, 55, 96, 3, 3, 1, 1, 96, "bfloat16"),
    Case("grouped", 64, 256, 28, 28, 256, 3, 3, 1, 1, 32, "bfloat16"),
    Case("deep", 1, 384, 13, 13, 384, 3, 3, 1, 1, 1, "bfloat16"),
    Case("depthwise", 16, 768, 14, 14, 768, 7, 7, 1, 3, 768, "bfloat16"),
    Case("deep", 7, 1024, 10, 10, 160, 3, 3, 1, 1, 1, "bfloat16"),
    Case("depthwise", 64, 24, 112, 112, 24, 3, 3, 1, 1, 24),
    Case("pointwise", 64, 512, 28, 28, 128, 1, 1, 1, 0, 1, "bfloat16"),
    Case("pointwise", 7, 320, 7, 7, 1280, 1, 1),
    Case("strided", 7, 256, 28, 28, 256, 3, 3, 2, 1),
    Case("large", 32, 256, 56, 56, 256, 3, 3, 1, 1),
    Case("stem", 64, 4, 128, 128, 64, 3, 3, 2, 1, 1, "bfloat16"),
    Case("depthwise", 7, 480, 14, 14, 480, 5, 5, 1, 2, 480),
    Case("deep", 7, 2048, 7, 7, 512, 1, 1),
    Case("grouped", 64, 96, 27, 27, 256, 5, 5, 1, 2, 2),
    Case("depthwise", 64, 672, 14, 14, 672, 5, 5, 2, 2, 672),
)


@dataclass(frozen=True)
class Row:
    """Times of one case in microseconds, and the largest difference from the reference over the largest value."""

    case: Case
    kernel: str
    off: float
    ours: float
    contiguous: float
    channels_last: float
    terabytes: float
    """Images, filter and results a second, by ours, in 10^12 bytes."""
    teraflops: float

    @property
    def ratio(self) -> float:
        """The faster of torch's times over ours."""
        return min(self.contiguous, self.channels_last) / self.ours


def made(torch: Any, case: Case) -> tuple[Any, Any]:
    """Random images in ``channels_last`` and a filter."""
    kind = getattr(torch, case.type)
    x = torch.randn(case.n, case.c, case.h, case.w, device="cuda", dtype=kind).to(memory_format=torch.channels_last)
    depth = case.c // case.groups * case.r * case.s
    w = torch.randn(case.k, case.c // case.groups, case.r, case.s, device="cuda", dtype=kind) / depth**0.5
    return x, w


def window(case: Case) -> dict[str, int]:
    """The arguments of both functions beside the arrays."""
    return {"stride": case.stride, "padding": case.padding, "groups": case.groups}


def difference(torch: Any, case: Case, x: Any, w: Any, y: Any) -> float:
    """Largest difference of the first and the last images' results from torch's in float32, over the largest value."""
    found = 0.0
    torch.backends.cudnn.benchmark = False  # a search of the fastest reference takes longer than the rest
    for part in (slice(0, 2), slice(-1, None)):
        theirs = torch.nn.functional.conv2d(x[part].float().contiguous(), w.float(), **window(case))
        found = max(found, float((y[part].float() - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30)))
    torch.backends.cudnn.benchmark = True
    return found


def measured(torch: Any, case: Case) -> Row:
    """Checks and times one case."""
    from gemmgen import ops
    from gemmgen.perf.contestants import median_seconds

    conv2d: Any = ops.conv2d
    x, w = made(torch, case)
    weights: Any = ops.Filter(w)
    y = conv2d(x, weights, **window(case))
    off = difference(torch, case, x, w, y)
    if off > ALLOWED[case.type]:
        raise ValueError(f"{off:.3g} off")
    moved = sum(array.numel() * array.element_size() for array in (x, w, y))
    sets = [x, *(made(torch, case)[0] for _ in range(max(0, min(15, ROTATED_BYTES // (2 * moved)))))]
    plain = [one.contiguous() for one in sets]
    w_last = w.to(memory_format=torch.channels_last)
    torch_conv = torch.nn.functional.conv2d
    turns: dict[str, Callable[[int], Any]] = {
        "ours": lambda index: conv2d(sets[index], weights, **window(case)),
        "contiguous": lambda index: torch_conv(plain[index], w, **window(case)),
        "channels_last": lambda index: torch_conv(sets[index], w_last, **window(case)),
    }
    times = {name: 1e6 * one for name, one in median_seconds(torch, turns, sets=len(sets), rounds=TURNS, graph_seconds=1e-3).items()}
    operations = 2.0 * y.numel() * (case.c // case.groups) * case.r * case.s
    kernel = str(conv2d.kernel(x, weights, **window(case)).plan.name)
    ours = times["ours"]
    return Row(case, kernel, off, ours, times["contiguous"], times["channels_last"], moved / ours / 1e6, operations / ours / 1e6)


def options_of(torch: Any, case: Case, x: Any, weights: Any) -> list[Any]:
    """Every instance that takes the layer, those first that the model likes most."""
    from gemmgen import ops
    from gemmgen.dispatch.devices import gpu_device
    from gemmgen.dispatch.selection import choose

    conv2d: Any = ops.conv2d
    asked = conv2d.kernel(x, weights, **window(case))
    return list(choose(asked.choice.request, gpu_device(0), complete=True).options)


def explored(torch: Any, case: Case, most: int) -> list[tuple[str, float, float]]:
    """Label, measured and predicted microseconds of the instances that take the layer, the fastest first."""
    from gemmgen import api, ops
    from gemmgen.perf.contestants import median_seconds

    x, w = made(torch, case)
    weights: Any = ops.Filter(w)
    y = ops.conv2d(x, weights, **window(case))
    turns: dict[str, Callable[[int], Any]] = {}
    predicted: dict[str, float] = {}
    last = x.permute(0, 2, 3, 1), torch.empty_like(y).permute(0, 2, 3, 1)
    for option in options_of(torch, case, x, weights)[:most]:
        kernel = api.compile(option.plan.spec, option.plan.architecture)
        arrays = {"x": last[0], "y": last[1], "filter": weights.ordered(option.plan.filter_order)}
        label = option.candidate.label
        predicted[label] = 1e6 * option.seconds
        given = dict(option.fit.dimensions)
        turns[label] = lambda index, kernel=kernel, arrays=arrays, given=given: kernel(**arrays, **given)
    times = median_seconds(torch, turns, sets=1, rounds=5, graph_seconds=5e-4)
    return sorted(((label, round(1e6 * times[label], 2), round(predicted[label], 2)) for label in turns), key=lambda one: one[1])


def prepare_some(chosen: Sequence[Case], until: float, explore: int) -> None:
    """Calls ours on each case, so that its code is in the cache."""
    import torch

    from gemmgen import api, ops

    for case in chosen:
        if time.time() > until:
            return
        try:
            x, w = made(torch, case)
            weights: Any = ops.Filter(w)
            ops.conv2d(x, weights, **window(case))
            for option in options_of(torch, case, x, weights)[:explore] if explore else ():
                api.compile(option.plan.spec, option.plan.architecture)
            torch.cuda.synchronize()
        except Exception as error:
            print(json.dumps({"failed": asdict(case), "why": f"{type(error).__name__}: {error}"[:300]}), flush=True)


def measure(torch: Any, chosen: Sequence[Case], until: float, explore: int) -> list[Row]:
    """Checks and times the cases one after the other, as far as the time allows; prints a line for each."""
    rows: list[Row] = []
    longest = 1.0
    for case in chosen:
        since = time.monotonic()
        if until - since < longest:
            break
        try:
            row = measured(torch, case)
            rows.append(row)
            shown = {name: round(value, 5) if isinstance(value, float) else value for name, value in asdict(row).items()}
            print(json.dumps(shown | {"ratio": round(row.ratio, 3), "seconds": round(time.monotonic() - since, 1)}), flush=True)
            if explore:
                print(json.dumps({"options": explored(torch, case, explore)}), flush=True)
        except Exception as error:
            print(json.dumps({"failed": asdict(case), "why": f"{type(error).__name__}: {error}"[:400]}), flush=True)
        torch.cuda.empty_cache()
        longest = max(longest, min(6.0, 1.1 * (time.monotonic() - since)))
    return rows


def report(rows: Sequence[Row], device: str, date: str) -> str:
    """The tables as Markdown: means of the kinds, then the layers."""
    lines = [
        "# Convolutions beside cuDNN",
        "",
        f"float16 and bfloat16 layers by what `ops.conv2d` chooses, beside cuDNN as torch calls it on {device}, {date}:",
        "`cudnn.benchmark` without a limit to the engines, for contiguous (NCHW) and for `channels_last` tensors;",
        f"`python -m measurements.convolutions`, which had time for {len(rows)} of {len(CASES)} layers. Microseconds, medians of CUDA",
        "graphs in turns, data beyond the L2 or several sets of it; no bias on either side. The ratio is the faster of torch's times over",
        "ours: above 1, ours is faster. Each result was compared with torch's in float32 before.",
        "[drawn_convolutions.md](drawn_convolutions.md) has cuDNN's fastest plans and int8.",
        "",
        "| kind | layers | ratio, geometric mean | least |",
        "|---|---:|---:|---:|",
    ]
    for kind in (None, *dict.fromkeys(row.case.kind for row in rows), "depthwise and grouped"):
        ratios = [row.ratio for row in rows if kind is None or row.case.kind in kind.split(" and ")]
        if ratios:
            lines.append(f"| {kind or 'all'} | {len(ratios)} | {geometric(ratios):.2f} | {min(ratios):.2f} |")
    lines += ["", "Layers are n, c, h x w, k, filter, stride, groups.", ""]
    lines += ["| kind | layer | type | kernel | ours | contiguous | channels_last | ratio |", "|---|---|---|---|---:|---:|---:|---:|"]
    for row in rows:
        case = row.case
        layer = f"{case.n}, {case.c}, {case.h} x {case.w}, {case.k}, {case.r} x {case.s}, {case.stride}, {case.groups}"
        kernel = "_".join(row.kernel.removeprefix("conv2d_").split("_")[:3])
        times = f"{row.ours:.1f} | {row.contiguous:.1f} | {row.channels_last:.1f} | {row.ratio:.2f}"
        lines.append(f"| {case.kind} | {layer} | {case.type} | `{kernel}` | {times} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Lists, prepares or measures the cases, or writes the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="cases of this kind alone")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the measurement or of the preparation")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="processes that prepare")
    parser.add_argument("--out", type=Path, help="folder of convolutions.json")
    parser.add_argument("--prepare", action="store_true", help="compile, and time nothing")
    parser.add_argument("--explore", type=int, default=0, metavar="N", help="time the N instances too that the model likes most")
    parser.add_argument("--list", action="store_true", help="print the cases")
    parser.add_argument("--report", metavar="DEVICE", help="write convolutions.md from convolutions.json in --out")
    options = parser.parse_args()
    if options.report:
        found = json.loads((options.out / "convolutions.json").read_text("utf-8"))
        rows = [Row(**{**row, "case": Case(**row["case"])}) for row in found]
        (options.out / "convolutions.md").write_text(report(rows, options.report, time.strftime("%Y-%m-%d")), encoding="utf-8")
        return
    begun = time.monotonic()
    chosen = [case for case in CASES if options.only in (None, case.kind)]
    if options.list:
        for case in chosen:
            print(json.dumps(asdict(case)))
        return
    if options.prepare:
        in_processes(prepare_some, chosen, options.processes, options.seconds, options.explore)
        return
    import torch

    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 0
    torch.backends.cudnn.allow_tf32 = False
    print(
        json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}),
        flush=True,
    )
    rows = measure(torch, chosen, begun + options.seconds, options.explore)
    for kind in (None, *dict.fromkeys(row.case.kind for row in rows)):
        ratios = [row.ratio for row in rows if kind in (None, row.case.kind)]
        if ratios:
            print(json.dumps({"kind": kind or "all", "mean": geometric(ratios), "least": min(ratios), "cases": len(ratios)}), flush=True)
    if options.out:
        (options.out / "convolutions.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
