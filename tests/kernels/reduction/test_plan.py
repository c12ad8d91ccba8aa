"""Decisions of plans, and reasons for refusals."""

from __future__ import annotations

from typing import Any

import pytest

import gemmgen
from gemmgen.core.errors import PlanError, SpecError
from gemmgen.kernels import family_of
from gemmgen.kernels.reduction.plan import BlockLayout, ColumnLayout, LaneLayout, ReductionPlan
from gemmgen.kernels.reduction.spec import SERIES


def planned(**fields: Any) -> ReductionPlan:
    plan = gemmgen.plan({"kind": "reduction", "operation": "sum", **fields})
    assert isinstance(plan, ReductionPlan)
    return plan


def codes(**fields: Any) -> set[str]:
    with pytest.raises(PlanError) as caught:
        planned(**fields)
    assert all(reason.field and reason.need for reason in caught.value.reasons)
    return {reason.code for reason in caught.value.reasons}


def streaming(**changes: Any) -> dict[str, Any]:
    return {"name": "streaming", **changes}


PLACED = {"op": "formula", "inputs": {"gate": {"per": "element"}}, "value": "value * gate"}
"""An operation on elements with an operand for each."""


@pytest.mark.parametrize("name", SERIES)
def test_a_step_of_the_series_is_256_threads_and_a_second_kernel(name: str) -> None:
    plan = planned(strategy={"name": name})
    assert (plan.threads, plan.vector, plan.unroll, plan.finish) == (256, 1, 1, "two_pass")
    assert [launch.entry for launch in plan.sequence.launches] == [plan.name, f"{plan.name}_finish"]
    grid = plan.sequence.launches[0].grid_of({"reduced": 100_000})
    per_block = 256 * (1 if name in SERIES[:3] else 2 if name in SERIES[3:6] else 8)
    assert grid == (-(-100_000 // per_block), 1, 1)


@pytest.mark.parametrize(
    ("shape", "typical", "layout"),
    [
        ("all", {"reduced": 1 << 20}, BlockLayout),
        ("rows", {"outer": 1 << 24, "reduced": 32}, LaneLayout),
        ("rows", {"outer": 1 << 20, "reduced": 1024}, LaneLayout),
        ("rows", {"outer": 1 << 10, "reduced": 1 << 20}, BlockLayout),
        ("rows", {"outer": 4, "reduced": 4096}, BlockLayout),
        ("columns", {"reduced": 1 << 20, "inner": 1024}, ColumnLayout),
        ("columns", {"reduced": 1 << 24, "inner": 32}, ColumnLayout),
        ("middle", {"outer": 8, "reduced": 49, "inner": 512}, ColumnLayout),
        ("strided", {"outer": 8, "reduced": 49, "inner": 512}, ColumnLayout),
        ("strided", {"outer": 8, "reduced": 49, "inner": 1}, LaneLayout),
    ],
)
def test_the_rule_chooses_by_shape(shape: str, typical: dict[str, int], layout: type) -> None:
    plan = planned(shape=shape, typical=typical, alignment=1 if shape == "strided" else 4)
    assert isinstance(plan.layout, layout)
    assert plan.vector == (1 if shape == "strided" else 4)


def test_rows_of_a_warps_width_are_read_without_a_gap() -> None:
    layout = planned(shape="rows", typical={"outer": 1 << 24, "reduced": 32}, alignment=4).layout
    assert isinstance(layout, LaneLayout) and layout.lanes == 8 and layout.rows == 2


def test_a_row_of_a_warps_loads_is_read_by_eight_lanes() -> None:
    plan = planned(shape="rows", typical={"outer": 1 << 16, "reduced": 128}, alignment=4)
    assert isinstance(plan.layout, LaneLayout) and (plan.layout.lanes, plan.unroll) == (8, 4)


def test_few_columns_are_shared_by_many_blocks() -> None:
    tall = planned(shape="columns", typical={"reduced": 1 << 24, "inner": 32}, alignment=4)
    wide = planned(shape="columns", typical={"reduced": 1024, "inner": 1 << 20}, alignment=4)
    assert isinstance(tall.layout, ColumnLayout) and isinstance(wide.layout, ColumnLayout)
    assert tall.layout.splits >= 132 and wide.layout.splits == 1 and wide.finish is None


@pytest.mark.parametrize("exponent", range(10, 31))
def test_every_size_of_a_sum_gets_blocks_that_fit_the_device(exponent: int) -> None:
    plan = planned(typical={"reduced": 1 << exponent}, alignment=4, architecture="sm_90")
    blocks = plan.sequence.launches[0].grid_of({"reduced": 1 << exponent})[0]
    assert blocks <= 132 * 2048 // plan.threads
    assert blocks == 1 or blocks * plan.tile <= 1 << exponent


def test_integers_are_added_up_in_64_bits() -> None:
    assert planned(input="int32").arithmetic.compute == "s64"
    assert planned(input="int8", accumulator="int32").arithmetic.compute == "s32"
    assert planned(input="int8", operation="max").arithmetic.compute == "s32"
    assert planned(input="bfloat16").arithmetic.compute == "f32"
    assert planned(input="int32", operation="mean").arithmetic.output == "f64"
    assert planned(input="float16", operation="argmax").arithmetic.output == "s64"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"strategy": streaming(threads=96)}, "threads"),
        ({"strategy": streaming(vector=4)}, "alignment"),
        ({"strategy": streaming(vector=4), "alignment": 4, "input": "float64"}, "vector"),
        ({"strategy": streaming(early_launch=True)}, "early_launch"),
        ({"strategy": streaming(finish="atomic")}, "atomic"),
        ({"strategy": streaming(finish="atomic"), "input": "int32", "output": "int32"}, "atomic"),
        ({"strategy": streaming(threads=1024, blocks_per_sm=4)}, "blocks_per_sm"),
        ({"strategy": {"name": "row_lanes", "rows": 8, "unroll": 8}, "shape": "rows", "alignment": 4}, "registers"),
        ({"strategy": {"name": "sequential", "unroll": 2}}, "series"),
        ({"strategy": {"name": "sequential", "items_per_thread": 4}}, "series"),
        ({"strategy": {"name": "row_lanes"}}, "shape"),
        ({"strategy": streaming(), "shape": "rows"}, "shape"),
        ({"strategy": {"name": "column_tiles", "lanes": 256, "threads": 128}, "shape": "columns"}, "lanes"),
        ({"strategy": {"name": "column_tiles", "lanes": 1, "threads": 1024, "splits": 1025}, "shape": "columns"}, "splits"),
        ({"strategy": {"name": "row_lanes", "vector": 2}, "shape": "strided", "alignment": 2}, "vector"),
        ({"strategy": {"name": "sequential", "threads": 1024}, "operation": "mean_variance", "input": "float64"}, None),
        ({"accumulator": "int32"}, "type"),
        ({"operation": "logsumexp", "input": "int32", "accumulator": "int64"}, "type"),
        ({"operation": "argmax", "prologue": [{"op": "exp"}]}, "tie"),
        ({"operation": "mean_variance", "epilogue": [{"op": "abs"}]}, "epilogue"),
        ({"operation": "mean_variance", "output": "int32"}, "output"),
        ({"output": "bool"}, "output"),
        ({"input": "int32", "prologue": [{"op": "exp"}]}, "elementwise"),
        ({"input": "int32", "prologue": [{"op": "scale", "factor": 0.5}]}, "elementwise"),
        ({"shape": "tensor", "prologue": [{"op": "bias", "per": "channel"}]}, "elementwise"),
        ({"shape": "tensor", "strategy": {"name": "flat_tiles"}, "prologue": [PLACED]}, "elements"),
        ({"shape": "tensor", "strategy": {"name": "tensor_rows", "vector": 4}, "alignment": 4, "prologue": [PLACED]}, "elements"),
        ({"shape": "tensor", "strategy": {"name": "tensor_rows", "wide": True}, "prologue": [PLACED]}, "elements"),
        ({"shape": "tensor", "operation": ["sum", "max"], "prologue": [PLACED]}, "elements"),
        ({"prologue": [{"op": "bias"}], "epilogue": [{"op": "bias"}]}, "elementwise"),
        ({"epilogue": [{"op": "cast", "type": "int32"}, {"op": "scale", "factor": 2}]}, "elementwise"),
    ],
)
def test_what_cannot_work_is_refused_for_its_reason(fields: dict[str, Any], code: str | None) -> None:
    if code is None:
        assert planned(**fields).shared_bytes == 32 * 1024
    else:
        assert code in codes(**fields)


def test_what_an_operation_is_refused_for_is_said_in_words() -> None:
    with pytest.raises(PlanError) as caught:
        planned(input="int32", shape="tensor", prologue=[{"op": "bias", "per": "channel"}, {"op": "scale", "factor": 0.5}])
    assert "got bias per channel, need per all, memory, row, column or element" in str(caught.value)
    assert "got scale: 0.5 beside an integer value, need an integer" in str(caught.value)


def test_all_reasons_come_at_once() -> None:
    strategy = streaming(threads=96, vector=16, early_launch=True, finish="atomic")
    assert codes(strategy=strategy) >= {"threads", "vector", "alignment", "early_launch", "atomic"}


def test_no_blocks_of_rows_wait_for_one_another() -> None:
    with pytest.raises(SpecError, match="finish"):
        planned(shape="rows", strategy={"name": "row_blocks", "finish": "first_block"})


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(SpecError, match="strategy"):
        planned(strategy={"name": "fastest"})


def test_specs_that_differ_have_different_names() -> None:
    strategies = [streaming(unroll=unroll, finish=finish) for unroll in (1, 2, 4) for finish in ("two_pass", "last_block")]
    assert len({planned(strategy=strategy).name for strategy in strategies}) == 6


def test_sizes_on_command_line_are_extents_that_shape_has() -> None:
    family = family_of(planned().spec)
    assert family.instance_sizes(planned(typical={"reduced": 77})) == {"reduced": 77}
    assert list(family.instance_sizes(planned(shape="rows"))) == ["outer", "reduced"]
    plan = planned(shape="middle", alignment=4)
    problem = family.problem(plan, (2, 3, 5))
    assert problem == {"outer": 2, "reduced": 3, "inner": 5, "stride_reduced": 8, "stride_outer": 24}


@pytest.mark.parametrize(("vector", "joins"), [(1, False), (4, False)])
def test_moments_take_vectors_without_joining_states(vector: int, joins: bool) -> None:
    strategy = {"name": "row_lanes", "lanes": 1, "vector": vector}
    plan = planned(operation="mean_variance", shape="rows", alignment=4, strategy=strategy)
    assert ("combine(" in gemmgen.render(plan).text) == joins
