"""Runs tasks in parallel processes; a task's exception is returned in place of its result."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from gemmgen.core.semaphores import has_semaphores

Result = TypeVar("Result")


def cpus() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def run_tasks(
    function: Callable[..., Result], tasks: Sequence[tuple[object, ...]], jobs: int, *, each: int | None = None
) -> Iterator[tuple[int, Result | Exception]]:
    """Calls ``function(*task)`` for every task; yields the task's index and the result, or the error, as they are done.

    With more than one job the calls take place in separate processes, so that function, tasks and results must pickle. They
    are ended when the caller stops early, and replaced by new ones after ``each`` tasks. Where processes cannot share locks, the calls
    take place in this one.
    """
    if min(jobs, len(tasks)) <= 1 or not has_semaphores():
        for index, task in enumerate(tasks):
            try:
                yield index, function(*task)
            except Exception as failure:
                yield index, failure
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    # Spawned, because the compiler's library, once loaded, need not survive a fork.
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), get_context("spawn"), initializer=_begin, max_tasks_per_child=each)
    try:
        futures = {pool.submit(function, *task): index for index, task in enumerate(tasks)}
        for future in as_completed(futures):
            error = future.exception()
            if isinstance(error, Exception):
                yield futures[future], error
            else:
                yield futures[future], future.result()
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """An interrupt at the keyboard ends the parent, which ends its workers: they say nothing. Each has one CPU to itself, so
    that NumPy, which is loaded later, must not start threads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
