"""Arguments of kernels on tensor cores: tensor maps of matrices, and counts of products."""

from __future__ import annotations

from gemmgen.core.formulas import Formula
from gemmgen.hardware import tensor_map as tma
from gemmgen.kernels.gemm.grouping import DEPTHS, GroupRows, place_arguments
from gemmgen.kernels.gemm.spec import GemmSpec
from gemmgen.kernels.launch import Argument, ScalarArgument, TensorMapArgument
from gemmgen.kernels.matrix import Matrix

FARTHEST_TILE = 8 * 512
"""Largest distance beyond an edge at which the tile of a cluster's last block can begin."""
SWIZZLES: dict[int, tma.Swizzle] = {32: "32B", 64: "64B", 128: "128B"}
"""TMA's permutation of rows in shared memory, by their length in bytes."""


def counting_arguments(spec: GemmSpec) -> tuple[Argument, ...]:
    """Arguments that say how many products there are, and where the rows of each end."""
    if spec.batch == "strided":
        count = ScalarArgument("batch", "s32", "problems in the batch")
        if spec.grouping.places == "addresses":
            return (count, *place_arguments())
        return (count, DEPTHS) if spec.grouping.depth != "all" else (count,)
    if spec.batch == "none":
        return ()
    return GroupRows(spec.grouping).arguments


def matrix_map(matrix: Matrix, box: tuple[int, int], swizzle: tma.Swizzle = "128B") -> TensorMapArgument:
    """A matrix, or a batch of them, as TMA sees it; where all products share one, the batch has a single matrix."""
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
