"""Rows of grouped products: where each group's rows lie, and which rows of A and C they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from gemmgen.core.formulas import Formula
from gemmgen.kernels.family import SpecModel
from gemmgen.kernels.launch import Argument, ArrayArgument, Constraint, Dimension, ScalarArgument
from gemmgen.kernels.matrix import Matrix

if TYPE_CHECKING:
    import numpy.typing as npt


class Grouping(SpecModel):
    """Rows of the groups of ``batch: grouped``, and values of k of the products of a batch."""

    SORTED: ClassVar[Grouping]
    rows: Literal["sorted", "masked"] = "sorted"
    """``sorted``: groups follow one another, and ``offsets`` says where each ends. ``masked``: every group has m / groups rows, of which
    the first ``counts[group]`` exist; the others are neither computed nor stored."""
    gathered: bool = False
    """True if row r of the groups is row ``gather[r]`` of A; one that A does not have counts as zeros."""
    scattered: bool = False
    """True if row r of the groups goes to row ``scatter[r]`` of C; one that C does not have is not stored."""

    depth: Literal["all", "offsets", "steps"] = "all"
    """``offsets``, of ``batch: strided``: product p sums up the values of k from ``offsets[p - 1]``, or 0, to ``offsets[p]``. ``steps``: so
    that each offset below k is a multiple of the tile's k, as blocks of scales are; others are rounded down to one."""

    places: Literal["strided", "addresses"] = "strided"
    """``addresses``, of ``batch: strided``: matrices lie anywhere, and have sizes of their products. ``at_a``, ``at_b`` and ``at_c`` hold
    the bytes from the start of A, B and C to each product's matrix, or, where those are null, addresses; ``sizes`` holds each product's
    m, n, k, lda, ldb and ldc, of which m, n and k are at most those of the launch."""

    @property
    def moved(self) -> tuple[tuple[str, bool], ...]:
        """Words of a name for rows of A and of C that are not those of the groups, and whether they are."""
        return ("gathered", self.gathered), ("scattered", self.scattered)

    @property
    def words(self) -> tuple[str, ...]:
        """Words of a name for all that differs from sorted groups."""
        given = (
            ("masked", self.rows == "masked"),
            ("depths", self.depth == "offsets"),
            ("depth_steps", self.depth == "steps"),
            ("places", self.places == "addresses"),
            *self.moved,
        )
        return tuple(word for word, differs in given if differs)


Grouping.SORTED = Grouping()

ENDS = {"sorted": "offsets", "masked": "counts"}
"""The array that says how many rows groups have."""


@dataclass(frozen=True)
class GroupRows:
    """Arguments of grouped products for the rows of groups."""

    grouping: Grouping

    @property
    def ends(self) -> ArrayArgument:
        """The array that says how many rows each group has."""
        name = ENDS[self.grouping.rows]
        meaning = {
            "offsets": "the end of each group among the rows of A and C, in their order",
            "counts": "rows of each group that exist, of its m / groups",
        }[name]
        return ArrayArgument(name, "s32", "input", (Formula("groups"),), (Formula("1"),), 4, meaning)

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Rows of A and of C where they are not those of the groups."""
        counts = (("rows_a", "A", self.grouping.gathered), ("rows_c", "C", self.grouping.scattered))
        return tuple(Dimension(name, f"rows of {matrix}", maximum=2**31 - 1, default=Formula("m")) for name, matrix, own in counts if own)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """Groups of one size."""
        if self.grouping.rows == "sorted":
            return ()
        return (Constraint(Formula("m % max(groups, 1) == 0"), "m is a multiple of groups: every group has as many rows"),)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """All arguments, in the order in which kernels take them."""
        scalars_and_arrays: list[Argument] = [ScalarArgument("groups", "s32", "groups of rows"), self.ends]
        for name, rows, own in (("gather", "rows_a", self.grouping.gathered), ("scatter", "rows_c", self.grouping.scattered)):
            if own:
                meaning = f"the row of {rows[-1].upper()} that each row of the groups is"
                scalars_and_arrays += [
                    ScalarArgument(rows, "s32", f"rows of {rows[-1].upper()}"),
                    ArrayArgument(name, "s32", "input", (Formula("m"),), (Formula("1"),), 4, meaning),
                ]
        return tuple(scalars_and_arrays)


@dataclass(frozen=True)
class Ends:
    """Bounds of the ends of groups."""

    groups: int
    limit: int
    """Greatest end."""
    axis: Literal["m", "k"]
    """Axis that the groups divide."""
    step: int = 1
    """Number of which each end below the limit is a multiple."""

    @property
    def need(self) -> str:
        """The condition in words."""
        multiples = f", multiples of {self.step} below {self.limit}" if self.step > 1 else ""
        return f"{self.groups} ends of groups in ascending order, from 0 to {self.axis} = {self.limit}{multiples}"


def group_rows(grouping: Grouping, ends: npt.NDArray[Any], m: int) -> list[slice]:
    """The rows of each group; offsets that fall or lie outside, and counts of no rows or too many, become the nearest that make sense."""
    import numpy as np

    whole = ends.astype(np.int64)
    if grouping.rows == "masked":
        size = m // max(len(whole), 1)
        return [slice(index * size, index * size + int(count)) for index, count in enumerate(np.clip(whole, 0, size))]
    last = np.minimum(np.maximum.accumulate(np.maximum(whole, 0)), m)
    return [slice(int(start), int(end)) for start, end in zip(np.concatenate(([0], last)), last, strict=False)]


def depths(offsets: npt.NDArray[Any], k: int, step: int = 1) -> list[slice]:
    """The values of k of each product of a batch; none where offsets fall. Offsets below k count as multiples of ``step``."""
    import numpy as np

    ends = np.clip(offsets.astype(np.int64), 0, k)
    ends = np.where(ends < k, ends // step * step, k)
    starts = np.concatenate(([0], ends))[: len(ends)]
    return [slice(int(start), max(int(start), int(end))) for start, end in zip(starts, ends, strict=True)]


def within_depths(factor: npt.NDArray[Any], offsets: npt.NDArray[Any], axis: int, step: int = 1) -> npt.NDArray[Any]:
    """Factors of a batch, with zeros for values of k, along an axis, that are not their product's; ``step`` as in ``depths``."""
    import numpy as np

    masked = np.zeros_like(factor)
    for product, own in enumerate(depths(offsets, factor.shape[axis], step)):
        place = (product, own) if axis == 1 else (product, slice(None), own)
        masked[place] = factor[place]
    return masked


DEPTHS = ArrayArgument(
    name="offsets",
    type="s32",
    role="input",
    shape=(Formula("batch"),),
    strides=(Formula("1"),),
    alignment=4,
    meaning="the end of each product's values of k, which begin at the one before",
)
"""The ends of each product's values of k."""


SIZES = ("m", "n", "k", "lda", "ldb", "ldc")
"""The numbers of a product whose matrices lie anywhere, in the order of ``sizes``."""


def place_arguments() -> tuple[ArrayArgument, ...]:
    """Arguments with the addresses of the matrices of a batch, and their sizes."""
    batch, one = (Formula("batch"),), (Formula("1"),)
    at = [
        ArrayArgument(f"at_{name.lower()}", "s64", "input", batch, one, 8, f"bytes from the start of {name} to the matrix of each product")
        for name in "ABC"
    ]
    count = Formula(str(len(SIZES)))
    sizes = ArrayArgument("sizes", "s32", "input", (*batch, count), (count, *one), 4, f"{', '.join(SIZES)} of each product")
    return (*at, sizes)


@dataclass(frozen=True)
class PlacedMatrix(Matrix):
    """One of A, B and C where the matrices of a batch lie anywhere in some memory."""

    @property
    def extent(self) -> str:
        """The dimension that says how many elements that memory has."""
        return f"extent_{self.name.lower()}"

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        slow = self.rows if self.row_major else self.columns
        packed = Formula(f"batch * {slow} * round_up(max({self.contiguous}, 1), {self.alignment})")
        return (Dimension(self.extent, f"elements of the memory in which matrices {self.name} lie; 0: addresses", default=packed),)

    @property
    def scalars(self) -> tuple[ScalarArgument, ...]:
        return ()

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return ()

    def argument(self, role: Literal["input", "output", "inout"], needed: str | None = None) -> ArrayArgument:
        meaning = f"memory in which matrices {self.rows} x {self.columns} lie, stored {'row' if self.row_major else 'column'}-major"
        size = self.alignment * self.element_bytes
        return ArrayArgument(self.name, self.type, role, (Formula(self.extent),), (Formula("1"),), size, meaning, needed)


def gathered_rows(matrix: npt.NDArray[Any], gather: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows of a matrix; zeros for rows that it does not have."""
    import numpy as np

    inside = (gather >= 0) & (gather < len(matrix))
    gathered = np.zeros((len(gather), *matrix.shape[1:]), matrix.dtype)
    gathered[inside] = matrix[gather[inside].astype(np.int64)]
    return gathered
