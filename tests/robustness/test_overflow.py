"""Where float32 overflows, references overflow too, at the same step: a right kernel is not called wrong, and a wrong one is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import gemmgen
from gemmgen.core.elements import float_format
from gemmgen.kernels.accuracy import rounded, stored
from gemmgen.kernels.epilogue import numbers
from gemmgen.kernels.epilogue.functions import square_root
from gemmgen.kernels.epilogue.numbers import Tracked, overflown
from gemmgen.kernels.family import Case, Expected
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import compare_elements, verify_binary

LIMIT = float_format("f32").overflow
GEMM, ROWS = "specs/gemm/simt/layouts.yaml/unaligned", "specs/reduction/rows.yaml/32"
SPECS = {
    "scaled beyond": (GEMM, "epilogue=[{op: scale, factor: 3.0e38}]"),
    "scaled there and back": (GEMM, "epilogue=[{op: scale, factor: 3.0e38}, {op: scale, factor: 1.0e-38}]"),
    "clamped": (GEMM, "epilogue=[{op: scale, factor: 1.0e38}, {op: clamp, high: 6}]"),
    "a residual added": (GEMM, "epilogue=[{op: scale, factor: 1.0e38}, {op: residual}]"),
    "a negative slope": (GEMM, "epilogue=[{op: scale, factor: 1.0e36}, {op: leaky_relu, slope: -100}]"),
    "gelu": (GEMM, "epilogue=[{op: scale, factor: 1.0e38}, {op: gelu}]"),
    "silu": (GEMM, "epilogue=[{op: scale, factor: 1.0e38}, {op: silu}]"),
    "halves": ("specs/gemm/simt/half_storage.yaml/f16", "epilogue=[{op: scale, factor: 1.0e4}]"),
    "exp twice": (ROWS, "prologue=[{op: exp}, {op: exp}]"),
    "exp twice on results": (ROWS, "epilogue=[{op: exp}, {op: exp}]"),
    "exp in halves": (ROWS, "prologue=[{op: exp}, {op: cast, type: float16}]"),
    "exp of results in halves": (ROWS, "epilogue=[{op: exp}, {op: cast, type: float16}]"),
    "sums of both signs": (ROWS, "prologue=[{op: scale, factor: 3.0e38}]"),
}


def small(case: Case) -> bool:
    return sum(case.dimensions.values()) < 2000


@pytest.mark.parametrize("name", SPECS)
def test_a_right_kernel_that_overflows_is_verified(name: str) -> None:
    spec, override = SPECS[name]
    plan = gemmgen.plan(spec, overrides=[override])
    cases = [case for case in oracle_of(plan.spec.kind).cases(plan) if small(case)][-12:]
    report = verify_binary(plan, compile_plan(plan), EmulatorBackend(), cases=cases)
    assert not report.failures
    assert report.elements > 100, "nearly everything is undetermined"


def test_a_wrong_kernel_that_overflows_is_caught() -> None:
    plan = gemmgen.plan(GEMM, overrides=["epilogue=[{op: scale, factor: 3.0e38}, {op: clamp, high: 6}]"])
    unclamped = gemmgen.plan(GEMM, overrides=["epilogue=[{op: scale, factor: 3.0e38}]"])
    binary = compile_plan(unclamped)
    entry = plan.sequence.launches[0].entry
    binary = replace(binary, ptx=binary.ptx.replace(unclamped.sequence.launches[0].entry, entry))
    cases = [case for case in oracle_of(plan.spec.kind).cases(plan) if small(case)][:4]
    assert verify_binary(plan, binary, EmulatorBackend(), cases=cases).failures


@pytest.mark.parametrize(
    ("value", "bound", "expected", "leeway"),
    [
        (math.nextafter(LIMIT, 0), 0.0, math.nextafter(LIMIT, 0), "finite"),
        (LIMIT, 0.0, math.inf, "none"),
        (-LIMIT, 0.0, -math.inf, "none"),
        (2 * LIMIT, LIMIT / 4, math.inf, "none"),
        (LIMIT, LIMIT / 4, LIMIT, "any"),
        (0.9 * LIMIT, LIMIT / 4, 0.9 * LIMIT, "any"),
        (1.0, math.inf, 1.0, "any"),
        (math.inf, 0.0, math.inf, "none"),
    ],
)
def test_rounding_overflows_where_ieee_says(value: float, bound: float, expected: float, leeway: str) -> None:
    found, grown = rounded(np.array([value]), np.array([bound]))
    assert found[0] == expected
    assert {"none": grown[0] == 0, "any": grown[0] == math.inf, "finite": 0 < grown[0] < LIMIT}[leeway]


@pytest.mark.parametrize(("value", "bound", "leeway"), [(65520.0, 0.0, 0.0), (7e4, 1.0, 0.0), (65519.0, 5.0, math.inf)])
def test_halves_overflow_where_ieee_says(value: float, bound: float, leeway: float) -> None:
    found, grown = stored("f16", np.array([value]), np.array([bound]))
    assert grown[0] == leeway
    assert leeway or found[0] == math.inf


def test_what_may_have_overflowed_stays_unknown() -> None:
    near = Tracked(np.array([LIMIT, 1.0, math.inf]), np.array([1e30, math.inf, math.inf]), "f32")
    assert (overflown(near, "f32").bound == math.inf).all()


@pytest.mark.parametrize(
    ("value", "bound", "known"),
    [(4.0, 0.5, True), (4.0, 5.0, False), (-4.0, 5.0, False), (-4.0, 0.5, True), (0.0, 0.0, True), (math.nan, 0.0, True)],
)
def test_a_root_is_known_where_its_sign_is(value: float, bound: float, known: bool) -> None:
    root = square_root(Tracked(np.array([value]), np.array([bound]), "f32"))
    assert np.isfinite(root.bound[0]) == known
    assert not known or math.isnan(root.value[0]) == (not value >= 0)


def test_an_unknown_root_stays_unknown_when_it_is_multiplied() -> None:
    root = square_root(Tracked(np.array([-1e-30]), np.array([1e-29]), "f32"))
    assert numbers.rounded(root.value * 0.75, root.bound * 0.75, "f32").bound[0] == math.inf


def test_a_root_of_squares_is_known_beside_zero() -> None:
    root = square_root(Tracked(np.array([1e-30]), np.array([1e-30]), "f32"), of_squares=True)
    assert np.isfinite(root.bound[0])


@pytest.mark.parametrize("got", [math.inf, 3.4e38, math.nan])
def test_what_is_unknown_is_not_compared(got: float) -> None:
    expected = Expected(np.array([LIMIT, 1.0]), np.array([math.inf, 0.0]))
    assert compare_elements("C", np.array([got, 1.0]), expected) == (0.0, "")
    assert compare_elements("C", np.array([got, 2.0]), expected)[1]
