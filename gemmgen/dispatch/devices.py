"""The device that instances are chosen for."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from gemmgen.hardware.target import DEVICES, Device, Peaks, match_device
from gemmgen.hardware.target import device as find_device

if TYPE_CHECKING:
    from gemmgen.runtime.cuda.driver import GpuDevice

DEFAULT = "H200"
"""Device that choices are made for where there is no GPU."""


def host_device() -> Device:
    """The device that arrays in host memory are treated as if they were on: their kernels run on the emulator."""
    return find_device(DEFAULT)


@cache
def gpu_device(ordinal: int) -> Device:
    """The GPU with that ordinal, as data. Raises ``EnvironmentMissing`` without one."""
    from gemmgen.runtime.cuda.driver import gpu

    return as_device(gpu(ordinal))


def as_device(gpu: GpuDevice) -> Device:
    """The entry of ``target.DEVICES`` for a GPU; for one that is not there, an entry scaled by its SMs from its nearest kin."""
    from gemmgen.core.errors import EnvironmentMissing

    known = match_device(gpu.name, gpu.sm_count)
    if known is not None:
        return known
    architecture = gpu.architecture
    if architecture is None:
        raise EnvironmentMissing(f"{gpu} is of an architecture that gemmgen does not know")
    kin = min(DEVICES.values(), key=lambda entry: _distance(entry, gpu))
    share = gpu.sm_count / kin.sm_count
    sheet = Peaks(
        fp32_flops=_scaled(kin.datasheet.fp32_flops, share),
        int8_mma_ops=_scaled(kin.datasheet.int8_mma_ops, share),
        read_bytes_per_second=_scaled(kin.datasheet.read_bytes_per_second, share),
    )
    return Device(gpu.name, architecture, gpu.sm_count, kin.clock_hz, gpu.l2_bytes, sheet)


def _distance(entry: Device, gpu: GpuDevice) -> tuple[int, int]:
    major, minor = entry.architecture.compute_capability
    return abs(10 * major + minor - 10 * gpu.compute_capability[0] - gpu.compute_capability[1]), abs(entry.sm_count - gpu.sm_count)


def _scaled(value: float | None, share: float) -> float | None:
    return None if value is None else value * share
