"""The command bench around a measurement that is made up: its output needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import SPEC, Run
from gemmgen.perf.benchmark import BenchmarkReport, Candidate, Timing, compare
from gemmgen.perf.clocks import Clocks
from gemmgen.runtime.cuda.driver import GpuDevice

MEDIANS_US = (4195.9, 2097.9)
"""Half of an H200's FP32 roof at 4096 cubed, and all of it."""


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, int]]]:
    """Measurements that were asked for: (candidates, problem)."""
    calls: list[tuple[int, dict[str, int]]] = []

    def benchmark(candidates: Sequence[Candidate], problem: Mapping[str, int], **_: Any) -> BenchmarkReport:
        calls.append((len(candidates), dict(problem)))
        operations = 2.0 * problem["m"] * problem["n"] * problem["k"]
        timings = [
            Timing(c.plan.name, "candidate", us, us - 1, us + 1, operations / us * 1e6, 1e9, "checked")
            for c, us in zip(candidates, MEDIANS_US, strict=False)
        ]
        timings.append(Timing("cuBLAS (torch)", "peer", 2098.5, 2098, 2099, operations / 2098.5e-6, 1e9, "checked"))
        return BenchmarkReport(
            dict(problem),
            {},
            "NVIDIA H200",
            (9, 0),
            "580",
            (13, 0),
            "2026-01-01",
            Clocks("NVML", 3, 1980.0, 1900, 1980, 3200.0),
            "rotated beyond the L2",
            3,
            10**9,
            6 * 10**7,
            50,
            tuple(timings),
            compare(timings),
            ("clocks were not locked",),
        )

    device = GpuDevice(0, "NVIDIA H200", (9, 0), 132, 141 << 30, 60 << 20, 232448, (13, 0), "00:00.0")
    monkeypatch.setattr("gemmgen.runtime.cuda.driver.gpu", lambda ordinal=0: device)
    monkeypatch.setattr("gemmgen.perf.benchmark.benchmark", benchmark)
    return calls


def test_specs_on_same_arrays_are_timed_in_one_run(run: Run, spec: Path, measured: list[Any]) -> None:
    Path("other.yaml").write_text(SPEC.replace("k: 8", "k: 16"))
    Path("transposed.yaml").write_text(SPEC + "transpose: tt\n")
    shown = run("bench", spec, "other.yaml", "transposed.yaml", "--size", "4096,4096,4096", "--size", "64,64,64").out
    assert [count for count, _ in measured] == [2, 1, 2, 1]
    lines = shown.splitlines()
    assert "50.0%" in lines[2] and "0.50x" in lines[2] and "32.8 TFLOP/s" in lines[2]
    assert "100.0%" in lines[3] and "tie (1.00x)" in lines[3]
    assert "cuBLAS (torch)" in lines[4] and "peer" in lines[4]
    assert "SM clock 1980 MHz" in shown
    assert "Note: clocks were not locked" in shown


def test_benchmarks_as_json(run: Run, spec: Path, measured: list[Any]) -> None:
    (report,) = run("bench", spec, "--size", "4096,4096,4096", "--json").json
    candidate, peer = report["timings"]
    assert candidate["spec"] == "small.yaml"
    assert candidate["fraction_of_roof"] == pytest.approx(0.5, rel=1e-3)
    assert peer["spec"] is None
    assert report["comparisons"][0]["verdict"] == "slower"


def test_a_kernel_with_sizes_is_timed_beside_the_general_one(run: Run, spec: Path, measured: list[Any]) -> None:
    shown = run("bench", spec, "--set", "sizes={n: 64}", "--size", "64,64,64").out
    assert [count for count, _ in measured] == [2]
    assert "small.yaml, for all sizes" in " ".join(shown.split())


def test_a_size_with_too_few_numbers(run: Run, spec: Path, measured: list[Any]) -> None:
    assert "small.yaml needs 3 numbers: m,n,k" in run("bench", spec, "--size", "64,64", code=2).err
    assert measured == []
