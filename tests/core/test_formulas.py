from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmgen.core.formulas import Formula, FormulaError, ceil_div, round_up


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_ceil_div_and_round_up(value: int, unit: int) -> None:
    assert ceil_div(value, unit) == math.ceil(value / unit) if value < 2**50 else True
    assert round_up(value, unit) == ceil_div(value, unit) * unit
    assert 0 <= round_up(value, unit) - value < unit


def test_evaluates_every_part_of_the_grammar() -> None:
    formula = Formula("ceil_div(m, 128) * min(n, 7) + max(k, 3) // 2 - select(m > n, 1, 2) % 5 + round_up(k, 4)")
    assert formula.evaluate({"m": 129, "n": 9, "k": 10}) == 2 * 7 + 5 - 1 + 12
    assert formula.names == {"m", "n", "k"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "m +",
        "m ** 2",
        "m / 2",
        "__import__('os')",
        "m.real",
        "[m]",
        "'m'",
        "m if n else k",
        "True",
        "1.5",
        "sum(m, n)",
        "ceil_div(m)",
        "min(m, n, k)",
        "ceil_div(m, unit=2)",
        "m < n < k",
        "not m",
        "-m",
        "(lambda: m)()",
        "m\x00",
    ],
)
def test_rejects_what_is_not_in_the_grammar(text: str) -> None:
    with pytest.raises(FormulaError):
        Formula(text)


def test_says_which_name_is_missing_and_which_are_known() -> None:
    with pytest.raises(FormulaError, match=r"'k' has no value; known: m, n"):
        Formula("m + k").evaluate({"m": 1, "n": 2})


def test_a_function_is_no_number():
    with pytest.raises(FormulaError, match="min is a function, and names no number"):
        Formula("min(min, 2)").evaluate({"min": 3})


@pytest.mark.parametrize("text", ["m // n", "m % n", "ceil_div(m, n)", "round_up(m, n)"])
def test_division_by_zero_is_an_error(text: str) -> None:
    with pytest.raises(FormulaError, match="divides by zero"):
        Formula(text).evaluate({"m": 1, "n": 0})


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_c_text_means_the_same(m: int, n: int) -> None:
    formula = Formula("ceil_div(m, n) + min(m, n) * 3 - max(m, n) % 7 + round_up(m, 4) // 2")
    # The C text is valid Python too but for / and ?:, which stand for // and a conditional here.
    c = formula.to_c()
    assert "ceil_div" not in c and "//" not in c
    assert eval(_python(c), {"m": m, "n": n}) == formula.evaluate({"m": m, "n": n})


def _python(c: str) -> str:
    out = c.replace("/", "//")
    while "?" in out:
        at = out.index("?")
        depth, start = 0, at
        while depth >= 0:
            start -= 1
            depth += {")": 1, "(": -1}.get(out[start], 0)
        depth, end = 0, at
        while depth >= 0:
            end += 1
            depth += {"(": 1, ")": -1}.get(out[end], 0)
        condition, rest = out[start + 1 : at], out[at + 1 : end]
        colon = next(i for i, ch in enumerate(rest) if ch == ":" and rest[:i].count("(") == rest[:i].count(")"))
        out = f"{out[: start + 1]}({rest[:colon]}) if ({condition}) else ({rest[colon + 1 :]}){out[end:]}"
    return out


def test_shifts_and_logarithms() -> None:
    assert [Formula("ceil_log2(m)").evaluate({"m": m}) for m in (1, 2, 3, 4, 5, 2**31 - 1)] == [0, 1, 2, 2, 3, 31]
    assert Formula("1 << m + 1").evaluate({"m": 4}) == 32
    assert Formula("1 << ceil_log2(m)").to_c() == "(1 << ceil_log2(m))"
