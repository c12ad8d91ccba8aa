"""Right factors that nothing writes while products read them."""

from __future__ import annotations

from typing import Any

from gemmgen.core.errors import LaunchError
from gemmgen.ops.arrays import view_of
from gemmgen.runtime.arrays.protocols import Array


class Constant:
    """A matrix that no earlier work on the device may still be writing when a product by it is launched, such as a model's weights.

    On Hopper GPUs, a product then starts while the work before it on the stream still runs, and copies the first tiles of the matrix before
    it waits for that work. A kernel that writes the matrix must have ended before such a product is launched: synchronise after an update.

    Parameters
    ----------
    source
        The matrix, shaped (..., k, n); NumPy, CuPy, torch or any array with DLPack. Or another ``Constant``.

    Raises
    ------
    LaunchError
        For an array without axes.
    """

    def __init__(self, source: Array | Constant) -> None:
        self.source: Any = source.source if isinstance(source, Constant) else source
        if not view_of(self.source, "b", None).shape:
            raise LaunchError("matmul: a Constant needs an array with at least one axis")
