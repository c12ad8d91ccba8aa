"""Verification must catch kernels that are wrong: each test plants one mistake in a rendered source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen.kernels.family import Expected
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.runner import VerificationReport, compare_elements, verify_binary

SMALL: dict[str, Any] = {
    "kind": "gemm",
    "alignment": {"a": 4, "b": 4, "c": 4},
    "mainloop": {
        "strategy": "tiled",
        "tile": {"threadblock": {"m": 32, "n": 32, "k": 8}, "warp": {"m": 16, "n": 32}, "thread": {"m": 4, "n": 4}},
    },
    "epilogue": [{"op": "bias", "per": "column"}, {"op": "relu"}],
}


def verify_with(old: str, new: str, **changes: Any) -> VerificationReport:
    plan = gemmgen.plan({**SMALL, **changes})
    text = gemmgen.render(plan).text
    assert text.count(old) >= 1, f"{old!r} is not in the source any more"
    binary = compile_source(text.replace(old, new), architecture="sm_75", options=COMPILE_OPTIONS)
    return verify_binary(plan, binary, EmulatorBackend())


def test_an_unchanged_kernel_passes() -> None:
    report = verify_with("kTileM", "kTileM")
    assert report.passed and 0 < report.worst_ratio <= 1 and report.elements > 10_000


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("k_next < k;", "k_next < k - 1;"),
        ("for (int kk = 0;", "for (int kk = 1;"),
        ("stage ^= 1", "stage ^= 0"),
        ("row < rows_left ? columns_left : 0", "columns_left"),
        ("available >= 4", "available >= 3"),
        ("columns_left_a -= kTileK;", ""),
        ("beta * values[v]", "values[v]"),
        ("if (beta != 0.0f)", ""),
        ("if (alpha == 0.0f)\n        k = 0;", ""),
        ("value < 0.0f ? 0.0f : value", "fmaxf(value, 0.0f)"),
        ("bias[column]", "bias[column ^ 1]"),
        ("if (at_m >= m)\n            break;", ""),
        ("fmaf(alpha, accumulators[i][j + v]", "fmaf(1.0f, accumulators[i][j + v]"),
        ("* ldc", "* n"),
        ("= staged[pass][i]", "= __uint_as_float(__float_as_uint(staged[pass][i]) & ~0x1fffu)"),
    ],
)
def test_a_planted_mistake_fails(old: str, new: str) -> None:
    report = verify_with(old, new)
    assert not report.passed and all(result.failure for result in report.failures)


def test_failure_names_first_wrong_element() -> None:
    wrong = "value += bias[column] + (column == 1 ? 1.0f : 0.0f);"
    report = verify_with("value += bias[column];", wrong, epilogue=[SMALL["epilogue"][0]])
    failure = next(result.failure for result in report.failures if result.case.name == "one tile")
    assert failure.startswith("C[0, 1] is ") and failure.endswith("exactly; 32 of 1024 elements are wrong")


def test_no_case_at_all_is_no_success() -> None:
    plan = gemmgen.plan(SMALL)
    assert not gemmgen.verify(plan, "emulator", cases=[]).passed


@pytest.mark.parametrize(
    ("got", "value", "bound", "passes"),
    [
        (1.0, 1.0, 0.0, True),
        (1.0, np.nextafter(1.0, 2), 0.0, False),
        (1.1, 1.0, 0.2, True),
        (1.3, 1.0, 0.2, False),
        (np.nan, np.nan, 0.0, True),
        (np.nan, 1.0, 1e30, False),
        (1.0, np.nan, 1e30, False),
        (np.inf, np.inf, 0.0, True),
        (-np.inf, np.inf, 0.0, False),
        (3e38, np.inf, np.inf, True),
        (np.inf, 1.0, np.inf, True),
    ],
)
def test_comparison(got: float, value: float, bound: float, passes: bool) -> None:
    _, failure = compare_elements("C", np.array([got]), Expected(np.array([value]), np.array([bound])))
    assert (not failure) == passes


@pytest.mark.parametrize(("got", "wrong"), [(2**53 + 1, False), (2**53, True)])
def test_integers_are_compared_as_integers(got: int, wrong: bool) -> None:
    _, failure = compare_elements("Y", np.array([got]), Expected(np.array([2**53 + 1])))
    assert bool(failure) == wrong
    assert not wrong or failure.startswith("Y[0] is 9007199254740992, expected 9007199254740993 exactly")


@pytest.mark.parametrize(("got", "signed", "wrong"), [(-0.0, True, True), (-0.0, False, False), (0.0, True, False)])
def test_the_sign_of_zero_counts_where_it_is_asked_for(got: float, signed: bool, wrong: bool) -> None:
    assert bool(compare_elements("Y", np.array([got]), Expected(np.array([0.0]), signed_zeros=signed))[1]) == wrong
