"""A compiled instance that is called on arrays: NumPy arrays on the emulator, CUDA arrays on their GPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.launch import ArrayArgument, LaunchSequence
from gemmgen.runtime.arrays.binding import bind, bind_dimensions, bind_scalars, memory_problems, raise_problems
from gemmgen.runtime.arrays.protocols import Array, Stream
from gemmgen.runtime.arrays.views import LEGACY_STREAM, ArrayView, describe

if TYPE_CHECKING:
    from gemmgen.runtime.cuda.driver import LoadedBinary
    from gemmgen.runtime.cuda.launcher import Launcher
    from gemmgen.toolchain.nvrtc import Binary

CACHED_PROBLEMS = 256
"""For how many combinations of layouts a kernel remembers the problem and its launches."""


class Kernel:
    """A kernel that can be launched: ``kernel(A=a, B=b, C=c, alpha=1.0)``.

    Arrays are passed by the names in ``signature`` and written in place. All of them are NumPy (or other host) arrays,
    for which the emulator runs the kernel, or all are on one CUDA device, where the launch is asynchronous. CUDA is not
    initialised before the first launch on a GPU. Several threads may use one object.

    Parameters
    ----------
    sequence
        The launches and their arguments.
    binary
        The compiled source.
    """

    def __init__(self, sequence: LaunchSequence, binary: Binary) -> None:
        self.sequence = sequence
        self.binary = binary
        self._arrays = tuple(argument for argument in sequence.arrays if argument.role != "workspace")
        self._names = frozenset(argument.name for argument in self._arrays)
        self._scalars = tuple(scalar.name for scalar in sequence.scalars)
        self._loaded: dict[int, LoadedBinary] = {}
        self._problems: dict[Any, _Problem] = {}

    def __call__(self, *, stream: Stream | None = None, **arguments: Array | float) -> None:
        """Launches the kernel on arrays and scalars.

        A problem whose grid is empty launches nothing; one that only has nothing to sum over is launched, since C is
        still scaled then.

        Parameters
        ----------
        stream
            An object with ``__cuda_stream__``, a stream of torch, CuPy or Numba, or a handle as an integer. By default torch's current
            stream if an array is a torch tensor, else the stream that an array names in its ``__cuda_array_interface__`` (CuPy's current
            one), else the legacy default stream. Work that an array names another stream for is waited for, on the device.
        **arguments
            Arrays and scalars by the names in ``signature``.

        Raises
        ------
        LaunchError
            With all reasons, if the call does not fit the kernel.
        """
        handle = _torch_stream(arguments) if stream is None else stream_handle(stream)
        views, problems = self._describe(arguments, handle)
        given: dict[str, Any] = {name: value for name, value in arguments.items() if name not in self._names}
        scalars, dimensions = bind_scalars(self.sequence, given, problems)
        if problems:
            bind(self.sequence, {name: arguments.get(name) for name in self._names}, given)  # raises all there are
        problem = self._bound(views, dimensions)
        raise_problems(self.sequence, memory_problems(self._arrays, views, problem.spans))
        if problem.ordinal is None:
            self._emulate(problem, views, scalars)
        else:
            self._launch(problem, views, scalars, handle)

    @property
    def signature(self) -> str:
        """The call in words: one line for each argument."""
        return describe_signature(self.sequence)

    def __repr__(self) -> str:
        return f"<Kernel {self.sequence.name} for {self.binary.architecture}>"

    def _describe(self, arguments: Mapping[str, object], handle: int | None) -> tuple[dict[str, ArrayView], list[str]]:
        problems: list[str] = []
        views: dict[str, ArrayView] = {}
        for argument in self._arrays:
            array = arguments.get(argument.name)
            if array is None:
                problems.append(f"the array {argument.name} ({argument.meaning}) is missing")
                continue
            try:
                views[argument.name] = describe(array, argument.name, handle)
            except LaunchError as error:
                problems.append(str(error))
        return views, problems

    def _bound(self, views: Mapping[str, ArrayView], dimensions: Mapping[str, int]) -> _Problem:
        key = (*(view.layout for view in views.values()), *sorted(dimensions.items()))
        problem = self._problems.get(key)
        if problem is None:
            problem = _Problem(self.sequence, views, dimensions)
            if len(self._problems) >= CACHED_PROBLEMS:
                self._problems.clear()
            self._problems[key] = problem
        return problem

    def _emulate(self, problem: _Problem, views: Mapping[str, ArrayView], scalars: Mapping[str, float]) -> None:
        from gemmgen.core.elements import numpy_type
        from gemmgen.runtime.backend import BASE_ALIGNMENT, HostBuffer
        from gemmgen.runtime.emulation import EmulatorBackend

        buffers = {
            argument.name: HostBuffer(
                views[argument.name].host_storage(numpy_type(argument.type)),
                offset_bytes=(views[argument.name].pointer + views[argument.name].span()[0]) % BASE_ALIGNMENT,
                origin_bytes=-views[argument.name].span()[0],
                parts=views[argument.name].parts(),
                initialised=argument.reads and scalars.get(argument.needed or "") != 0,
            )
            for argument in self._arrays
        }
        EmulatorBackend().run(self.binary, self.sequence, problem.dimensions, scalars, buffers)

    def _launch(self, problem: _Problem, views: Mapping[str, ArrayView], scalars: Mapping[str, float], handle: int | None) -> None:
        prepared = problem.prepared
        if prepared is None:
            prepared = problem.prepared = self._prepare(problem)
        producers = {view.producer_stream for view in views.values() if view.producer_stream is not None}
        if handle is None:
            named = (view.producer_stream for view in views.values() if view.producer_stream is not None)
            handle = next(named, LEGACY_STREAM)
        waits = producers - {handle}
        if waits and not prepared.is_empty:
            from gemmgen.runtime.cuda.launcher import wait_for

            wait_for(problem.ordinal or 0, handle, waits)
        prepared.launch(handle, *(view.pointer for view in views.values()), *(scalars[name] for name in self._scalars))

    def _prepare(self, problem: _Problem) -> Launcher:
        from gemmgen.runtime.cuda.driver import LoadedBinary
        from gemmgen.runtime.cuda.launcher import Launcher

        ordinal = problem.ordinal or 0
        loaded = self._loaded.get(ordinal)
        if loaded is None:
            loaded = self._loaded.setdefault(ordinal, LoadedBinary(self.binary.cubin, self.binary.architecture, ordinal))
        slots = [(argument.name, "pointer") for argument in self._arrays]
        slots += [(scalar.name, scalar.type) for scalar in self.sequence.scalars]
        return Launcher.of_sequence(loaded, self.sequence, problem.dimensions, slots)


class _Problem:
    """State shared by all calls with the same layouts and dimensions."""

    __slots__ = ("dimensions", "ordinal", "prepared", "spans")

    def __init__(self, sequence: LaunchSequence, views: Mapping[str, ArrayView], dimensions: Mapping[str, int]) -> None:
        problems: list[str] = []
        self.dimensions = bind_dimensions(sequence, views, dimensions, problems)
        if problems:
            problems += memory_problems(sequence.arrays, views)
        raise_problems(sequence, problems)
        self.spans = {name: view.span() for name, view in views.items()}
        device = next((view.device for view in views.values()), "cpu")
        self.ordinal = None if isinstance(device, str) else device[1]
        self.prepared: Launcher | None = None


def stream_handle(stream: object) -> int:
    """The driver's handle of a stream of any library; 0, the default stream, as the legacy one.

    Raises ``LaunchError`` for objects that are no streams.
    """
    handle: Any = None
    if isinstance(stream, int) and not isinstance(stream, bool):
        handle = stream
    elif hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        handle = (protocol() if callable(protocol) else protocol)[1]
    else:
        for attribute in ("cuda_stream", "ptr", "handle"):  # torch; CuPy; Numba and cuda.core
            if hasattr(stream, attribute):
                handle = getattr(stream, attribute)
                break
    handle = getattr(handle, "value", handle)  # Numba's is a ctypes object, None in it the default stream
    if handle is None and hasattr(stream, "handle"):
        handle = 0
    try:
        number = int(handle)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise LaunchError(
            "stream must be an object with __cuda_stream__, a stream of torch, CuPy or Numba, or a handle as an "
            f"integer, got {type(stream).__name__}"
        )
    return number or LEGACY_STREAM


def _torch_stream(arguments: Mapping[str, object]) -> int | None:
    """Torch's current stream on the device of the first CUDA tensor among the arguments; None if there is none."""
    torch = sys.modules.get("torch")
    if torch is not None:
        for value in arguments.values():
            if isinstance(value, torch.Tensor) and value.is_cuda:
                return int(torch.cuda.current_stream(value.device).cuda_stream) or LEGACY_STREAM
    return None


def describe_signature(sequence: LaunchSequence) -> str:
    """The arguments of a call in words, one per line, with their constraints."""
    parameters: list[str] = []
    lines: list[str] = []
    for argument in sequence.arguments:
        if isinstance(argument, ArrayArgument) and argument.role != "workspace":
            parameters.append(argument.name)
            shape = ", ".join(str(extent) for extent in argument.shape)
            strides = ", ".join(str(stride) for stride in argument.strides)
            lines.append(
                f"  {argument.name}: {argument.type}[{shape}], strides ({strides}) in elements, {argument.role}, "
                f"aligned to {argument.alignment} bytes: {argument.meaning}"
            )
    for scalar in sequence.scalars:
        default = "" if scalar.default is None else f" = {scalar.default}"
        parameters.append(f"{scalar.name}{default}")
        lines.append(f"  {scalar.name}: {scalar.type}{default}: {scalar.meaning}")
    for dimension in sequence.dimensions:
        default = "" if dimension.default is None else f" (else {dimension.default})"
        lines.append(f"  {dimension.name}: read from the arrays{default}: {dimension.meaning}")
    lines += [f"  needs {constraint.condition}: {constraint.explanation}" for constraint in sequence.constraints]
    return "\n".join([f"{sequence.name}({', '.join(parameters)}, stream=None)", *lines])
