"""Pictures of a GEMM by tiles in shared memory and in registers: the elements of each thread, orders of lanes, and accesses to shared
memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gemmgen.hardware.shared_memory import WARP
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.gemm.overview import product_overview, shares_of_k
from gemmgen.kernels.gemm.simt.loop import TiledLoop
from gemmgen.kernels.gemm.simt.operand import Operand, every_load
from gemmgen.kernels.gemm.simt.plan import SimtPlan
from gemmgen.kernels.gemm.simt.shared_pictures import bank_maps
from gemmgen.kernels.pictures import Division, Fragments, LaneOrder, LaneOrders, Picture, Share, SharedAccess, TileHierarchy, product
from gemmgen.kernels.pipeline_picture import pipeline
from gemmgen.kernels.tiles.indexing import FragmentMap, lane_position


def pictures(plan: SimtPlan) -> list[Picture]:
    """All pictures, in the order from large to small."""
    loop = plan.loop
    drawn: list[Picture] = [_tiles(plan, loop), pipeline(loop.copies, loop.stages), *shares_of_k(plan, loop.tile_k), _fragments(plan, loop)]
    orders = _orders(plan, loop)
    if len(orders.orders) > 1:
        drawn.append(orders)
    return [*drawn, bank_maps(plan, loop)]


def _positions(fragment: FragmentMap, warp: int, lane: int) -> list[int]:
    return [fragment.position(warp, lane, element) for element in range(fragment.extent)]


def _closed(fragment: FragmentMap) -> dict[int, int]:
    """For each position of the first warp's elements along an axis, its place among them."""
    positions = sorted({position for lane in range(fragment.lanes) for position in _positions(fragment, 0, lane)})
    return {position: place for place, position in enumerate(positions)}


def _block_division(plan: SimtPlan, loop: TiledLoop) -> Division:
    a, b = loop.a.fragment, loop.b.fragment
    shares = []
    groups = plan.threads // (WARP_THREADS * a.warps * b.warps)
    for warp in range(a.warps * b.warps):
        major, minor = divmod(warp, loop.warps_minor)
        warp_m, warp_n = (major, minor) if loop.row_major else (minor, major)
        rows = [position for lane in range(a.lanes) for position in _positions(a, warp_m, lane)]
        columns = [position for lane in range(b.lanes) for position in _positions(b, warp_n, lane)]
        shares.append(Share(warp, product(rows, columns)))
    warps = f"{len(shares)} warp{'s' if len(shares) > 1 else ''}, {a.warps} × {b.warps}"
    notes = (f"{plan.threads} threads", warps, *((f"in each of {groups} groups, which split k",) if groups > 1 else ()))
    return Division("threadblock tile", plan.tile_m, plan.tile_n, "m", "n", "warp", tuple(shares), notes)


def _warp_division(loop: TiledLoop) -> Division:
    a, b = loop.a.fragment, loop.b.fragment
    places_m, places_n = _closed(a), _closed(b)
    shares = []
    for lane, (lane_m, lane_n) in enumerate(zip(loop.a.lane_positions, loop.b.lane_positions, strict=True)):
        rows = [places_m[position] for position in _positions(a, 0, lane_m)]
        columns = [places_n[position] for position in _positions(b, 0, lane_n)]
        shares.append(Share(lane, product(rows, columns)))
    gaps = max(places_m) >= len(places_m) or max(places_n) >= len(places_n)
    notes = (f"{a.lanes} × {b.lanes} lanes{', in z-order' if loop.z_order else ''}", *(("gaps in it closed up",) if gaps else ()))
    return Division("warp tile", len(places_m), len(places_n), "m", "n", "lane", tuple(shares), notes)


def _tiles(plan: SimtPlan, loop: TiledLoop) -> TileHierarchy:
    a, b = loop.a.fragment, loop.b.fragment
    warp = _warp_division(loop)
    pieces = len(warp.shares[0].rectangles)
    parts = f"{pieces} pieces of {warp.shares[0].rectangles[0][2]} × {warp.shares[0].rectangles[0][3]}" if pieces > 1 else "one piece"
    reads = f"each k: {a.extent} of A, {b.extent} of B, {a.extent * b.extent} multiply-adds"
    thread = Division("thread tile", a.extent, b.extent, "m", "n", "element", (), (f"{parts} of the warp tile", reads))
    through = "cp.async" if loop.copies == "cp_async" else "registers"
    stages = f"{loop.stages} stage{'s' if loop.stages > 1 else ''} in shared memory, copied through {through}"
    stages = stages.replace("through cp.async", "by cp.async")
    slices = f"in blue: the block's slices of A and B, {loop.tile_k} deep; bold: the one that is multiplied"
    overview = product_overview(plan, loop.tile_k, loop.stages, (slices, stages))
    return TileHierarchy("Tile hierarchy", overview, (_block_division(plan, loop), warp, thread))


def _fragments(plan: SimtPlan, loop: TiledLoop) -> Fragments:
    warp = _warp_division(loop)
    divisions = []
    for operand, extent in ((loop.a, warp.rows), (loop.b, warp.columns)):
        places = _closed(operand.fragment)
        by_position = [[places[at] for at in _positions(operand.fragment, 0, position)] for position in range(operand.fragment.lanes)]
        divisions.append(_operand_division(operand, extent, by_position))
    a, b = loop.a.fragment, loop.b.fragment
    notes = (
        f"Each lane has {a.extent} × {b.extent} elements of C; its number stands in each of its pieces.",
        f"For one k it reads {a.extent} elements of A, {loop.a.load_width * loop.a.shared_bytes} bytes at a time, "
        f"and {b.extent} of B, {loop.b.load_width * loop.b.shared_bytes} bytes at a time.",
        "One color: eight neighbouring lanes, which are served together where each reads 16 bytes.",
    )
    return Fragments("Elements of each lane in a warp tile", warp, divisions[0], divisions[1], notes)


def _operand_division(operand: Operand, extent: int, by_position: Sequence[Sequence[int]]) -> Division:
    shares = []
    for position, places in enumerate(by_position):
        shares.append(Share(position, product(places, [0]) if operand.axis == "m" else product([0], places)))
    rows, columns = (extent, 1) if operand.axis == "m" else (1, extent)
    return Division(operand.name, rows, columns, "m", "n", f"lanes' {operand.axis}", tuple(shares))


def _orders(plan: SimtPlan, loop: TiledLoop) -> LaneOrders:
    orders = []
    for z_order, title in ((False, "row-major order"), (True, "z-order")):
        if z_order and (loop.lanes_major == 1 or loop.lanes_minor == 1):
            continue
        positions = [lane_position(lane, loop.lanes_major, loop.lanes_minor, z_order) for lane in range(WARP)]
        positions = positions if loop.row_major else [(minor, major) for major, minor in positions]
        reads = []
        for operand, along in ((loop.a, [m for m, _ in positions]), (loop.b, [n for _, n in positions])):
            reordered = replace(operand, lane_positions=tuple(along))
            offsets = every_load(reordered)[0][0]
            reads.append((operand.name, SharedAccess.of(offsets, operand.load_width * operand.shared_bytes, store=False)))
        orders.append(LaneOrder(title, z_order == loop.z_order, tuple(positions), tuple(reads)))
    if not loop.row_major:
        orders = [replace(order, title=order.title.replace("row-major", "column-major")) for order in orders]
    notes = (
        "The line follows the lanes of a warp over its tile. Below, eight lanes a row, the vector that each reads for one k; a border "
        "holds the lanes that are served together, with their wavefronts.",
        "Of 8 and 16 bytes a lane, a half or a quarter of a warp is served at a time; twice as many lanes where each reads the same as its "
        "neighbour, lane i ^ 1, or each the same as lane i ^ 2. In z-order one operand meets the first condition and the other the second.",
    )
    return LaneOrders("Orders of lanes, and the cost of their reads", tuple(orders), "m", "n", notes)
