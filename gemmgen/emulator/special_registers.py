"""Special registers: thread and block indices, grid sizes, clocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmgen.emulator.geometry import WARP, Geometry
from gemmgen.emulator.memory import RANK_SHIFT

_AXES = {"x": 0, "y": 1, "z": 2}
_CLOCKS: dict[str, type[np.unsignedinteger[Any]]] = {
    "%clock": np.uint32,
    "%clock_hi": np.uint32,
    "%clock64": np.uint64,
    "%globaltimer": np.uint64,
    "%globaltimer_lo": np.uint32,
    "%globaltimer_hi": np.uint32,
}
_SHARED = "%shared_address_"


class SpecialRegisters:
    """Rows of special registers, made when first read and refreshed when blocks start."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.dynamic_shared_bytes = 0
        self.total_shared_bytes = 0
        self.grid_workspace = 0
        """The address of the counter of grid barriers."""
        self._rows: dict[str, np.ndarray] = {}
        self._time = 0

    def refresh(self) -> None:
        """Recomputes the rows that depend on the blocks that run."""
        for name, row in self._rows.items():
            if not name.startswith(("%tid.", "%ntid.", "%laneid", "%lanemask")):
                row[:] = self._values(name)

    def row(self, name: str) -> np.ndarray | None:
        """The row of a special register; None if there is no such register."""
        if name not in self._rows:
            values = self._values(name)
            if values is None:
                return None
            row = np.empty(self.geometry.lanes, np.asarray(values).dtype)
            row[:] = values
            self._rows[name] = row
        return self._rows[name]

    def shared_addresses(self, offset: int, width: int) -> np.ndarray:
        """Each lane's address of a byte of its block's shared memory, 4 or 8 bytes wide: a row, refreshed when blocks start."""
        row = self.row(f"{_SHARED}{width}.{offset}")
        assert row is not None
        return row

    def is_clock(self, name: str) -> bool:
        """True if a register changes from one read to the next."""
        return name in _CLOCKS

    def tick(self) -> int:
        """The time of the next read of a clock: it only ever grows."""
        self._time += 16
        return self._time

    def _values(self, name: str) -> np.ndarray | np.generic | None:
        geometry = self.geometry
        stem, _, axis = name.partition(".")
        if axis in _AXES:
            number = _AXES[axis]
            if stem == "%tid":
                return geometry.thread_index(number)
            if stem == "%ctaid":
                return geometry.block_index(number)
            if stem == "%ntid":
                return np.uint32(geometry.block_dim[number])
            if stem == "%nctaid":
                return np.uint32(geometry.grid_dim[number])
            if stem == "%clusterid":
                return geometry.block_index(number) // np.uint32(geometry.cluster_dim[number])
            if stem == "%nclusterid":
                return np.uint32(geometry.grid_dim[number] // geometry.cluster_dim[number])
            if stem == "%cluster_ctaid":
                return geometry.block_index(number) % np.uint32(geometry.cluster_dim[number])
            if stem == "%cluster_nctaid":
                return np.uint32(geometry.cluster_dim[number])
            return None
        if stem.startswith(_SHARED):
            ranks = geometry.block_of_lane % geometry.cluster_size
            return ((ranks << RANK_SHIFT) + int(axis)).astype(f"u{stem[len(_SHARED) :]}")
        lane = (geometry.thread_of_lane % WARP).astype(np.uint32)
        one = np.uint64(1)
        match name:
            case "%laneid":
                return lane
            case "%warpid":
                return (geometry.thread_of_lane // WARP).astype(np.uint32)
            case "%nwarpid":
                return np.uint32(geometry.warps_per_block)
            case "%lanemask_eq":
                return (one << lane).astype(np.uint32)
            case "%lanemask_lt":
                return ((one << lane) - one).astype(np.uint32)
            case "%lanemask_le":
                return ((one << (lane + 1)) - one).astype(np.uint32)
            case "%lanemask_gt":
                return (~((one << (lane + 1)) - one)).astype(np.uint32)
            case "%lanemask_ge":
                return (~((one << lane) - one)).astype(np.uint32)
            case "%smid":
                return (geometry.numbers[geometry.block_of_lane] % 132).astype(np.uint32)
            case "%nsmid":
                return np.uint32(132)
            case "%cluster_ctarank":
                return (geometry.block_of_lane % geometry.cluster_size).astype(np.uint32)
            case "%cluster_nctarank":
                return np.uint32(geometry.cluster_size)
            case "%is_explicit_cluster":
                return np.bool_(geometry.explicit_cluster)
            case "%envreg1":
                return np.uint32(self.grid_workspace >> 32)
            case "%envreg2":
                return np.uint32(self.grid_workspace & 0xFFFFFFFF)
            case "%aggr_smem_size":
                return np.uint32(self.total_shared_bytes)
            case "%current_graph_exec":
                return np.uint64(0)
            case _ if name.startswith(("%envreg", "%pm")):
                # Nothing counts events, and no driver leaves anything in the other registers of the environment.
                return np.uint64(0) if name.endswith("_64") else np.uint32(0)
            case "%gridid":
                return np.uint64(1)
            case "%dynamic_smem_size":
                return np.uint32(self.dynamic_shared_bytes)
            case "%total_smem_size":
                return np.uint32(self.total_shared_bytes)
            case _ if name in _CLOCKS:
                return _CLOCKS[name](0)
            case _:
                return None
