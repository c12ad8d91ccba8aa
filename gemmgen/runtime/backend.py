"""The contract between verification and a backend that runs kernels: the emulator or a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gemmgen.hardware.target import Architecture
from gemmgen.kernels.launch import LaunchSequence

if TYPE_CHECKING:
    import numpy.typing as npt


BASE_ALIGNMENT = 256
"""Bytes that every buffer's address is a multiple of before its offset is added."""


@dataclass
class HostBuffer:
    """The memory of one array argument: every byte between its first and its last element, gaps included.

    A backend puts ``storage`` ``offset_bytes`` past a multiple of 256, gives the kernel a pointer into it, runs, and copies the kernel's
    results back into ``storage``. One byte before or after ``storage`` is out of bounds."""

    storage: npt.NDArray[Any]
    """One dimension, contiguous, of the argument's element type (bfloat16 as uint16)."""
    offset_bytes: int = 0
    initialised: bool = True
    """False for memory that the kernel must not read before it has written it."""
    initialised_bytes: npt.NDArray[Any] | None = None
    """One flag for each byte of ``storage``, where only a part is initialised: gaps between elements hold nothing."""
    origin_bytes: int = 0
    """From the start of ``storage`` to the element that the kernel's pointer leads to: with negative strides, that is not the first."""
    parts: tuple[tuple[int, int], ...] = ()
    """The bytes (first, past the last) of ``storage`` that hold elements, where wide gaps are between them; (): all."""


class Backend(Protocol):
    """Runs launch sequences. Raises ``LaunchError`` or another error that derives from ``GemmgenError``."""

    @property
    def name(self) -> str:
        """``emulator`` or ``gpu``."""

    @property
    def description(self) -> str:
        """For people and certificates: which device, or which emulator."""

    @property
    def architecture(self) -> Architecture | None:
        """The architecture that binaries must be compiled for; None: any will do."""

    def run(
        self,
        binary: Any,
        sequence: LaunchSequence,
        dimensions: Mapping[str, int],
        scalars: Mapping[str, float],
        buffers: Mapping[str, HostBuffer],
    ) -> None:
        """Runs every launch of ``sequence`` once, in order, on ``buffers`` (a missing one is a null pointer)."""
