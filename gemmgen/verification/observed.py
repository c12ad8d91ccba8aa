"""The programs that a kernel's launches run."""

from __future__ import annotations

from gemmgen.emulator.program import Program, link
from gemmgen.kernels.family import KernelPlan
from gemmgen.toolchain.nvrtc import Binary


def programs_of(plan: KernelPlan, binary: Binary) -> list[Program]:
    """The programs of an instance's launches, in their order."""
    text = binary.ptx if isinstance(binary.ptx, str) else binary.ptx.decode()
    return [link(text, launch.entry) for launch in plan.sequence.launches]
