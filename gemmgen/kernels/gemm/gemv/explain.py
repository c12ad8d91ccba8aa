"""A product of few columns in words."""

from __future__ import annotations

from gemmgen.kernels.family import Section
from gemmgen.kernels.gemm.gemv.loop import VectorLoop
from gemmgen.kernels.gemm.gemv.plan import GemvPlan
from gemmgen.kernels.gemm.wording import Lines, blocks, division_of_k


def sections(plan: GemvPlan) -> list[Section]:
    """Threads and blocks."""
    return [Section("Threads", _threads(plan, plan.loop)), Section("Blocks", blocks(plan) + division_of_k(plan))]


def _threads(plan: GemvPlan, loop: VectorLoop) -> Lines:
    """Teams, the loads of a thread, and the place where sums meet."""
    a, b = plan.matrix_a, plan.matrix_b
    lanes = f"{loop.teams} of {loop.lanes} lanes, which lie side by side along {loop.along}"
    share = "each has separate rows" if loop.along == "k" else "they split k"
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
