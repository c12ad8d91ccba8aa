"""Preparation of a measurement: its cases are compiled in several processes, so that their code is in the cache."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from typing import Any


def in_processes(work: Callable[..., None], chosen: Sequence[Any], processes: int, seconds: float, *arguments: Any) -> None:
    """Divides cases among processes, each of which calls ``work(cases, until, *arguments)``; the first cases are begun first. Processes
    that still run 5 seconds after the time are ended."""
    until = time.time() + seconds
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=work, args=(chosen[index::processes], until, *arguments)) for index in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join(max(0.0, until + 5 - time.time()))
        if process.is_alive():
            process.kill()
