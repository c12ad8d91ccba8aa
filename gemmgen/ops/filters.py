"""Filters of convolutions, kept in the orders that kernels read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from gemmgen.core.errors import LaunchError
from gemmgen.ops.arrays import readable
from gemmgen.runtime.arrays.protocols import Array

if TYPE_CHECKING:
    from gemmgen.kernels.conv2d.layouts import FilterOrder


class Filter:
    """A filter that several convolutions use.

    Each order that an instance reads is made once, at the first call that needs it, and kept. Later changes to the array have no
    effect: make a new ``Filter``.

    Parameters
    ----------
    w
        NumPy, CuPy or torch: (k, c / groups, r, s), or (k, c / groups / 32, r, s, 32) in NCHW32.

    Raises
    ------
    LaunchError
        For an array of another shape.
    """

    def __init__(self, w: Array) -> None:
        shape = getattr(w, "shape", None)
        shape = shape if isinstance(shape, tuple) else ()
        if len(shape) == 5 and shape[4] == 32:
            self.shape = (int(shape[0]), int(shape[1]) * 32, int(shape[2]), int(shape[3]))
        elif len(shape) == 4:
            self.shape = cast("tuple[int, int, int, int]", tuple(map(int, shape)))
        else:
            raise LaunchError(f"conv2d: the filter has shape {shape}, need (k, c / groups, r, s) or (k, c / groups / 32, r, s, 32)")
        self.source = w = readable(w)
        self.key = "filter", str(getattr(w, "dtype", "")), str(getattr(w, "device", ""))
        """Key shared by calls with equal filters, beside the shape."""
        self._ordered: dict[str, Any] = {}
        self._tap_sums: Any = None

    def tap_sums(self) -> Array:
        """Sums over the filter for zero points, made once.

        Returns
        -------
        Array
            Int32, as ``gemmgen.layouts.tap_sums`` gives them.
        """
        if self._tap_sums is None:
            from gemmgen.kernels.conv2d.layouts import tap_sums

            source: Any = self.source
            self._tap_sums = tap_sums(source)
        return cast("Array", self._tap_sums)

    def ordered(self, order: str) -> Array:
        """The filter in an order that kernels read, made once.

        Parameters
        ----------
        order
            As for ``gemmgen.layouts.reorder_filter``.

        Returns
        -------
        Array
            The reordered filter.
        """
        array = self._ordered.get(order)
        if array is None:
            from gemmgen.kernels.conv2d.layouts import reorder_filter

            source: Any = self.source
            array = self._ordered[order] = reorder_filter(source, cast("FilterOrder", order))
        return cast("Array", array)


def results_of(
    extents: Iterable[int], taps: Iterable[int], strides: Iterable[int], paddings: Iterable[int], dilations: Iterable[int]
) -> list[int]:
    """Results along each axis of a convolution; extents may be symbolic."""
    axes = zip(extents, taps, strides, paddings, dilations, strict=True)
    return [max((extent + 2 * pad - step * (count - 1) - 1) // skip + 1, 0) for extent, count, skip, pad, step in axes]
