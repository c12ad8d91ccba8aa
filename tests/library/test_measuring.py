from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from gemmgen.core.errors import EnvironmentMissing
from gemmgen.library import measuring
from gemmgen.library.evidence import read_evidence
from gemmgen.library.listing import Listing, read_listing
from gemmgen.library.measuring import Measurement, benchmark_item, fitting_architectures, group_contests, newest
from gemmgen.library.sanitizing import read_verdict
from gemmgen.perf.benchmark import BenchmarkReport, Timing, compare
from gemmgen.perf.clocks import Clocks
from gemmgen.runtime.cuda import gpu_available
from gemmgen.runtime.cuda.driver import GpuDevice

DEVICE = GpuDevice(0, "NVIDIA H200", (9, 0), 132, 1, 1, 1, (13, 0), "0")
CLEAN = "========= COMPUTE-SANITIZER\n7\n========= ERROR SUMMARY: 0 errors\n"
FOUND = "========= COMPUTE-SANITIZER\n========= Invalid __global__ read of size 4 bytes\n7\n========= ERROR SUMMARY: 3 errors\n"


def report(names: list[str], peer: bool = True) -> BenchmarkReport:
    def timing(name: str, kind: Literal["candidate", "peer"], median: float) -> Timing:
        return Timing(
            name=name,
            kind=kind,
            median_us=median,
            p10_us=median - 0.1,
            p90_us=median + 0.1,
            operations_per_second=1e12,
            bytes_per_second=1e11,
            checked="equal",
        )

    timings = tuple(timing(name, "candidate", 2.0) for name in names) + ((timing("cuBLAS", "peer", 3.0),) if peer else ())
    return BenchmarkReport(
        problem={"m": 1},
        scalars={"alpha": 1.0},
        device="NVIDIA H200",
        compute_capability=(9, 0),
        driver="580",
        cuda=(13, 0),
        date="2026-01-01",
        clocks=Clocks("NVML", 3, 1980, 1970, 1980, 3201),
        inputs="rotated beyond the L2",
        buffer_sets=2,
        input_bytes=1,
        l2_bytes=1,
        rounds=15,
        timings=timings,
        comparisons=compare(timings),
        notes=(),
    )


def measured(listing: Listing) -> Measurement:
    records = {found.name: {"instance": found.name, "architecture": "sm_90"} for found in listing.instances}
    digests = {"program": "p", "code": "c", "source": "s", "options": "o"}
    run = {"backend": "gpu", "device": "NVIDIA H200", "date": "2026-01-01", "compiler": "13.0"}
    return Measurement(run, {name: {**record, **digests} for name, record in records.items()})


def test_the_newest_architectures_of_the_device_come_first(listing: Listing) -> None:
    assert fitting_architectures(listing, DEVICE) == ["sm_90"]
    assert fitting_architectures(listing, replace(DEVICE, compute_capability=(8, 9))) == ["sm_80"]
    with pytest.raises(EnvironmentMissing, match="runs none of the library's architectures: sm_80, sm_90"):
        fitting_architectures(listing, replace(DEVICE, compute_capability=(7, 5)))


def test_each_instance_is_measured_on_its_newest_architecture() -> None:
    """Kernels of a single chip exist for that chip alone; a chip's own come before those of its generation."""
    library = read_listing()
    order = fitting_architectures(library, DEVICE)
    assert order == ["sm_90a", "sm_90"]
    taken = {instance.name: [name for name, _ in newest(instance, order)] for instance in library.instances}
    expected = {"sm_90a": ["sm_90a"], "sm_100a": [], "sm_120a": []}  # no device of sm_90 runs kernels of sm_100a or sm_120a
    assert all(taken[instance.name] == expected.get(next(iter(instance.plans)), ["sm_90"]) for instance in library.instances)
    assert sum(names == ["sm_90a"] for names in taken.values()) > 100


def test_instances_that_compute_the_same_are_timed_together(listing: Listing) -> None:
    groups = [sorted(member.label for member in members) for _, members in group_contests(listing.instances)]
    assert sorted(groups) == [["gemm/hopper", "gemm/small"]] * 2 + [["reduction/rows"]]


def test_benchmark_item_names_peer_of_same_run_and_clocks() -> None:
    item = benchmark_item(report(["one"]), "one")
    assert item["peer"] == {"name": "cuBLAS", "median_us": 3.0, "p10_us": 2.9, "p90_us": 3.1, "speedup": 1.5, "verdict": "faster"}
    assert item["sm_mhz"] == [1970, 1980, 1980]
    assert benchmark_item(report(["one"], peer=False), "one")["peer"] is None


def test_one_that_cannot_be_timed_does_not_stop_the_others(listing: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = next(found for found in listing.instances if found.label == "gemm/hopper")

    class Timer(measuring._Timer):
        def time(self, specs: object, problem: object, rounds: int) -> BenchmarkReport:
            paths = [path for path, _ in specs]  # type: ignore[attr-defined]
            if bad.path in paths:
                raise measuring.GemmgenError("it faults")
            return report([found.name for found in listing.instances if found.path in paths])

    monkeypatch.setattr(measuring, "_Timer", Timer)
    measurement = measured(listing)
    measuring.time_all(listing, measurement, progress=lambda *_: None)
    assert {name for name, record in measurement.records.items() if "benchmarks" in record} == {
        found.name for found in listing.instances if found is not bad
    }
    assert len(measurement.failures) == 2 and all("it faults" in failure for failure in measurement.failures)


def test_one_that_is_wrong_is_recorded_and_not_timed(listing: Listing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bad = next(found for found in listing.instances if found.label == "gemm/hopper")

    def verify(path: Path, architecture: str) -> dict[str, object]:
        if path == bad.path:
            return {"passed": False, "cases": 1, "elements": 1, "worst_ratio": None, "failure": "C[0] is wrong"}
        return {"passed": True, "cases": 1, "elements": 1, "worst_ratio": 0.0}

    monkeypatch.setattr(measuring, "_verify", verify)
    measurement = measured(listing)
    measuring.verify_all(listing, measurement, jobs=1, progress=lambda *_: None)
    assert measurement.failures == [f"{bad.name}: wrong: C[0] is wrong"]
    asked: list[str] = []
    monkeypatch.setattr(measuring._Timer, "time", lambda self, specs, *_: asked.extend(p.stem for p, _ in specs) or report([]))
    monkeypatch.setattr(measuring, "benchmark_item", lambda *_: {"problem": {}, "scalars": {}, "median_us": 1.0, "peer": None})
    measuring.time_all(listing, measurement, progress=lambda *_: None)
    assert sorted(set(asked)) == ["rows", "small"]
    (tmp_path / "h200.json").write_text(measurement.text())
    assert len(read_evidence(tmp_path).others["sm_90"]) == 3


@pytest.mark.parametrize(
    ("status", "output", "passed", "words"),
    [
        (0, CLEAN, True, ""),
        (0, CLEAN.replace("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed"), True, ""),
        (0, FOUND, False, "Invalid __global__ read"),
        (0, FOUND.replace("ERROR SUMMARY: 3 errors", "RACECHECK SUMMARY: 2 hazards displayed"), False, "2 hazards"),
        (1, CLEAN, False, "0 errors"),
        (0, "========= ERROR SUMMARY: 0 errors\n", False, "0 errors"),
        (0, "7\n", False, "exit status 0"),
        (255, "", False, "the last line"),
    ],
)
def test_tool_passes_instance_only_if_all_cases_ran(status: int, output: str, passed: bool, words: str) -> None:
    found = read_verdict("memcheck", status, output, "" if output else "first\nthe last line")
    assert found["passed"] is passed
    assert (found["cases"] == 7) is passed
    assert words in found.get("failure", "")


@pytest.mark.gpu
@pytest.mark.skipif(not gpu_available(), reason="needs a GPU")
def test_a_gpu_verifies_and_times_a_library(listing: Listing, tmp_path: Path) -> None:
    if not measuring.compiler_fits(listing):
        pytest.skip("needs the compiler that the list names")
    measurement = measuring.start(listing, only=None, jobs=None, progress=lambda *_: None)
    measuring.verify_all(listing, measurement, jobs=2, progress=lambda *_: None)
    measuring.time_all(listing, measurement, rounds=5, progress=lambda *_: None)
    assert measurement.failures == []
    records = json.loads(measurement.text())["records"]
    assert all(record["verification"]["passed"] and record["benchmarks"] for record in records)
