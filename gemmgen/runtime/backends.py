"""The choice of a backend by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gemmgen.runtime.backend import Backend
from gemmgen.runtime.cuda import GpuBackend, gpu_available
from gemmgen.runtime.emulation import EmulatorBackend

BackendName = Literal["auto", "emulator", "gpu"]


def find_backend(name: BackendName = "auto", schedules: int = 1, progress: Callable[[int, int], None] | None = None) -> Backend:
    """The backend of that name; ``auto``: the GPU if there is one, else the emulator.

    ``schedules``: the emulator runs every launch under that number of interleavings of warps and blocks, which must agree.
    ``progress`` is called by the emulator with the blocks of a launch that have run, and all of them. Raises ``EnvironmentMissing`` if a
    GPU is asked for and there is none.
    """
    if name == "gpu" or (name == "auto" and gpu_available()):
        return GpuBackend()
    return EmulatorBackend(schedules=schedules, progress=progress)
