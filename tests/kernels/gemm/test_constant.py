"""Constant operands: their first tiles are copied before the kernel waits for the work before it, and nothing else is."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gemmgen
from gemmgen import emulator, ops
from gemmgen.core.errors import LaunchError, PlanError
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose
from gemmgen.dispatch.space import fastest_points
from gemmgen.hardware.target import device
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.verification.oracle import oracle_of

SPEC = Path("specs/gemm/wgmma/bf16_decode.yaml/32_pair")
HALVES = ["storage.a=f16", "storage.b=f16", "storage.c=f16"]
CONSTANT_A = [*HALVES, 'constant=["a"]']
WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'


@pytest.fixture(scope="module")
def compiled() -> tuple[gemmgen.InstancePlan, Binary]:
    plan = gemmgen.plan(SPEC, "sm_90a", CONSTANT_A)
    return plan, compile_plan(plan)


def test_verified_with_hazards() -> None:
    plan = gemmgen.plan(SPEC, "sm_90a", CONSTANT_A)
    report = gemmgen.verify(plan, "emulator", cases=oracle_of("gemm").cases(plan)[::6])
    assert report.passed, report


@pytest.mark.parametrize(("role", "passes"), [("B", True), ("A", False)])
def test_only_what_is_constant_is_read_before_the_wait(compiled: tuple[gemmgen.InstancePlan, Binary], role: str, passes: bool) -> None:
    """The product before this one writes the operand of that role."""
    plan, binary = compiled
    between = emulator.Buffer(np.zeros(32 * 64, np.float16), name="between")
    ones = [emulator.Buffer(np.ones(64 * 64, np.float16), name=f"ones {index}") for index in range(3)]
    last = emulator.Buffer(np.zeros(64 * 32, np.float16), name="last")
    sizes = {"m": 64, "n": 32, "k": 64, "lda": 64, "ldb": 64, "ldc": 64}
    pairs = [
        ({"A": ones[0], "B": ones[1], "C": between}, sizes),
        ({"A": ones[2], "B": ones[2], "C": last} | {role: between}, sizes | ({"m": 32} if role == "A" else {})),
    ]
    before = None
    for arrays, numbers in pairs:
        (launch,) = plan.sequence.resolve(numbers)
        maps = {each.name: replace(each.tensor_map, base=arrays[each.array]) for each in launch.tensor_maps}
        given = {**arrays, **numbers, **maps}

        def run(launch=launch, given=given, before=before):
            return emulator.launch(
                binary.ptx,
                launch.entry,
                grid=launch.grid,
                block=launch.block,
                shared_bytes=launch.shared_bytes,
                args=[given[name] for name, _ in launch.parameters],
                shared_limit=227 << 10,
                cluster=launch.cluster,
                hazards=True,
                overlaps=before,
                overlapped=before is None,
            )

        if before is not None and not passes:
            with pytest.raises(emulator.EmulatorError, match="between"):
                run()
        else:
            before = run()


def test_a_wait_stands_in_both_roles(compiled: tuple[gemmgen.InstancePlan, Binary]) -> None:
    text = gemmgen.render(compiled[0]).text
    producer, consumer = text.index("// Producer"), text.index("// Consumers")
    assert text.count(WAIT) == 2
    assert text.index("load_boxes_2d<kBoxesB", producer) > text.index(WAIT, producer) > text.index("map_a, full", producer)
    assert text.index(WAIT, consumer) < text.index("accumulators", consumer)


@pytest.mark.parametrize(
    ("spec", "overrides", "field"),
    [
        ("wgmma/bf16_decode.yaml/32_pair", ["early_launch=false"], "early_launch"),
        ("wgmma/bf16_decode.yaml/32_pair", ["mainloop.copied=a", "alignment.a=1"], "mainloop.copied"),
        ("wgmma/bf16_decode.yaml/32_pair", ['constant=["a", "a"]'], "constant"),
        ("wgmma/grouped.yaml/bf16", [], "constant"),
        ("wgmma/stream_k.yaml", [], "constant"),
        ("v1_tiled.yaml", ["architecture=sm_90"], "constant"),
    ],
)
def test_refusals(spec: str, overrides: list[str], field: str) -> None:
    with pytest.raises(PlanError) as raised:
        gemmgen.plan(f"specs/gemm/{spec}", "sm_90a", ["early_launch=true", 'constant=["a"]', *overrides])
    assert field in {reason.field for reason in raised.value.reasons}, raised.value


def test_ops_take_a_constant_factor() -> None:
    rng = np.random.default_rng(7)
    a, w = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((16, 256), (192, 256)))
    found = ops.matmul(a, ops.Constant(ops.Constant(w.T)), backend="emulator")
    assert (found == (a.astype(np.float32) @ w.T.astype(np.float32)).astype(np.float16)).all()
    with pytest.raises(LaunchError):
        ops.Constant(np.float16(1))


@pytest.mark.parametrize(("rows", "operand"), [(16, "a"), (512, "b")])
def test_the_choice_declares_the_operand_that_the_kernel_reads(rows: int, operand: str) -> None:
    """Kernels for few rows compute the transpose, of which the weights are the left factor."""
    chosen = choose(parse_problem(f"gemm:{rows},8192,8192,nt,bf16,constant"), device("H200")).chosen
    plain = choose(parse_problem(f"gemm:{rows},8192,8192,nt,bf16"), device("H200")).chosen
    assert chosen.plan.spec.constant == (operand,) and chosen.plan.spec.early_launch
    assert plain.plan.spec.constant == ()


@pytest.mark.parametrize("text", ["16,9216,9216", "16,8192,8192", "64,12288,5120", "1,5120,12288"])
def test_full_grids_copy_constant_weights_early(text: str) -> None:
    chosen = choose(parse_problem(f"gemm:{text},nt,bf16,constant"), device("H200")).chosen
    blocks = math.prod(chosen.plan.sequence.launches[0].grid_of(chosen.dimensions))
    resident = chosen.plan.spec.mainloop.min_blocks_per_sm
    assert chosen.early and chosen.plan.spec.constant
    assert 0.8 <= blocks / (132 * resident) <= 1


@pytest.mark.parametrize(("text", "blocks", "early"), [("8,3584,4096", 56, True), ("96,18432,8192", 96, False)])
def test_grids_that_leave_room_start_early_if_they_are_short(text: str, blocks: int, early: bool) -> None:
    chosen = choose(parse_problem(f"gemm:{text},nt,bf16"), device("H200")).chosen
    assert chosen.candidate.is_point and chosen.early == early
    assert math.prod(chosen.plan.sequence.launches[0].grid_of(chosen.dimensions)) == blocks


def test_products_of_several_waves_wait() -> None:
    chosen = choose(parse_problem("gemm:4096,8192,8192,nt,bf16,constant"), device("H200")).chosen
    assert not chosen.early and not chosen.plan.spec.constant


def test_the_choice_counts_what_early_copies_save() -> None:
    target, request = device("H200"), parse_problem("gemm:16,4096,14336,nt,bf16")
    points = fastest_points(request, target, 12e-6)
    early = fastest_points(request, target, 12e-6, early_copies=True)
    assert early[0].saved > 0
    assert [one.seconds - one.saved for one in early] == sorted(one.seconds - one.saved for one in early)
    assert points[0].seconds <= early[0].seconds


def test_a_point_copies_early_where_there_are_few_blocks() -> None:
    """Three layers took 3.7 us less on an H200, one of them 1 x 2560 x 2560 by 80 blocks instead of 40."""
    request, target = parse_problem("gemm:1,2560,2560,nt,bf16,constant"), device("H200")
    plain, chosen = (choose(one, target).chosen for one in (request.unpromised, request))
    grids = [one.plan.sequence.launches[0].grid_of(one.dimensions)[0] for one in (plain, chosen)]
    assert grids[0] < 0.55 * 132 <= grids[1] and chosen.plan.spec.constant == ("a",) and chosen.early


def test_a_point_that_copies_early_replaces_multiply_adds() -> None:
    request, target = parse_problem("gemm:1,4096,14336,nt,bf16,constant"), device("H200")
    assert not choose(request.unpromised, target).chosen.candidate.is_point
    chosen = choose(request, target).chosen
    assert chosen.candidate.is_point and chosen.plan.spec.constant == ("a",)


@pytest.mark.parametrize(("rows", "divided"), [(16, True), (64, False)])
def test_slices_save_more_time_where_rows_are_few(rows: int, divided: bool) -> None:
    chosen = choose(parse_problem(f"gemm:{rows},7168,9216,nt,bf16,constant"), device("H200")).chosen
    assert chosen.plan.spec.constant and (chosen.plan.spec.decomposition.scheme == "split_k_cluster") == divided


@pytest.mark.parametrize(("text", "slices", "blocks"), [("16,2560,3072", 2, 80), ("16,2560,8192", 3, 120), ("1,2560,2560", 4, 80)])
def test_slices_on_half_of_the_sms_copy_weights(text: str, slices: int, blocks: int) -> None:
    """They saved 1.5 to 4 us in chains of layers on an H200."""
    chosen = choose(parse_problem(f"gemm:{text},nt,bf16,constant"), device("H200")).chosen
    assert chosen.plan.spec.constant == ("a",) and chosen.plan.spec.decomposition.slices == slices
    assert chosen.plan.sequence.launches[0].grid_of(chosen.dimensions)[0] == blocks


def test_two_waves_of_whole_k_copy_weights() -> None:
    """The second copies while the first ends: 224 tiles on 132 SMs."""
    chosen = choose(parse_problem("gemm:16,14336,2560,nt,bf16,constant"), device("H200")).chosen
    assert chosen.plan.spec.constant == ("a",) and chosen.plan.spec.decomposition.scheme == "data_parallel"
    plain = choose(parse_problem("gemm:16,14336,2560,nt,bf16"), device("H200")).chosen
    assert not plain.plan.spec.early_launch


@pytest.mark.parametrize(("changes", "tiles"), [([], 4), (["mainloop.min_blocks_per_sm=2"], 2), (["mainloop.tile.k=64"], 8)])
def test_the_l2_fetches_tiles_that_no_stage_has_room_for(changes: list[str], tiles: int) -> None:
    """As many bytes for the blocks of an SM, whatever their size and number."""
    spec = SPEC.with_name("16")
    text = gemmgen.render(gemmgen.plan(spec, "sm_90a", ['constant=["a"]', "mainloop.stages=3", *changes])).text
    assert f"constexpr int kAhead = {tiles};" in text
    assert text.index("prefetch_boxes_2d<kBoxesA", text.index("// Producer")) < text.index(WAIT, text.index("// Producer"))


def test_tiles_that_a_cluster_shares_are_not_fetched_ahead() -> None:
    assert "prefetch_boxes_2d" not in gemmgen.render(gemmgen.plan(SPEC, "sm_90a", CONSTANT_A)).text


def test_blocks_that_share_sms_wait_unless_they_fill_them() -> None:
    """They gather on the SMs that other launches leave free: three layers of one row took 79 us on an H200, not 58."""
    points = fastest_points(parse_problem("gemm:8,6144,4096,nt,bf16"), device("H200"), 12e-6)
    sharing = [point.spec for point in points if point.spec.mainloop.min_blocks_per_sm > 1]
    assert sharing and not any(spec.early_launch for spec in sharing if spec.decomposition.scheme == "data_parallel")


def test_one_row_of_many_outputs_does_not_copy_by_few_stages() -> None:
    """The 14336 outputs by slices of three stages took 10% longer than without ``Constant``."""
    chosen = choose(parse_problem("gemm:1,14336,8192,nt,bf16,constant"), device("H200")).chosen
    assert chosen.plan.spec.mainloop.tile.m == 64
