"""Arrays of zeros that take memory only where they are touched: large ones get a page from the system when it is first written."""

from __future__ import annotations

import math
import mmap
import sys

import numpy as np
import numpy.typing as npt

LARGE_BYTES = 1 << 26
"""Size from which on an array is mapped: smaller ones are taken from the heap, which is faster."""
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""The system promises no memory for pages that nothing has touched: an array may then be larger than the machine's memory."""


def zeros(count: int, element: npt.DTypeLike) -> npt.NDArray[np.generic]:
    """``count`` zeros of one type, in one dimension."""
    kind = np.dtype(element)
    size = math.prod((count, kind.itemsize))
    if size < LARGE_BYTES or not sys.platform.startswith("linux"):
        return np.zeros(count, kind)
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    return np.frombuffer(mapped, kind, count)
