"""Factors that a first kernel copies into the workspace, in rows along k that TMA can read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmgen.core.formulas import Formula
from gemmgen.kernels.gemm.spec import WgmmaMainloop
from gemmgen.kernels.gemm.tensor_cores.factors import Factor
from gemmgen.kernels.matrix import Matrix

COPY_THREADS = 256
ROW_ELEMENTS = 512
"""Elements of a row that a warp copies."""
SQUARE = 64
"""Rows and columns of the tile that a block transposes."""
ROW_BYTES = 32
"""Unit that the rows of a copy are a multiple of: a sector of the L2, which TMA then reads once. Tensor maps need 16."""
VECTOR_BYTES = 16
"""Units of TMA: those of a copy begin at multiples of them."""
PART_BYTES = 256
"""Alignment of each copy, in bytes."""


@dataclass(frozen=True)
class CopiedFactor(Factor):
    """A factor that is copied."""

    offset_bytes: Formula
    """Offset of the copy in the workspace."""

    @property
    def transposed(self) -> bool:
        """True if rows of the original do not run along k."""
        return self.matrix.contiguous != "k"

    @property
    def pitch_multiple(self) -> int:
        return ROW_BYTES // self.matrix.element_bytes

    @property
    def pitch(self) -> str:
        """Elements from one row of the copy to the next."""
        return f"round_up(k, {self.pitch_multiple})"

    @property
    def bytes(self) -> str:
        """Bytes of the copies of a whole batch."""
        batch = f"{self.matrix.count} * " if self.matrix.batch_stride else ""
        return f"{batch}{self.extent} * {self.pitch} * {self.matrix.element_bytes}"

    @property
    def blocks(self) -> str:
        """Blocks that copy it."""
        if self.transposed:
            return f"ceil_div({self.extent}, {SQUARE}) * ceil_div(k, {SQUARE})"
        return f"ceil_div({self.extent}, {COPY_THREADS // 32}) * ceil_div(k, {ROW_ELEMENTS})"


@dataclass(frozen=True)
class CopyPlan:
    """The kernel that copies factors."""

    entry: str
    factors: tuple[CopiedFactor, ...]

    @property
    def workspace_bytes(self) -> Formula:
        last = self.factors[-1]
        return Formula(f"{last.offset_bytes} + {last.bytes}")

    @property
    def grid(self) -> Formula:
        return Formula(" + ".join(factor.blocks for factor in self.factors))

    def factor(self, name: str) -> CopiedFactor | None:
        """The factor of that name, if it is copied."""
        return next((factor for factor in self.factors if factor.matrix.name == name), None)

    @property
    def shape(self) -> dict[str, int]:
        """Constants of the kernel."""
        return {"threads": COPY_THREADS, "row_elements": ROW_ELEMENTS, "square": SQUARE, "part_bytes": PART_BYTES}


def copied_names(mainloop: WgmmaMainloop) -> str:
    """The factors that are copied, of ``AB``."""
    return {"none": "", "a": "A", "b": "B", "both": "AB"}[mainloop.copied]


def as_copied(mainloop: WgmmaMainloop, matrix: Matrix) -> Matrix:
    """A factor as the mainloop reads it: its copy, if there is one."""
    if matrix.name not in copied_names(mainloop):
        return matrix
    return replace(matrix, row_major=matrix.columns == "k", alignment=VECTOR_BYTES // matrix.element_bytes)


def copy_plan(name: str, mainloop: WgmmaMainloop, matrices: tuple[Matrix, Matrix, Matrix]) -> CopyPlan | None:
    """The kernel that copies factors of the instance ``name``; None if it copies none."""
    factors: list[CopiedFactor] = []
    for matrix in matrices[:2]:
        if matrix.name in copied_names(mainloop):
            previous = factors[-1] if factors else None
            offset = Formula(f"round_up({previous.bytes}, {PART_BYTES})" if previous else "0")
            factors.append(CopiedFactor(matrix, offset))
    return CopyPlan(f"{name}_copy", tuple(factors)) if factors else None
