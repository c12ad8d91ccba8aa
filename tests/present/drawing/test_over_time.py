"""Pictures of time and of devices: pipelines, shares of k, waves, occupancy, roofs."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

import gemmgen
from gemmgen.hardware.target import device
from gemmgen.kernels.pictures import OccupancyPicture, RoofPicture, TapWalk, Timeline, WavePicture
from gemmgen.kernels.pipeline_picture import MATH, Copies, pipeline
from gemmgen.kernels.spec_files import load_spec
from gemmgen.present.drawing import draw
from gemmgen.present.drawing.banks import lanes_text
from gemmgen.present.launch_pictures import all_pictures, launch_pictures, roof_pictures
from gemmgen.toolchain.nvrtc import KernelResources


@pytest.mark.parametrize(("copies", "stages"), [("registers", 1), ("registers", 2), ("cp_async", 3), ("cp_async", 4), ("tma", 4)])
def test_no_stage_is_filled_while_it_is_multiplied(copies: Copies, stages: int) -> None:
    for row in range(stages):
        spans = sorted((span for span in pipeline(copies, stages).spans if span.row == row), key=lambda span: span.start)
        assert all(one.start + one.length <= other.start + 1e-9 for one, other in itertools.pairwise(spans))


@pytest.mark.parametrize(("copies", "stages", "waits"), [("registers", 1, True), ("cp_async", 2, True), ("cp_async", 4, False)])
def test_enough_stages_hide_memory(copies: Copies, stages: int, waits: bool) -> None:
    begins = pipeline(copies, stages).marks
    assert any(later - sooner > MATH + 1e-9 for sooner, later in itertools.pairwise(begins)) is waits


def picture(name: str, kind: type) -> object:
    return next(one for one in all_pictures(gemmgen.plan(name), device("H200")) if isinstance(one, kind))


def test_stream_k_gives_blocks_equal_shares_and_cuts_tiles() -> None:
    found = next(one for one in all_pictures(gemmgen.plan("gemm/simt/stream_k"), device("H200")) if one.name == "k_division")
    assert isinstance(found, Timeline)
    steps = [sum(span.length for span in found.spans if span.row == row) for row in range(len(found.rows))]
    assert len(set(steps)) == 1
    assert any(not span.strong for span in found.spans)


def test_waves_are_those_of_the_problem() -> None:
    (waves, _) = launch_pictures(gemmgen.plan("gemm/v3_double_buffer", "sm_90a"), device("H200"), (4096, 4096, 512))
    assert isinstance(waves, WavePicture)
    (launch,) = waves.launches
    assert launch.blocks == 32 * 32 and launch.multiprocessors == 132


def test_registers_and_occupancy_are_of_the_compiled_kernel() -> None:
    plan = gemmgen.plan("gemm/v0_naive")
    used = KernelResources(200, 0, 0, 0, 0, 0, 0, 0, 1024)
    estimated, compiled = (
        next(one for one in all_pictures(plan, device("H200"), compiled=given) if isinstance(one, OccupancyPicture))
        for given in (None, {plan.sequence.launches[0].entry: used})
    )
    assert "the plan's estimate" in estimated.notes[0]
    assert "200 registers a thread, " in compiled.notes[0] and "about" not in compiled.notes[0]
    assert compiled.blocks < estimated.blocks


def test_a_full_wave_of_persistent_blocks_is_no_praise() -> None:
    plan = gemmgen.plan(load_spec("gemm/mma_sync/by_use/persistent"))
    (waves, _) = launch_pictures(plan, device("H200"))
    assert isinstance(waves, WavePicture) and waves.launches[0].persistent
    full = replace(waves, launches=(replace(waves.launches[0], blocks=waves.launches[0].multiprocessors, blocks_per_multiprocessor=1),))
    verdict = next(line for line in draw(plan.name, [full]).splitlines() if "persistent blocks, 100% of the places" in line)
    assert "good" not in verdict


def test_occupancy_is_the_least_of_its_limits() -> None:
    found = picture("gemm/v3_double_buffer", OccupancyPicture)
    assert isinstance(found, OccupancyPicture)
    assert found.blocks == min(limit for _, limit in found.limits)


@pytest.mark.parametrize("name", ["gemm/simt/stream_k", "gemm/wgmma/tour/bf16_128x256", "conv2d/mma_sync/split_k", "elementwise/relu"])
def test_every_text_lies_on_the_page(name: str) -> None:
    plan = gemmgen.plan(name)
    svg = draw(
        plan.name,
        [one for one in all_pictures(plan, device("H200")) if one.name in ("pipeline", "k_division", "waves", "occupancy", "roofs")],
    )
    assert svg.count("<text") > 10
    assert all(float(x) >= 0 for x in re.findall(r'<text [^>]*x="(-?[0-9.]+)"', svg))


def test_roofs_are_those_of_the_problem() -> None:
    found = picture("gemm/v3_double_buffer", RoofPicture)
    assert isinstance(found, RoofPicture)
    once, again = found.points
    arithmetic, memory, l2 = found.roofs
    assert once.intensity == pytest.approx(2 * 4096**3 / (3 * 4096**2 * 4)) and once.rate == pytest.approx(arithmetic.value)
    assert again.intensity == pytest.approx(2 * 4096**3 / ((32 + 32 + 1) * 4096**2 * 4))
    assert memory.sloped and l2.sloped and again.rate == min(arithmetic.value, again.intensity * l2.value)


def test_below_the_ridge_memory_is_the_roof() -> None:
    found = picture("elementwise/relu", RoofPicture)
    assert isinstance(found, RoofPicture)
    (once,) = found.points
    _, memory = found.roofs
    assert once.rate == pytest.approx(once.intensity * memory.value)


def test_special_functions_have_a_roof() -> None:
    plan = gemmgen.plan(load_spec("elementwise/relu", ["operations=[{op: silu}]"]))
    (found,) = roof_pictures(plan, device("H200"))
    assert isinstance(found, RoofPicture)
    assert [roof.title.split(" (")[0] for roof in found.roofs] == ["arithmetic", "memory", "special functions"]


def test_kernels_of_processors_have_no_launches() -> None:
    assert [picture.name for picture in all_pictures(gemmgen.plan("cpu/c0_naive"), device("H200"))] == ["loops"]


def test_lanes_that_do_not_fit_are_counted() -> None:
    assert lanes_text([0, 4, 8, 12, 16, 20, 24, 28], 24) == ("0+7", "tiny")
    assert lanes_text([10, 14, 18, 22], 15)[0] == "×4"


@pytest.mark.parametrize("name", ["conv2d/mma_sync/turing/128x64x64", "conv2d/mma_sync/turing/128x128x32"])
def test_increments_walk_every_tap_and_end_at_the_next_block(name: str) -> None:
    plan = gemmgen.plan(name)
    found = picture(name, TapWalk)
    assert isinstance(found, TapWalk)
    problem = gemmgen.kernels.family_of(plan.spec).instance_sizes(plan)
    pixels = {(row, column): 32 * (row * problem["w"] + column) for row in range(found.rows) for column in range(found.columns)}
    at, seen = 0, []
    for step in found.steps:
        assert at == pixels[step.row, step.column] + 32 * problem["h"] * problem["w"] * step.block
        seen.append((step.row, step.column))
        at += step.increment
    assert set(seen) == set(pixels)
    assert at % (32 * problem["h"] * problem["w"]) == 0


def test_a_kernel_that_counts_taps_has_no_increments() -> None:
    assert not any(isinstance(one, TapWalk) for one in all_pictures(gemmgen.plan("conv2d/mma_sync/large_filter"), device("H200")))


@pytest.mark.parametrize("name", ["cpu/c4_avx2_16x6", "cpu/c6_avx512"])
def test_a_step_on_the_units_of_a_core_has_all_its_multiply_adds(name: str) -> None:
    plan = gemmgen.plan(name)
    found = next(one for one in all_pictures(plan, device("H200")) if one.name == "peak")
    assert isinstance(found, Timeline)
    adds = [span for span in found.spans if found.rows[span.row].startswith("multiply-add")]
    assert len(adds) == plan.blocked.tile_rows * plan.blocked.tile_vectors
    assert len({(span.row, span.start) for span in found.spans}) == len(found.spans)
