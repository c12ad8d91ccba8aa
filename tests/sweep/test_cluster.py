"""The same sweep on a Dask cluster: skipped where distributed is not installed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from dask_clusters import local_cluster

from gemmgen.cli import cli
from gemmgen.core.errors import EnvironmentMissing
from gemmgen.runtime.cuda import gpu_available, list_gpus
from gemmgen.sweep.cluster import Cluster, Member, common_machine, describe_member, run_task
from gemmgen.sweep.engine import Engine
from gemmgen.sweep.machine import Machine, code_version
from gemmgen.sweep.processes import Task
from gemmgen.sweep.records import PointResult, Stage, SweepError

from .helpers import SPEC, points, settings


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with local_cluster(2, processes=True) as local:
        yield local.scheduler_address


@pytest.fixture
def cluster(address: str) -> Iterator[Cluster]:
    opened = Cluster(address)
    yield opened
    opened.close()


def test_points_end_on_a_cluster_as_they_do_here(cluster: Cluster) -> None:
    labels = ("one", "hang", "segfault", "stumble", "two", "wrong")
    with Engine(settings(limits={"verify": 3.0}), cluster=cluster) as engine:
        there = engine.evaluate(points(*labels))
    with Engine(settings(limits={"verify": 3.0})) as engine:
        here = engine.evaluate(points(*labels))
    ends = [(one.status, one.reason_code, one.stage) for one in there if one]
    assert ends == [(one.status, one.reason_code, one.stage) for one in here if one]
    assert [status for status, _, _ in ends] == ["correct", "timeout", "runtime", "runtime", "correct", "correct"]


def test_a_real_kernel_is_verified_on_a_cluster(cluster: Cluster) -> None:
    machine = cluster.describe("emulator", Stage.VERIFY, "gemm")
    assert machine.backend == "emulator" and machine.compiler.startswith("NVRTC")
    with Engine(settings(execute="gemmgen.sweep.evaluation:execute"), cluster=cluster) as engine:
        (found,) = engine.evaluate(points("one"))
    assert found is not None and found.status == "correct" and found.metrics["cases"] > 10


def test_what_the_clusters_machines_lack_is_told(cluster: Cluster) -> None:
    with pytest.raises((EnvironmentMissing, SweepError), match=r"worker tcp://.*emulator"):
        cluster.describe("emulator", Stage.BENCH, "gemm")


def test_a_scheduler_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("gemmgen.sweep.cluster.CONNECT_SECONDS", 1)
    with pytest.raises(SweepError, match="no Dask scheduler"):
        Cluster("tcp://127.0.0.1:9")
    for address in ("", "tcp://", "localhost", "tcp://host:", "a b:1", "nonsense://x:1", "ucx://x:1", "tcp://x:99999999"):
        with pytest.raises(SweepError, match=r"expected the address .* tcp://host:8786"):
            Cluster(address)


def test_a_worker_that_is_killed_costs_no_point() -> None:
    with local_cluster(2, processes=True) as local:
        from distributed import Client

        def kill(first: PointResult, known: bool) -> None:
            if not killed:
                with Client(local.scheduler_address, set_as_default=False) as client:
                    killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

        killed: list[int] = []
        cluster = Cluster(local.scheduler_address)
        with Engine(settings(), None, kill, cluster) as engine:
            found = engine.evaluate(points(*(f"slow{number}" for number in range(12)), "slow"))
        cluster.close()
    assert killed and [one.status for one in found if one] == ["correct"] * 13


def test_scheduler_that_goes_away_ends_sweep() -> None:
    heard = []
    with local_cluster(1, processes=True) as local:
        cluster = Cluster(local.scheduler_address)
        ending = threading.Timer(1.5, local.close)
        with Engine(settings(), None, lambda result, known: heard.append(result.status), cluster) as engine:
            ending.start()
            with pytest.raises(SweepError, match="scheduler"):
                engine.evaluate(points("hang", "one"))
        ending.join()
        cluster.close()
    assert set(heard) <= {"correct"}


def test_a_cluster_without_workers_is_not_waited_for_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.sweep.cluster.DESERTED_SECONDS", 0.5)
    monkeypatch.setattr("gemmgen.sweep.cluster._COUNT_SECONDS", 0.2)
    with local_cluster(1, processes=True) as local:
        cluster = Cluster(local.scheduler_address)
        with Engine(settings(), cluster=cluster) as engine:
            leaving = threading.Timer(0.5, lambda: setattr(cluster._client, "nthreads", lambda: {}))
            leaving.start()
            with pytest.raises(SweepError, match="no worker for"):
                engine.evaluate(points("hang"))
        leaving.join()
        cluster.close()


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [((), 0, "4 correct"), (("--search", "tpe", "--trials", "3", "--objective", "registers"), 0, "3 correct")],
)
def test_the_command_runs_on_a_cluster(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], code: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trial.yaml").write_text(yaml.safe_dump({"name": "trial", "base": SPEC, "axes": {"transpose": ["nn", "nt", "tn", "tt"]}}))
    command = ["sweep", "trial.yaml", "--stages", "compile", "--backend", "emulator", "--scheduler", address, *options]
    outcome = CliRunner().invoke(cli, command, prog_name="gemmgen")
    assert outcome.exit_code == code and says in outcome.output


MACHINE = Machine("NVRTC 13.0", "gpu", "NVIDIA H200", "NVIDIA H200 (sm_90), driver for CUDA 13.0", "sm_90a")


def member(gpu: str = "", **more: Any) -> Member:
    return Member(**{"machine": MACHINE, "code": code_version(), "gpu": gpu, **more})


def test_workers_with_a_gpu_each_are_one_machine() -> None:
    members = {"a": member("host 01:00.0"), "b": member("host 02:00.0"), "c": member("other 01:00.0")}
    assert common_machine(members, {"a": 1, "b": 1, "c": 1}, Stage.BENCH) == MACHINE


@pytest.mark.parametrize(
    ("members", "threads", "says"),
    [
        ({"a": member("host 1"), "b": member("host 1")}, {"a": 1, "b": 1}, "workers a and b use the same GPU"),
        ({"a": member("host 1")}, {"a": 2}, "the threads of worker a use the same GPU"),
        ({"a": member("host 1"), "b": member("host 2", code="0.0.1 (0)")}, {}, r"worker b runs gemmgen 0\.0\.1 \(0\), this is"),
        ({"a": member("host 1"), "b": member("host 2", machine=Machine("NVRTC 12.9"))}, {}, "the cluster's workers differ"),
    ],
)
def test_clusters_on_which_results_depend_on_worker_are_refused(members: dict[str, Member], threads: dict[str, int], says: str) -> None:
    with pytest.raises(SweepError, match=says):
        common_machine(members, threads, Stage.BENCH)


def test_workers_may_share_a_gpu_that_only_verifies() -> None:
    assert common_machine({"a": member("host 1"), "b": member("host 1")}, {"a": 4, "b": 1}, Stage.VERIFY) == MACHINE


@pytest.mark.gpu
def test_a_worker_says_which_gpu_it_uses() -> None:
    if not gpu_available():
        pytest.skip("no GPU")
    said = describe_member(("gpu", Stage.BENCH), lambda stage: None)
    assert said.gpu.endswith(list_gpus()[0].pci_bus_id) and said.machine.backend == "gpu"


def test_without_distributed_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(EnvironmentMissing, match="pip install 'distributed"):
        Cluster("tcp://127.0.0.1:9")


def test_a_task_is_done_in_a_process_that_may_die(tmp_path: Path) -> None:
    """A Dask worker's call, without Dask."""
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
