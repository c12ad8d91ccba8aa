"""The launch sequence of a GEMM on tensor cores: tensor maps of the matrices, clusters, and grids that may be smaller than the work."""

from __future__ import annotations

from gemmgen.core.elements import DataType
from gemmgen.core.formulas import Formula
from gemmgen.hardware import tensor_map as tma
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.gemm.matrices import FLOAT_BYTES
from gemmgen.kernels.gemm.mma_sync.loop import WarpLoop
from gemmgen.kernels.gemm.sequence import (
    MAXIMUM_EXTENT,
    SLICES,
    flag_bytes,
    gemm_problem,
    partials_bytes,
    reduction_launch,
    slices_dimension,
    workspace_argument,
)
from gemmgen.kernels.gemm.spec import GemmSpec, SplitKParallel, StreamK
from gemmgen.kernels.gemm.wgmma.copied import COPY_THREADS, CopyPlan
from gemmgen.kernels.launch import Argument, ArrayArgument, Constraint, KernelLaunch, LaunchSequence, ScalarArgument, TensorMapArgument
from gemmgen.kernels.math.warpgroup import TICKET_BYTES, WarpgroupLoop
from gemmgen.kernels.matrix import Matrix

LARGEST_INT = 2**31 - 1
FARTHEST_TILE = 8 * 512
"""Largest distance beyond an edge at which the tile of a cluster's last block can begin."""


def tensor_core_sequence(
    name: str,
    spec: GemmSpec,
    matrices: tuple[Matrix, Matrix, Matrix],
    loop: WarpgroupLoop,
    epilogue: tuple[Step, ...],
    reduction: tuple[int, int],
    copied: CopyPlan | None,
) -> LaunchSequence:
    """Dimensions, arguments, constraints, workspace and launches of the instance ``name``; ``reduction``: threads of a block that
    adds up slices, and elements of C that it finishes; ``copied``: the kernel that copies factors first, if there is one."""
    problem = gemm_problem(spec, matrices, epilogue, MAXIMUM_EXTENT - FARTHEST_TILE, LARGEST_INT)
    slices = getattr(spec.decomposition, "slices", 1)
    partial = isinstance(spec.decomposition, SplitKParallel)
    own: tuple[ScalarArgument, ...] = (SLICES,) if slices == "launch" else ()
    slices = "slices" if own else slices
    map_a, map_b = (_factor_map(copied, matrix, box) for matrix, box in ((matrices[0], loop.a.box), (matrices[1], loop.b.box)))
    counts = counting_arguments(spec)
    strides = [scalar for matrix in matrices[:2] for scalar in matrix.scalars if scalar.name == matrix.batch_stride]
    maps: list[TensorMapArgument] = [map_a, map_b]
    result: list[Argument] = [*problem.betas, problem.c, *matrices[2].scalars, *problem.epilogue]
    workspace_bytes = partials_bytes(spec, matrices, slices) if partial else Formula("0")
    factors: list[Argument] = [*problem.extents, *counts, *problem.alphas, map_a, map_b, *strides]
    if partial:
        sums: DataType = "s32" if loop.accumulator == "int" else "f32"
        workspace = workspace_argument(sums, workspace_bytes, FLOAT_BYTES, "the partial products of all slices, one after the other")
        main: list[Argument] = [*factors, workspace, *own]
    elif loop.staging is not None:
        map_c = matrix_map(matrices[2], loop.staging.box)
        maps.append(map_c)
        main = [*factors, map_c, *(result if problem.betas or spec.batch == "grouped" else problem.epilogue)]
        for matrix in (matrix for step in epilogue for matrix in step.matrices if loop.residual):
            maps.append(matrix_map(matrix, loop.staging.box))
            mapped = {matrix.name, *(scalar.name for scalar in matrix.scalars)}
            main = [*(argument for argument in main if argument.name not in mapped), maps[-1]]
    else:
        main = [*factors, *result]
    shared: list[Argument] = []
    zero_bytes = Formula("0")
    if loop.dynamic:
        workspace_bytes = zero_bytes = Formula(str(TICKET_BYTES))
        shared.append(workspace_argument("s32", workspace_bytes, TICKET_BYTES, "pieces of work that blocks have asked for"))
    elif isinstance(spec.decomposition, StreamK):
        joint, zero_bytes = streamed_workspace(spec, loop)
        workspace_bytes = joint.shape[0]
        shared.append(joint)
    main += shared
    launch = KernelLaunch(
        entry=name,
        grid=(Formula(grid_text(spec, loop)), Formula("1"), Formula("1")),
        block=(loop.threads, 1, 1),
        arguments=tuple(argument.name for argument in main),
        dynamic_shared_bytes=Formula(str(loop.shared_bytes)),
        cluster=(loop.cluster_blocks, 1, 1),
        programmatic=spec.early_launch,
    )
    launches: tuple[KernelLaunch, ...] = (launch,)
    arguments: list[Argument] = [
        *problem.extents,
        *counts,
        *problem.alphas,
        problem.a,
        *matrices[0].scalars,
        problem.b,
        *matrices[1].scalars,
        *result,
        *maps,
        *shared,
    ]
    if copied is not None:
        workspace_bytes = copied.workspace_bytes
        workspace = workspace_argument("u8", workspace_bytes, 1, "copies of factors, in rows along k")
        sources: list[Argument] = []
        for array, matrix in ((problem.a, matrices[0]), (problem.b, matrices[1])):
            sources += [array, *matrix.scalars] if copied.factor(matrix.name) else []
        first = KernelLaunch(
            entry=copied.entry,
            grid=(copied.grid, Formula("1"), Formula("batch" if spec.batch == "strided" else "1")),
            block=(COPY_THREADS, 1, 1),
            arguments=tuple(argument.name for argument in (*problem.extents, *problem.alphas, *sources, workspace)),
            programmatic=spec.early_launch,
        )
        launches = (first, *launches)
        arguments.append(workspace)
    if partial:
        launches += (reduction_launch(name, spec, problem, matrices, workspace, reduction[1], reduction[0]),)
        arguments += [workspace, *own]
    return LaunchSequence(
        name=name,
        dimensions=(*problem.dimensions, *((slices_dimension(),) if own else ())),
        arguments=tuple(arguments),
        launches=launches,
        constraints=(*problem.constraints, work_constraint(spec, loop)),
        workspace_bytes=workspace_bytes,
        workspace_zero_bytes=zero_bytes,
    )


def _factor_map(copied: CopyPlan | None, matrix: Matrix, box: tuple[int, int]) -> TensorMapArgument:
    """A factor, or its copy in the workspace, as the copy engine sees it."""
    copy = copied.factor(matrix.name) if copied is not None else None
    if copy is None:
        return matrix_map(matrix, box)
    size = matrix.element_bytes
    extents, strides = ["k", copy.extent], [f"{size} * {copy.pitch}"]
    if matrix.batch_stride is not None:
        extents.append(f"select({matrix.batch_stride} == 0, 1, {matrix.count})")
        strides.append(f"{size} * {copy.extent} * {copy.pitch}")
    return TensorMapArgument(
        name=f"map_{copy.suffix}",
        array="workspace",
        element=tma.copied_as(matrix.type),
        extents=tuple(Formula(extent) for extent in extents),
        strides=tuple(Formula(stride) for stride in strides),
        meaning=f"the copy of {matrix.name} in boxes of {box[1]} rows of {box[0]} elements",
        box=(*box, 1) if matrix.batch_stride is not None else box,
        offset_bytes=copy.offset_bytes,
        swizzle="128B",
        l2_promotion="128B",
    )


def counting_arguments(spec: GemmSpec) -> tuple[Argument, ...]:
    """Arguments that say how many products there are, and where the rows of each end."""
    if spec.batch == "strided":
        return (ScalarArgument("batch", "s32", "problems in the batch"),)
    if spec.batch == "none":
        return ()
    meaning = "the end of each group among the rows of A and C, in their order"
    offsets = ArrayArgument("offsets", "s32", "input", (Formula("groups"),), (Formula("1"),), 4, meaning)
    return ScalarArgument("groups", "s32", "groups of rows"), offsets


def streamed_workspace(spec: GemmSpec, loop: WarpgroupLoop | WarpLoop) -> tuple[ArrayArgument, Formula]:
    """The workspace of stream-K, and how many of its bytes are zero at first."""
    assert isinstance(spec.decomposition, StreamK)
    blocks = spec.decomposition.blocks
    size = Formula(str(flag_bytes(blocks, loop.consumers) + FLOAT_BYTES * loop.tile_m * loop.tile_n * blocks))
    workspace = workspace_argument("u8", size, 1, "for each block whether it left a sum, then the sums")
    return workspace, Formula(str(4 * blocks * loop.consumers))


def grid_text(spec: GemmSpec, loop: WarpgroupLoop | WarpLoop) -> str:
    """The formula of the blocks of a grid, which are clusters side by side."""
    works, cluster = works_text(spec, loop), loop.cluster_blocks
    if isinstance(spec.decomposition, StreamK):
        return f"select({works} > 0, {spec.decomposition.blocks}, 0)"
    own = f"ceil_div({works}, {loop.own_tiles})" if isinstance(loop, WarpLoop) and loop.own_tiles > 1 else works
    at_once = f"min({own}, {loop.persistent_blocks // cluster})" if loop.persistent_blocks else own
    return f"{cluster} * ({at_once})" if cluster > 1 else at_once


def work_constraint(spec: GemmSpec, loop: WarpgroupLoop | WarpLoop) -> Constraint:
    """Pieces of work, or steps of all of them, that can be counted."""
    works = works_text(spec, loop)
    if isinstance(spec.decomposition, StreamK):
        steps = f"{works} * max(1, ceil_div(k, {loop.tile_k}))"
        return Constraint(
            Formula(f"{steps} < {2**31 - 1024}"), f"{steps} is less than {2**31 - 1024}: an int counts the steps along k of all tiles"
        )
    own = loop.own_tiles if isinstance(loop, WarpLoop) and loop.vectors is not None else 1
    most = LARGEST_INT - 65536 * own
    pieces = "slices of tiles of C" if isinstance(spec.decomposition, SplitKParallel) else "tiles of C"
    return Constraint(Formula(f"{works} < {most}"), f"{works} is less than {most}: an int counts the {pieces}")


def works_text(spec: GemmSpec, loop: WarpgroupLoop | WarpLoop) -> str:
    """The formula of the pieces of work, at most."""
    rows, columns = f"ceil_div(m, {loop.tile_m * loop.cluster_m})", f"ceil_div(n, {loop.tile_n * loop.cluster_n})"
    if spec.batch == "grouped":
        # Each group may add a tile that it does not fill; where the tiles are, only the device knows.
        return f"({rows} + groups) * {columns} * min(min(m, groups), 1)"
    own = getattr(spec.decomposition, "slices", 1)
    slices = f" * {'slices' if own == 'launch' else own}" if isinstance(spec.decomposition, SplitKParallel) else ""
    return f"{rows} * {columns}{slices}" + (" * batch" if spec.batch == "strided" else "")


def matrix_map(matrix: Matrix, box: tuple[int, int], swizzle: tma.Swizzle = "128B") -> TensorMapArgument:
    """A matrix, or a batch of them, as the copy engine sees it; where all products share one, the batch has a single matrix."""
    size = matrix.element_bytes
    slow = matrix.rows if matrix.row_major else matrix.columns
    extents, strides, axes = [matrix.contiguous, slow], [f"{size} * {matrix.leading_dimension}"], "rows" if matrix.row_major else "columns"
    whole_box: tuple[int, ...] = box
    if matrix.batch_stride is not None:
        extents.append(f"select({matrix.batch_stride} == 0, 1, {matrix.count})")
        strides.append(f"{size} * {matrix.batch_stride}")
        whole_box = (*box, 1)
    return TensorMapArgument(
        name=f"map_{matrix.name.lower()}",
        array=matrix.name,
        element=tma.copied_as(matrix.type),
        extents=tuple(Formula(extent) for extent in extents),
        strides=tuple(Formula(stride) for stride in strides),
        meaning=f"{matrix.name} in boxes of {box[1]} {axes} of {box[0]} elements",
        box=whole_box,
        swizzle=swizzle,
        l2_promotion="128B",
    )
