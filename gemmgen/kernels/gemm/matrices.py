"""Layouts of A, B and C."""

from __future__ import annotations

from gemmgen.kernels.gemm.spec import GemmSpec
from gemmgen.kernels.matrix import Matrix

FLOAT_BYTES = 4


def matrix_layouts(spec: GemmSpec) -> tuple[Matrix, Matrix, Matrix]:
    """The layouts of A, B and C."""
    row_major = spec.order == "row_major"

    def stride(name: str) -> str | None:
        return f"stride_{name}" if spec.batch == "strided" or (name == "b" and spec.batch == "grouped") else None

    count = "groups" if spec.batch == "grouped" else "batch"
    return (
        Matrix("A", "m", "k", "lda", row_major == (spec.transpose[0] == "n"), spec.alignment.a, spec.storage.a, stride("a")),
        Matrix("B", "k", "n", "ldb", row_major == (spec.transpose[1] == "n"), spec.alignment.b, spec.storage.b, stride("b"), count),
        Matrix("C", "m", "n", "ldc", row_major, spec.alignment.c, spec.storage.c, stride("c")),
    )
