"""The launch sequence of a product of few columns."""

from __future__ import annotations

from gemmgen.core.formulas import Formula
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.gemm.gemv.loop import VectorLoop
from gemmgen.kernels.gemm.sequence import (
    MAX_EXTENT,
    MAX_SLICES,
    gemm_problem,
    last_workspace,
    products,
    slices_dimension,
    workspace_argument,
)
from gemmgen.kernels.gemm.spec import GemmSpec, SplitKLast
from gemmgen.kernels.launch import GRID_LIMITS, Argument, KernelLaunch, LaunchSequence
from gemmgen.kernels.matrix import Matrix


def gemv_sequence(
    name: str, spec: GemmSpec, matrices: tuple[Matrix, Matrix, Matrix], loop: VectorLoop, epilogue: tuple[Step, ...]
) -> LaunchSequence:
    """One launch, with a block for each slice of each tile."""
    problem = gemm_problem(spec, matrices, epilogue, MAX_EXTENT - MAX_SLICES * loop.step * loop.unroll, GRID_LIMITS[1])
    layout_a, layout_b, layout_c = matrices
    arguments: list[Argument] = [*problem.extents, *problem.alphas, problem.a, *layout_a.scalars, problem.b, *layout_b.scalars]
    arguments += [*problem.betas, problem.c, *layout_c.scalars, *problem.epilogue]
    tiles = f"ceil_div(m, {loop.tile_m}) * " + (f"ceil_div(n, {loop.columns})" if loop.columns > 1 else "n")
    dimensions = problem.dimensions
    slices, workspace_bytes, zero_bytes = Formula("1"), Formula("0"), Formula("0")
    if isinstance(spec.decomposition, SplitKLast):
        dimensions += (slices_dimension(),)
        slices = Formula("slices")
        times_batch = " * batch" if spec.batch == "strided" else ""
        workspace_bytes, zero_bytes = last_workspace(f"{tiles}{times_batch}", loop.elements)
        arguments.append(workspace_argument("u8", workspace_bytes, 1, "for each tile of C how many of its blocks came, then their sums"))
    launch = KernelLaunch(
        entry=name,
        grid=(Formula(tiles), products(spec), slices),
        block=(loop.threads, 1, 1),
        arguments=tuple(argument.name for argument in arguments),
        dynamic_shared_bytes=Formula("0"),
        programmatic=spec.early_launch,
    )
    return LaunchSequence(
        name=name,
        dimensions=dimensions,
        arguments=tuple(arguments),
        launches=(launch,),
        constraints=problem.constraints,
        workspace_bytes=workspace_bytes,
        workspace_zero_bytes=zero_bytes,
    )
