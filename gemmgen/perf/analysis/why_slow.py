"""Reasons that a kernel is slower than its roof, ranked by their estimated cost, with a change to try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.perf.analysis.report import Analysis

MIN_COST = 0.01
"""Share of the time below which a reason is not reported."""
WARPS_TO_HIDE = 8
"""Warps of an SM below which latencies of memory and arithmetic are hardly hidden: two for each scheduler."""


@dataclass(frozen=True)
class Cause:
    """One reason."""

    cost: float
    """Estimated part of the time, 0 to 1; each taken alone, so they do not add up."""
    what: str
    remedy: str


def causes(analysis: Analysis) -> list[Cause]:
    """All reasons that cost something, the worst first."""
    return sorted((cause for cause in _all(analysis) if cause.cost >= MIN_COST), key=lambda cause: -cause.cost)


def _all(analysis: Analysis) -> Iterator[Cause]:
    yield from _waste(analysis)
    yield from _memory(analysis)
    main = analysis.main_kernel
    used = main.resources
    if used.spill_stores or used.spill_loads:
        spilled = used.spill_stores + used.spill_loads
        yield Cause(
            min(0.5, spilled / 400),
            f"{spilled:,} bytes a thread are spilled to local memory",
            "a smaller thread tile, fewer resident blocks asked for (min_blocks_per_sm), or less unrolling",
        )
    if main.occupancy.warps < WARPS_TO_HIDE:
        yield Cause(
            0.3 * (1 - main.occupancy.warps / WARPS_TO_HIDE),
            f"{main.occupancy.warps} warps on an SM hide little latency",
            f"fewer {' and '.join(main.occupancy.limited_by)} a block, or more threads a block",
        )
    loop = analysis.code[main.entry].main_loop if analysis.code else None
    if loop is not None and loop.ffma_ceiling is not None:
        busy = loop.mix.classes.get("fma float32", 0) * loop.ffma_interval
        issue = max(0.0, 1 - busy / max(busy, loop.issue_cycles))
        yield Cause(
            issue,
            f"{1 - loop.mix.share('fma float32'):.0%} of the main loop's instructions are not FFMA",
            "a larger thread tile does more arithmetic for each load; wider loads need fewer instructions",
        )
        if loop.banks is not None:
            lost = loop.lost_cycles / max(1, loop.issue_cycles + loop.lost_cycles)
            yield Cause(
                lost,
                f"{loop.banks.conflicts} FFMAs of the main loop wait for a register bank",
                "another mainloop.order (serpentine_rows or swirl) finds more operands in the reuse cache",
            )


def _waste(analysis: Analysis) -> Iterator[Cause]:
    yield Cause(
        1 - analysis.tile_efficiency,
        f"{1 - analysis.tile_efficiency:.0%} of the arithmetic is on padding of tiles",
        "tiles that divide the problem, or smaller ones",
    )
    for waves in analysis.waves:
        if waves.blocks_per_wave:
            yield Cause(
                1 - waves.efficiency,
                f"{waves.blocks:,} blocks fill {waves.waves:.2f} waves: places in the last one stay empty",
                "smaller tiles, split-K or stream-K (decomposition) give every multiprocessor the same",
            )


def _memory(analysis: Analysis) -> Iterator[Cause]:
    if analysis.traffic is None:
        return
    total = analysis.traffic.counters.total
    shared, traffic = total.shared_total, total.global_total
    if shared.wavefronts and shared.conflicts:
        share = shared.conflicts / shared.wavefronts
        weight = min(1.0, shared.wavefronts / max(1, total.total_instructions) * 2)
        worst = max(analysis.traffic.counters.lines, key=lambda line: line.tally.shared_total.conflicts)
        yield Cause(
            share * weight,
            f"{share:.0%} of shared memory's wavefronts are bank conflicts, most in line {worst.line}",
            "a swizzle or a padding of the tile (gemmgen draw and gemmgen banks show which), or another order of lanes",
        )
    if traffic.sectors and traffic.efficiency < 1:
        worst = max(
            analysis.traffic.counters.lines, key=lambda line: line.tally.global_total.sectors * (1 - line.tally.global_total.efficiency)
        )
        bound = 1.0 if analysis.roofs.binding == "memory" else 0.3
        yield Cause(
            (1 - traffic.efficiency) * bound,
            f"{1 - traffic.efficiency:.0%} of the bytes in global sectors were not asked for, most in line {worst.line}",
            "neighbouring lanes on neighbouring elements; alignment that allows wider accesses (alignment, multiple_of)",
        )
