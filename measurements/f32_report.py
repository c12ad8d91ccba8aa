"""Tables and pictures of float32 by planes, from f32_planes.json and f32_ops.json.

    python -m measurements.f32_report f32_planes.json

writes ``f32_planes.md`` and, where matplotlib is installed, ``f32_error.svg`` and ``f32_speed.svg`` beside it. The pictures have no
background and grey letters, which can be read on light pages and on dark ones.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
GREY = "#808890"
COLOURS = {"cuBLAS": "#d9822b", "FFMA in order of k": "#a05195", "f16x3": "#2f7ed8", "bf16x6": "#2a9d6f"}
PICTURED = ("normal", "uniform positive", "2^±20 by element", "cancelling")
MEASURES = (
    ("largest / Σ|a||b|", 0),
    ("rms / Σ|a||b|", 1),
    ("residual / ‖AB‖", 2),
    ("largest / |AB|", 3),
    ("median / |AB|", 4),
)
MIN_DEPTH = 64
"""k from which on f16x3 and the schemes of bfloat16 use planes."""
TABLED_DEPTHS = (1, 2, 4, 16, 64, 256, 1024, 4096, 16384, 65536)
PEERS = ("FFMA in order of k", "cuBLAS")


def markdown(report: Row) -> str:
    """Speed, then accuracy."""
    lines = [
        "# float32 by planes on tensor cores",
        "",
        "Device time by CUDA-graph replay, splitting included, random data, operands rotated beyond the L2 where they fit in it,",
        "all interleaved in one run with cuBLAS SGEMM (through torch, TF32 off); medians. Every instance's result was first compared",
        "with cuBLAS's on small integers, for equality.",
        f"`python -m measurements.f32_planes` makes this file. {report['device']}, {report['date']}, {report['clocks']}.",
        "",
        "| layout | m×n×k | cuBLAS µs | best µs | TFLOP/s | cuBLAS / best | instance | plain sums |",
        "|---|---|---:|---:|---:|---:|---|---:|",
    ]
    ratios = []
    for row in report["speed"]:
        times, peer = row["times_us"], row["peer"]
        own = [name for name in times if name != peer and "plain" not in name]
        best = min(own, key=lambda name: times[name][0])
        plain = min(times[name][0] for name in times if "plain" in name)
        ratios.append(times[peer][0] / times[best][0])
        rate = 2 * math.prod(row["shape"]) / times[best][0] / 1e6
        shape = "×".join(map(str, row["shape"]))
        figures = f"{times[peer][0]:.1f} | {times[best][0]:.1f} | {rate:.0f} | {ratios[-1]:.2f}"
        lines.append(f"| {row['layout']} | {shape} | {figures} | {best} | {times[peer][0] / plain:.2f} |")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    lines += ["", f"Geometric mean over all: **{mean:.2f}**. `plain sums`: cuBLAS / the fastest without compensation.", ""]
    when = f" Measured on {report['errors_measured']}." if "errors_measured" in report else ""
    lines += ["## Errors", "", f"Over {report['results']} results of each product against float64.{when}", ""]
    lines += [*verdict(report["accuracy"]), ""]
    names = list(report["accuracy"][0]["errors"])
    for title, place in MEASURES:
        lines += [f"### {title}", "", "| data | k | " + " | ".join(names) + " |", "|---|---:|" + "---:|" * len(names)]
        for row in (row for row in report["accuracy"] if row["k"] in TABLED_DEPTHS):
            cells = [f"{row['errors'][name][place]:.1e}" for name in names]
            lines.append(f"| {row['data']} | {row['k']} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def worst_ratio(rows: Sequence[Row], name: str, peer: str, place: int) -> str:
    """The largest ratio of a way's error to that of another, and where it is larger, of which data and k."""

    def ratio(row: Row) -> float:
        own, other = row["errors"][name][place], row["errors"][peer][place]
        return float(own / other) if other else (0.0 if own == 0 else math.inf)

    worst = max(rows, key=ratio)
    where = f" ({worst['data']}, {worst['k']})" if ratio(worst) > 1 else ""
    return f"{ratio(worst):.2f}{where}"


def verdict(accuracy: Sequence[Row]) -> list[str]:
    """Ratios of errors to those of multiply-adds and of cuBLAS, over all rows below ``MIN_DEPTH`` and from there on."""
    depths = sorted({row["k"] for row in accuracy})
    lines = [
        f"The largest ratio of errors over all data, for {len(depths)} values of k from {depths[0]} to {depths[-1]};",
        "1 or less: never larger.",
        "",
        "| errors of | k | largest: over FFMA | over cuBLAS | rms: over FFMA | over cuBLAS |",
        "|---|---|---:|---:|---:|---:|",
    ]
    halves = {
        f"below {MIN_DEPTH}": [row for row in accuracy if row["k"] < MIN_DEPTH],
        f"from {MIN_DEPTH} on": [row for row in accuracy if row["k"] >= MIN_DEPTH],
    }
    for name in accuracy[0]["errors"]:
        for which, rows in halves.items():
            cells = [worst_ratio(rows, name, peer, place) for place in range(2) for peer in PEERS]
            if name not in PEERS and rows:
                lines.append(f"| {name} | {which} | " + " | ".join(cells) + " |")
    limits = [row["errors"]["f16x3"][2] / (2.0**-23 * math.sqrt(row["k"])) for row in accuracy if row["data"] != "cancelling"]
    residual = f"The residual of f16x3 is at most {max(limits):.2f} of 2⁻²³ √k, cancelling data aside, where ‖AB‖ is next to nothing."
    note = [
        "FFMA: multiply-adds in order of k, in one sum. `ops.matmul` takes multiply-adds, too, for products of this size, in up to 66",
        "parts of k; its rows tell nothing of planes.",
    ]
    return [*lines, "", residual, "", *note]


def _styled(axes: Any) -> None:
    axes.set_facecolor("none")
    axes.grid(alpha=0.25, color=GREY)
    axes.tick_params(colors=GREY, which="both")
    for part in (axes.xaxis.label, axes.yaxis.label, axes.title):
        part.set_color(GREY)
    for spine in axes.spines.values():
        spine.set_color(GREY)


def _saved(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, transparent=True, metadata={"Date": None})


def plot(report: Row, directory: Path) -> bool:
    """Errors over k, and speed over n; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "f32"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(PICTURED), figsize=(14, 4), sharey=True)
    for axes, kind in zip(panels, PICTURED, strict=True):
        rows = [row for row in report["accuracy"] if row["data"] == kind]
        for name, colour in COLOURS.items():
            errors = [row["errors"][name][1] for row in rows]
            width = 2.4 if name == "f16x3" else 1.4
            axes.plot([row["k"] for row in rows], errors, label=name, color=colour, linewidth=width, marker="o", markersize=3.5)
        axes.set(xscale="log", yscale="log", title=kind.replace("2^±20", "2$^{±20}$"), xlabel="k")
        axes.set_xscale("log", base=2)
        _styled(axes)
    panels[0].set_ylabel("rms error / Σ|a||b|")
    panels[0].legend(fontsize=8, labelcolor=GREY, facecolor="none", edgecolor=GREY)
    _saved(figure, directory / "f32_error.svg")

    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    for layout, line in (("nt", "-"), ("nn", "--")):
        cubes = [row for row in report["speed"] if row["layout"] == layout and len(set(row["shape"])) == 1]
        sizes = [row["shape"][0] for row in cubes]

        def rates(pick: Any, cubes: Sequence[Row] = cubes) -> list[float]:
            return [2 * row["shape"][0] ** 3 / pick(row) / 1e6 for row in cubes]

        def fastest(row: Row, wanted: str, without: str = "\n") -> float:
            return float(min(time[0] for name, time in row["times_us"].items() if wanted in name and without not in name))

        series = {
            "cuBLAS SGEMM": (COLOURS["cuBLAS"], rates(lambda row: row["times_us"][row["peer"]][0])),
            "f16x3": (COLOURS["f16x3"], rates(lambda row: fastest(row, "f16x3", "plain"))),
            "f16x3, plain sums": ("#8cb8ea", rates(lambda row: fastest(row, "plain"))),
        }
        for name, (colour, values) in series.items():
            axes.plot(
                sizes,
                values,
                line,
                color=colour,
                label=f"{name}, {layout.upper()}",
                linewidth=2 if name == "f16x3" else 1.4,
                marker="o",
                markersize=3.5,
            )
    axes.set(xlabel="m = n = k", ylabel="TFLOP/s, splitting included", xscale="log")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, labelcolor=GREY, facecolor="none", edgecolor=GREY)
    _styled(axes)
    _saved(figure, directory / "f32_speed.svg")
    return True


def write(report: Row, path: Path) -> None:
    """The markdown of that name, and the pictures where they can be made."""
    path.with_suffix(".md").write_text(markdown(report))
    if not plot(report, path.parent):
        print("no pictures: matplotlib is not installed")


if __name__ == "__main__":
    source = Path(sys.argv[1])
    write(json.loads(source.read_text()), source)
