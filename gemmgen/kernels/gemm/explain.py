"""A GEMM plan in words."""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.family import Section
from gemmgen.kernels.gemm.gemv.loop import VectorLoop
from gemmgen.kernels.gemm.mma_sync.loop import WarpLoop
from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.simt.explain_shared import shared_memory_section
from gemmgen.kernels.gemm.simt.loop import NaiveLoop, TiledLoop, register_budget
from gemmgen.kernels.gemm.simt.operand import Operand, source_degree
from gemmgen.kernels.gemm.spec import SplitKLast, SplitKParallel, SplitKSerial, StreamK
from gemmgen.kernels.gemm.tensor_cores.explain import tensor_core_sections, warp_mma_sections
from gemmgen.kernels.math.fma_order import product_pairs, reused_operands
from gemmgen.kernels.math.warpgroup import WarpgroupLoop
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.tiles.unrolling import unrolling_text

STORAGE = {
    "f32": "",
    "f16": " in float16",
    "bf16": " in bfloat16",
    "tf32": " in float32, read as tf32",
    "s8": " in int8",
    "u8": " in uint8",
    "e4m3": " in 8-bit floats (e4m3)",
    "e5m2": " in 8-bit floats (e5m2)",
    "s32": " in int32",
}
"""Words for a matrix of each type."""

Lines = tuple[tuple[str, str], ...]


def summary(plan: GemmPlan) -> list[str]:
    """The kernel's computation and the storage of its matrices."""
    spec = plan.spec
    product = "alpha A B" if spec.alpha == "argument" else "A B"
    if spec.beta == "argument":
        product += " + beta C"
    operations = ", then ".join(step.operation.describe() for step in plan.epilogue)
    where = "in float32"
    if isinstance(plan.loop, WarpgroupLoop | WarpLoop):
        where = "on tensor cores, summed up in " + ("int32" if plan.loop.accumulator == "int" else "float32")
    lines = [f"C = {product} {where}" + (f", then {operations}." if operations else ".")]
    for matrix in (plan.matrix_a, plan.matrix_b, plan.matrix_c):
        lines.append(f"{matrix.name} is {_layout(matrix)}.")
    return lines


def _layout(matrix: Matrix) -> str:
    order = "row" if matrix.row_major else "column"
    text = f"{matrix.rows} x {matrix.columns}{STORAGE[matrix.type]}, {order}-major with leading dimension {matrix.leading_dimension}"
    if matrix.alignment > 1:
        text += f"; pointer and {matrix.leading_dimension} are multiples of {matrix.alignment} elements"
    if matrix.batch_stride is not None:
        text += f"; {matrix.batch_stride} elements from one to the next of the {matrix.count}"
    return text


def accuracy(plan: GemmPlan, problem: Mapping[str, int]) -> str | None:
    """Bound of the errors of float32 products, beside that of multiply-adds; None for factors of other types."""
    if (plan.matrix_a.type, plan.matrix_b.type) != ("f32", "f32"):
        return None
    fma = f"{problem['k']:,} u |A||B|"
    if plan.planes is None:
        return f"at most {fma}, u = 2^-24: multiply-adds"
    factor, least = plan.planes.error_factor(problem["k"]), plan.planes.least_depth
    way = f"in double precision, as below k = {least}" if problem["k"] < least else f"by {plan.planes.scheme.name}"
    return f"at most {factor:,.0f} u |A||B|, u = 2^-24, {way}; multiply-adds: {fma}"


def explain(plan: GemmPlan) -> list[Section]:
    """The computation, the tile hierarchy, who has which tile, copies, mainloop, shared memory, and stores."""
    loop = plan.loop
    computes = Section("What it computes", tuple(("", line) for line in summary(plan)))
    if isinstance(loop, NaiveLoop):
        hierarchy: Lines = (
            ("threadblock", f"{plan.tile_m} x {plan.tile_n} of C by {plan.threads} threads"),
            ("thread", "1 x 1 of C; reads 2 k elements from global memory for k multiply-adds"),
            ("unrolling", f"the loop over k, {unrolling_text(plan.spec.mainloop.unroll)}"),
        )
        return [computes, Section("Tile hierarchy", hierarchy), Section("Blocks", _blocks(plan))]
    if isinstance(loop, VectorLoop):
        return [computes, Section("Threads", _vector_threads(plan, loop)), Section("Blocks", _blocks(plan) + _division_of_k(plan))]
    if isinstance(loop, WarpgroupLoop):
        return [computes, *tensor_core_sections(plan, loop)]
    if isinstance(loop, WarpLoop):
        return [computes, *warp_mma_sections(plan, loop)]
    return [
        computes,
        Section("Tile hierarchy", _hierarchy(plan, loop)),
        Section("Blocks", _blocks(plan) + _division_of_k(plan)),
        Section("Copies of one tile along k", _copies(plan, loop)),
        Section("Mainloop", _mainloop(plan, loop)),
        shared_memory_section(plan, loop),
        Section("Results", _results(plan, loop)),
    ]


def _vector_threads(plan: GemmPlan, loop: VectorLoop) -> Lines:
    """Teams, what a thread reads, and where sums meet."""
    a, b = plan.matrix_a, plan.matrix_b
    lanes = f"{loop.teams} of {loop.lanes} lanes, which lie side by side along {loop.along}"
    share = "each has rows of its own" if loop.along == "k" else "they split k"
    meeting = (
        "by shuffles"
        if loop.along == "k" and loop.lanes > 1
        else "in shared memory"
        if loop.parts > 1
        else "nowhere: a thread has all of k"
    )
    where = f"from multiples of {loop.grain * a.element_bytes} bytes on, wherever its columns begin" if loop.shifted else "once"
    reads_b = f"{loop.width_b * b.element_bytes} bytes at a time, along {b.contiguous}; by every team"
    if loop.stages_b:
        reads_b = f"by every warp, a step ahead, {loop.unroll} values of k into shared memory, where all of its lanes read the same"
    meeting += ", those of several warps in shared memory" if loop.along == "k" and loop.parts > 1 else ""
    return (
        ("tile of C", f"{loop.tile_m} x {loop.columns} by {loop.threads} threads"),
        ("teams", f"{lanes}; {share}"),
        ("thread", f"{loop.rows} x {loop.columns} sums; {loop.unroll} steps of {loop.vector} of k are read before they are multiplied"),
        ("reads of A", f"{loop.width_a * a.element_bytes} bytes at a time, along {a.contiguous}; {where}"),
        ("reads of B", reads_b),
        ("sums meet", meeting),
        *((("results", f"stored {loop.width_c} at a time"),) if loop.width_c > 1 else ()),
    )


def _hierarchy(plan: GemmPlan, loop: TiledLoop) -> Lines:
    a, b = loop.a.fragment, loop.b.fragment
    warps = plan.group_threads // WARP_THREADS
    several = f"{warps} warps, {a.warps} x {b.warps}" if warps > 1 else "1 warp"
    if loop.k_groups > 1:
        several += f" in each of {loop.k_groups} groups, which split k and add up their sums at the end"
    return (
        ("threadblock", f"{plan.tile_m} x {plan.tile_n} of C, {loop.tile_k} of k at a time, by {plan.group_threads} threads"),
        ("warp", f"{plan.tile_m // a.warps} x {plan.tile_n // b.warps} of C; {several}"),
        ("thread", f"{a.extent} x {b.extent} of C; {a.lanes} x {b.lanes} lanes in a warp, {_lanes(loop)}"),
        ("rows of a thread", _fragment(loop.a)),
        ("columns of a thread", _fragment(loop.b)),
    )


def _lanes(loop: TiledLoop) -> str:
    if loop.z_order:
        return "counted in a zig-zag (z-order), so that pairs of lanes read the same of A and pairs the same of B"
    return f"counted along {loop.minor.axis} first"


def _fragment(operand: Operand) -> str:
    fragment = operand.fragment
    if fragment.pieces == 1 or fragment.piece_stride == fragment.vector:
        return f"{fragment.extent} side by side"
    if fragment.vector == 1:
        return f"{fragment.pieces}, every {fragment.piece_stride}th; those between belong to other lanes"
    return f"{fragment.pieces} groups of {fragment.vector}, {fragment.piece_stride} apart; the next lane's groups lie beside them"


def _blocks(plan: GemmPlan) -> Lines:
    raster = plan.spec.rasterization
    along, across = (plan.minor, plan.major) if raster.along == "minor" else (plan.major, plan.minor)
    order = f"consecutive blocks take tiles along {along}"
    if raster.group > 1:
        order = f"bands of {raster.group} tiles along {across}, walked along {along}: what runs together shares rows and columns in the L2"
    lines = [("order of tiles", order)]
    if plan.spec.early_launch:
        text = "early: blocks come to the SMs while the work before them in the stream still runs, and wait for it there"
        lines.append(("launch", text))
    if plan.spec.batch == "strided":
        lines.append(("batch", "y of the grid counts the products of the batch"))
    if isinstance(plan.loop, TiledLoop):
        lines.append(("edges", _edges(plan)))
    return tuple(lines)


def _edges(plan: GemmPlan) -> str:
    """Promises that make checks superfluous, and the checks that remain."""
    tiles = {"m": plan.tile_m, "n": plan.tile_n, "k": plan.spec.mainloop.tile.threadblock.k}
    promised = {axis: getattr(plan.spec.multiple_of, axis) for axis in tiles}
    whole = [f"{axis} is a multiple of {promised[axis]}" for axis in tiles if promised[axis] % tiles[axis] == 0]
    checked = [axis for axis in tiles if promised[axis] % tiles[axis]]
    each = "tiles that do not lie inside check each of their vectors, the others nothing"
    parts = [f"{' and '.join(whole)}: nothing is checked there"] if whole else []
    parts += [f"{', '.join(checked)} may end within a tile: what lies beyond is read as 0 and not stored"] if checked else []
    parts += [each] if isinstance(plan.loop, TiledLoop) and plan.loop.checks_tiles else []
    return "; ".join(parts)


def _division_of_k(plan: GemmPlan) -> Lines:
    division = plan.spec.decomposition
    workspace = f"{plan.sequence.workspace_bytes} bytes"
    zeroed = f"{workspace}, of which the first {plan.sequence.workspace_zero_bytes} are 0 at first and left so"
    if isinstance(division, SplitKSerial):
        return (
            ("division of k", f"{division.slices} slices, a block for each slice of a tile (z of the grid); those of a tile take turns"),
            ("sum", "each adds its part to the tile's sum in the workspace, in the order of k: always the same bits; the last one stores"),
            ("workspace", f"{zeroed}: for each tile whose turn it is, then its sum"),
        )
    if isinstance(division, SplitKParallel):
        slices = "as many slices as the dimension slices says" if plan.cut_at_launch else f"{division.slices} slices"
        groups = f", shared among {plan.reduction_groups} groups of its threads" if plan.reduction_groups > 1 else ""
        return (
            ("division of k", f"{slices}, a block for each slice of a tile (z of the grid); none waits for another"),
            ("sum", f"a second kernel adds the slices up in a fixed order{groups}, and writes C"),
            ("workspace", f"{workspace}: the partial products of all slices"),
        )
    if isinstance(division, SplitKLast):
        return (
            ("division of k", "as many slices as the dimension slices says, a block for each slice of a tile (z of the grid)"),
            ("sum", "the block of a tile that comes last adds up what all left in the workspace, always in the same order, and stores"),
            ("workspace", f"{zeroed}: for each tile how many blocks came, then their sums"),
        )
    if isinstance(division, StreamK):
        return (
            ("division of k", f"{division.blocks} blocks share the steps along k of all tiles evenly, wherever that cuts a tile"),
            ("sum", "what a block has of a tile that it does not finish goes to the workspace; the block with the last step adds it up"),
            ("workspace", f"{zeroed}: for each block whether its sum is there, then the sums"),
        )
    return (("division of k", "none: one block for each tile, over all of k"),)


def _copies(plan: GemmPlan, loop: TiledLoop) -> Lines:
    lines: list[tuple[str, str]] = [(operand.name, _copy(operand)) for operand in (loop.a, loop.b)]
    if len(loop.copied) == 1:
        lines.append(("loaders", "half of the threads copy A, the others B, so that each tracks one pointer"))
    else:
        lines.append(("loaders", "every thread copies a part of both"))
    if loop.copies == "cp_async":
        lines.append(("path", "straight into shared memory (cp.async), without registers"))
        lines += [("warning", text) for operand in (loop.a, loop.b) if (text := _source_banks(operand))]
    else:
        lines.append(("path", f"through registers{', stored when the tile before has been used' if loop.stages > 1 else ''}"))
    return tuple(lines)


def _source_banks(operand: Operand) -> str:
    """A warning about copies whose sources meet in banks; empty if they do not."""
    degree = source_degree(operand) if operand.is_async else 1
    if degree == 1:
        return ""
    return (
        f"copies of {operand.name} take {degree} wavefronts where 1 would do if its rows are a multiple of 128 bytes apart: {degree} rows"
        " that lanes copy together begin in the same bank; a wider tile along the rows, or another pitch, spreads them"
    )


def _copy(operand: Operand) -> str:
    copy = operand.copy
    along = "k" if operand.contiguous_along_k else operand.axis
    into = f"[k][{operand.axis}]" if operand.mn_major else f"[{operand.axis}][k]"
    read, written = operand.element_bytes * copy.vector, operand.shared_bytes * operand.store_width
    prefetch = f"; the L2 fetches {operand.l2_prefetch} bytes around each" if operand.l2_prefetch else ""
    prefetch += "; the L1 keeps them" if operand.keeps_in_l1 else ""
    prefetch += f"; the L2's policy for them is {operand.l2_policy}" if operand.l2_policy != "normal" else ""
    converted = ", converted to float32" if operand.is_half and not operand.is_async else ""
    return (
        f"a thread reads {copy.passes} x {read} bytes along {along} and writes {written} bytes at a time"
        f" into {into}{', transposed' if operand.transposes else ''}{converted}{prefetch}"
    )


def _mainloop(plan: GemmPlan, loop: TiledLoop) -> Lines:
    a, b = loop.a.fragment.extent, loop.b.fragment.extent
    reads = sum(o.fragment.extent * loop.k_group // (o.load_width if o.mn_major else o.k_vector) for o in (loop.a, loop.b))
    label, product = ("for one k", f"{a} x {b}")
    if loop.k_group > 1:
        label, product = f"for {loop.k_group} of k", f"{product} x {loop.k_group}"
    lines = [
        ("stages", _stages(loop)),
        (label, f"{product} = {a * b * loop.k_group} multiply-adds from {reads} reads of shared memory a thread"),
        ("order of products", _order(loop)),
        ("fragments", _fragment_buffers(loop)),
        ("unrolling", f"the loop over the k of a tile, {unrolling_text(plan.spec.mainloop.unroll)}"),
        ("registers", f"about {loop.estimated_registers} a thread: {a * b} accumulators, fragments, staged tiles, addresses"),
    ]
    budget = register_budget(loop, plan.threads, plan.architecture)
    if loop.min_blocks_per_sm > 1:
        lines.append(("occupancy", f"at least {loop.min_blocks_per_sm} blocks on an SM: at most {budget} registers a thread"))
    lines.append(
        ("global traffic", f"{1 / plan.tile_m + 1 / plan.tile_n:.5f} elements for a multiply-add: 1/{plan.tile_m} + 1/{plan.tile_n}")
    )
    return tuple(lines)


def _stages(loop: TiledLoop) -> str:
    if loop.stages == 1:
        return "1: load, barrier, multiply, barrier"
    ahead = loop.stages - 1
    coming = f"the next {ahead} tiles are in flight" if ahead > 1 else "the next tile is in flight"
    return f"{loop.stages}: {coming} while one is multiplied; one barrier a step"


def _order(loop: TiledLoop) -> str:
    pairs = product_pairs(loop.order, loop.major.fragment.extent, loop.minor.fragment.extent)
    share = f"; a cache of two registers an operand would reuse {reused_operands(pairs)} of {3 * len(pairs)} reads"
    if loop.order.pairs:
        return f"maxas's swirl, in circles of two rows and two columns{share}"
    first = "row" if loop.order.major_first == loop.row_major else "column"
    text = f"{first} by {first} of the thread's tile"
    if loop.order.serpentine:
        text += ", every other one backwards, so that each product shares an operand with the one before"
    return text + share


def _fragment_buffers(loop: TiledLoop) -> str:
    if loop.fragment_buffers == 2:
        return "two buffers: the next k is read from shared memory while this one is multiplied, from tile to tile too"
    return "one buffer in the source; the compiler moves reads ahead as it sees fit"


def _results(plan: GemmPlan, loop: TiledLoop) -> Lines:
    spec = plan.spec
    element = plan.matrix_c.element_bytes
    if plan.store == "partial":
        return (("stored", f"partial products, {4 * plan.partial_vector} bytes at a time, into the workspace; the second kernel writes C"),)
    way = "straight from registers"
    if plan.exchange is not None:
        way = "through shared memory, one row of every thread tile at a time, so that a warp's vectors lie side by side"
    lines = [("stored", f"{plan.vector_c * element} bytes at a time, {way}")]
    read = ["C"] if spec.beta == "argument" else []
    read += [matrix.name for matrix in plan.residuals]
    if read:
        lines.append(("read before", f"{' and '.join(read)} in the same vectors{'; C only if beta is not 0' if 'C' in read else ''}"))
    if spec.cache.streaming_stores:
        lines.append(("cache", "stores are marked as not read again soon, so that they leave A and B in the L2"))
    return tuple(lines)
