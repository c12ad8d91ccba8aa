"""Resources of a compiled instance's kernels, and how many of their blocks an SM holds at once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from gemmgen.hardware.target import WARP_THREADS, Architecture, Occupancy, occupancy
from gemmgen.kernels.family import KernelPlan
from gemmgen.toolchain.nvrtc import Binary, KernelResources


@dataclass(frozen=True, slots=True)
class Residency:
    """One kernel on one architecture."""

    entry: str
    architecture: str
    threads: int
    """Threads of a block."""
    resources: KernelResources
    dynamic_shared_bytes: int
    occupancy: Occupancy

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, static and dynamic."""
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


@dataclass(frozen=True, slots=True)
class Need:
    """Value that one resource would have to come down to for more blocks to fit."""

    resource: Literal["registers", "shared", "threads"]
    """Registers a thread, bytes of shared memory a block, or threads a block."""
    now: int
    most: int
    """The largest amount with which a number of blocks fit, as far as this resource goes."""


@dataclass(frozen=True, slots=True)
class MoreBlocks:
    """Needs of one more block on an SM; all of ``needs`` at once."""

    blocks_per_sm: int
    needs: tuple[Need, ...]
    """Empty if nothing could do it: an SM's number of blocks and warps is limited."""


def one_more_block(kernel: Residency, architecture: Architecture) -> MoreBlocks:
    """Resources that would have to shrink for one more block of ``kernel`` on an SM, by the rules of ``gemmgen.hardware.target.occupancy``.

    Registers and shared memory are given as the most that would do. Threads are asked for only where the SM has no more warps:
    with blocks of fewer threads it would hold more of them.
    """
    wanted = kernel.occupancy.blocks_per_sm + 1
    needs = []
    threads = kernel.threads
    if wanted > architecture.blocks_per_sm:
        return MoreBlocks(wanted, ())
    if threads > architecture.threads_per_block or architecture.warps_per_sm // -(-threads // WARP_THREADS) < wanted:
        fewer = min(architecture.warps_per_sm // wanted * WARP_THREADS, architecture.threads_per_block)
        if fewer == 0:
            return MoreBlocks(wanted, ())
        needs.append(Need("threads", threads, fewer))
        threads = fewer
    registers = kernel.resources.registers
    most = next((r for r in range(registers, 0, -1) if occupancy(architecture, threads, r, 0).blocks_per_sm >= wanted), 0)
    if most < registers:
        needs.append(Need("registers", registers, most))
    shared = kernel.shared_bytes
    if occupancy(architecture, threads, 0, shared).blocks_per_sm < wanted:
        unit = architecture.shared_allocation_bytes
        room = architecture.shared_bytes_per_sm // wanted // unit * unit - architecture.reserved_shared_bytes_per_block
        needs.append(Need("shared", shared, max(room, 0)))
    return MoreBlocks(wanted, tuple(needs))


def residencies(plan: KernelPlan, binary: Binary) -> list[Residency]:
    """Every kernel of the plan's sequence, once, on the binary's architecture, which must be the plan's."""
    by_entry: dict[str, Residency] = {}
    for launch in plan.sequence.launches:
        used = binary.resources[launch.entry]
        # Memory that a launch requests by a formula over the problem is counted at the plan's own figure.
        dynamic = plan.dynamic_shared_bytes if launch.dynamic_shared_bytes.names else launch.dynamic_shared_bytes.evaluate({})
        fits = occupancy(plan.architecture, launch.threads, used.registers, used.static_shared_bytes + dynamic)
        by_entry[launch.entry] = Residency(launch.entry, binary.architecture, launch.threads, used, dynamic, fits)
    return list(by_entry.values())
