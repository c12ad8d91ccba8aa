"""The launch sequence of a GEMM by warpgroups: tensor maps of the matrices, clusters, and grids that may be smaller than the work."""

from __future__ import annotations

from gemmgen.core.elements import DataType
from gemmgen.core.formulas import Formula
from gemmgen.hardware import tensor_map as tma
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.gemm.matrices import FLOAT_BYTES, factors_of, second_factor
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
from gemmgen.kernels.gemm.wgmma.copied import COPY_THREADS, CopyPlan
from gemmgen.kernels.gemm.wgmma.loop import boxed_outputs, last_operand, operand_in_stages
from gemmgen.kernels.gemm.wgmma.sparse import metadata_matrix
from gemmgen.kernels.launch import Argument, KernelLaunch, LaunchSequence, TensorMapArgument
from gemmgen.kernels.math.warpgroup import SPAN_BYTES, TICKET_BYTES, WarpgroupLoop, WarpgroupOperand
from gemmgen.kernels.matrix import Matrix


def wgmma_sequence(
    name: str,
    spec: GemmSpec,
    matrices: tuple[Matrix, Matrix, Matrix],
    loop: WarpgroupLoop,
    grid: Grid,
    epilogue: tuple[Step, ...],
    copied: CopyPlan | None,
) -> LaunchSequence:
    """Dimensions, arguments, constraints, workspace and launches of the instance ``name``; ``copied``: the kernel that copies factors
    first, if there is one."""
    problem = gemm_problem(spec, matrices, epilogue, MAX_EXTENT - FARTHEST_TILE, MAX_INT)
    partial = isinstance(spec.decomposition, SplitKParallel)
    own, slices = slices_of(spec)
    map_a, map_b = (_factor_map(copied, matrix, operand) for matrix, operand in ((matrices[0], loop.a), (matrices[1], loop.b)))
    second = second_factor(spec)
    map_second = [] if second is None else [matrix_map(second, loop.b.box)]
    counts = counting_arguments(spec)
    strides = [scalar for matrix in factors_of(matrices, second) for scalar in matrix.scalars if scalar.name == matrix.batch_stride]
    metadata = (metadata_matrix(),) if loop.sparse else ()
    of_metadata: list[Argument] = []
    for matrix in metadata:
        of_metadata += [matrix.argument("input"), *matrix.scalars]
    map_metadata = [matrix_map(matrix, loop.metadata_box, "none") for matrix in metadata]
    maps: list[TensorMapArgument] = [*([] if spec.grouping.gathered else [map_a]), *map_metadata, map_b, *map_second]
    result: list[Argument] = [*problem.betas, problem.c, *matrices[2].scalars, *problem.epilogue]
    workspace_bytes = partials_bytes(spec, matrices, slices) if partial else Formula("0")
    rows_of_a: list[Argument] = [problem.a, *matrices[0].scalars] if spec.grouping.gathered else []
    factors: list[Argument] = [*problem.extents, *counts, *problem.alphas, *rows_of_a, *maps, *strides, *problem.scales]
    if partial:
        sums: DataType = "s32" if loop.accumulator == "int" else "f32"
        workspace = workspace_argument(sums, workspace_bytes, FLOAT_BYTES, "the partial products of all slices, one after the other")
        main: list[Argument] = [*factors, workspace, *own]
    elif loop.staging is not None:
        map_c = [] if spec.grouping.scattered else [matrix_map(matrices[2], loop.staging.box)]
        maps += map_c
        main = [*factors, *map_c, *(result if problem.betas or spec.batch == "grouped" else problem.epilogue)]
        residuals = [matrix for step in epilogue for matrix in step.matrices if loop.residual]
        outputs = [store.argument for store in boxed_outputs(spec, loop, epilogue)]
        operand = operand_in_stages(loop, epilogue)
        staged = [operand.argument] if operand is not None else []
        boxes = {one.name: (SPAN_BYTES // one.element_bytes, loop.tile_m) for one in staged if isinstance(one, Matrix)}
        for matrix in (*residuals, *(one for one in (*staged, *outputs) if isinstance(one, Matrix))):
            maps.append(matrix_map(matrix, boxes.get(matrix.name, loop.staging.box)))
            mapped = {matrix.name, *(scalar.name for scalar in matrix.scalars)}
            main = [*(argument for argument in main if argument.name not in mapped), maps[-1]]
        last = last_operand(loop, epilogue)
        if last is not None and isinstance(last.argument, Matrix):
            maps.append(matrix_map(last.argument, (SPAN_BYTES // last.argument.element_bytes, loop.tile_m)))
            main.append(maps[-1])
    else:
        main = [*factors, *result]
    shared: list[Argument] = []
    zero_bytes = Formula("0")
    if loop.dynamic:
        workspace_bytes = zero_bytes = Formula(str(TICKET_BYTES))
        shared.append(workspace_argument("s32", workspace_bytes, TICKET_BYTES, "pieces of work that blocks have asked for"))
    elif isinstance(spec.decomposition, StreamK):
        joint, zero_bytes = grid.streamed_workspace(spec.decomposition)
        workspace_bytes = joint.shape[0]
        shared.append(joint)
    main += shared
    launch = main_launch(
        name, spec, grid.blocks(spec), loop.threads, main, loop.shared_bytes, grid.cluster_blocks, grid.blocks_of_device(spec)
    )
    launches: tuple[KernelLaunch, ...] = (launch,)
    arguments: list[Argument] = [
        *problem.extents,
        *counts,
        *problem.alphas,
        problem.a,
        *matrices[0].scalars,
        *of_metadata,
        problem.b,
        *matrices[1].scalars,
        *problem.second,
        *problem.scales,
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
        launches += (reduction_launch(name, spec, problem, matrices, workspace),)
        arguments += [workspace, *own]
    return LaunchSequence(
        name=name,
        dimensions=(
            *problem.dimensions,
            *(dimension for matrix in metadata for dimension in matrix.dimensions),
            *((slices_dimension(),) if own else ()),
        ),
        arguments=tuple(arguments),
        launches=launches,
        constraints=(*problem.constraints, *(one for matrix in metadata for one in matrix.constraints), grid.constraint(spec)),
        workspace_bytes=workspace_bytes,
        workspace_zero_bytes=zero_bytes,
    )


def _factor_map(copied: CopyPlan | None, matrix: Matrix, operand: WarpgroupOperand) -> TensorMapArgument:
    """A factor, or its copy in the workspace, as TMA sees it."""
    box = operand.box
    copy = copied.factor(matrix.name) if copied is not None else None
    if copy is None:
        return matrix_map(matrix, box, SWIZZLES[operand.row_bytes])
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
