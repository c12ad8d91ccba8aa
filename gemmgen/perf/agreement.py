"""Agreement of results with a peer's where the family's reference would take too long: by its error bounds on windows of the problem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmgen.verification.runner import compare_elements

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.kernels.family import Expected
    from gemmgen.kernels.launch import ArrayArgument

WINDOWS = 3
WINDOW_OPERATIONS = 1e9
"""Operations of the reference for one window, about."""
EXPONENTS = 4096
"""Binary exponents of float64, counted from the smallest, are below this."""


@dataclass(frozen=True)
class Window:
    """A part of a problem: a range of one of its dimensions."""

    dimension: str
    start: int
    count: int

    def part(self, argument: ArrayArgument) -> tuple[slice, ...]:
        """The part of an array that belongs to the window."""
        taken = slice(self.start, self.start + self.count)
        return tuple(taken if extent.text == self.dimension else slice(None) for extent in argument.shape)


def windows(arguments: Sequence[ArrayArgument], problem: Mapping[str, int], operations: float) -> Iterator[Window]:
    """The first, the middle and the last part of the problem along the first dimension that every result has as an axis; none if there is
    no such dimension.

    Parameters
    ----------
    arguments
        Arrays of the problem.
    problem
        Every dimension.
    operations
        Of the whole problem.
    """
    extents = [{extent.text for extent in argument.shape} for argument in arguments if argument.writes]
    dimension = next((name for name in problem if extents and all(name in names for names in extents)), None)
    if dimension is None:
        return
    size = problem[dimension]
    count = max(1, min(size, int(WINDOW_OPERATIONS / operations * size)))
    for start in sorted({(size - count) * place // (WINDOWS - 1) for place in range(WINDOWS)}):
        yield Window(dimension, start, count)


def agree(name: str, got: npt.NDArray[Any], peer: npt.NDArray[Any], expected: Sequence[tuple[tuple[slice, ...], Expected]]) -> bool:
    """True if results are within the bounds of the reference in every window, and elsewhere differ from the peer's by no more than twice
    the largest bound of values of the same binary exponent there, or of the next larger one that occurs; beyond the largest, as a part of
    the value.

    Parameters
    ----------
    name
        Of the array.
    got, peer
        Whole results.
    expected
        Parts of them, and the reference's values and bounds there.
    """
    import numpy as np

    allowed = np.zeros(EXPONENTS)
    for part, one in expected:
        if compare_elements(name, got[part], one)[1]:
            return False
        if one.bound is not None:
            known = np.isfinite(one.bound) & np.isfinite(one.value)
            np.maximum.at(allowed, _exponents(one.value[known]), one.bound[known])
    seen = np.flatnonzero(allowed)
    if len(seen):
        places = np.arange(EXPONENTS)
        following = seen[np.minimum(np.searchsorted(seen, places), len(seen) - 1)]
        allowed = allowed[following] * np.exp2(np.clip(places - following, 0, 64))
    differing = ~(got == peer)
    mine, other = got[differing].astype(np.float64), peer[differing].astype(np.float64)
    sizes = np.where(other == 0, mine, other)
    return bool((np.abs(mine - other) <= 2 * allowed[_exponents(sizes)]).all())


def _exponents(values: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Binary exponents, counted from 0."""
    import numpy as np

    exponents: npt.NDArray[np.intp] = (np.frexp(values)[1] + EXPONENTS // 2).astype(np.intp)
    return exponents
