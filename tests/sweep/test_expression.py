from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gemmgen
from gemmgen.core.errors import GemmgenError
from gemmgen.sweep.expression import Expression, ExpressionError, UnknownName

from .helpers import SPEC

PLANNED = gemmgen.plan(SPEC)
FIELDS = PLANNED.spec.model_dump(mode="json")


def holds(text: str) -> bool:
    return Expression("rule", text).holds(FIELDS, PLANNED)


@pytest.mark.parametrize(
    "text",
    [
        "mainloop.stages == 2",
        "mainloop.tile.threadblock.m * mainloop.tile.threadblock.n <= 128 * 128",
        "2 <= mainloop.stages < 3 != 4",
        "transpose in ['nn', 'nt'] and 'tt' not in [transpose]",
        "not (alpha == 'argument' or beta == 'argument')",
        "plan.threads == 32 and plan.shared_bytes % 16 == 0",
        "plan.architecture.name == 'sm_75'",
        "plan.spec.mainloop.stages == mainloop.stages",
        "plan.sequence.launches[0].threads == plan.threads",
        "min(mainloop.stages, 1, -3) == -3 and max([1, 2]) == 2 and abs(-2) == 2 and len(epilogue) == 0",
        "'tile' in mainloop and 'threadblock' not in mainloop",
        "'threadblock' in mainloop and mainloop.threadblock.m > 1 or True",
        "(1 if label == None else label.missing) == 1",
        "2 ** 10 == 1024 and 7 // 2 == 3 and 7 / 2 == 3.5 and -7 % 4 == 1",
        "  mainloop.stages",
    ],
)
def test_an_expression_that_holds(text: str) -> None:
    assert holds(text)
    assert not holds(f"not ({text.strip()})")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "x = 1",
        "lambda: 1",
        "[n for n in [1]]",
        "f'{alpha}'",
        "print(1)",
        "open('x')",
        "len()",
        "len(x=1)",
        "min(*[1])",
        "mainloop.__class__",
        "plan.sequence._x",
        "(1).real.__class__",
        "alpha.upper()",
        "epilogue[0:1]",
        "epilogue[mainloop.stages]",
        "{'a': 1}",
        "1 << 3",
        "1 | 2",
        "~1",
        "1 if",
        "b'x'",
        "1j",
        "...",
        "await x",
        "(y := 1)",
        "a; b",
        "a\nb",
        "\0",
        "\ud800",
        "9" * 5000,
        "(" * 500 + "1" + ")" * 500,
        "-" * 1500 + "1",
        "+".join("1" * 500),
        "x" * 3000,
        "1" * 200,
    ],
)
def test_what_is_no_expression_is_refused_unevaluated(text: str) -> None:
    with pytest.raises(ExpressionError, match=r"^rule: "):
        Expression("rule", text)


@pytest.mark.parametrize(
    "text",
    [
        "missing > 1",
        "mainloop.depth > 1",
        "mainloop.stages.more",
        "epilogue[0]",
        "plan.no_such",
        "plan.sequence.resolve",
        "plan.architecture.supports",
        "plan.threads.bit_length",
    ],
)
def test_a_name_that_there_is_not_is_an_error_of_its_own(text: str) -> None:
    with pytest.raises(UnknownName, match=r"^rule: "):
        holds(text)


@pytest.mark.parametrize(
    "text",
    [
        "1 / 0",
        "1 % 0",
        "0 ** -1",
        "alpha + 1 > 2",
        "alpha * 1000000",
        "alpha < 1",
        "min(1) > 0",
        "len(1)",
        "abs(alpha)",
        "1 in 2",
        "2 ** 100 * 2 ** 100 > 0",
        "2 ** 129 > 0",
        "(-8) ** 0.5 > 0",
        "1e308 * 10 // 1 > 0",
        "max([]) > 1",
        "1e300 ** 100 > 1",
        "10.0 ** 128 * 1e300 // 1 == 0",
    ],
)
def test_values_that_do_not_go_together_are_an_error(text: str) -> None:
    with pytest.raises(ExpressionError, match=r"^rule: "):
        holds(text)


def test_expression_that_needs_plan_is_not_evaluated_without_one() -> None:
    needs = Expression("rule", "plan.threads > 1")
    assert needs.reads_plan and not Expression("rule", "mainloop.stages > 1").reads_plan
    with pytest.raises(ExpressionError, match="no plan"):
        needs.holds(FIELDS)


ATOMS = st.sampled_from(["mainloop.stages", "plan.threads", "alpha", "1", "0", "2.5", "-3", "'x'", "[1, 2]", "epilogue", "None", "9" * 30])


@given(
    st.recursive(
        ATOMS,
        lambda inner: st.builds(
            "({} {} {})".format,
            inner,
            st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "<", "<=", "==", "!=", "in", "not in", "and", "or"]),
            inner,
        ),
        max_leaves=40,
    )
)
def test_any_expression_has_a_value_or_a_message_within_a_moment(text: str) -> None:
    started = time.process_time()
    try:
        value: Any = holds(text)
    except GemmgenError as error:
        value = str(error)
    assert isinstance(value, bool) or value.startswith("rule: ")
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    "text",
    [
        "x" + "()" * 900,
        "x" + "()" * 395,
        "x" + ".y" * 199,
        "not " * 400 + "1",
        "-" * 1900 + "1",
        "1" + "+1" * 199,
        "1 if 0 else " * 99 + "1",
        "(" * 150 + ")" * 150,
    ],
    ids=lambda text: f"{text[:8]} {len(text)}",
)
def test_a_deep_expression_is_an_error_or_a_value(text: str) -> None:
    try:
        ended = str(Expression("deep", text).holds({"x": {"y": 1}}))
    except ExpressionError as error:
        ended = str(error)
    assert ended in ("True", "False") or (ended.startswith("deep: ") and len(ended) < 500)
