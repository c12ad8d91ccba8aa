"""Layouts of A, B and C."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.kernels.gemm.grouping import PlacedMatrix
from gemmgen.kernels.gemm.packed_weights import packed_matrix
from gemmgen.kernels.gemm.scaling import ScaleArray, scale_array, scale_name
from gemmgen.kernels.gemm.spec import GemmSpec, NarrowWeightsMainloop
from gemmgen.kernels.matrix import Matrix

FLOAT_BYTES = 4


def matrix_layouts(spec: GemmSpec) -> tuple[Matrix, Matrix, Matrix]:
    """The layouts of A, B and C."""
    row_major = spec.order == "row_major"

    def stride(name: str) -> str | None:
        return f"stride_{name}" if _has_several(spec, name) else None

    count = "groups" if spec.batch == "grouped" else "batch"
    k = "ceil_div(k, 2)" if getattr(spec.mainloop, "multiplied", "stored") == "e2m1" else "k"
    plain = Matrix("B", k, "n", "ldb", row_major == (spec.transpose[1] == "n"), spec.alignment.b, spec.storage.b, stride("b"), count)
    packed = packed_matrix(spec.mainloop.bits) if isinstance(spec.mainloop, NarrowWeightsMainloop) else None
    matrices = (
        Matrix(
            "A",
            "rows_a" if spec.grouping.gathered else "m",
            "ceil_div(k, 2)" if getattr(spec.mainloop, "sparse", "none") == "a" else k,
            "lda",
            row_major == (spec.transpose[0] == "n"),
            spec.alignment.a,
            spec.storage.a,
            stride("a"),
        ),
        packed or plain,
        Matrix("C", "rows_c" if spec.grouping.scattered else "m", "n", "ldc", row_major, spec.alignment.c, spec.storage.c, stride("c")),
    )
    if spec.grouping.places == "strided":
        return matrices
    a, b, c = (
        PlacedMatrix(one.name, one.rows, one.columns, one.leading_dimension, one.row_major, one.alignment, one.type) for one in matrices
    )
    return a, b, c


def second_factor(spec: GemmSpec) -> Matrix | None:
    """The layout of the second matrix that A is multiplied by, if there is one."""
    if not spec.dual:
        return None
    return replace(
        matrix_layouts(spec)[1], name="B2", leading_dimension="ldb2", batch_stride="stride_b2" if _has_several(spec, "b") else None
    )


def factors_of(matrices: tuple[Matrix, Matrix, Matrix], second: Matrix | None) -> tuple[Matrix, ...]:
    """A and the matrices that it is multiplied by."""
    return matrices[:2] if second is None else (*matrices[:2], second)


def _has_several(spec: GemmSpec, operand: str) -> bool:
    """True if an operand is a batch of matrices, or one for each group of rows."""
    return spec.batch == "strided" or (operand == "b" and spec.batch == "grouped")


def scale_layouts(spec: GemmSpec) -> tuple[ScaleArray, ...]:
    """The layouts of block scales, A's first; a matrix of a batch, or of a group, has its own."""
    count = "groups" if spec.batch == "grouped" else "batch"
    return tuple(
        scale_array(name, block, f"stride_{scale_name(name)}" if _has_several(spec, name) else None, count)
        for name, block in spec.scales.given
    )
