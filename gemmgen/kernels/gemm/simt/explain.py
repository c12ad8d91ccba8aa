"""A GEMM by tiles in shared memory and in registers, in words."""

from __future__ import annotations

from typing import cast

from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.family import Section
from gemmgen.kernels.gemm.simt.explain_shared import shared_memory_section
from gemmgen.kernels.gemm.simt.loop import TiledLoop, register_budget
from gemmgen.kernels.gemm.simt.operand import Operand, source_degree
from gemmgen.kernels.gemm.simt.plan import SimtPlan
from gemmgen.kernels.gemm.spec import TiledMainloop
from gemmgen.kernels.gemm.wording import Lines, blocks, division_of_k
from gemmgen.kernels.math.fma_order import product_pairs, reused_operands
from gemmgen.kernels.tiles.unrolling import unrolling_text


def sections(plan: SimtPlan) -> list[Section]:
    """Tiles, blocks, copies, the mainloop, shared memory and stores."""
    loop = plan.loop
    return [
        Section("Tile hierarchy", _hierarchy(plan, loop)),
        Section("Blocks", (*blocks(plan), ("edges", _edges(plan)), *division_of_k(plan))),
        Section("Copies of one tile along k", _copies(plan, loop)),
        Section("Mainloop", _mainloop(plan, loop)),
        shared_memory_section(plan, loop),
        Section("Results", _results(plan, loop)),
    ]


def _hierarchy(plan: SimtPlan, loop: TiledLoop) -> Lines:
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


def _edges(plan: SimtPlan) -> str:
    """Promises that make checks superfluous, and the checks that remain."""
    tiles = {"m": plan.tile_m, "n": plan.tile_n, "k": cast("TiledMainloop", plan.spec.mainloop).tile.threadblock.k}
    promised = {axis: getattr(plan.spec.multiple_of, axis) for axis in tiles}
    whole = [f"{axis} is a multiple of {promised[axis]}" for axis in tiles if promised[axis] % tiles[axis] == 0]
    checked = [axis for axis in tiles if promised[axis] % tiles[axis]]
    each = "only tiles at an edge check their vectors"
    parts = [f"{' and '.join(whole)}: nothing is checked there"] if whole else []
    parts += [f"{', '.join(checked)} may end within a tile: elements beyond the edge are read as 0 and not stored"] if checked else []
    parts += [each] if plan.loop.checks_tiles else []
    return "; ".join(parts)


def _copies(plan: SimtPlan, loop: TiledLoop) -> Lines:
    lines: list[tuple[str, str]] = [(operand.name, _copy(operand)) for operand in (loop.a, loop.b)]
    if len(loop.copied) == 1:
        lines.append(("loaders", "half of the threads copy A, the others B, so that each tracks one pointer"))
    else:
        lines.append(("loaders", "every thread copies a part of both"))
    if loop.copies == "cp_async":
        lines.append(("path", "straight into shared memory (cp.async), without registers"))
        lines += [("warning", text) for operand in (loop.a, loop.b) if (text := _source_banks(operand))]
    else:
        lines.append(("path", f"through registers{'; a tile is stored once the previous tile has been used' if loop.stages > 1 else ''}"))
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


def _mainloop(plan: SimtPlan, loop: TiledLoop) -> Lines:
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
        ("unrolling", f"the loop over the k of a tile, {unrolling_text(cast('TiledMainloop', plan.spec.mainloop).unroll)}"),
        ("registers", f"about {loop.estimated_registers} a thread, estimated: {a * b} accumulators, fragments, staged tiles, addresses"),
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
        return "two buffers: fragments of the next k are read from shared memory while those of this k are multiplied, across tiles too"
    return "one buffer in the source; the compiler moves reads ahead as it sees fit"


def _results(plan: SimtPlan, loop: TiledLoop) -> Lines:
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
