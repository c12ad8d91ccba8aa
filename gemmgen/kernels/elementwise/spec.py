"""The fields of an elementwise kernel's spec."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gemmgen.kernels.epilogue.operations import NumberType, Operations
from gemmgen.kernels.family import KernelSpec

VectorWidth = Literal[1, 2, 4, 8, 16]


class ElementwiseSpec(KernelSpec):
    """y = operations(x): each operation changes every element, and may read numbers, vectors and arrays of y's shape beside it."""

    kind: Literal["elementwise"]
    input: NumberType = "float32"
    """Type of x and of the arrays that operations read. Halves are computed in float32, int8 in int32."""
    output: NumberType | None = None
    """Type of y. Default: the input's, unless an operation changes the type that is computed in."""
    operations: Operations = ()
    """Operations on each element, in this order; without any, x is copied, and converted if the output has another type."""
    rank: Annotated[int, Field(ge=1, le=4, strict=True)] = 1
    """Axes of the arrays. x and arrays of y's shape have separate strides; a stride of 0 broadcasts them along an axis."""
    inner: Literal["contiguous", "strided"] = "contiguous"
    """The last axis of all arrays: ``contiguous`` (neighbours lie side by side), or with ``strided`` any stride, 0 included."""
    alignment: VectorWidth = 1
    """A promise in elements: base pointers and the strides of all axes but the last are multiples of it. It allows vectors of that
    many elements."""
    vector: VectorWidth | None = None
    """Elements that a thread loads and stores at a time. Default: as many as the alignment and 16 bytes allow."""
    unroll: Annotated[int, Field(ge=1, le=16, strict=True)] = 1
    """Vectors of a thread whose loads are in flight at the same time."""
    threads: Annotated[int, Field(ge=32, le=1024, multiple_of=32, strict=True)] = 256
    """Threads of a block."""
    blocks: Annotated[int, Field(ge=1, le=2**20, strict=True)] | None = None
    """Blocks at most: each takes tile after tile, a grid apart (a grid-stride loop). Without it, there is a block for each tile."""
    early_launch: bool = False
    """The kernel overlaps the one before it in the stream; needs sm_90."""
