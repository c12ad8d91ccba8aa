"""Launches in this process, on a stream of the caller's."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gemmgen.kernels.launch import LaunchSequence
from gemmgen.runtime.cuda.driver import LoadedBinary, PreparedLaunch, bindings, call, check, current_device, primary_context, release


class PreparedCall:
    """A launch sequence for one problem on one device: what a call still needs is pointers, scalars and a stream."""

    def __init__(self, loaded: LoadedBinary, sequence: LaunchSequence, dimensions: Mapping[str, int]) -> None:
        """Raises ``LaunchError`` if the device cannot launch one of the kernels."""
        self._driver = bindings()
        self._context = primary_context(loaded.device.ordinal)
        self._context_handle = int(self._context)
        self._launches = tuple(PreparedLaunch(loaded, launch) for launch in sequence.resolve(dimensions))
        self._dimensions = dict(dimensions)
        self._workspaces = tuple(argument.name for argument in sequence.arrays if argument.role == "workspace")
        self.workspace_bytes = sequence.workspace_bytes.evaluate(dimensions) if self._workspaces else 0
        self.workspace_zero_bytes = sequence.workspace_zero_bytes.evaluate(dimensions) if self._workspaces else 0

    @property
    def is_empty(self) -> bool:
        """Whether the problem needs no launch at all."""
        return not self._launches

    def enqueue(
        self,
        stream: int,
        pointers: Mapping[str, int],
        scalars: Mapping[str, float],
        wait_for: Collection[int] = (),
    ) -> None:
        """Enqueues every kernel on ``stream``, after all work that is now on the streams ``wait_for``.

        A workspace that is not among ``pointers`` is allocated, zeroed as far as it has to be, and freed in the order of
        the stream. Raises ``LaunchError``.
        """
        if not self._launches:
            return
        driver = self._driver
        other_context = int(check(driver, driver.cuCtxGetCurrent())) != self._context_handle
        if other_context:
            check(driver, driver.cuCtxPushCurrent(self._context))
        try:
            for producer in wait_for:
                _wait(stream, producer)
            values = {**self._dimensions, **scalars, **pointers}
            missing = [name for name in self._workspaces if name not in pointers]
            if not missing or not self.workspace_bytes:
                self._enqueue_all(stream, values | dict.fromkeys(missing, 0))
                return
            workspace = int(check(driver, driver.cuMemAllocAsync(self.workspace_bytes, stream)))
            try:
                if self.workspace_zero_bytes:
                    check(driver, driver.cuMemsetD8Async(workspace, 0, self.workspace_zero_bytes, stream))
                self._enqueue_all(stream, values | dict.fromkeys(missing, workspace))
            finally:
                release("cuMemFreeAsync", workspace, stream)
        finally:
            if other_context:
                release("cuCtxPopCurrent")

    def _enqueue_all(self, stream: int, values: Mapping[str, float]) -> None:
        for launch in self._launches:
            launch.enqueue(stream, values)


def wait_for(ordinal: int, stream: int, producers: Collection[int]) -> None:
    """Makes what is enqueued on ``stream`` from now on wait, on the device, for the work that is now on other streams."""
    with current_device(ordinal):
        for producer in producers:
            _wait(stream, producer)


def _wait(stream: int, producer: int) -> None:
    event = call("cuEventCreate", bindings().CUevent_flags.CU_EVENT_DISABLE_TIMING.value)
    try:
        call("cuEventRecord", event, producer)
        call("cuStreamWaitEvent", stream, event, 0)
    finally:
        release("cuEventDestroy", event)
