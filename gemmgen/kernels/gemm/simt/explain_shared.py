"""A GEMM plan's use of shared memory, in words: the tiles, and the actual and least cost of each access."""

from __future__ import annotations

from gemmgen.hardware.shared_memory import BANK_BYTES, BANKS, WARP
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.family import Section
from gemmgen.kernels.gemm.simt.exchange import exchange_accesses
from gemmgen.kernels.gemm.simt.loop import TiledLoop
from gemmgen.kernels.gemm.simt.operand import Operand, SharedAccess
from gemmgen.kernels.gemm.simt.plan import SimtPlan

WAVEFRONT_BYTES = BANKS * BANK_BYTES
WIDEST_READ_BYTES = 16


def fewest_wavefronts(access: SharedAccess, vectors: int) -> int:
    """Wavefronts that no layout of the tile and no order of the lanes could undercut, with the same vectors.

    ``vectors``: different ones that one access moves. A wavefront carries at most one word of each bank, and reads of 16 bytes a
    lane come in two wavefronts or more (see ``gemmgen.hardware.shared_memory``).
    """
    by_volume = -(-vectors * access.width_bytes // WAVEFRONT_BYTES)
    return access.per_step * max(by_volume, 1 if access.store or access.width_bytes < 16 else 2)


def shared_memory_section(plan: SimtPlan, loop: TiledLoop) -> Section:
    """Regions, accesses with their wavefronts, and how they compare with the multiply-adds."""
    lines = [region.described for region in plan.shared_memory]
    lines += [(f"layout of {o.name}", _layout(o)) for o in (loop.a, loop.b)]
    served = f"for one warp and one step along k; each serves up to {WAVEFRONT_BYTES} bytes from {BANKS} banks"
    conflict = "A conflict is an extra wavefront, because lanes need different words of one bank"
    lines.append(("wavefronts", f"{served}. {conflict}. The fewest: over all layouts and orders of lanes"))
    stores, loads = loop.accesses[::2], [(loop.accesses[1], loop.a.fragment.lanes), (loop.accesses[3], loop.b.fragment.lanes)]
    lines += [(store.what, _cost(store, WARP)) for store in stores]
    lines += [(load.what, _cost(load, vectors)) for load, vectors in loads]
    if not loop.z_order and any(access.wavefronts - access.conflicts > fewest_wavefronts(access, vectors) for access, vectors in loads):
        lines.append(
            ("order of lanes", "lanes that read the same address would share wavefronts if they were neighbours, as with lanes: z_order")
        )
    joined = " and of ".join(o.name for o in (loop.a, loop.b) if _may_be_joined(loop, o))
    if joined:
        wider = "wider reads, which `gemmgen verify --counters` counts in the PTX"
        lines.append(("counted", f"reads of {joined}, as in the source; the compiler may merge reads of adjacent k into {wider}"))
    lines.append(("beside arithmetic", _beside_arithmetic(plan, loop)))
    if loop.k_groups > 1:
        elements = loop.a.fragment.extent * loop.b.fragment.extent
        store, load = (
            SharedAccess(f"{verb} sums", verb == "store", BANK_BYTES, count, count, 0)
            for verb, count in (("store", elements), ("load", elements * (loop.k_groups - 1)))
        )
        lines.append((store.what, f"{_cost(store, WARP)} (every group but the first, once a tile of C)"))
        lines.append((load.what, f"{_cost(load, WARP)} (the first group)"))
    if plan.exchange is not None:
        positions = tuple(zip(loop.major.lane_positions, loop.minor.lane_positions, strict=True))
        slabs = f" (one of {loop.major.fragment.extent} slabs of results a warp)"
        lines += [(access.what, _cost(access, WARP) + slabs) for access in exchange_accesses(plan.exchange, positions)]
    return Section("Shared memory", tuple(lines))


def _may_be_joined(loop: TiledLoop, operand: Operand) -> bool:
    """True if reads that are narrower than the widest there are lie side by side in the unrolled loop."""
    narrow = operand.load_width * operand.shared_bytes < WIDEST_READ_BYTES
    return not operand.mn_major and narrow and operand.k_vector < operand.tile_k and loop.unroll != " 1"


def _layout(operand: Operand) -> str:
    rows = ("k", operand.axis) if operand.mn_major else (operand.axis, "k")
    text = f"a row for each {rows[0]}, {rows[1]} side by side"
    if operand.padding:
        return f"{text}; {operand.padding} element{'s' if operand.padding > 1 else ''} of padding after each row against conflicts"
    if operand.swizzle is None:
        return f"{text}; no padding"
    swizzle = operand.swizzle
    bits = _bits(swizzle.row_shift, swizzle.bits)
    chunk_bits = _bits(swizzle.chunk_shift, swizzle.bits)
    return f"{text}; XOR swizzle: {bits} of the row's index, onto {chunk_bits} of the index of a 16-byte vector in it"


def _bits(first: int, count: int) -> str:
    return f"bit {first}" if count == 1 else f"bits {first} to {first + count - 1}"


def _cost(access: SharedAccess, vectors: int) -> str:
    fewest = fewest_wavefronts(access, vectors)
    text = f"{access.per_step} x {access.width_bytes} bytes a lane: {access.wavefronts} wavefronts, {access.conflicts} conflicts"
    if access.wavefronts == fewest:
        return f"{text}: the fewest possible"
    return f"{text}; {fewest} at the fewest"


def _beside_arithmetic(plan: SimtPlan, loop: TiledLoop) -> str:
    wavefronts = loop.wavefronts_per_step
    multiply_adds = loop.a.fragment.extent * loop.b.fragment.extent * loop.tile_k
    warps = plan.architecture.fp32_lanes_per_sm // WARP_THREADS
    share = wavefronts * warps / multiply_adds
    return (
        f"{wavefronts:g} wavefronts for {multiply_adds} multiply-adds a thread. In a cycle, an SM of {plan.architecture.name} serves one "
        f"wavefront and issues the multiply-adds of {warps} warps: shared-memory time is {share:.0%} of arithmetic time"
    )
