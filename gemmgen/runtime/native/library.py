"""A compiled instance as a function of this process."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from collections.abc import Mapping
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import EnvironmentMissing, LaunchError
from gemmgen.hardware.cpu import CpuArchitecture, cpu_architecture, host_name, runs_here
from gemmgen.kernels.launch import ArrayArgument, LaunchSequence, ScalarArgument
from gemmgen.toolchain.host import HostBinary


class LoadedLibrary:
    """The function of an instance. It stays loaded until the process ends, for its threads may wait in it."""

    def __init__(self, binary: HostBinary, sequence: LaunchSequence) -> None:
        """Raises ``EnvironmentMissing`` if this machine cannot execute it."""
        require_host(binary.name, cpu_architecture(binary.architecture))
        self.sequence = sequence
        self._library = loaded_library(binary)
        self._function = getattr(self._library, sequence.launches[0].entry)
        self._function.restype = ctypes.c_int
        self._function.argtypes = [_c_type(argument) for argument in sequence.parameters_of(0)]

    def call(self, pointers: Mapping[str, int], numbers: Mapping[str, float]) -> None:
        """Runs the instance on arrays at ``pointers``; ``numbers`` are its dimensions and scalars. Raises ``LaunchError``."""
        values = [
            pointers.get(name) if isinstance(argument, ArrayArgument) else numbers[name]
            for name, argument in zip(self.sequence.launches[0].arguments, self.sequence.parameters_of(0), strict=True)
        ]
        status = self._function(*values)
        if status == errno.ENOMEM:
            raise LaunchError(f"{self.sequence.name}: no memory for the packed operands")
        if status != 0:
            raise LaunchError(f"{self.sequence.name}: {os.strerror(status)}")

    def set_threads(self, count: int) -> int:
        """Sets the number of threads of later calls, 0 for the spec's; returns the number before. 1 for kernels without threads."""
        try:
            function = getattr(self._library, f"{self.sequence.launches[0].entry}_threads")
        except AttributeError:
            return 1
        return int(function(ctypes.c_int(count)))

    @property
    def function(self) -> Any:
        """The C function, with its argument types."""
        return self._function


def require_host(name: str, architecture: CpuArchitecture) -> None:
    """Raises ``EnvironmentMissing`` if this machine cannot execute ``name``, which is for ``architecture``."""
    if not runs_here(architecture):
        missing = ", ".join(sorted(architecture.features)) or architecture.machine
        raise EnvironmentMissing(f"{name} is for {architecture.name} ({missing}), which this machine is not: {host_name()}")


def loaded_library(binary: HostBinary, kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    """The library of a binary in this process; ``kind`` decides whether its functions hold Python's lock. Raises ``LaunchError``."""
    handle, path = tempfile.mkstemp(prefix=f"{binary.name[:40]}-", suffix=".so")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(binary.library)
        return kind(path)
    except OSError as error:
        raise LaunchError(f"{binary.name}: its library cannot be loaded: {error}") from None
    finally:
        os.unlink(path)


def _c_type(argument: object) -> Any:
    if isinstance(argument, ScalarArgument):
        return getattr(ctypes, ELEMENTS[argument.type].ctypes_name)
    return ctypes.c_void_p
