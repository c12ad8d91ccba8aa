"""``gemmgen analyze`` as a user meets it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gemmgen.api import plan
from gemmgen.cli import cli
from gemmgen.kernels.family import Case
from gemmgen.toolchain import sass

needs_nvdisasm = pytest.mark.skipif(sass.find_nvdisasm() is None, reason="needs nvdisasm")


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["analyze", *arguments], prog_name="gemmgen")
    assert result.exit_code == code, f"{result.exit_code}\n{result.stdout}\n{result.stderr}"
    assert "Traceback" not in result.stderr
    return result


def analysed(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(*arguments, "--json").stdout)
    return found


@needs_nvdisasm
def test_one_spec_is_shown_in_full() -> None:
    text = run("gemm/v3_double_buffer", "--size", "1000,1000,1000").stdout
    for title in ("Occupancy", "Machine code", "Main loop", "Filling the H200", "Roofs of the H200", "Memory traffic of one case"):
        assert title in text
    assert "3 blocks" in text
    assert "would need at most 80 registers a thread" in text
    assert "share of FFMA" in text
    assert "m=1000 n=1000 k=1000" in text
    assert "64, 264 at a time: 0.24 waves" in text


@needs_nvdisasm
def test_the_steps_of_the_story_improve_what_they_are_about() -> None:
    v0, v1, v2, v3 = analysed("gemm/v0_naive", "gemm/v1_tiled", "gemm/v2_transposed_quads", "gemm/v3_double_buffer")
    loops = [spec["kernels"][0]["machine_code"]["main_loop"] for spec in (v0, v1, v2, v3)]
    shares = [loop["fma_share"] for loop in loops]
    assert shares[0] < 0.2 < 0.75 < min(shares[1:])
    assert loops[0]["wide_accesses"] == 0
    conflicts = [sum(kind["conflicts"] for kind in spec["traffic"]["total"]["shared_memory"].values()) for spec in (v1, v2, v3)]
    assert conflicts[0] > 0
    assert conflicts[1:] == [0, 0]
    assert loops[3]["ffma_ceiling"] > loops[1]["ffma_ceiling"] > loops[0]["ffma_ceiling"]


@needs_nvdisasm
def test_several_specs_are_a_table() -> None:
    lines = run("gemm/v1_tiled", "gemm/v3_double_buffer", "--no-traffic").stdout.splitlines()
    assert lines[0].split()[:3] == ["spec", "regs", "spill"]
    assert "conflicts" not in lines[0]
    assert lines[2].startswith("gemm/v1_tiled")


def test_without_nvdisasm_rest_is_shown_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: None)
    text = run("gemm/v3_double_buffer", "--no-traffic").stdout
    assert "not looked at: nvdisasm was not found; install it with: pip install 'nvidia-cuda-nvdisasm" in text
    assert "limited by" in text
    assert "bound by" in text
    table = run("gemm/v1_tiled", "gemm/v3_double_buffer", "--no-traffic").stdout
    assert "pip install 'nvidia-cuda-nvdisasm" in table
    (spec,) = analysed("gemm/v3_double_buffer", "--no-traffic")
    assert spec["kernels"][0]["machine_code"] is None
    assert "nvdisasm" in spec["machine_code_missing"]


def test_a_measured_time_gives_the_utilisations() -> None:
    # 2 * 4096^3 operations in 2.1 ms are 65.45 TFLOP/s of 65.5; 3 * 4 * 4096^2 bytes are 95.9 GB/s of 4550.
    (spec,) = analysed("gemm/v3_double_buffer", "--set", "beta=zero", "--size", "4096,4096,4096", "--time", "2.1ms", "--no-traffic")
    assert spec["measured"]["compute_utilisation"] == pytest.approx(2 * 4096**3 / 2.1e-3 / 65.5e12)
    assert spec["measured"]["memory_utilisation"] == pytest.approx(12 * 4096**2 / 2.1e-3 / 4.55e12)
    assert spec["measured"]["fraction_of_roof"] == spec["measured"]["compute_utilisation"]


@pytest.mark.parametrize("text", ["1300us", "1.3ms", "0.0013s", "1300 µs", "1.3e-3 s", "1300000ns", "1.3MS"])
def test_times_are_read_with_their_unit(text: str) -> None:
    from gemmgen.cli.commands.analyze import parse_time

    assert parse_time(text) == pytest.approx(1.3e-3)


@pytest.mark.parametrize("text", ["", "fast", "1.3", "0us", "-1us", "nan us", "1e999s", "1e-400s", "1 minute", "inf s", "١us", "1us 2us"])
def test_what_is_no_time_is_the_users_mistake(text: str) -> None:
    assert "--time" in run("gemm/v3_double_buffer", "--no-traffic", "--time", text, code=2).stderr


def test_tiles_and_waves_are_counted_by_hand() -> None:
    # 128 x 128 x 8 tiles of 1000 x 1000 x 1001: 8 x 8 blocks, 1024 x 1024 x 1008 executed; 2 blocks on each of 132 SMs.
    (spec,) = analysed("gemm/v3_double_buffer", "--size", "1000,1000,1001", "--no-traffic")
    quantisation = spec["quantisation"]
    assert quantisation["executed_operations"] == 2 * 1024 * 1024 * 1008
    assert quantisation["tile_efficiency"] == pytest.approx(1000 * 1000 * 1001 / (1024 * 1024 * 1008), abs=1e-4)
    (launch,) = quantisation["launches"]
    assert (launch["blocks"], launch["blocks_per_wave"]) == (64, 264)
    assert launch["efficiency"] == pytest.approx(64 / 264, abs=1e-4)


def test_a_convolution_executes_whole_tiles() -> None:
    # 49 pixels of 64 channels, 64 * 9 deep, by tiles of 64 pixels x 64 channels x 128.
    (spec,) = analysed("conv2d/mma_sync/int8/pixels_64x64x128", "--size", "1,64,7,7,64,3,3,1,1", "--no-traffic")
    assert spec["quantisation"]["executed_operations"] == 2 * 64 * 64 * 640
    assert spec["roofline"]["operations"] == 2 * 49 * 64 * 576


def test_instance_for_other_than_typical_sizes_is_analysed() -> None:
    (spec,) = analysed("conv2d/mma_sync/pointwise/128x64x64", "--no-traffic")
    assert spec["problem"]["r"] == 1


def test_an_empty_problem_is_no_mistake() -> None:
    assert "there is nothing to launch" in run("gemm/v3_double_buffer", "--size", "0,5,5", "--no-traffic").stdout


def test_every_kernel_of_a_sequence_is_analysed() -> None:
    (spec,) = analysed("gemm/simt/h200/64x128x16_split66", "--size", "128,128,65536", "--no-traffic")
    names = [kernel["entry"] for kernel in spec["kernels"]]
    assert len(names) == 2
    assert [launch["entry"] for launch in spec["quantisation"]["launches"]] == names
    assert spec["quantisation"]["launches"][0]["waves"] == 1.0


def test_traffic_is_what_verify_counts_and_what_plan_predicts() -> None:
    from gemmgen.kernels.gemm.plan import GemmPlan
    from gemmgen.kernels.gemm.simt.loop import TiledLoop
    from gemmgen.toolchain.compilation import compile_plan
    from gemmgen.verification.counters import count_case

    name = "gemm/v2_transposed_quads"
    (spec,) = analysed(name, "--arch", "sm_90")
    planned = plan(name, "sm_90")
    counted = count_case(planned, compile_plan(planned))
    assert spec["traffic"] == json.loads(json.dumps(counted.to_json()))
    assert isinstance(planned, GemmPlan)
    assert isinstance(planned.loop, TiledLoop)
    case: Case = counted.case
    steps = -(-case.dimensions["k"] // planned.loop.tile_k)
    (launch,) = planned.sequence.resolve(case.dimensions)
    warps = launch.grid[0] * planned.threads // 32
    predicted = sum(access.wavefronts for access in planned.loop.accesses) * steps * warps
    assert counted.counters.total.shared_total.wavefronts == predicted


def test_the_device_follows_the_architecture() -> None:
    assert analysed("gemm/v1_tiled", "--arch", "sm_80", "--no-traffic")[0]["device"] == "A100"
    assert analysed("gemm/v1_tiled", "--arch", "sm_90", "--no-traffic")[0]["device"] == "H200"
    (other,) = analysed("gemm/v1_tiled", "--device", "rtx 3090", "--no-traffic")
    assert (other["architecture"], other["runs_on_device"]) == ("sm_86", True)
    assert "does not run on it" in run("gemm/v1_tiled", "--arch", "sm_80", "--device", "H200", "--no-traffic").stdout


def test_an_unknown_bank_rule_is_said() -> None:
    if sass.find_nvdisasm() is None:
        pytest.skip("needs nvdisasm")
    assert "the rule for sm_120a is not known" in run("gemm/v3_double_buffer", "--device", "RTX 5090", "--no-traffic").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no/such",), "nor a spec that ships with gemmgen"),
        (("gemm/v1_tiled", "--device", "H900"), "unknown device"),
        (("gemm/v1_tiled", "--arch", "sm_1"), "unknown architecture"),
        (("gemm/v1_tiled", "--size", "1,2"), "needs 3 numbers"),
        (("gemm/v1_tiled", "--size", "1,2,x"), "--size"),
        (("gemm/v1_tiled", "--size", "2147483647,2147483647,8"), "grid"),
        (("gemm/v1_tiled", "gemm/v0_naive", "--time", "1us"), "--time"),
        (("gemm/v1_tiled", "gemm/v0_naive", "reduction/s7_shuffle", "--size", "8,8,8"), "needs 1 numbers"),
        (("gemm/simt/half_storage/bf16_cp_async", "--arch", "sm_75"), "sm_75"),
    ],
)
def test_mistakes_are_one_message(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments, "--no-traffic", code=2)
    assert words in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(("time", "doubted", "explained"), [("240us", False, False), ("231us", False, True), ("100us", True, False)])
def test_only_a_time_far_below_the_roof_is_doubted(time: str, doubted: bool, explained: bool) -> None:
    text = " ".join(run("reduction/sum/256m", "--size", "268435456", "--no-traffic", "--time", time).stdout.split())
    assert ("is the time that of this size?" in text) == doubted
    assert ("the roof is no exact limit" in text) == explained
