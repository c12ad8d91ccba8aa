"""Commands on specs for processors."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernels.cpu_gemm.specs import HERE

from cli.conftest import Run, run
from gemmgen.ops import host_tuning

__all__ = ["run"]
pytestmark = pytest.mark.skipif(not HERE, reason="this machine runs no code for x86-64-v3")
SPEC = """\
kind: cpu_gemm
architecture: x86_64_v3
loops:
  strategy: blocked
  micro_kernel: {rows: 4, columns: 8}
  blocks: {m: 8, n: 16, k: 16}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SPEC)
    return path


def test_verify_runs_natively(run: Run, file: Path) -> None:
    (report,) = run("verify", file, "--json").json
    assert report["passed"] and report["backend"] == "native"


def test_specs_of_two_targets_are_not_mixed(run: Run, file: Path) -> None:
    assert "name them in two commands" in run("verify", file, "gemm/v0_naive", code=2).err


def test_sanitizers_are_for_processors(run: Run) -> None:
    assert "--sanitize is for specs of processors" in run("verify", "gemm/v0_naive", "--sanitize", code=2).err


@pytest.mark.parametrize("option", [["--field"], ["--counters"], ["--schedules", "3"]], ids=lambda option: option[0])
def test_options_for_gpus_are_refused(run: Run, file: Path, option: list[str]) -> None:
    assert f"{option[0]} is for kernels of GPUs" in run("verify", file, *option, code=2).err


def test_verify_takes_a_size(run: Run, file: Path) -> None:
    (plain,), (sized,) = run("verify", file, "--json").json, run("verify", file, "--size", "33,17,5", "--json").json
    assert sized["passed"] and len(sized["cases"]) > len(plain["cases"])


def test_compile_shows_the_library(run: Run, file: Path) -> None:
    (compiled,) = run("compile", file, "--json").json
    assert compiled["architecture"] == "x86_64_v3" and compiled["library_bytes"] > 1000


def test_render_writes_c(run: Run, file: Path, tmp_path: Path) -> None:
    run("render", file, "-o", tmp_path / "out")
    assert [path.suffix for path in (tmp_path / "out").iterdir()] == [".c"]


def test_explain_names_registers_and_caches(run: Run, file: Path) -> None:
    out = run("explain", file).out
    assert "6 of 16: 4 sums, 1 vectors, one element" in out and "L1" in out


def test_bench_times_in_turns_with_numpy(run: Run, file: Path) -> None:
    (report,) = run("bench", file, "--size", "64,64,64", "--threads", "1", "--rounds", "2", "--json").json
    assert [timing["kind"] for timing in report["timings"]][:2] == ["candidate", "peer"]
    assert all(timing["us"] > 0 for timing in report["timings"])


def test_sweep_times_points_and_writes_the_winner(run: Run, file: Path) -> None:
    axes = "axes: {transpose: [nn, nt]}\nsizes: [[40, 30, 20]]\nstages: bench\nrounds: 2\ncases: 1\npeer: false\n"
    Path("blocks.yaml").write_text(f"name: blocks\nbase: {file.name}\n{axes}")
    out = run("sweep", "blocks.yaml", "--winner", "best.yaml").out
    assert "2 points: 2 correct" in out and "GFLOP/s" not in out and "OP/s" in out
    winner = Path("best.yaml").read_text()
    assert "kind: cpu_gemm" in winner and "first quartile of" in winner


def test_sweep_verifies_on_the_processor(run: Run, file: Path) -> None:
    Path("blocks.yaml").write_text(f"name: blocks\nbase: {file.name}\naxes: {{transpose: [nt]}}\ncases: 1\n")
    assert ": 1 correct" in run("sweep", "blocks.yaml").out
    assert "is for kernels of GPUs" in run("sweep", "blocks.yaml", "--backend", "emulator", code=2).err


def test_analyze_shows_the_loop_and_the_roofs(run: Run, file: Path) -> None:
    (analysis,) = run("analyze", file, "--json").json
    assert analysis["inner_loop"]["fma"] == 4
    assert analysis["least_seconds"] > 0


def test_options_of_gpus_are_refused(run: Run, file: Path) -> None:
    assert "for GPUs" in run("analyze", file, "--device", "H200", code=2).err
    assert "for GPUs" in run("bench", file, "--size", "8,8,8", "--l2-resident", code=2).err
    assert "for specs of processors" in run("bench", "gemm/v0_naive", "--size", "8,8,8", "--threads", "1", code=2).err


def test_tune_tells_choices_and_their_cost(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = host_tuning.Choice("second", {"first": 2.0, "second": 1.0}, 0.25)
    monkeypatch.setattr(host_tuning, "choice", lambda shape, transpose: chosen)
    out = run("tune", "--cpu").out
    assert out.count("chosen") == 10 and "found out in 2.5 s" in out  # five classes, NN and NT


def test_tune_for_processors_takes_no_problems(run: Run) -> None:
    assert "goes with no other option" in run("tune", "--cpu", "--kind", "gemm", code=2).err
