"""Device time of calls of a vendor's library, by which the fastest of its algorithms is found."""

from __future__ import annotations

from collections.abc import Callable

from gemmgen.kernels.family import Peer

LONG_MILLISECONDS = 1.0
"""A launch that takes longer is timed once."""
TRIAL_LAUNCHES = 10
"""Launches by which a short one is timed."""


def milliseconds(run: Callable[[int], object], sets: int = 1) -> float:
    """Device time of ``run(index)`` on torch's current stream, a mean over at least one launch for each of ``sets`` sets of arrays.

    Short launches are replayed from a CUDA graph, so that the time to enqueue them does not count.
    """
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed(work: Callable[[], object]) -> float:
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    run(0)
    once = timed(lambda: run(0))
    if once > LONG_MILLISECONDS:
        return once
    launches = max(sets, TRIAL_LAUNCHES)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for launch in range(launches):
            run(launch % sets)
    graph.replay()
    return timed(graph.replay) / launches


def on_any_set(peer: Peer) -> Callable[[int], None]:
    """A peer's call, whichever set of arrays is asked for."""

    def run(index: int) -> None:
        peer.run()

    return run
