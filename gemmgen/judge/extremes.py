"""Results for data with undefined, infinite, tiny or huge numbers: the elements that are defined there, and the errors that they may have.

A tiny number may be flushed to zero, and a huge one overflow on the way. An element that no such number takes part in is the same for
inputs with other numbers in their places, and errs by no more than for those.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.judge.reference import Arrays

MODERATE = (1e-15, 1e15)
"""Magnitudes whose squares float32 holds."""
_LEAST = 1e-30
"""Magnitude below which a product with an ordinary number may be flushed to zero."""
_LEAST_NORMAL = 2.0**-126
Floats = npt.NDArray[np.float64]


def are_extreme(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Elements that are undefined, infinite, tiny or huge."""
    return (array != 0) & ~_is_moderate(array) if array.dtype.kind == "f" else np.zeros(array.shape, np.bool_)


def are_moderate(arrays: Arrays) -> bool:
    """True if all numbers are zero or of moderate magnitude."""
    return not any(are_extreme(each).any() for each in arrays.values())


def are_finite(arrays: Arrays) -> bool:
    """True if no number is infinite or undefined."""
    return all(bool(np.isfinite(each).all()) for each in arrays.values())


def may_overflow(arrays: Arrays) -> bool:
    """True if a finite number is so large that its square may not be finite."""
    return any(bool((np.isfinite(each) & (np.abs(each) > MODERATE[1])).any()) for each in arrays.values() if each.dtype.kind == "f")


def flushed(arrays: Arrays, sizes: dict[str, int]) -> float:
    """Largest error of a sum of products of up to three numbers if numbers below the least normal one become zero."""
    floats = [np.abs(each[np.isfinite(each)]) for each in arrays.values() if each.dtype.kind == "f"]
    has_tiny = any(((each > 0) & (each < _LEAST)).any() for each in floats)
    largest = max((1.0, *(float(each.max(initial=0.0)) for each in floats))) if has_tiny else 1.0
    return (max(sizes.values(), default=1) + 8) * _LEAST_NORMAL * largest**2


def stand_ins(arrays: Arrays, *, finite: bool) -> list[Arrays]:
    """Copies of the inputs in which finite numbers replace others: the array's largest moderate magnitude for infinite ones, and the
    same with either sign for undefined ones. Without ``finite`` tiny numbers are zero and huge ones are limited, too."""
    variants: list[Arrays] = []
    for sign in (1, -1):
        replaced: Arrays = {}
        for name, each in arrays.items():
            replaced[name] = each
            if each.dtype.kind == "f":
                most = float(np.abs(each[_is_moderate(each)]).max(initial=0.0)) or 1.0
                numbers = np.nan_to_num(each, nan=sign * most, posinf=most, neginf=-most)
                if not finite:
                    numbers = np.clip(np.where(np.abs(numbers) < MODERATE[0], 0.0, numbers), -MODERATE[1], MODERATE[1])
                replaced[name] = numbers
        variants.append(replaced)
    return variants


def allowance_of_stand_ins(value: Floats, results: list[tuple[Floats, Floats]]) -> Floats:
    """The error that each element may have: the bound for the stand-ins, of which ``results`` are values and bounds, where they give the
    same value, otherwise infinite."""
    allowed = np.zeros(value.shape)
    with np.errstate(all="ignore"):
        for other, bound in results:
            allowed = np.where(np.abs(value - other) <= bound, np.maximum(allowed, bound), np.inf)
    return allowed


def lost(got: Floats, wanted: Floats, *, overflows: bool) -> npt.NDArray[np.bool_]:
    """Elements that should be undefined or infinite and are not, and those that should be finite and are not, unless the data have
    numbers whose products are too large (``overflows``)."""
    missing: npt.NDArray[np.bool_] = np.isnan(wanted) & ~np.isnan(got) | np.isinf(wanted) & ~np.isnan(got) & (got != wanted)
    return missing if overflows else missing | np.isfinite(wanted) & ~np.isfinite(got)


def _is_moderate(array: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    with np.errstate(all="ignore"):
        return (np.abs(array) >= MODERATE[0]) & (np.abs(array) <= MODERATE[1])
