"""topk: values and places of a stable order, planted mistakes, choices, refusals, derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen import ops
from gemmgen.core.errors import LaunchError, PlanError, SpecError
from gemmgen.dispatch.problems import read_problem
from gemmgen.kernels.rows.selection import EQUAL, FEW_VALUES, RISING, ZEROS
from gemmgen.verification.oracle import oracle_of
from tests.kernels.verifying import verified

SPEC: dict[str, Any] = {"kind": "rows", "operation": "topk", "architecture": "sm_80"}
SHAPES: dict[str, dict[str, Any]] = {
    "several warps": {"lanes": 64, "vector": 2, "held": 3},
    "odd lengths": {"lanes": 32, "vector": 8, "held": 3, "input": "bf16", "aligned": False},
    "any length, smallest": {"lanes": 128, "vector": 4, "input": "f16", "smallest": True},
    "single elements": {"lanes": 32, "held": 5, "smallest": True},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_places_are_exact(shape: str) -> None:
    report = verified({**SPEC, **SHAPES[shape]})
    assert report.passed, [result.failure for result in report.results if not result.passed]


@pytest.mark.parametrize("name", [EQUAL, FEW_VALUES, RISING, ZEROS])
def test_cases_hold_equal_elements_and_orders(name: str) -> None:
    plan = gemmgen.plan({**SPEC, **SHAPES["several warps"]})
    assert any(case.name.startswith(name) for case in oracle_of("rows").cases(plan))


@pytest.mark.parametrize(
    ("shape", "planted"),
    [
        ("several warps", ("value + 0.0f", "value")),
        ("several warps", ("~column", "column")),
        ("odd lengths", ("order = 0xfffffffe;", "order = 0x80000000u;")),
        ("odd lengths", ("columns))\n                visit", "columns + 1))\n                visit")),
        ("any length, smallest", ("column <= low", "column < low")),
        ("any length, smallest", ("turn ^= 1;", "")),
        ("single elements", ("candidates.keys[j] > key", "candidates.keys[j] >= key")),
    ],
    ids=["minus-zero", "last-of-equals", "nan-is-zero", "beyond-the-row", "one-too-few", "one-place-for-parts", "own-rank"],
)
def test_planted_mistakes_are_found(shape: str, planted: tuple[str, str]) -> None:
    assert not verified({**SPEC, **SHAPES[shape]}, planted=planted).passed


@pytest.mark.parametrize(
    ("problem", "numbers"),
    [
        ("rows:8192,4096,topk,bf16,k=8", (128, 8, 4, True, False)),
        ("rows:300,100,topk,f32,k=50,smallest", (32, 1, 4, True, True)),
        ("rows:64,50257,topk,bf16,k=64,unaligned", (1024, 8, 0, False, False)),
    ],
)
def test_lanes_and_vectors_follow_from_rows_and_k(problem: str, numbers: tuple[Any, ...]) -> None:
    spec = gemmgen.for_problem(problem).spec
    assert (spec.lanes, spec.vector, spec.held, spec.aligned, spec.smallest) == numbers


def test_problems_name_k_and_the_order() -> None:
    text = "rows:256,512,topk,f16,smallest,k=7"
    assert read_problem(text).request.text == text.partition(":")[2]
    with pytest.raises(SpecError, match="k=1 to k=64"):
        read_problem("rows:256,512,topk,k=65")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lanes": 16, "held": 4}, "at least 32 with topk"),
        ({"lanes": 64, "held": 0}, "at least 128 with topk and held: 0"),
        ({"operation": "softmax", "smallest": True}, "the smallest elements of softmax"),
    ],
)
def test_specs_that_cannot_work_say_why(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        gemmgen.plan({**SPEC, **changes})


def test_an_axis_keeps_its_place() -> None:
    x = np.random.default_rng(1).integers(-9, 9, (3, 20, 2)).astype(np.float16)
    values, places = ops.topk(x, 4, axis=1, largest=False)
    order = np.argsort(x, axis=1, kind="stable")[:, :4]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis=1))


@pytest.mark.parametrize(("columns", "k"), [(80, 65), (80, 0), (5, 6)])
def test_too_many_elements_are_refused(columns: int, k: int) -> None:
    with pytest.raises(LaunchError, match=f"k is {k}, need 1 to 64"):
        ops.topk(np.zeros((2, columns), np.float32), k)
