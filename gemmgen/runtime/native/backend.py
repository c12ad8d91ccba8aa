"""The backend that runs instances on the host's processor, between guard bands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gemmgen.core.errors import LaunchError
from gemmgen.hardware.cpu import host_name
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.runtime.backend import BASE_ALIGNMENT, HostBuffer
from gemmgen.runtime.native.library import LoadedLibrary
from gemmgen.toolchain.host import HostBinary

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

GUARD_BYTES = 4096
"""Memory on either side of an array that must stay as it is; a multiple of the base alignment."""
GUARD_BYTE = 0xFF
"""Fills it: NaN as a float, so that reads of it show."""


class NativeBackend:
    """Implements ``backend.Backend`` by calling the instance's function in this process."""

    name = "native"
    architecture = None

    def __init__(self, *, exact: bool = False) -> None:
        """``exact``: every array is a separate allocation without guard bands, for AddressSanitizer, which has its own."""
        self._exact = exact
        self._loaded: dict[str, LoadedLibrary] = {}

    @property
    def description(self) -> str:
        return host_name()

    def loaded(self, binary: HostBinary, sequence: LaunchSequence) -> LoadedLibrary:
        """The binary in this process."""
        library = self._loaded.get(binary.digest)
        if library is None:
            library = self._loaded.setdefault(binary.digest, LoadedLibrary(binary, sequence))
        return library

    def run(
        self,
        binary: HostBinary,
        sequence: LaunchSequence,
        dimensions: Mapping[str, int],
        scalars: Mapping[str, float],
        buffers: Mapping[str, HostBuffer],
    ) -> None:
        """Calls the function once and copies the results back; raises ``LaunchError`` if it wrote beyond an array."""
        library = self.loaded(binary, sequence)
        placed = {name: self._placed(buffer) for name, buffer in buffers.items()}
        pointers = {name: memory.ctypes.data + start for name, (memory, start) in placed.items()}
        library.call(pointers, {**dimensions, **sequence.default_scalars, **scalars})
        for name, (memory, start) in placed.items():
            storage = buffers[name].storage.view("u1")
            end = start + storage.nbytes
            for place, band in (("before", memory[:start]), ("behind", memory[end:])):
                if (band != GUARD_BYTE).any():
                    raise LaunchError(f"{sequence.name} wrote {place} {name}")
            storage[...] = memory[start:end]

    def _placed(self, buffer: HostBuffer) -> tuple[npt.NDArray[np.uint8], int]:
        """A copy of a buffer at the address that it asks for, and where in the memory it starts."""
        import numpy as np

        data: npt.NDArray[Any] = buffer.storage.view(np.uint8)
        if self._exact:
            # malloc returns multiples of 16 bytes; the offset itself must not be memory of the array.
            memory = np.empty(data.nbytes, np.uint8)
            memory[...] = data
            return memory, 0
        room = BASE_ALIGNMENT + buffer.offset_bytes
        memory = np.full(2 * GUARD_BYTES + room + data.nbytes, GUARD_BYTE, np.uint8)
        start = GUARD_BYTES - (memory.ctypes.data + GUARD_BYTES) % BASE_ALIGNMENT + room
        memory[start : start + data.nbytes] = data
        return memory, start
