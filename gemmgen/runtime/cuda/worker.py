"""The process that owns the CUDA context and runs kernels in it, so that one that faults takes down only this process.

It answers requests over a connection until that is closed or until a kernel breaks the context.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from gemmgen.core.errors import GemmgenError, LaunchError
from gemmgen.kernels.launch import ResolvedLaunch
from gemmgen.runtime.cuda.driver import CudaError, LoadedBinary, bindings, call, primary_context, release
from gemmgen.runtime.cuda.launcher import Launcher

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

GUARD_BYTES = 4096
"""Memory on either side of a buffer that no kernel may touch: a multiple of 256, so that it keeps the alignment."""

GUARD_PATTERN = 0xFFF5
"""Fills guards and workspaces, as 16 bits: NaN in f16, bf16, f32 and f64, so that a kernel that reads it shows."""

LOADED_BINARIES = 16
"""Number of cubins that stay loaded."""


@dataclass(frozen=True)
class BufferRequest:
    """One array of a run. Its ``size_bytes`` bytes follow the request, unless there are none."""

    name: str
    size_bytes: int
    offset_bytes: int
    origin_bytes: int = 0


@dataclass(frozen=True)
class RunRequest:
    """One run of a launch sequence.

    The replies are ("launching", entry) before each kernel, then ("done", "") and the bytes of every buffer that has
    any; or ("error", message), or ("broken", message) if the process ends with it.
    """

    title: str
    cubin: bytes
    architecture: str
    launches: tuple[ResolvedLaunch, ...]
    dimensions: dict[str, int]
    scalars: dict[str, float]
    buffers: tuple[BufferRequest, ...]
    workspaces: tuple[str, ...]
    """Arguments that point to the workspace."""
    workspace_bytes: int
    workspace_zero_bytes: int = 0
    """Number of bytes at its start that must be zero before the run, and after it."""


def main() -> None:
    """Serves the connection whose file descriptor and device ordinal are the arguments."""
    with Connection(int(sys.argv[1])) as connection, suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(connection, int(sys.argv[2]))


def serve(connection: Connection[Any, Any], ordinal: int) -> None:
    """Answers ("ready", "") or ("error", message), then runs until a context breaks; ``EOFError`` when nobody asks."""
    try:
        call("cuCtxSetCurrent", primary_context(ordinal))
    except GemmgenError as error:
        connection.send(("error", str(error)))
        return
    connection.send(("ready", ""))
    loaded: dict[bytes, LoadedBinary] = {}
    while True:
        request: RunRequest = connection.recv()
        storages = [_receive(connection, buffer.size_bytes) for buffer in request.buffers]
        try:
            _run(connection, _load(loaded, request, ordinal), request, storages)
        except GemmgenError as error:
            broken = bool(bindings().cuCtxSynchronize()[0].value)
            connection.send(("broken" if broken else "error", str(error)))
            if broken:
                return
            continue
        connection.send(("done", ""))
        for storage in storages:
            if storage.size:
                connection.send_bytes(storage.data)


def _receive(connection: Connection[Any, Any], size: int) -> Bytes:
    import numpy as np

    storage = np.empty(size, np.uint8)
    if size:
        connection.recv_bytes_into(storage.data)
    return storage


def _load(loaded: dict[bytes, LoadedBinary], request: RunRequest, ordinal: int) -> LoadedBinary:
    if request.cubin not in loaded:
        if len(loaded) >= LOADED_BINARIES:
            loaded.pop(next(iter(loaded))).unload()
        loaded[request.cubin] = LoadedBinary(request.cubin, request.architecture, ordinal)
    return loaded[request.cubin]


def _run(connection: Connection[Any, Any], binary: LoadedBinary, request: RunRequest, storages: list[Bytes]) -> None:
    import numpy as np

    with ExitStack() as allocations:
        buffers = {
            buffer.name: GuardedBuffer(allocations, buffer.name, buffer.size_bytes, buffer.offset_bytes) for buffer in request.buffers
        }
        host = {buffer.name: storage for buffer, storage in zip(request.buffers, storages, strict=True)}
        for name, storage in host.items():
            buffers[name].upload(storage)
        pointers = {buffer.name: buffers[buffer.name].pointer + buffer.origin_bytes for buffer in request.buffers}
        own = [name for name in request.workspaces if name not in buffers]
        if own:
            buffers[own[0]] = GuardedBuffer(allocations, own[0], request.workspace_bytes, 0)
            buffers[own[0]].upload(np.zeros(request.workspace_zero_bytes, np.uint8))
            pointers |= dict.fromkeys(own, buffers[own[0]].pointer)
        for launch in request.launches:
            launcher = Launcher(binary, [launch], request.dimensions)
            values = launcher.values(pointers, request.scalars)
            connection.send(("launching", launch.entry))
            launcher.launch(0, *values)
            try:
                call("cuCtxSynchronize")
            except CudaError as error:
                geometry = f"grid {launch.grid}, block {launch.block}"
                raise LaunchError(f"{error}, in kernel {launch.entry} ({geometry})") from None
        overruns = [text for name, buffer in buffers.items() for text in buffer.download(host.get(name))]
        if overruns:
            raise LaunchError(f"{request.title} wrote outside its arrays: {'; '.join(overruns)}")
        for name in own[:1]:
            left = np.flatnonzero(buffers[name].first_bytes(request.workspace_zero_bytes))
            if left.size:
                raise LaunchError(f"{request.title} does not leave its workspace as it found it: byte {left[0]} is not zero")


class GuardedBuffer:
    """Device memory with guards before and after it. Everything is filled with the pattern until it is uploaded to."""

    def __init__(self, allocations: ExitStack, name: str, size_bytes: int, offset_bytes: int) -> None:
        """Frees the memory when ``allocations`` is closed. Raises ``LaunchError`` if the device lacks that much."""
        self.name = name
        self._size = size_bytes
        self._lead = GUARD_BYTES + offset_bytes
        total = self._lead + size_bytes + GUARD_BYTES
        self._total = total + total % 2
        try:
            self._base = int(call("cuMemAlloc", self._total))
        except CudaError as error:
            raise LaunchError(f"{name} needs {self._total} bytes of device memory ({error})") from None
        allocations.callback(release, "cuMemFree", self._base)
        call("cuMemsetD16", self._base, GUARD_PATTERN, self._total // 2)

    @property
    def pointer(self) -> int:
        """Arguments of the kernel."""
        return self._base + self._lead

    def upload(self, storage: Bytes) -> None:
        """Fills the buffer."""
        if storage.size:
            call("cuMemcpyHtoD", self.pointer, storage.ctypes.data, storage.size)

    def first_bytes(self, count: int) -> Bytes:
        """The first ``count`` bytes of the buffer."""
        import numpy as np

        read = np.empty(count, np.uint8)
        if count:
            call("cuMemcpyDtoH", read.ctypes.data, self.pointer, count)
        return read

    def download(self, storage: Bytes | None) -> list[str]:
        """Reads the buffer into ``storage``; returns a description of writes outside it."""
        import numpy as np

        memory = np.empty(self._total, np.uint8)
        call("cuMemcpyDtoH", memory.ctypes.data, self._base, self._total)
        end = self._lead + self._size
        if storage is not None:
            storage[:] = memory[self._lead : end]
        pattern = np.frombuffer(GUARD_PATTERN.to_bytes(2, "little") * (self._total // 2), np.uint8)
        before = np.flatnonzero(memory[: self._lead] != pattern[: self._lead])
        after = np.flatnonzero(memory[end:] != pattern[end:])
        overruns = []
        if before.size:
            distance = self._lead - int(before[0])
            overruns.append(f"{before.size} bytes before {self.name}, the first {distance} bytes before its start")
        if after.size:
            distance = int(after[0])
            overruns.append(f"{after.size} bytes after {self.name}, the first {distance} bytes past its end")
        return overruns
