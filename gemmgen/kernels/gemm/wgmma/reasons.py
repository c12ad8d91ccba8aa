"""Reasons against a GEMM by warpgroups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import Reason
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.gemm.spec import CacheHints, GemmSpec, SplitKCluster, SplitKParallel, StreamK, WgmmaMainloop
from gemmgen.kernels.gemm.tensor_cores.operands import Multiplied
from gemmgen.kernels.gemm.tensor_cores.reasons import (
    BYTE_FLOATS,
    BYTE_INTEGERS,
    COPY_ALIGNMENT,
    box_store_reasons,
    computes_f32,
    result_reasons,
    turning_reasons,
    type_reasons,
)
from gemmgen.kernels.launch import PORTABLE_CLUSTER
from gemmgen.kernels.math.warpgroup import BLOCK_ROWS, INTEGER_COLUMNS, SPAN_BYTES, TRANSPOSED_BYTES, WarpgroupLoop, plan_staging
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.tiles.resources import ResidentBlocks

DEFAULT_PROMOTION = 128
"""Values of k after which sums of 8-bit floats leave the tensor core, if the spec leaves it open: the field's habit."""
MIN_PART = 0.75
"""Part of the columns that a stage holds, at least, that a tile has where rows of 128 bytes run along n."""
MAX_BOX = 256
MAX_INSTRUCTION = 256
"""Columns of the result of a matrix instruction."""


def wgmma_reasons(architecture: Architecture) -> Iterator[Reason]:
    """An architecture without these instructions."""
    if not architecture.supports("wgmma"):
        yield Reason("wgmma", "mainloop.strategy", f"wgmma on {architecture.name}", "sm_90a", "architecture: sm_90a")


def stored_reasons(spec: GemmSpec, mainloop: WgmmaMainloop, matrices: tuple[Matrix, Matrix, Matrix]) -> Iterator[Reason]:
    """Types, storage orders and alignments of factors that are multiplied as they are stored."""
    yield from type_reasons(spec)
    if isinstance(mainloop.promote_every, int) and spec.storage.a in BYTE_INTEGERS:
        yield Reason("promotion", "mainloop.promote_every", "a number", "never for integers, whose sums are exact")
    for matrix in matrices[:2]:
        name = matrix.name.lower()
        if not matrix.along_k and matrix.element_bytes != 2:
            stored = f"{matrix.name} of {matrix.type} stored along {matrix.contiguous}"
            need, hint = "along k: matrix instructions take the other order for 16-bit types only", "change transpose, or copy the matrix"
            yield Reason("major", "transpose", stored, need, hint)
        if matrix.alignment * matrix.element_bytes != COPY_ALIGNMENT:
            need = f"{COPY_ALIGNMENT // matrix.element_bytes}: TMA requires multiples of {COPY_ALIGNMENT} bytes"
            yield Reason("alignment", f"alignment.{name}", str(matrix.alignment), need)


def constant_reasons(spec: GemmSpec, mainloop: WgmmaMainloop) -> Iterator[Reason]:
    """Constant operands whose first tiles are not known, or not there, before the work before the launch has ended."""
    if not spec.constant:
        return
    given = f"[{', '.join(spec.constant)}]"
    if spec.batch == "grouped":
        yield Reason("constant", "constant", given, "[] with groups, whose ends are read from memory first")
    if isinstance(spec.decomposition, StreamK):
        yield Reason("constant", "constant", given, "[] with decomposition.scheme stream_k")
    for operand in spec.constant:
        if mainloop.copied in (operand, "both"):
            yield Reason(
                "constant", "mainloop.copied", mainloop.copied, f"not {operand}, which is constant: its copy is made after the wait"
            )
    if len(set(spec.constant)) < len(spec.constant):
        yield Reason("constant", "constant", given, "each operand at most once")


def promoted_depth(spec: GemmSpec, mainloop: WgmmaMainloop) -> int:
    """Values of k after which sums are promoted; 0: they never are."""
    if mainloop.promote_every == "never" or mainloop.arithmetic.f32_by is not None:
        return 0
    if mainloop.promote_every != "auto":
        return mainloop.promote_every
    if spec.storage.a not in BYTE_FLOATS:
        return 0
    return max(DEFAULT_PROMOTION // mainloop.tile.k, 1) * mainloop.tile.k


def shape_reasons(
    spec: GemmSpec, mainloop: WgmmaMainloop, matrices: tuple[Matrix, Matrix, Matrix], multiplied: Multiplied
) -> Iterator[Reason]:
    """Tiles, groups of warps and instructions that do not fit one another."""
    tile = mainloop.tile
    if mainloop.schedule != "cooperative" and mainloop.consumers != 2:
        yield Reason("consumers", "mainloop.consumers", str(mainloop.consumers), f"2 groups for {mainloop.schedule}")
    rows = BLOCK_ROWS * (mainloop.consumers if mainloop.schedule == "cooperative" else 1)
    if tile.m % rows:
        need = f"a multiple of {rows}: {BLOCK_ROWS} rows for each group of consumers"
        yield Reason("tile_m", "mainloop.tile.m", str(tile.m), need)
    if matrices[0].element_bytes == 1 and spec.storage.a in BYTE_INTEGERS and not spec.dual and tile.n not in INTEGER_COLUMNS:
        yield Reason("tile_n", "mainloop.tile.n", str(tile.n), "8, 16, 24, 32 or a multiple of 16 for integers")
    sides = ((matrices[0], tile.m, mainloop.cluster.n, "m"), (matrices[1], tile.n, mainloop.cluster.m, "n"))
    for (matrix, extent, blocks, field), element_bytes in zip(sides, multiplied.element_bytes, strict=True):
        # Of a sparse A, a row of a tile may be as long as half of that of B.
        halved = mainloop.sparse == "a" and field == "m"
        size = tile.k * element_bytes // (2 if halved else 1)
        if size % SPAN_BYTES and not (halved and size == SPAN_BYTES // 2):
            need = f"a multiple of {SPAN_BYTES // element_bytes}: rows of {SPAN_BYTES} bytes in shared memory"
            yield Reason("tile_k", "mainloop.tile.k", str(tile.k), need)
        along_k = matrix.along_k
        unit = 8 if along_k else SPAN_BYTES // element_bytes
        # Along n, instructions may read a part of a tile's last rows of 128 bytes: the rest is copied nevertheless.
        parts = field == "n" and blocks == 1 and not (along_k or spec.dual or computes_f32(spec))
        if extent % (unit * blocks) and not (parts and extent % 8 == 0 and held_part(extent, unit) >= MIN_PART):
            shared = f" for each of {blocks} blocks that share it" if blocks > 1 else ""
            need = f"a multiple of {unit * blocks}: {unit} {'rows' if along_k else 'columns'} of a tile of {matrix.name}{shared}"
            yield Reason("tile", f"mainloop.tile.{field}", str(extent), need)
        rows_of_box = extent // blocks if along_k else tile.k
        if rows_of_box > MAX_BOX:
            need = f"at most {MAX_BOX} rows in a TMA box"
            yield Reason("box", f"mainloop.tile.{field if along_k else 'k'}", str(rows_of_box), need)
    promotion = promoted_depth(spec, mainloop)
    if mainloop.a_from == "registers" and not computes_f32(spec) and (not matrices[0].along_k or promotion):
        yield a_from_reason(matrices[0], promotion)
    if mainloop.unroll != "full" and mainloop.a_from == "registers":
        need, hint = "full where A comes from registers", "an index that is not known to the compiler cannot choose a register"
        yield Reason("unroll", "mainloop.unroll", str(mainloop.unroll), need, hint)
    if promotion % tile.k:
        yield Reason("promotion", "mainloop.promote_every", str(promotion), f"a multiple of tile.k, {tile.k}")
    columns, multiplied_n = mainloop.instruction_n, (2 if spec.dual else 1) * tile.n
    if (columns or multiplied_n) > MAX_INSTRUCTION:
        most = MAX_INSTRUCTION
        need = f"at most {most // 2} for dual: true: an instruction has the columns of both products, at most {most}"
        yield Reason("dual", "mainloop.tile.n", str(tile.n), need)
    if columns is not None and (promotion != tile.k or multiplied_n % columns):
        need = f"a divisor of {'twice ' if spec.dual else ''}tile.n, {multiplied_n}, and sums promoted after every stage, {tile.k} of k"
        yield Reason("instruction_n", "mainloop.instruction_n", str(columns), need)


def held_part(extent: Any, unit: int) -> Any:
    """Part of the columns that a stage holds, a multiple of ``unit``, that are of a tile; ``extent`` is a number or a column."""
    return extent / (-(-extent // unit) * unit)


def a_from_reason(a: Matrix, promotion: int) -> Reason:
    """A that does not come from registers."""
    got = f"registers with A stored along {a.contiguous}, sums promoted {f'every {promotion}' if promotion else 'never'}"
    need = "shared, or A stored along k, sums that stay in the tensor core, and no float32 by planes but with split: mainloop"
    return Reason("a_from", "mainloop.a_from", got, need)


def combination_reasons(spec: GemmSpec, mainloop: WgmmaMainloop) -> Iterator[Reason]:
    """Parts of the mainloop that exclude one another, or other fields of the spec."""
    cluster, decomposition = mainloop.cluster, spec.decomposition
    if mainloop.schedule == "alternating" and (mainloop.arithmetic.split != "mainloop" or mainloop.persistent_blocks):
        got = f"alternating with split: {mainloop.arithmetic.split}, {mainloop.persistent_blocks} persistent blocks"
        yield Reason("schedule", "mainloop.schedule", got, "arithmetic.split: mainloop and persistent_blocks: 0 for alternating")
    if mainloop.arithmetic.split == "mainloop" and mainloop.arithmetic.f32_by is None:
        yield Reason("split", "mainloop.arithmetic.split", "mainloop without f32_by", "kernel, or arithmetic.f32_by: bf16x6")
    if cluster.m > 1 and cluster.n > 1 and spec.scales.given:
        yield Reason("cluster", "mainloop.cluster", f"{cluster.m} x {cluster.n}", "1 along m or along n with block scales")
    if cluster.m * cluster.n > PORTABLE_CLUSTER:
        yield Reason("cluster", "mainloop.cluster", f"{cluster.m} x {cluster.n}", f"at most {PORTABLE_CLUSTER} blocks")
    if decomposition.scheme not in ("data_parallel", "split_k_parallel", "split_k_cluster", "stream_k"):
        need = "data_parallel, split_k_parallel, split_k_cluster or stream_k for tensor cores"
        yield Reason("decomposition", "decomposition.scheme", decomposition.scheme, need)
    if mainloop.copied != "none":
        if isinstance(decomposition, SplitKParallel | StreamK) or spec.batch == "grouped" or computes_f32(spec):
            need = "none with split_k_parallel, stream_k, groups, or float32 by planes, which have other uses for the workspace"
            yield Reason("copied", "mainloop.copied", mainloop.copied, need)
        if mainloop.copied == "both" and spec.storage.a != spec.storage.b:
            yield Reason(
                "copied", "mainloop.copied", "both", f"a or b for factors of different types, {spec.storage.a} and {spec.storage.b}"
            )
    if isinstance(decomposition, SplitKCluster):
        if cluster.m * cluster.n > 1:
            yield Reason("cluster", "mainloop.cluster", f"{cluster.m} x {cluster.n}", "1 x 1: the cluster's blocks split k")
        if mainloop.persistent_blocks or mainloop.schedule == "ping_pong":
            need = "persistent_blocks: 0 and schedule: cooperative for split_k_cluster"
            yield Reason("decomposition", "mainloop", f"{mainloop.persistent_blocks} blocks, {mainloop.schedule}", need)
        plain = (
            spec.store == "tma" and not spec.dual and not computes_f32(spec) and spec.beta == "zero" and mainloop.schedule == "cooperative"
        )
        if decomposition.finish == "all" and not (plain and not any(o.like_output for op in spec.epilogue for o in op.operands())):
            need = "first without store: tma, or with a second product, an epilogue that reads matrices, or float32 by planes"
            yield Reason("finish", "decomposition.finish", "all", need)
    if isinstance(decomposition, StreamK):
        if cluster.m * cluster.n > 1 or mainloop.schedule == "ping_pong":
            need = "no clusters and schedule: cooperative for stream_k: those that work together would have to cut tiles alike"
            yield Reason("decomposition", "mainloop", f"clusters of {cluster.m * cluster.n}, {mainloop.schedule}", need)
        if mainloop.persistent_blocks:
            need = "0 for stream_k: decomposition.blocks says how many there are"
            yield Reason("persistent_blocks", "mainloop.persistent_blocks", str(mainloop.persistent_blocks), need)
    if mainloop.tiles == "dynamic":
        if not mainloop.persistent_blocks or cluster.m * cluster.n > 1 or decomposition.scheme != "data_parallel":
            need = "persistent_blocks, no clusters and decomposition.scheme: data_parallel for dynamic tiles"
            got = f"{mainloop.persistent_blocks} blocks, clusters of {cluster.m * cluster.n}, {decomposition.scheme}"
            yield Reason("tiles", "mainloop.tiles", f"dynamic with {got}", need)
        if mainloop.copied != "none" or computes_f32(spec):
            need = "static where factors are copied first, or float32 is computed by planes: the workspace has other uses"
            yield Reason("tiles", "mainloop.tiles", "dynamic", need)
    yield from result_reasons(spec, in_boxes=True)
    fits = mainloop.tiles == "static" and cluster.m * cluster.n == 1 and mainloop.consumers <= 2 and mainloop.a_from == "shared"
    if spec.grouping.gathered and not fits:
        got = f"{mainloop.tiles} tiles, clusters of {cluster.m * cluster.n}, {mainloop.consumers} groups, A from {mainloop.a_from}"
        need = "tiles: static, no clusters, up to 2 consumers and a_from: shared: the producer's threads copy the rows"
        yield Reason("gather", "mainloop", got, need)
    blocks = cluster.m * cluster.n
    if mainloop.persistent_blocks % blocks:
        need = f"a multiple of {blocks}, the blocks of a cluster"
        yield Reason("persistent_blocks", "mainloop.persistent_blocks", str(mainloop.persistent_blocks), need)
    if spec.store == "through_shared":
        yield from turning_reasons(spec)
    if spec.store == "tma":
        column_major = spec.order == "column_major"
        if column_major:
            yield from column_major_reasons(spec)
        if isinstance(decomposition, SplitKParallel):
            yield Reason("store", "store", "tma with split_k_parallel", "direct: sums go to a workspace, a second kernel writes C")
        yield from box_store_reasons(spec)
        size = ELEMENTS[spec.storage.c].bytes
        if not column_major and plan_staging(mainloop.tile.n, 1, size, 1) is None:
            need = f"a multiple of {COPY_ALIGNMENT // size} for store: tma"
            yield Reason("tile_n", "mainloop.tile.n", str(mainloop.tile.n), need)
    hints = CacheHints(l2_policy_a=spec.cache.l2_policy_a, l2_policy_b=spec.cache.l2_policy_b)
    if spec.cache != hints:
        yield Reason("cache", "cache", "hints", "l2_policy_a or l2_policy_b: TMA moves tiles past the L1")
    elif hints != CacheHints() and (spec.batch == "grouped" or computes_f32(spec)):
        yield Reason("cache", "cache", "a policy of the L2", "none with groups, or where float32 is computed by planes")


def column_major_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Column-major results that TMA does not store."""
    got = "tma with order: column_major"
    if ELEMENTS[spec.storage.c].bytes not in TRANSPOSED_BYTES:
        need = "elements of 16 or 32 bits, order: row_major, or store: direct"
        yield Reason("store", "store", f"{got} and results of {spec.storage.c}", need)
    matrices = spec.beta != "zero" or any(operand.like_output for operation in spec.epilogue for operand in operation.operands())
    if matrices or spec.batch == "grouped" or spec.dual:
        need = "order: row_major, or store: direct, with groups, a second product or an epilogue that reads matrices"
        yield Reason("store", "store", got, need)


def resource_reasons(loop: WarpgroupLoop, architecture: Architecture) -> Iterator[Reason]:
    """More registers or shared memory than the architecture has."""
    resident = ResidentBlocks(architecture, loop.min_blocks_per_sm, loop.threads)
    limit = loop.registers[1] if loop.registers else resident.allocated_registers
    hint = "a smaller tile, instruction_n where sums are promoted, or fewer blocks"
    yield from resident.too_many_sums(loop.sums, limit, "mainloop.tile", hint)
    yield from resident.too_much_per_block(loop.shared_bytes)
