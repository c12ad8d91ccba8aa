"""The fields of the spec of an operation on rows."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gemmgen.kernels.family import LATER, KernelSpec

RowOperation = Literal[
    "softmax",
    "softmax_gradient",
    "log_softmax",
    "log_softmax_gradient",
    "rms_norm",
    "rms_norm_gradient",
    "layer_norm",
    "layer_norm_gradient",
    "cumsum",
    "logcumsumexp",
    "topk",
]


class RowsSpec(KernelSpec):
    """An operation on each row of a matrix, computed in float32 by the formulas in ``gemmgen.kernels.rows.programs``."""

    kind: Literal["rows"]
    operation: RowOperation
    """Operation on each row."""
    input: Literal["f32", "f16", "bf16"] = "f32"
    """Type of all matrices."""
    weight: Literal["f32", "f16", "bf16"] | None = None
    """Type of the norm's factors for each column, and of its bias; float32 or the input's type. None: no factors."""
    bias: bool = False
    """A layer norm adds a value for each column."""
    residual: bool = False
    """A norm is that of x + residual, which is written, too."""
    lanes: Literal[4, 8, 16, 32, 64, 128, 256, 512, 1024] = 256
    """Threads that work on a row. Threadblocks with fewer than 64 of them have several rows."""
    vector: Literal[1, 2, 4, 8] = 1
    """Elements that a thread loads and stores at a time; at most 16 bytes."""
    held: Annotated[int, Field(ge=0, le=16, strict=True)] = 0
    """Vectors of each matrix that a thread keeps in registers, so that the matrix is read once; ``lanes * vector * held`` bounds the
    length of a row. 0: rows of any length, which are read again for each statistic."""
    aligned: bool = True
    """A promise: addresses of rows and vectors, and lengths of rows, are multiples of ``vector``. Without it, a row's vectors begin at the
    multiple before its first element, and those at its ends are read and written element by element."""
    smallest: Annotated[bool, LATER] = False
    """topk finds the smallest elements; else the largest."""
    blocks: Annotated[int, Field(ge=1, le=4096, strict=True)] = 528
    """Threadblocks at most that divide the rows among them where values are summed over rows. Other operations have a block for each
    row, or for several short rows."""
