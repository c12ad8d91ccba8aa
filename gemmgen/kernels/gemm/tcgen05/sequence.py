"""The launch sequence of a GEMM on tensor memory."""

from __future__ import annotations

from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.gemm.sequence import MAX_EXTENT, gemm_problem, main_launch
from gemmgen.kernels.gemm.spec import GemmSpec
from gemmgen.kernels.gemm.tcgen05.loop import TensorMemoryLoop
from gemmgen.kernels.gemm.tensor_cores.grid import MAX_INT, Grid
from gemmgen.kernels.gemm.tensor_cores.sequence import FARTHEST_TILE, counting_arguments, matrix_map
from gemmgen.kernels.launch import Argument, LaunchSequence
from gemmgen.kernels.matrix import Matrix


def tcgen05_sequence(
    name: str, spec: GemmSpec, matrices: tuple[Matrix, Matrix, Matrix], loop: TensorMemoryLoop, grid: Grid, epilogue: tuple[Step, ...]
) -> LaunchSequence:
    """Dimensions, arguments, constraints and the launch of the instance ``name``."""
    problem = gemm_problem(spec, matrices, epilogue, MAX_EXTENT - FARTHEST_TILE, MAX_INT)
    counts = counting_arguments(spec)
    strides = [scalar for matrix in matrices[:2] for scalar in matrix.scalars if scalar.name == matrix.batch_stride]
    maps = [matrix_map(matrix, operand.box) for matrix, operand in zip(matrices[:2], (loop.a, loop.b), strict=True)]
    result: list[Argument] = [*problem.betas, problem.c, *matrices[2].scalars, *problem.epilogue]
    stored = result
    if loop.box_columns:
        maps.append(matrix_map(matrices[2], loop.box))
        stored = result if problem.betas else [*problem.epilogue]
    main: list[Argument] = [*problem.extents, *counts, *problem.alphas, *maps, *strides, *problem.scales, *stored]
    launch = main_launch(name, spec, grid.blocks(spec), loop.threads, main, loop.shared_bytes, grid.cluster_blocks)
    factors: list[Argument] = [problem.a, *matrices[0].scalars, problem.b, *matrices[1].scalars]
    return LaunchSequence(
        name=name,
        dimensions=tuple(problem.dimensions),
        arguments=(*problem.extents, *counts, *problem.alphas, *factors, *problem.scales, *result, *maps),
        launches=(launch,),
        constraints=(*problem.constraints, grid.constraint(spec)),
    )
