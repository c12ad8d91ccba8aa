"""The plan of a GEMM with a thread for each element of C."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.core.errors import Reason
from gemmgen.core.formulas import Formula
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.gemm.plan import GemmPlan, Outline
from gemmgen.kernels.gemm.reasons import (
    direct_store_reasons,
    division_reasons,
    invariance_reasons,
    launch_slices_reasons,
    multiply_add_reasons,
    thread_reasons,
)
from gemmgen.kernels.gemm.sequence import MAX_EXTENT, gemm_problem, products
from gemmgen.kernels.gemm.spec import GemmSpec, NaiveMainloop
from gemmgen.kernels.launch import GRID_LIMITS, Argument, KernelLaunch, LaunchSequence
from gemmgen.kernels.tiles.unrolling import unroll_pragma

STEP = 8
"""Values of k that a thread is taken to have in flight."""
REGISTERS = 40


@dataclass(frozen=True)
class NaiveLoop:
    """Numbers of the mainloop: a block's elements of C, and the unrolling of the loop over k."""

    tile_major: int
    tile_minor: int
    unroll_pragma: str = ""
    """The line before the loop over k; empty where its unrolling is left to the compiler."""


@dataclass(frozen=True, kw_only=True)
class NaivePlan(GemmPlan):
    """A GEMM whose threads compute an element of C each."""

    loop: NaiveLoop

    @property
    def registers_per_thread(self) -> int:
        return REGISTERS

    @property
    def step_k(self) -> int:
        return STEP

    @property
    def padded_k(self) -> int:
        return 1

    def additions(self, k: int) -> tuple[str, int]:
        return "fma", 0

    @property
    def fetched_tile(self) -> tuple[int, int]:
        return 1, min(self.tile_n, WARP_THREADS)


def plan(spec: GemmSpec, mainloop: NaiveMainloop, architecture: Architecture) -> NaivePlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    outline = Outline(spec, architecture, _combination_reasons(spec))
    tile_m, tile_n = mainloop.threadblock.m, mainloop.threadblock.n
    threads = tile_m * tile_n
    outline.reasons += thread_reasons(threads, architecture, "mainloop.threadblock")
    tile = (tile_m, tile_n) if spec.order == "row_major" else (tile_n, tile_m)
    epilogue = outline.epilogue()
    name = outline.name("sgemm_naive", [f"{tile_m}x{tile_n}"])
    return NaivePlan(
        name=name,
        spec_digest=outline.digest,
        architecture=architecture,
        sequence=_sequence(name, outline, (tile_m, tile_n), epilogue),
        template="gemm/naive.cu.j2",
        shared_memory=(),
        dynamic_shared_bytes=0,
        spec=spec,
        matrices=outline.matrices,
        threads=threads,
        tile_m=tile_m,
        tile_n=tile_n,
        vector_c=1,
        epilogue=epilogue,
        loop=NaiveLoop(*tile, unroll_pragma(mainloop.unroll)),
    )


def _combination_reasons(spec: GemmSpec) -> list[Reason]:
    unfit = []
    if spec.decomposition.scheme != "data_parallel":
        need, hint = "data_parallel for the naive strategy", "it has no tiles along k to divide; the tiled strategy has"
        unfit.append(Reason("decomposition", "decomposition.scheme", spec.decomposition.scheme, need, hint))
    for reasons in (division_reasons, launch_slices_reasons, invariance_reasons, multiply_add_reasons, direct_store_reasons):
        unfit += reasons(spec)
    return unfit


def _sequence(name: str, outline: Outline, tile: tuple[int, int], epilogue: tuple[Step, ...]) -> LaunchSequence:
    """One launch, with a block for each tile."""
    spec, (a, b, c) = outline.spec, outline.matrices
    problem = gemm_problem(spec, outline.matrices, epilogue, MAX_EXTENT - 1, GRID_LIMITS[1])
    arguments: list[Argument] = [*problem.extents, *problem.alphas, problem.a, *a.scalars, problem.b, *b.scalars, *problem.second]
    arguments += [*problem.betas, problem.c, *c.scalars, *problem.epilogue]
    launch = KernelLaunch(
        entry=name,
        grid=(Formula(f"ceil_div(m, {tile[0]}) * ceil_div(n, {tile[1]})"), products(spec), Formula("1")),
        block=(tile[0] * tile[1], 1, 1),
        arguments=tuple(argument.name for argument in arguments),
        dynamic_shared_bytes=Formula("0"),
        programmatic=spec.early_launch,
    )
    return LaunchSequence(
        name=name,
        dimensions=problem.dimensions,
        arguments=tuple(arguments),
        launches=(launch,),
        constraints=problem.constraints,
        workspace_bytes=Formula("0"),
        workspace_zero_bytes=Formula("0"),
    )
