"""The end of a tuning: the winner is proved, timed beside the runner-up, and written with its measurements."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gemmgen.cli import cli
from gemmgen.core.errors import LaunchError, VerificationError
from gemmgen.kernels.family import Case, KernelPlan
from gemmgen.kernels.spec_files import load_spec
from gemmgen.perf.benchmark import BenchmarkReport, Timing, compare
from gemmgen.perf.clocks import Clocks
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.sweep import tuning
from gemmgen.sweep.objectives import Objective
from gemmgen.sweep.records import PointResult, Status, SweepError
from gemmgen.sweep.search import SearchResult, Trial
from gemmgen.sweep.tuning import conclude, winner_yaml
from gemmgen.verification.runner import CaseResult, VerificationReport
from sweep.samples import SPEC, sample

US = Objective("median_us")


def spec_of(depth: int) -> dict[str, Any]:
    fields = copy.deepcopy(SPEC)
    fields["mainloop"]["tile"]["threadblock"] = {"m": 32, "n": 32, "k": depth}
    return fields


def found(*times: float, sizes: Sequence[int] = (512,), **metrics: float) -> SearchResult:
    """A search whose points have the depths 8, 16, ... and these times."""
    trials = []
    for number, time in enumerate(times):
        results: tuple[PointResult, ...] = tuple(
            sample(
                number,
                spec=spec_of(8 << number),
                instance=f"d{8 << number}",
                problem={"m": size, "n": size, "k": size},
                metrics={"median_us": time, **metrics},
            )
            for size in sizes
        )
        trials.append(Trial(number, {}, results, "complete", (time,)))
    return SearchResult((US,), tuple(trials))


class Measured:
    """Reports made-up times by the depth of a plan, and remembers the timed points."""

    def __init__(self, times: dict[int, float], spread: float = 0.1) -> None:
        self.times, self.spread = times, spread
        self.runs: list[tuple[list[int], tuple[int, ...]]] = []

    def __call__(self, plans: Sequence[KernelPlan], sizes: Sequence[int]) -> BenchmarkReport:
        depths = [plan.spec.mainloop.tile.threadblock.k for plan in plans]
        self.runs.append((depths, tuple(sizes)))
        timings = [self.timing(plan.name, "candidate", self.times[depth]) for plan, depth in zip(plans, depths, strict=True)]
        timings.append(self.timing("cuBLAS (torch)", "peer", 20.0))
        problem = dict(zip(("m", "n", "k"), sizes, strict=True)) | {"lda": sizes[0]}
        return BenchmarkReport(
            problem,
            {},
            "NVIDIA H200\nx: evil",
            (9, 0),
            "580",
            (13, 0),
            "2026-01-01T00:00:00+00:00",
            Clocks("NVML", 3, 1980.0, 1900, 1980, 3200.0),
            "rotated beyond the L2",
            3,
            10**9,
            6 * 10**7,
            50,
            tuple(timings),
            compare(timings),
            (),
        )

    def timing(self, name: str, kind: Any, us: float) -> Timing:
        return Timing(name, kind, us, us - self.spread / 2, us + self.spread / 2, 1e12, 1e9, "checked")


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The depths of the plans that were verified; none is run."""
    depths: list[int] = []

    def verify(plan: KernelPlan, binary: Any, backend: Any) -> VerificationReport:
        depths.append(plan.spec.mainloop.tile.threadblock.k)
        result = CaseResult(Case("one", {}), True, 0.25, 1234, 0.1)
        return VerificationReport(plan.name, plan.architecture.name, backend.name, backend.description, (result,))

    monkeypatch.setattr("gemmgen.verification.runner.verify_binary", verify)
    monkeypatch.setattr("gemmgen.toolchain.compilation.compile_plan", lambda plan: None)
    return depths


def depth(conclusion: tuning.Conclusion) -> int:
    return int(conclusion.plan.spec.mainloop.tile.threadblock.k)


def test_winner_is_verified_and_timed_beside_runner_up(verified):
    measure = Measured({8: 12.0, 16: 10.0})
    conclusion = conclude(found(12.0, 10.0, 30.0, sizes=(512, 640)), EmulatorBackend(), measure=measure)
    assert depth(conclusion) == 16 and verified == [16] and not conclusion.overturned
    assert measure.runs == [([16, 8], (512, 512, 512)), ([16, 8], (640, 640, 640))]


def test_runner_up_faster_in_last_run_wins_and_is_verified(verified):
    conclusion = conclude(found(10.0, 10.1), EmulatorBackend(), measure=Measured({8: 11.0, 16: 10.0}))
    assert depth(conclusion) == 16 and conclusion.overturned and verified == [8, 16]
    assert conclusion.winner.results[0].instance == "d16" and conclusion.runner_up_name != conclusion.plan.name


def test_a_difference_within_the_spread_changes_nothing(verified):
    conclusion = conclude(found(10.0, 10.1), EmulatorBackend(), measure=Measured({8: 10.05, 16: 10.0}, spread=0.2))
    assert depth(conclusion) == 8 and not conclusion.overturned


def test_a_point_that_is_the_same_instance_is_no_runner_up(verified):
    search = found(10.0, 11.0)
    twin = Trial(2, {"other": 1}, search.trials[0].results, "complete", (10.0,))
    conclusion = conclude(SearchResult((US,), (*search.trials, twin)), EmulatorBackend(), measure=Measured({8: 10.0, 16: 11.0}))
    assert conclusion.runner_up is search.trials[1]


def test_a_single_instance_is_timed_alone(verified):
    measure = Measured({8: 10.0})
    conclusion = conclude(found(10.0), EmulatorBackend(), measure=measure)
    assert conclusion.runner_up is None and measure.runs == [([8], (512, 512, 512))]


def test_instances_that_cannot_share_a_run_are_told(verified):
    class Apart(Measured):
        def __call__(self, plans: Sequence[KernelPlan], sizes: Sequence[int]) -> BenchmarkReport:
            if len(plans) > 1:
                raise LaunchError("they take different arrays")
            return super().__call__(plans, sizes)

    conclusion = conclude(found(10.0, 9.0), EmulatorBackend(), measure=Apart({8: 10.0, 16: 9.0}))
    assert depth(conclusion) == 16 and conclusion.notes == ("timed without the runner-up: they take different arrays",)


def test_where_nothing_can_be_timed_the_spec_says_so(verified):
    search = found(10.0, 9.0)
    conclusion = conclude(search, EmulatorBackend())
    assert conclusion.benchmarks == () and "# Note: not timed again: there is no GPU here.\n" in winner_yaml(search, conclusion, "x")


def test_a_winner_that_is_wrong_is_an_error(monkeypatch):
    def verify(plan: KernelPlan, binary: Any, backend: Any) -> VerificationReport:
        return VerificationReport(plan.name, "", "", "", (CaseResult(Case("primes", {}), False, 9.0, 1, 0.1, "C[0] is 1, expected 2"),))

    monkeypatch.setattr("gemmgen.verification.runner.verify_binary", verify)
    monkeypatch.setattr("gemmgen.toolchain.compilation.compile_plan", lambda plan: None)
    with pytest.raises(VerificationError, match=r"wrong after all: case primes: C\[0\] is 1, expected 2"):
        conclude(found(10.0), EmulatorBackend())


def test_a_search_without_a_right_point_has_no_winner():
    failed = Trial(0, {}, (sample(0, Status.COMPILE),), "infeasible", ())
    with pytest.raises(SweepError, match="no winner"):
        conclude(SearchResult((US,), (failed,)), EmulatorBackend())


def test_the_file_is_the_winners_spec_with_what_was_measured(verified):
    search = found(12.0, 10.0)
    conclusion = conclude(search, EmulatorBackend(), measure=Measured({8: 12.0, 16: 10.0}))
    text = winner_yaml(search, conclusion, "Found by gemmgen sweep tiles")
    assert load_spec(yaml.safe_load(text)) == load_spec(spec_of(16))
    comment = [line for line in text.splitlines() if line.startswith("#")]
    assert comment[0].startswith("# Found by gemmgen sweep tiles, 20")
    assert comment[1] == "# Chosen for least median_us; 2 points tried: least median_us 10 µs."
    assert comment[2].startswith("# Timed on NVIDIA H200 x: evil, SM clock 1980 MHz, 2026-01-01")
    assert comment[2].endswith("size 512,512,512:")
    assert comment[3] == "#   this 10.00 µs (9.95 to 10.05)"
    assert comment[4] == f"#   runner-up {conclusion.runner_up_name} 12.00 µs, 1.200 times this"
    assert comment[5] == "#   peer cuBLAS (torch) 20.00 µs, 2.000 times this"
    assert comment[6].endswith("1 case, 1,234 elements, worst error 0.25 of its bound.")


SWEEP = """\
name: depths
base:
  kind: gemm
  alpha: one
  beta: zero
  mainloop:
    strategy: tiled
    tile:
      threadblock: {m: 32, n: 32, k: 8}
      warp: {m: 32, n: 32}
      thread: {m: 8, n: 4}
axes:
  mainloop.tile.threadblock.k: [2, 4, 8]
  mainloop.stages: [1, 2]
  mainloop.tile.thread.m: [8, 16]
sizes: [[256, 256, 256]]
stages: STAGES
"""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs ``gemmgen sweep`` on a small space up to a stage; the result is click's."""
    monkeypatch.chdir(tmp_path)

    def run(stages: str, *options: str) -> Any:
        Path("depths.yaml").write_text(SWEEP.replace("STAGES", stages))
        return CliRunner().invoke(cli, ["sweep", "depths.yaml", *options], prog_name="gemmgen")

    return run


def test_search_for_registers_without_gpu_ends_in_proved_spec(sweep):
    search = ("compile", "--backend", "emulator", "--search", "tpe", "--trials", "12", "--objective", "registers")
    first = sweep(*search, "--winner", "best.yaml")
    assert first.exit_code == 0, first.output
    text = Path("best.yaml").read_text()
    assert "# Chosen for least registers; 12 points tried: least registers" in text and "cases" in text
    assert "12 points tried, 6 infeasible" in first.output and "There are no more points in this space." in first.output
    load_spec("best.yaml")
    again = sweep(*search, "--export", "csv=all.csv")
    assert again.exit_code == 0 and "12 points tried, 12 of them known before" in again.output
    assert len(Path("all.csv").read_text().splitlines()) == 13


def test_a_search_for_times_without_them_says_what_to_do(sweep):
    result = sweep("compile", "--backend", "emulator", "--search", "random", "--trials", "12", "--winner", "best.yaml")
    assert result.exit_code == 2 and "objective median_us" in result.output and "--stages bench" in result.output
    assert not Path("best.yaml").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--objective", "registers"], "--search and --winner"),
        (["--search", "tpe", "--objective", "a b"], "--objective 'a b'"),
        (["--search", "tpe", "--set", "mainloop.stages=[]"], ""),
        (["--winner", "x" * 300, "--objective", "registers"], "--winner"),
        (["--winner", ".", "--objective", "registers"], "is a directory"),
        (["--winner", "depths.yaml/x"], "depths.yaml is not a directory"),
    ],
)
def test_options_that_make_no_sense_end_in_one_message(sweep, options, told):
    result = sweep("check", "--backend", "emulator", *options)
    assert result.exit_code == 2 and told in result.output and "Traceback" not in result.output


@pytest.mark.gpu
def test_tuning_on_gpu_ends_with_winner_timed_beside_runner_up(sweep):
    from gemmgen.runtime.cuda import gpu_available

    if not gpu_available():
        pytest.skip("no GPU")
    pytest.importorskip("optuna")
    result = sweep("bench", "--search", "tpe", "--trials", "12", "--winner", "best.yaml", "--export", "html=report.html")
    assert result.exit_code == 0, result.output
    text = Path("best.yaml").read_text()
    assert "# Timed on NVIDIA" in text and "#   this " in text and "#   runner-up " in text
    assert "# Verified for" in text and load_spec("best.yaml") is not None
    assert "Roofline" in Path("report.html").read_text() or "best so far" in Path("report.html").read_text().lower()
    print(text)
