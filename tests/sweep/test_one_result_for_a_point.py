"""A point has one result in the store, wherever and however often its worker dies; reports and ``--retry`` agree with it.

``GEMMGEN_KILLS=300`` kills workers at so many random moments under one worker, under four and on a Dask cluster, instead of at a few.
"""

from __future__ import annotations

import csv
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest
from dask_clusters import local_cluster
from waiting import PATIENCE

from gemmgen.sweep.cluster import Cluster
from gemmgen.sweep.engine import Engine, Executor, _point_key
from gemmgen.sweep.exports import EXPORTS
from gemmgen.sweep.records import PointResult, Stage, Status
from gemmgen.sweep.space import Point
from gemmgen.sweep.store import ResultStore

from .faults import MODULE, NOTES, ONCE
from .helpers import points, result, settings

KILLS = int(os.environ.get("GEMMGEN_KILLS", "0"))
WAYS = [f"{stage}_{deed}" for stage in (Stage.CHECK, Stage.COMPILE, Stage.VERIFY) for deed in ONCE]
DEEDS = {"worker_died": "kill", "time_limit": "timeout", "out_of_memory": "memory"}
LIMITS = {"check": 4.0, "compile": 1.0, "verify": 1.0}
"""Seconds. The first check of a worker imports its modules."""


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where workers note that they died once."""
    folder = tmp_path / "notes"
    folder.mkdir()
    monkeypatch.setenv(NOTES, str(folder))
    return folder


@dataclass(frozen=True)
class Sweep:
    """A sweep over labels that can be run again and again with one results file."""

    labels: tuple[str, ...]
    path: Path
    execute: str
    jobs: int = 2
    limits: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(("check", "compile", "verify"), PATIENCE))

    @property
    def points(self) -> list[Point]:
        return points(*self.labels)

    def run(self, retry: bool = False, cluster: Executor | None = None) -> tuple[list[PointResult], Engine]:
        """The results of all points, each of which must have one, and the engine after that."""
        given = settings(execute=f"{MODULE}:{self.execute}", jobs=self.jobs, retry=retry, limits=self.limits)
        with ResultStore(self.path) as store, Engine(given, store, cluster=cluster) as engine:
            found = engine.evaluate(self.points)
        assert None not in found
        return [one for one in found if one is not None], engine

    def require_agreement(self, found: list[PointResult]) -> None:
        """The file, the answers and an export have the same results, one for each point."""
        with ResultStore(self.path, read_only=True) as store:
            stored = store.all()
        assert Counter(one.axes["label"] for one in stored) == Counter(self.labels)
        assert {(one.digest, one.status) for one in stored} == {(one.digest, one.status) for one in found}
        table = self.path.with_suffix(".csv")
        EXPORTS["csv"](stored, table)
        rows = list(csv.DictReader(table.open()))
        assert Counter(row["status"] for row in rows) == Counter(str(one.status) for one in found)


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Sweep]:
    """Makes a sweep whose workers fail once where a label says so."""
    monkeypatch.setattr("gemmgen.sweep.engine.PREPARE", f"{MODULE}:prepare_once_badly")
    return lambda *labels: Sweep(("good", *labels), tmp_path / "results.sqlite", "execute_once_badly", limits=LIMITS)


def test_a_failed_point_is_replaced_by_its_later_success(sweep: Callable[..., Sweep]) -> None:
    ran = sweep(*WAYS)
    first, _ = ran.run()
    assert [one.failed for one in first] == [False, *[True] * len(WAYS)]
    assert {f"{one.stage}_{DEEDS[one.reason_code]}" for one in first[1:]} == set(WAYS)
    ran.require_agreement(first)

    again, engine = ran.run()
    assert ([one.digest for one in again], engine.reused) == ([one.digest for one in first], len(first))
    ran.require_agreement(again)

    repaired, _ = ran.run(retry=True)
    assert [one.status for one in repaired] == [Status.CORRECT] * len(first)
    ran.require_agreement(repaired)


def test_a_check_that_dies_does_not_hide_an_earlier_success(sweep: Callable[..., Sweep], notes: Path) -> None:
    ran = sweep("check_kill")
    (notes / "check_kill").touch()
    first, _ = ran.run()
    (notes / "check_kill").unlink()
    again, _ = ran.run(retry=True)
    assert [one.status for one in (*first, *again)] == [Status.CORRECT] * 4
    ran.require_agreement(again)


def test_a_failed_retry_stays_under_the_digest(sweep: Callable[..., Sweep], notes: Path) -> None:
    ran = sweep("verify_kill")
    first, _ = ran.run()
    moved = replace(ran, labels=("good", "verify_kill"))
    (notes / "verify_kill").unlink()
    again, _ = moved.run(retry=True)
    assert [one.digest for one in first] == [one.digest for one in again]
    moved.require_agreement(again)


def test_a_failure_that_comes_too_late_is_dropped(tmp_path: Path) -> None:
    """Two sweeps on one file: the other one finished the point meanwhile."""
    with ResultStore(tmp_path / "results.sqlite") as store:
        store.append(result("validated"), ["point"])
        store.append(result("point", status=Status.RUNTIME), ["point"])
        assert [one.digest for one in store.all()] == ["validated"]
        assert store.digest_of("trial", "point") == "validated"


def test_a_result_that_other_points_share_stays(tmp_path: Path) -> None:
    with ResultStore(tmp_path / "results.sqlite") as store:
        store.append(result("old"), ["one", "two"])
        store.append(result("new"), ["one"])
        assert [one.digest for one in store.all()] == ["old", "new"]
        store.append(result("new"), ["two"])
        assert [one.digest for one in store.all()] == ["new"]


def test_a_file_of_an_earlier_version_is_extended(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "results.sqlite"
    with ResultStore(path) as store:
        store.append(result("kept"))
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE points")
    with ResultStore(path, read_only=True) as store:
        assert len(store.all()) == 1
    with ResultStore(path) as store:
        store.append(result("more"), ["point"])
        assert [one.digest for one in store.all()] == ["kept", "more"]


def test_a_clock_that_goes_backwards_changes_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dates of results are for readers: the newest is the last that was written, and limits of time are those of another clock."""

    class Backwards(datetime):
        hours = 0

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            cls.hours += 1
            return datetime(2026, 1, 9, tzinfo=tz) - timedelta(hours=cls.hours)

    monkeypatch.setattr("gemmgen.sweep.engine.datetime", Backwards)
    monkeypatch.setattr(time, "time", lambda: 1e9 - 3600 * Backwards.hours)
    ran = Sweep(("good", "other"), tmp_path / "results.sqlite", "execute", jobs=1)
    first, _ = ran.run()
    again, engine = ran.run()
    assert ([one.date for one in again], engine.reused) == ([one.date for one in first], 2)
    with ResultStore(ran.path) as store:
        newest = replace(first[0], date="1970-01-01T00:00:00+00:00", reason="newest")
        store.append(newest)
        found = store.get(newest.digest)
        assert found is not None and found.reason == "newest"


def test_keys_of_points_differ_where_results_may() -> None:
    one, other = points("one", "two")
    compile_only, verified = settings("compile").conditions, settings("verify").conditions
    keys = [_point_key(one, verified), _point_key(other, verified), _point_key(one, compile_only), _point_key(one, verified)]
    assert len(set(keys)) == 3 and keys[0] == keys[3]


def test_workers_that_are_killed_as_they_start_cost_no_sweep(sweep: Callable[..., Sweep]) -> None:
    """The next one is started; a point that three of them leave is a failure like any other."""
    with killer(seed=1, kills=3, pause=(0.0, 0.0)) as killed:
        found, _ = sweep().run()
    assert killed and all(one.status in (Status.CORRECT, Status.RUNTIME) for one in found)


@contextmanager
def killer(seed: int, kills: int, pause: tuple[float, float]) -> Iterator[list[int]]:
    """Kills a random worker of this process's sweeps after each of ``kills`` random pauses; lists the killed."""
    generator, killed, over = random.Random(seed), [], threading.Event()

    def work() -> None:
        while len(killed) < kills and not over.is_set():
            time.sleep(generator.uniform(*pause))
            found = workers()
            if found:
                victim = generator.choice(found)
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def workers() -> list[int]:
    """The worker processes that this process or one of its children started."""
    parents: dict[int, int] = {}
    named: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                if fields[0] != b"Z" and b"gemmgen.sweep.worker import main" in (entry / "cmdline").read_bytes():
                    named.add(int(entry.name))

    def ours(process: int) -> bool:
        while process > 1:
            if process == os.getpid():
                return True
            process = parents.get(process, 0)
        return False

    return sorted(filter(ours, named))


@pytest.mark.parametrize("jobs", [1, 4, pytest.param(0, id="dask")] if KILLS else [2])
def test_kills_at_random_moments_leave_one_result_for_each_point(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep is run, with ``--retry``, until all kills have been made; then once more until nothing fails."""
    monkeypatch.setattr("gemmgen.sweep.engine.PREPARE", f"{MODULE}:prepare_slowly")
    kills = KILLS or 2
    ran = Sweep(tuple(f"point{number}" for number in range(40 if KILLS else 8)), tmp_path / "results.sqlite", "execute_slowly", jobs or 2)

    @contextmanager
    def place() -> Iterator[Executor | None]:
        if jobs:
            yield None
            return
        with local_cluster(2) as local:
            cluster = Cluster(local.scheduler_address)
            yield cluster
            cluster.close()

    died = 0
    with place() as cluster:
        with killer(seed=jobs, kills=kills, pause=(0.05, 1.5)) as killed:
            while len(killed) < kills:
                found, _ = ran.run(retry=True, cluster=cluster)
                died += sum(one.reason_code == "worker_died" for one in found)
                ran.require_agreement(found)
                if all(not one.failed for one in found) and len(killed) < kills:
                    forget(ran)
        known, engine = ran.run(cluster=cluster)
        assert engine.reused + engine.duplicates == len(ran.labels)
        ran.require_agreement(known)
        found, _ = ran.run(retry=True, cluster=cluster)
        ran.require_agreement(found)
        assert [one.status for one in found] == [Status.CORRECT] * len(ran.labels)
    assert len(killed) == kills
    if KILLS:
        print(f"{kills} kills, {died} points whose worker died")


def forget(ran: Sweep) -> None:
    """Begins again with an empty file, so that there is work during all kills."""
    for path in ran.path.parent.glob(f"{ran.path.name}*"):
        path.unlink()
