"""The launch sequence of a GEMM whose warps multiply fragments on tensor cores: arrays as they are, and grids that may be smaller than the
work."""

from __future__ import annotations

from gemmgen.core.elements import DataType
from gemmgen.core.formulas import Formula
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.gemm.matrices import FLOAT_BYTES
from gemmgen.kernels.gemm.sequence import MAXIMUM_EXTENT, gemm_problem, partials_bytes, reduction_launch, workspace_argument
from gemmgen.kernels.gemm.spec import GemmSpec, SplitKParallel
from gemmgen.kernels.gemm.tensor_sequence import FARTHEST_TILE, LARGEST_INT, counting_arguments, works_text
from gemmgen.kernels.gemm.warp_mma import WarpLoop
from gemmgen.kernels.launch import Argument, Constraint, KernelLaunch, LaunchSequence
from gemmgen.kernels.matrix import Matrix


def warp_mma_sequence(
    name: str,
    spec: GemmSpec,
    matrices: tuple[Matrix, Matrix, Matrix],
    loop: WarpLoop,
    epilogue: tuple[Step, ...],
    reduction: tuple[int, int],
    dynamic_shared_bytes: int,
) -> LaunchSequence:
    """Dimensions, arguments, constraints, workspace and launches of the instance ``name``; ``reduction``: threads of a block that
    adds up slices, and elements of C that it finishes."""
    problem = gemm_problem(spec, matrices, epilogue, MAXIMUM_EXTENT - FARTHEST_TILE, LARGEST_INT)
    partial = isinstance(spec.decomposition, SplitKParallel)
    slices = getattr(spec.decomposition, "slices", 1)
    counts = counting_arguments(spec)
    factors: list[Argument] = [
        *problem.extents, *counts, *problem.alphas, problem.a, *matrices[0].scalars, problem.b, *matrices[1].scalars,
    ]  # fmt: skip
    result: list[Argument] = [*problem.betas, problem.c, *matrices[2].scalars, *problem.epilogue]
    workspace_bytes = partials_bytes(spec, matrices, slices) if partial else Formula("0")
    arguments: list[Argument] = [*factors, *result]
    works = works_text(spec, loop)
    main = arguments
    launches: tuple[KernelLaunch, ...] = ()
    if partial:
        sums: DataType = "s32" if loop.accumulator == "int" else "f32"
        workspace = workspace_argument(sums, workspace_bytes, FLOAT_BYTES, "the partial products of all slices, one after the other")
        main = [*factors, workspace]
        arguments = [*arguments, workspace]
        launches = (reduction_launch(name, spec, problem, matrices, workspace, reduction[1], reduction[0]),)
    launch = KernelLaunch(
        entry=name,
        grid=(Formula(f"min({works}, {loop.persistent_blocks})" if loop.persistent_blocks else works), Formula("1"), Formula("1")),
        block=(loop.threads, 1, 1),
        arguments=tuple(argument.name for argument in main),
        dynamic_shared_bytes=Formula(str(dynamic_shared_bytes)),
        programmatic=spec.early_launch,
    )
    fits = Constraint(Formula(f"{works} < {LARGEST_INT - 65536}"), "the pieces of work can be counted in an int")
    return LaunchSequence(
        name=name,
        dimensions=problem.dimensions,
        arguments=tuple(arguments),
        launches=(launch, *launches),
        constraints=(*problem.constraints, fits),
        workspace_bytes=workspace_bytes,
    )
