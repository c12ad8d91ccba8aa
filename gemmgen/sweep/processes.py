"""The pool of workers: starts them, gives them work, and replaces those that die or exceed a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import IO, TYPE_CHECKING, Any, Literal

from gemmgen.sweep.records import Stage, SweepError
from gemmgen.sweep.worker import kill_tree

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

START_SECONDS = 120.0
"""Time limit for a worker to start and to begin with its work."""

_WORKER = "from gemmgen.sweep.worker import main; main()"
GRACE_SECONDS = 0.2
"""Time that a worker past its deadline has to answer still: the clock may have gone on while the machine stood still."""
_QUOTED = 300
"""Longest quotation of a worker's output before it died, in characters."""
_QUOTED_BYTES = 10_000
"""Last bytes of its output, in which the quoted line is searched."""


@dataclass(frozen=True)
class Task:
    """Work for a worker: the function ``module:name``, called with ``payload`` and a function that is notified of stages."""

    function: str
    payload: Any
    limits: Mapping[Stage, float]
    """Seconds that each stage may take."""


@dataclass(frozen=True)
class Outcome:
    """End of a task: with a value, or with a text that says why not."""

    kind: Literal["done", "died", "expired", "raised", "memory", "mistake", "missing"]
    """``mistake`` and ``missing`` are errors of the user's or of this machine that hold for every task."""
    value: Any = None
    text: str = ""
    stage: Stage | None = None
    """Stage in which the process died or expired."""
    limit: float = 0.0
    seconds: float = 0.0
    """Spent in that stage."""


class Worker:
    """One worker process and the task that it works on."""

    def __init__(self, environment: Mapping[str, str], memory_bytes: int = 0) -> None:
        """``environment`` is added to this process's; ``memory_bytes`` limits the memory, 0 does not."""
        self.connection: Connection[Any, Any]
        self.connection, theirs = Pipe()
        lifeline, self._lifeline = os.pipe()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the worker
        try:
            # As gemmgen.runtime.cuda.backend does: no multiprocessing.Process, which runs the caller's main module again.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _WORKER, str(theirs.fileno()), str(lifeline), str(memory_bytes)],
                pass_fds=[theirs.fileno(), lifeline],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **environment},
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                start_new_session=True,
            )
        except OSError as error:
            for opened in (self._printed, self.connection, theirs):
                opened.close()
            for end in (lifeline, self._lifeline):
                os.close(end)
            raise SweepError(f"workers cannot be started: {sys.executable}: {error.strerror or error}") from None
        theirs.close()
        os.close(lifeline)
        self.stop = weakref.finalize(self, _end, self._process, self.connection, self._lifeline, self._printed)
        self.task: Task | None = None
        self._began = False
        self._stage: Stage | None = None
        self._since = 0.0
        self.deadline = 0.0
        self._grace = True

    @property
    def alive(self) -> bool:
        return self.stop.alive

    def submit(self, task: Task) -> Outcome | None:
        """Begins with ``task``; an outcome only if the worker is dead already."""
        self.task, self._stage, self._since, self._grace = task, None, time.monotonic(), True
        self.deadline = self._since + START_SECONDS
        self._printed.truncate(0)
        try:
            self.connection.send((task.function, task.payload))
        except OSError:
            return self._died()
        return None

    def receive(self) -> Outcome | None:
        """Takes a message that has arrived; the outcome, if it is the last one of the task."""
        try:
            kind, content = self.connection.recv()
        except (EOFError, OSError):
            return self._died()
        except Exception as error:  # a worker that writes nonsense into its connection is as good as dead
            self._kill()
            return Outcome("died", text=f"the worker's answer cannot be read: {error}", stage=self._stage)
        if kind == "stage" and self.task is not None:
            self._began, self._stage, self._since, self._grace = True, content, time.monotonic(), True
            self.deadline = self._since + self.task.limits[content]
            return None
        self.task = None
        return Outcome("done", value=content) if kind == "done" else Outcome(kind, text=content, stage=self._stage)

    def expire(self) -> Outcome | None:
        """Ends a worker that is past its deadline, unless this is the first time that it is."""
        if self._grace:
            self._grace, self.deadline = False, time.monotonic() + GRACE_SECONDS
            return None
        stage, spent = self._stage, time.monotonic() - self._since
        self._kill()
        if stage is None or self.task is None:
            return Outcome("died", text=f"the worker did not begin within {START_SECONDS:g} s and was ended")
        limit = self.task.limits[stage]
        return Outcome("expired", text=f"not done within {limit:g} s and ended", stage=stage, limit=limit, seconds=spent)

    def _died(self) -> Outcome:
        spent = time.monotonic() - self._since
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:  # it closed its connection, and continues
            code = None
        self._printed.seek(max(self._printed.seek(0, os.SEEK_END) - _QUOTED_BYTES, 0))
        lines = self._printed.read(_QUOTED_BYTES).decode(errors="replace").split("\n")
        self._kill()
        last = _last_words(lines)
        text = f"the worker {_how(code)}{f'; it said: {last}' if last else ''}"
        # One that was killed before it began says nothing about the next.
        if not self._began and self._stage is None and (code is None or code >= 0):
            raise SweepError(f"workers cannot be started: {text}")
        return Outcome("died", text=text, stage=self._stage, seconds=spent)

    def _kill(self) -> None:
        kill_tree(self._process.pid)
        self.stop()


def _last_words(lines: Sequence[str]) -> str:
    """The last line of a process's output; lines added by Python's faulthandler are skipped, because the line before says more."""
    added = next((place for place, line in enumerate(lines) if line.startswith("Fatal Python error: ")), None)
    said = [line.strip() for line in lines[:added] if line.strip()]
    if not said and added is not None:
        said = [lines[added].strip()]
    return said[-1][:_QUOTED] if said else ""


def _how(code: int | None) -> str:
    if code is None:
        return "closed its connection"
    if code >= 0:
        return f"ended with exit status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"died of {name}{', for lack of memory perhaps' if -code == signal.SIGKILL else ''}"


def _end(process: subprocess.Popen[bytes], connection: Connection[Any, Any], lifeline: int, printed: IO[bytes]) -> None:
    """Ends a worker for good: busy or idle, it dies when its lifeline is cut."""
    connection.close()
    printed.close()
    os.close(lifeline)
    try:
        process.wait(2.0)
    except subprocess.TimeoutExpired:
        kill_tree(process.pid)
        process.wait()


class Lane:
    """Workers that do the same kind of work, one for each of ``environments``, started when they are first needed."""

    def __init__(self, environments: Sequence[Mapping[str, str]], memory_bytes: int = 0) -> None:
        self._environments = list(environments)
        self._memory_bytes = memory_bytes
        self._workers: list[Worker | None] = [None] * len(self._environments)
        self._keys: list[Any] = [None] * len(self._environments)
        self._ended: list[tuple[Any, Outcome]] = []

    @property
    def idle(self) -> int:
        """Number of tasks that could begin now."""
        return self._keys.count(None)

    def submit(self, key: object, task: Task) -> None:
        """Gives ``task`` to an idle worker; its outcome will come with ``key``, which is not None."""
        free = [place for place, taken in enumerate(self._keys) if taken is None]
        place = next((place for place in free if (running := self._workers[place]) is not None and running.alive), free[0])
        worker = self._workers[place]
        if worker is None or not worker.alive:
            worker = self._workers[place] = Worker(self._environments[place], self._memory_bytes)
        self._keys[place] = key
        dead = worker.submit(task)
        if dead is not None:
            self._finish(place, dead)

    def waitables(self) -> list[object]:
        """Connection that becomes readable when something has happened."""
        return [worker.connection for worker in self._busy()]

    def deadline(self) -> float:
        """Time at which the next task is past its limit, in the terms of ``time.monotonic``."""
        return 0.0 if self._ended else min((worker.deadline for worker in self._busy()), default=float("inf"))

    def collect(self) -> list[tuple[Any, Outcome]]:
        """The tasks that have ended, with their keys."""
        for place, worker in enumerate(self._workers):
            if worker is None or self._keys[place] is None:
                continue
            outcome = None
            while outcome is None and worker.connection.poll():
                outcome = worker.receive()
            if outcome is None and time.monotonic() > worker.deadline:
                outcome = worker.expire()
            if outcome is not None:
                self._finish(place, outcome)
        ended, self._ended = self._ended, []
        return ended

    def retire(self) -> None:
        """Ends workers that have nothing to do; others take their place when they are needed."""
        for place, worker in enumerate(self._workers):
            if worker is not None and self._keys[place] is None:
                worker.stop()
                self._workers[place] = None

    def stop(self) -> None:
        """Kills all workers; their tasks have no outcome."""
        for place, worker in enumerate(self._workers):
            if worker is not None:
                worker.stop()
            self._workers[place] = self._keys[place] = None

    def _busy(self) -> Iterable[Worker]:
        return (worker for worker, key in zip(self._workers, self._keys, strict=True) if worker is not None and key is not None)

    def _finish(self, place: int, outcome: Outcome) -> None:
        self._ended.append((self._keys[place], outcome))
        worker, self._keys[place] = self._workers[place], None
        if worker is not None and (not worker.alive or outcome.kind == "memory"):
            worker.stop()
            self._workers[place] = None


def wait_for(waitables: Sequence[Any], deadline: float) -> None:
    """Waits until one of ``waitables`` is readable or the time is past ``deadline``."""
    left = max(0.0, deadline - time.monotonic()) + 0.001
    wait(waitables, None if left == float("inf") else left)
