"""Pictures of a convolution plan: tiles of the implicit GEMM, fragments of the tensor cores, and shared memory."""

from __future__ import annotations

from collections.abc import Callable

from gemmgen.hardware.shared_memory import BANK_BYTES, WARP, shared_access_cost
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.conv2d.direct import DirectPlan
from gemmgen.kernels.conv2d.few_channels import FewChannelsPlan
from gemmgen.kernels.conv2d.grouped import GroupedPlan
from gemmgen.kernels.conv2d.plan import Conv2dPlan
from gemmgen.kernels.conv2d.results import FinishingPlan
from gemmgen.kernels.conv2d.tensor_memory import TensorPixelLoop
from gemmgen.kernels.conv2d.tiles import (
    BLOCK,
    CHANNELS,
    EXCHANGE_BYTES,
    ROW_BYTES,
    VECTOR_BYTES,
    OperandTile,
    accumulator,
    exchange_costs,
    exchange_offset,
    exchange_places,
    exchange_write_bytes,
    fragment_vector,
    vector_offset,
)
from gemmgen.kernels.conv2d.warpgroup import WarpgroupPlan
from gemmgen.kernels.math.warpgroup import BLOCK_ROWS
from gemmgen.kernels.pictures import (
    BankMap,
    BankMaps,
    Division,
    Fragments,
    Picture,
    ProductOverview,
    Rectangle,
    Share,
    SharedAccess,
    SharedLayout,
    TileHierarchy,
    product,
)
from gemmgen.kernels.pipeline_picture import pipeline
from gemmgen.kernels.tensor_memory_picture import columns_in_use, columns_over_time, loaded_columns, warps_of_tile

WORD = 4
"""Values of k that a lane has side by side: an int8 fragment comes in registers."""


def pictures(plan: FinishingPlan) -> list[Picture]:
    """All pictures of a plan, in the order from large to small."""
    if isinstance(plan, WarpgroupPlan):
        drawn: list[Picture] = [_warpgroup_tiles(plan), pipeline("tma", plan.loop.stages)]
        if isinstance(plan.loop, TensorPixelLoop):
            drawn.append(columns_in_use([0, plan.loop.tile_n, 2 * plan.loop.tile_n], plan.loop.tensor_columns))
            drawn.append(columns_over_time(plan.loop.tile_n))
        return drawn
    if isinstance(plan, DirectPlan | GroupedPlan | FewChannelsPlan):
        return []  # no tile, no fragments, no shared memory
    assert isinstance(plan, Conv2dPlan)
    return [_tiles(plan), pipeline("cp_async" if plan.asynchronous else "registers", plan.stages), _fragments(plan), _bank_maps(plan)]


def _wide(plan: Conv2dPlan) -> bool:
    """True if the instruction takes 16 rows and 32 channels; else 8 and 16."""
    return plan.instruction == "m16n8k32"


def _axes(plan: Conv2dPlan) -> tuple[str, str]:
    """Names of the rows and the columns of the product."""
    return ("channels", "pixels") if plan.channels_are_rows else ("pixels", "channels")


def _tiles(plan: Conv2dPlan) -> TileHierarchy:
    names, axes = ("filter", "x"), _axes(plan)
    a, b = names if plan.channels_are_rows else names[::-1]
    extents = (plan.filter_tile.rows, plan.pixel_tile.rows)
    warp_extents = (plan.warp_channels, plan.warp_pixels)
    (rows, columns), (warp_rows, warp_columns) = (extents, warp_extents) if plan.channels_are_rows else (extents[::-1], warp_extents[::-1])
    step = CHANNELS * plan.planes
    notes = [
        f"a step: {plan.planes} filter tap{'s' if plan.planes > 1 else ''} of {CHANNELS} input channels, {step} of k",
        f"{plan.stages} stage{'s' if plan.stages > 1 else ''} in shared memory; bold: the one that is multiplied",
    ]
    notes += [f"the sum is divided among {plan.split_k} blocks for each tile"] if plan.split_k > 1 else []
    notes += [f"{plan.spec.persistent_blocks} blocks take tile after tile"] if plan.persistent else []
    overview = ProductOverview(
        a=a,
        b=b,
        c="y",
        m=f"output {axes[0]}",
        n=f"output {axes[1]}",
        k="input channels × filter taps",
        tile_m=rows,
        tile_n=columns,
        tile_k=step,
        stages=plan.stages,
        notes=tuple(notes),
    )
    warps = []
    for warp in range(plan.threads // WARP_THREADS):
        channel, pixel = divmod(warp, plan.warps_pixels)
        row, column = (channel, pixel) if plan.channels_are_rows else (pixel, channel)
        warps.append(Share(warp, ((row * warp_rows, column * warp_columns, warp_rows, warp_columns),)))
    block = Division("threadblock tile", rows, columns, *axes, "warp", tuple(warps), (f"{plan.threads} threads, {len(warps)} warps",))
    high = 2 * BLOCK if _wide(plan) else BLOCK
    instructions = [
        Share(row * (warp_columns // BLOCK) + column, ((row * high, column * BLOCK, high, BLOCK),))
        for row in range(warp_rows // high)
        for column in range(warp_columns // BLOCK)
    ]
    taken = f"{len(instructions)} instruction tiles for each {CHANNELS if _wide(plan) else CHANNELS // 2} of k"
    warp_tile = Division("warp tile", warp_rows, warp_columns, *axes, "mma", tuple(instructions), (taken,))
    lanes = Division(
        f"instruction {plan.instruction}", high, BLOCK, *axes, "lane", _result_shares(plan), (f"{high * BLOCK // WARP} sums a lane",)
    )
    return TileHierarchy("Tile hierarchy", overview, (block, warp_tile, lanes))


def _warpgroup_tiles(plan: WarpgroupPlan) -> TileHierarchy:
    """From the product to a lane's share of the result of one instruction (PTX ISA, "Register Fragments" of wgmma)."""
    loop = plan.loop
    rows, pixels = loop.blocks_m * BLOCK_ROWS, loop.tile_n
    by_pixels = loop.division == "pixels"
    groups = tuple(
        Share(group, ((0, group * pixels, rows, pixels) if by_pixels else (group * rows, 0, rows, pixels),))
        for group in range(loop.consumers)
    )
    axes = ("channels", "pixels")
    note = (f"{loop.consumers} group{'s' if loop.consumers > 1 else ''} that multiply, a warp that copies",)
    block = Division("threadblock tile", loop.tile_m, loop.tile_pixels, *axes, "warpgroup", groups, note)
    warps = tuple(
        Share(warp, tuple((block_m * BLOCK_ROWS + 16 * warp, 0, 16, pixels) for block_m in range(loop.blocks_m))) for warp in range(4)
    )
    group = Division("tile of a warpgroup", rows, pixels, *axes, "warp", warps, (f"instructions of 64 × {loop.instruction_n}",))
    lanes = tuple(
        Share(lane, tuple((lane // 4 + 8 * half, 8 * j + lane % 4 * 2, 1, 2) for half in range(2) for j in range(pixels // 8)))
        for lane in range(WARP)
    )
    warp_tile = Division("rows of a warp", 16, pixels, *axes, "lane", lanes, ("pairs of neighbours, in every 8 columns",))
    notes = (
        f"a step: {loop.tile_k} input channels of one filter tap",
        f"{loop.stages} stages in shared memory, filled by TMA; bold: the one that is multiplied",
    )
    overview = ProductOverview(
        a="filter",
        b="x",
        c="y",
        m="output channels",
        n="output pixels",
        k="input channels × filter taps",
        tile_m=loop.tile_m,
        tile_n=loop.tile_pixels,
        tile_k=loop.tile_k,
        stages=loop.stages,
        notes=notes,
    )
    if isinstance(loop, TensorPixelLoop):
        return TileHierarchy("Tile hierarchy", overview, (warps_of_tile(pixels, *axes), loaded_columns(*axes)))
    return TileHierarchy("Tile hierarchy", overview, (block, group, warp_tile))


def _result_shares(plan: Conv2dPlan) -> tuple[Share, ...]:
    """Rows and columns of the results that each lane has of one instruction."""
    shares = []
    for lane in range(WARP):
        rectangles: list[Rectangle] = []
        for block in range(2 if _wide(plan) else 1):
            places = [accumulator(lane, element) for element in (0, 1)]
            rectangles += product({block * BLOCK + row for row, _ in places}, {column for _, column in places})
        shares.append(Share(lane, tuple(rectangles)))
    return tuple(shares)


def _operand_places(lane: int, registers: int, blocks_first: bool) -> list[tuple[int, int]]:
    """Row, and first k, of the elements that ``ldmatrix`` leaves in each register of a lane: the four bytes with number
    lane % 4 of the row that lane / 4 of each eight points at."""
    places = []
    for register in range(registers):
        row, half = fragment_vector(register * BLOCK + lane // 4, blocks_first)
        places.append((row, half * VECTOR_BYTES + lane % 4 * WORD))
    return places


def _fragments(plan: Conv2dPlan) -> Fragments:
    wide, axes = _wide(plan), _axes(plan)
    depth, high = (CHANNELS, 2 * BLOCK) if wide else (CHANNELS // 2, BLOCK)
    shares_a, shares_b = [], []
    for lane in range(WARP):
        of_a = _operand_places(lane, 4 if wide else 1, blocks_first=wide)
        of_b = _operand_places(lane, 2 if wide else 1, blocks_first=False)
        shares_a.append(Share(lane, tuple((row, k, 1, WORD) for row, k in of_a)))
        shares_b.append(Share(lane, tuple((k, row, WORD, 1) for row, k in of_b)))
    names = ("filter", "x") if plan.channels_are_rows else ("x", "filter")
    notes = (
        f"One instruction mma.sync {plan.instruction}: {high} × {BLOCK} sums over {depth} of k, by the 32 lanes of a warp together.",
        f"A lane has {len(shares_a[0].rectangles) * WORD} bytes of {names[0]}, {len(shares_b[0].rectangles) * WORD} of {names[1]}, "
        f"four values of k in a register, and {high * BLOCK // WARP} sums of y. Bold: lane 0.",
        "One color: the four lanes that share a row of the operand to the left. In the operand above, lanes of one color share a column.",
        "ldmatrix brings the operands here: each eight lanes point at eight rows of 16 bytes, of which four lanes after another share one.",
    )
    return Fragments(
        "Fragments of the tensor cores",
        Division(f"y, {plan.instruction}", high, BLOCK, *axes, "lane", _result_shares(plan)),
        Division(names[0], high, depth, axes[0], "k", "lane", tuple(shares_a)),
        Division(names[1], depth, BLOCK, "k", axes[1], "lane", tuple(shares_b)),
        notes,
        lanes_of_a_color=4,
    )


def _bank_maps(plan: Conv2dPlan) -> BankMaps:
    maps = []
    for name, tile, is_row in (("x", plan.pixel_tile, not plan.channels_are_rows), ("filter", plan.filter_tile, plan.channels_are_rows)):
        way = "cp.async" if plan.asynchronous else "A store"
        stored = [(row, half) for _, row, half in (tile.vector(lane, 0, 0) for lane in range(WARP))]
        count = tile.passes * tile.thread_planes
        maps.append(_tile_map(f"store-{name}", f"Copies of {name}", stored, tile, f"{way} of 16 bytes a lane", count))
        blocks_first = _wide(plan) and is_row
        pointed = [fragment_vector(lane, blocks_first) for lane in range(WARP)]
        rows = plan.warp_pixels if name == "x" else plan.warp_channels
        maps.append(_tile_map(f"load-{name}", f"Fragments of {name}", pointed, tile, "ldmatrix.x4", rows // (2 * BLOCK) * plan.planes))
    if plan.exchange:
        maps += _exchange_maps(plan)
    return BankMaps("Banks of shared memory", tuple(maps))


def _tile_map(access: str, title: str, places: list[tuple[int, int]], tile: OperandTile, what: str, count: int) -> BankMap:
    """One access to a plane; ``places``: row and half of each lane's vector."""

    def layout(name: str, offset: Callable[[int, int], int], chosen: bool) -> SharedLayout:
        colors = {}
        for row in range(tile.rows):
            for half in (0, 1):
                colors[offset(row, half)] = half
        # The groups of both are eight lanes that never pair up, as those of a store: ldmatrix reads matrix by matrix.
        shown = SharedAccess.of((offset(row, half) for row, half in places), VECTOR_BYTES, store=True)
        return SharedLayout(name, tile.plane_bytes, colors, shown, chosen)

    plain = layout("rows as they are", lambda row, half: row * ROW_BYTES + half * VECTOR_BYTES, False)
    swapped = layout("halves swap every four rows, as here", vector_offset, True)
    cost = shared_access_cost(swapped.access.offsets, VECTOR_BYTES, store=True)
    total = f"{what}, {count} a warp in each step: together {count * cost.wavefronts} wavefronts, {count * cost.conflicts} conflicts."
    note = "Bold: the words of the access, with lane numbers. One color: the same half of the 32 channels of a row."
    # Copies go to whole lines either way.
    layouts = (plain, swapped) if access.startswith("load") else (swapped,)
    return BankMap(access, title, layouts, total, (note,), VECTOR_BYTES)


def _exchange_maps(plan: Conv2dPlan) -> list[BankMap]:
    accesses = exchange_places(plan.channels_are_rows, plan.lane)
    costs = exchange_costs(plan.channels_are_rows, plan.lane)
    maps = []
    for access, title, places, width, cost in (
        ("store-exchange", "Results into the exchange", accesses[0], exchange_write_bytes(plan.channels_are_rows), costs[0]),
        ("load-exchange", "Results out of the exchange", accesses[1], VECTOR_BYTES, costs[1]),
    ):

        def permuted(pixel: int, channel: int) -> int:
            return exchange_offset(pixel, channel, plan.channels_are_rows, plan.lane)

        def plain(pixel: int, channel: int) -> int:
            return (pixel * CHANNELS + channel) * BANK_BYTES

        layouts = []
        for name, offset, chosen in (("rows as they are", plain, False), ("groups of four permuted, as here", permuted, True)):
            colors = {offset(pixel, channel): channel // 4 for pixel in range(BLOCK) for channel in range(CHANNELS)}
            shown = SharedAccess.of((offset(*place) for place in places[0]), width, store=access.startswith("store"))
            layouts.append(SharedLayout(name, EXCHANGE_BYTES, colors, shown, chosen))
        total = (
            f"The first of {len(places)} for 8 pixels × 32 channels, {width} bytes a lane; together {cost.wavefronts} wavefronts, "
            f"{cost.conflicts} conflicts."
        )
        note = "Bold: the words of the access, with lane numbers. One color: the same four channels; a line is a pixel."
        maps.append(BankMap(access, title, tuple(layouts), total, (note,), width))
    return maps
