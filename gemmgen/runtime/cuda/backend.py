"""The backend that runs kernels on a CUDA device, in a separate worker process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any

from gemmgen.core.errors import EnvironmentMissing, LaunchError
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.runtime.cuda.driver import gpu

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from gemmgen.hardware.target import Architecture
    from gemmgen.runtime.backend import HostBuffer
    from gemmgen.runtime.cuda.worker import RunRequest
    from gemmgen.toolchain.nvrtc import Binary

START_SECONDS = 120.0
"""Time limit for the worker to create its CUDA context."""
_STOP_SECONDS = 10.0
WORKER = "from gemmgen.runtime.cuda.worker import main; main()"
"""Entry point of the worker process."""


class GpuBackend:
    """Implements ``backend.Backend`` on one CUDA device.

    Every array has guard bands, checked after each run. The CUDA context belongs to a worker process that is started by
    the first run, serves all later ones, and is replaced after a kernel faulted or exceeded the time limit.
    """

    name = "gpu"

    def __init__(self, ordinal: int = 0, time_limit: float = 120.0) -> None:
        """Raises ``EnvironmentMissing`` without such a device. ``time_limit`` is in seconds, for one run."""
        self._device = gpu(ordinal)
        self._time_limit = time_limit
        self._worker: _Worker | None = None
        self._lock = threading.Lock()

    @property
    def description(self) -> str:
        """The device and its driver."""
        return str(self._device)

    @property
    def architecture(self) -> Architecture | None:
        """Architecture to compile kernels for; None if the device is newer than all that is known."""
        return self._device.architecture

    def run(
        self,
        binary: Binary,
        sequence: LaunchSequence,
        dimensions: Mapping[str, int],
        scalars: Mapping[str, float],
        buffers: Mapping[str, HostBuffer],
    ) -> None:
        """Runs every launch once, in order, and brings all buffers back.

        Raises ``LaunchError`` if a kernel cannot be launched, faults, exceeds the time limit or writes outside its
        arrays; the buffers are then as they were.
        """
        from gemmgen.runtime.cuda.worker import BufferRequest, RunRequest

        request = RunRequest(
            title=sequence.name,
            cubin=binary.cubin,
            architecture=binary.architecture,
            launches=sequence.resolve(dimensions),
            dimensions=dict(dimensions),
            scalars=sequence.default_scalars | dict(scalars),
            buffers=tuple(
                BufferRequest(name, buffer.storage.nbytes, buffer.offset_bytes, buffer.origin_bytes) for name, buffer in buffers.items()
            ),
            workspaces=tuple(argument.name for argument in sequence.arrays if argument.name in sequence.workspace_names),
            workspace_bytes=sequence.workspace_bytes.evaluate(dimensions),
            workspace_zero_bytes=sequence.workspace_zero_bytes.evaluate(dimensions),
        )
        with self._lock:
            if self._worker is None:
                self._worker = _Worker(self._device.ordinal)
            try:
                self._worker.run(request, [buffer.storage for buffer in buffers.values()], self._time_limit)
            finally:
                if self._worker.ended:
                    self._worker = None

    def close(self) -> None:
        """Ends the worker; a later run starts another."""
        with self._lock:
            if self._worker is not None:
                self._worker.stop()
                self._worker = None


class _Worker:
    def __init__(self, ordinal: int) -> None:
        self.ended = False
        self._connection, theirs = Pipe()
        # Not multiprocessing.Process: spawning one runs the caller's main module again. The worker finds its modules
        # where this process does, and not in the current directory; output of kernels goes to standard error.
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                WORKER,
                str(theirs.fileno()),
                str(ordinal),
            ],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
        )
        theirs.close()
        self.stop = weakref.finalize(self, _end, self._process, self._connection)
        try:
            kind, text = self._receive(time.monotonic() + START_SECONDS, "start")
        except LaunchError:
            self.stop()
            raise
        if kind != "ready":
            self.stop()
            raise EnvironmentMissing(f"the GPU cannot be used: {text}")

    def run(self, request: RunRequest, storages: list[Any], time_limit: float) -> None:
        deadline = time.monotonic() + time_limit
        doing = f"receive the arrays of {request.title}"
        try:
            self._connection.send(request)
            for storage in storages:
                if storage.nbytes:
                    self._connection.send_bytes(storage.view("uint8"))
        except OSError:
            raise self._died(doing) from None
        while True:
            kind, text = self._receive(deadline, doing, time_limit)
            if kind == "launching":
                doing = f"run kernel {text}"
                continue
            if kind == "done":
                break
            if kind == "broken":
                self._abandon()
            raise LaunchError(text)
        try:
            for storage in storages:
                if storage.nbytes:
                    self._connection.recv_bytes_into(storage.view("uint8"))
        except (EOFError, OSError):
            raise self._died(f"return the arrays of {request.title}") from None

    def _receive(self, deadline: float, doing: str, time_limit: float = START_SECONDS) -> tuple[str, str]:
        try:
            if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                self._abandon(kill=True)
                raise LaunchError(f"the GPU worker did not {doing} within {time_limit:g} s and was ended")
            kind, text = self._connection.recv()
        except (EOFError, OSError):
            raise self._died(doing) from None
        return kind, text

    def _died(self, doing: str) -> LaunchError:
        self._abandon()
        code = self._process.poll()
        return LaunchError(f"the GPU worker ended (exit status {code}) when it had to {doing}")

    def _abandon(self, kill: bool = False) -> None:
        self.ended = True
        if kill:
            self._process.kill()
        self.stop()


def _end(process: subprocess.Popen[bytes], connection: Connection[Any, Any]) -> None:
    """Closes the connection, which ends an idle worker, and kills one that does not end."""
    connection.close()
    for last_resort in (process.kill, lambda: None):
        try:
            process.wait(_STOP_SECONDS)
            return
        except subprocess.TimeoutExpired:
            last_resort()
