"""The launch sequence of a GEMM with narrow weights."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.core.formulas import Formula
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.gemm.matrices import FLOAT_BYTES
from gemmgen.kernels.gemm.narrow_weights.loop import MAX_INTEGER_K, WeightLoop
from gemmgen.kernels.gemm.sequence import (
    MAX_EXTENT,
    SLICES,
    gemm_problem,
    last_workspace,
    main_launch,
    partials_bytes,
    reduction_launch,
    slices_dimension,
    slices_of,
    workspace_argument,
)
from gemmgen.kernels.gemm.spec import GemmSpec, SplitKLast, SplitKParallel
from gemmgen.kernels.gemm.tensor_cores.grid import MAX_INT, Grid
from gemmgen.kernels.gemm.tensor_cores.sequence import FARTHEST_TILE
from gemmgen.kernels.launch import Argument, Constraint, KernelLaunch, LaunchSequence, TensorMapArgument
from gemmgen.kernels.matrix import Matrix

TICKET_BYTES = 4096
"""Tickets fill a multiple of so many bytes, so that kernels for different layers, one after the other, find the same bytes zero."""


def group_matrices(spec: GemmSpec, loop: WeightLoop) -> tuple[Matrix, ...]:
    """Scales of B, one for each column of a group of k, and zero points, where they are no constant: integers in the scales' type."""
    groups = f"ceil_div(k, {loop.group})" if loop.group else "1"
    names = ("scales", "zeros") if loop.zeros else ("scales",)
    return tuple(Matrix(name, groups, "n", f"ld_{name}", True, loop.numbers_alignment, loop.number_type) for name in names)


def narrow_sequence(
    name: str,
    spec: GemmSpec,
    matrices: tuple[Matrix, Matrix, Matrix],
    loop: WeightLoop,
    grid: Grid,
    epilogue: tuple[Step, ...],
    maps: tuple[TensorMapArgument, ...] = (),
) -> LaunchSequence:
    """Dimensions, arguments, constraints, workspace and launches of the instance ``name``; ``maps``: of A and B, which the kernel is passed
    in their place."""
    problem = gemm_problem(spec, matrices, epilogue, MAX_EXTENT - FARTHEST_TILE, MAX_INT)
    partial = isinstance(spec.decomposition, SplitKParallel)
    own, slices = slices_of(spec)
    more = group_matrices(spec, loop)
    weights: list[Argument] = []
    for matrix in more:
        weights += [matrix.argument("input"), *matrix.scalars]
    factors: list[Argument] = [*problem.extents, *own, *problem.alphas, problem.a, *matrices[0].scalars, problem.b, *weights]
    result: list[Argument] = [*problem.betas, problem.c, *matrices[2].scalars, *problem.epilogue]
    main, arguments = [*factors, *result], [*factors, *result, *maps]
    if maps:
        main = [*problem.extents, *problem.alphas, *maps, *weights, *result]
    launches: tuple[KernelLaunch, ...] = ()
    workspace_bytes, zero_bytes = Formula("0"), Formula("0")
    joined = isinstance(spec.decomposition, SplitKLast)
    if joined:
        own = (SLICES,)
        works = grid.works(spec)
        workspace_bytes, zero_bytes = last_workspace(works, grid.tile_m * grid.tile_n, TICKET_BYTES)
        workspace = workspace_argument("u8", workspace_bytes, 1, "for each tile of C how many of its blocks came, then their sums")
        main, arguments = [*main, workspace], [*arguments, workspace]
    if partial:
        workspace_bytes = partials_bytes(spec, matrices, slices)
        meaning = "the partial products of all slices, one after the other"
        workspace = workspace_argument("f32", workspace_bytes, FLOAT_BYTES, meaning)
        # One scale for a column multiplies the sum of all slices.
        read_again = () if loop.group else (more[0].argument("input"),)
        main = [*(argument for argument in factors if argument not in read_again), workspace]
        arguments = [*arguments, workspace]
        launches = (reduction_launch(name, spec, problem, matrices, workspace, read_again),)
    launch = main_launch(
        name, spec, grid.blocks(spec), loop.threads, main, loop.shared_bytes, grid.cluster_blocks, grid.blocks_of_device(spec)
    )
    if joined:
        launch = replace(launch, grid=(*launch.grid[:2], Formula(SLICES.name)))
    dimensions = [*problem.dimensions, *(dimension for matrix in more for dimension in matrix.dimensions)]
    # One sum in int32 holds all of k.
    deepest: tuple[Constraint, ...] = ()
    if spec.storage.a == "s8" and not loop.group:
        deepest = (Constraint(Formula(f"k <= {MAX_INTEGER_K}"), f"k must be at most {MAX_INTEGER_K}: int32 holds its sums"),)
    return LaunchSequence(
        name=name,
        dimensions=(*dimensions, *((slices_dimension(),) if own else ())),
        arguments=tuple(arguments),
        launches=(launch, *launches),
        constraints=(*problem.constraints, *(one for matrix in more for one in matrix.constraints), *deepest, grid.constraint(spec)),
        workspace_bytes=workspace_bytes,
        workspace_zero_bytes=zero_bytes,
    )
