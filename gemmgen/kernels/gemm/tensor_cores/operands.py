"""Factors as tensor cores multiply them: as stored, or as the matrices of smaller types that they were split into."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.kernels.gemm.spec import Arithmetic
from gemmgen.kernels.matrix import Matrix


@dataclass(frozen=True)
class Multiplied:
    """Types and counts of the tensor cores' operands, A's first."""

    types: tuple[str, str]
    element_bytes: tuple[int, int]
    """Bytes of elements of A and B in shared memory."""
    planes: tuple[int, int] = (1, 1)
    """Matrices that A and B each were split into, whose tiles lie one behind the other."""
    kept_sums: int = 0
    """Sets of sums that a thread holds beside those of the results."""
    staggered: bool = False
    """True if groups of warps that share a tile start their instructions alternately, where there are two."""
    split_registers: int = 0
    """Fragments of planes of A that a thread holds for the rows of an instruction, where it splits A itself; else 0."""


def as_stored(a: Matrix, b: Matrix) -> Multiplied:
    """Both factors as they are."""
    return Multiplied((a.type, b.type), (a.element_bytes, b.element_bytes))


def arithmetic_parts(arithmetic: Arithmetic) -> list[str]:
    """Part of an instance's name for its scheme of float32 or float64 products."""
    parts: list[str] = [scheme for scheme in (arithmetic.f32_by, arithmetic.f64_by) if scheme]
    parts += [f"kept_{arithmetic.kept}"] if arithmetic.kept != "none" else []
    return [*parts, *(["split_rows"] if arithmetic.split == "mainloop" else [])]
