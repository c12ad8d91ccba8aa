"""Costs of many warps at once: against the rule for one warp, and against hardware counters."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmgen.emulator.counters.costs import copy_costs, global_costs, rows_of_warps, shared_costs
from gemmgen.hardware.shared_memory import shared_access_cost
from measurements import copy_wavefronts as copy_wavefronts_program

MEASURED = json.loads((Path(__file__).parents[2] / "data" / "shared_memory_wavefronts_h200.json").read_text())


def test_reproduces_every_measured_pattern() -> None:
    def shape(pattern):
        return pattern["width"], pattern["store"]

    for (width, store), group in groupby(sorted(MEASURED, key=shape), shape):
        patterns = list(group)
        costs = shared_costs(np.array([pattern["offsets"] for pattern in patterns]), width, pairs=not store)
        got = list(zip(costs.wavefronts.tolist(), costs.conflicts.tolist(), strict=True))
        assert got == [(pattern["wavefronts"], pattern["conflicts"]) for pattern in patterns]


DATA = Path(__file__).parents[2] / "data"
COPIES = json.loads((DATA / "async_copy_wavefronts_h200.json").read_text())
BOTH_RANDOM = "rand2_ rand4_"


def copy_wavefronts(pattern) -> int:
    """Wavefronts as the profiler counts these patterns, whose condition is in P0."""
    taken, width = np.array([pattern["bytes"]]), pattern["width"]
    sources, destinations = (np.where(taken >= 0, pattern[side], -1) for side in ("source", "destination"))
    costs = copy_costs(
        sources, destinations, taken == 0, width, pattern.get("form", "sized"), pattern["mode"] == "cg", first_predicate=True
    )
    return int(costs.wavefronts[0])


@pytest.mark.parametrize(("mode", "count"), [("ca", 137), ("cg", 47)])
def test_reproduces_every_measured_copy_with_a_regular_side(mode: str, count: int) -> None:
    regular = [p for p in COPIES if p["mode"] == mode and not p["name"].startswith(tuple(BOTH_RANDOM.split()))]
    assert len(regular) == count
    assert [copy_wavefronts(pattern) for pattern in regular] == [pattern["wavefronts"] for pattern in regular]


@pytest.mark.parametrize("form", list(copy_wavefronts_program.FORMS))
def test_reproduces_every_measured_form_of_a_copy(form: str) -> None:
    listed = list(copy_wavefronts_program.patterns())
    measured = json.loads((DATA / "copy_wavefronts_h200.json").read_text())["wavefronts"]
    of_form = [(pattern, count) for pattern, count in zip(listed, measured, strict=True) if pattern["form"] == form]
    assert len(of_form) == {"whole": 30, "chosen": 174, "sized": 174}[form]
    assert [copy_wavefronts(pattern) for pattern, _ in of_form] == [count for _, count in of_form]


@pytest.mark.parametrize(("mode", "exact", "least"), [("ca", 10, 0.75), ("cg", 0, 0.89)])
def test_is_a_little_low_where_both_sides_are_random(mode: str, exact: int, least: float) -> None:
    random = [p for p in COPIES if p["mode"] == mode and p["name"].startswith(tuple(BOTH_RANDOM.split()))]
    ratios = [copy_wavefronts(pattern) / pattern["wavefronts"] for pattern in random]
    assert least <= min(ratios) and max(ratios) <= 1 and ratios.count(1) == exact


ROWS_OF_64 = np.arange(32)[None] % 16 * 4
"""Sixteen words to a row."""


@pytest.mark.parametrize(("apart", "wavefronts"), [(64, 2), (128, 3), (5088, 3)])
def test_a_lane_waits_behind_another_of_its_source_bank(apart: int, wavefronts: int) -> None:
    """Rows that a GEMM transposes into columns 272 bytes apart, as H200 counted them in whole kernels: half of a row's lanes meet in each
    bank of the destination, and rows that begin in one bank hold each other up."""
    lanes = np.arange(32)[None]
    sources, destinations = ROWS_OF_64 + lanes // 16 * apart, lanes % 16 * 272 + lanes // 16 * 4
    assert copy_costs(sources, destinations, lanes < 0, 4, "whole").wavefronts[0] == wavefronts


@pytest.mark.parametrize(
    ("form", "filled", "wavefronts"),
    [
        ("whole", 0, 8),
        ("chosen", 0, 8),
        ("sized", 0, 12),
        ("sized", 32, 4),
        ("chosen", 32, 4),
        ("sized", 16, 8),
        ("chosen", 16, 8),
    ],
)
def test_lanes_that_fill_with_zeros_bring_no_arrivals(form, filled: int, wavefronts: int) -> None:
    """Rows of 64 bytes 192 apart, as H200 counted them in kernels of mma.sync: eight arrivals, four rows of all banks."""
    lanes = np.arange(32)[None]
    sources = lanes // 4 * 192 + lanes % 4 * 16
    assert copy_costs(sources, lanes * 16, lanes < filled, 16, form, True).wavefronts[0] == wavefronts


@st.composite
def accesses(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    width = draw(st.sampled_from([1, 2, 4, 8, 16]))
    slots = draw(st.sampled_from([4, 16, 64, 1024]))
    lane = st.integers(-1, slots - 1).map(lambda slot: slot * width if slot >= 0 else -1)
    free = st.lists(lane, min_size=32, max_size=32)
    paired = st.tuples(free, st.sampled_from([1, 2])).map(lambda given: [given[0][i & ~given[1]] for i in range(32)])
    return width, draw(st.lists(st.one_of(free, paired), min_size=1, max_size=4))


@settings(max_examples=200, deadline=None)
@given(accesses(), st.booleans())
def test_agrees_with_the_rule_for_one_warp(access: tuple[int, list[list[int]]], store: bool) -> None:
    width, warps = access
    costs = shared_costs(np.array(warps), width, pairs=not store)
    for warp, offsets in enumerate(warps):
        cost = shared_access_cost(offsets, width, store=store)
        assert (costs.wavefronts[warp], costs.conflicts[warp]) == (cost.wavefronts, cost.conflicts)
        assert costs.ideal[warp] <= costs.wavefronts[warp]


def test_conflict_free_is_not_ideal() -> None:
    """Eight distinct float4 side by side: four groups without a conflict, where two wavefronts would do."""
    lanes = np.arange(32)
    plain = shared_costs((16 * (lanes % 8))[None], 16, pairs=True)
    z_order = shared_costs((16 * ((lanes >> 1) & 7))[None], 16, pairs=True)
    assert (plain.wavefronts[0], plain.conflicts[0], plain.ideal[0]) == (4, 0, 2)
    assert (z_order.wavefronts[0], z_order.conflicts[0], z_order.ideal[0]) == (2, 0, 2)


@pytest.mark.parametrize(
    ("width", "stride", "active", "sectors", "ideal"),
    [
        (4, 4, 32, 4, 4),
        (16, 16, 32, 16, 16),
        (4, 128, 32, 32, 4),
        (4, 0, 32, 1, 1),
        (16, 64, 32, 32, 16),
        (1, 1, 32, 1, 1),
        (8, 8, 5, 2, 2),
        (32, 32, 32, 32, 32),
    ],
)
def test_sectors_are_distinct_pieces_of_32_bytes(width: int, stride: int, active: int, sectors: int, ideal: int) -> None:
    lanes = np.arange(32)
    addresses = np.where(lanes < active, 0x7F00_0000_0000 + lanes * stride, -1)
    costs = global_costs(addresses[None], width)
    assert (costs.sectors[0], costs.ideal[0]) == (sectors, ideal)


def test_a_misplaced_row_touches_one_more_sector() -> None:
    assert global_costs((4 + 4 * np.arange(32))[None], 4).sectors[0] == 5


def test_only_warps_that_take_part_have_a_row() -> None:
    lanes = np.array([1, 5, 64, 95])
    matrix = rows_of_warps(lanes, lanes.astype(np.uint32) * 4)
    assert matrix.shape == (2, 32)
    assert {(int(row), int(column)) for row, column in np.argwhere(matrix >= 0)} == {(0, 1), (0, 5), (1, 0), (1, 31)}
    assert rows_of_warps(None, np.arange(96, dtype=np.uint64)).shape == (3, 32)
