"""The backend that runs kernels without a GPU, on the PTX emulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gemmgen.backend import BASE_ALIGNMENT, HostBuffer
from gemmgen.errors import LaunchError
from gemmgen.launch import LaunchSequence

if TYPE_CHECKING:
    from gemmgen.compiler import Binary

POISON = 0xF5
"""Fills workspaces: NaN in every floating-point type, should a kernel read it before it wrote it."""


class EmulatorBackend:
    """Implements ``backend.Backend`` by executing the binary's PTX on the CPU."""

    name = "emulator"
    description = "PTX emulator on the CPU"

    def run(
        self,
        binary: Binary,
        sequence: LaunchSequence,
        dimensions: Mapping[str, int],
        scalars: Mapping[str, float],
        buffers: Mapping[str, HostBuffer],
    ) -> None:
        """Runs every launch once, in order, on the buffers themselves.

        Raises ``LaunchError`` with the emulator's report if a kernel does what it must not; what the buffers hold is
        then not specified.
        """
        launches = sequence.resolve(dimensions)
        if not launches:
            return
        from gemmgen import emulator

        arguments = self._arguments(sequence, dimensions, scalars, buffers)
        for launch in launches:
            try:
                emulator.launch(
                    binary.ptx,
                    launch.entry,
                    grid=launch.grid,
                    block=launch.block,
                    shared_bytes=launch.shared_bytes,
                    args=[arguments[name] for name, _ in launch.parameters],
                )
            except emulator.EmulatorError as error:
                raise LaunchError(
                    f"kernel {launch.entry}, grid {launch.grid}, block {launch.block}: {error}"
                ) from error

    @staticmethod
    def _arguments(
        sequence: LaunchSequence,
        dimensions: Mapping[str, int],
        scalars: Mapping[str, float],
        buffers: Mapping[str, HostBuffer],
    ) -> dict[str, Any]:
        """A value for each argument; the buffers' memory is shared, not copied."""
        import numpy as np

        from gemmgen.emulator import Buffer

        arguments: dict[str, Any] = {**dimensions, **sequence.default_scalars, **scalars}
        for argument in sequence.arrays:
            buffer = buffers.get(argument.name)
            if buffer is None and argument.role == "workspace":
                size = sequence.workspace_bytes.evaluate(dimensions)
                buffer = HostBuffer(np.full(size, POISON, np.uint8), initialised=False)
            arguments[argument.name] = (
                None
                if buffer is None
                else Buffer(
                    buffer.storage,
                    offset_bytes=buffer.offset_bytes % BASE_ALIGNMENT,
                    name=argument.name,
                    writable=argument.writes,
                )
            )
        return arguments
