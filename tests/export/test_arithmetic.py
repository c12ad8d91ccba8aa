"""Formulas in C: the value that Python finds, or word that it does not fit into 64 bits."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from export.c_host import build, compiler
from gemmgen.core.formulas import Formula, FormulaError
from gemmgen.export.arithmetic import INT64, Expression, Facts, to_c
from gemmgen.export.text import template

NAMES = {"a": (0, 2**31 - 1), "b": (1, 2**31 - 1), "c": (-(2**62), 2**62), "d": (0, 40), "e": (0, 65535)}


def facts() -> Facts:
    return Facts(NAMES)


def formulas() -> st.SearchStrategy[str]:
    leaves = st.one_of(st.sampled_from([*NAMES, "0", "1", "2", "7", "32"]), st.integers(0, 2**40).map(str))
    pairs = [
        "({} + {})",
        "({} - {})",
        "({} * {})",
        "({} // {})",
        "({} % {})",
        "min({}, {})",
        "max({}, {})",
        "ceil_div({}, {})",
        "round_up({}, {})",
        "({} < {})",
        "({} >= {})",
        "({} == {})",
        "((1 << ceil_log2({0})) - {0} + {1})",
        "(({} % {}) << d)",
    ]
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(pairs), inner, inner).map(lambda drawn: drawn[0].format(*drawn[1:])),
            st.tuples(inner, inner, inner).map(lambda drawn: "select({} > 3, {}, {})".format(*drawn)),
            st.tuples(inner, inner, inner).map(lambda drawn: "({} * {} // ({}))".format(*drawn)),
        ),
        max_leaves=6,
    )


def values() -> st.SearchStrategy[dict[str, int]]:
    def near(limits: tuple[int, int]) -> st.SearchStrategy[int]:
        low, high = limits
        return st.one_of(st.integers(max(low, -40), min(high, 40)), st.integers(low, high), st.sampled_from([low, high]))

    return st.fixed_dictionaries({name: near(limits) for name, limits in NAMES.items()})


def evaluated(text: str, problem: dict[str, int]) -> int | None:
    """Python's result; None where there is none."""
    try:
        return Formula(text).evaluate(problem)
    except (FormulaError, ValueError, OverflowError, MemoryError):
        return None


def compile_functions(expressions: list[Expression], folder: Path) -> ctypes.CDLL:
    """Each expression as a function of the names that stores its value and whether it overflowed."""
    runtime = template("runtime.h.j2", {}).render()
    arithmetic = runtime[: runtime.index("/* Whether a pointer is there")] + "#endif\n"
    lines = ["#include <stddef.h>", "#include <stdint.h>", arithmetic]
    arguments = ", ".join(f"int64_t {name}" for name in NAMES)
    unused = " ".join(f"(void){name};" for name in NAMES)
    for index, expression in enumerate(expressions):
        head = f"int f{index}({arguments}, int64_t *result)"
        lines += [f"{head};", f"{head} {{ int overflow = 0; {unused} *result = {expression.text}; return overflow; }}"]
    source, library = folder / "formulas.c", folder / "formulas.so"
    source.write_text("\n".join(lines))
    build(
        [compiler("gcc"), "-std=c99", "-w", "-fsanitize=undefined", "-fno-sanitize-recover=all", "-shared", "-fPIC", source, "-o", library]
    )
    return ctypes.CDLL(str(library))


@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.generate],
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    texts=st.lists(formulas(), min_size=60, max_size=60, unique=True),
    problems=st.lists(values(), min_size=30, max_size=30),
)
def test_random_formulas_agree_with_python(texts: list[str], problems: list[dict[str, int]], tmp_path: Path) -> None:
    folder = tmp_path / str(len(list(tmp_path.iterdir())))  # a library that is loaded once stays
    folder.mkdir()
    expressions = [to_c(Formula(text), facts()) for text in texts]
    library = compile_functions(expressions, folder)
    for index, (text, expression) in enumerate(zip(texts, expressions, strict=True)):
        for problem in problems:
            result = ctypes.c_int64()
            overflow = getattr(library, f"f{index}")(*(ctypes.c_int64(problem[name]) for name in NAMES), ctypes.byref(result))
            wanted = evaluated(text, problem)
            if not overflow:
                if wanted is None and "?" in expression.text:
                    continue  # C does not evaluate the branch that is not selected, and need not find that it has no value
                assert result.value == wanted, f"{text} -> {expression.text} for {problem}"
                assert expression.limits[0] <= result.value <= expression.limits[1]
            else:
                assert expression.checked


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ceil_div(a, 128) * ceil_div(e, 8)", "gemmgen_ceil_div(a, 128) * gemmgen_ceil_div(e, 8)"),
        ("(a + b) * d // b", "(a + b) * d / b"),
        ("a - (b - e)", "a - (b - e)"),
        ("a // (b * 2) % b", "a / (b * 2) % b"),
        ("1 << d", "INT64_C(1) << d"),
        ("select(a > 3, 264, 0)", "a > 3 ? 264 : 0"),
        ("1280 + 17301504", "17302784"),
        ("(1 << 32) * ((1 << ceil_log2(b)) - b) // b + 1", "INT64_C(4294967296) * ((INT64_C(1) << gemmgen_ceil_log2(b)) - b) / b + 1"),
    ],
)
def test_what_cannot_overflow_is_plain_c(text: str, wanted: str) -> None:
    expression = to_c(Formula(text), facts())
    assert (expression.text, expression.checked) == (wanted, False)


@pytest.mark.parametrize("text", ["a * b * b", "c * c", "a // e", "c % b", "1 << a", "ceil_log2(a)", "c + c + c"])
def test_what_could_go_wrong_is_checked(text: str) -> None:
    assert to_c(Formula(text), facts()).checked


def test_a_condition_that_holds_spares_later_checks() -> None:
    known = facts()
    assert to_c(Formula("ceil_div(a * b * e, 64)"), known).checked
    known.assume(Formula("a * b * e <= 2147483647"))
    assert not to_c(Formula("ceil_div(a * b * e, 64)"), known).checked
    known.assume_positive(Formula("ceil_div(a * b * e, 64) * d"))
    assert to_c(Formula("a * b"), known).limits == (1, 2147483647)


def test_the_parts_of_a_sum_are_not_above_it() -> None:
    known = facts()
    known.assume(Formula("b * (a + 2 * e) * (b + d) <= 1000"))
    assert to_c(Formula("a * b"), known).limits[1] <= 1000


def test_alternatives_give_what_they_have_in_common() -> None:
    one, other = facts(), facts()
    one.assume(Formula("a >= 5"))
    other.assume(Formula("a >= 3"))
    assert to_c(Formula("a"), Facts.of_either([one, other])).limits == (3, 2**31 - 1)


def test_nothing_is_known_of_an_unknown_name() -> None:
    assert to_c(Formula("x"), Facts({})).limits == INT64
