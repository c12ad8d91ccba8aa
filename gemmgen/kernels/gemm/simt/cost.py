"""The work of a GEMM by tiles in shared memory and in registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from gemmgen.core.formulas import ceil_div
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.family import Work
from gemmgen.kernels.gemm.fitted_costs import costs_of
from gemmgen.kernels.gemm.launch_costs import FLOAT_BYTES, Moved, held, reduction_work
from gemmgen.kernels.gemm.simt.plan import SimtPlan
from gemmgen.kernels.gemm.spec import StreamK, TiledMainloop

NARROWEST = 16
"""Columns of a tile of multiply-adds up to which its copies draw less of the memory: 7070 x 1 x 5088 takes 53 us on an H200 by tiles of
64 x 8, 39 by a kernel for one column."""


def work(plan: SimtPlan, problem: Mapping[str, int], moved: Moved) -> tuple[Work, ...]:
    """The launches of one problem."""
    m, n, k = problem["m"], problem["n"], problem["k"]
    loop, a, b = plan.loop, plan.matrix_a, plan.matrix_b
    steps = ceil_div(k, loop.tile_k)
    scheme, slices = plan.spec.decomposition.scheme, problem.get("slices", plan.slices)
    groups = loop.k_groups
    blocks, own_steps, stored, turns = moved.tiles, float(ceil_div(steps, slices * groups)), moved.tile_result, 1
    partial = float(m * n * problem.get("batch", 1) * FLOAT_BYTES) / max(1, moved.tiles)
    if isinstance(plan.spec.decomposition, StreamK):
        blocks = min(plan.spec.decomposition.blocks * problem.get("batch", 1), max(1, moved.tiles * steps))
        own_steps = moved.tiles * steps / blocks
        stored = partial * 2 + moved.tile_result
        turns = 2
    elif slices > 1 or plan.cut_at_launch:
        blocks = moved.tiles * slices
        stored = partial if scheme == "split_k_parallel" else 2 * partial
        turns = slices if scheme == "split_k_serial" else 1
    if plan.exchange is None and plan.store == "finished":
        # Lanes whose stores are narrower than their adjacent elements fill lines in several stores.
        stored *= max(1.0, loop.minor.fragment.vector / plan.vector_c)
    warps = plan.threads // WARP_THREADS
    tile = cast("TiledMainloop", plan.spec.mainloop).tile
    fma = tile.thread.m * tile.thread.n * loop.tile_k
    wavefronts = loop.wavefronts_per_step
    shared = sum(access.per_step for access in loop.accesses)
    copies = sum(o.copy.passes * (o.copy.vector if o.is_async and not o.mn_major else 1) for o in loop.copied)
    guards = 3 * copies * (sum(o.guards_rows or o.guards_columns for o in loop.copied) > 0)
    loaded = (held(m, plan.tile_m) * a.element_bytes + held(n, plan.tile_n) * b.element_bytes) * loop.tile_k * groups
    main = Work(
        blocks=blocks,
        threads=plan.threads,
        registers=plan.registers_per_thread,
        shared_bytes=plan.shared_bytes,
        steps=own_steps,
        operations=2.0 * plan.tile_m * plan.tile_n * loop.tile_k * groups,
        unit="fp32",
        issue=1.0 + (shared + 2 * copies + guards + 8) / fma,
        shared_clocks=float(wavefronts * warps),
        loaded_bytes=loaded,
        in_flight=float(max(1, loop.stages - 1)),
        stored_bytes=stored,
        memory_bytes=moved.factors + (0.0 if scheme == "split_k_parallel" else moved.result),
        turns=turns,
        costs=costs_of(_kind(plan, min(a.element_bytes, b.element_bytes))),
    )
    if scheme != "split_k_parallel":
        return (main,)
    return main, reduction_work(plan, problem, moved.result)


def _kind(plan: SimtPlan, element_bytes: int) -> str:
    """Name of a tiled kernel in the table of costs."""
    if element_bytes < FLOAT_BYTES:
        return "tiled, 16 bits"
    return "tiled, narrow" if plan.tile_n <= NARROWEST else "tiled"
