"""Roof of a device that bounds a problem, and the share of it that a measured time reaches.

The model is that of Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009, in the terms of NVIDIA's GPU Performance
Background User's Guide: a problem is limited by arithmetic if its operations per byte exceed the device's operation rate over
its memory bandwidth, else by memory, and takes at least max(operations / rate, bytes / bandwidth).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemmgen.hardware.target import Device, Figure
from gemmgen.kernels.family import Cost


@dataclass(frozen=True, slots=True)
class Roofline:
    """The bounds of one problem on one device; a roof is None where the device's is not known."""

    cost: Cost
    device: Device
    compute_roof: Figure | None
    """Operations per second."""
    memory_roof: Figure | None
    """Bytes per second."""

    @property
    def compute_seconds(self) -> float:
        """Time for the operations at the full rate."""
        return self.cost.operations / self.compute_roof.value if self.compute_roof else 0.0

    @property
    def special_roof(self) -> Figure:
        """Special functions per second."""
        return self.device.special_roof

    @property
    def special_seconds(self) -> float:
        """Time for the special functions at the full rate."""
        return self.cost.special / self.special_roof.value

    @property
    def memory_seconds(self) -> float:
        """Time for each array to cross the memory bus once at the full bandwidth."""
        return self.cost.bytes / self.memory_roof.value if self.memory_roof else 0.0

    @property
    def least_seconds(self) -> float:
        """No kernel that reads and writes device memory is faster."""
        return max(self.compute_seconds, self.special_seconds, self.memory_seconds)

    @property
    def binding(self) -> Literal["compute", "memory"]:
        """The roof that binds."""
        return "compute" if max(self.compute_seconds, self.special_seconds) > self.memory_seconds else "memory"

    @property
    def ridge(self) -> float | None:
        """Operations per byte at which both roofs bind; None if one is unknown."""
        return self.compute_roof.value / self.memory_roof.value if self.compute_roof and self.memory_roof else None

    def fraction(self, seconds: float) -> float:
        """Share of the binding roof that a kernel reaches that takes ``seconds``: 1 at the roof."""
        return self.least_seconds / seconds

    def compute_utilisation(self, seconds: float) -> float:
        """operations / (time * rate)."""
        return self.compute_seconds / seconds

    def memory_utilisation(self, seconds: float) -> float:
        """bytes / (time * bandwidth); above 1 if the arrays come from a cache."""
        return self.memory_seconds / seconds


def roofline(cost: Cost, device: Device) -> Roofline:
    """The roofs of ``device`` that hold for ``cost``, whose ``unit`` names the operation rate (``fp32``, ``int8``)."""
    return Roofline(cost, device, device.roof(cost.unit), device.memory_roof)
