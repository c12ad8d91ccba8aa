"""Report of the measurements of convolutions on Hopper's tensor cores: the tables, and rows for tuned tables.

    python measurements/conv2d_hopper_report.py --table generated/tuned/h200.json

writes conv2d_hopper.md from conv2d_hopper.json anew, and the rows into a table of tuned instances, by which ``gemmgen.ops`` chooses.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gemmgen.core.files import write_atomically
from gemmgen.dispatch.candidates import Candidate
from gemmgen.dispatch.model import model_seconds
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import base_name, choose_by, fitted, set_best
from gemmgen.dispatch.table import Row, Table, read_table, write_table
from gemmgen.hardware.target import Device, match_device
from gemmgen.kernels.conv2d.matcher import Conv2dRequest, complete_request
from gemmgen.kernels.conv2d.oracle import RESNET50
from gemmgen.kernels.conv2d.spec import Input
from gemmgen.kernels.epilogue.operations import Relu
from gemmgen.kernels.spec_files import load_spec
from gemmgen.perf.cost_model import cost_model_of

HERE = Path(__file__).resolve().parent
SPECS = HERE.parent / "specs" / "conv2d" / "hopper"
COPY_BYTES = 4.30e12
"""Device memory of an H200, read and written, measured."""
RATES = {"s8": 1933e12, "f16": 946e12}
"""``wgmma`` on operands that stay in shared memory, measured on an H200."""
ROUNDS = 7
TABULATED = 2.0
"""Instances that took so many times as long as the best are left out of tuned tables."""


@dataclass(frozen=True)
class Layer:
    """A convolution but for its type and the number of images."""

    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    dilation: int = 1

    @property
    def sizes(self) -> dict[str, int]:
        """The dimensions that are given; the others follow."""
        return {
            "c": self.c,
            "h": self.h,
            "w": self.w,
            "k": self.k,
            "r": self.r,
            "s": self.s,
            "stride_h": self.stride,
            "stride_w": self.stride,
            "padding_h": self.padding[0],
            "padding_w": self.padding[1],
            "dilation_h": self.dilation,
            "dilation_w": self.dilation,
        }

    @property
    def cells(self) -> str:
        """The columns of a table."""
        image = str(self.h) if self.h == self.w else f"{self.h} x {self.w}"
        more = f", dilation {self.dilation}" if self.dilation > 1 else ""
        return f"{self.c} | {image} | {self.k} | {self.r} x {self.s}{more} | {self.stride}"


def square(c: int, h: int, k: int, r: int, stride: int) -> Layer:
    """A layer on square images with a square filter, padded by half of it."""
    return Layer(c, h, h, k, r, r, stride, (r // 2, r // 2))


RESNET = tuple(square(*layer) for layer in RESNET50)
LARGE = (square(128, 56, 256, 3, 1), square(320, 80, 320, 3, 1), square(64, 112, 64, 3, 1))
UNUSUAL = (
    Layer(64, 56, 56, 64, 3, 3, padding=(2, 2), dilation=2),
    Layer(96, 27, 27, 96, 5, 5, padding=(2, 2)),
    Layer(128, 17, 17, 192, 1, 7, padding=(0, 3)),
    Layer(128, 17, 17, 192, 7, 1, padding=(3, 0)),
    Layer(48, 33, 47, 80, 3, 3, stride=2, padding=(1, 1)),
    Layer(192, 35, 35, 64, 1, 1),
)
CONTESTS: tuple[tuple[str, int, tuple[Layer, ...]], ...] = (
    ("s8", 128, RESNET),
    ("s8", 16, RESNET),
    ("s8", 1, RESNET),
    ("s8", 64, LARGE),
    ("f16", 128, RESNET),
    ("s8", 64, UNUSUAL),
    ("s8", 3, UNUSUAL),
    ("s8", 1, UNUSUAL),
)


@dataclass
class Result:
    """One layer: microseconds by contestant."""

    type: str
    n: int
    layer: Layer
    floor_us: float
    bound: str
    times: dict[str, float] = field(default_factory=dict)
    chosen: str = ""
    """The instance that ``gemmgen.ops`` takes."""
    peer: str = ""
    """cuDNN's fastest way; empty if it computes no such layer."""
    peer_us: float = math.nan
    trials: dict[str, float] = field(default_factory=dict)
    """Microseconds of all its ways in the trial."""
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> str:
        return min(self.times, key=lambda name: self.times[name])

    @property
    def ours(self) -> float:
        """Time of the kernel that ``gemmgen.ops`` chooses."""
        return self.times[self.chosen]

    @property
    def ratio(self) -> float:
        """cuDNN's time by ours."""
        return self.peer_us / self.ours


def geometric_mean(values: Sequence[float]) -> float:
    """Mean of ratios."""
    return math.exp(sum(map(math.log, values)) / len(values))


def markdown(results: Sequence[Result], environment: Mapping[str, str]) -> str:
    """The tables."""
    lines = [
        "# Convolution on `wgmma` beside cuDNN",
        "",
        f"{', '.join(environment.values())}. Microseconds of device time, medians over {ROUNDS} rounds of graphs in turns, on tensors "
        "beyond the L2 (of one image within it); activations in NHWC, bias and ReLU in the same kernel. `ours`: the instance that `ops` "
        "takes; `fastest`: that of all instances, where it is another. cuDNN: the fastest of its algorithms in NHWC and NCHW32, for "
        "float16 through torch too. `share`: of the roof that binds, 4.30 TB/s or 1933 TOP/s (946 TFLOP/s for float16). "
        "`python -m measurements.conv2d_hopper` measures it. [Where the time of 1 x 1 layers goes](conv2d_pointwise.md).",
    ]
    for kind, n, layers in CONTESTS:
        rows = [result for result in results if (result.type, result.n) == (kind, n) and result.layer in layers]
        ratios = [row.ratio for row in rows if row.peer]
        if not rows:
            continue
        regret = geometric_mean([row.ours / row.times[row.best] for row in rows])
        title = {RESNET: "ResNet-50", LARGE: "large layers", UNUSUAL: "unusual layers"}[layers]
        said = f"cuDNN's time by ours: geometric mean {geometric_mean(ratios):.2f}, least {min(ratios):.2f}. " if ratios else ""
        lines += [
            "",
            f"## {kind}, batch {n}, {title}",
            "",
            f"{said}The choice of `ops` costs {100 * (regret - 1):.0f}% more than the fastest.",
            "",
            "| c | h = w | k | filter | stride | ours | instance | cuDNN | ratio | bound | share | fastest |",
            "|--:|--:|--:|:-:|--:|--:|---|--:|--:|---|--:|---|",
        ]
        for row in rows:
            fastest = "" if row.best == row.chosen else f"{row.times[row.best]:.2f} {row.best}"
            peer = f"{row.peer_us:.2f} | **{row.ratio:.2f}**" if row.peer else "none |"
            lines.append(
                f"| {row.layer.cells} | {row.ours:.2f} | {row.chosen} | {peer} | {row.bound} | {100 * row.floor_us / row.ours:.0f}% "
                f"| {fastest} |"
            )
    return "\n".join(lines) + "\n"


def request_of(row: Result) -> Conv2dRequest:
    """The request that a call of ``gemmgen.ops`` makes."""
    of = Input(type=row.type, layout="nhwc")
    problem = complete_request(of, "nhwc", {"n": row.n, **row.layer.sizes})
    return Conv2dRequest(tuple(problem.items()), row.type, "nhwc", "f32", alpha=row.type == "s8", activation=Relu(op="relu"), input=of)


def choose_all(results: Sequence[Result], table: Table | None, device: Device) -> None:
    """Notes for every layer which instance ``gemmgen.ops`` takes by a table of tuned instances."""
    for row in results:
        row.chosen = choose_by(table, request_of(row), device).chosen.candidate.label.rpartition("/")[2]


def with_rows(table: Table, results: Sequence[Result], device: Device) -> Table:
    """The table with the new times in place of the old ones of these instances; layers that differ along rows and columns have
    no text."""
    specs = {path.stem: load_spec(path) for path in sorted(SPECS.glob("*.yaml"))}
    work = cost_model_of("conv2d").work
    ours = {base_name(spec, device.architecture) for spec in specs.values()}
    known = {(row.kind, row.problem): row for row in table.rows}
    for result in results:
        text = request_of(result).text
        request = parse_problem(f"conv2d:{text}")
        if dict(request.problem) != dict(request_of(result).problem):
            continue
        times, models = {}, {}
        for name, time in result.times.items():
            option = fitted(Candidate(name, specs[name]), request, device.architecture) if name in specs else ""
            if isinstance(option, str) or time > TABULATED * result.times[result.best]:
                continue
            base = base_name(specs[name], device.architecture)
            times[base] = round(time, 3)
            models[base] = round(model_seconds(work(option[1], set_best(option[1], option[2], device)[0]), device) * 1e6, 3)
        old = known.get(("conv2d", text))
        if old is not None:
            times = {name: time for name, time in old.times.items() if name not in ours} | times
            models = {name: time for name, time in old.models.items() if name not in ours} | models
        peer = round(result.peer_us, 3) if result.peer else None
        known["conv2d", text] = Row(text, "conv2d", times, models, peer)
    return Table(table.device, tuple(known.values()), table.origin)


def read_results(path: Path) -> tuple[list[Result], dict[str, str]]:
    """Measured times, and the environment."""
    data = json.loads(path.read_text())
    results = []
    for fields in data["results"]:
        layer = {name: tuple(value) if isinstance(value, list) else value for name, value in fields["layer"].items()}
        results.append(Result(**{**fields, "layer": Layer(**layer)}))
    return results, data["environment"]


def main() -> None:
    """Writes the page anew, and rows into a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=HERE / "conv2d_hopper.json")
    parser.add_argument("--out", type=Path, default=HERE / "conv2d_hopper.md")
    parser.add_argument("--table", type=Path, help="a table of tuned instances that takes over the new times")
    options = parser.parse_args()
    results, environment = read_results(options.results)
    device = match_device(environment["device"], int(environment["sms"].split()[0]))
    assert device is not None
    if options.table is not None:
        table = with_rows(read_table(options.table), results, device)
        write_table(table, options.table)
        choose_all(results, table, device)
    write_atomically(options.out, markdown(results, environment).encode())


if __name__ == "__main__":
    main()
