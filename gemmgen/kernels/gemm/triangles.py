"""Triangular matrices: parts of A and B that hold zeros, and a part of C that nobody wants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.family import SpecModel

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Part = Literal["all", "lower", "upper"]
_ACROSS: dict[str, Any] = {"lower": "upper", "upper": "lower"}


class Triangles(SpecModel):
    """Triangular matrices. The lower triangle consists of the elements on the diagonal and below it: columns up to the row's number."""

    ALL: ClassVar[Triangles]
    a: Part = "all"
    """Triangle of A outside of which A holds zeros. Values of k for which all rows of a tile have zeros are neither read nor multiplied."""
    b: Part = "all"
    """Triangle of B outside of which B holds zeros, for the columns of a tile."""
    c: Literal["all", "lower", "upper", "mirrored"] = "all"
    """Triangle of C that is computed and stored, with about half of the tiles; the rest of C stays as it is. ``mirrored``: elements below
    the diagonal are stored above it as well, as a symmetric C has them, such as A times its transpose; m and n are then equal."""

    @property
    def words(self) -> tuple[str, ...]:
        """Words of a name and of a problem: the triangle of each matrix that has one."""
        return tuple(part if name == "c" and part == "mirrored" else f"{part}_{name}" for name, part in self.given)

    @property
    def given(self) -> Iterator[tuple[str, str]]:
        """Matrices with a triangle, and which."""
        return ((name, part) for name in ("a", "b", "c") if (part := getattr(self, name)) != "all")

    @property
    def across(self) -> Triangles:
        """Triangles of the transposed product: A and B change places, and all change sides."""
        sides = {to: _ACROSS.get(getattr(self, name), getattr(self, name)) for name, to in (("a", "b"), ("b", "a"), ("c", "c"))}
        return Triangles.model_validate(sides)

    def tiles_of_result(self, shape: tuple[int, int], tile: tuple[int, int]) -> int:
        """Tiles of C, m x n, that have elements of its triangle."""
        (m, n), (tile_m, tile_n) = shape, tile
        columns = ceil_div(n, tile_n)
        if self.c == "all":
            return ceil_div(m, tile_m) * columns
        if self.c == "upper":
            return sum(columns - min(row // tile_n, columns) for row in range(0, m, tile_m))
        return sum(ceil_div(min(n, row + tile_m, m), tile_n) for row in range(0, m, tile_m))

    def elements_of_result(self, m: int, n: int) -> int:
        """Elements of C, m x n, that are computed."""
        if self.c == "all":
            return m * n
        rows, columns = (n, m) if self.c == "upper" else (m, n)
        square = min(rows, columns)
        return square * (square + 1) // 2 + (rows - square) * columns

    def holds(self, name: Literal["a", "b", "c"], shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        """True where a matrix, or each of a batch, has elements of its triangle; of a mirrored C, the lower one."""
        import numpy as np

        part = getattr(self, name)
        rows, columns = np.arange(shape[-2])[:, None], np.arange(shape[-1])
        within = columns >= rows if part == "upper" else columns <= rows if part != "all" else np.True_
        return np.broadcast_to(within, shape)


Triangles.ALL = Triangles()

WORDS: Mapping[str, Mapping[str, str]] = {
    **{f"{part}_{name}": {name: part} for name in ("a", "b", "c") for part in ("lower", "upper")},
    "mirrored": {"c": "mirrored"},
}
"""Words of problems for triangles, and their fields."""
