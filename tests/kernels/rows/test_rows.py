"""Operations on rows: every result within its derived bound, planted mistakes, requests and refusals."""

from __future__ import annotations

from typing import Any

import pytest

import gemmgen
from gemmgen.core.errors import LaunchError, PlanError, SpecError
from gemmgen.dispatch.problems import read_problem
from gemmgen.kernels.requests import Layout
from gemmgen.kernels.rows.matcher import OPERATIONS
from gemmgen.kernels.rows.operator import interpret
from gemmgen.kernels.rows.oracle import EQUAL, SHIFTED, SMALL, WIDE
from gemmgen.kernels.rows.programs import GRADIENTS_OF_NORMS
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import VerificationReport, verify_binary

SPEC: dict[str, Any] = {"kind": "rows", "architecture": "sm_80"}
NAMES = (
    "some lanes have more, rows of several blocks",
    "the longest row, rows of several blocks",
    SHIFTED,
    EQUAL,
    WIDE,
    SMALL,
    "not-a-numbers and infinities",
    "least aligned pointers",
    "3 x 0",
)
SHAPES = {
    "several warps": {"lanes": 64, "vector": 2, "held": 2},
    "odd lengths": {"lanes": 16, "vector": 8, "held": 2, "input": "bf16", "aligned": False},
    "any length": {"lanes": 32, "vector": 4, "input": "f16"},
}


def verified(spec: dict[str, Any], names: tuple[str, ...] = NAMES, planted: tuple[str, str] | None = None) -> VerificationReport:
    plan = gemmgen.plan({**SPEC, **spec})
    source = gemmgen.render(plan).text
    if planted is not None:
        assert planted[0] in source
        source = source.replace(*planted)
    cases = [case for case in oracle_of("rows").cases(plan) if case.name in names]
    assert len(cases) >= len(names)
    binary = compile_source(source, architecture=plan.architecture.name, options=COMPILE_OPTIONS)
    return verify_binary(plan, binary, EmulatorBackend(), cases=cases)


def operands(operation: str) -> dict[str, Any]:
    found: dict[str, Any] = {"operation": operation}
    if "norm" in operation:
        found |= {"weight": "f32", "bias": operation.startswith("layer")}
    return found


@pytest.mark.parametrize(
    ("operation", "shape"),
    [
        (operation, shape)
        for index, operation in enumerate(OPERATIONS)
        for place, shape in enumerate(SHAPES)
        if place == (0 if operation in GRADIENTS_OF_NORMS else index % 3)
    ],
)
def test_results_are_within_their_bounds(operation: str, shape: str) -> None:
    report = verified({**operands(operation), **SHAPES[shape]})
    assert report.passed, [result.failure for result in report.results if not result.passed]


@pytest.mark.parametrize("operation", ["rms_norm_gradient", "layer_norm_gradient"])
def test_short_rows_are_summed_over_rows(operation: str) -> None:
    vector = 4 if operation == "layer_norm_gradient" else 1
    spec = {**operands(operation), "input": "bf16", "weight": "bf16", "lanes": 16, "vector": vector, "held": 2, "blocks": 2}
    report = verified(spec, (*NAMES, "more rows than blocks"))
    assert report.passed, [result.failure for result in report.results if not result.passed]


def test_a_residual_is_rounded_before_its_norm() -> None:
    report = verified({"operation": "rms_norm", "residual": True, "input": "f16", "lanes": 32, "vector": 8, "held": 1})
    assert report.passed, [result.failure for result in report.results if not result.passed]


@pytest.mark.parametrize(
    ("spec", "planted"),
    [
        ({"operation": "softmax", **SHAPES["several warps"]}, ("lane < kWarps ? parts[lane] : 0.0f", "lane < 1 ? parts[lane] : 0.0f")),
        ({"operation": "softmax", **SHAPES["odd lengths"]}, (">= static_cast<unsigned>(n)", "> static_cast<unsigned>(n)")),
        ({"operation": "cumsum", **SHAPES["any length"]}, ("carry = combine(carry, all)", "carry = all")),
        ({"operation": "logcumsumexp", **SHAPES["any length"]}, ("a == b ? a + 0.693147181f", "a == b ? a")),
        ({**operands("layer_norm_gradient"), **SHAPES["several warps"]}, ("- level", "")),
        ({**operands("rms_norm"), **SHAPES["any length"]}, ("+ eps", "")),
    ],
    ids=["one-warp's-sum", "neighbour-counts", "carry-lost", "equal-values", "mean-lost", "eps-lost"],
)
def test_planted_mistakes_are_found(spec: dict[str, Any], planted: tuple[str, str]) -> None:
    assert not verified(spec, (*NAMES[:2], SMALL), planted=planted).passed


def test_problems_name_operation_type_and_operands() -> None:
    text = "rows:256,512,layer_norm,f16,weight_f32,bias,residual"
    assert read_problem(text).request.text == text.partition(":")[2]
    spec = gemmgen.for_problem(text).spec
    assert (spec.operation, spec.input, spec.weight, spec.bias, spec.residual) == ("layer_norm", "f16", "f32", True, True)
    with pytest.raises(SpecError, match="a problem of rows"):
        read_problem("rows:256,512,softplus")


@pytest.mark.parametrize(
    ("problem", "numbers"),
    [
        ("rows:8192,4096,softmax,bf16", (128, 8, 4, True)),
        ("rows:8192,4095,softmax,bf16,unaligned", (256, 8, 3, False)),
        ("rows:65536,100,softmax,f32", (8, 4, 4, True)),
        ("rows:2048,50257,log_softmax,bf16", (1024, 8, 0, False)),
        ("rows:2048,50256,log_softmax,bf16", (1024, 8, 7, True)),
        ("rows:16,1000000,softmax,bf16", (1024, 8, 0, True)),
        ("rows:64,999,rms_norm_gradient,f32,weight", (128, 1, 8, True)),
    ],
)
def test_lanes_follow_from_the_length_of_rows(problem: str, numbers: tuple[Any, ...]) -> None:
    spec = gemmgen.for_problem(problem).spec
    assert (spec.lanes, spec.vector, spec.held, spec.aligned) == numbers


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"operation": "softmax", "weight": "f32"}, "a weight of softmax"),
        ({"operation": "rms_norm", "bias": True}, "a bias of rms_norm"),
        ({"operation": "cumsum", "residual": True}, "a residual of cumsum"),
        ({"operation": "rms_norm", "input": "f16", "weight": "bf16"}, "bf16 beside f16"),
        ({"operation": "softmax", "vector": 8}, "8 elements of f32"),
        ({**operands("rms_norm_gradient")}, "from 1 to 16 elements of a thread"),
    ],
)
def test_specs_that_cannot_work_say_why(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        gemmgen.plan({**SPEC, **changes})


def test_unreadable_matrices_are_refused() -> None:
    columns = Layout((8, 16), (1, 8), "bf16")
    with pytest.raises(LaunchError, match="need shape \\(8, 16\\) without gaps within rows"):
        interpret({"x": columns}, {"operation": "softmax"})
