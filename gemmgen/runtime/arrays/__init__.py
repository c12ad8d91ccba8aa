"""The caller's arrays: one view type over every array library, and how they bind to a kernel's arguments."""

from gemmgen.runtime.arrays.binding import BoundCall, bind
from gemmgen.runtime.arrays.views import ArrayView, Device, describe, overlaps

__all__ = ["ArrayView", "BoundCall", "Device", "bind", "describe", "overlaps"]
