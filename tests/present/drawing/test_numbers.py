"""The numbers in pictures are those of the plan and of the emulator's counters."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

import gemmgen
from gemmgen.hardware.shared_memory import WARP, shared_access_cost
from gemmgen.kernels.cpu_gemm.plan import CpuGemmPlan
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.simt.loop import TiledLoop
from gemmgen.kernels.gemm.simt.operand import every_load, every_store
from gemmgen.kernels.pictures import BankMaps, Fragments, LaneOrders, Picture, Tree
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.kernels.tiles.indexing import lane_position
from gemmgen.present.drawing import draw
from gemmgen.present.drawing.banks import drawn_maps
from gemmgen.present.explanation import illustration_of
from gemmgen.verification.oracle import oracle_of
from present.drawing.reading import SVG, datum, groups, parse


def plan_of(name: str, *overrides: str) -> KernelPlan:
    return gemmgen.plan(shipped_specs()[name], overrides=overrides)


def pictures_of(plan: KernelPlan) -> list[Picture]:
    return illustration_of(plan.spec.kind).pictures(plan)


def drawn(plan: KernelPlan) -> ElementTree.Element:
    return parse(draw(plan.name, pictures_of(plan)))


def test_tiles_and_stages() -> None:
    plan = plan_of("gemm/simt/swizzled_cp_async")
    assert isinstance(plan, GemmPlan) and isinstance(plan.loop, TiledLoop)
    root = drawn(plan)
    (overview,) = groups(root, "stages")
    assert [datum(overview, name) for name in ("tile-m", "tile-n", "tile-k", "stages")] == [128, 128, 16, 4]
    assert len([rect for rect in overview.iter(f"{SVG}rect") if rect.attrib.get("data-slice") == "a"]) == plan.loop.stages
    levels = {group.attrib["data-level"]: [datum(group, name) for name in ("rows", "columns", "shares")] for group in groups(root, "level")}
    assert levels == {"threadblock-tile": [128, 128, 8], "warp-tile": [64, 32, 32], "thread-tile": [8, 8, 0]}


def test_tiles_of_a_convolution() -> None:
    root = drawn(plan_of("conv2d/mma_sync/int8/pixels_128x128x64"))
    levels = {group.attrib["data-level"]: [datum(group, name) for name in ("rows", "columns")] for group in groups(root, "level")}
    spec = plan_of("conv2d/mma_sync/int8/pixels_128x128x64").spec
    assert levels["threadblock-tile"] == [spec.tile.threadblock.m, spec.tile.threadblock.n]
    assert levels["warp-tile"] == [spec.tile.warp.m, spec.tile.warp.n]
    assert levels[f"instruction-{spec.tile.instruction}"] == [16, 8] if spec.tile.instruction == "m16n8k32" else [8, 8]


def test_fragments_of_the_tensor_cores_are_those_of_the_manual() -> None:
    # PTX ISA, "Matrix Fragments for mma.m16n8k32" with .s8: groupID = lane / 4, threadID_in_group = lane % 4.
    plan = plan_of("conv2d/mma_sync/int8/pixels_128x128x64")
    (fragments,) = (picture for picture in pictures_of(plan) if isinstance(picture, Fragments))
    assert plan.spec.tile.instruction == "m16n8k32" and fragments.a is not None and fragments.b is not None
    for lane in range(WARP):
        group, member = divmod(lane, 4)
        of_a = [(group + 8 * (register % 2), 4 * member + 16 * (register // 2), 1, 4) for register in range(4)]
        assert fragments.a.shares[lane].rectangles == tuple(of_a)
        assert fragments.b.shares[lane].rectangles == tuple((4 * member + 16 * register, group, 4, 1) for register in range(2))
        assert fragments.c.shares[lane].rectangles == ((group, 2 * member, 1, 2), (group + 8, 2 * member, 1, 2))


GEMMS = [
    "simt/swizzled_cp_async",
    "v1_tiled",
    "v3_double_buffer",
    "simt/maxas/256",
    "simt/layouts/tt",
    "simt/half_storage/f16",
    "simt/half_storage/bf16_cp_async",
]


@pytest.mark.parametrize("name", GEMMS)
def test_accesses_add_up_to_those_of_the_plan(name: str) -> None:
    plan = plan_of(f"gemm/{name}")
    assert isinstance(plan, GemmPlan) and isinstance(plan.loop, TiledLoop)
    planned = iter(plan.loop.accesses)
    for operand in (plan.loop.a, plan.loop.b):
        for every, width, store in ((every_store, operand.store_width, True), (every_load, operand.load_width, False)):
            access = next(planned)
            totals = []
            for warp in every(operand):
                costs = [
                    shared_access_cost(offsets + [-1] * (WARP - len(offsets)), width * operand.shared_bytes, store=store)
                    for offsets in warp
                ]
                totals.append((sum(cost.wavefronts for cost in costs), sum(cost.conflicts for cost in costs), len(costs)))
            assert max(totals) == (access.wavefronts, access.conflicts, access.per_step)


def check_places(cells: list[ElementTree.Element]) -> None:
    """From left to right the banks, from top to bottom the lines of 128 bytes."""
    for side, key in (("x", lambda offset: offset % 128), ("y", lambda offset: offset // 128)):
        places = {(key(datum(cell, "offset")), float(cell.attrib[side])) for cell in cells}
        assert len(places) == len({place for place, _ in places}) == len({at for _, at in places})
        assert [at for _, at in sorted(places)] == sorted(at for _, at in places)


WITH_BANKS = [
    "gemm/simt/swizzled_cp_async",
    "gemm/v1_tiled",
    "gemm/simt/epilogues/staged",
    "conv2d/mma_sync/turing/128x128x32",
    "reduction/s2_sequential",
]


@pytest.mark.parametrize("name", WITH_BANKS)
def test_every_lane_stands_where_its_access_goes(name: str) -> None:
    plan = plan_of(name)
    (maps,) = (picture for picture in pictures_of(plan) if isinstance(picture, BankMaps))
    layouts = [(one.access, one.unit, layout) for one in drawn_maps(maps) for layout in one.layouts]
    for group, (access, unit, layout) in zip(groups(drawn(plan), "layout"), layouts, strict=True):
        assert group.attrib["data-access"] == access and group.attrib["data-layout"] == layout.title
        shown = {datum(cell, "offset"): cell.attrib["data-lanes"] for cell in group.iter(f"{SVG}rect") if "data-offset" in cell.attrib}
        expected: dict[int, list[str]] = {}
        for lane, offset in enumerate(layout.access.offsets):
            for byte in range(0, layout.access.width if offset >= 0 else 0, min(unit, layout.access.width)):
                expected.setdefault((offset + byte) // unit * unit, []).append(str(lane))
        assert shown == {offset: " ".join(lanes) for offset, lanes in expected.items()}
        check_places([cell for cell in group.iter(f"{SVG}rect") if "data-offset" in cell.attrib])
        verdict = next(text for text in group.iter(f"{SVG}text") if "data-wavefronts" in text.attrib)
        cost = shared_access_cost(layout.access.offsets, layout.access.width, store=layout.access.store)
        assert (datum(verdict, "wavefronts"), datum(verdict, "conflicts")) == (cost.wavefronts, cost.conflicts)
        parts = [part for part in group.iter(f"{SVG}g") if "data-group-wavefronts" in part.attrib]
        assert sum(datum(part, "group-wavefronts") for part in parts) == cost.wavefronts


def test_the_swizzle_spares_what_the_picture_says() -> None:
    plan = plan_of("gemm/simt/swizzled_cp_async", "mainloop.tile.threadblock.k=32")
    root = drawn(plan)
    costs = {}
    for group in groups(root, "layout"):
        if group.attrib["data-access"] == "load-a":
            verdict = next(text for text in group.iter(f"{SVG}text") if "data-wavefronts" in text.attrib)
            costs[group.attrib["data-layout"]] = datum(verdict, "wavefronts")
    assert costs == {"plain rows": 8, "XOR swizzle, as here": 2}


@pytest.mark.parametrize("name", ["simt/maxas/64", "v1_tiled", "simt/linear/bias_relu"])
def test_lanes_stand_where_the_order_puts_them(name: str) -> None:
    plan = plan_of(f"gemm/{name}")
    assert isinstance(plan, GemmPlan) and isinstance(plan.loop, TiledLoop)
    root = drawn(plan)
    for title, z_order in (("row-major order", False), ("z-order", True)):
        cells = next(group for group in groups(root, "order") if group.attrib["data-order"] == title and "data-reads" not in group.attrib)
        lanes = [cell for cell in cells if "data-lane" in cell.attrib]
        shown = {datum(cell, "lane"): (datum(cell, "row"), datum(cell, "column")) for cell in lanes}
        for side, along in (("x", "column"), ("y", "row")):
            places = sorted({(datum(cell, along), float(cell.attrib[side])) for cell in lanes})
            assert [at for _, at in places] == sorted({float(cell.attrib[side]) for cell in lanes})
        assert shown == {lane: lane_position(lane, plan.loop.lanes_major, plan.loop.lanes_minor, z_order) for lane in range(WARP)}


def test_reads_in_the_chosen_order_cost_what_the_plan_says() -> None:
    plan = plan_of("gemm/simt/maxas/64")
    assert isinstance(plan, GemmPlan) and isinstance(plan.loop, TiledLoop)
    (orders,) = (picture for picture in pictures_of(plan) if isinstance(picture, LaneOrders))
    (chosen,) = (order for order in orders.orders if order.chosen)
    loads = plan.loop.accesses[1::2]
    assert [shared_access_cost(access.offsets, 16, store=False).wavefronts for _, access in chosen.reads] == [
        load.wavefronts // load.per_step for load in loads
    ]


@pytest.mark.parametrize("name", ["s0_interleaved", "s1_interleaved_compact", "s2_sequential"])
def test_the_emulator_counts_the_wavefronts_of_a_tree(name: str) -> None:
    plan = plan_of(f"reduction/{name}")
    (tree,) = (picture for picture in pictures_of(plan) if isinstance(picture, Tree))
    (maps,) = (picture for picture in pictures_of(plan) if isinstance(picture, BankMaps))
    case = replace(oracle_of(plan.spec.kind).cases(plan)[0], name="one block", dimensions={"reduced": tree.threads})
    report = gemmgen.verify(plan, "emulator", cases=[case], counters=True)
    assert report.passed and report.counters is not None
    predicted = 0
    for step in tree.steps:
        for first in range(0, tree.threads, WARP):
            offsets = [-1] * WARP
            for worker, (_, origin) in zip(step.workers, step.pairs, strict=True):
                if first <= worker < first + WARP:
                    offsets[worker - first] = 4 * origin
            predicted += shared_access_cost(offsets, 4, store=False).wavefronts
    assert maps.maps[0].layouts[-1].access.width == 4
    counted = {site.tally.shared_memory["load"].wavefronts for site in report.counters.counters.sites if "load" in site.tally.shared_memory}
    assert predicted in counted


@pytest.mark.parametrize("name", ["cpu/c5_threaded", "cpu/c6_avx512"])
def test_packed_elements_stand_where_packing_puts_them(name: str) -> None:
    plan = gemmgen.plan(shipped_specs()[name])
    assert isinstance(plan, CpuGemmPlan) and plan.blocked is not None
    blocked = plan.blocked
    extents = {plan.left.name: (blocked.block_rows, blocked.tile_rows), plan.right.name: (blocked.block_columns, blocked.tile_columns)}
    root = parse(draw(plan.name, illustration_of(plan.spec.kind).pictures(plan)))
    shown = {group.attrib["data-packed"]: list(group.iter(f"{SVG}rect")) for group in groups(root, "packed")}
    assert sorted(shown) == ["A", "B"]
    for operand, cells in shown.items():
        lines, panel = extents[operand]
        # Panel by panel; within one, step by step along k, all lines of the panel beside each other.
        elements = np.arange(lines * blocked.block_depth).reshape(lines, blocked.block_depth)
        packed = elements.reshape(lines // panel, panel, blocked.block_depth).transpose(0, 2, 1).ravel()
        places = {datum(cell, "place"): elements[datum(cell, "line"), datum(cell, "step")] for cell in cells if "data-place" in cell.attrib}
        assert len(places) >= 20 and all(packed[place] == element for place, element in places.items())


def test_sums_of_a_micro_kernel_cover_its_tile_once() -> None:
    plan = gemmgen.plan(shipped_specs()["cpu/c6_avx512"])
    (tile,) = (picture for picture in illustration_of(plan.spec.kind).pictures(plan) if isinstance(picture, Fragments))
    covered = np.zeros((8, 48), int)
    for share in tile.c.shares:
        for row, column, rows, columns in share.rectangles:
            covered[row : row + rows, column : column + columns] += 1
    assert len(tile.c.shares) == 24 and (covered == 1).all()
