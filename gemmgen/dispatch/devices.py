"""The device that instances are chosen for."""

from __future__ import annotations

import contextlib
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING

from gemmgen.core.errors import SpecError
from gemmgen.hardware.target import DEVICES, Architecture, Device, Peaks, match_device, named_words
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
    fitting = [device for device in known if architecture is None or _runs(device, architecture)]
    if not fitting:
        raise SpecError(f"no known device runs {architecture.name if architecture else 'it'}; name one with --device")
    return fitting[0]


def _runs(device: Device, architecture: Architecture) -> bool:
    """True if kernels for the architecture run on the device and use the most that it has."""
    return device.architecture.compute_capability == architecture.compute_capability


@cache
def gpu_device(ordinal: int) -> Device:
    """The GPU with that ordinal, as data. Raises ``EnvironmentMissing`` without one."""
    from gemmgen.runtime.cuda.driver import gpu

    return as_device(gpu(ordinal))


def as_device(gpu: GpuDevice) -> Device:
    """The entry of ``target.DEVICES`` for a GPU; for one that is not there, an entry scaled by its SMs from its nearest kin: the GPU of
    which it is a slice or a smaller form, else one of its architecture."""
    from gemmgen.core.errors import EnvironmentMissing

    known = match_device(gpu.name, gpu.sm_count)
    if known is not None:
        return known
    architecture = gpu.architecture
    if architecture is None:
        raise EnvironmentMissing(f"{gpu} is of an architecture that gemmgen does not know")
    kin = min(DEVICES.values(), key=lambda entry: _distance(entry, gpu))
    share = gpu.sm_count / kin.sm_count
    sheet = Peaks(**{peak.name: _scaled(getattr(kin.datasheet, peak.name), share) for peak in fields(Peaks)})
    return Device(gpu.name, architecture, gpu.sm_count, kin.clock_hz, gpu.l2_bytes, sheet)


def _distance(entry: Device, gpu: GpuDevice) -> tuple[int, int, int]:
    (major, minor), (own_major, own_minor) = entry.architecture.compute_capability, gpu.compute_capability
    apart = abs(10 * (major - own_major) + minor - own_minor)
    return apart, -named_words(entry, gpu.name), abs(entry.sm_count - gpu.sm_count)


def _scaled(value: float | None, share: float) -> float | None:
    return None if value is None else value * share
