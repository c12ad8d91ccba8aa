"""The launch sequence of a float32 product by planes: kernels that split, the one that multiplies, and one that repairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from gemmgen.core.formulas import Formula
from gemmgen.hardware import tensor_map as tma
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.gemm.sequence import (
    MAX_EXTENT,
    SLICES,
    gemm_problem,
    reduction_launch,
    slices_dimension,
    workspace_argument,
)
from gemmgen.kernels.gemm.spec import GemmSpec, SplitKParallel
from gemmgen.kernels.gemm.split_precision.planes import REPAIR_THREADS, REPAIR_TILE, SPLIT_THREADS, PlaneOperand, PlanesPlan
from gemmgen.kernels.gemm.tensor_cores.grid import MAX_INT, Grid
from gemmgen.kernels.gemm.tensor_cores.plan import TensorLoop
from gemmgen.kernels.gemm.tensor_cores.sequence import FARTHEST_TILE, matrix_map
from gemmgen.kernels.launch import (
    Argument,
    ArrayArgument,
    Constraint,
    Dimension,
    KernelLaunch,
    LaunchSequence,
    ScalarArgument,
    TensorMapArgument,
)
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.requests import MAX_ALIGNMENT


def planes_sequence(
    name: str,
    spec: GemmSpec,
    matrices: tuple[Matrix, Matrix, Matrix],
    loop: TensorLoop,
    grid: Grid,
    epilogue: tuple[Step, ...],
    planes: PlanesPlan,
    maps: Sequence[TensorMapArgument] = (),
) -> LaunchSequence:
    """Dimensions, arguments, constraints, workspace and launches of the instance ``name``; ``maps``: planes as TMA sees them."""
    problem = gemm_problem(spec, matrices, epilogue, min(planes.largest_k, MAX_EXTENT - FARTHEST_TILE), MAX_INT)
    partial = isinstance(spec.decomposition, SplitKParallel)
    own: list[Argument] = [SLICES] if getattr(spec.decomposition, "slices", 1) == "launch" else []
    held = "scales of rows and columns, then the planes of A and B" + (", then the partial products of all slices" if partial else "")
    workspace = workspace_argument("u8", planes.workspace_bytes, 1, held)
    strides = [scalar for matrix in matrices[:2] for scalar in matrix.scalars if scalar.name == matrix.batch_stride]
    given: dict[str, list[Argument]] = {
        "A": [problem.a, *(scalar for scalar in matrices[0].scalars if scalar not in strides)],
        "B": [problem.b, *(scalar for scalar in matrices[1].scalars if scalar not in strides)],
    }
    batch = [ScalarArgument("batch", "s32", "problems in the batch")] if spec.batch == "strided" else []
    result: list[Argument] = [*problem.betas, problem.c, *matrices[2].scalars, *problem.epilogue]
    shared: list[Argument] = [*problem.extents, *batch, *strides, *problem.alphas]

    def launch(entry: str, blocks: str, threads: int, arguments: list[Argument], bytes: int = 0, cluster: int = 1) -> KernelLaunch:
        return KernelLaunch(
            entry=entry,
            grid=(Formula(blocks), Formula("1"), Formula("1")),
            block=(threads, 1, 1),
            arguments=tuple(argument.name for argument in arguments),
            dynamic_shared_bytes=Formula(str(bytes)),
            cluster=(cluster, 1, 1),
            programmatic=spec.early_launch,
        )

    kept = [kept_argument(planes, operand, "input") for operand in planes.operands if operand.kept]
    launches = [
        launch(
            kernel.entry,
            str(kernel.grid),
            SPLIT_THREADS,
            [*shared, *(argument for operand in kernel.operands for argument in given[operand.name]), workspace],
        )
        for kernel in planes.kernels
    ]
    times_batch = " * batch" if spec.batch == "strided" else ""
    factors = [*given["A"], *given["B"]] if planes.in_mainloop else []
    finishing = [*shared, *factors, *maps, *result, *kept, workspace]
    main = [*shared, *maps, workspace, *own] if partial else finishing
    launches.append(launch(name, str(grid.blocks(spec)), loop.threads, main, loop.shared_bytes, grid.cluster_blocks))
    if partial:
        adding = reduction_launch(name, spec, problem, matrices, workspace)
        launches.append(replace(adding, arguments=tuple(argument.name for argument in [*shared, *result, *kept, workspace, *own])))
    repaired = f"ceil_div(m, {REPAIR_TILE}) * ceil_div(n, {REPAIR_TILE}){times_batch}"
    launches.append(launch(f"{name}_repair", repaired, REPAIR_THREADS, [*shared, *given["A"], *given["B"], *result, *kept, workspace]))
    most = MAX_INT - 65536
    fits = Constraint(Formula(f"{repaired} < {most}"), f"{repaired} must be less than {most}; an int counts the tiles that may be repaired")
    return LaunchSequence(
        name=name,
        dimensions=(*problem.dimensions, *((slices_dimension(),) if own else ())),
        arguments=(*shared, *given["A"], *given["B"], *result, *kept, *maps, workspace, *own),
        launches=tuple(launches),
        constraints=(*problem.constraints, *((grid.constraint(spec),) if partial else ()), fits),
        workspace_bytes=planes.workspace_bytes,
        workspace_zero_bytes=planes.zero_bytes,
    )


def plane_maps(planes: PlanesPlan, boxes: tuple[tuple[int, int], tuple[int, int]]) -> tuple[TensorMapArgument, ...]:
    """Both operands as TMA sees them: A as it is where the kernel that multiplies splits it."""
    return tuple(
        matrix_map(operand.matrix, box) if operand.in_mainloop else _map(planes, operand, box)
        for operand, box in zip(planes.operands, boxes, strict=True)
    )


def _map(planes: PlanesPlan, operand: PlaneOperand, box: tuple[int, int]) -> TensorMapArgument:
    """The planes of an operand as TMA sees them: one behind the other."""
    scheme = planes.scheme
    along = "k" if operand.k_major else operand.extent
    return TensorMapArgument(
        name=f"map_{operand.suffix}",
        array=operand.kept_name if operand.kept else "workspace",
        element=tma.copied_as(scheme.type),
        extents=(Formula(operand.columns), Formula(operand.rows), Formula(f"{scheme.planes} * {operand.count}")),
        strides=(Formula(f"{scheme.element_bytes} * {operand.pitch}"), Formula(operand.plane_bytes)),
        meaning=f"planes of {operand.name} in boxes of {box[1]} rows of {box[0]} elements along {along}",
        box=(*box, 1),
        offset_bytes=planes.offset_of(f"planes_{operand.suffix}"),
        swizzle="128B",
        l2_promotion="256B",
    )


def kept_argument(planes: PlanesPlan, operand: PlaneOperand, role: Literal["input", "inout"]) -> ArrayArgument:
    """The array that holds the scales and the planes of an operand."""
    return ArrayArgument(
        name=operand.kept_name,
        type="u8",
        role=role,
        shape=(planes.kept_bytes,),
        strides=(Formula("1"),),
        alignment=MAX_ALIGNMENT,
        meaning=f"scales and planes of {operand.name}",
    )


def keeping_sequence(planes: PlanesPlan) -> LaunchSequence:
    """The launch sequence that makes the planes which an instance expects, in an array of zeros."""
    operand = planes.kept_operand
    assert operand is not None
    matrix = operand.matrix
    extents = [
        Dimension(operand.extent, f"{operand.line}s of {operand.name}", maximum=MAX_EXTENT),
        Dimension("k", "values along the sums", maximum=planes.largest_k),
    ]
    scalars = [ScalarArgument(extent.name, "s32", extent.meaning) for extent in extents]
    arguments: list[Argument] = [*scalars, matrix.argument("input"), *matrix.scalars, kept_argument(planes, operand, "inout")]
    launches = tuple(
        KernelLaunch(
            entry=kernel.entry,
            grid=(Formula(" + ".join(call.blocks for call in kernel.calls)), Formula("1"), Formula("1")),
            block=(SPLIT_THREADS, 1, 1),
            arguments=tuple(argument.name for argument in arguments),
        )
        for kernel in planes.keeping_kernels
    )
    return LaunchSequence(
        name=f"{planes.name}_keep",
        dimensions=(*extents, *matrix.dimensions),
        arguments=tuple(arguments),
        launches=launches,
        constraints=matrix.constraints,
    )
