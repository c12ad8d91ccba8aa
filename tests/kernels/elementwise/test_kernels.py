"""Elementwise kernels: their plans, any spec on the emulator, planted mistakes, costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.kernels import family_of
from gemmgen.kernels.elementwise.cost_model import cost
from gemmgen.kernels.elementwise.matcher import merge_axes, parse_request
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.runner import verify_binary


def planned(**fields: Any) -> Any:
    return gemmgen.plan({"kind": "elementwise", "threads": 32, **fields})


def failures(plan: Any, binary: Any) -> list[str]:
    return [
        f"{result.case.name}: {result.failure}" for result in verify_binary(plan, binary, EmulatorBackend()).results if not result.passed
    ]


OPERATIONS = [
    {"op": "relu"},
    {"op": "bias", "per": "column"},
    {"op": "bias"},
    {"op": "residual"},
    {"op": "multiply"},
    {"op": "abs"},
    {"op": "scale", "factor": 3.0},
    {"op": "silu"},
    {"op": "cast", "type": "float16"},
    {"op": "cast", "type": "float64"},
]


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    contiguous = draw(st.booleans())
    return {
        "input": draw(st.sampled_from(["float32", "float16", "bfloat16", "float64", "int8", "int32"])),
        "operations": draw(st.lists(st.sampled_from(OPERATIONS), max_size=3)),
        "rank": draw(st.integers(1, 4)),
        "inner": "contiguous" if contiguous else "strided",
        "alignment": draw(st.sampled_from([1, 2, 4, 8])) if contiguous else 1,
        "unroll": draw(st.sampled_from([1, 2, 3])),
        "threads": draw(st.sampled_from([32, 64])),
        "blocks": draw(st.sampled_from([None, 1, 3])),
    }


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(specs())
def test_any_spec_verifies_or_is_refused_with_reasons(fields: dict[str, Any]) -> None:
    try:
        plan = planned(**fields)
    except PlanError as error:
        assert error.reasons
        return
    assert not failures(plan, compile_plan(plan))


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        ({"alignment": 4}, "i < available ? source[i]", "i <= available ? source[i]"),
        ({"alignment": 4}, "if (i < available)", "if (i <= available)"),
        ({"unroll": 2}, "min(first + u * kThreads, units - 1)", "min(first + u * kThreads, units - 2)"),
        ({"unroll": 2}, "if (first + u * kThreads < units)", "if (first + u * kThreads + 1 < units)"),
        ({"rank": 3}, "above1 * d1", "above1 * d0"),
        ({"rank": 2, "operations": [{"op": "bias", "per": "row"}]}, "bias[i0]", "bias[column]"),
        ({"blocks": 2}, "gridDim.x * kTile", "gridDim.x * kTile + 1"),
    ],
)
def test_a_planted_mistake_is_caught(fields: dict[str, Any], right: str, wrong: str) -> None:
    plan = planned(**fields)
    source = gemmgen.render(plan).text
    assert right in source and not failures(plan, compile_plan(plan))
    assert failures(plan, compile_source(source.replace(right, wrong), architecture="sm_75"))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"vector": 4, "alignment": 2}, "vector"),
        ({"vector": 2, "inner": "strided"}, "vector"),
        ({"input": "int32", "operations": [{"op": "gelu"}]}, "operations.0"),
        ({"operations": [{"op": "bias", "per": "row"}]}, "operations.0"),
        ({"early_launch": True}, "early_launch"),
    ],
)
def test_what_cannot_work_names_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(PlanError) as error:
        planned(**fields)
    assert [reason.field for reason in error.value.reasons] == [field]


def test_a_binary_operation_moves_three_arrays() -> None:
    plan = planned(operations=[{"op": "residual"}])
    least = cost(plan, family_of(plan.spec).problem(plan, [1000]))
    assert (least.operations, least.bytes) == (1000, 12000)


def test_a_broadcast_operand_is_read_once() -> None:
    plan = planned(operations=[{"op": "residual"}], rank=2)
    problem = {**family_of(plan.spec).problem(plan, [10, 100]), "z_stride0": 0}
    assert cost(plan, problem).bytes == 4 * (1000 + 100 + 1000)


def test_axes_that_all_arrays_walk_alike_become_one() -> None:
    assert merge_axes((2, 3, 4), {"x": (12, 4, 1), "y": (24, 8, 2)}) == ((24,), {"x": (1,), "y": (2,)})
    assert merge_axes((2, 3, 4), {"x": (12, 4, 1), "z": (0, 4, 1)}) == ((2, 12), {"x": (12, 1), "z": (0, 1)})


def test_words_of_a_problem_come_back_as_they_are() -> None:
    request = parse_request((1, 1, 64, 512), ["f16", "padded"])
    assert request.text == "1,1,64,512,f16,padded"


def test_an_operand_is_rounded_to_the_type_after_a_cast() -> None:
    plan = planned(input="float64", operations=[{"op": "cast", "type": "float16"}, {"op": "bias", "per": "column"}])
    assert not failures(plan, compile_plan(plan))
