"""Distance of float32 arithmetic from its float64 reference: bounds that are derived, not chosen.

A value that overflows becomes infinite at the step where it does, as IEEE 754 says, and later steps use infinity. So
close to the largest number that the bound leaves open whether it overflows, its bound is infinite from there on: either is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmgen.core.elements import ELEMENTS, float_format, to_elements, to_numbers

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

UNIT_ROUNDOFF = float_format("f32").roundoff
"""Unit roundoff of float32, rounding to nearest."""

OVERFLOW = float_format("f32").overflow
"""The smallest magnitude that rounds to infinity in float32."""

SMALLEST = float_format("f32").smallest
"""The smallest positive float32, and the largest error of a rounding in the subnormal range."""

LIBRARY_ERROR = 5 * UNIT_ROUNDOFF
"""Relative error of ``expf``, ``erff`` and ``tanhf``. The CUDA C++ Programming Guide, appendix "Mathematical Functions", states at
most 2 ulp between their results and the correctly rounded ones, for any argument: with that rounding 2.5 ulp, of at most two unit
roundoffs each."""


def accumulated(roundings: int) -> float:
    """Largest relative error of a number of successive roundings to float32: gamma of N. J. Higham, "Accuracy and Stability of Numerical
    Algorithms", section 3.1."""
    return roundings * UNIT_ROUNDOFF / (1 - roundings * UNIT_ROUNDOFF)


def rounded(value: Array, bound: Array) -> tuple[Array, Array]:
    """A computed value and its error bound after one rounding to float32.

    Where the bound is still 0 and float32 holds the value, the rounding is exact and the bound stays 0: such elements are
    then compared for equality.
    """
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        inexact = (bound > 0) | (value.astype(np.float32) != value)
        grown = np.where(inexact & np.isfinite(value), bound + UNIT_ROUNDOFF * (np.abs(value) + bound) + SMALLEST, bound)
        # Of an exact value the rounding is known, whichever side of the limit it falls on.
        reach = np.where(bound > 0, grown, 0.0)
        infinite = np.isfinite(value) & (np.abs(value) - reach >= OVERFLOW)
        undecided = np.isfinite(value) & ~infinite & (np.abs(value) + reach >= OVERFLOW) | ~np.isfinite(bound)
    grown = np.where(undecided, np.inf, np.where(infinite, 0.0, grown))
    return np.where(infinite, np.copysign(np.inf, value), value), grown


def stored(element: str, value: Array, bound: Array) -> tuple[Array, Array]:
    """A result and its error bound after it was rounded to nearest for storage.

    Where the bound is still 0, so that the kernel's value before the rounding is known, the stored one is known too.
    """
    import numpy as np

    if element in ("f32", "s32"):
        return value, bound
    if element == "f64":
        nearest = value.astype(np.float64)
        with np.errstate(invalid="ignore"):
            exact = (nearest == value) | np.isnan(nearest)
            return nearest, np.where(exact, bound, bound + float_format("f64").roundoff * np.abs(nearest))
    if element in ("s8", "u8"):
        low, high = ELEMENTS[element].limits
        # Results that the bound does not keep apart may round to neighbours.
        return np.where(np.isnan(value), 0.0, np.clip(np.rint(value), low, high)), np.where(bound > 0, bound + 1, 0.0)
    format_of_result = float_format(element)
    if element in ("e4m3", "e5m2"):
        value = np.clip(value, *ELEMENTS[element].limits)
    with np.errstate(over="ignore", invalid="ignore"):
        known = to_numbers(element, to_elements(element, value.astype(np.float32))).astype(np.float64)
        infinite = np.abs(value) - bound >= format_of_result.overflow
        undecided = (bound > 0) & ~infinite & (np.abs(value) + bound >= format_of_result.overflow)
        value = np.where((bound == 0) | infinite, known, value)
        grown = bound + np.maximum(format_of_result.roundoff * (np.abs(value) + bound), format_of_result.smallest / 2)
        grown = np.where(undecided | ~np.isfinite(bound), np.inf, np.where((bound == 0) | ~np.isfinite(value), 0.0, grown))
    return value, grown
