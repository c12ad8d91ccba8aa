"""How far float32 arithmetic may be from its float64 reference: bounds that are derived, not chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmgen.runtime.backend import to_elements, to_numbers

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

UNIT_ROUNDOFF = 2.0**-24
"""Of float32, rounding to nearest."""

SMALLEST = 2.0**-149
"""The smallest positive float32, and the largest error of a rounding in the subnormal range."""

LIBRARY_ERROR = 5 * UNIT_ROUNDOFF
"""Relative error of ``expf``, ``erff`` and ``tanhf``. The CUDA C++ Programming Guide, appendix "Mathematical Functions", states at
most 2 ulp between their results and the correctly rounded ones, for any argument: with that rounding 2.5 ulp, of at most two unit
roundoffs each."""


def rounded(value: Array, bound: Array) -> tuple[Array, Array]:
    """A computed value and its error bound after one rounding to float32.

    Where the bound is still 0 and float32 holds the value, the rounding is exact and the bound stays 0: such elements are
    then compared for equality.
    """
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        inexact = (bound > 0) | (value.astype(np.float32) != value)
        grown = bound + UNIT_ROUNDOFF * (np.abs(value) + bound) + SMALLEST
    return value, np.where(inexact & np.isfinite(value), grown, bound)


HALF_PRECISIONS = {"f16": (2.0**-11, 2.0**-25, 65520.0), "bf16": (2.0**-8, 2.0**-134, 2.0**128 - 2.0**119)}
"""For each 16-bit type its unit roundoff, half of its smallest subnormal, and from where on values round to infinity."""


def stored(element: str, value: Array, bound: Array) -> tuple[Array, Array]:
    """A result and its error bound after it was rounded to nearest for storage.

    Where the bound is still 0, so that the kernel's value before the rounding is known, the stored one is known too.
    """
    import numpy as np

    if element == "f32":
        return value, bound
    roundoff, smallest, overflow = HALF_PRECISIONS[element]
    with np.errstate(over="ignore", invalid="ignore"):
        known = to_numbers(element, to_elements(element, value.astype(np.float32))).astype(np.float64)
        infinite = np.abs(value) - bound >= overflow
        value = np.where((bound == 0) | infinite, known, value)
        grown = bound + np.maximum(roundoff * (np.abs(value) + bound), smallest)
    return value, np.where((bound == 0) | ~np.isfinite(value), 0.0, grown)
