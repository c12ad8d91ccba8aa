"""Factors that kernels before the product split or copy, and the arrays of the workspace that they write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmgen.core.formulas import Formula
from gemmgen.kernels.matrix import Matrix

REGION_BYTES = 256
"""Alignment of each array in the workspace, in bytes."""


@dataclass(frozen=True)
class Factor:
    """A factor of a product: A, whose lines are rows, or B, whose lines are columns."""

    matrix: Matrix
    """The matrix as the caller stores it."""

    @property
    def name(self) -> str:
        return self.matrix.name

    @property
    def suffix(self) -> str:
        return self.name.lower()

    @property
    def extent(self) -> str:
        """The dimension that lines are counted along."""
        return "m" if self.name == "A" else "n"

    @property
    def line(self) -> str:
        return "row" if self.name == "A" else "column"


@dataclass(frozen=True)
class WorkspacePart:
    """A named array in the workspace."""

    name: str
    c_type: str
    bytes: str
    """Size in bytes, as a formula over the problem."""
    c_bytes: str
    """Size in bytes, as a CUDA expression of type long long; empty for a part that always comes last."""


def parts_bytes(parts: Sequence[WorkspacePart]) -> Formula:
    """Bytes of arrays that follow one another in the workspace."""
    return Formula(" + ".join(f"round_up({part.bytes}, {REGION_BYTES})" for part in parts) or "0")


def offset_of(parts: Sequence[WorkspacePart], name: str) -> Formula:
    """Bytes from the start of the workspace to the part ``name``."""
    return parts_bytes(parts[: [part.name for part in parts].index(name)])
