"""Measured candidates: the ready-made steps of the series, the family's choice, and variants around it.

Every variant is a spec, and its name says how it differs; this is the place to add one.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmgen import api
from gemmgen.core.errors import GemmgenError
from gemmgen.kernels.reduction.plan import ReductionPlan
from gemmgen.kernels.reduction.spec import SERIES
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.nvrtc import Binary

Spec = Mapping[str, Any]
SPECS = Path(__file__).resolve().parent.parent / "specs" / "reduction"
EXPONENTS = range(10, 31, 2)
MULTIPROCESSORS = 132
THREADS_PER_SM = 2048
RULE = "rule"
"""The name of the spec that leaves all choices to the family's rule."""


@dataclass(frozen=True)
class Axis:
    """A matrix of ``rows`` x ``columns``, summed along one axis."""

    rows: int
    columns: int
    axis: int

    @property
    def name(self) -> str:
        return f"{_power(self.rows)}x{_power(self.columns)} axis {self.axis}"


AXES = tuple(
    Axis(rows, columns, axis)
    for rows, columns in ((1 << 20, 1 << 10), (1 << 10, 1 << 20), (1 << 16, 1 << 7), (1 << 24, 1 << 5))
    for axis in (0, 1)
)


def _power(value: int) -> str:
    return f"2^{value.bit_length() - 1}"


def sum_specs(exponent: int, sweep: bool) -> dict[str, Spec]:
    """The specs for a sum of 2**exponent floats, by name."""
    size = 1 << exponent
    specs: dict[str, Spec] = {f"s{number} {name}": _sum(name) for number, name in enumerate(SERIES)}
    specs[RULE] = _sum("streaming", size, early_launch=True)
    specs["rule, no early launch"] = _sum("streaming", size)
    if sweep:
        for finish in ("last_block", "two_pass"):
            specs[f"rule, {finish}"] = _sum("streaming", size, early_launch=True, finish=finish)
        specs |= _large(size) if exponent >= 23 else _small(size)
    return specs


def _small(size: int) -> dict[str, Spec]:
    """All loads in flight at once, in as many blocks as that takes."""
    specs: dict[str, Spec] = {}
    for threads in (64, 128, 256, 512, 1024):
        for unroll in (1, 2, 4, 8):
            blocks = size // (4 * threads * unroll)
            per_sm = -(-blocks // MULTIPROCESSORS)
            if blocks >= 1 and per_sm * threads <= THREADS_PER_SM and per_sm <= 8 and (blocks > 1 or threads * unroll * 4 == size):
                name = f"{threads}x{unroll}, {blocks} blocks"
                specs[name] = _sum("streaming", size, early_launch=True, threads=threads, unroll=unroll, blocks_per_sm=per_sm)
    return specs


def _large(size: int) -> dict[str, Spec]:
    """A grid that fills the device once or several times, and turns of it."""
    specs: dict[str, Spec] = {}
    for threads, per_sm in ((256, 8), (512, 1), (512, 2), (512, 3), (512, 4), (1024, 1), (1024, 2)):
        for unroll in (4, 8):
            for waves in (1, 2, 7):
                if threads * per_sm * unroll <= 8192:
                    name = f"{threads}x{unroll}, {per_sm} an SM{f', {waves} waves' if waves > 1 else ''}"
                    fields = {"threads": threads, "unroll": unroll, "blocks_per_sm": per_sm, "waves": waves}
                    specs[name] = _sum("streaming", size, early_launch=True, **fields)
    return specs


def _sum(strategy: str, size: int | None = None, **fields: Any) -> Spec:
    spec: dict[str, Any] = {"kind": "reduction", "operation": "sum", "strategy": {"name": strategy, **fields}}
    if strategy == "streaming":
        spec |= {"alignment": 4, "architecture": "sm_90"}
    return spec if size is None else {**spec, "typical": {"reduced": size}}


def axis_specs(axis: Axis, sweep: bool) -> dict[str, Spec]:
    """The specs for a sum along one axis, by name."""
    along_rows = axis.axis == 1
    lines, reduced = (axis.rows, axis.columns) if along_rows else (axis.columns, axis.rows)
    typical = {"outer": lines, "reduced": reduced} if along_rows else {"reduced": reduced, "inner": lines}
    common = {
        "kind": "reduction",
        "operation": "sum",
        "architecture": "sm_90",
        "alignment": 4,
        "typical": typical,
        "shape": "rows" if along_rows else "columns",
    }
    specs: dict[str, Spec] = {RULE: common}
    if sweep:
        variants = _row_variants(reduced) if along_rows else _column_variants(lines)
        specs |= {name: {**common, "strategy": strategy} for name, strategy in variants.items()}
    return specs


def _row_variants(reduced: int) -> dict[str, Spec]:
    variants: dict[str, Spec] = {}
    if reduced <= 1 << 12:
        for lanes in (4, 8, 16, 32):
            if lanes * 4 <= reduced:
                per_lane = reduced // (4 * lanes)
                for rows in (1, 2, 4, 8):
                    for threads in (128, 256):
                        unroll = min(per_lane, 8)
                        if rows * unroll <= 8:
                            fields = {"lanes": lanes, "rows": rows, "threads": threads, "unroll": unroll}
                            variants[f"{lanes} lanes x {rows} rows, {threads}x{unroll}"] = {"name": "row_lanes", **fields}
    if reduced >= 1 << 10:
        for threads, unroll, blocks in (
            (128, 2, 1),
            (256, 1, 1),
            (256, 4, 1),
            (256, 8, 1),
            (512, 4, 1),
            (512, 8, 1),
            (1024, 4, 1),
            (256, 4, 4),
            (256, 8, 4),
            (512, 4, 2),
            (512, 4, 4),
            (512, 4, 8),
            (512, 8, 4),
            (512, 4, 16),
            (1024, 4, 4),
        ):
            if threads * unroll * blocks * 4 <= reduced:
                fields = {"threads": threads, "unroll": unroll, "blocks_per_row": blocks}
                variants[f"{blocks} blocks a row, {threads}x{unroll}"] = {"name": "row_blocks", **fields}
    return variants


def _column_variants(columns: int) -> dict[str, Spec]:
    variants: dict[str, Spec] = {}
    for lanes in (8, 16, 32, 64, 128, 256):
        if lanes * 4 > columns:
            continue
        tiles = columns // (4 * lanes)
        for threads, unroll in ((256, 4), (256, 8), (512, 4), (512, 8), (1024, 4)):
            if threads < lanes:
                continue
            for blocks_per_sm in (1, 2, 4):
                splits = max(1, blocks_per_sm * MULTIPROCESSORS // tiles)
                if threads * blocks_per_sm <= THREADS_PER_SM and (splits > 1 or blocks_per_sm == 1):
                    name = f"{lanes} lanes, {threads}x{unroll}, {splits} splits"
                    variants[name] = {"name": "column_tiles", "lanes": lanes, "threads": threads, "unroll": unroll, "splits": splits}
    return variants


@dataclass(frozen=True)
class Instance:
    """A compiled spec."""

    spec: Spec
    plan: ReductionPlan
    binary: Binary


def compile_specs(specs: Mapping[Any, Spec], architecture: str) -> dict[Any, Instance]:
    """Instances of all specs, compiled in parallel; one that cannot be is left out, and said so."""

    def compiled(spec: Spec) -> Instance | str:
        try:
            plan = api.plan(spec, architecture)
            assert isinstance(plan, ReductionPlan)
            return Instance(spec, plan, compile_plan(plan))
        except GemmgenError as error:
            return str(error)

    with ThreadPoolExecutor() as pool:
        made = dict(zip(specs, pool.map(compiled, specs.values()), strict=True))
    for name, instance in made.items():
        if isinstance(instance, str):
            print(f"{name}: {instance}")
    return {name: instance for name, instance in made.items() if isinstance(instance, Instance)}
