"""The launch sequence of a GEMM whose warps multiply fragments on tensor cores: arrays as they are, and grids that may be smaller than the
work."""

from __future__ import annotations

from gemmgen.core.elements import DataType
from gemmgen.core.formulas import Formula
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.gemm.matrices import FLOAT_BYTES, factors_of, second_factor
from gemmgen.kernels.gemm.mma_sync.loop import WarpLoop
from gemmgen.kernels.gemm.mma_sync.sparse import metadata_matrix
from gemmgen.kernels.gemm.sequence import (
    MAX_EXTENT,
    gemm_problem,
    main_launch,
    partials_bytes,
    reduction_launch,
    slices_dimension,
    slices_of,
    workspace_argument,
)
from gemmgen.kernels.gemm.spec import GemmSpec, SplitKParallel, StreamK
from gemmgen.kernels.gemm.tensor_cores.grid import MAX_INT, Grid
from gemmgen.kernels.gemm.tensor_cores.sequence import FARTHEST_TILE, SWIZZLES, counting_arguments, matrix_map
from gemmgen.kernels.launch import Argument, Constraint, KernelLaunch, LaunchSequence
from gemmgen.kernels.matrix import Matrix


def mma_sync_sequence(
    name: str,
    spec: GemmSpec,
    matrices: tuple[Matrix, Matrix, Matrix],
    loop: WarpLoop,
    grid: Grid,
    epilogue: tuple[Step, ...],
    dynamic_shared_bytes: int,
) -> LaunchSequence:
    """Dimensions, arguments, constraints, workspace and launches of the instance ``name``."""
    problem = gemm_problem(spec, matrices, epilogue, MAX_EXTENT - FARTHEST_TILE, MAX_INT)
    deepest: tuple[Constraint, ...] = ()
    if loop.vectors is not None:
        deepest = (Constraint(Formula(f"k <= {loop.tile_k}"), f"k must be at most {loop.tile_k}; a warp holds all of it"),)
    partial = isinstance(spec.decomposition, SplitKParallel)
    own_slices, slices = slices_of(spec)
    counts = (*counting_arguments(spec), *own_slices)
    stored: list[Argument] = [problem.a, *matrices[0].scalars, problem.b, *matrices[1].scalars, *problem.second]
    more = (metadata_matrix(),) if loop.sparse else ()
    for matrix in more:
        stored += [matrix.argument("input"), *matrix.scalars]
    maps: list[Argument] = []
    factors_read = factors_of(matrices, second_factor(spec))
    factors: list[Argument] = [*problem.extents, *counts, *problem.alphas]
    scales = list(problem.scales)
    if loop.boxed:
        maps += [
            matrix_map(matrix, operand.boxes.box, SWIZZLES[operand.pitch])
            for matrix, operand in zip(factors_read, (loop.a, loop.b, loop.b), strict=False)
        ]
        strides = [scalar for matrix in factors_read for scalar in matrix.scalars if scalar.name == matrix.batch_stride]
        own = [*factors, *maps, *strides, *scales]
    else:
        own = [*factors, *stored, *scales]
    result: list[Argument] = [*problem.betas, problem.c, *matrices[2].scalars, *problem.epilogue]
    workspace_bytes = partials_bytes(spec, matrices, slices) if partial else Formula("0")
    arguments: list[Argument] = [*factors, *stored, *scales, *result, *maps]
    main = [*own, *result]
    launches: tuple[KernelLaunch, ...] = ()
    if partial:
        sums: DataType = "s32" if loop.accumulator == "int" else "f32"
        workspace = workspace_argument(sums, workspace_bytes, FLOAT_BYTES, "the partial products of all slices, one after the other")
        main = [*own, workspace]
        arguments = [*arguments, workspace]
        launches = (reduction_launch(name, spec, problem, matrices, workspace),)
    zero_bytes = Formula("0")
    if isinstance(spec.decomposition, StreamK):
        workspace, zero_bytes = grid.streamed_workspace(spec.decomposition)
        workspace_bytes = workspace.shape[0]
        main, arguments = [*main, workspace], [*arguments, workspace]
    launch = main_launch(
        name, spec, grid.blocks(spec), loop.threads, main, dynamic_shared_bytes, blocks_of_device=grid.blocks_of_device(spec)
    )
    return LaunchSequence(
        name=name,
        dimensions=(
            *problem.dimensions,
            *(dimension for matrix in more for dimension in matrix.dimensions),
            *((slices_dimension(),) if own_slices else ()),
        ),
        arguments=tuple(arguments),
        launches=(launch, *launches),
        constraints=(*problem.constraints, *(one for matrix in more for one in matrix.constraints), *deepest, grid.constraint(spec)),
        workspace_bytes=workspace_bytes,
        workspace_zero_bytes=zero_bytes,
    )
