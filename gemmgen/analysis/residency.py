"""What the kernels of a compiled instance use, and how many of their blocks an SM holds at once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gemmgen.compiler import Binary, KernelResources
from gemmgen.families.base import KernelPlan
from gemmgen.target import Occupancy, occupancy


@dataclass(frozen=True, slots=True)
class Residency:
    """One kernel on one architecture."""

    entry: str
    architecture: str
    threads: int
    """Of a block."""
    resources: KernelResources
    dynamic_shared_bytes: int
    occupancy: Occupancy

    @property
    def shared_bytes(self) -> int:
        """Of a block, static and dynamic."""
        return self.resources.static_shared_bytes + self.dynamic_shared_bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "entry": self.entry,
            "architecture": self.architecture,
            "threads": self.threads,
            **asdict(self.resources),
            "dynamic_shared_bytes": self.dynamic_shared_bytes,
            "occupancy": asdict(self.occupancy),
        }


def residencies(plan: KernelPlan, binary: Binary) -> list[Residency]:
    """Every kernel of the plan's sequence, once, on the binary's architecture, which must be the plan's."""
    found: dict[str, Residency] = {}
    for launch in plan.sequence.launches:
        used = binary.resources[launch.entry]
        # What a launch asks for by a formula over the problem is counted at the plan's own figure.
        dynamic = plan.dynamic_shared_bytes if launch.dynamic_shared_bytes.names else launch.dynamic_shared_bytes.evaluate({})
        fits = occupancy(plan.architecture, launch.threads, used.registers, used.static_shared_bytes + dynamic)
        found[launch.entry] = Residency(launch.entry, binary.architecture, launch.threads, used, dynamic, fits)
    return list(found.values())
