"""The same sweep on a Dask cluster: skipped where distributed is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemmgen.errors import EnvironmentMissing
from gemmgen.sweep.cluster import Cluster, run_task
from gemmgen.sweep.engine import Engine
from gemmgen.sweep.processes import Task
from gemmgen.sweep.records import Stage, SweepError

from .helpers import points, settings


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as local:
        yield local.scheduler_address


@pytest.fixture
def cluster(address: str) -> Iterator[Cluster]:
    opened = Cluster(address)
    yield opened
    opened.close()


def test_points_end_on_a_cluster_as_they_do_here(cluster: Cluster) -> None:
    labels = ("one", "hang", "segfault", "stumble", "two", "wrong")
    with Engine(settings(limits={"verify": 1.0}), cluster=cluster) as engine:
        there = engine.evaluate(points(*labels))
    with Engine(settings(limits={"verify": 1.0})) as engine:
        here = engine.evaluate(points(*labels))
    ends = [(one.status, one.reason_code, one.stage) for one in there if one]
    assert ends == [(one.status, one.reason_code, one.stage) for one in here if one]
    assert [status for status, _, _ in ends] == ["correct", "timeout", "runtime", "runtime", "correct", "correct"]


def test_a_real_kernel_is_verified_on_a_cluster(cluster: Cluster) -> None:
    machine = cluster.describe("emulator", Stage.VERIFY)
    assert machine.backend == "emulator" and machine.compiler.startswith("NVRTC")
    with Engine(settings(execute="gemmgen.sweep.point:execute"), cluster=cluster) as engine:
        (found,) = engine.evaluate(points("one"))
    assert found is not None and found.status == "correct" and found.metrics["cases"] > 10


def test_what_the_clusters_machines_lack_is_told(cluster: Cluster) -> None:
    with pytest.raises((EnvironmentMissing, SweepError), match=r"worker tcp://.*emulator"):
        cluster.describe("emulator", Stage.BENCH)


def test_a_scheduler_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("gemmgen.sweep.cluster.CONNECT_SECONDS", 1)
    for address in ("tcp://127.0.0.1:9", "nonsense://x", "tcp://"):
        with pytest.raises(SweepError, match="no Dask scheduler"):
            Cluster(address)


def test_without_distributed_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(EnvironmentMissing, match=r"gemmgen\[cluster\]"):
        Cluster("tcp://127.0.0.1:9")


def test_a_task_is_done_in_a_process_that_may_die(tmp_path: Path) -> None:
    """What a Dask worker calls, without Dask."""
    limits = dict.fromkeys(Stage, 5.0)
    outcomes = [run_task(Task(f"sweep.test_cluster:{name}", None, limits)) for name in ("work", "die", "work")]
    assert [outcome.kind for outcome in outcomes] == ["done", "died", "done"]


def work(payload: Any, enter: Any) -> str:
    enter(Stage.CHECK)
    return "done"


def die(payload: Any, enter: Any) -> None:
    import os

    enter(Stage.VERIFY)
    os.abort()
