"""A compiled instance that is called on arrays: NumPy arrays on the emulator, CUDA arrays on their GPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gemmgen.arrays.binding import bind_dimensions, bind_scalars, memory_problems, raise_problems, unknown_names
from gemmgen.arrays.views import LEGACY_STREAM, ArrayView, describe
from gemmgen.errors import LaunchError
from gemmgen.launch import ArrayArgument, LaunchSequence

if TYPE_CHECKING:
    from gemmgen.compiler import Binary
    from gemmgen.gpu.driver import LoadedBinary
    from gemmgen.gpu.launching import PreparedCall

CACHED_PROBLEMS = 256
"""For how many combinations of layouts a kernel remembers the problem and its launches."""


class Kernel:
    """An instance that can be launched: ``kernel(A=a, B=b, C=c, alpha=1.0)``.

    Arrays are passed by the names in ``signature`` and written in place. All of them are NumPy (or other host) arrays,
    which the emulator then works on, or all are on one CUDA device, where the launch is asynchronous and takes place in
    this process. CUDA is not touched before the first launch on a GPU. One object may be used by several threads.
    """

    def __init__(self, sequence: LaunchSequence, binary: Binary) -> None:
        self.sequence = sequence
        self.binary = binary
        self._arrays = tuple(argument for argument in sequence.arrays if argument.role != "workspace")
        self._names = frozenset(argument.name for argument in self._arrays)
        self._loaded: dict[int, LoadedBinary] = {}
        self._problems: dict[Any, _Problem] = {}

    def __call__(self, *, stream: Any = None, **arguments: Any) -> None:
        """Launches the kernel on the arrays and scalars called ``arguments``.

        ``stream`` is anything that names a CUDA stream: an object with ``__cuda_stream__``, a stream of torch, CuPy or
        Numba, or a handle as an integer. Without one, the launch goes to torch's current stream if an array is a torch
        tensor, else to the stream that an array names in its ``__cuda_array_interface__`` (CuPy's current one), else to
        the legacy default stream. Work that an array names another stream for is waited for, on the device.

        Problems without work launch nothing: an output with no elements, that is. One with no elements to sum over is launched,
        since BLAS still scales C then. Raises ``LaunchError`` if the call does not fit the kernel, with all reasons.
        """
        handle = None if stream is None else stream_handle(stream)
        views, problems = self._describe(arguments, handle)
        given = {name: value for name, value in arguments.items() if name not in self._names}
        scalars, dimensions = bind_scalars(self.sequence, given, problems)
        raise_problems(self.sequence, problems)
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

    def _describe(self, arguments: Mapping[str, Any], handle: int | None) -> tuple[dict[str, ArrayView], list[str]]:
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
        from gemmgen.backend import BASE_ALIGNMENT, HostBuffer, numpy_type
        from gemmgen.emulation import EmulatorBackend

        buffers = {
            argument.name: HostBuffer(
                views[argument.name].host_storage(numpy_type(argument.type)),
                offset_bytes=views[argument.name].pointer % BASE_ALIGNMENT,
                initialised=argument.reads,
            )
            for argument in self._arrays
        }
        EmulatorBackend().run(self.binary, self.sequence, problem.dimensions, scalars, buffers)

    def _launch(
        self, problem: _Problem, views: Mapping[str, ArrayView], scalars: Mapping[str, float], handle: int | None
    ) -> None:
        prepared = problem.prepared
        if prepared is None:
            prepared = problem.prepared = self._prepare(problem)
        if handle is None:
            handle = default_stream(views.values())
        prepared.enqueue(handle, views, scalars)

    def _prepare(self, problem: _Problem) -> PreparedCall:
        from gemmgen.gpu.driver import LoadedBinary
        from gemmgen.gpu.launching import PreparedCall

        ordinal = problem.ordinal or 0
        loaded = self._loaded.get(ordinal)
        if loaded is None:
            loaded = self._loaded.setdefault(
                ordinal, LoadedBinary(self.binary.cubin, self.binary.architecture, ordinal)
            )
        return PreparedCall(loaded, self.sequence, problem.dimensions)
