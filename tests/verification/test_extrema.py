"""Extrema for all data: right kernels are claimed, planted mistakes found, and kernels that do more than compare are not claimed."""

from __future__ import annotations

from functools import cache

import pytest
from sampling import ALL

import gemmgen
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.field import FieldReport, verify_field

ROWS, PLACES, ALL_OF_IT = "reduction/general/max_rows", "reduction/general/argmax_rows", "reduction/general/max_all"
CLAIMED = (ROWS, PLACES, ALL_OF_IT, "reduction/general/argmin_rows", "reduction/argmax_vocabulary_bf16", "reduction/min_f32_strided")


@cache
def plan_of(name: str) -> KernelPlan:
    plan = gemmgen.plan(shipped_specs()[name])
    assert isinstance(plan, KernelPlan)
    return plan


def judged(name: str, *changes: tuple[str, str]) -> FieldReport:
    """The report about a kernel whose source has been changed."""
    plan = plan_of(name)
    text = gemmgen.render(plan).text
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    binary = compile_source(text, architecture=plan.architecture.name, options=COMPILE_OPTIONS, name="changed.cu")
    return verify_field(plan, binary)


@pytest.mark.parametrize("name", CLAIMED if ALL else CLAIMED[1:3])
def test_extrema_are_claimed(name):
    report = verify_field(plan_of(name))
    assert report.outcome == "passed", report.reason
    assert report.miss_bits >= 29


MISTAKES = {
    "an element is left out": (
        ROWS,
        ("combine(totals[r][0], source[r][at])", "at == 1036 ? totals[r][0] : combine(totals[r][0], source[r][at])"),
    ),
    "NaN is passed over": (ROWS, ("a != a || b != b ? a + b : ", "")),
    "the least number is zero": (ROWS, ("return -__int_as_float(0x7f800000);", "return 0.0f;")),
    "the last of equal ones": (PLACES, ("a.value == b.value && a.index < b.index", "a.value == b.value && a.index > b.index")),
    "ties are left to chance": (PLACES, ("a.value > b.value || (a.value == b.value && a.index < b.index)", "a.value >= b.value")),
    "the last NaN": (PLACES, ("b.value == b.value || a.index < b.index", "b.value == b.value || a.index > b.index")),
    "NaN is not looked for": (PLACES, ("if (a.value != a.value || b.value != b.value)", "if (false)")),
    "the place of another": (PLACES, ("Extremum{source[r][at], at}", "Extremum{source[r][at], at ^ 1}")),
}


@pytest.mark.parametrize("mistake", MISTAKES if ALL else list(MISTAKES)[1:6])
def test_a_planted_mistake_is_found(mistake):
    name, change = MISTAKES[mistake]
    report = judged(name, change)
    assert report.outcome == "wrong", report.text


NOT_ONLY_COMPARED = {
    "compared with a number": (
        ROWS,
        ("= combine(totals[r][0], source[r][at])", "= source[r][at] > 3.0f ? source[r][at] : combine(totals[r][0], source[r][at])"),
    ),
    "an element decides about a loop": (ROWS, ("at < reduced; at += kLanes)", "at < reduced && source[0][at] != 7.0f; at += kLanes)")),
    "a sum beside it": (ROWS, ("= combine(totals[r][0], source[r][at])", "= combine(totals[r][0], source[r][at]) + 0.0f * source[r][at]")),
}


@pytest.mark.parametrize("use", NOT_ONLY_COMPARED if ALL else list(NOT_ONLY_COMPARED)[2:])
def test_more_than_comparisons_is_not_claimed(use):
    name, change = NOT_ONLY_COMPARED[use]
    report = judged(name, change)
    assert report.outcome in ("not claimed", "wrong"), report.text
    assert report.outcome == "not claimed" or "sum" in use
