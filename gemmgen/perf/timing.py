"""Device time of enqueued work: CUDA graphs of many launches, replayed in turns between events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from gemmgen.runtime.cuda.driver import bindings, call, check, release

Replay = Callable[[], None]
"""Enqueues one graph on the stream it was made for."""

_POLL_SECONDS = 0.002


def new_stream(cleanup: ExitStack) -> int:
    """The handle of a stream of the current context that does not wait for the default stream."""
    stream = int(call("cuStreamCreate", bindings().CUstream_flags.CU_STREAM_NON_BLOCKING.value))
    cleanup.callback(release, "cuStreamDestroy", stream)
    return stream


def capture(cleanup: ExitStack, stream: int, enqueue: Callable[[], None]) -> Replay:
    """A graph of the work that ``enqueue`` puts on ``stream``."""
    driver = bindings()
    call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    try:
        enqueue()
    except BaseException:
        driver.cuStreamEndCapture(stream)
        raise
    graph = call("cuStreamEndCapture", stream)
    try:
        return instantiate(cleanup, stream, graph)
    finally:
        release("cuGraphDestroy", graph)


def instantiate(cleanup: ExitStack, stream: int, graph: object) -> Replay:
    """A graph as something that can be replayed on ``stream``; the graph may be destroyed afterwards."""
    driver = bindings()
    executable = call("cuGraphInstantiate", graph, 0)
    cleanup.callback(release, "cuGraphExecDestroy", executable)
    return lambda: check(driver, driver.cuGraphLaunch(executable, stream))


def replay_seconds(stream: int, replays: Sequence[Replay], rounds: int, meanwhile: Callable[[], None]) -> list[list[float]]:
    """Device seconds of each replay, by contestant and round; the contestants take turns in every round.

    ``meanwhile`` is called again and again while the device works.
    """
    driver = bindings()
    with ExitStack() as cleanup:
        events = [[(_event(cleanup), _event(cleanup)) for _ in range(rounds)] for _ in replays]
        for turn in range(rounds):
            for contestant, replay in enumerate(replays):
                start, end = events[contestant][turn]
                check(driver, driver.cuEventRecord(start, stream))
                replay()
                check(driver, driver.cuEventRecord(end, stream))
        last = events[-1][-1][1]
        while driver.cuEventQuery(last)[0] == driver.CUresult.CUDA_ERROR_NOT_READY:
            meanwhile()
            time.sleep(_POLL_SECONDS)
        call("cuEventSynchronize", last)
        return [[call("cuEventElapsedTime", start, end) * 1e-3 for start, end in pairs] for pairs in events]


def _event(cleanup: ExitStack) -> Any:
    event = call("cuEventCreate", bindings().CUevent_flags.CU_EVENT_DEFAULT.value)
    cleanup.callback(release, "cuEventDestroy", event)
    return event
