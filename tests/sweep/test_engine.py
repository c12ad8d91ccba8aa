"""Whatever a point does to its worker, it ends in one status, and the others are none the worse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE, eventually

from gemmgen.core.errors import EnvironmentMissing
from gemmgen.sweep.engine import Engine
from gemmgen.sweep.evaluation import Conditions, prepare
from gemmgen.sweep.expression import Expression
from gemmgen.sweep.file import Limits
from gemmgen.sweep.records import PointResult, Stage, Status, SweepError
from gemmgen.sweep.store import ResultStore

from .faults import MODULE, NOTES
from .helpers import SPEC, conditions, points, result, settings, space

GOOD = ("one", "two", "three", "four")


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where workers report their progress."""
    folder = tmp_path / "notes"
    folder.mkdir()
    monkeypatch.setenv(NOTES, str(folder))
    return folder


def evaluate(*labels: str, **more: object) -> dict[str, PointResult]:
    """The results by label; none may be missing."""
    with Engine(settings(**more)) as engine:  # type: ignore[arg-type]
        found = engine.evaluate(points(*labels))
    assert None not in found
    return {one.axes["label"]: one for one in found if one is not None}


def gone(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return True
    return state == b"Z"


def test_a_worker_that_answers_after_its_deadline_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the machine stood still: the clock is past the deadline, and the answer is on its way."""
    monkeypatch.setattr("gemmgen.sweep.processes.GRACE_SECONDS", PATIENCE)
    found = evaluate("slow", "one", limits={"verify": 0.01})
    assert [one.status for one in found.values()] == [Status.CORRECT] * 2


def test_a_point_that_hangs_times_out_and_the_others_go_on() -> None:
    found = evaluate("hang", *GOOD, limits={"verify": 0.5})
    assert found["hang"].status is Status.TIMEOUT
    assert (found["hang"].stage, found["hang"].reason_code) == (Stage.VERIFY, "time_limit")
    assert found["hang"].metrics["limit_seconds"] == 0.5 <= found["hang"].seconds["verify"]
    assert all(found[label].status is Status.CORRECT for label in GOOD)


def test_what_a_killed_worker_had_started_dies_with_it(notes: Path) -> None:
    evaluate("hang", limits={"verify": 1.0})
    child = int((notes / "child").read_text())
    assert eventually(lambda: gone(child))


RUN_FOREVER = """
from gemmgen.sweep.engine import Engine
from sweep.helpers import points, settings
with Engine(settings()) as engine:
    engine.evaluate(points("hang"))
"""


def test_workers_in_the_midst_of_work_die_with_the_sweep(notes: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    running = subprocess.Popen([sys.executable, "-c", RUN_FOREVER], env=environment)
    assert eventually((notes / "child").exists)
    started = [int(path.read_text()) for path in notes.iterdir()]
    running.kill()
    running.wait()
    assert len(started) >= 2 and eventually(lambda: all(map(gone, started)))


def test_worker_that_dies_of_signal_is_runtime_error() -> None:
    found = evaluate("segfault", *GOOD, jobs=1)
    assert found["segfault"].status is Status.RUNTIME
    assert found["segfault"].reason_code == "worker_died"
    assert "SIGSEGV" in found["segfault"].reason
    assert "something odd happened here" in found["segfault"].reason
    assert found["segfault"].stage is Stage.VERIFY
    assert all(found[label].status is Status.CORRECT for label in GOOD)


def test_a_worker_that_leaves_is_a_runtime_error() -> None:
    assert "exit status 3" in evaluate("leave")["leave"].reason


def test_point_that_exceeds_memory_is_runtime_error() -> None:
    found = evaluate("leak", *GOOD, limits={"memory_gib": 1.0})
    assert (found["leak"].status, found["leak"].reason_code) == (Status.RUNTIME, "out_of_memory")
    assert all(found[label].status is Status.CORRECT for label in GOOD)


def test_a_stage_with_a_bug_is_a_runtime_error_that_says_where() -> None:
    found = evaluate("stumble")["stumble"]
    assert (found.status, found.reason_code) == (Status.RUNTIME, "exception")
    assert "ValueError: this stage has a bug" in found.reason and "faults.py" in found.reason


def test_a_check_that_hangs_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.sweep.engine.PREPARE", f"{MODULE}:prepare_badly")
    with Engine(settings(limits={"check": 0.3})) as engine:
        (found,) = engine.evaluate(points("one"))
    assert found is not None
    assert (found.status, found.stage) == (Status.TIMEOUT, Stage.CHECK)


def test_a_worker_that_lost_its_gpu_is_replaced(notes: Path) -> None:
    gpus = ({"CUDA_VISIBLE_DEVICES": "0"},)
    with Engine(settings(backend="gpu", gpus=gpus)) as engine:
        ended = [engine.evaluate(points(label))[0] for label in ("one", "lost", "two", "three")]
    assert [one.status for one in ended if one] == ["correct", "runtime", "correct", "correct"]
    verified = sorted((path for path in notes.iterdir() if "verify" in path.name), key=lambda path: path.name.rpartition("-")[2])
    one, lost, two, three = (path.read_text() for path in verified)
    assert one == lost != two == three


def test_every_gpu_has_a_worker_that_sees_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmgen.runtime.cuda.driver import GpuDevice
    from gemmgen.sweep.machine import gpu_environments

    devices = tuple(GpuDevice(n, "NVIDIA H200", (9, 0), 132, 1 << 37, 1 << 26, 1 << 17, (13, 0), "") for n in range(3))
    monkeypatch.setattr("gemmgen.runtime.cuda.driver._probe", lambda: (devices, ""))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in gpu_environments()] == ["0", "1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7,6")
    assert [one["CUDA_VISIBLE_DEVICES"] for one in gpu_environments()] == ["5", "GPU-7", "6"]


def test_a_kernel_is_verified_once_for_all_its_problems(notes: Path) -> None:
    sizes = [[64, 64, 64], [128, 128, 128], [256, 256, 256]]
    with Engine(settings("bench", backend="gpu", gpus=({}, {}))) as engine:
        found = engine.evaluate(points("one", "two", stage="bench", sizes=sizes))
    assert [one.status for one in found if one] == ["correct"] * 6
    assert all(one is not None and {"compile_ran", "verify_ran", "median_us"} <= one.metrics.keys() for one in found)
    names = [path.name for path in notes.iterdir()]
    assert [sum(f"-{stage}-" in name for name in names) for stage in ("compile", "verify", "bench")] == [2, 2, 6]


def test_kernel_that_was_verified_is_not_verified_again(notes: Path) -> None:
    with Engine(settings("bench", backend="gpu", gpus=({},))) as engine:
        for size in ([64, 64, 64], [128, 128, 128]):
            (found,) = engine.evaluate(points("one", stage="bench", sizes=[size]))
            assert found is not None and found.status is Status.CORRECT and found.metrics["verify_ran"] == 1
    assert sum("-verify-" in path.name for path in notes.iterdir()) == 1


def test_a_kernel_that_fails_verification_is_timed_on_no_problem(notes: Path) -> None:
    sizes = [[64, 64, 64], [128, 128, 128]]
    with Engine(settings("bench", backend="gpu", gpus=({},))) as engine:
        found = engine.evaluate(points("lost", stage="bench", sizes=sizes))
    assert [(one.status, one.stage) for one in found if one] == [("runtime", "verify")] * 2
    assert not any("bench" in path.name for path in notes.iterdir())


def test_the_same_spec_twice_is_run_once_and_counted(notes: Path) -> None:
    spanned = space(axes={"label": ["one"], "mainloop.stages": [2, 2], "schema_version": [1, 1]})
    with Engine(settings()) as engine:
        found = engine.evaluate([spanned[number] for number in range(spanned.size)])
    assert engine.duplicates == 3 and len(engine.results) == 1
    assert [one.status for one in found if one] == ["correct"] * 4
    assert sum("verify" in path.name for path in notes.iterdir()) == 1


def test_a_point_whose_result_is_known_is_not_run_again(tmp_path: Path, notes: Path) -> None:
    for expected in (4, 4):
        with ResultStore(tmp_path / "results") as store, Engine(settings(), store) as engine:
            engine.evaluate(points(*GOOD))
        assert sum("verify" in path.name for path in notes.iterdir()) == expected
    assert engine.reused == 4


def test_other_axes_keep_results_that_still_hold(tmp_path: Path, notes: Path) -> None:
    with ResultStore(tmp_path / "results") as store:
        with Engine(settings(), store) as engine:
            engine.evaluate(points("one", "two"))
        spanned = space(axes={"label": ["two", "three"], "mainloop.stages": [2]})
        with Engine(settings(), store) as engine:
            engine.evaluate([spanned[number] for number in range(2)])
        assert engine.reused == 1
        assert len(store.all()) == 3
        assert {"label": "two", "mainloop.stages": 2} in [one.axes for one in store.all()]


def test_another_sweep_takes_results_from_the_same_file(tmp_path: Path) -> None:
    with ResultStore(tmp_path / "results") as store:
        with Engine(settings(), store) as engine:
            engine.evaluate(points("one"))
        with Engine(settings(), store) as engine:
            engine.evaluate(points("one", name="other"))
        assert engine.reused == 1
        assert [one.sweep for one in store.all()] == ["trial", "other"]


@pytest.mark.parametrize(
    "other",
    [
        {"compiler": "NVRTC 14"},
        {"device": "another"},
        {"backend": "gpu"},
        {"driver": "newer"},
        {"cases": 3},
        {"stage": "compile"},
        {"architecture": "sm_90"},
        {"constraints": (Expression("never", "1 > 2"),)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_whatever_decides_a_result_is_in_its_digest(other: dict[str, object]) -> None:

    (point,) = points("one")
    plain = {"stage": Stage.VERIFY, "compiler": "NVRTC 13", "device": "one", "backend": "emulator", "driver": "old"}
    changed = {**plain, **other, "stage": Stage(other.get("stage", "verify"))}
    one = prepare((point, Conditions(**plain)), lambda stage: None)  # type: ignore[arg-type]
    same = prepare((point, Conditions(**plain)), lambda stage: None)  # type: ignore[arg-type]
    another = prepare((point, Conditions(**changed)), lambda stage: None)  # type: ignore[arg-type]
    assert one.digest == same.digest != another.digest


def test_a_known_timeout_is_run_again_with_more_time(tmp_path: Path, notes: Path) -> None:
    with ResultStore(tmp_path / "results") as store:
        for limit, reused in ((0.1, 0), (0.1, 1), (PATIENCE, 0)):
            if limit == PATIENCE:
                (notes / "go").touch()
            with Engine(settings(limits={"verify": limit}), store) as engine:
                (found,) = engine.evaluate(points("wait"))
            assert engine.reused == reused
        assert found is not None and found.status is Status.CORRECT
        assert store.all() == [found]


def test_known_failures_of_the_machine_are_run_again_if_asked(tmp_path: Path) -> None:
    with ResultStore(tmp_path / "results") as store:
        for retry, reused in ((False, 0), (False, 1), (True, 0)):
            with Engine(settings(retry=retry), store) as engine:
                engine.evaluate(points("leave"))
            assert engine.reused == reused


def test_a_constraint_that_cannot_be_evaluated_stops_the_sweep() -> None:
    broken = Conditions(Stage.VERIFY, constraints=(Expression("odd", "mainloop.depth > 1"),), backend="emulator")
    with Engine(settings().__class__(broken, Limits(), 1)) as engine, pytest.raises(SweepError, match=r"odd.*no mainloop\.depth"):
        engine.evaluate(points("one"))


def test_a_missing_compiler_stops_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(settings(execute="sweep.test_engine:without_compiler")) as engine, pytest.raises(EnvironmentMissing, match="no NVRTC"):
        engine.evaluate(points("one"))


def without_compiler(job: object, enter: object) -> None:
    raise EnvironmentMissing("no NVRTC here")


def test_workers_that_cannot_start_are_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.sweep.processes._WORKER", "raise SystemExit('no such thing')")
    with Engine(settings()) as engine, pytest.raises(SweepError, match=r"workers cannot be started: .*no such thing"):
        engine.evaluate(points("one"))


def test_a_worker_that_cannot_even_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(SweepError, match="workers cannot be started: /nowhere/python"):
        evaluate("one")


def test_an_interrupt_keeps_what_is_done_and_ends_the_workers(tmp_path: Path, notes: Path) -> None:
    def interrupt(one: PointResult, known: bool) -> None:
        if one.axes["label"] == "two":
            raise KeyboardInterrupt

    with ResultStore(tmp_path / "results") as store, Engine(settings(jobs=1), store, interrupt) as engine:
        found = engine.evaluate(points("one", "two", "slow", "three"))
        assert engine.interrupted
        assert [one and one.axes["label"] for one in found] == ["one", "two", None, None]
        assert len(store.all()) == 2
    workers = {int(path.read_text()) for path in notes.iterdir()}
    assert workers and all(gone(worker) for worker in workers)


def test_a_rejected_point_says_all_reasons() -> None:
    spanned = space(axes={"mainloop.tile.warp": [{"m": 24, "n": 32}, {"m": "x", "n": 32}]})
    with Engine(settings()) as engine:
        planned, read = engine.evaluate([spanned[0], spanned[1]])
    assert planned is not None and read is not None
    assert (planned.status, read.status) == (Status.CONSTRAINTS, Status.INVALID)
    assert planned.stage is read.stage is Stage.CHECK
    assert planned.reason_code not in ("", "spec") and planned.reason.count("need") >= 1
    assert read.reason_code == "spec" and "mainloop.tile.warp.m" in read.reason


@pytest.mark.parametrize("sizes", [[1, 2], [1, 2, 3, 4]])
def test_problem_with_other_sizes_than_instances_is_rejected(sizes: list[int]) -> None:
    with Engine(settings("bench")) as engine:
        (found,) = engine.evaluate(points("one", stage="bench", sizes=[sizes]))
    assert found is not None and found.reason_code == "sizes" and "m, n, k" in found.reason


def test_a_wrong_kernel_is_found_and_its_neighbour_is_right() -> None:
    found = evaluate("wrong", "right", execute="sweep.faults:execute_wrong", jobs=1)
    assert found["wrong"].status is Status.CORRECTNESS
    assert found["wrong"].reason_code == "wrong_result" and "expected" in found["wrong"].reason
    assert found["right"].status is Status.CORRECT
    assert found["right"].metrics["cases"] == found["right"].metrics["cases_total"] == len(found["right"].cases) > 10


def test_results_survive_as_plain_data() -> None:
    one = result(metrics={"worst_ratio": float("inf")}, cases=("a", "b"))
    assert PointResult.from_json(one.to_json()) == one


def test_a_kernel_that_faults_or_never_ends_is_no_wrong_result() -> None:
    found = evaluate("fault", execute="sweep.faults:execute_wrong")["fault"]
    assert (found.status, found.reason_code) == (Status.RUNTIME, "fault")
    found = evaluate("spin", execute="sweep.faults:execute_wrong", limits={"verify": 2.0})["spin"]
    assert found.status in (Status.TIMEOUT, Status.RUNTIME)


def test_times_are_predicted_for_the_problems_of_the_sweep() -> None:
    small, large = (Conditions(Stage.CHECK, predicted_sizes=sizes) for sizes in (((256, 256, 256),), ((256, 256, 256), (4096, 4096, 4096))))
    (point,) = points("a", stage="check")
    times = [prepare((point, one), lambda stage: None).ending.metrics["predicted_us"] for one in (small, large)]
    assert times[1] > 5 * times[0]
    assert prepare((point, small), lambda stage: None).digest != prepare((point, large), lambda stage: None).digest


def test_problems_of_another_rank_are_left_out_of_predictions() -> None:
    (point,) = points("a", stage="check")
    times = [
        prepare((point, Conditions(Stage.CHECK, predicted_sizes=sizes)), lambda stage: None).ending.metrics["predicted_us"]
        for sizes in (((1, 2), (256, 256, 256)), ((256, 256, 256),))
    ]
    assert times[0] == times[1]


@pytest.mark.parametrize(("backend", "kind"), [("emulator", "cpu_gemm"), ("processor", "gemm")])
def test_kernels_of_gpus_and_processors_are_swept_apart(backend: str, kind: str) -> None:
    spec = SPEC if kind == "gemm" else {"kind": "cpu_gemm", "loops": {"strategy": "naive"}}
    spanned = space(base=spec)
    prepared = prepare((spanned[0], conditions(backend=backend)), lambda stage: None)
    assert prepared.ending.status is Status.INVALID and "sweep them apart" in prepared.ending.reason
