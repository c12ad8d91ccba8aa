"""Decisions of plans, and every reason for which there is none."""

from __future__ import annotations

from typing import Any

import pytest

from gemmgen import api
from gemmgen.core.errors import PlanError, SpecError
from gemmgen.kernels.conv2d.plan import Conv2dPlan

FIELDS: dict[str, Any] = {
    "kind": "conv2d",
    "architecture": "sm_80",
    "gemm_m": "pixels",
    "tile": {"threadblock": {"m": 64, "n": 64, "k": 64}, "warp": {"m": 32, "n": 32}, "instruction": "m16n8k32"},
    "stages": 3,
}
POINTWISE = {"r": 1, "s": 1, "stride_h": 1, "stride_w": 1, "padding_h": 0, "padding_w": 0}


def planned(*overrides: str, **fields: Any) -> Conv2dPlan:
    from gemmgen.kernels.spec_files import load_spec

    plan = api.plan(load_spec({**FIELDS, **fields}, overrides))
    assert isinstance(plan, Conv2dPlan)
    return plan


def codes(*overrides: str, **fields: Any) -> set[str]:
    with pytest.raises(PlanError) as caught:
        planned(*overrides, **fields)
    return {reason.code for reason in caught.value.reasons}


def test_one_tap_needs_no_table() -> None:
    plan = planned(convolution=POINTWISE)
    assert (plan.walk, plan.pointwise, plan.bounded) == ("single", True, False)
    assert [argument.name for argument in plan.sequence.host_arguments] == ["divisors"]


def test_one_tap_with_a_stride_needs_coordinates_but_no_bounds() -> None:
    plan = planned(convolution={**POINTWISE, "stride_h": 2})
    assert (plan.walk, plan.pointwise, plan.bounded) == ("single", False, False)


def test_a_fixed_filter_has_a_table_of_its_taps() -> None:
    plan = planned(convolution={"r": 5, "s": 7})
    assert (plan.walk, plan.table_entries, plan.sequence.host_arguments[-1].size_bytes) == ("table", 35, 280)


def test_a_filter_known_at_launch_has_a_table_of_the_largest() -> None:
    assert planned(maximum_taps=121).table_entries == 121


def test_without_padding_the_table_says_nothing_about_bounds() -> None:
    plan = planned(convolution={"r": 3, "s": 3, "padding_h": 0, "padding_w": 0})
    assert [part.name for part in plan.sequence.host_arguments[-1].fields] == ["increment"]


def test_small_sums_can_do_without_a_conversion() -> None:
    assert planned("float_conversion=addition", maximum_depth=256).biased
    assert planned("float_conversion=addition", convolution={"c": 128, **POINTWISE}).biased


def test_channels_that_fill_their_tiles_need_no_check() -> None:
    assert planned(convolution={"k": 128}).whole_channels
    assert not planned(convolution={"k": 96}).whole_channels and not planned().whole_channels


def test_every_number_to_divide_by_is_prepared() -> None:
    assert planned().divisors == ("image_pixels", "q", "tiles")
    assert planned(convolution={"k": 64, **POINTWISE}).divisors == ("image_pixels",)


def test_a_tail_is_planned_for_only_where_there_can_be_one() -> None:
    assert planned().tail
    assert not planned(convolution={"c": 64}).tail
    assert not planned(convolution={"r": 2, "s": 2}).tail
    assert planned(convolution={"c": 96, "r": 3, "s": 3}).tail


def test_the_order_of_the_filter_follows_from_who_stores_what() -> None:
    assert planned(store="shared").filter_order == "plain"
    assert planned(store="direct").filter_order == "octets"
    assert planned(store="direct", gemm_m="output_channels").filter_order == "quads"


def test_large_tiles_take_dynamic_shared_memory() -> None:
    assert planned(stages=3).dynamic_shared_bytes == 0
    assert planned(stages=7).dynamic_shared_bytes == planned(stages=7).shared_bytes == 7 * 8192 + 4 * 1024


def test_persistent_blocks_are_no_more_than_tiles() -> None:
    (launch,) = planned(persistent_blocks=528).sequence.launches
    problem = {"n": 1, "p": 8, "q": 8, "k": 128, "groups": 1}
    assert launch.grid_of(problem) == (2, 1, 1) and launch.grid_of({**problem, "n": 1000}) == (528, 1, 1)


def test_parts_of_a_sum_are_finished_by_a_second_kernel() -> None:
    plan = planned(split_k=4)
    assert [launch.entry for launch in plan.sequence.launches] == [plan.name, f"{plan.name}_finish"]
    assert plan.sequence.workspace_bytes.evaluate({"k": 64, "n": 2, "p": 3, "q": 5}) == 4 * 4 * 64 * 30


@pytest.mark.parametrize(
    ("override", "code"),
    [
        ("tile.warp.m=24", "warp_tile"),
        ("tile.warp.n=16", "warp_tile"),
        ("tile.threadblock.k=48", "tile_k"),
        ("tile.threadblock={m: 64, n: 96, k: 64}", "copy"),
        ("stages=1", "stages"),
        ("convolution.c=48", "channels"),
        ("convolution.k=100", "channels"),
        ("convolution={c: 96, groups: 2}", "channels"),
        ("convolution={c: 131072, r: 1, s: 1}", "depth"),
        ("convolution={r: 17, s: 1}", "table"),
        ("output.type=s32", "exact_output"),
        ("float_conversion=addition", "float_conversion"),
        ("tile={threadblock: {m: 256, n: 256, k: 128}, warp: {m: 64, n: 64}, instruction: m16n8k32}", "shared_memory"),
        ("min_blocks_per_sm=16", "registers"),
        ("min_blocks_per_sm=32", "blocks_per_sm"),
        ("tile={threadblock: {m: 128, n: 256, k: 32}, warp: {m: 128, n: 128}, instruction: m16n8k32}", "registers"),
        ("tile={threadblock: {m: 512, n: 512, k: 64}, warp: {m: 32, n: 32}, instruction: m16n8k32}", "threads_per_block"),
    ],
)
def test_what_cannot_work_is_rejected_with_its_reason(override: str, code: str) -> None:
    assert code in codes(override)


@pytest.mark.parametrize("code", ["architecture", "instruction", "copy_through"])
def test_what_an_architecture_lacks_is_rejected(code: str) -> None:
    with pytest.raises(PlanError) as caught:
        api.plan(FIELDS, "sm_75")
    assert code in {reason.code for reason in caught.value.reasons}


def test_persistent_blocks_copy_in_background() -> None:
    assert "persistent" in codes("persistent_blocks=4", "split_k=2")
    assert "persistent" in codes("persistent_blocks=4", "copy_through=registers", "stages=2")


def test_more_than_two_stages_do_not_go_through_registers() -> None:
    assert "stages" in codes("copy_through=registers")


def test_channels_that_are_no_multiple_of_32_name_the_helper() -> None:
    with pytest.raises(PlanError, match="nchw_to_nchw32"):
        planned("convolution.c=48")


def test_all_reasons_come_at_once() -> None:
    found = codes("convolution={c: 48, k: 40, r: 20, s: 1}", "min_blocks_per_sm=32", "output.type=s32")
    assert {"channels", "table", "blocks_per_sm", "exact_output"} <= found


@pytest.mark.parametrize(
    "override", ["activation={op: clamp, low: 2.0, high: 1.0}", "activation={op: gelus}", "convolution.r=0", "stages=9", "colour=red"]
)
def test_wrong_values_are_rejected_when_a_spec_is_read(override: str) -> None:
    with pytest.raises(SpecError):
        planned(override)


def test_the_description_changes_neither_kernel_nor_name() -> None:
    assert planned(description="x").name == planned().name
    assert planned(stages=4).name != planned().name
