"""A compiled instance that is called on host arrays and runs on the host's processor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.runtime.kernel import Kernel
from gemmgen.runtime.native.library import LoadedLibrary
from gemmgen.toolchain.host import HostBinary

if TYPE_CHECKING:
    from gemmgen.runtime.arrays.views import ArrayView


class NativeKernel(Kernel):
    """Called like every kernel: ``kernel(A=a, B=b, C=c, alpha=1.0)``, on NumPy and other host arrays, which it works on in place."""

    def __init__(self, sequence: LaunchSequence, binary: HostBinary) -> None:
        super().__init__(sequence, binary)  # type: ignore[arg-type]  # all that the base class asks of it is its architecture
        self._host_binary = binary

    @cached_property
    def library(self) -> LoadedLibrary:
        """The function in this process, loaded when it is first needed."""
        return LoadedLibrary(self._host_binary, self.sequence)

    def _emulate(self, problem: Any, views: Mapping[str, ArrayView], scalars: Mapping[str, float]) -> None:
        pointers = {name: view.pointer for name, view in views.items()}
        self.library.call(pointers, {**problem.dimensions, **self.sequence.default_scalars, **scalars})

    def _launch(self, problem: object, views: Mapping[str, ArrayView], scalars: Mapping[str, float], handle: int | None) -> None:
        raise LaunchError(f"{self.sequence.name} runs on the host's processor, and the arrays are on a GPU")
