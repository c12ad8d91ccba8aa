"""Pictures of a GEMM plan: tiles, who has what, orders of lanes, and accesses to shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gemmgen.hardware.shared_memory import WARP
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.gemm.gemv.loop import VectorLoop
from gemmgen.kernels.gemm.mma_sync.loop import WarpLoop
from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.simt.loop import NaiveLoop, TiledLoop
from gemmgen.kernels.gemm.simt.operand import Operand, every_load
from gemmgen.kernels.gemm.simt.shared_pictures import bank_maps
from gemmgen.kernels.gemm.spec import SplitKCluster, SplitKLast, SplitKParallel, SplitKSerial, StreamK
from gemmgen.kernels.math.warpgroup import BLOCK_ROWS, WarpgroupLoop
from gemmgen.kernels.pictures import (
    Division,
    Fragments,
    LaneOrder,
    LaneOrders,
    Picture,
    ProductOverview,
    Rectangle,
    Share,
    SharedAccess,
    Span,
    TileHierarchy,
    Timeline,
    product,
)
from gemmgen.kernels.pipeline_picture import pipeline
from gemmgen.kernels.tiles.indexing import FragmentMap, lane_position


def pictures(plan: GemmPlan) -> list[Picture]:
    """All pictures of a plan, in the order from large to small."""
    if isinstance(plan.loop, NaiveLoop):
        return [_naive_tiles(plan, plan.loop)]
    if isinstance(plan.loop, VectorLoop):
        return [_vector_tiles(plan, plan.loop)]
    if isinstance(plan.loop, WarpgroupLoop):
        return [_warpgroup_tiles(plan, plan.loop), pipeline("copy_engine", plan.loop.stages), *_shares_of_k(plan, plan.loop.tile_k)]
    if isinstance(plan.loop, WarpLoop):
        flow = [pipeline("cp_async", plan.loop.stages)] if plan.loop.any_async else []
        return [_mma_tiles(plan, plan.loop), *flow, *_shares_of_k(plan, plan.loop.tile_k)]
    pictures: list[Picture] = [_tiles(plan, plan.loop), pipeline(plan.loop.copies, plan.loop.stages), *_shares_of_k(plan, plan.loop.tile_k)]
    pictures.append(_fragments(plan, plan.loop))
    orders = _orders(plan, plan.loop)
    if len(orders.orders) > 1:
        pictures.append(orders)
    return [*pictures, bank_maps(plan, plan.loop)]


def _overview(plan: GemmPlan, tile_k: int, stages: int, notes: tuple[str, ...]) -> ProductOverview:
    return ProductOverview(
        a="A",
        b="B",
        c="C",
        m="m",
        n="n",
        k="k",
        tile_m=plan.tile_m,
        tile_n=plan.tile_n,
        tile_k=tile_k,
        stages=stages,
        notes=(*notes, *_division_of_k(plan)),
    )


def _division_of_k(plan: GemmPlan) -> tuple[str, ...]:
    division = plan.spec.decomposition
    if isinstance(division, SplitKLast) or plan.cut_at_launch:
        return ("k is divided among as many blocks for each tile of C as the launch says",)
    if isinstance(division, SplitKSerial | SplitKParallel | SplitKCluster):
        return (f"k is divided among {division.slices} blocks for each tile of C",)
    if isinstance(division, StreamK):
        return (f"{division.blocks} blocks share the steps along k of all tiles",)
    return ()


SHOWN_BLOCKS = 12
SHARED_TILES = 15
"""Tiles of C in the sketch of how blocks split k."""
SHOWN_SLICES = 4
"""Slices of k in the sketch, where the launch chooses how many there are."""
SHARED_STEPS = 16
"""Steps along k of each."""


def _shares_of_k(plan: GemmPlan, tile_k: int) -> list[Picture]:
    """Steps along k of the first blocks, where k is divided: a small product in the place of a large one."""
    division = plan.spec.decomposition
    spans: list[Span] = []
    notes: tuple[str, ...]
    if isinstance(division, StreamK):
        blocks = min(SHOWN_BLOCKS, division.blocks)
        total = SHARED_TILES * SHARED_STEPS
        for block in range(blocks):
            step, end = block * total // blocks, (block + 1) * total // blocks
            start = step
            while step < end:
                tile = step // SHARED_STEPS
                until = min(end, (tile + 1) * SHARED_STEPS)
                spans.append(Span(block, step - start, until - step, f"tile {tile}", tile, strong=until - step == SHARED_STEPS))
                step = until
        notes = (
            f"{blocks} of the {division.blocks} blocks on {SHARED_TILES} tiles of {SHARED_STEPS} steps: each takes as many steps.",
            "Pale: a part of a tile, whose sum is added to that of the blocks that have the rest.",
        )
    elif isinstance(division, SplitKSerial | SplitKParallel | SplitKCluster):
        slices = division.slices if isinstance(division.slices, int) else SHOWN_SLICES
        blocks = min(SHOWN_BLOCKS // slices * slices or slices, 4 * slices)
        for block in range(blocks):
            tile, part = divmod(block, slices)
            first, last = part * SHARED_STEPS // slices, (part + 1) * SHARED_STEPS // slices
            spans.append(Span(block, first, last - first, f"tile {tile}", tile))
        chosen = "" if isinstance(division.slices, int) else ", as many as the launch chooses"
        notes = (f"k of each tile is cut into {slices} slices{chosen}, one for each of {slices} blocks, whose sums are then added.",)
    else:
        return []
    rows = tuple(f"block {block}" for block in range(blocks))
    unit = f"steps of {tile_k} along k; a sketch of {SHARED_STEPS} steps a tile"
    return [Timeline("Steps along k that each block takes", rows, tuple(spans), unit, notes, name="k_division")]


def _naive_tiles(plan: GemmPlan, loop: NaiveLoop) -> TileHierarchy:
    warps = -(-plan.threads // WARP)
    shares = [
        Share(warp, _thread_rectangles(plan, loop, range(warp * WARP, min((warp + 1) * WARP, plan.threads)))) for warp in range(warps)
    ]
    block = Division(
        "threadblock tile", plan.tile_m, plan.tile_n, "m", "n", "warp", tuple(shares), (f"{plan.threads} threads, an element each",)
    )
    note = "no tiles in shared memory: each thread reads a row of A and a column of B from global memory, a value of each at a time"
    overview = _overview(plan, 1, 1, (note,))
    return TileHierarchy("Tile hierarchy", overview, (block,))


def _vector_tiles(plan: GemmPlan, loop: VectorLoop) -> TileHierarchy:
    """The rows of each team; or, where teams split k, those of each lane."""
    along_k = loop.along == "k"
    owners = loop.teams if along_k else loop.tile_m // loop.rows
    shares = tuple(Share(owner, ((owner * loop.rows, 0, loop.rows, loop.columns),)) for owner in range(owners))
    unit = "team" if along_k else "lane"
    teams = f"{loop.teams} teams of {loop.lanes} lanes" + ("" if along_k else ", which split k")
    block = Division("threadblock tile", plan.tile_m, plan.tile_n, "m", "n", unit, shares, (f"{plan.threads} threads: {teams}",))
    note = f"A is read once, from global memory into registers, {loop.step} of k at a time"
    note += f"; rows of a team move back by up to {loop.grain - 1}, to a multiple of {loop.grain}" if loop.shifted else ""
    return TileHierarchy("Tile hierarchy", _overview(plan, loop.step, 1, (note,)), (block,))


def _thread_rectangles(plan: GemmPlan, loop: NaiveLoop, threads: Iterable[int]) -> tuple[Rectangle, ...]:
    """Rectangles of the elements of some threads, which are neighbours along the minor dimension."""
    by_major: dict[int, list[int]] = {}
    for thread in threads:
        by_major.setdefault(thread // loop.tile_minor, []).append(thread % loop.tile_minor)
    merged: dict[tuple[int, ...], list[int]] = {}
    for major, minors in by_major.items():
        merged.setdefault(tuple(minors), []).append(major)
    found: list[Rectangle] = []
    for columns, rows in merged.items():
        found += product(rows, columns) if plan.matrix_c.row_major else product(columns, rows)
    return tuple(found)


def _positions(fragment: FragmentMap, warp: int, lane: int) -> list[int]:
    return [fragment.position(warp, lane, element) for element in range(fragment.extent)]


def _closed(fragment: FragmentMap) -> dict[int, int]:
    """For each position of the first warp's elements along an axis, its place among them."""
    positions = sorted({position for lane in range(fragment.lanes) for position in _positions(fragment, 0, lane)})
    return {position: place for place, position in enumerate(positions)}


def _block_division(plan: GemmPlan, loop: TiledLoop) -> Division:
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


def _tiles(plan: GemmPlan, loop: TiledLoop) -> TileHierarchy:
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
    overview = _overview(plan, loop.tile_k, loop.stages, (slices, stages))
    return TileHierarchy("Tile hierarchy", overview, (_block_division(plan, loop), warp, thread))


def _warpgroup_tiles(plan: GemmPlan, loop: WarpgroupLoop) -> TileHierarchy:
    """From the product to what a lane has of the result of one instruction (PTX ISA, "Register Fragments" of wgmma)."""
    rows = loop.blocks_m * BLOCK_ROWS
    groups = tuple(Share(group, ((group * rows, 0, rows, loop.tile_n),)) for group in range(loop.tile_m // rows))
    notes = (f"{loop.consumers} groups that multiply, a producer", *(("a tile each, alternately",) if loop.ping_pong else ()))
    block = Division("threadblock tile", loop.tile_m, loop.tile_n, "m", "n", "warpgroup", groups, notes)
    warps = tuple(
        Share(warp, tuple((block_m * BLOCK_ROWS + 16 * warp, 0, 16, loop.tile_n) for block_m in range(loop.blocks_m))) for warp in range(4)
    )
    group = Division("tile of a warpgroup", rows, loop.tile_n, "m", "n", "warp", warps, (f"instructions of 64 × {loop.instruction_n}",))
    lanes = tuple(
        Share(lane, tuple((lane // 4 + 8 * half, 8 * j + lane % 4 * 2, 1, 2) for half in range(2) for j in range(loop.tile_n // 8)))
        for lane in range(WARP)
    )
    warp_tile = Division("rows of a warp", 16, loop.tile_n, "m", "n", "lane", lanes, ("pairs of neighbours, in every 8 columns",))
    slices = f"in blue: the block's slices of A and B, {loop.tile_k} deep; bold: the one that is multiplied"
    overview = _overview(plan, loop.tile_k, loop.stages, (slices, f"{loop.stages} stages in shared memory, filled by the copy engine"))
    return TileHierarchy("Tile hierarchy", overview, (block, group, warp_tile))


def _mma_tiles(plan: GemmPlan, loop: WarpLoop) -> TileHierarchy:
    """From the product to what a lane has of the results of a warp (PTX ISA, "Matrix Fragments for mma.m16n8k16")."""
    warps = tuple(
        Share(warp, ((warp // loop.warps_n * loop.warp_m, warp % loop.warps_n * loop.warp_n, loop.warp_m, loop.warp_n),))
        for warp in range(loop.warps_m * loop.warps_n)
    )
    block = Division("threadblock tile", loop.tile_m, loop.tile_n, "m", "n", "warp", warps, (f"{loop.threads} threads",))
    rows, columns = (1, 2) if loop.vectors is None else (loop.vectors.rows, loop.vectors.columns)
    downs, acrosses = range(0, loop.warp_m, 8 * rows), range(0, loop.warp_n, 4 * columns)
    lanes = tuple(
        Share(lane, tuple((down + lane // 4 * rows, across + lane % 4 * columns, rows, columns) for down in downs for across in acrosses))
        for lane in range(WARP)
    )
    note = "pairs of neighbours, in every 8 rows and columns"
    if loop.vectors is not None:
        note = f"{columns} neighbours of {rows} {'rows' if rows > 1 else 'row'}, in every {8 * rows} rows and {4 * columns} columns"
    warp_tile = Division("warp tile", loop.warp_m, loop.warp_n, "m", "n", "lane", lanes, (note, "instructions of 16 × 8"))
    slices = f"in blue: the block's slices of A and B, {loop.tile_k} deep; bold: the one that is multiplied"
    place = "read straight from global memory" if loop.direct else f"{loop.stages} stages in shared memory"
    overview = _overview(plan, loop.tile_k, 1 if loop.direct else loop.stages, (slices, place))
    return TileHierarchy("Tile hierarchy", overview, (warp_tile,) if loop.direct else (block, warp_tile))


def _fragments(plan: GemmPlan, loop: TiledLoop) -> Fragments:
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
    return Fragments("Which lane has what of a warp tile", warp, divisions[0], divisions[1], notes)


def _operand_division(operand: Operand, extent: int, by_position: Sequence[Sequence[int]]) -> Division:
    shares = []
    for position, places in enumerate(by_position):
        shares.append(Share(position, product(places, [0]) if operand.axis == "m" else product([0], places)))
    rows, columns = (extent, 1) if operand.axis == "m" else (1, extent)
    return Division(operand.name, rows, columns, "m", "n", f"lanes' {operand.axis}", tuple(shares))


def _orders(plan: GemmPlan, loop: TiledLoop) -> LaneOrders:
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
        "holds what is served together, with its wavefronts.",
        "Of 8 and 16 bytes a lane, a half or a quarter of a warp is served at a time; twice as many lanes where each reads the same as its "
        "neighbour, lane i ^ 1, or each the same as lane i ^ 2. In z-order one operand meets the first condition and the other the second.",
    )
    return LaneOrders("Orders of lanes, and what their reads cost", tuple(orders), "m", "n", notes)
