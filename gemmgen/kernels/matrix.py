"""A matrix argument: its storage, and the data that a host needs to pass it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemmgen.core.elements import ELEMENTS, DataType
from gemmgen.core.formulas import Formula
from gemmgen.kernels.launch import ArrayArgument, Constraint, Dimension, ScalarArgument


@dataclass(frozen=True)
class Matrix:
    """Layout of a matrix in memory."""

    name: str
    rows: str
    columns: str
    leading_dimension: str
    row_major: bool
    alignment: int
    """Elements that the base pointer, the leading dimension and the batch stride are multiples of."""
    type: DataType = "f32"
    batch_stride: str | None = None
    """The dimension that says how many elements lie between the matrices of a batch; None: there is a single matrix."""
    count: str = "batch"
    """The dimension that says how many there are."""
    shares: str = ""
    """Another matrix whose memory it may be, as in ``ArrayArgument``."""

    @property
    def contiguous(self) -> str:
        """The dimension along which neighbours are adjacent in memory."""
        return self.columns if self.row_major else self.rows

    @property
    def along_k(self) -> bool:
        """True if neighbours along k, or those of them that are held, are adjacent in memory."""
        return "k" in Formula(self.contiguous).names

    @property
    def vector_elements(self) -> int:
        """Elements of a vector of 16 bytes."""
        return 16 // self.element_bytes

    def vectors_in(self, columns: int) -> int:
        """Vectors of 16 bytes in a number of elements."""
        return columns * self.element_bytes // 16

    @property
    def aligned_bytes(self) -> int:
        """Bytes that the base pointer is a multiple of."""
        return self.alignment * self.element_bytes

    @property
    def element_bytes(self) -> int:
        return ELEMENTS[self.type].bytes

    @property
    def is_half(self) -> bool:
        """True if elements are 16-bit floats, which are converted to float32 for arithmetic."""
        return self.type in ("f16", "bf16")

    @property
    def c_type(self) -> str:
        """The type of an element in CUDA."""
        return ELEMENTS[self.type].c_type

    @property
    def variable(self) -> str:
        """Name of its elements in a kernel."""
        lower = self.name.lower()
        return lower if lower != self.name else f"{lower}_element"

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The integers of the problem that say where its elements are."""
        slow = "row" if self.row_major else "column"
        default = Formula(f"round_up(max({self.contiguous}, 1), {self.alignment})")
        meaning = f"leading dimension of {self.name}: elements from one {slow} to the next"
        leading = Dimension(self.leading_dimension, meaning, minimum=1, default=default)
        if self.batch_stride is None:
            return (leading,)
        extent = self.rows if self.row_major else self.columns
        packed = Formula(f"select({self.count} > 1, {extent} * {self.leading_dimension}, 0)")
        meaning = f"elements from one {self.name} of the {self.count} to the next"
        return leading, Dimension(self.batch_stride, meaning, default=packed)

    @property
    def scalars(self) -> tuple[ScalarArgument, ...]:
        """The kernel's parameters for these integers."""
        return tuple(ScalarArgument(dimension.name, "s32", dimension.meaning) for dimension in self.dimensions)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """Constraints on them."""
        ld, slow = self.leading_dimension, "row" if self.row_major else "column"
        text = f"{ld} must be at least {self.contiguous}; otherwise {slow}s of {self.name} would overlap"
        constraints = [Constraint(Formula(f"{ld} >= {self.contiguous}"), text)]
        if self.alignment > 1:
            for name in (ld, self.batch_stride) if self.batch_stride else (ld,):
                text = f"{name} must be a multiple of {self.alignment}, as the spec's alignment promises for {self.name}"
                constraints.append(Constraint(Formula(f"{name} % {self.alignment} == 0"), text))
        return tuple(constraints)

    def argument(self, role: Literal["input", "output", "inout"], needed: str | None = None) -> ArrayArgument:
        """The array that a caller passes; ``needed`` as in ``ArrayArgument``."""
        ld = self.leading_dimension
        shape: tuple[str, ...] = (self.rows, self.columns)
        strides: tuple[str, ...] = (ld, "1") if self.row_major else ("1", ld)
        meaning = f"{self.rows} x {self.columns}, stored {'row' if self.row_major else 'column'}-major"
        if self.batch_stride is not None:
            shape, strides = (self.count, *shape), (self.batch_stride, *strides)
            meaning = f"{self.count} of {meaning}"
        return ArrayArgument(
            name=self.name,
            type="f32" if self.type == "tf32" else self.type,  # stored the same: callers have float32
            role=role,
            shape=tuple(Formula(extent) for extent in shape),
            strides=tuple(Formula(stride) for stride in strides),
            alignment=self.alignment * self.element_bytes,
            meaning=meaning,
            needed=needed,
            shares=self.shares,
        )
