"""Takes points through their stages in worker processes, and stores every result at once."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from gemmgen.core.cache import cache_key
from gemmgen.core.errors import EnvironmentMissing
from gemmgen.runtime.targets import PROCESSOR
from gemmgen.sweep.evaluation import Conditions, Ending, Prepared
from gemmgen.sweep.file import Limits
from gemmgen.sweep.machine import code_version
from gemmgen.sweep.processes import Lane, Outcome, Task, wait_for
from gemmgen.sweep.records import PointResult, Stage, Status, SweepError

if TYPE_CHECKING:
    from gemmgen.sweep.space import Point
    from gemmgen.sweep.store import ResultStore

PREPARE = "gemmgen.sweep.evaluation:prepare"
EXECUTE = "gemmgen.sweep.evaluation:execute"
BACKLOG = 32
"""Points that may wait for a GPU while others are compiled."""
ATTEMPTS = 3
"""Number of times that a point is given to a worker that is found dead before it begins."""


class Executor(Protocol):
    """The place in which tasks run: ``processes.Lane`` on this machine, or a cluster."""

    @property
    def idle(self) -> int: ...
    def submit(self, key: object, task: Task) -> None: ...
    def collect(self) -> list[tuple[Any, Outcome]]: ...
    def waitables(self) -> list[object]: ...
    def deadline(self) -> float: ...
    def retire(self) -> None: ...
    def stop(self) -> None: ...


@dataclass(frozen=True)
class Settings:
    """Settings of an engine; none of it changes a result that is ``correct``."""

    conditions: Conditions
    limits: Limits = field(default_factory=Limits)
    jobs: int = 0
    """Workers for checking, compiling and emulating; 0: one for each CPU that this process may use. ``processes`` is how many there are."""
    gpus: tuple[Mapping[str, str], ...] = ()
    """For each GPU the environment of its worker, which sees no other."""
    retry: bool = False
    """Run points again whose known result is ``timeout`` or ``runtime``."""
    check_only: bool = False
    """Points end once they are checked, under the digest that their result would have."""
    execute: str = EXECUTE
    """The function, ``module:name``, that takes an accepted point through its stages."""

    @property
    def timed_alone(self) -> bool:
        """True if points are timed on the processors that other points would use."""
        return self.conditions.backend == PROCESSOR.name and self.conditions.stage is Stage.BENCH

    @property
    def processes(self) -> int:
        """Number of workers beside those of the GPUs."""
        return 1 if self.timed_alone else self.jobs or len(os.sched_getaffinity(0))


Step = tuple[Executor, tuple[Stage, ...]]
"""Stages that one task takes a point through, and where."""


@dataclass
class _Job:
    point: Point
    place: int
    """In the list of results."""
    key: str
    """Digest of the point before it is checked. Its result is stored under this one if no check ends."""
    prepared: Prepared | None = None
    ending: Ending = field(default_factory=lambda: Ending(Stage.CHECK, Status.CORRECT))
    steps: list[Step] = field(default_factory=list)
    """Work that is left."""
    attempts: int = 0
    followers: list[_Job] = field(default_factory=list)
    """Other points that turned out to be the same."""

    @property
    def kernel_step(self) -> tuple[str, tuple[Stage, ...]]:
        """Key of its next step, unless that is timed: all problems of a kernel share it."""
        assert self.prepared is not None
        return self.prepared.kernel_digest, self.steps[0][1]


Listener = Callable[[PointResult, bool], None]
"""Called with each result, and whether it was known before."""


class Engine:
    """Evaluates points, on this machine or a cluster, and keeps their results. A context manager: its end ends the workers.

    A point whose result is in ``store`` is not run again; a new result is in the store before ``listener`` hears of it.
    """

    def __init__(
        self, settings: Settings, store: ResultStore | None = None, listener: Listener | None = None, cluster: Executor | None = None
    ) -> None:
        """``cluster`` takes the place of this machine for everything but checking."""
        self.settings = settings
        self.results: dict[str, PointResult] = {}
        """Every distinct result so far, by digest."""
        self.duplicates = 0
        """Points that were the same as an earlier one."""
        self.reused = 0
        """Points whose result was known."""
        self.interrupted = False
        """True if the user stopped an evaluation."""
        self._store = store
        self._listener = listener
        memory = int((settings.limits.memory_gib or 0) * 2**30) or _machine_memory()
        quiet = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        self._cpu: Executor = Lane([{} if settings.timed_alone else quiet] * settings.processes, memory)
        self._gpu: Executor | None = Lane(settings.gpus, memory) if settings.gpus else None
        self._cluster = cluster
        self._kernel_steps: dict[tuple[str, tuple[Stage, ...]], Ending] = {}
        self._waiting: dict[tuple[str, tuple[Stage, ...]], list[_Job]] = {}
        self._queues: dict[int, deque[_Job]] = {id(lane): deque() for lane in self._lanes()}
        self._running: dict[str, _Job] = {}
        self._answers: dict[int, PointResult] = {}
        self._taken = self._open = 0

    def evaluate(self, points: Iterable[Point]) -> list[PointResult | None]:
        """The results of ``points``, in their order; may be called again and again, while the workers stay.

        A point that fails, hangs or kills its worker has a result that says so. None stands for points that were not
        finished because the user pressed Ctrl-C (``interrupted``). Raises ``SweepError`` and ``EnvironmentMissing`` for errors
        of all points: a constraint that cannot be evaluated, a missing compiler.
        """
        self._answers, self._taken = {}, 0
        try:
            self._run(enumerate(points))
        except KeyboardInterrupt:
            self.interrupted = True
            self.stop()
        except BaseException:
            self.stop()
            raise
        count = len(points) if isinstance(points, Sized) else self._taken
        return [self._answers.get(place) for place in range(count)]

    def stop(self) -> None:
        """Kills all workers and forgets their tasks."""
        for lane in self._lanes():
            lane.stop()
            self._queues[id(lane)].clear()
        self._running.clear()
        self._waiting.clear()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _lanes(self) -> list[Executor]:
        return [lane for lane in (self._cpu, self._gpu, self._cluster) if lane is not None]

    def _run(self, source: Iterator[tuple[int, Point]]) -> None:
        """Takes points from ``source`` as workers become free, until all are done."""
        exhausted, self._open = False, 0
        while True:
            self._begin()
            while not exhausted and self._cpu.idle and self._has_room():
                following = next(source, None)
                if following is None:
                    exhausted = True
                    break
                self._taken += 1
                self._open += 1
                self._accept(_Job(following[1], following[0], _point_key(following[1], self.settings.conditions)))
            if exhausted and not self._open:
                return
            lanes = self._lanes()
            wait_for([one for lane in lanes for one in lane.waitables()], min(lane.deadline() for lane in lanes))
            for lane in lanes:
                for job, outcome in lane.collect():
                    self._take(lane, job, outcome)

    def _accept(self, job: _Job) -> None:
        """Begins with a point, unless it is known that its check does not end."""
        if job.key in self.results:
            self.duplicates += 1
            self._answer(job, self.results[job.key])
        elif (known := self._known(job.key, job.point)) is not None:
            self._reuse(job, known)
        else:
            self._submit(self._cpu, job)

    def _has_room(self) -> bool:
        return all(len(queue) < BACKLOG for queue in self._queues.values())

    def _begin(self) -> None:
        """Gives idle workers the queued tasks. Compilation does not run ahead of a GPU that has enough to do."""
        for lane in self._lanes():
            queue = self._queues[id(lane)]
            ahead = lane is self._cpu and any(len(self._queues[id(other)]) >= BACKLOG for other in self._lanes() if other is not lane)
            while queue and lane.idle and not ahead:
                self._submit(lane, queue.popleft())

    def _submit(self, lane: Executor, job: _Job) -> None:
        job.attempts += 1
        limits = {stage: self.settings.limits.of(stage) for stage in Stage}
        conditions = self.settings.conditions
        if job.prepared is None:
            lane.submit(job, Task(PREPARE, (job.point, conditions), limits))
        else:
            lane.submit(job, Task(self.settings.execute, (job.prepared, conditions, job.steps[0][1]), limits))

    def _take(self, lane: Executor, job: _Job, outcome: Outcome) -> None:
        """Consequence of a task's outcome."""
        if outcome.kind == "mistake":
            raise SweepError(outcome.text)
        if outcome.kind == "missing":
            raise EnvironmentMissing(outcome.text)
        if outcome.kind == "died" and outcome.stage is None and job.attempts < ATTEMPTS:
            self._queues[id(lane)].appendleft(job)
            return
        job.attempts = 0
        if job.prepared is None:
            if outcome.kind == "done":
                self._take_prepared(job, outcome.value)
            else:
                known = self._store.digest_of(job.point.sweep, job.key) if self._store is not None else None
                self._take_prepared(job, _unprepared(job.point, known or job.key, _ending_of(outcome, Stage.CHECK)))
            return
        ending = outcome.value if outcome.kind == "done" else _ending_of(outcome, job.steps[0][1][0])
        if ending.context_lost:
            lane.retire()
        waiting = self._waiting.pop(job.kernel_step, None)
        if waiting is not None:
            self._kernel_steps[job.kernel_step] = replace(ending, seconds={})
        self._go_on(job, ending)
        for sibling in waiting or []:
            self._go_on(sibling, replace(ending, seconds={}))

    def _take_prepared(self, job: _Job, prepared: Prepared) -> None:
        """A checked point: it is the same as another, its result is known, it was rejected, or it continues."""
        job.prepared, job.ending = prepared, prepared.ending
        if prepared.digest in self._running:
            self.duplicates += 1
            self._running[prepared.digest].followers.append(job)
        elif prepared.digest in self.results:
            self.duplicates += 1
            if self._store is not None:
                self._store.assign(job.point.sweep, job.key, prepared.digest)
            self._answer(job, self.results[prepared.digest])
        elif (known := self._known(prepared.digest, job.point)) is not None:
            self._reuse(job, known)
        else:
            self._running[prepared.digest] = job
            go_on = not self.settings.check_only and prepared.ending.status is Status.CORRECT
            job.steps = self._steps() if go_on else []
            self._enqueue(job)

    def _steps(self) -> list[Step]:
        """Compiling needs no GPU; stages that do come after it. On a cluster, a worker does all but the timing at once."""
        last = self.settings.conditions.stage
        wanted = [stage for stage in Stage if Stage.CHECK.number < stage.number <= last.number]
        untimed = tuple(stage for stage in wanted if stage is not Stage.BENCH)
        timed: tuple[Stage, ...] = (Stage.BENCH,) if Stage.BENCH in wanted else ()
        runs_on = self._cluster or (self._gpu if self.settings.conditions.backend == "gpu" else None) or self._cpu
        if runs_on is self._gpu and runs_on is not self._cpu:
            steps = [(self._cpu, untimed[:1]), (runs_on, untimed[1:]), (runs_on, timed)]
        else:
            steps = [(runs_on, untimed), (runs_on, timed)]
        return [(lane, stages) for lane, stages in steps if stages]

    def _enqueue(self, job: _Job) -> None:
        """The next step of a point, unless another problem of the same kernel takes it or has taken it."""
        if not job.steps:
            self._finish(job)
        elif Stage.BENCH in job.steps[0][1]:
            self._queues[id(job.steps[0][0])].append(job)
        elif job.kernel_step in self._kernel_steps:
            self._go_on(job, self._kernel_steps[job.kernel_step])
        elif job.kernel_step in self._waiting:
            self._waiting[job.kernel_step].append(job)
        else:
            self._waiting[job.kernel_step] = []
            self._queues[id(job.steps[0][0])].append(job)

    def _go_on(self, job: _Job, ending: Ending) -> None:
        """Adds the ending of a step; the next one follows if it went well."""
        before = job.ending
        job.ending = replace(
            ending,
            metrics=before.metrics | ending.metrics,
            seconds=before.seconds | ending.seconds,
            cases=before.cases + ending.cases,
        )
        job.steps.pop(0)
        if ending.status is not Status.CORRECT:
            job.steps.clear()
        self._enqueue(job)

    def _known(self, digest: str, point: Point) -> PointResult | None:
        """The stored result of a point, under this sweep's name; None if there is none that holds."""
        stored = self._store.get(digest, point.sweep) or self._store.get(digest) if self._store is not None else None
        if stored is None or (self.settings.retry and stored.status in (Status.TIMEOUT, Status.RUNTIME)):
            return None
        if stored.status is Status.TIMEOUT and stored.metrics.get("limit_seconds", 0.0) < self.settings.limits.of(stored.stage):
            return None
        own = replace(stored, sweep=point.sweep, axes=point.axes)
        if own != stored and self._store is not None:
            self._store.append(own)
        return own

    def _reuse(self, job: _Job, known: PointResult) -> None:
        """Answers a point with its stored result."""
        self.reused += 1
        self.results[known.digest] = known
        if self._store is not None:
            self._store.assign(job.point.sweep, job.key, known.digest)
        self._answer(job, known)
        if self._listener is not None:
            self._listener(known, True)

    def _answer(self, job: _Job, result: PointResult) -> None:
        self._answers[job.place] = result if result.axes == job.point.axes else replace(result, axes=job.point.axes)
        self._open -= 1

    def _finish(self, job: _Job) -> None:
        """Keeps the result of a point, and notifies its waiters."""
        assert job.prepared is not None
        result = _result(job.point, job.prepared, job.ending, self.settings.conditions)
        if self._store is not None:
            self._store.append(result, [one.key for one in (job, *job.followers)])
        self._running.pop(result.digest, None)
        self.results[result.digest] = result
        for one in (job, *job.followers):
            self._answer(one, result)
        if self._listener is not None:
            self._listener(result, False)


def _result(point: Point, prepared: Prepared, ending: Ending, conditions: Conditions) -> PointResult:
    ran = ending.stage.number >= Stage.VERIFY.number
    return PointResult(
        digest=prepared.digest,
        sweep=point.sweep,
        kind=prepared.kind,
        instance=prepared.instance,
        spec=prepared.spec,
        axes=point.axes,
        problem=prepared.problem,
        architecture=prepared.architecture,
        device=conditions.device if ran else "",
        backend=conditions.backend if ran else "",
        compiler=conditions.compiler if ending.stage is not Stage.CHECK else "",
        stage=ending.stage,
        status=ending.status,
        reason=ending.reason,
        reason_code=ending.reason_code,
        metrics=ending.metrics,
        seconds={stage: round(spent, 6) for stage, spent in ending.seconds.items()},
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        cases=ending.cases,
    )


def _ending_of(outcome: Outcome, first: Stage) -> Ending:
    """The end of a point whose task, which begins with the stage ``first``, brought no value."""
    stage = outcome.stage or first
    seconds = {str(stage): outcome.seconds} if outcome.seconds else {}
    match outcome.kind:
        case "expired":
            return Ending(stage, Status.TIMEOUT, outcome.text, "time_limit", {"limit_seconds": outcome.limit}, seconds)
        case "died":
            return Ending(stage, Status.RUNTIME, outcome.text, "worker_died", seconds=seconds)
        case "memory":
            return Ending(stage, Status.RUNTIME, outcome.text, "out_of_memory", seconds=seconds)
    return Ending(stage, Status.RUNTIME, outcome.text, "exception", seconds=seconds)


def _point_key(point: Point, conditions: Conditions) -> str:
    """Digest of a point that is not checked: of its fields as they were given, the code and all conditions."""
    content = [point.fields, point.sizes, point.architecture, point.axes if point.mistake else None, asdict(conditions)]
    return cache_key("sweep point not checked", code_version(), json.dumps(content, sort_keys=True, default=str))


def _unprepared(point: Point, digest: str, ending: Ending) -> Prepared:
    """Record of a point whose check did not end."""
    kind = point.fields.get("kind")
    return Prepared(digest, digest, kind if isinstance(kind, str) else "", "", point.fields, {}, point.architecture or "", ending)


def _machine_memory() -> int:
    """Bytes of memory of this machine; 0 if it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
