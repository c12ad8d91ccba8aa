"""Planning of GEMMs on tensor cores of sm_90a: what a spec's numbers come to, and why some cannot work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import Reason
from gemmgen.core.formulas import round_up
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.epilogue.operations import Factor
from gemmgen.kernels.epilogue.products import plan_epilogue
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.gemm.spec import (
    Arithmetic,
    CacheHints,
    GemmSpec,
    MmaSyncMainloop,
    SplitKCluster,
    SplitKParallel,
    StreamK,
    TensorCoreMainloop,
)
from gemmgen.kernels.gemm.split_precision.planes import SETS_OF_SUMS, Scheme, is_compensated, plane_scheme
from gemmgen.kernels.gemm.wgmma.copied import as_copied
from gemmgen.kernels.math.warpgroup import (
    BLOCK_ROWS,
    INTEGER_COLUMNS,
    SPAN_BYTES,
    TICKET_BYTES,
    TURNED_COLUMNS,
    WARPGROUP,
    WarpgroupLoop,
    WarpgroupOperand,
    plan_staging,
)
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.tiles.resources import ResidentBlocks
from gemmgen.kernels.tiles.unrolling import unroll_argument

BYTE_FLOATS = ("e4m3", "e5m2")
BYTE_INTEGERS = ("s8", "u8")
DEFAULT_PROMOTION = 128
"""Values of k after which sums of 8-bit floats leave the tensor core, if the spec leaves it open: the field's habit."""
COPY_ALIGNMENT = 16
"""Bytes that the copy engine wants addresses and strides to be multiples of."""
LARGEST_BOX = 256
STORE_BUFFERS = 2
"""Boxes of results of a group in flight at a time."""
PRODUCER_REGISTERS = {2: 40, 3: 32}
CONSUMER_REGISTERS = {2: 232, 3: 160}
"""Registers of a thread, by the number of groups that multiply, after the producer gave up most of its own: multiples of 8 that
add up to no more than an SM has."""
PLANES_REGISTERS = 24, 240
"""The same for two groups with compensated sums."""


def warpgroup_loop(
    spec: GemmSpec,
    mainloop: TensorCoreMainloop,
    matrices: tuple[Matrix, Matrix, Matrix],
    architecture: Architecture,
    reasons: list[Reason],
) -> WarpgroupLoop | None:
    """The loop, or None with what is wrong added to ``reasons``."""
    scheme = plane_scheme(mainloop.arithmetic)
    matrices = as_copied(spec, matrices[0]), as_copied(spec, matrices[1]), matrices[2]
    unfit = [
        *_architecture_reasons(architecture),
        *(type_reasons(spec) if scheme is None else plane_reasons(spec, mainloop.arithmetic, matrices, scheme)),
        *(() if scheme is None else _plane_loop_reasons(spec, mainloop, scheme)),
        *(_layout_reasons(matrices) if scheme is None else ()),
        *_shape_reasons(spec, mainloop, matrices),
        *_combination_reasons(spec, mainloop),
    ]
    reasons += unfit
    if unfit:
        return None
    tile, cluster = mainloop.tile, mainloop.cluster
    planes = 1 if scheme is None else scheme.planes
    splits_rows = scheme is not None and mainloop.arithmetic.split == "mainloop"
    skips_rows = spec.batch == "grouped" and mainloop.consumers > 1 and mainloop.schedule == "cooperative"
    pieces = mainloop.consumers if skips_rows and matrices[0].contiguous == "k" and cluster.n == 1 else 1
    sides: tuple[tuple[Literal["A", "B"], Literal["m", "n"], Matrix, int, int, int], ...] = (
        ("A", "m", matrices[0], tile.m, cluster.n, pieces),
        ("B", "n", matrices[1], tile.n, cluster.m, 1),
    )
    a, b = (
        WarpgroupOperand(
            name=name,
            axis=axis,
            k_major=matrix.contiguous == "k",
            extent=extent,
            tile_k=tile.k,
            element_bytes=_factor_bytes(matrix, None if splits_rows and name == "A" else scheme),
            blocks=blocks,
            planes=1 if splits_rows and name == "A" else planes,
            pieces=boxes,
        )
        for name, axis, matrix, extent, blocks, boxes in sides
    )
    promotion = _promotion(spec, mainloop)
    types = (matrices[0].type, matrices[1].type) if scheme is None else (scheme.type, scheme.type)
    loop = WarpgroupLoop(
        a=a,
        b=b,
        tile_m=tile.m,
        tile_n=tile.n,
        tile_k=tile.k,
        instruction_n=mainloop.instruction_n or tile.n,
        stages=mainloop.stages,
        consumers=mainloop.consumers,
        ping_pong=mainloop.schedule == "ping_pong",
        cluster_m=cluster.m,
        cluster_n=cluster.n,
        cluster_k=spec.decomposition.slices if isinstance(spec.decomposition, SplitKCluster) else 1,
        type_a=types[0],
        type_b=types[1],
        kept_sums=0 if scheme is None else 1 if splits_rows else SETS_OF_SUMS,
        staggered=mainloop.consumers == 2 and is_compensated(mainloop.arithmetic) and not splits_rows,
        staging=None,
        promote_steps=promotion // tile.k,
        registers=None,
        persistent_blocks=mainloop.persistent_blocks,
        min_blocks_per_sm=mainloop.min_blocks_per_sm,
        dynamic=mainloop.tiles == "dynamic",
        a_in_registers=mainloop.a_from == "registers" or splits_rows,
        split_registers=_split_registers(mainloop, scheme) if splits_rows else 0,
        k_groups=2 if mainloop.schedule == "alternating" else 1,
        skips_rows=skips_rows,
        unroll=unroll_argument(mainloop.unroll),
    )
    if mainloop.consumers > 1 and mainloop.min_blocks_per_sm == 1:
        shares = PRODUCER_REGISTERS[mainloop.consumers], CONSUMER_REGISTERS[mainloop.consumers]
        loop = replace(loop, registers=PLANES_REGISTERS if loop.staggered else shares)
    if spec.store == "tma":
        staging = plan_staging(tile.n, loop.blocks_m, matrices[2].element_bytes, STORE_BUFFERS)
        loop = replace(loop, staging=staging, residual=staging is not None and _has_residual_alone(spec))
        columns = replace(loop, column_bytes=_column_bytes(spec, matrices[2], tile.n))
        room = ResidentBlocks(architecture, columns.min_blocks_per_sm, columns.threads).shared_bytes
        loop = columns if columns.shared_bytes <= room else loop
    elif spec.store == "through_shared":
        loop = replace(loop, turned=True)
    reasons += _resource_reasons(loop, architecture)
    return loop


def _split_registers(mainloop: TensorCoreMainloop, scheme: Scheme | None) -> int:
    """Fragments of rows of A that a thread splits at a time, and as many that are multiplied meanwhile."""
    assert scheme is not None
    every = mainloop.promote_every if isinstance(mainloop.promote_every, int) else scheme.promote_every
    return 2 * scheme.planes * every // scheme.instruction_k


def _column_bytes(spec: GemmSpec, matrix: Matrix, columns: int) -> int:
    """Bytes of the epilogue's values for each of a tile's columns; groups of rows have their own."""
    steps = plan_epilogue(spec.epilogue, matrix, [])
    return sum(
        vector_bytes(columns, ELEMENTS[access.stored].bytes) for step in steps for access in step.accesses if access.operand.per == "column"
    )


def vector_bytes(columns: int, element_bytes: int) -> int:
    """Shared memory for one value a column."""
    return round_up(columns * element_bytes, COPY_ALIGNMENT)


def _has_residual_alone(spec: GemmSpec) -> bool:
    """True if a residual is the only matrix that the epilogue reads, and lies as C does, without groups."""
    matrices = [operation for operation in spec.epilogue if operation.op in ("residual", "multiply")]
    return len(matrices) == 1 and matrices[0].op == "residual" and spec.batch != "grouped" and spec.beta == "zero"


def _factor_bytes(matrix: Matrix, scheme: Scheme | None) -> int:
    """Bytes of an element of A or B as tensor cores read it."""
    return matrix.element_bytes if scheme is None else scheme.element_bytes


def plane_reasons(spec: GemmSpec, arithmetic: Arithmetic, matrices: tuple[Matrix, Matrix, Matrix], scheme: Scheme) -> Iterator[Reason]:
    """Reasons against float32 products by planes, whatever the instructions, beside what holds for all products on tensor cores."""
    types = [matrix.type for matrix in matrices]
    if types != ["f32"] * 3:
        need = "f32 for A, B and C where arithmetic.f32_by is given"
        yield Reason("storage", "storage", ", ".join(types), need)
    if arithmetic.kept != "none" and spec.batch != "none":
        yield Reason("kept", "mainloop.arithmetic.kept", arithmetic.kept, "none for a batch")
    if spec.batch == "grouped":
        yield Reason("batch", "batch", "grouped", "none or strided where float32 is computed by planes")
    if spec.store != "direct":
        need = "direct: results that are computed in float32 are left out, element by element"
        yield Reason("store", "store", spec.store, need)
    for matrix in matrices[:2]:
        if matrix.contiguous != "k" and scheme.element_bytes != 2:
            stored = f"{matrix.name} stored along {matrix.contiguous}"
            need, hint = f"along k for {scheme.name}", "f16x3 and bf16x6 take both orders"
            yield Reason("major", "transpose", stored, need, hint)


def _plane_loop_reasons(spec: GemmSpec, mainloop: TensorCoreMainloop, scheme: Scheme) -> Iterator[Reason]:
    """Reasons against such products by this mainloop."""
    if spec.decomposition.scheme not in ("data_parallel", "split_k_parallel", "split_k_cluster"):
        need = "data_parallel, split_k_parallel or split_k_cluster where float32 is computed by planes"
        yield Reason("decomposition", "decomposition.scheme", spec.decomposition.scheme, need)
    every = mainloop.promote_every
    if every != "auto" and (every == "never" or every % scheme.instruction_k or mainloop.tile.k % every):
        need = f"auto, or a multiple of {scheme.instruction_k} that divides tile.k, {mainloop.tile.k}"
        yield Reason("promotion", "mainloop.promote_every", str(every), need)
    if mainloop.instruction_n is not None:
        yield Reason("instruction_n", "mainloop.instruction_n", str(mainloop.instruction_n), "none where float32 is computed by planes")
    if mainloop.schedule == "ping_pong":
        yield Reason("schedule", "mainloop.schedule", "ping_pong", "cooperative where float32 is computed by planes")
    if mainloop.arithmetic.split == "mainloop":
        yield from _split_reasons(spec, mainloop, scheme)


def _split_reasons(spec: GemmSpec, mainloop: TensorCoreMainloop, scheme: Scheme) -> Iterator[Reason]:
    """Reasons against rows of A that are split by the warps that multiply them."""
    field = "mainloop.arithmetic.split"
    if scheme.type != "bf16":
        need = "kernel" + (": scales are known when a row has been read" if scheme.scaled else ", or another scheme")
        yield Reason("split", field, f"mainloop for {scheme.name}", need, "f32_by: bf16x6, whose planes need no scales")
    if spec.batch != "none" or mainloop.arithmetic.kept != "none":
        got = f"mainloop with batch: {spec.batch}, kept: {mainloop.arithmetic.kept}"
        yield Reason("split", field, got, "kernel for batches, and where planes are kept")
    if isinstance(spec.decomposition, SplitKParallel):
        need = "kernel for split_k_parallel: whether planes hold a row is known where all of it has been read"
        yield Reason("split", field, "mainloop with split_k_parallel", need, "scheme: split_k_cluster")
    if spec.alignment.a * ELEMENTS[spec.storage.a].bytes < COPY_ALIGNMENT:
        got = f"mainloop with alignment.a: {spec.alignment.a}"
        yield Reason("split", field, got, "alignment.a: 4, as the copy engine wants it", "split: kernel")
    if mainloop.cluster.m * mainloop.cluster.n > 1:
        got = f"mainloop with clusters of {mainloop.cluster.m} x {mainloop.cluster.n}"
        yield Reason("split", field, got, "blocks that share no tiles")
    every = mainloop.promote_every if isinstance(mainloop.promote_every, int) else scheme.promote_every
    pair = 2 * every * (mainloop.consumers if mainloop.schedule == "alternating" else 1)
    if mainloop.tile.k % pair:
        need = f"a multiple of {pair}: of each group, rows of {every} steps are split while those before are multiplied, in pairs"
        yield Reason("tile_k", "mainloop.tile.k", str(mainloop.tile.k), need)


def _promotion(spec: GemmSpec, mainloop: TensorCoreMainloop) -> int:
    """Values of k after which sums are promoted; 0: they never are."""
    if mainloop.promote_every == "never" or mainloop.arithmetic.f32_by is not None:
        return 0
    if mainloop.promote_every != "auto":
        return mainloop.promote_every
    if spec.storage.a not in BYTE_FLOATS:
        return 0
    return max(DEFAULT_PROMOTION // mainloop.tile.k, 1) * mainloop.tile.k


def _architecture_reasons(architecture: Architecture) -> Iterator[Reason]:
    if not architecture.supports("wgmma"):
        yield Reason("wgmma", "mainloop.strategy", f"tensor_core on {architecture.name}", "sm_90a", "architecture: sm_90a")


def type_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Types that tensor cores do not multiply, or results that they do not have."""
    a, b, c = spec.storage.a, spec.storage.b, spec.storage.c
    mixed = {a, b} <= set(BYTE_FLOATS) or {a, b} <= set(BYTE_INTEGERS)
    if a == "f32" or b == "f32":
        hint = "tf32: float32 in memory, of which tensor cores read the upper 19 bits"
        yield Reason("storage", "storage", f"{a} and {b}", "f16, bf16, tf32, s8, u8, e4m3 or e5m2 for tensor cores", hint)
    elif a != b and not mixed:
        yield Reason("storage", "storage", f"{a} and {b}", "the same type for A and B, or both 8-bit integers, or both 8-bit floats")
    integer = a in BYTE_INTEGERS
    if c == "s32" and not integer:
        yield Reason("storage", "storage.c", f"s32 for factors of {a}", "a floating-point type, or s8")
    plain = spec.alpha == "one" and spec.beta == "zero" and not spec.epilogue
    if c == "s32" and integer and not plain:
        need, hint = "alpha: one, beta: zero and no epilogue for a C of s32", "int32 sums are stored as they are; f32, f16, bf16 or s8"
        yield Reason("storage", "storage.c", "s32", need, hint)
    reads = spec.beta == "argument" or any(operand.like_output for operation in spec.epilogue for operand in operation.operands())
    if c in ("s8", *BYTE_FLOATS) and reads:
        need = "f32, f16 or bf16 where C, or a matrix of its type such as a residual, is read"
        yield Reason("storage", "storage.c", c, need, "beta: zero, no residual and no multiply")
    promotes = isinstance(spec.mainloop, TensorCoreMainloop) and isinstance(spec.mainloop.promote_every, int)
    if promotes and integer:
        yield Reason("promotion", "mainloop.promote_every", "a number", "never for integers, whose sums are exact")


def _layout_reasons(matrices: tuple[Matrix, Matrix, Matrix]) -> Iterator[Reason]:
    for matrix in matrices[:2]:
        name = matrix.name.lower()
        if matrix.contiguous != "k" and matrix.element_bytes != 2:
            stored = f"{matrix.name} of {matrix.type} stored along {matrix.contiguous}"
            need, hint = "along k: matrix instructions take the other order for 16-bit types only", "change transpose, or copy the matrix"
            yield Reason("major", "transpose", stored, need, hint)
        if matrix.alignment * matrix.element_bytes != COPY_ALIGNMENT:
            need = f"{COPY_ALIGNMENT // matrix.element_bytes}: the copy engine wants addresses and strides of {COPY_ALIGNMENT} bytes"
            yield Reason("alignment", f"alignment.{name}", str(matrix.alignment), need)


def _shape_reasons(spec: GemmSpec, mainloop: TensorCoreMainloop, matrices: tuple[Matrix, Matrix, Matrix]) -> Iterator[Reason]:
    tile = mainloop.tile
    if mainloop.schedule != "cooperative" and mainloop.consumers != 2:
        yield Reason("consumers", "mainloop.consumers", str(mainloop.consumers), f"2 groups for {mainloop.schedule}")
    rows = BLOCK_ROWS * (mainloop.consumers if mainloop.schedule == "cooperative" else 1)
    if tile.m % rows:
        need = f"a multiple of {rows}: {BLOCK_ROWS} rows for each group of consumers"
        yield Reason("tile_m", "mainloop.tile.m", str(tile.m), need)
    scheme = plane_scheme(mainloop.arithmetic)
    splits_rows = scheme is not None and mainloop.arithmetic.split == "mainloop"
    if matrices[0].element_bytes == 1 and spec.storage.a in BYTE_INTEGERS and tile.n not in INTEGER_COLUMNS:
        yield Reason("tile_n", "mainloop.tile.n", str(tile.n), "8, 16, 24, 32 or a multiple of 16 for integers")
    for matrix, extent, blocks, field in ((matrices[0], tile.m, mainloop.cluster.n, "m"), (matrices[1], tile.n, mainloop.cluster.m, "n")):
        element_bytes = _factor_bytes(matrix, None if field == "m" and splits_rows else scheme)
        size = tile.k * element_bytes
        if size % SPAN_BYTES:
            need = f"a multiple of {SPAN_BYTES // element_bytes}: rows of {SPAN_BYTES} bytes in shared memory"
            yield Reason("tile_k", "mainloop.tile.k", str(tile.k), need)
        along_k = matrix.contiguous == "k"
        unit = 8 if along_k else SPAN_BYTES // element_bytes
        if extent % (unit * blocks):
            shared = f" for each of {blocks} blocks that share it" if blocks > 1 else ""
            need = f"a multiple of {unit * blocks}: {unit} {'rows' if along_k else 'columns'} of a tile of {matrix.name}{shared}"
            yield Reason("tile", f"mainloop.tile.{field}", str(extent), need)
        rows_of_box = extent // blocks if along_k else tile.k
        if rows_of_box > LARGEST_BOX:
            need = f"at most {LARGEST_BOX} rows in a box of the copy engine"
            yield Reason("box", f"mainloop.tile.{field if along_k else 'k'}", str(rows_of_box), need)
    promotion = _promotion(spec, mainloop)
    if mainloop.a_from == "registers" and not splits_rows and (matrices[0].contiguous != "k" or promotion or scheme is not None):
        got = f"registers with A stored along {matrices[0].contiguous}, sums promoted {f'every {promotion}' if promotion else 'never'}"
        need = "shared, or A stored along k, sums that stay in the tensor core, and no float32 by planes but with split: mainloop"
        yield Reason("a_from", "mainloop.a_from", got, need)
    if mainloop.unroll != "full" and mainloop.a_from == "registers":
        need, hint = "full where A comes from registers", "an index that is not known to the compiler cannot choose a register"
        yield Reason("unroll", "mainloop.unroll", str(mainloop.unroll), need, hint)
    if mainloop.unroll != "full" and scheme is not None:
        need, hint = "full where float32 is computed by planes", "mainloop.promote_every divides the loop instead"
        yield Reason("unroll", "mainloop.unroll", str(mainloop.unroll), need, hint)
    if promotion % tile.k:
        yield Reason("promotion", "mainloop.promote_every", str(promotion), f"a multiple of tile.k, {tile.k}")
    columns = mainloop.instruction_n
    if columns is not None and (promotion != tile.k or tile.n % columns):
        need = f"a divisor of tile.n, {tile.n}, and sums promoted after every stage, {tile.k} of k"
        yield Reason("instruction_n", "mainloop.instruction_n", str(columns), need)


def _combination_reasons(spec: GemmSpec, mainloop: TensorCoreMainloop) -> Iterator[Reason]:
    cluster, decomposition = mainloop.cluster, spec.decomposition
    if mainloop.schedule == "alternating" and (mainloop.arithmetic.split != "mainloop" or mainloop.persistent_blocks):
        got = f"alternating with split: {mainloop.arithmetic.split}, {mainloop.persistent_blocks} persistent blocks"
        yield Reason("schedule", "mainloop.schedule", got, "arithmetic.split: mainloop and persistent_blocks: 0 for alternating")
    if mainloop.arithmetic.split == "mainloop" and mainloop.arithmetic.f32_by is None:
        yield Reason("split", "mainloop.arithmetic.split", "mainloop without f32_by", "kernel, or arithmetic.f32_by: bf16x6")
    if cluster.m > 1 and cluster.n > 1:
        need = "1 along m or along n: a cluster shares tiles of one operand"
        yield Reason("cluster", "mainloop.cluster", f"{cluster.m} x {cluster.n}", need)
    if decomposition.scheme not in ("data_parallel", "split_k_parallel", "split_k_cluster", "stream_k"):
        need = "data_parallel, split_k_parallel, split_k_cluster or stream_k for tensor cores"
        yield Reason("decomposition", "decomposition.scheme", decomposition.scheme, need)
    if mainloop.copied != "none":
        if isinstance(decomposition, SplitKParallel | StreamK) or spec.batch == "grouped" or plane_scheme(mainloop.arithmetic) is not None:
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
        if mainloop.copied != "none" or plane_scheme(mainloop.arithmetic) is not None:
            need = "static where factors are copied first, or float32 is computed by planes: the workspace has other uses"
            yield Reason("tiles", "mainloop.tiles", "dynamic", need)
    yield from result_reasons(spec)
    blocks = cluster.m * cluster.n
    if mainloop.persistent_blocks % blocks:
        need = f"a multiple of {blocks}, the blocks of a cluster"
        yield Reason("persistent_blocks", "mainloop.persistent_blocks", str(mainloop.persistent_blocks), need)
    if spec.store == "through_shared":
        yield from turning_reasons(spec)
    if spec.store == "tma":
        if spec.order != "row_major":
            yield Reason("store", "store", "tma with order: column_major", "order: row_major, or store: direct")
        if isinstance(decomposition, SplitKParallel):
            yield Reason("store", "store", "tma with split_k_parallel", "direct: sums go to a workspace, a second kernel writes C")
        size = ELEMENTS[spec.storage.c].bytes
        if spec.alignment.c * size != COPY_ALIGNMENT:
            need = f"{COPY_ALIGNMENT // size} for store: tma: the copy engine wants addresses and strides of {COPY_ALIGNMENT} bytes"
            yield Reason("alignment", "alignment.c", str(spec.alignment.c), need)
        unit = COPY_ALIGNMENT // size
        if spec.multiple_of.n % unit:
            need = f"a multiple of {unit} for store: tma: the copy engine writes units of {COPY_ALIGNMENT} bytes, also beyond a row's end"
            yield Reason("multiple_of", "multiple_of.n", str(spec.multiple_of.n), need, f"multiple_of: {{n: {unit}}}, or store: direct")
        if plan_staging(mainloop.tile.n, 1, size, 1) is None:
            need = f"a multiple of {COPY_ALIGNMENT // size} for store: tma"
            yield Reason("tile_n", "mainloop.tile.n", str(mainloop.tile.n), need)
    if spec.cache != CacheHints():
        yield Reason("cache", "cache", "hints", "none: the copy engine moves tiles past the L1")


def turning_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Why warps do not transpose their results in shared memory."""
    mainloop = spec.mainloop
    if isinstance(mainloop, MmaSyncMainloop) and (isinstance(spec.decomposition, StreamK) or mainloop.copies == "tma"):
        got = f"through_shared with {spec.decomposition.scheme}, copies: {mainloop.copies}"
        need = "direct for mma_sync with stream_k or tensor maps: results would take the place of tiles on their way"
        yield Reason("store", "store", got, need)
    if spec.order != "row_major":
        need = "row_major for store: through_shared"
        yield Reason("order", "order", spec.order, need, "store: direct, where lanes with neighbouring rows store side by side")
    if isinstance(spec.decomposition, SplitKParallel):
        yield Reason("store", "store", "through_shared with split_k_parallel", "direct: sums go to a workspace, a second kernel writes C")
    if plane_scheme(getattr(mainloop, "arithmetic", Arithmetic())) is not None:
        yield Reason("store", "store", "through_shared with float32 by planes", "direct: neighbours of float32 fill sectors of the memory")


def result_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Why there is no largest absolute value, or there are no groups of rows."""
    decomposition = spec.decomposition
    arithmetic = getattr(spec.mainloop, "arithmetic", Arithmetic())
    planes = plane_scheme(arithmetic) is not None
    if spec.amax != "none":
        if isinstance(decomposition, SplitKParallel) or planes:
            got = decomposition.scheme if isinstance(decomposition, SplitKParallel) else "float32 by planes"
            yield Reason("amax", "amax", f"{spec.amax} with {got}", "results that one kernel finishes")
        if spec.storage.c == "s32":
            yield Reason("amax", "amax", f"{spec.amax} of s32", "none, or a C of another type: its results are computed in float32")
        last = spec.epilogue[-1] if spec.epilogue else None
        if spec.amax == "unscaled" and not (isinstance(last, Factor) and last.per in ("all", "memory")):
            need = "an epilogue that ends with a factor, per all or memory"
            yield Reason("amax", "amax", "unscaled", need, "stored")
    if spec.batch == "grouped":
        if decomposition.scheme != "data_parallel":
            need = "data_parallel for groups, whose tiles are counted on the device"
            yield Reason("decomposition", "decomposition.scheme", decomposition.scheme, need)
        copied_in_boxes = isinstance(spec.mainloop, TensorCoreMainloop) or getattr(spec.mainloop, "copies", "") == "tma"
        if copied_in_boxes and spec.transpose.startswith("t"):
            need = "nn or nt: a group begins at any row of A, and boxes of tensor maps at multiples of 16 bytes"
            yield Reason("transpose", "transpose", spec.transpose, need, "strategy: mma_sync takes A along m, too")
        if spec.order != "row_major":
            yield Reason("order", "order", spec.order, "row_major for groups, which are rows of C")


def _resource_reasons(loop: WarpgroupLoop, architecture: Architecture) -> Iterator[Reason]:
    resident = ResidentBlocks(architecture, loop.min_blocks_per_sm, loop.threads)
    limit = loop.registers[1] if loop.registers else resident.allocated_registers
    hint = "a smaller tile, instruction_n where sums are promoted, or fewer blocks"
    yield from resident.too_many_sums(loop.sums, limit, "mainloop.tile", hint)
    yield from resident.too_much_per_block(loop.shared_bytes)


def warpgroup_regions(loop: WarpgroupLoop) -> tuple[SharedRegion, ...]:
    """Shared memory of a block: tiles, staged results or sums, barriers."""
    regions: list[SharedRegion] = []

    def add(name: str, type: str, shape: tuple[int, ...], size: int, meaning: str) -> None:
        offset = regions[-1].offset + regions[-1].bytes if regions else 0
        regions.append(SharedRegion(name, type, shape, offset, size, meaning))

    for operand in (loop.a, loop.b):
        element = "f32" if operand.name == "A" and loop.split_registers else loop.type_a if operand.name == "A" else loop.type_b
        c_type = ELEMENTS[element].c_type
        rows = operand.tile_bytes // SPAN_BYTES
        meaning = f"tiles of {operand.name}, [stage][row][{'k' if operand.k_major else operand.axis}], rows of {SPAN_BYTES} bytes, swizzled"
        shape = (loop.stages, rows, operand.span_elements)
        add(f"tiles_{operand.suffix}", c_type, shape, loop.stages * operand.tile_bytes, meaning)
    if loop.staging is not None:
        buffers = (loop.consumers, loop.staging.buffers, BLOCK_ROWS, SPAN_BYTES)
        size = loop.consumers * loop.staging.group_bytes
        add("staging", "unsigned char", buffers, size, "staged results, [group][buffer][row][byte], swizzled")
    if loop.turned:
        shape = (loop.consumers, BLOCK_ROWS, TURNED_COLUMNS)
        add("turned", loop.accumulator, shape, loop.consumers * loop.turned_bytes, "staged results, [group][row][column], swizzled")
    if loop.column_bytes:
        size = loop.consumers * loop.column_bytes
        add("columns", "unsigned char", (loop.consumers, loop.column_bytes), size, "values for each column of a tile, [group][byte]")
    if loop.cluster_k > 1:
        held = (loop.cluster_k - 1, loop.blocks_m * loop.tile_n // 8, WARPGROUP * loop.consumers // loop.k_groups, 4)
        add("sums", loop.accumulator, held, loop.sums_bytes, "sums of the cluster's other blocks, as their threads hold them")
    if loop.extremes_bytes:
        held = (loop.cluster_k - 1, loop.blocks_m, WARPGROUP * loop.consumers // loop.k_groups // 4, 4)
        add("extremes", "unsigned", held, loop.extremes_bytes, "extremes of the rows that those have split, for two rows each")
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
