"""Use of a device by a problem's blocks: tiles that reach beyond the problem, and the last wave of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from gemmgen.hardware.target import Device
from gemmgen.kernels.launch import ResolvedLaunch
from gemmgen.perf.analysis.residency import Residency


@dataclass(frozen=True, slots=True)
class Waves:
    """One launch on one device. A wave is as many blocks as the device holds at once."""

    entry: str
    blocks: int
    blocks_per_wave: int

    @property
    def waves(self) -> float:
        """Blocks over those of a wave, a fraction for a last wave that is not full; 0 if no block fits on an SM."""
        return self.blocks / self.blocks_per_wave if self.blocks_per_wave else 0.0

    @property
    def whole_waves(self) -> int:
        """Waves, the last one counted as a whole."""
        return -(-self.blocks // self.blocks_per_wave) if self.blocks_per_wave else 0

    @property
    def efficiency(self) -> float:
        """The part of the places in all waves that holds a block: the loss in the last wave if blocks take equally long
        (NVIDIA, Matrix Multiplication Background User's Guide, wave quantization)."""
        return self.waves / self.whole_waves if self.whole_waves else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "entry": self.entry,
            "blocks": self.blocks,
            "blocks_per_wave": self.blocks_per_wave,
            "waves": round(self.waves, 4),
            "efficiency": round(self.efficiency, 4),
        }


def waves_of(launch: ResolvedLaunch, kernel: Residency, device: Device) -> Waves:
    """The waves of one launch of ``kernel``, whose occupancy is that of the device's architecture."""
    return Waves(launch.entry, prod(launch.grid), kernel.occupancy.blocks_per_sm * device.sm_count)
