"""Sizes that kernels are made for: constants in the source, the cases that are left, and refusals of other sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen.core.errors import LaunchError, PlanError, SpecError
from gemmgen.core.formulas import Formula
from gemmgen.kernels.family import KernelPlan
from gemmgen.runtime.backends import find_backend
from gemmgen.verification.baked_cases import cases_of, counted_case_of, general_plan
from gemmgen.verification.runner import verify_binary

MADE = {
    "gemm/v3_double_buffer": {"n": 64, "k": 24},
    "gemm/simt/split_k/tall_64x8": {"n": 8, "k": 40, "slices": 2},
    "gemm/wgmma/bf16/128x256": {"k": 64, "ldb": 72},
    "conv2d/mma_sync/turing/one_stage": {"h": 5, "w": 6, "r": 3, "s": 3, "stride_h": 1},
    "reduction/mean_bf16_rows": {"reduced": 128, "stride_outer": 200},
    "elementwise/gated_silu": {"d1": 96, "x_stride0": 104},
}


def made(name: str, sizes: dict[str, int]) -> Any:
    return gemmgen.plan({**gemmgen.load_spec(name).model_dump(mode="json"), "sizes": sizes})


@pytest.mark.parametrize("name", MADE)
def test_sizes_become_constants_and_no_parameters(name: str) -> None:
    plan, general = made(name, MADE[name]), gemmgen.plan(name)
    text = gemmgen.render(plan).text
    assert all(f"constexpr int {size} = {value};" in text for size, value in MADE[name].items())
    assert not any(set(launch.arguments) & MADE[name].keys() for launch in plan.sequence.launches)
    assert plan.name != general.name and general_plan(plan).sequence.launches[0].block == plan.sequence.launches[0].block
    again = gemmgen.plan(plan.spec.model_dump(mode="json"))
    assert gemmgen.render(again).text == text


@pytest.mark.parametrize("name", MADE)
def test_cases_that_are_left_have_the_sizes_and_are_right(name: str) -> None:
    plan = made(name, MADE[name])
    cases = cases_of(plan)
    assert len(cases) >= 4
    assert all(case.dimensions[size] == value for case in [*cases, counted_case_of(plan)] for size, value in MADE[name].items())
    some = sorted(cases, key=lambda case: sum(case.dimensions.values()))[:3]
    report = gemmgen.verify(plan, "emulator", cases=some)
    assert report.passed, report.failures[0].failure


def test_a_constant_that_is_wrong_is_found() -> None:
    plan = made("gemm/v3_double_buffer", {"k": 24})
    wrong = made("gemm/v3_double_buffer", {"k": 16})
    binary = gemmgen.compile(wrong).binary
    renamed = replace(binary, ptx=binary.ptx.replace(wrong.name, plan.name))
    cases = [case for case in cases_of(plan) if case.dimensions["m"] and case.dimensions["n"]][:1]
    assert not verify_binary(plan, renamed, find_backend("emulator"), cases=cases).passed


def test_other_sizes_are_refused_with_the_reason() -> None:
    kernel = gemmgen.compile(made("gemm/v3_double_buffer", {"n": 64, "k": 24}))
    a, b, c = np.ones((3, 24), np.float32), np.ones((24, 64), np.float32), np.zeros((3, 64), np.float32)
    kernel(A=a, B=b, C=c)
    assert (c == 24).all()
    with pytest.raises(LaunchError, match=r"n must be 64, which the kernel is made for \(got 32\)"):
        kernel(A=a, B=np.ones((24, 32), np.float32), C=np.zeros((3, 32), np.float32))


def test_edges_are_not_checked_where_sizes_rule_them_out() -> None:
    def instructions(sizes: dict[str, int]) -> int:
        return gemmgen.compile(made("gemm/v3_double_buffer", sizes)).binary.ptx.count(";\n")

    whole, uneven, general = ({"m": 256, "n": 256, "k": 64}, {"m": 257, "n": 255, "k": 61}, {})
    assert made("gemm/v3_double_buffer", whole).spec.multiple_of.k == 64
    assert instructions(whole) < 0.9 * instructions(general) and instructions(whole) < instructions(uneven)


def test_formulas_are_evaluated_as_far_as_sizes_go() -> None:
    formula = Formula("min(ceil_div(m, 128) * ceil_div(n, 128), 132) + select(k > 5, n, m) - 7")
    assert str(formula.given({"n": 256, "k": 4})) == "min(ceil_div(m, 128) * 2, 132) + m - 7"
    assert formula.given({"m": 1, "n": 1, "k": 9}).evaluate({}) == formula.evaluate({"m": 1, "n": 1, "k": 9})
    assert formula.given({"x": 1}) is formula


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"nn": 4}, "a dimension: one of m, n, k"),
        ({"n": 64, "ldb": 3}, "ldb must be at least n"),
        ({"slices": 2}, "one of m, n, k"),
    ],
)
def test_sizes_that_cannot_be_are_refused_with_all_reasons(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        made("gemm/v3_double_buffer", sizes)


@pytest.mark.parametrize("sizes", [{"n": 0}, {"n": -1}, {"n": 2**40}, {"n": "many"}, {"N N": 4}, [3], "n", {f"n{i}": 1 for i in range(99)}])
def test_what_is_no_size_is_refused(sizes: Any) -> None:
    with pytest.raises((SpecError, PlanError)):
        gemmgen.load_spec({**gemmgen.load_spec("gemm/v3_double_buffer").model_dump(mode="json"), "sizes": sizes})


def test_a_spec_without_sizes_keeps_its_digest() -> None:
    plan = gemmgen.plan("gemm/v3_double_buffer")
    assert isinstance(plan, KernelPlan)
    assert "sizes" not in plan.spec.identity() and plan.spec_digest.startswith("13b241e0")


def test_kernels_for_processors_have_no_sizes() -> None:
    with pytest.raises(PlanError, match="take any sizes"):
        made("cpu/micro_kernels/avx2_6x16", {"m": 4})
