"""Pictures of a CPU GEMM: its loops over pieces that fit into the caches, the tile of sums in registers, and packed operands."""

from __future__ import annotations

from gemmgen.kernels.cpu_gemm.plan import BlockedPlan, CpuGemmPlan, Side
from gemmgen.kernels.pictures import (
    Division,
    Fragments,
    Loop,
    LoopNest,
    PackedOperand,
    Packing,
    Picture,
    Piece,
    Rectangle,
    Share,
    Span,
    Timeline,
)

DRAWN_BLOCKS = 3
"""Blocks in each direction of the product that is drawn."""
DRAWN_EXTENT = 8
"""Extents of the product that plain loops are drawn for."""
KIB = 1024
UNITS = 2
"""Units for multiply-adds of vectors, and for loads, in a core of today's servers (optimization manuals of Intel and AMD)."""


def pictures(plan: CpuGemmPlan) -> list[Picture]:
    """The loops, and of blocked ones the tile in registers and the order of packed operands."""
    blocked = plan.blocked
    if blocked is None:
        return [_plain_loops(plan)]
    drawn: list[Picture] = [_blocked_loops(plan, blocked), _tile(plan, blocked), _units(plan, blocked)]
    if plan.packs:
        operands = tuple(_packed(plan, blocked, side) for side, _ in plan.packed_sides)
        drawn.append(Packing("Operands as the micro-kernel reads them", operands))
    return drawn


def _plain_loops(plan: CpuGemmPlan) -> LoopNest:
    extent = DRAWN_EXTENT
    left, right = plan.left.name, plan.right.name

    def whole(name: str, rows: int, columns: int) -> Piece:
        return Piece(name, rows, columns, (0, 0, rows, columns))

    def part(name: str, rows: int, columns: int, taken: Rectangle) -> Piece:
        return Piece(name, rows, columns, taken)

    around = Loop(
        f"along {plan.rows}",
        f"a row of C, and of {left}",
        part("C", extent, extent, (1, 0, 1, extent)),
        part(left, extent, extent, (1, 0, 1, extent)),
        whole(right, extent, extent),
    )
    across = "the next in memory" if not plan.right.along_k else f"{plan.right.line} elements further on in memory"
    down = "the next in memory" if plan.right.along_k else f"{plan.right.step} elements further on in memory"
    if plan.strategy == "naive":
        inner = (
            Loop(
                f"along {plan.columns}",
                f"an element of C: a row of {left} times a column of {right}",
                part("C", 1, extent, (0, 2, 1, 1)),
                whole(left, 1, extent),
                part(right, extent, extent, (0, 2, extent, 1)),
            ),
            Loop(
                "along k",
                f"one multiply-add; {right}'s next element is {down}",
                whole("C", 1, 1),
                part(left, 1, extent, (0, 3, 1, 1)),
                part(right, extent, 1, (3, 0, 1, 1)),
            ),
        )
    else:
        inner = (
            Loop(
                "along k",
                f"an element of {left} times a row of {right}, added to the row of C",
                whole("C", 1, extent),
                part(left, 1, extent, (0, 3, 1, 1)),
                part(right, extent, extent, (3, 0, 1, extent)),
            ),
            Loop(
                f"along {plan.columns}",
                f"one multiply-add; {right}'s next element is {across}",
                part("C", 1, extent, (0, 2, 1, 1)),
                whole(left, 1, 1),
                part(right, 1, extent, (0, 2, 1, 1)),
            ),
        )
    return LoopNest("Loops, the outermost first", (around, *inner), _swapped(plan))


def _swapped(plan: CpuGemmPlan) -> tuple[str, ...]:
    return ("C is stored by columns, and so computed as its transpose: C' = B' A'.",) if plan.swapped else ()


def _blocked_loops(plan: CpuGemmPlan, blocked: BlockedPlan) -> LoopNest:
    left, right = plan.left.name, plan.right.name
    block_rows, block_columns, block_depth = blocked.block_rows, blocked.block_columns, blocked.block_depth
    rows, columns, depth = (DRAWN_BLOCKS * extent for extent in (block_rows, block_columns, block_depth))
    tile_rows, tile_columns = blocked.tile_rows, blocked.tile_columns

    def held(place: str, elements: int, packed: bool) -> str:
        return f"{'packed, ' if packed else ''}{place}: {4 * elements / KIB:,.0f} KiB"

    def at(row: int, column: int, high: int, wide: int) -> Rectangle:
        return (row, column, high, wide)

    loops = [
        Loop(
            f"{plan.columns} in blocks of {block_columns}",
            "",
            Piece("C", rows, columns, at(0, block_columns, rows, block_columns)),
            Piece(left, rows, depth, at(0, 0, rows, depth)),
            Piece(right, depth, columns, at(0, block_columns, depth, block_columns)),
        ),
        Loop(
            f"k in slices of {block_depth}",
            "C is read and written once for each slice",
            Piece("C", rows, block_columns, at(0, 0, rows, block_columns)),
            Piece(left, rows, depth, at(0, block_depth, rows, block_depth)),
            Piece(
                right,
                depth,
                block_columns,
                at(block_depth, 0, block_depth, block_columns),
                held("L3", block_depth * block_columns, blocked.packs_right),
            ),
        ),
        Loop(
            f"{plan.rows} in blocks of {block_rows}",
            "",
            Piece("C", rows, block_columns, at(block_rows, 0, block_rows, block_columns)),
            Piece(
                left,
                rows,
                block_depth,
                at(block_rows, 0, block_rows, block_depth),
                held("L2", block_rows * block_depth, blocked.packs_left),
            ),
            Piece(right, block_depth, block_columns, at(0, 0, block_depth, block_columns)),
        ),
        Loop(
            f"{plan.columns} in panels of {tile_columns}",
            "",
            Piece("C", block_rows, block_columns, at(0, tile_columns, block_rows, tile_columns)),
            Piece(left, block_rows, block_depth, at(0, 0, block_rows, block_depth)),
            Piece(
                right,
                block_depth,
                block_columns,
                at(0, tile_columns, block_depth, tile_columns),
                held("L1", block_depth * tile_columns, False),
            ),
        ),
        Loop(
            f"{plan.rows} in panels of {tile_rows}",
            "the micro-kernel's tile",
            Piece(
                "C", block_rows, tile_columns, at(tile_rows, 0, tile_rows, tile_columns), f"{tile_rows} × {tile_columns} sums in registers"
            ),
            Piece(left, block_rows, block_depth, at(tile_rows, 0, tile_rows, block_depth)),
            Piece(right, block_depth, tile_columns, at(0, 0, block_depth, tile_columns)),
        ),
        Loop(
            "k step by step",
            f"{tile_rows * blocked.tile_vectors} multiply-adds" + (f" of {blocked.lanes} lanes" if blocked.lanes > 1 else ""),
            Piece("C", tile_rows, tile_columns, at(0, 0, tile_rows, tile_columns)),
            Piece(left, tile_rows, block_depth, at(0, block_depth // 3, tile_rows, 1)),
            Piece(right, block_depth, tile_columns, at(block_depth // 3, 0, 1, tile_columns)),
        ),
    ]
    if blocked.threaded:
        part_rows = rows if blocked.divide == "columns" else rows // 2
        part_columns = columns if blocked.divide == "rows" else columns // 2
        count = "as many threads as the process may run" if blocked.thread_count == "all" else f"{blocked.thread_count} threads"
        loops.insert(
            0,
            Loop(
                "C in parts",
                f"{count}, {blocked.parts_per_thread} parts for each at most; the loops below go through one part",
                Piece("C", rows, columns, at(0, 0, part_rows, part_columns)),
                Piece(left, rows, depth, at(0, 0, part_rows, depth)),
                Piece(right, depth, columns, at(0, 0, depth, part_columns)),
            ),
        )
    scale = (
        "Each box is the data of the surrounding loop; the colored piece is the data of one iteration. Boxes are drawn to scale where "
        "they remain legible; the named cache is the one that a piece is sized for.",
    )
    return LoopNest("Loops over the caches, the outermost first", tuple(loops), (*_swapped(plan), *scale))


def _tile(plan: CpuGemmPlan, blocked: BlockedPlan) -> Fragments:
    rows, vectors, lanes = blocked.tile_rows, blocked.tile_vectors, blocked.lanes
    sums = tuple(Share(row * vectors + vector, ((row, vector * lanes, 1, lanes),)) for row in range(rows) for vector in range(vectors))
    elements = tuple(Share(row, ((row, 0, 1, 1),)) for row in range(rows))
    loaded = tuple(Share(vector, ((0, vector * lanes, 1, lanes),)) for vector in range(vectors))
    products, loads = rows * vectors, rows + vectors
    holds = f"{lanes} lanes" if lanes > 1 else "one element"
    notes = (
        f"Each box of C is a vector register of {holds}, with sums that stay there for a whole slice of k.",
        f"A step along k loads {vectors} vector{'s' if vectors > 1 else ''} of {plan.right.name} and, one after the other, {rows} elements "
        f"of {plan.left.name}: {products} multiply-adds for {loads} loads.",
        f"{blocked.vector_registers} of {plan.architecture.registers} vector registers: {products} sums, {vectors} of {plan.right.name}, "
        f"one of {plan.left.name}.",
        "Bold: the first register, and the two that it is the product of.",
    )
    return Fragments(
        "Registers of the micro-kernel",
        Division("C", rows, blocked.tile_columns, plan.rows, plan.columns, "register", sums),
        a=Division(plan.left.name, rows, 1, plan.rows, "k", "element", elements),
        b=Division(plan.right.name, 1, blocked.tile_columns, "k", plan.columns, "vector", loaded),
        notes=notes,
        lanes_of_a_color=vectors,
    )


def _units(plan: CpuGemmPlan, blocked: BlockedPlan) -> Timeline:
    """One step along k on the units of a core, each of which takes one instruction a cycle."""
    rows, vectors, lanes = blocked.tile_rows, blocked.tile_vectors, blocked.lanes
    products, loads = rows * vectors, rows + vectors
    adds = [Span(number % UNITS, number // UNITS, 1, str(number), number // vectors) for number in range(products)]
    reads = [Span(UNITS + number % UNITS, number // UNITS, 1, str(number), vectors, strong=False) for number in range(loads)]
    cycles, feeding = -(-products // UNITS), -(-loads // UNITS)
    peak = 2 * lanes * UNITS
    reached = 2 * lanes * products / max(cycles, feeding)
    units = [f"{what} {number}" for what in ("multiply-add", "load") for number in range(UNITS)]
    notes = (
        f"Peak of a core: {UNITS} units x {lanes} lanes x 2 operations = {peak} operations a cycle, times its clock and its cores.",
        f"{products} multiply-adds take {cycles} cycles, {loads} loads {feeding}: the step allows {reached:.3g} operations a cycle, "
        f"{reached / peak:.0%} of the peak.",
        f"Drawn for {UNITS} units of each kind; gemmgen analyze measures the rate that a machine's reach.",
    )
    return Timeline("One step along k on the units of a core", tuple(units), (*adds, *reads), "cycles", notes, name="peak")


def _packed(plan: CpuGemmPlan, blocked: BlockedPlan, side: Side) -> PackedOperand:
    left = side == "left"
    access = plan.left if left else plan.right
    lines, panel = (blocked.block_rows, blocked.tile_rows) if left else (blocked.block_columns, blocked.tile_columns)
    axis = plan.rows if left else plan.columns
    stored = "neighbours in the matrix's memory differ in k: packing transposes" if access.along_k else "packing copies runs of the matrix"
    return PackedOperand(access.name, lines, blocked.block_depth, panel, axis, left, stored)
