"""The contract between verification and whatever runs a kernel: the emulator or a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gemmgen.hardware.target import Architecture
from gemmgen.kernels.launch import LaunchSequence

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.toolchain.nvrtc import Binary

BASE_ALIGNMENT = 256
"""Bytes that every buffer's address is a multiple of before its offset is added."""


@dataclass
class HostBuffer:
    """The memory of one array argument: every byte between its first and its last element, gaps included.

    A backend gives the kernel a pointer ``offset_bytes`` past a multiple of 256, runs, and writes what the kernel
    left there back into ``storage``. One byte before or after ``storage`` is out of bounds.
    """

    storage: npt.NDArray[Any]
    """One dimension, contiguous, of the argument's element type (bfloat16 as uint16)."""
    offset_bytes: int = 0
    initialised: bool = True
    """False for memory that the kernel must not read before it has written it."""
    initialised_bytes: npt.NDArray[Any] | None = None
    """One flag for each byte of ``storage``, where only a part is initialised: gaps between elements hold nothing."""


class Backend(Protocol):
    """Runs launch sequences. Raises ``LaunchError`` or an error of its own that derives from ``GemmgenError``."""

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
        binary: Binary,
        sequence: LaunchSequence,
        dimensions: Mapping[str, int],
        scalars: Mapping[str, float],
        buffers: Mapping[str, HostBuffer],
    ) -> None:
        """Runs every launch of ``sequence`` once, in order, on ``buffers`` (a missing one is a null pointer)."""


def numpy_type(element_type: str) -> np.dtype[Any]:
    """The NumPy type that holds elements of ``element_type``; bfloat16 is held as its bits in uint16."""
    import numpy as np

    names = {
        "f32": "float32",
        "f64": "float64",
        "f16": "float16",
        "bf16": "uint16",
        "s8": "int8",
        "u8": "uint8",
        "s32": "int32",
        "s64": "int64",
    }
    return np.dtype(names[element_type])


def to_elements(kind: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Numbers as a kernel's elements; bfloat16 as its bits, rounded to nearest even."""
    import numpy as np

    if kind != "bf16":
        return np.asarray(values).astype(numpy_type(kind))
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_numbers(kind: str, elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A kernel's elements as numbers: the inverse of ``to_elements``."""
    import numpy as np

    if kind != "bf16":
        return elements
    return (elements.astype(np.uint32) << 16).view(np.float32)
