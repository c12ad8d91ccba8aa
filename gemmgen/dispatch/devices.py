"""The device that instances are chosen for."""

from __future__ import annotations

import contextlib
from functools import cache
from typing import TYPE_CHECKING

from gemmgen.core.errors import SpecError
from gemmgen.hardware.target import DEVICES, Architecture, Device, Peaks, match_device
from gemmgen.hardware.target import device as find_device

if TYPE_CHECKING:
    from gemmgen.runtime.cuda.driver import GpuDevice

DEFAULT = "H200"
"""Device that choices are made for where there is no GPU."""


def host_device() -> Device:
    """The device that arrays in host memory are treated as if they were on: their kernels run on the emulator."""
    return find_device(DEFAULT)


def problem_device(architecture: Architecture | None) -> Device:
    """The device that a problem is asked about where none is named: this machine's GPU if it has the architecture, else the first known
    device that has it, or the default device without a GPU. Raises ``SpecError`` for an architecture without a known device."""
    from gemmgen.core.errors import EnvironmentMissing

    known = [*DEVICES.values()] if architecture is not None else [host_device()]
    with contextlib.suppress(EnvironmentMissing):
        known.insert(0, gpu_device(0))
    found = [device for device in known if architecture is None or _runs(device, architecture)]
    if not found:
        raise SpecError(f"no known device runs {architecture.name if architecture else 'it'}; name one with --device")
    return found[0]


def _runs(device: Device, architecture: Architecture) -> bool:
    """True if kernels for the architecture run on the device and use the most that it has."""
    return device.architecture.compute_capability == architecture.compute_capability


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
