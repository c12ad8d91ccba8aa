"""Roofs of the units that operations run on."""

from __future__ import annotations

from typing import Any

import pytest

import gemmgen
from gemmgen.hardware.target import device
from gemmgen.kernels import family_of
from gemmgen.kernels.family import Cost
from gemmgen.perf.analysis.roofline import roofline
from gemmgen.perf.cost_model import cost_model_of

SUM = {"kind": "reduction", "operation": "sum", "strategy": {"name": "streaming"}, "typical": {"reduced": 1 << 20}}


def cost(spec: dict[str, Any]) -> Cost:
    """The cost of a spec on its typical problem."""
    plan = gemmgen.plan(spec)
    family = family_of(plan.spec)
    return cost_model_of(plan.spec.kind).cost(plan, family.problem(plan, tuple(family.instance_sizes(plan).values())))


def elementwise(operations: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {"kind": "elementwise", "operations": operations, **fields}


@pytest.mark.parametrize(
    ("spec", "unit"),
    [
        (SUM, "fp32"),
        (SUM | {"input": "float16"}, "fp32"),
        (SUM | {"input": "float64"}, "fp64"),
        (elementwise([{"op": "relu"}]), "fp32"),
        (elementwise([{"op": "relu"}], input="float64"), "fp64"),
    ],
)
def test_operations_are_held_against_the_unit_they_run_on(spec: dict[str, Any], unit: str) -> None:
    assert cost(spec).unit == unit


@pytest.mark.parametrize(("operations", "special"), [(["relu"], 0), (["exp"], 1), (["exp", "sqrt"], 2), (["silu"], 2), (["tanh"], 2)])
def test_special_functions_are_counted(operations: list[str], special: int) -> None:
    counted = cost(elementwise([{"op": name} for name in operations]))
    assert counted.special * len(operations) == special * counted.operations


@pytest.mark.parametrize(("name", "tflops"), [("H200", 33.45), ("A100", 9.746), ("T4", 0.2544), ("RTX 4090", 1.29)])
def test_roofs_of_doubles_follow_from_lanes_and_clock(name: str, tflops: float) -> None:
    roof = device(name).roof("fp64")
    assert roof is not None and roof.value / 1e12 == pytest.approx(tflops, rel=1e-3)


@pytest.mark.parametrize(("name", "tb_per_s", "origin"), [("H200", 16.73, "theory"), ("A100", 7.219, "datasheet"), ("T4", 4.07, "theory")])
def test_the_l2_has_a_roof(name: str, tb_per_s: float, origin: str) -> None:
    roof = device(name).l2_roof
    assert roof.origin == origin and roof.value / 1e12 == pytest.approx(tb_per_s, rel=1e-3)
    memory = device(name).memory_roof
    assert memory is not None and roof.value > memory.value


def test_special_functions_can_be_what_binds() -> None:
    many = roofline(Cost(operations=1e9, bytes=1.0, unit="fp32", special=1e9), device("H200"))
    assert many.special_roof.value == 132 * 16 * 1.98e9
    assert many.least_seconds == many.special_seconds > many.compute_seconds
    assert many.binding == "compute"
