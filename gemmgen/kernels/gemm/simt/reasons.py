"""Reasons against a GEMM by tiles in shared memory, before its tiles are laid out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmgen.core.errors import Reason
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.gemm.reasons import thread_reasons
from gemmgen.kernels.gemm.spec import GemmSpec, TiledMainloop

if TYPE_CHECKING:
    from gemmgen.kernels.gemm.simt.operand import Operand


def tile_reasons(mainloop: TiledMainloop, architecture: Architecture) -> list[Reason]:
    """A tile hierarchy that does not divide evenly."""
    reasons: list[Reason] = []
    tile = mainloop.tile
    lanes = {}
    for axis in ("m", "n"):
        block, warp, thread = (getattr(part, axis) for part in (tile.threadblock, tile.warp, tile.thread))
        if block % warp:
            got = f"{warp} for a threadblock tile of {block}"
            reasons.append(Reason("warp_tile", f"mainloop.tile.warp.{axis}", got, f"a divisor of {block}"))
        if warp % thread:
            got = f"{thread} for a warp tile of {warp}"
            reasons.append(Reason("thread_tile", f"mainloop.tile.thread.{axis}", got, f"a divisor of {warp}"))
        else:
            lanes[axis] = warp // thread
        shared = mainloop.shared_a if axis == "m" else mainloop.shared_b
        if (shared.fragment or mainloop.fragment).startswith("quads") and thread % 4:
            need, hint = "a multiple of 4 for fragments in quads", "or fragment: contiguous"
            reasons.append(Reason("quads", f"mainloop.tile.thread.{axis}", str(thread), need, hint))
    if len(lanes) == 2 and lanes["m"] * lanes["n"] != WARP_THREADS:
        got = f"{lanes['m']} x {lanes['n']} = {lanes['m'] * lanes['n']} thread tiles in a warp tile"
        hint = f"a warp tile has 32 times the {tile.thread.m}x{tile.thread.n} elements of a thread tile"
        reasons.append(Reason("lanes", "mainloop.tile.warp", got, f"{WARP_THREADS}, one for each lane", hint))
    if not reasons:
        threads = WARP_THREADS * (tile.threadblock.m // tile.warp.m) * (tile.threadblock.n // tile.warp.n)
        field = "mainloop.tile.threadblock" if mainloop.k_groups == 1 else "mainloop.k_groups"
        reasons += thread_reasons(threads * mainloop.k_groups, architecture, field)
    return reasons


def loop_reasons(mainloop: TiledMainloop, architecture: Architecture) -> list[Reason]:
    """Parts of the mainloop that exclude one another, or the architecture."""
    reasons = []
    tile = mainloop.tile
    if mainloop.copies == "cp_async" and not architecture.supports("cp_async"):
        need, hint = "sm_80 or newer", "architecture: sm_80"
        reasons.append(Reason("cp_async", "mainloop.copies", f"cp_async on {architecture.name}", need, hint))
    if mainloop.copies == "registers" and mainloop.stages > 2:
        need, hint = "1 or 2 stages for copies through registers", "they keep one tile in flight; cp_async keeps more"
        reasons.append(Reason("stages", "mainloop.stages", str(mainloop.stages), need, hint))
    k_vectors = (mainloop.shared_a.k_vector, mainloop.shared_b.k_vector)
    k_group = max(k_vectors)
    if k_group > min(k_vectors) > 1:
        got, need = f"{k_vectors[0]} for A and {k_vectors[1]} for B", "the same for both, or 1 for one of them"
        reasons.append(Reason("k_vector", "mainloop.shared_b.k_vector", got, need, "the fragments of A and B are for the same k"))
    if mainloop.fragment_buffers == 2 and (mainloop.stages == 1 or tile.threadblock.k % (2 * k_group)):
        need = f"2 stages or more and a tile of a multiple of {2 * k_group} along k to read fragments ahead"
        got = f"{mainloop.stages} stage{'s' if mainloop.stages > 1 else ''}, {tile.threadblock.k} along k"
        reasons.append(Reason("fragment_buffers", "mainloop.fragment_buffers", got, need))
    if mainloop.order == "swirl" and (tile.thread.m, tile.thread.n) != (8, 8):
        got = f"{tile.thread.m} x {tile.thread.n}"
        reasons.append(Reason("order", "mainloop.order", got, "a thread tile of 8 x 8 for the swirl"))
    if mainloop.unroll != "full" and mainloop.fragment_buffers == 2:
        need, hint = "full where fragments are read ahead", "the unrolled index selects the buffer"
        reasons.append(Reason("unroll", "mainloop.unroll", str(mainloop.unroll), need, hint))
    return reasons


def loader_reason(a: Operand, b: Operand) -> Reason:
    """A and B that one piece of code with one pointer cannot copy."""

    def said(operand: Operand) -> str:
        along = "k" if operand.contiguous_along_k else operand.axis
        prefetch = f", L2 prefetch of {operand.l2_prefetch} bytes" if operand.l2_prefetch else ""
        prefetch += ", kept in the L1" if operand.keeps_in_l1 else ""
        prefetch += f", L2 policy {operand.l2_policy}" if operand.l2_policy != "normal" else ""
        order = "mn_major" if operand.mn_major else "k_major"
        swizzle = ", swizzled" if operand.swizzle else ""
        return (
            f"{operand.name}: {operand.extent} x {operand.tile_k} of {operand.type} contiguous along {along}, copied in vectors of "
            f"{operand.copy.vector}{prefetch} into {order} rows of {operand.pitch}{swizzle}"
        )

    need = "operands that one copy loop with one pointer can serve: equal layouts, with k or neither as the contiguous direction"
    hint = "equal alignment, storage, tile, shared_a and shared_b (with an explicit padding), or loaders: all"
    return Reason("loaders", "mainloop.loaders", f"{said(a)}; {said(b)}", need, hint)


def cache_reasons(spec: GemmSpec, mainloop: TiledMainloop) -> list[Reason]:
    """Hints that nothing in the kernel could follow."""
    reasons = []
    for name in ("a", "b"):
        prefetch = getattr(spec.cache, f"l2_prefetch_{name}")
        if prefetch and mainloop.copies != "cp_async":
            need, hint = "copies: cp_async for a prefetch into the L2", "or 0"
            reasons.append(Reason("l2_prefetch", f"cache.l2_prefetch_{name}", str(prefetch), need, hint))
        if getattr(spec.cache, f"l1_{name}") == "keep" and mainloop.copies != "cp_async":
            need, hint = "copies: cp_async for a choice", "loads into registers always keep their data in the L1"
            reasons.append(Reason("l1", f"cache.l1_{name}", "keep", need, hint))
        policy = getattr(spec.cache, f"l2_policy_{name}")
        if policy != "normal" and mainloop.copies != "cp_async":
            need, hint = "copies: cp_async, whose instruction takes a policy of the L2", "or normal"
            reasons.append(Reason("l2_policy", f"cache.l2_policy_{name}", policy, need, hint))
        if policy != "normal" and (prefetch or getattr(spec.cache, f"l1_{name}") == "keep"):
            need, hint = f"normal beside l2_prefetch_{name} or l1_{name}: keep", "one hint for each operand"
            reasons.append(Reason("l2_policy", f"cache.l2_policy_{name}", policy, need, hint))
    return reasons
