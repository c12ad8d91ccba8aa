"""Runs the tasks of a sweep on a Dask cluster. Each task runs in a separate process there as well, which may be killed.

``distributed`` is imported here only. Requests and answers are JSON of declared shape: no part of a worker's answer is unpickled. Dask's
own messages are pickles all the same, so anyone who controls the scheduler controls its workers and its clients. Connect over TLS, with
certificates that only your machines have.

With one Dask worker a GPU, as dask-cuda starts them, every task uses the GPU that its worker shows it first: each of them has
its own GPU at the front of its CUDA_VISIBLE_DEVICES, which tasks inherit
(docs.rapids.ai, dask_cuda.LocalCUDACluster).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gemmgen.core.errors import EnvironmentMissing
from gemmgen.core.extras import install_command
from gemmgen.sweep.machine import Machine, code_version, describe
from gemmgen.sweep.messages import Member, decode_outcome, decode_task, encode_outcome, encode_task
from gemmgen.sweep.processes import START_SECONDS, Outcome, Task, Worker, wait_for
from gemmgen.sweep.records import Stage, SweepError

CONNECT_SECONDS = 20
_COUNT_SECONDS = 10.0
"""Time in which the number of workers is taken not to change."""
DESERTED_SECONDS = 300.0
"""Time that a sweep waits for a worker when there are none any more."""

DESCRIBE_MEMBER = "gemmgen.sweep.cluster:describe_member"

_idle: list[tuple[int, Worker]] = []
"""With the limit on their memory."""
_idle_lock = threading.Lock()


@dataclass(frozen=True)
class Certificates:
    """Files in PEM for a scheduler that is reached over TLS (distributed.dask.org, TLS/SSL)."""

    authority: str
    """Certificates of the authorities that may sign the scheduler's certificate; no other is accepted."""
    certificate: str
    """The certificate and key that this process shows."""
    key: str
    """The private key to it; it may be in the same file."""


def describe_member(request: tuple[str, Stage, str], enter: Callable[[Stage], None]) -> Member:
    """The machine of a worker, for a backend, a last stage and a kind of spec; called on it as a task."""
    machine = describe(request, enter)
    gpu = ""
    if machine.backend == "gpu":
        from gemmgen.runtime.cuda import list_gpus

        gpu = f"{socket.gethostname()} {list_gpus()[0].pci_bus_id}"
    return Member(machine, code_version(), gpu)


def common_machine(members: Mapping[str, Member], threads: Mapping[str, int], stage: Stage) -> Machine:
    """Common properties of the workers. ``threads`` says how many tasks each takes at once.

    Raises ``SweepError`` if results would depend on which one runs a point, or if two tasks would be timed on one GPU at once.
    """
    own = code_version()
    users: dict[str, str] = {}
    machines: dict[Machine, str] = {}
    for address, member in members.items():
        if member.code != own:
            raise SweepError(f"worker {address} runs gemmgen {member.code}, this is {own}: install the same everywhere")
        machines.setdefault(member.machine, address)
        if stage is Stage.BENCH:
            other = users.setdefault(member.gpu, address)
            if other != address or threads.get(address, 1) > 1:
                who = f"workers {other} and {address} use" if other != address else f"the threads of worker {address} use"
                raise SweepError(
                    f"{who} the same GPU ({member.gpu}), so that kernels would be timed while others run; start one worker of one "
                    "thread for each GPU, as dask cuda worker does"
                )
    if len(machines) > 1:
        (one, first), (other_machine, second) = list(machines.items())[:2]
        raise SweepError(f"the cluster's workers differ: {first} has {one}, {second} has {other_machine}; use one scheduler for each kind")
    return next(iter(machines))


def run_task(task: Task, memory_bytes: int = 0) -> Outcome:
    """Does one task in a killable process of this machine; called by a Dask worker. Never raises for errors of the task."""
    with _idle_lock:
        place = next((place for place, (limit, _) in enumerate(_idle) if limit == memory_bytes), None)
        worker = None if place is None else _idle.pop(place)[1]
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
            _idle.append((memory_bytes, worker))
    return outcome


def run_plain(text: str, memory_bytes: int = 0) -> str:
    """``run_task`` for a task as text, its outcome as text; called by a Dask worker."""
    task, kind = decode_task(text)
    outcome = run_task(task, memory_bytes)
    try:
        return encode_outcome(outcome, kind)
    except (SweepError, ValueError, TypeError, RecursionError) as error:  # the function's result is no plain data
        return encode_outcome(Outcome("raised", text=f"{task.function} gave no plain data: {error}"), kind)


class Cluster:
    """Implements ``engine.Executor`` with the workers of a Dask scheduler."""

    def __init__(self, address: str, memory_bytes: int = 0, certificates: Certificates | None = None) -> None:
        """``certificates`` are for addresses that begin with ``tls://``, and only for these.

        Raises ``EnvironmentMissing`` without distributed, ``SweepError`` if there is no scheduler or it has no workers."""
        try:
            import distributed
        except ImportError:
            raise EnvironmentMissing(
                f"a sweep on a cluster needs Dask's distributed, which is not installed; get it with: {install_command('cluster')}"
            ) from None
        self._address = address
        self._lost = f"--scheduler {address}: the scheduler is gone; run the same command again to continue"
        self._memory_bytes = memory_bytes
        if not re.fullmatch(r"((tcp|tls)://)?[^\s/]+:[0-9]{1,5}", address):
            raise SweepError(f"--scheduler {address!r}: expected the address of a Dask scheduler, such as tcp://host:8786")
        if address.startswith("tls://") != (certificates is not None):
            raise SweepError(f"--scheduler {address}: the certificates of TLS go with an address that begins with tls://, and it with them")
        try:
            self._client: Any = distributed.Client(
                address,
                timeout=CONNECT_SECONDS,
                set_as_default=False,
                security=None if certificates is None else _security(certificates),
                # Answers are text; any other form is an error, not an object.
                deserializers=["msgpack", "error"],
            )
        except (OSError, ValueError, TypeError, ImportError, TimeoutError) as error:
            raise SweepError(f"--scheduler {address}: there is no Dask scheduler that answers: {error}") from None
        self._threads, self._counted, self._seen = 0, 0.0, time.monotonic()
        self._running: dict[Any, Any] = {}
        self._finished: deque[Any] = deque()
        self._wakeup, self._wake = os.pipe()
        if not self._slots():
            self.close()
            raise SweepError(f"--scheduler {address}: the scheduler has no workers")

    def describe(self, backend: str, stage: Stage, kind: str) -> Machine:
        """Common properties of the cluster's machines. Raises ``SweepError`` if results would depend on which one runs a point."""
        task = Task(DESCRIBE_MEMBER, (backend, stage, kind), dict.fromkeys(Stage, START_SECONDS))
        answers: dict[str, Any] = self._client.run(run_plain, encode_task(task), self._memory_bytes, on_error="return")
        members = {}
        for address, answer in answers.items():
            try:
                outcome = decode_outcome(answer, task)
            except SweepError as error:
                said = answer if isinstance(answer, Exception) else error
                raise SweepError(f"worker {address} cannot run gemmgen ({said}): install the same gemmgen everywhere") from None
            if outcome.kind != "done":
                error_class = EnvironmentMissing if outcome.kind == "missing" else SweepError
                raise error_class(f"worker {address}: {outcome.text}")
            members[address] = outcome.value
        return common_machine(members, self._client.nthreads(), stage)

    @property
    def idle(self) -> int:
        """Twice as many tasks as there are threads are in flight, so that no worker waits for this process."""
        return max(0, 2 * self._slots() - len(self._running))

    def submit(self, key: object, task: Task) -> None:
        future = self._client.submit(run_plain, encode_task(task), self._memory_bytes, pure=False)
        self._running[future.key] = (key, future, task)
        future.add_done_callback(self._note)

    def waitables(self) -> list[object]:
        return [self._wakeup]

    def deadline(self) -> float:
        """Time of the next look for workers: a lost task is never heard of, and a queued one waits for them."""
        return time.monotonic() + _COUNT_SECONDS

    def collect(self) -> list[tuple[Any, Outcome]]:
        """Raises ``SweepError`` if the scheduler or all workers are gone: that is no fault of the points that they had."""
        self._require_cluster()
        ended = []
        while self._finished:
            name = self._finished.popleft()
            os.read(self._wakeup, 1)
            if name in self._running:
                key, future, task = self._running.pop(name)
                if future.status == "cancelled":  # not cancelled here: cancelled tasks are not among those that run
                    raise SweepError(self._lost)
                ended.append((key, _outcome(future, task)))
        return ended

    def retire(self) -> None:
        """Nothing: ``run_task`` ends its own processes."""

    def stop(self) -> None:
        """Cancels the tasks that are not done yet."""
        futures = [future for _, future, _ in self._running.values()]
        self._running.clear()
        with contextlib.suppress(Exception):  # a cluster that is gone cannot receive messages
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

    def _require_cluster(self) -> None:
        if self._client.status != "running":
            raise SweepError(self._lost)
        if not self._slots() and time.monotonic() > self._seen + DESERTED_SECONDS:
            raise SweepError(f"--scheduler {self._address}: no worker for {DESERTED_SECONDS:.0f} s; run the same command again to continue")

    def _slots(self) -> int:
        if time.monotonic() > self._counted + _COUNT_SECONDS or not self._threads:
            try:
                self._threads = sum(self._client.nthreads().values())
            except (OSError, TimeoutError) as error:
                raise SweepError(f"--scheduler {self._address}: the scheduler does not answer: {error}") from None
            self._counted = time.monotonic()
        if self._threads:
            self._seen = time.monotonic()
        return self._threads


def _security(certificates: Certificates) -> Any:
    from distributed.security import Security

    files = {"tls_ca_file": certificates.authority, "tls_client_cert": certificates.certificate, "tls_client_key": certificates.key}
    for file in files.values():
        if not os.path.isfile(file):
            raise SweepError(f"{file!r}: there is no such file of certificates")
    return Security(require_encryption=True, **files)


def _outcome(future: Any, task: Task) -> Outcome:
    """Outcome of a task, or its loss by the cluster."""
    try:
        return decode_outcome(future.result(timeout=30), task)
    except SweepError as error:
        return Outcome("died", text=f"the cluster's answer cannot be used: {error}")
    except Exception as error:
        return Outcome("died", text=f"the cluster could not run it: {type(error).__name__}: {error}")
