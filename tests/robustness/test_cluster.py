"""Answers that workers of a cluster may give: plain data of the declared shape, and nothing that runs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dask_clusters import local_cluster

from gemmgen.cli import cli
from gemmgen.sweep.cluster import Certificates, Cluster, run_plain
from gemmgen.sweep.evaluation import Conditions, Ending, Prepared
from gemmgen.sweep.machine import Machine
from gemmgen.sweep.messages import Member, decode_outcome, decode_task, encode_outcome, encode_task
from gemmgen.sweep.processes import Outcome, Task
from gemmgen.sweep.records import Stage, Status, SweepError

LIMITS = dict.fromkeys(Stage, 5.0)
PREPARED = Prepared("d", "k", "gemm", "sgemm", {"kind": "gemm", "alpha": 1e400}, {"m": 3}, "sm_80", Ending(Stage.CHECK, Status.CORRECT))
EXECUTE = Task("gemmgen.sweep.evaluation:execute", (PREPARED, Conditions(Stage.VERIFY), (Stage.COMPILE, Stage.VERIFY)), LIMITS)
DESCRIBE = Task("gemmgen.sweep.cluster:describe_member", ("emulator", Stage.VERIFY, "gemm"), LIMITS)
ENDING = Ending(Stage.VERIFY, Status.CORRECT, metrics={"worst_ratio": float("inf")}, cases=("one",))


@pytest.mark.parametrize("task", [EXECUTE, DESCRIBE, Task("a:b", None, LIMITS)])
def test_tasks_arrive_as_they_were_sent(task: Task) -> None:
    assert decode_task(encode_task(task))[0] == task


@pytest.mark.parametrize(
    ("task", "outcome"),
    [
        (EXECUTE, Outcome("done", ENDING)),
        (DESCRIBE, Outcome("done", Member(Machine("NVRTC 13.0"), "0.1 (a)", ""))),
        (EXECUTE, Outcome("expired", text="too slow", stage=Stage.VERIFY, limit=1.0, seconds=1.5)),
    ],
)
def test_outcomes_arrive_as_they_were(task: Task, outcome: Outcome) -> None:
    assert decode_outcome(encode_outcome(outcome, decode_task(encode_task(task))[1]), task) == outcome


GOOD = json.loads(encode_outcome(Outcome("done", ENDING), "execute"))


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"bytes",
        ENDING,
        "",
        "[]",
        "[" * 100_000,
        "x" * 16_000_001,
        json.dumps({**GOOD, "more": 1}),
        json.dumps({**GOOD, "kind": "describe"}),
        json.dumps({**GOOD, "outcome": "win"}),
        json.dumps({**GOOD, "text": 3}),
        json.dumps({**GOOD, "value": {**GOOD["value"], "metrics": {"worst_ratio": []}}}),
        json.dumps({**GOOD, "value": {**GOOD["value"], "status": "fine"}}),
        json.dumps({**GOOD, "value": None}),
    ],
)
def test_an_answer_of_another_shape_is_refused(answer: Any) -> None:
    with pytest.raises(SweepError):
        decode_outcome(answer, EXECUTE)


def gives_an_object(payload: Any, enter: Any) -> Any:
    enter(Stage.CHECK)
    return Machine()


def test_a_function_that_gives_an_object_is_told() -> None:
    task = Task("robustness.test_cluster:gives_an_object", None, LIMITS)
    assert decode_outcome(run_plain(encode_task(task)), task).kind == "raised"


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path(PLANTED[0]),))


PLANTED = [""]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with local_cluster(1, processes=False, protocol="tcp://") as local:
        opened = Cluster(local.scheduler_address)
        yield opened
        opened.close()


def hostile_answer(text: str, memory_bytes: int) -> Any:
    return Bomb()


def test_a_workers_answer_is_never_unpickled(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[0] = str(tmp_path / "executed")
    monkeypatch.setattr("gemmgen.sweep.cluster.run_plain", hostile_answer)
    cluster.submit("key", EXECUTE)
    while not (ended := cluster.collect()):
        pass
    ((_, outcome),) = ended
    assert outcome.kind == "died"
    assert not (tmp_path / "executed").exists()


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", tmp_path / "key.pem", "-out", tmp_path / "here.pem"], check=True, capture_output=True)
    return Certificates(str(tmp_path / "here.pem"), str(tmp_path / "here.pem"), str(tmp_path / "key.pem"))


def test_a_scheduler_is_reached_over_tls(certificates: Certificates) -> None:
    distributed = pytest.importorskip("distributed")
    security = distributed.Security(
        require_encryption=True,
        tls_ca_file=certificates.authority,
        **{
            f"tls_{role}_{part}": getattr(certificates, name)
            for role in ("client", "scheduler", "worker")
            for part, name in (("cert", "certificate"), ("key", "key"))
        },
    )
    with local_cluster(1, processes=False, protocol="tls://", security=security) as local:
        reached = Cluster(local.scheduler_address, 0, certificates)
        assert reached.describe("emulator", Stage.CHECK, "gemm") == Machine()
        reached.close()


def test_tls_without_certificates_is_refused() -> None:
    pytest.importorskip("distributed")
    with pytest.raises(SweepError, match="certificates"):
        Cluster("tls://127.0.0.1:8786")


def test_certificates_without_tls_are_refused(certificates: Certificates) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(SweepError, match="tls://"):
        Cluster("tcp://127.0.0.1:8786", 0, certificates)


def test_half_of_the_tls_options_is_a_mistake() -> None:
    outcome = CliRunner().invoke(cli, ["sweep", "ci_gemm", "--scheduler", "tls://h:1", "--tls-cert", "here.pem"], prog_name="gemmgen")
    assert outcome.exit_code == 2 and "go together" in outcome.output
