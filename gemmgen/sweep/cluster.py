"""Runs the tasks of a sweep on a Dask cluster. Each is done in a process of its own there as well, which may be killed.

``distributed`` is imported here only. With one Dask worker a GPU, as dask-cuda starts them, every task uses the GPU that its
worker shows it first.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import Any

from gemmgen.errors import EnvironmentMissing
from gemmgen.sweep.machine import DESCRIBE, Machine
from gemmgen.sweep.processes import START_SECONDS, Outcome, Task, Worker, wait_for
from gemmgen.sweep.records import Stage, SweepError

CONNECT_SECONDS = 20
_COUNT_SECONDS = 10.0
"""How long the number of workers is taken not to change."""

_idle: list[Worker] = []
_idle_lock = threading.Lock()


def run_task(task: Task, memory_bytes: int = 0) -> Outcome:
    """Does one task in a killable process of this machine; called by a Dask worker. Never raises for what the task does."""
    with _idle_lock:
        worker = _idle.pop() if _idle else None
    try:
        if worker is None or not worker.alive:
            worker = Worker({}, memory_bytes)
        outcome = worker.submit(task)
        while outcome is None:
            wait_for([worker.connection], worker.deadline)
            if worker.connection.poll():
                outcome = worker.receive()
            elif time.monotonic() > worker.deadline:
                outcome = worker.expire()
    except SweepError as error:
        return Outcome("mistake", text=str(error))
    except BaseException:
        if worker is not None:
            worker.stop()
        raise
    if not worker.alive or outcome.kind == "memory" or getattr(outcome.value, "context_lost", False):
        worker.stop()
    else:
        with _idle_lock:
            _idle.append(worker)
    return outcome


class Cluster:
    """Implements ``engine.Executor`` with the workers of a Dask scheduler."""

    def __init__(self, address: str, memory_bytes: int = 0) -> None:
        """Raises ``EnvironmentMissing`` without distributed, ``SweepError`` if there is no scheduler or it has no workers."""
        try:
            import distributed
        except ImportError:
            raise EnvironmentMissing(
                "a sweep on a cluster needs Dask's distributed, which is not installed; get it with: pip install 'gemmgen[cluster]'"
            ) from None
        self._address = address
        self._memory_bytes = memory_bytes
        try:
            self._client: Any = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TypeError, ImportError, TimeoutError) as error:
            raise SweepError(f"--scheduler {address}: there is no Dask scheduler that answers: {error}") from None
        self._threads, self._counted = 0, 0.0
        self._running: dict[Any, Any] = {}
        self._finished: deque[Any] = deque()
        self._wakeup, self._wake = os.pipe()
        if not self._slots():
            self.stop()
            raise SweepError(f"--scheduler {address}: the scheduler has no workers")

    def describe(self, backend: str, stage: Stage) -> Machine:
        """What the cluster's machines have in common. Raises ``SweepError`` if results would depend on which one runs a point."""
        task = Task(DESCRIBE, (backend, stage), dict.fromkeys(Stage, START_SECONDS))
        found: dict[str, Outcome] = self._client.run(run_task, task)
        for address, outcome in found.items():
            if outcome.kind != "done":
                kind = EnvironmentMissing if outcome.kind == "missing" else SweepError
                raise kind(f"worker {address}: {outcome.text}")
        machines = {outcome.value: address for address, outcome in found.items()}
        if len(machines) > 1:
            (one, first), (other, second) = list(machines.items())[:2]
            raise SweepError(f"the cluster's workers differ: {first} has {one}, {second} has {other}; use one scheduler for each kind")
        machine: Machine = next(iter(machines))
        return machine

    @property
    def idle(self) -> int:
        """Twice as many tasks as there are threads are on their way, so that no worker waits for this process."""
        return max(0, 2 * self._slots() - len(self._running))

    def submit(self, key: Any, task: Task) -> None:
        future = self._client.submit(run_task, task, self._memory_bytes, pure=False)
        self._running[future.key] = (key, future)
        future.add_done_callback(self._note)

    def waitables(self) -> list[Any]:
        return [self._wakeup]

    def deadline(self) -> float:
        return float("inf")

    def collect(self) -> list[tuple[Any, Outcome]]:
        ended = []
        while self._finished:
            name = self._finished.popleft()
            os.read(self._wakeup, 1)
            if name in self._running:
                key, future = self._running.pop(name)
                ended.append((key, _outcome(future)))
        return ended

    def retire(self) -> None:
        """Nothing: ``run_task`` ends its own processes."""

    def stop(self) -> None:
        """Takes back what is not done yet."""
        futures = [future for _, future in self._running.values()]
        self._running.clear()
        with contextlib.suppress(Exception):  # a cluster that is gone cannot be told anything
            self._client.cancel(futures, force=True)

    def close(self) -> None:
        """Ends the connection."""
        self.stop()
        with contextlib.suppress(Exception):
            self._client.close()

    def _note(self, future: Any) -> None:
        """Called in a thread of the client's."""
        self._finished.append(future.key)
        os.write(self._wake, b".")

    def _slots(self) -> int:
        if time.monotonic() > self._counted + _COUNT_SECONDS or not self._threads:
            self._threads = sum(self._client.nthreads().values())
            self._counted = time.monotonic()
        return self._threads


def _outcome(future: Any) -> Outcome:
    """What a task came to, or how the cluster lost it."""
    try:
        value = future.result(timeout=30)
    except Exception as error:
        return Outcome("died", text=f"the cluster could not run it: {type(error).__name__}: {error}")
    return value if isinstance(value, Outcome) else Outcome("died", text=f"the cluster answered {value!r}")
