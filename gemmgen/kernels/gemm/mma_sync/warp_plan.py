"""The common part of plans of GEMMs whose warps multiply fragments: estimates of their registers."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.core.errors import Reason
from gemmgen.kernels.gemm.mma_sync.loop import WarpLoop
from gemmgen.kernels.gemm.tensor_cores.plan import TensorPlan
from gemmgen.kernels.tiles.resources import ResidentBlocks


@dataclass(frozen=True, kw_only=True)
class WarpPlan(TensorPlan):
    """A GEMM whose warps multiply fragments by ``mma.sync``."""

    loop: WarpLoop

    @property
    def warnings(self) -> tuple[Reason, ...]:
        """An estimate of registers that exceeds the limit per thread; the compiler may reuse those that copies pass through."""
        resident = ResidentBlocks(self.architecture, self.loop.min_blocks_per_sm, self.threads)
        return resident.few_registers(self.loop.sums_and_others, resident.allocated_registers, "mainloop.tile")

    @property
    def registers_per_thread(self) -> int:
        return min(255, self.loop.estimated_registers, 65536 // (self.threads * self.loop.min_blocks_per_sm) // 8 * 8)
