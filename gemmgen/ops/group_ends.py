"""Ends of groups of rows, or of groups of values of k, that are wrong: an error of the call on the host, and of a later one on a GPU."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gemmgen.core.errors import LaunchError

if TYPE_CHECKING:
    from gemmgen.dispatch.selection import Option
    from gemmgen.kernels.gemm.grouping import Ends
    from gemmgen.runtime.arrays.views import ArrayView


def bounds_of_ends(option: Option) -> Ends:
    """The bounds of the array ``offsets`` of a call."""
    from gemmgen.kernels.gemm.grouping import Ends
    from gemmgen.kernels.gemm.spec import GemmSpec, WgmmaMainloop

    spec, sizes = option.plan.spec, option.dimensions
    assert isinstance(spec, GemmSpec)
    if spec.batch == "grouped":
        return Ends(sizes["groups"], sizes["m"], "m")
    loop = spec.mainloop
    step = loop.tile.k if isinstance(loop, WgmmaMainloop) and spec.grouping.depth == "steps" else 1
    return Ends(sizes["batch"], sizes["k"], "k", step)


def check_ends(name: str, ends: Ends, view: ArrayView) -> None:
    """Raises ``LaunchError`` if ends in host memory, of a call of an operation, are wrong."""
    values = view.host_storage("int32")[:: max(view.strides[0], 1)] if view.shape[0] else ()
    before = 0
    for place, end in enumerate(map(int, values)):
        if not before <= end <= ends.limit or (end < ends.limit and end % ends.step):
            raise LaunchError(f"{name}: offsets[{place}] is {end} after {before}, need {ends.need}")
        before = end


def synchronize() -> None:
    """Waits for the GPUs, and reports wrong offsets.

    Kernels read the ends of groups on the device, and the host does not wait for them. Offsets that fall, or lie outside of their array,
    lead to no access outside of it; the next call of an operation with offsets reports them, or this function.

    Raises
    ------
    LaunchError
        If offsets of a call since the last report were wrong.
    """
    if (checked := _checked()) is not None:
        checked.synchronize()


def raise_reported(ordinal: int) -> None:
    """Raises ``LaunchError`` if kernels that have ended on a GPU reported wrong offsets."""
    if (checked := _checked()) is not None:
        checked.raise_reported(ordinal)


def _checked() -> Any:
    """The module that checks offsets on GPUs; None if no call needed it."""
    return sys.modules.get("gemmgen.runtime.cuda.offsets")
