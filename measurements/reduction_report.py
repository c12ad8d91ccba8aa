"""Tables and the plot of ``reduction.py``, from the JSON that it writes.

    python measurements/reduction_report.py measurements/reduction.json

writes ``reduction.md`` and, where matplotlib is installed, ``reduction.svg`` beside it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmgen.core.files import write_atomically

Row = Mapping[str, Any]
PEERS = ("CUB", "torch")
READ_BYTES = 4.55e12
"""Device memory of an H200, read only, measured."""


def timing(result: Row, name: str) -> Row | None:
    """One contestant of a problem."""
    return next((row for row in result["timings"] if row["name"] == name), None)


def best(result: Row) -> Row:
    """The fastest of our own, the series aside."""
    own = [row for row in result["timings"] if row["name"] not in PEERS and not is_series(row["name"])]
    return min(own, key=lambda row: float(row["median_us"]))


def is_series(name: str) -> bool:
    """True of one of the eight steps."""
    return len(name) > 2 and name[0] == "s" and name[1].isdigit() and name[2] == " "


def verdict(own: Row, peer: Row) -> str:
    """Speed of the first over the second; a tie if the medians differ by no more than the larger spread."""
    spread = max(row["p90_us"] - row["p10_us"] for row in (own, peer))
    factor = peer["median_us"] / own["median_us"]
    return f"{factor:.2f}x{' tie' if abs(peer['median_us'] - own['median_us']) <= spread else ''}"


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of factors."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def us(row: Row | None) -> str:
    """A time with its spread."""
    return "-" if row is None else f"{row['median_us']:.2f} ±{(row['p90_us'] - row['p10_us']) / 2:.2f}"


def sum_table(results: Sequence[Row]) -> Iterator[str]:
    """One line a size."""
    yield "| n | rule µs | best of all µs | which | CUB µs | torch µs | rule/CUB | best/CUB | rule/torch | rule TB/s |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for result in results:
        rule, cub, torch, first = timing(result, "rule"), timing(result, "CUB"), timing(result, "torch"), best(result)
        assert rule and cub and torch
        copies = "" if result["cold"] else " (in L2)"
        yield (
            f"| 2^{result['exponent']}{copies} | {us(rule)} | {us(first)} | {first['name']} | {us(cub)} | {us(torch)} | "
            f"{verdict(rule, cub)} | {verdict(first, cub)} | {verdict(rule, torch)} | {rule['tbps']:.3f} |"
        )


def axis_table(results: Sequence[Row]) -> Iterator[str]:
    """One line a matrix and axis."""
    yield "| matrix | rule µs | best of all µs | which | torch µs | rule/torch | best/torch | best TB/s |"
    yield "|---|---|---|---|---|---|---|---|"
    for result in results:
        rule, torch, first = timing(result, "rule"), timing(result, "torch"), best(result)
        assert rule and torch
        yield (
            f"| {result['axis']} | {us(rule)} | {us(first)} | {first['name']} | {us(torch)} | {verdict(rule, torch)} | "
            f"{verdict(first, torch)} | {first['tbps']:.3f} |"
        )


def series_table(results: Sequence[Row]) -> Iterator[str]:
    """The nine strategies beside CUB and torch, in microseconds."""
    names = [row["name"] for row in results[0]["timings"] if is_series(row["name"])] + ["rule", "CUB", "torch"]
    yield f"| n | {' | '.join(names)} |"
    yield f"|---|{'---|' * len(names)}"
    for result in results:
        rows = [timing(result, name) for name in names]
        yield f"| 2^{result['exponent']} | {' | '.join('-' if row is None else format(row['median_us'], '.2f') for row in rows)} |"


def sweep_table(results: Sequence[Row], label: str) -> Iterator[str]:
    """The fastest variants of each problem."""
    yield f"| {label} | fastest variants, µs |"
    yield "|---|---|"
    for result in results:
        own = [row for row in result["timings"] if row["name"] not in PEERS and not is_series(row["name"])]
        ranked = sorted(own, key=lambda row: float(row["median_us"]))[:8]
        name = result.get("axis") or f"2^{result['exponent']}"
        shown = [f"{row['name']}: {row['median_us']:.2f}" for row in ranked]
        yield f"| {name} | {'; '.join(shown)} |"


def summary_lines(report: Row) -> list[str]:
    """Summary to read first."""
    lines = [*sum_table(report["sums"]), ""]
    middle = [result for result in report["sums"] if 16 <= result["exponent"] <= 22]
    own = ("rule", "rule, no early launch")
    for label, pick in (*((name, lambda result, name=name: timing(result, name)) for name in own), ("best", best)):
        factors = [timing(result, "CUB")["median_us"] / pick(result)["median_us"] for result in middle]  # type: ignore[index]
        lines.append(f"- geometric mean over 2^16 .. 2^22, {label} over CUB: {geometric_mean(factors):.3f}x")
    lines += ["", *axis_table(report["axes"])]
    wrong = [
        f"{result.get('axis') or result['exponent']} {row['name']}: error {row['error']:.3g} of its bound, repeats: {row['repeats']}"
        for result in (*report["sums"], *report["resident"], *report["axes"])
        for row in result["timings"]
        if row["error"] is not None and (row["error"] > 1 or not row["repeats"])
    ]
    return [*lines, *(f"WRONG {line}" for line in wrong)]


def markdown(report: Row) -> str:
    """The whole report."""
    clocks, verification = report["clocks"], report["verification"]
    failed = [spec for spec in verification["specs"] if spec["failures"]]
    lines = [
        "# Reductions, measured",
        "",
        f"{report['device']}, driver {report['driver']}, torch {report['torch']}, {report['date']}; SM clock {clocks['sm_lowest']} to "
        f"{clocks['sm_highest']} MHz. Device time of one launch: graphs of many launches, replayed in turns, medians with half the "
        "distance from the 10th to the 90th percentile. Inputs are random and rotate through more than twice the L2 where a graph's "
        "launches reach that far. `rule` is the family's choice for the size. A tie differs by no more than the spread.",
        "",
        f"{len(verification['specs'])} specs verified on this GPU, {sum(spec['cases'] for spec in verification['specs'])} cases, "
        f"{len(failed)} specs with failures.",
        "",
        "## Sum of everything, float32",
        "",
        *summary_lines({**report, "axes": report["axes"]}),
        "",
        "## The series",
        "",
        *series_table(report["sums"]),
        "",
        "## Inputs that stay in the L2",
        "",
        *(sum_table(report["resident"]) if report["resident"] else ()),
        "",
        "## Variants",
        "",
        *sweep_table(report["sums"], "n"),
        "",
        *sweep_table(report["axes"], "matrix"),
        "",
    ]
    return "\n".join(lines)


def plot(report: Row, path: Path) -> bool:
    """Time and bandwidth over size; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "reduction"
    from matplotlib import pyplot

    results = report["sums"]
    sizes = [2 ** result["exponent"] for result in results]
    names = [row["name"] for row in results[0]["timings"] if is_series(row["name"])] + ["rule", "CUB", "torch"]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5.5))
    colours = pyplot.get_cmap("viridis")
    for number, name in enumerate(names):
        rows = [timing(result, name) for result in results]
        own = name not in PEERS
        style = {"color": colours(number / 9)} if own else {"color": "crimson" if name == "CUB" else "darkorange", "linestyle": "--"}
        style |= {"linewidth": 2.5 if name == "rule" else 1.3, "marker": "o", "markersize": 3.5}
        label = "s8 streaming, as the rule chooses" if name == "rule" else name
        left.plot(sizes, [row["median_us"] if row else math.nan for row in rows], label=label, **style)
        right.plot(sizes, [row["tbps"] if row else math.nan for row in rows], **style)
    right.axhline(READ_BYTES * 1e-12, color="grey", linewidth=0.8)
    right.text(sizes[0], READ_BYTES * 1e-12 * 1.01, "device memory, read only", color="grey", fontsize=8)
    for axes, label in ((left, "time, µs"), (right, "bandwidth, TB/s")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("elements")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    left.set_yscale("log")
    left.legend(fontsize=8)
    figure.suptitle(f"Sum of float32 on {report['device']}, {report['date'][:10]}")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    return True


def write(report: Row, directory: Path) -> None:
    """The markdown, and the plot where it can be made."""
    write_atomically(directory / "reduction.md", markdown(report))
    if not plot(report, directory / "reduction.svg"):
        print("no plot: matplotlib is not installed")


if __name__ == "__main__":
    source = Path(sys.argv[1])
    write(json.loads(source.read_text()), source.parent)
