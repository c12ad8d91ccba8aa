"""The clocks that a GPU runs at while something is measured, read through NVML or nvidia-smi; nothing is ever set."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from typing import Any

_SMI_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks seen in MHz; None where nothing could be read."""

    source: str
    """``NVML``, ``nvidia-smi`` or ``unknown``."""
    samples: int = 0
    sm_median: float | None = None
    sm_lowest: int | None = None
    sm_highest: int | None = None
    memory_median: float | None = None


class ClockReader:
    """Samples the clocks of one device. Never raises; clocks that cannot be read are unknown."""

    def __init__(self, pci_bus_id: str) -> None:
        self._bus_id = pci_bus_id
        self._samples: list[tuple[int, int]] = []
        self._nvml, self._handle = _open_nvml(pci_bus_id)
        self._smi = None if self._nvml is not None else shutil.which("nvidia-smi")

    @property
    def driver_version(self) -> str:
        """The version of the NVIDIA driver, or ``unknown``."""
        if self._nvml is not None:
            try:
                version = self._nvml.nvmlSystemGetDriverVersion()
                return version.decode() if isinstance(version, bytes) else str(version)
            except self._nvml.NVMLError:
                return "unknown"
        fields = self._query("driver_version")
        return fields[0] if fields else "unknown"

    def sample(self) -> None:
        """Reads the clocks once, if there is a way to."""
        if self._nvml is not None:
            try:
                sm = self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM)
                memory = self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_MEM)
                self._samples.append((int(sm), int(memory)))
            except self._nvml.NVMLError:
                return
        else:
            fields = self._query("clocks.sm,clocks.mem")
            if len(fields) == 2 and all(field.isdigit() for field in fields):
                self._samples.append((int(fields[0]), int(fields[1])))

    def summary(self) -> Clocks:
        """The clocks sampled so far."""
        if not self._samples:
            return Clocks("unknown")
        sm = [sample[0] for sample in self._samples]
        return Clocks(
            source="NVML" if self._nvml is not None else "nvidia-smi",
            samples=len(sm),
            sm_median=median(sm),
            sm_lowest=min(sm),
            sm_highest=max(sm),
            memory_median=median(sample[1] for sample in self._samples),
        )

    def _query(self, fields: str) -> list[str]:
        if self._smi is None:
            return []
        command = [self._smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--id={self._bus_id}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return []
        return [field.strip() for field in done.stdout.split(",")] if done.returncode == 0 else []


def _open_nvml(pci_bus_id: str) -> tuple[Any, Any]:
    """The module ``pynvml`` (nvidia-ml-py) and the device's handle; (None, None) if either is missing."""
    try:
        pynvml: Any = import_module("pynvml")
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
    except pynvml.NVMLError:
        return None, None
