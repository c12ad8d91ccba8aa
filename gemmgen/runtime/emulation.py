"""The backend that runs kernels without a GPU, on the PTX emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gemmgen.core.elements import numpy_type
from gemmgen.core.errors import LaunchError
from gemmgen.hardware.target import ARCHITECTURES
from gemmgen.hardware.tensor_map import MAP_BYTES, TensorMap
from gemmgen.kernels.launch import LaunchSequence, ResolvedMap
from gemmgen.runtime.backend import BASE_ALIGNMENT, HostBuffer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.emulator import Buffer, EmulatorError, LaunchResult, Observer
    from gemmgen.emulator.arithmetic import Arithmetic
    from gemmgen.toolchain.nvrtc import Binary

_GIVEN = ("pointer", "struct", "tensor_map")
"""Types of parameters whose values do not come from the problem or the scalars."""

POISON = 0xF5
"""Fills workspaces: NaN in every floating-point type, should a kernel read it before it wrote it."""


class KernelFault(LaunchError):
    """A kernel violated a rule; `told_with` quotes the lines of its source."""

    def __init__(self, entry: str, where: str, error: EmulatorError) -> None:
        super().__init__(f"{where}: {error}")
        self.entry = entry
        self._where = where
        self.error = error

    def told_with(self, source: str) -> str:
        """The message, with the CUDA lines it is about."""
        self.error.source = source
        return f"{self._where}: {self.error}"


class EmulatorBackend:
    """Implements ``backend.Backend`` by executing the binary's PTX on the CPU."""

    name = "emulator"
    description = "PTX emulator on the CPU"
    architecture = None

    def __init__(
        self,
        observers: Sequence[Observer] = (),
        *,
        hazards: bool = True,
        schedules: int = 1,
        step_limit: int | None = None,
        arithmetic: Arithmetic | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """``observers`` see every access of every launch.

        ``hazards`` makes races, volatile ones too, and reads of unwritten memory errors.
        With ``schedules`` above 1, each launch runs under that number of interleavings of warps and blocks, and all must leave the same
        bytes. A launch that takes more than ``step_limit`` basic blocks is taken to loop forever. ``arithmetic`` is the meaning of
        floating-point instructions; None: real numbers. ``progress`` is called with the blocks of a launch that have run, and all of them.
        """
        self._observers = tuple(observers)
        self._hazards = hazards
        self._schedules = schedules
        self._step_limit = step_limit
        self._arithmetic = arithmetic
        self._progress = progress

    def run(
        self,
        binary: Binary,
        sequence: LaunchSequence,
        dimensions: Mapping[str, int],
        scalars: Mapping[str, float],
        buffers: Mapping[str, HostBuffer],
    ) -> None:
        """Runs every launch once, in order, on the buffers themselves.

        With ``hazards``, accesses of launches that may start early before they wait for the previous launch are errors. Raises
        ``LaunchError`` with the emulator's report if a kernel violates a rule; the contents of the buffers are then unspecified."""
        launches = sequence.resolve(dimensions)
        if not launches:
            return
        import numpy as np

        from gemmgen import emulator
        from gemmgen.emulator.arithmetic import REAL
        from gemmgen.emulator.launch import SHARED_LIMIT, STEP_LIMIT

        workspace = _workspace(sequence, dimensions)
        zeroed = np.arange(workspace.size) < sequence.workspace_zero_bytes.evaluate(dimensions)
        pointers = _pointers(sequence, buffers, workspace, zeroed)
        numbers = {**dimensions, **sequence.default_scalars, **scalars}
        known = ARCHITECTURES.get(binary.architecture)
        shared_limit = known.shared_bytes_per_block if known is not None else SHARED_LIMIT
        before: LaunchResult | None = None
        for launch, after in zip(launches, (*launches[1:], None), strict=True):
            given = pointers | dict(launch.structs) | {each.name: _tensor_map(each, pointers) for each in launch.tensor_maps}
            try:
                before = emulator.launch_interleaved(
                    binary.ptx,
                    launch.entry,
                    grid=launch.grid,
                    block=launch.block,
                    shared_bytes=launch.shared_bytes,
                    args=[given.get(name) if kind in _GIVEN else _number(name, kind, numbers) for name, kind in launch.parameters],
                    observers=self._observers,
                    shared_limit=shared_limit,
                    hazards=self._hazards,
                    strict=self._hazards,
                    refills=False,
                    schedules=self._schedules,
                    step_limit=self._step_limit or STEP_LIMIT,
                    cluster=launch.cluster if launch.cluster_blocks > 1 else None,
                    overlaps=before if launch.programmatic and self._hazards else None,
                    arithmetic=self._arithmetic or REAL,
                    progress=self._progress,
                    overlapped=after is not None and after.programmatic and self._hazards,
                )
            except emulator.EmulatorError as error:
                raise KernelFault(launch.entry, f"kernel {launch.entry}, grid {launch.grid}, block {launch.block}", error) from error
        left = np.flatnonzero(workspace[: sequence.workspace_zero_bytes.evaluate(dimensions)])
        if left.size:
            raise LaunchError(f"{sequence.name} does not leave its workspace as it found it: byte {left[0]} is not zero")


def _workspace(sequence: LaunchSequence, dimensions: Mapping[str, int]) -> npt.NDArray[np.uint8]:
    """The memory for all workspace arguments: zero where the sequence needs that, else poison."""
    import numpy as np

    size = sequence.workspace_bytes.evaluate(dimensions)
    workspace = np.full(size, POISON, np.uint8)
    workspace[: sequence.workspace_zero_bytes.evaluate(dimensions)] = 0
    return workspace


def _number(name: str, kind: str, numbers: Mapping[str, float]) -> Any:
    """A scalar with its type: PTX says of a parameter only how many bits it has."""
    if name not in numbers:
        raise LaunchError(f"the scalar argument {name} has no value")
    return numpy_type(kind).type(numbers[name])


def _pointers(
    sequence: LaunchSequence,
    buffers: Mapping[str, HostBuffer],
    workspace: npt.NDArray[np.uint8],
    zeroed: npt.NDArray[np.bool_],
) -> dict[str, Buffer]:
    """The emulator's buffer for each array; their memory is shared, not copied. Missing ones are null pointers."""
    from gemmgen.emulator import Buffer

    pointers: dict[str, Buffer] = {}
    for argument in sequence.arrays:
        buffer = buffers.get(argument.name)
        if buffer is None and argument.role == "workspace":
            buffer = HostBuffer(workspace, initialised_bytes=zeroed)
        if buffer is not None:
            pointers[argument.name] = Buffer(
                buffer.storage,
                offset_bytes=buffer.offset_bytes % BASE_ALIGNMENT,
                name=argument.name,
                writable=argument.writes,
                written=_written(buffer),
                origin=buffer.origin_bytes,
                parts=buffer.parts,
            )
    return pointers


def _tensor_map(described: ResolvedMap, pointers: Mapping[str, Buffer]) -> TensorMap | bytes:
    """A map over the buffer of its array; zeros where there is nothing to map."""
    from gemmgen.emulator import Buffer

    buffer = pointers.get(described.array)
    if described.tensor_map is None or buffer is None:
        return bytes(MAP_BYTES)
    if described.offset_bytes:
        storage, written, at = buffer.array.view("uint8"), buffer.written, described.offset_bytes
        buffer = Buffer(
            storage[at:],
            offset_bytes=((buffer.offset_bytes or 0) + at) % BASE_ALIGNMENT,
            name=buffer.name,
            writable=buffer.writable,
            written=None if written is None else written[at:],
        )
    return replace(described.tensor_map, base=buffer)


def _written(buffer: HostBuffer) -> npt.NDArray[np.bool_] | None:
    """Bytes of a buffer that hold something, one flag each; None: all."""
    import numpy as np

    if not buffer.initialised:
        return np.zeros(buffer.storage.nbytes, np.bool_)
    return None if buffer.initialised_bytes is None else np.array(buffer.initialised_bytes, np.bool_)
