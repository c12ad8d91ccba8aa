"""How A, B and C are stored."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.families.gemm.spec import GemmSpec

FLOAT_BYTES = 4


@dataclass(frozen=True)
class MatrixLayout:
    """How one of A, B and C is stored."""

    name: str
    rows: str
    columns: str
    leading_dimension: str
    row_major: bool
    alignment: int
    """Elements that the base pointer and the leading dimension are multiples of."""

    @property
    def contiguous(self) -> str:
        """The dimension along which neighbours are adjacent in memory."""
        return self.columns if self.row_major else self.rows


def matrix_layouts(spec: GemmSpec) -> tuple[MatrixLayout, MatrixLayout, MatrixLayout]:
    """The layouts of A, B and C."""
    row_major = spec.order == "row_major"
    return (
        MatrixLayout("A", "m", "k", "lda", row_major == (spec.transpose[0] == "n"), spec.alignment.a),
        MatrixLayout("B", "k", "n", "ldb", row_major == (spec.transpose[1] == "n"), spec.alignment.b),
        MatrixLayout("C", "m", "n", "ldc", row_major, spec.alignment.c),
    )
