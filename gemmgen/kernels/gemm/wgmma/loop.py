"""The mainloop of a GEMM by warpgroups in numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import Reason
from gemmgen.core.formulas import round_up
from gemmgen.kernels.epilogue.operations import Operand, Operation
from gemmgen.kernels.epilogue.products import plan_epilogue
from gemmgen.kernels.epilogue.steps import Access, Step, Store
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.gemm.plan import Outline
from gemmgen.kernels.gemm.spec import DataParallel, GemmSpec, SplitKCluster, WgmmaMainloop
from gemmgen.kernels.gemm.tensor_cores.operands import Multiplied
from gemmgen.kernels.gemm.tensor_cores.reasons import COPY_ALIGNMENT
from gemmgen.kernels.gemm.wgmma.reasons import (
    combination_reasons,
    promoted_depth,
    resource_reasons,
    shape_reasons,
    wgmma_reasons,
)
from gemmgen.kernels.gemm.wgmma.scaled import SCALE_WARPS, has_few_columns, scale_blocks, scale_bytes, scale_steps
from gemmgen.kernels.math.warpgroup import (
    BLOCK_ROWS,
    INSTRUCTION_BYTES,
    SPAN_BYTES,
    TICKET_BYTES,
    TRANSPOSED_COLUMNS,
    WARPGROUP,
    WarpgroupLoop,
    WarpgroupOperand,
    plan_staging,
)
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.tiles.resources import ResidentBlocks
from gemmgen.kernels.tiles.unrolling import unroll_argument

STORE_BUFFERS = 2
"""Boxes of results of a group in flight at a time."""
PRODUCER_REGISTERS = {2: 40, 3: 32}
CONSUMER_REGISTERS = {2: 232, 3: 160}
"""Registers of a thread, by the number of groups that multiply, after the producer released most of its registers: multiples of 8 whose
sum does not exceed an SM's registers."""
MOVING_REGISTERS = {2: (56, 224), 3: (56, 152)}
"""Registers for groups whose producer's threads copy gathered rows of A, of which each knows several, or bring block scales."""
SCALE_REGISTERS = 80, 208
"""Registers for two groups with few columns, whose producer then has the scales of more steps under way."""
AHEAD_BYTES = 64 << 10
"""Bytes of a constant operand that the L2 fetches for the blocks of an SM before they wait for earlier work, beside those that come to the
stages. With 50 KiB for each block, 24 chains of three layers took 1.3% less time on an H200 for 64 rows, and 3% less for 16 and for one,
where no blocks shared an SM; with 150 KiB, 64 rows took 1% more than without."""
PLANES_REGISTERS = 24, 240
"""Registers of producer and consumers for two groups with compensated sums."""


def warpgroup_loop(
    outline: Outline,
    mainloop: WgmmaMainloop,
    matrices: tuple[Matrix, Matrix, Matrix],
    multiplied: Multiplied,
    unfit: Iterable[Reason],
) -> WarpgroupLoop | None:
    """The loop, or None with the errors added to the outline's reasons; ``matrices``: as the mainloop reads them; ``unfit``: reasons
    against the operands' types or layouts."""
    spec, architecture = outline.spec, outline.architecture
    reasons = [
        *wgmma_reasons(architecture),
        *unfit,
        *shape_reasons(spec, mainloop, matrices, multiplied),
        *combination_reasons(spec, mainloop),
    ]
    outline.reasons += reasons
    if reasons:
        return None
    tile, cluster = mainloop.tile, mainloop.cluster
    skips_rows = spec.batch == "grouped" and mainloop.consumers > 1 and mainloop.schedule == "cooperative"
    pieces = mainloop.consumers if skips_rows and matrices[0].along_k and cluster.n == 1 and not spec.grouping.gathered else 1
    products = 2 if spec.dual else 1
    sparse = mainloop.sparse == "a"
    sides: tuple[tuple[Literal["A", "B"], Literal["m", "n"], Matrix, int, int, int], ...] = (
        ("A", "m", matrices[0], tile.m, cluster.n, pieces),
        ("B", "n", matrices[1], products * tile.n, cluster.m, 1),
    )
    a, b = (
        WarpgroupOperand(
            name=name,
            axis=axis,
            k_major=matrix.along_k,
            extent=extent if matrix.along_k else round_up(extent, SPAN_BYTES // element_bytes),
            tile_k=depth,
            element_bytes=element_bytes,
            blocks=blocks,
            planes=planes,
            row_bytes=min(SPAN_BYTES, depth * element_bytes) if matrix.along_k else SPAN_BYTES,
            pieces=boxes,
            sources=products if name == "B" else 1,
            step_bytes=INSTRUCTION_BYTES * (2 if sparse and name == "B" else 1),
        )
        for (name, axis, matrix, extent, blocks, boxes), element_bytes, planes, depth in zip(
            sides, multiplied.element_bytes, multiplied.planes, (tile.k // 2 if sparse else tile.k, tile.k), strict=True
        )
    )
    loop = WarpgroupLoop(
        a=a,
        b=b,
        tile_m=tile.m,
        tile_n=tile.n,
        tile_k=tile.k,
        instruction_n=mainloop.instruction_n or products * tile.n,
        stages=mainloop.stages,
        consumers=mainloop.consumers,
        ping_pong=mainloop.schedule == "ping_pong",
        cluster_m=cluster.m,
        cluster_n=cluster.n,
        cluster_k=spec.decomposition.slices if isinstance(spec.decomposition, SplitKCluster) else 1,
        type_a=multiplied.types[0],
        type_b=multiplied.types[1],
        kept_sums=multiplied.kept_sums,
        staggered=mainloop.consumers == 2 and multiplied.staggered,
        staging=None,
        promote_steps=promoted_depth(spec, mainloop) // tile.k,
        registers=None,
        persistent_blocks=mainloop.persistent_blocks,
        min_blocks_per_sm=mainloop.min_blocks_per_sm,
        dynamic=mainloop.tiles == "dynamic",
        a_in_registers=mainloop.a_from == "registers" or multiplied.split_registers > 0,
        split_registers=multiplied.split_registers,
        k_groups=2 if mainloop.schedule == "alternating" else 1,
        skips_rows=skips_rows,
        unroll=unroll_argument(mainloop.unroll),
        products=products,
        scale_bytes=scale_bytes(spec, mainloop),
        scale_blocks=scale_blocks(spec, mainloop),
        scale_warps=SCALE_WARPS if spec.scales.given and not spec.grouping.gathered else 0,
        scale_steps=scale_steps(spec, mainloop),
        product_sets=mainloop.product_sets,
        sparse=sparse,
        gathers=spec.grouping.gathered,
    )
    if mainloop.consumers > 1 and mainloop.min_blocks_per_sm == 1:
        shares = PRODUCER_REGISTERS[mainloop.consumers], CONSUMER_REGISTERS[mainloop.consumers]
        shares = MOVING_REGISTERS[mainloop.consumers] if spec.grouping.gathered or spec.scales.given else shares
        shares = SCALE_REGISTERS if spec.scales.given and not spec.grouping.gathered and has_few_columns(mainloop) else shares
        loop = replace(loop, registers=PLANES_REGISTERS if loop.staggered else shares)
    if spec.store == "tma":
        column_major = spec.order == "column_major"
        parts = loop.cluster_k if finish_all(spec) else 1
        buffers = 1 if finish_all(spec) else STORE_BUFFERS
        staging = plan_staging(tile.n, loop.blocks_m, matrices[2].element_bytes, buffers, column_major, parts)
        if staging is None:
            need = f"boxes that divide the columns of a tile evenly among {parts} blocks"
            outline.reasons.append(Reason("finish", "mainloop.tile.n", str(tile.n), need))
        loop = replace(loop, staging=staging, scatters=finish_all(spec))
        room = ResidentBlocks(architecture, loop.min_blocks_per_sm, loop.threads).shared_bytes
        if spec.scales.given and loop.shared_bytes > room:
            # Scales take the room of one of two buffers: a stage more is worth more than results that leave sooner.
            loop = replace(loop, staging=plan_staging(tile.n, loop.blocks_m, matrices[2].element_bytes, 1, column_major, parts))
        loop = replace(loop, operand_boxes=_operand_boxes(spec, loop))
        in_boxes = staging is not None and not column_major and not loop.operand_boxes and _reads_in_boxes(spec)
        loop = replace(loop, residual=in_boxes)
        loop = replace(loop, last_operand_boxes=_last_operand_boxes(spec, loop))
        columns = replace(loop, column_bytes=_column_bytes(spec, matrices[2], tile.n))
        loop = columns if columns.shared_bytes <= room else loop
    elif spec.store == "through_shared":
        loop = replace(loop, transposed_store=True)
    loop = replace(loop, ahead=_tiles_ahead(spec, loop))
    outline.reasons += resource_reasons(loop, architecture)
    return loop


def _tiles_ahead(spec: GemmSpec, loop: WarpgroupLoop) -> int:
    """Tiles of the constant operand that the L2 fetches before the wait."""
    operand = loop.a if spec.constant == ("a",) else loop.b
    if len(spec.constant) != 1 or spec.batch != "none" or spec.dual or loop.sparse or operand.blocks > 1:
        return 0
    return AHEAD_BYTES // loop.min_blocks_per_sm // operand.tile_bytes


def finish_all(spec: GemmSpec) -> bool:
    """True if each block of a cluster along k finishes a part of a tile's columns."""
    return isinstance(spec.decomposition, SplitKCluster) and spec.decomposition.finish == "all"


def _column_bytes(spec: GemmSpec, matrix: Matrix, columns: int) -> int:
    """Bytes of the epilogue's values for each of a tile's columns; groups of rows have their own."""
    steps = plan_epilogue(spec.epilogue, matrix, [])
    return sum(vector_bytes(columns) for step in steps for access in step.accesses if access.operand.per == "column")


def vector_bytes(columns: int) -> int:
    """Shared memory for one float32 a column."""
    return round_up(4 * columns, COPY_ALIGNMENT)


def _reads_in_boxes(spec: GemmSpec) -> bool:
    return has_one_matrix(spec.epilogue, spec.storage.c) and spec.batch != "grouped" and spec.beta == "zero"


def staged_operand(epilogue: Sequence[Operation], stored: str) -> Operand | None:
    """The epilogue's only matrix of C's shape that has C's type or float32, which stages may bring; ``stored``: C's type."""
    operands = [operand for operation in epilogue for operand in operation.operands() if operand.like_output]
    return operands[0] if len(operands) == 1 and operands[0].stored in (None, stored, "f32") else None


def operand_in_stages(loop: WarpgroupLoop, epilogue: Sequence[Step]) -> Access | None:
    """The operand of the epilogue that stages bring; None if they bring none."""
    operands = (access for step in epilogue for access in step.accesses if access.operand.like_output)
    return next(operands, None) if loop.operand_boxes else None


def last_operand(loop: WarpgroupLoop, epilogue: Sequence[Step]) -> Access | None:
    """The float32 matrix of the epilogue that stages bring for a block's last tile alone; None if they bring none."""
    operands = (access for step in epilogue for access in step.accesses if access.operand.like_output)
    return next(operands, None) if loop.last_operand_boxes and not loop.residual else None


def _operand_boxes(spec: GemmSpec, loop: WarpgroupLoop) -> int:
    """Boxes in which stages bring an operand of the epilogue: where a block multiplies for itself, and has no other tile whose factors
    would wait for them. On an H200, that made two products of 128 tiles 1 to 9% faster, and others of more tiles 7 to 25% slower."""
    operand = staged_operand(spec.epilogue, spec.storage.c)
    if operand is None or loop.staging is None or not loop.staging.matrices or loop.staging.column_major or spec.constant:
        return 0
    alone = spec.batch == "none" and loop.cluster_blocks == 1 and isinstance(spec.decomposition, DataParallel) and loop.k_groups == 1
    alone = alone and not loop.persistent_blocks and not loop.dynamic and not loop.ping_pong
    whole = loop.mainloop == "accumulate" and loop.a.tile_bytes == loop.tile_m * SPAN_BYTES <= loop.b.tile_bytes
    if not alone or not whole or loop.gathers or loop.scale_bytes or spec.beta != "zero":
        return 0
    columns = SPAN_BYTES // ELEMENTS[operand.stored or spec.storage.c].bytes
    boxes = -(-loop.tile_n // columns)
    return boxes if replace(loop, operand_boxes=boxes).operand_stages <= loop.stages else 0


def _last_operand_boxes(spec: GemmSpec, loop: WarpgroupLoop) -> int:
    """Boxes in which stages bring a matrix of a block's last tile, where groups take turns: no other tile's factors wait for them, and no
    group multiplies while this one waits for its boxes. On an H200, that made three products with a bfloat16 gate 0.6 to 0.9 us faster,
    and with a float32 residual 2.1 to 2.6 us, of 87 to 113."""
    operand = staged_operand(spec.epilogue, spec.storage.c)
    if operand is None or not loop.ping_pong or loop.staging is None or not loop.staging.matrices or spec.constant:
        return 0
    if loop.staging.column_major or spec.beta != "zero" or not (loop.residual or operand.stored == "f32"):
        return 0
    alone = spec.batch == "none" and loop.cluster_blocks == 1 and isinstance(spec.decomposition, DataParallel)
    alone = alone and loop.persistent_blocks > 0 and not loop.dynamic and not loop.gathers and not loop.scale_bytes
    whole = loop.mainloop == "accumulate" and loop.a.tile_bytes == loop.tile_m * SPAN_BYTES <= loop.b.tile_bytes
    boxes = loop.tile_n // loop.staging.columns if loop.residual else -(-loop.tile_n * ELEMENTS["f32"].bytes // SPAN_BYTES)
    return boxes if alone and whole and replace(loop, last_operand_boxes=boxes).operand_stages <= loop.stages else 0


def boxed_outputs(spec: GemmSpec, loop: WarpgroupLoop, epilogue: Sequence[Step]) -> tuple[Store, ...]:
    """Further outputs of C's type that TMA stores as it does C: those that find a buffer each beside C's, where another group
    multiplies while this one waits for the buffers, or a block has one tile. On an H200, that made five products in ping-pong 1 to 2%
    faster, two of one tile for each block 0.4 and 1.8%, and another by groups that share one tile after the other 2% slower."""
    staging = loop.staging
    if staging is None or not staging.matrices or loop.residual or spec.batch != "none":
        return ()
    if not loop.ping_pong and (loop.persistent_blocks or loop.dynamic or loop.consumers == 1 or loop.cluster_blocks > 1):
        return ()
    stores = tuple(store for step in epilogue for store in step.stores if store.output.reduce is None and store.type == spec.storage.c)
    return stores if len(stores) < staging.buffers else ()


def has_one_matrix(epilogue: Sequence[Operation], stored: str) -> bool:
    """True if the epilogue reads one matrix of C's shape and type, which comes in boxes to where the results are collected."""
    operands = [operand for operation in epilogue for operand in operation.operands() if operand.like_output]
    return sum(operand.stored is None or (operand.stored == stored and ELEMENTS[operand.stored].is_float) for operand in operands) == 1


def warpgroup_regions(loop: WarpgroupLoop) -> tuple[SharedRegion, ...]:
    """Shared memory of a block: tiles, staged results or sums, barriers."""
    regions: list[SharedRegion] = []

    def add(name: str, type: str, shape: tuple[int, ...], size: int, meaning: str) -> None:
        offset = regions[-1].offset + regions[-1].bytes if regions else 0
        regions.append(SharedRegion(name, type, shape, offset, size, meaning))

    for operand in (loop.a, loop.b):
        element = "f32" if operand.name == "A" and loop.split_registers else loop.type_a if operand.name == "A" else loop.type_b
        c_type = ELEMENTS[element].c_type
        size = operand.row_bytes
        rows = operand.tile_bytes // size
        meaning = f"tiles of {operand.name}, [stage][row][{'k' if operand.k_major else operand.axis}], rows of {size} bytes, swizzled"
        shape = (loop.stages, rows, operand.span_elements)
        add(f"tiles_{operand.suffix}", c_type, shape, loop.stages * operand.tile_bytes, meaning)
    if loop.sparse:
        size = loop.stages * loop.metadata_pitch
        add("metadata", "unsigned", (loop.stages, loop.metadata_pitch // 4), size, "metadata of A, [stage][64 rows][64 of k][lane]")
    if loop.staging is not None:
        buffers = (loop.consumers, loop.staging.buffers, loop.staging.buffer_bytes // SPAN_BYTES, SPAN_BYTES)
        size = loop.consumers * loop.staging.group_bytes
        add("staging", "unsigned char", buffers, size, "staged results, [group][buffer][row][byte], swizzled")
    if loop.transposed_store:
        shape = (loop.consumers, BLOCK_ROWS, TRANSPOSED_COLUMNS)
        add("transposed", loop.accumulator, shape, loop.consumers * loop.transposed_bytes, "staged results, [group][row][column], swizzled")
    if loop.column_bytes:
        size = loop.consumers * loop.column_bytes
        add("columns", "unsigned char", (loop.consumers, loop.column_bytes), size, "values for each column of a tile, [group][byte]")
    if loop.cluster_k > 1:
        matrices_held = loop.blocks_m * loop.tile_n // 8 // (loop.cluster_k if loop.scatters else 1)
        held = (loop.cluster_k - 1, matrices_held, WARPGROUP * loop.consumers // loop.k_groups, 4)
        add("sums", loop.accumulator, held, loop.sums_bytes, "sums of the cluster's other blocks, as their threads hold them")
    if loop.extremes_bytes:
        held = (loop.cluster_k - 1, loop.blocks_m, WARPGROUP * loop.consumers // loop.k_groups // 4, 4)
        add("extremes", "unsigned", held, loop.extremes_bytes, "extremes of the rows that those have split, for two rows each")
    if loop.scale_bytes:
        add(
            "scales",
            "float",
            (loop.stages, loop.scale_blocks * loop.scale_bytes // 4),
            loop.stages * loop.scale_blocks * loop.scale_bytes,
            "block scales of a stage, those of A first",
        )
    add(
        "barriers",
        "unsigned long long",
        (loop.barriers,),
        8 * loop.barriers,
        "for each stage: it is full, it is empty; turns of groups; boxes; tickets",
    )
    if loop.tickets:
        add("tickets", "int", (loop.tickets,), TICKET_BYTES * loop.tickets, "pieces of work that the producer has drawn")
    return tuple(regions)
