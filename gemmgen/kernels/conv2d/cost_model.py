"""The work of a convolution's launches, for the model of their time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.formulas import ceil_div, round_up
from gemmgen.kernels.conv2d.plan import Conv2dPlan
from gemmgen.kernels.conv2d.results import FinishingPlan
from gemmgen.kernels.conv2d.warpgroup import WarpgroupPlan
from gemmgen.kernels.family import Cost, Work
from gemmgen.kernels.gemm.cost_model import COPY_ENGINE_SHARE, TENSOR_CORE_ISSUE

COPIES_IN_FLIGHT = 0.4
"""Steps on their way for each stage, in units of the latency of a load: that of a copy of a tile is longer."""
STORES_EXPOSED = 0.5
"""Part of the stores that other work does not hide. Both are fitted to an H200's times of ResNet-50's layers at batches of 1, 16 and 128,
where the instance that the model picks then takes 1 to 5% longer than the best."""


def work(plan: FinishingPlan, problem: Mapping[str, int]) -> tuple[Work, ...]:
    """The launches of one problem. A step is one slice of the implicit GEMM's k."""
    if isinstance(plan, WarpgroupPlan):
        return (_warpgroup_work(plan, problem),)
    assert isinstance(plan, Conv2dPlan)
    n, c, h, w, k, r, s, p, q, groups = (problem[name] for name in ("n", "c", "h", "w", "k", "r", "s", "p", "q", "groups"))
    tile = plan.spec.tile.threadblock
    pixels, channels = (tile.n, tile.m) if plan.channels_are_rows else (tile.m, tile.n)
    tiles = ceil_div(n * p * q, pixels) * ceil_div(k // groups, channels) * groups
    depth = c // groups * r * s
    steps = ceil_div(ceil_div(depth, tile.k), plan.split_k)
    size = ELEMENTS[plan.output.type].bytes
    outputs = n * p * q * k
    reads = 1 + plan.arrays_like_output
    blocks, per_block = tiles * plan.split_k, 1.0
    if plan.spec.persistent_blocks is not None and blocks > plan.spec.persistent_blocks:
        per_block, blocks = blocks / plan.spec.persistent_blocks, plan.spec.persistent_blocks
    compulsory = float(min(n * c * h * w, n * c * p * q * r * s) + k * depth)
    partial = plan.split_k > 1
    warp = plan.spec.tile.warp
    # Fragments of 8 x 16 or 16 x 32 bytes are read by ldmatrix, 128 bytes a wavefront.
    warps = plan.threads // 32
    wavefronts = warps * (warp.m + warp.n) * tile.k / 128
    main = Work(
        blocks=blocks,
        threads=plan.threads,
        registers=min(255, plan.registers),
        shared_bytes=plan.shared_bytes,
        steps=steps * per_block,
        operations=2.0 * tile.m * tile.n * tile.k,
        unit="int8",
        issue=1.0 + 8.0 * (warp.m + warp.n) / (warp.m * warp.n),
        shared_clocks=wavefronts,
        loaded_bytes=float((tile.m + tile.n) * tile.k),
        in_flight=float(max(1, plan.stages - 1)),
        stored_bytes=float(pixels * channels * (4 if partial else size * reads)) * per_block,
        memory_bytes=compulsory + (0.0 if partial else float(outputs * size * reads)),
    )
    if not partial:
        return (main,)
    finish = plan.sequence.launches[1]
    x, y, z = finish.grid_of(problem)
    count = max(1, x * y * z)
    second = Work(
        count, finish.threads, 40, 0, float(plan.split_k), 0.0, "fp32", 1.0, 0.0, outputs * 4.0 / count, 4.0,
        outputs * size * reads / count, float(outputs * size * reads), follows=True,
    )  # fmt: skip
    return main, second


def _warpgroup_work(plan: WarpgroupPlan, problem: Mapping[str, int]) -> Work:
    loop, spec = plan.loop, plan.spec
    channel_tiles = round_up(ceil_div(problem["k"], loop.tile_m), loop.cluster_m)
    pixels = problem["n"] * problem["p"] * (problem["q"] + plan.taps - 1)
    works = channel_tiles * round_up(ceil_div(pixels, loop.tile_pixels), loop.cluster_n)
    blocks = min(works, loop.persistent_blocks) if loop.persistent_blocks else works
    turns = ceil_div(works, blocks) if blocks else 1
    steps = problem["r"] * problem["s"] // plan.taps * ceil_div(problem["c"], loop.tile_k)
    reads = 1 + plan.arrays_like_output
    return Work(
        blocks=blocks,
        threads=loop.threads,
        registers=min(plan.architecture.registers_per_thread, loop.registers_at_once(plan.architecture.registers_per_sm)),
        shared_bytes=plan.shared_bytes,
        steps=float(steps * turns),
        operations=2.0 * loop.tile_m * loop.tile_pixels * loop.tile_k * plan.taps,
        unit=loop.unit,
        issue=TENSOR_CORE_ISSUE,
        shared_clocks=0.0,
        loaded_bytes=(loop.a.tile_bytes / loop.a.blocks + loop.b.tile_bytes / loop.b.blocks) * COPY_ENGINE_SHARE,
        in_flight=COPIES_IN_FLIGHT * loop.stages,
        stored_bytes=STORES_EXPOSED * float(loop.tile_m * loop.tile_pixels * ELEMENTS[spec.output.type].bytes * reads * turns),
        memory_bytes=cost(plan, problem).bytes,
    )


def cost(plan: FinishingPlan, problem: Mapping[str, int]) -> Cost:
    """Two operations for each product, one crossing of the memory bus for each array."""
    n, c, h, w, k, r, s, p, q = (problem[name] for name in ("n", "c", "h", "w", "k", "r", "s", "p", "q"))
    depth = c // problem["groups"] * r * s
    outputs = n * p * q * k
    size = ELEMENTS[plan.output.type].bytes * outputs
    inputs = ELEMENTS[plan.spec.input.type].bytes * (n * c * h * w + depth * k)
    total = inputs + size + size * plan.arrays_like_output + (4 * k if plan.shifted else 0)
    return Cost(2.0 * outputs * depth, float(total), plan.loop.unit if isinstance(plan, WarpgroupPlan) else "int8")


def executed_operations(plan: FinishingPlan, problem: Mapping[str, int]) -> float:
    """Tiles of pixels by output channels of a group, over whole steps of the implicit GEMM's k."""
    if isinstance(plan, WarpgroupPlan):
        loop = plan.loop
        rows = round_up(problem["n"] * problem["p"] * (problem["q"] + plan.taps - 1), loop.tile_pixels)
        sums = problem["r"] * problem["s"] * round_up(problem["c"], loop.tile_k)
        return 2.0 * rows * round_up(problem["k"], loop.tile_m) * sums
    assert isinstance(plan, Conv2dPlan)
    tile, groups = plan.spec.tile.threadblock, problem["groups"]
    pixels, channels = (tile.n, tile.m) if plan.channels_are_rows else (tile.m, tile.n)
    depth = problem["c"] // groups * problem["r"] * problem["s"]
    rows = round_up(problem["n"] * problem["p"] * problem["q"], pixels)
    return 2.0 * rows * round_up(problem["k"] // groups, channels) * groups * round_up(depth, tile.k)


def peer(plan: FinishingPlan, arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> None:
    """None: torch has no int8 convolution on GPUs."""
    return None
