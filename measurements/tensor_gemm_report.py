"""Report of the measurements of tensor-core GEMMs: tables, what bounds the problems that miss their mark, and rows for tuned tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import LaunchError
from gemmgen.dispatch.model import memory_bandwidth, model_seconds, operation_rate
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import base_name, fitted, set_best
from gemmgen.dispatch.table import Row, Table
from gemmgen.hardware.target import Device
from gemmgen.kernels.family import KernelSpec
from gemmgen.kernels.gemm.request import GemmRequest
from gemmgen.kernels.gemm.spec import GemmSpec, TensorCoreMainloop
from gemmgen.kernels.requests import Layout
from gemmgen.perf.cost_model import cost_model_of

TITLES = {
    "int8": "int8 to int32, beside `_int_mm`",
    "int8_scaled": "int8 to int8 with a scale for each row and column, beside `_int_mm` alone",
    "fp8": "e4m3 to bfloat16, beside `_scaled_mm`",
    "tf32": "float32 read as tf32, beside torch with `allow_tf32`",
    "bias_gelu": "bf16, bias and GELU, beside matmul, `+` and `gelu`; *addmm*: beside `addmm` and `gelu`",
    "bias_residual_relu": "bf16, bias, residual and ReLU, beside matmul, `+`, `+` and `relu`; *addmm*: beside `addmm`, `+` and `relu`",
}
UNITS = {"int8": "int8_wgmma", "int8_scaled": "int8_wgmma", "fp8": "fp8_wgmma", "tf32": "tf32_wgmma"}
MARKS: dict[str, tuple[float, float]] = {
    "bf16": (1.05, 0.90),
    "f16": (1.05, 0.90),
    "int8": (1.4, 1.0),
    "int8_scaled": (1.4, 1.0),
    "fp8": (1.0, 0.85),
    "tf32": (1.0, 0.85),
    "bias_gelu": (1.25, 0.0),
    "bias_residual_relu": (1.25, 0.0),
}
"""Marks to reach: the geometric mean of torch's time over ours, and the least of these."""


LARGE = ((4096, 4096, 4096), (8192, 8192, 8192))
"""Products that have marks of their own."""
MARKS_OF_LARGE = {"bf16": 1.0, "f16": 1.0, "int8": 1.4, "int8_scaled": 1.4, "fp8": 1.0, "tf32": 1.0}
CHAINS = ("bias_gelu", "bias_residual_relu")
BOUNDS_ARE = (
    "Products of 4096³ and 8192³ are to take no longer than torch's. In parentheses: 10th to 90th percentile of the replays, in µs.",
)
MANY_ROWS = 5
"""Numbers of rows of a layer from which on it says what one instance for all costs."""
TABULATED = 1.5
"""Instances that took so many times as long as the best are left out of tuned tables."""


def request_of(row: Mapping[str, Any]) -> GemmRequest:
    """The request that a row is about."""
    request = parse_problem(f"gemm:{row['problem']}")
    assert isinstance(request, GemmRequest)
    return request


def best_of(row: Mapping[str, Any]) -> str:
    """The fastest instance."""
    times: dict[str, Sequence[float]] = row["times_us"]
    return min(times, key=lambda name: times[name][0])


def ratio_of(row: Mapping[str, Any]) -> float | None:
    """torch's time over that of the fastest instance."""
    return row["peer_us"][0] / row["times_us"][best_of(row)][0] if row["peer_us"] and row["times_us"] else None


def _bytes(layout: Layout) -> int:
    return math.prod(layout.shape) * ELEMENTS[layout.type].bytes


def roofs(row: Mapping[str, Any], device: Device) -> tuple[float, float]:
    """Microseconds that arithmetic and memory take at least."""
    request = request_of(row)
    operations = 2.0 * math.prod(request.sizes) * row["batch"]
    moved = sum(_bytes(layout) for layout in (request.a, request.b, request.c))
    moved += _bytes(request.c) if request.residual is not None else 0
    rate = operation_rate(device, UNITS.get(row["kind"], "f16_wgmma")).value
    return operations / rate * 1e6, moved / memory_bandwidth(device) * 1e6


def model_picks(rows: Sequence[Mapping[str, Any]], specs: Mapping[str, KernelSpec], device: Device) -> dict[str, str]:
    """By problem, the instance that the model takes among those that were measured: it has seen none of these times."""
    work = cost_model_of("gemm").work
    picks = {}
    for row in rows:
        request = request_of(row)
        estimates = {}
        for name in row["trials_us"]:
            option = fitted_option(specs, name, request, device)
            if option is not None:
                estimates[name] = model_seconds(work(*option), device)
        if estimates:
            picks[row["problem"]] = min(estimates, key=lambda name: estimates[name])
    return picks


def fitted_option(specs: Mapping[str, KernelSpec], name: str, request: GemmRequest, device: Device) -> tuple[Any, dict[str, int]] | None:
    """The plan of an instance for a request, and its dimensions; None if it is gone or does not fit any more."""
    from gemmgen.dispatch.candidates import Candidate

    option = fitted(Candidate(name, specs[name]), request, device.architecture) if name in specs else ""
    return None if isinstance(option, str) else (option[1], set_best(option[1], option[2], device)[0])


def time_of(row: Mapping[str, Any], name: str) -> float:
    """Microseconds of an instance; of one that a trial ruled out, the trial's."""
    return float(row["times_us"][name][0]) if name in row["times_us"] else float(row["trials_us"][name])


def markdown(about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], specs: Mapping[str, KernelSpec], device: Device) -> str:
    """All tables."""
    lines = [
        "# GEMM on Hopper's tensor cores beside cuBLAS",
        "",
        "Device time by CUDA-graph replay, random data, operands rotated beyond the L2, all interleaved in one run with torch, which",
        "computes epilogues eagerly; medians. Every result was first compared on small integers, for equality (with an epilogue: within a",
        "rounding). Ratios are torch's time over ours. *Model*: what the instance that the model alone picks takes longer than the best;",
        "it was calibrated in another run, on every other problem of some. `python -m measurements.tensor_gemm` makes this file.",
        "The peer here is torch's one choice, and for int8 `torch._int_mm`, which passes no workspace and is up to 1.6 times slower than",
        "cuBLASLt: on tuned shapes, these ratios are no claim beside cuBLASLt. [products_h200.md](products_h200.md) is, on drawn shapes.",
        "",
        f"{about['device']}, {about['date']}, SM at {about.get('clocks', 'unknown')} MHz.",
        "",
        "| kind | problems | mean | mark | least | mark | model, mean | model, most |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    picks = {kind: model_picks([row for row in rows if row["kind"] == kind], specs, device) for kind in kinds}
    sections: list[str] = []
    for kind in kinds:
        measured = [row for row in rows if row["kind"] == kind and row["times_us"]]
        ratios = [ratio for row in measured if (ratio := ratio_of(row)) is not None]
        regrets = [
            time_of(row, pick) / row["times_us"][best_of(row)][0] - 1 for row in measured if (pick := picks[kind].get(row["problem"]))
        ]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
        mark, least = MARKS[kind]
        lines.append(
            f"| {kind} | {len(measured)} | {mean:.2f} | {mark:.2f} | {min(ratios, default=math.nan):.2f} | {least or ''} | "
            f"{sum(regrets) / max(len(regrets), 1):.1%} | {max(regrets, default=0.0):.0%} |"
        )
        sections += ["", f"## {TITLES.get(kind, kind)}", ""]
        sections += [
            "| problem | torch µs | ours µs | Top/s | torch / ours | of the roof | instance |",
            "|---|---:|---:|---:|---:|---:|---|",
        ]
        if kind in CHAINS:
            sections[-2:-2] = [*chain_bound(measured, rows), ""]
        for row in measured:
            time, ratio = row["times_us"][best_of(row)][0], ratio_of(row)
            rate = 2 * math.prod(row["shape"]) * row["batch"] / time / 1e6
            peer = f"{row['peer_us'][0]:.1f}" if row["peer_us"] else "refuses"
            sections.append(
                f"| {row['problem']} | {peer} | {time:.1f} | {rate:.0f} | {'' if ratio is None else f'{ratio:.2f}'}{with_addmm(row)} | "
                f"{max(roofs(row, device)) / time:.0%} | {best_of(row)} |"
            )
    bounds = bounds_of(rows, specs, device)
    if bounds:
        lines += ["", "## What bounds the problems below their mark", "", *BOUNDS_ARE, "", *bounds]
    lines += invariance(rows)
    return "\n".join(lines + sections) + "\n"


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def with_addmm(row: Mapping[str, Any]) -> str:
    """The ratio to torch with `addmm`, for a cell."""
    return f" ({row['fused_us'][0] / row['times_us'][best_of(row)][0]:.2f})" if row.get("fused_us") else ""


def chain_bound(measured: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ratio that an epilogue without cost would give, and what `addmm` makes of the comparison."""
    plain = {tuple(row["shape"]): row for row in rows if row["kind"] == "bf16" and row["times_us"] and row["problem"].endswith(",nt,bf16")}
    free = [
        row["peer_us"][0] / plain[shape]["times_us"][best_of(plain[shape])][0]
        for row in measured
        if (shape := tuple(row["shape"])) in plain
    ]
    fused = [row["fused_us"][0] / row["times_us"][best_of(row)][0] for row in measured if row.get("fused_us")]
    return [
        f"In parentheses: beside `addmm`, which adds the bias within the product; {_mean(fused):.2f} as a geometric mean.",
        f"If the epilogue took no time at all, so that these products took as long as plain ones do, the ratio would be {_mean(free):.2f}.",
    ]


def invariance(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cost of one instance for all numbers of rows, by layer."""
    layers: dict[tuple[int, int], dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        m, n, k = row["shape"]
        if row["kind"] == "bf16" and row["problem"].endswith(",nt,bf16") and row["times_us"]:
            layers.setdefault((n, k), {})[m] = row
    lines = []
    for (n, k), by_rows in layers.items():
        names = set.intersection(*(set(row["trials_us"]) for row in by_rows.values()))
        if len(by_rows) < MANY_ROWS or not names:
            continue
        costs = {name: {m: time_of(row, name) / row["times_us"][best_of(row)][0] for m, row in by_rows.items()} for name in names}
        name = min(costs, key=lambda each: _mean(list(costs[each].values())))
        cells = ", ".join(f"{m}: {cost:.2f}" for m, cost in sorted(costs[name].items()))
        lines.append(f"- n {n}, k {k}: `{name}` takes {_mean(list(costs[name].values())):.2f} times as long on average ({cells})")
    if not lines:
        return []
    intro = "One instance for all numbers of rows, beside the best for each, bf16 (rows: times as long as the best):"
    return ["", "## What batch invariance costs", "", intro, "", *lines]


def mark_of(row: Mapping[str, Any]) -> float:
    """The ratio that a problem has to reach by itself."""
    large = row["batch"] == 1 and tuple(row["shape"]) in LARGE
    return MARKS_OF_LARGE.get(row["kind"], 0.0) if large else MARKS[row["kind"]][1]


def spread(figures: Sequence[float]) -> str:
    """10th to 90th percentile of a time, in microseconds."""
    return f"{figures[1]:.1f} to {figures[2]:.1f}"


def chains_below(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """For epilogues whose mean is below its mark: what they add to the plain product, and what torch's chain adds."""
    plain = {tuple(row["shape"]): row for row in rows if row["kind"] == "bf16" and row["times_us"] and row["problem"].endswith(",nt,bf16")}
    chains = {kind: [row for row in rows if row["kind"] == kind and row["times_us"] and row["peer_us"]] for kind in CHAINS}
    means = {kind: _mean([ratio for row in own if (ratio := ratio_of(row))]) for kind, own in chains.items()}
    lines = []
    for kind, own in chains.items():
        pairs = [(row, plain[shape]) for row in own if (shape := tuple(row["shape"])) in plain]
        if not pairs or means[kind] >= MARKS[kind][0]:
            continue
        added = [row["times_us"][best_of(row)][0] - other["times_us"][best_of(other)][0] for row, other in pairs]
        ours = sum(added) / sum(other["times_us"][best_of(other)][0] for _, other in pairs)
        theirs = [row["peer_us"][0] / other["peer_us"][0] for row, other in pairs if other["peer_us"]]
        deep = [ratio for row, _ in pairs if row["shape"][2] > row["shape"][1] and (ratio := ratio_of(row))]
        free = _mean([row["peer_us"][0] / other["times_us"][best_of(other)][0] for row, other in pairs])
        picoseconds = sum(added) * 1e6 / sum(math.prod(row["shape"][:2]) for row, _ in pairs)
        both, taken = _mean([*means.values()]), _mean(theirs)
        lines.append(
            f"- **{kind}**, {means[kind]:.2f} on average ({both:.2f} over both): the epilogue adds {ours:.0%} to the plain products, "
            f"{picoseconds:.2f} ps an element of the result; torch's chain takes {taken:.2f} times as long as its product. With an "
            f"epilogue for nothing the mean would be {free:.2f}; where k exceeds n torch's chain has the least to lose, and the mean is "
            f"{_mean(deep):.2f}."
        )
    return lines


def bounds_of(rows: Sequence[Mapping[str, Any]], specs: Mapping[str, KernelSpec], device: Device) -> list[str]:
    """For each problem below its mark: how far from its roofs it is, and how evenly the best instance's tiles fill the SMs."""
    found = chains_below(rows)
    for row in rows:
        ratio = ratio_of(row)
        if ratio is None or ratio >= mark_of(row):
            continue
        best = best_of(row)
        time = row["times_us"][best][0]
        arithmetic, memory = roofs(row, device)
        text = f"- **{row['kind']} {row['problem']}**, {ratio:.3f}: {time:.1f} µs ({spread(row['times_us'][best])}), "
        text += f"torch {row['peer_us'][0]:.1f} ({spread(row['peer_us'])}). "
        text += f"Arithmetic takes at least {arithmetic:.1f} µs, memory {memory:.1f}."
        option = fitted_option(specs, best, request_of(row), device)
        if option is not None:
            text += " " + shares(option[0], option[1], device)
        found.append(text)
    return found


def shares(plan: Any, dimensions: Mapping[str, int], device: Device) -> str:
    """Distribution of the tiles of an instance to the SMs."""
    m, n = dimensions["m"], dimensions["n"]
    tiles = -(-m // plan.tile_m) * -(-n // plan.tile_n) * dimensions.get("batch", 1) * dimensions.get("slices", plan.slices)
    waves = tiles / device.sm_count
    useful = m * n / (-(-m // plan.tile_m) * plan.tile_m * -(-n // plan.tile_n) * plan.tile_n)
    text = f"Tiles of {plan.tile_m} x {plan.tile_n} make {tiles} pieces of work for {device.sm_count} SMs, {waves:.2f} rounds, "
    return f"{text}{useful:.0%} of them inside C." + (" Both factors are copied first." if plan.copied is not None else "")


def specs_of(paths: Mapping[str, KernelSpec]) -> dict[str, KernelSpec]:
    """Those on tensor cores."""
    return {name: spec for name, spec in paths.items() if isinstance(spec, GemmSpec) and isinstance(spec.mainloop, TensorCoreMainloop)}


def with_rows(table: Table, rows: Sequence[Mapping[str, Any]], specs: Mapping[str, KernelSpec], device: Device) -> Table:
    """The tuned table with what was measured of plain products in place of what it had of these instances."""
    work = cost_model_of("gemm").work
    known = {(row.kind, row.problem): row for row in table.rows}
    for row in rows:
        request = request_of(row)
        if request.epilogue or not row["times_us"]:
            continue
        times, models = {}, {}
        limit = TABULATED * row["times_us"][best_of(row)][0]
        for name in row["trials_us"]:
            if time_of(row, name) > limit:
                continue
            try:
                option = fitted_option(specs, name, request, device)
            except LaunchError:
                continue
            if option is not None:
                base = base_name(specs[name], device.architecture)
                times[base] = round(time_of(row, name), 3)
                models[base] = round(model_seconds(work(*option), device) * 1e6, 3)
        old = known.get(("gemm", request.text))
        peer = round(row["peer_us"][0], 3) if row["peer_us"] else None
        if old is not None:
            times, models, peer = {**old.times, **times}, {**old.models, **models}, peer or old.peer
        known["gemm", request.text] = Row(request.text, "gemm", times, models, peer)
    return Table(table.device, tuple(known.values()), table.origin)
