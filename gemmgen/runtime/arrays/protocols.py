"""Types of arguments: arrays of any library, and CUDA streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar


class DLPackArray(Protocol):
    """An array that exports DLPack: a torch tensor, a CuPy or NumPy array, or one of another library."""

    def __dlpack__(self, *, stream: None = None) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class CudaArray(Protocol):
    """An array in a GPU's memory that describes itself by ``__cuda_array_interface__``."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, object]: ...


Array = DLPackArray | CudaArray
"""An array of any library, on a GPU or in host memory."""
ArrayT = TypeVar("ArrayT", bound=Array)
"""Arrays of the caller's library: operands, and the result beside them."""


class StreamProtocol(Protocol):
    """An object that names a CUDA stream by ``__cuda_stream__``."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


class TorchStream(Protocol):
    """A stream of torch."""

    @property
    def cuda_stream(self) -> int: ...


class CupyStream(Protocol):
    """A stream of CuPy."""

    @property
    def ptr(self) -> int: ...


class HandleStream(Protocol):
    """A stream of Numba or of cuda.core."""

    @property
    def handle(self) -> object: ...


Stream = int | StreamProtocol | TorchStream | CupyStream | HandleStream
"""A CUDA stream of any library, or its handle."""
