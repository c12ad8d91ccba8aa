"""Sweeps on GPUs: kernels that fault or never end cost their own point only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmgen.runtime.cuda import gpu_available
from gemmgen.sweep.engine import Engine, Settings
from gemmgen.sweep.file import Limits
from gemmgen.sweep.machine import conditions_of, describe, gpu_environments
from gemmgen.sweep.records import PointResult, Stage
from gemmgen.sweep.store import ResultStore

from .helpers import points, space

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpu_available(), reason="needs a GPU")]

SIZES = [[256, 256, 256], [500, 300, 200]]


def evaluate(labels: list[str], stage: str, path: Path | None = None, **limits: float) -> list[PointResult]:
    machine = describe(("gpu", Stage(stage), "gemm"))
    conditions = conditions_of(space(stage, cases=4, sizes=SIZES), machine)
    settings = Settings(conditions, Limits(**limits), gpus=gpu_environments(), execute="sweep.faults:execute_wrong")
    store = ResultStore(path) if path is not None else None
    with Engine(settings, store) as engine:
        found = engine.evaluate(points(*labels, stage=stage, sizes=SIZES if stage == "bench" else []))
    assert None not in found
    return [one for one in found if one is not None]


def test_points_are_verified_once_and_timed_on_every_problem() -> None:
    found = evaluate(["one", "two"], "bench")
    assert [one.status for one in found] == ["correct"] * 4
    assert all(one.backend == "gpu" and one.device for one in found)
    for one in found:
        assert {"median_us", "p10_us", "p90_us", "operations_per_second", "operations", "bytes", "cases"} <= one.metrics.keys()
        assert one.metrics["cases"] == 4 and 0 < one.metrics["p10_us"] <= one.metrics["median_us"] <= one.metrics["p90_us"]
    assert sum("verify" in one.seconds for one in found) == 2


def test_a_kernel_that_faults_costs_its_own_point_only() -> None:
    found = evaluate(["one", "fault", "two", "bench_fault", "three"], "bench")
    ends = [(one.axes["label"], str(one.status), str(one.stage)) for one in found]
    good = [(label, "correct", "bench") for label in ("one", "two", "three") for _ in SIZES]
    assert [end for end in ends if end[0] in ("one", "two", "three")] == good
    assert [end[1:] for end in ends if end[0] == "fault"] == [("runtime", "verify")] * 2
    assert [end[1:] for end in ends if end[0] == "bench_fault"] == [("runtime", "bench")] * 2
    assert "ILLEGAL_ADDRESS" in next(one.reason for one in found if one.axes["label"] == "fault")


def test_kernel_that_never_ends_times_out_and_gpu_is_free_again() -> None:
    found = evaluate(["one", "spin", "two"], "verify", verify=20.0)
    assert [str(one.status) for one in found] == ["correct", "timeout", "correct"]


def test_a_wrong_kernel_is_found() -> None:
    assert [str(one.status) for one in evaluate(["wrong", "one"], "verify")] == ["correctness", "correct"]


def test_results_of_a_gpu_are_found_again(tmp_path: Path) -> None:
    first = evaluate(["one"], "bench", tmp_path / "results")
    again = evaluate(["one"], "bench", tmp_path / "results")
    assert json.dumps([one.to_json() for one in again]) == json.dumps([one.to_json() for one in first])
