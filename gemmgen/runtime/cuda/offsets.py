"""Ends of groups that lie on a GPU: a small kernel checks them there, and a later call reports those that are wrong."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from threading import Lock

from gemmgen.core.cache import Cache
from gemmgen.core.errors import LaunchError
from gemmgen.kernels.gemm.grouping import Ends
from gemmgen.kernels.launch import ResolvedLaunch
from gemmgen.runtime.cuda.driver import LoadedBinary, bindings, call, current_device, gpu, while_captured
from gemmgen.runtime.cuda.launcher import Launcher
from gemmgen.toolchain.nvrtc import compile_source

SOURCE = Path(__file__).with_name("offsets.cu")
ENTRY = "check_offsets"
THREADS = 128


class Reports:
    """A word in host memory that kernels of one device write the number of a report to, and the text of each number."""

    def __init__(self, ordinal: int) -> None:
        self._texts: list[str] = []
        self._lock = Lock()
        flags = bindings().CU_MEMHOSTALLOC_PORTABLE | bindings().CU_MEMHOSTALLOC_DEVICEMAP
        with current_device(ordinal), while_captured():
            place = int(call("cuMemHostAlloc", ctypes.sizeof(ctypes.c_int), flags))
            self.word = int(call("cuMemHostGetDevicePointer", place, 0))
        """Address of the word on the device."""
        self._number = ctypes.c_int.from_address(place)
        self._number.value = 0

    def number_of(self, text: str) -> int:
        """The number, from 1 on, that stands for a text."""
        with self._lock:
            if text not in self._texts:
                self._texts.append(text)
            return self._texts.index(text) + 1

    def raise_last(self) -> None:
        """Raises ``LaunchError`` with the text of the number that a kernel has written since the last call, if any."""
        number = self._number.value
        if number:
            self._number.value = 0
            raise LaunchError(self._texts[number - 1])


@cache
def reports(ordinal: int) -> Reports:
    """The reports of a device."""
    return Reports(ordinal)


_devices: set[int] = set()
"""Devices on which ends of groups were checked."""


def synchronize() -> None:
    """Waits for the GPUs on which ends of groups were checked; raises ``LaunchError`` if some were wrong."""
    for ordinal in sorted(_devices):
        with current_device(ordinal):
            call("cuCtxSynchronize")
        raise_reported(ordinal)


def raise_reported(ordinal: int) -> None:
    """Raises ``LaunchError`` if ends of groups were reported as wrong on a device."""
    if ordinal in _devices:
        reports(ordinal).raise_last()


@cache
def _loaded(ordinal: int) -> LoadedBinary:
    """The kernel that checks, on a device."""
    architecture = gpu(ordinal).architecture
    assert architecture is not None
    binary = compile_source(SOURCE.read_text(encoding="utf-8"), architecture=architecture.name, options=(), name=SOURCE.name, cache=Cache())
    return LoadedBinary(binary.cubin, binary.architecture, ordinal)


class CheckedLauncher(Launcher):
    """A launcher that has ends of groups checked ahead of its kernels, and reports those of earlier calls."""

    _check: Launcher
    _reports: Reports
    _place: int

    def check(self, place: int, ends: Ends, call_in_words: str) -> None:
        """Has value ``place`` of each launch, the address of the ends, checked from now on."""
        text = f"{call_in_words}: offsets of an earlier call were wrong, need {ends.need}; groups got what exists between their ends"
        self._reports, self._place = reports(self.ordinal), place
        numbers = {"groups": ends.groups, "limit": ends.limit, "step": ends.step, "report": self._reports.number_of(text)}
        parameters = (("offsets", "pointer"), *((name, "s32") for name in numbers), ("word", "pointer"))
        launch = ResolvedLaunch(ENTRY, (1, 1, 1), (THREADS, 1, 1), (1, 1, 1), 0, parameters)
        self._check = Launcher(_loaded(self.ordinal), [launch], numbers)
        _devices.add(self.ordinal)

    def launch(self, stream: int, *values: object) -> None:
        """Enqueues the check and the kernels. Raises ``LaunchError`` also for ends of earlier calls, without launching anything."""
        self._reports.raise_last()
        if not self.is_empty:
            self._check.launch(stream, values[self._place], self._reports.word)
        super().launch(stream, *values)
