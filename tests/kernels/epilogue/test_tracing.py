"""Python functions that become epilogues, and derivatives of graphs."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen import symbols
from gemmgen.core.errors import SpecError
from gemmgen.kernels.epilogue.derivative import derivative
from gemmgen.kernels.epilogue.expression import parse, written
from gemmgen.kernels.epilogue.functions import FUNCTIONS
from gemmgen.kernels.epilogue.graph import evaluate, typed_node
from gemmgen.kernels.epilogue.numbers import tracked

NAIVE = {"kind": "gemm", "mainloop": {"strategy": "naive", "threadblock": {"m": 4, "n": 32}}}


@gemmgen.epilogue(bias={"per": "column"}, gate={"per": "element", "type": "bf16"})
def gated(acc: Any, bias: Any, gate: Any, row: Any, column: Any) -> Any:
    z = acc + bias
    return {
        "C": symbols.select((row >= column) & ~(z > 100), symbols.silu(z) * gate, 0.5 * -z),
        "preactivation": {"value": z, "type": "bf16"},
        "reach": {"reduce": "max", "of": abs(z)},
    }


def test_a_function_becomes_the_formula_of_its_text() -> None:
    assert gated["let"] == {"t1": "acc + bias"}
    assert gated["outputs"]["C"] == "select(row >= column and not t1 > 100, silu(t1) * gate, 0.5 * -t1)"
    traced = gemmgen.plan({**NAIVE, "epilogue": gated})
    text = gemmgen.plan({**NAIVE, "epilogue": dict(gated)})
    assert gemmgen.render(traced).text == gemmgen.render(text).text
    assert traced.spec.epilogue[0].outputs["reach"].of == "abs(t1)"


def test_a_decorator_without_inputs_needs_no_brackets() -> None:
    @gemmgen.epilogue
    def doubled(acc: Any) -> Any:
        return symbols.relu(acc) * 2

    assert doubled == {"inputs": {}, "outputs": {"value": "relu(acc) * 2"}}
    assert gemmgen.epilogue(lambda x, row: x + row) == {"inputs": {}, "outputs": {"value": "value + row"}}
    with pytest.raises(SpecError, match=r"'bias' is no input: declare it, as in gemmgen.epilogue\(bias="):
        gemmgen.epilogue(lambda acc, bias: acc + bias)


def test_values_used_twice_are_computed_once() -> None:
    def squared_often(acc: Any) -> Any:
        for _ in range(60):
            acc = acc * acc + acc
        return acc

    assert len(gemmgen.epilogue(squared_often)["let"]) < 130
    assert gemmgen.render(gemmgen.plan({**NAIVE, "epilogue": gemmgen.epilogue(squared_often)})).text.count(" * ") < 400


def test_long_and_deep_functions_stay_within_the_limits() -> None:
    def long(acc: Any) -> Any:
        for number in range(200):
            acc = symbols.max(acc, number) + 1.0625
        return acc

    assert gemmgen.plan({**NAIVE, "epilogue": gemmgen.epilogue(long)}).epilogue


def test_what_a_function_must_not_do_is_said() -> None:
    with pytest.raises(SpecError, match="select"):
        gemmgen.epilogue()(lambda acc: acc if acc > 0 else 0)
    with pytest.raises(SpecError, match="'gat' is no input; did you mean 'gate'"):
        gemmgen.epilogue(gate={"per": "row"})(lambda acc, gat: acc * gat)
    with pytest.raises(AttributeError, match="did you mean 'silu'"):
        symbols.sliu(1)
    with pytest.raises(SpecError, match="need a symbol or a number"):
        gemmgen.epilogue()(lambda acc: acc + "1")


def test_powers_signs_and_numbers_of_numpy_are_understood() -> None:
    assert gemmgen.epilogue(lambda acc, row: symbols.float32(row // 2 % 8))["outputs"] == {"value": "float32(row // 2 % 8)"}
    made = gemmgen.epilogue(lambda acc: +(acc**2) * np.float32(0.5) + np.int64(3) - acc * np.float64(0.25))
    assert made["outputs"] == {"value": "square(acc) * 0.5 + 3 - acc * 0.25"}


STRANGE = {
    "any number of parameters": (lambda *acc: acc[0], "the parameter \\*acc"),
    "parameters by any name": (lambda **acc: acc, "the parameter \\*\\*acc"),
    "no signature": (int, "no signature"),
    "an integer beyond floats": (lambda acc: acc * 10**5000, "need a number that float64 holds"),
    "an integer between floats": (lambda acc: acc + (2**53 + 1), "9007199254740993: need a number that float64 holds"),
    "a loop over a symbol": (lambda acc: [one for one in acc], "it has no neighbours"),
    "an element of a symbol": (lambda acc: acc[0], "it has no neighbours"),
    "a function of math": (lambda acc: math.exp(acc), "the functions of gemmgen.symbols in place of math's"),
    "a function of NumPy": (lambda acc: np.exp(acc), "calls numpy.exp: use the functions of gemmgen.symbols"),
    "a conversion": (lambda acc: int(acc), "the number behind a symbol"),
    "a symbol as a power": (lambda acc: acc**acc, "the power acc of a symbol"),
    "another power": (lambda acc: acc**3, "the power 3 of a symbol: need 2, or a product"),
    "arguments by name": (lambda acc: symbols.clamp(acc, low=0, high=1), "calls clamp with low, high=: need values without names"),
    "a truth value of NumPy": (lambda acc: acc * np.bool_(True), "need a symbol or a number"),
    "a long list": (lambda acc: acc * ["x" * 10**6], "computes with .{0,60}: need a symbol"),  # type: ignore[operator]
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_function_is_a_short_message(name: str) -> None:
    function, told = STRANGE[name]
    with pytest.raises(SpecError, match=told) as refusal:
        gemmgen.epilogue(function)
    assert len(str(refusal.value)) < 300


def test_a_function_without_end_is_cut_short() -> None:
    def deep(acc: Any) -> Any:
        for _ in range(100_000):
            acc = acc + 1
        return acc

    with pytest.raises(SpecError, match="more than 256 intermediate values"):
        gemmgen.epilogue(deep)


def test_parameters_by_position_alone_are_passed() -> None:
    def scaled(acc: Any, /, row: Any) -> Any:
        return acc * row

    assert gemmgen.epilogue(scaled)["outputs"] == {"value": "acc * row"}


def test_a_negative_zero_keeps_its_sign() -> None:
    traced = gemmgen.epilogue(lambda acc: acc * -0.0)["outputs"]["value"]
    assert traced == "acc * (-0)"
    zero = parse(traced).arguments[1].number
    assert zero == 0 and np.signbit(zero)


def value_of(assignments: Any, names: dict[str, float], wanted: str) -> float:
    """The value of a name after assignments."""
    values = {name: tracked(np.asarray(value), "f64") for name, value in names.items()}
    kinds: dict[str, Any] = dict.fromkeys(values, "f64")
    for target, node in assignments:
        tree = typed_node(node, written(node), kinds, "f64")
        values[target], kinds[target] = evaluate(tree, values), tree.kind
    return float(values[wanted].value)


SMOOTH = [name for name, function in FUNCTIONS.items() if function.arity == 1 and name not in ("not", "round")]


@pytest.fixture
def any_float(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of float32 alone are evaluated in float64, for differences that tell."""
    from gemmgen.kernels.epilogue import graph

    monkeypatch.setattr(graph, "type_problem", lambda function, kind: None)


@pytest.mark.parametrize("name", SMOOTH)
def test_a_derivative_is_the_limit_of_differences(name: str, any_float: None) -> None:
    assignments = [("value", parse(f"{name}(value) * gate" if name != "neg" else "-value * gate"))]
    found = derivative(assignments, "value", ("value", "gate"))
    for at in (0.3, 1.7, 2.6):
        names = {"value": at, "gate": 1.5, "upstream": 2.0}
        slope = value_of(found.assignments, names, found.by["value"].name)
        step = 1e-5
        high, low = (value_of(assignments, {**names, "value": at + sign * step}, "value") for sign in (1, -1))
        assert slope == pytest.approx(2.0 * (high - low) / (2 * step), rel=2e-4, abs=1e-7)


def test_derivatives_of_drawn_graphs_are_limits_of_differences(any_float: None) -> None:
    rng = Random(5)
    pieces = [
        *("silu({0}) * {1}", "{0} / (square({1}) + 1)", "max({0}, {1}) + {0}", "tanh({0}) - {1} * {1}", "fma({0}, {1}, 0.5)"),
        *("select({0} > {1}, {0} * {1}, {1})", "clamp({0} * {1}, -3, 3)", "elu({0}, 0.5) + exp(0.1 * {1})", "float64({0}) * {1}"),
    ]
    for _ in range(25):
        known, assignments = ["value", "gate", "bias"], []
        for number in range(3):
            text = rng.choice(pieces).format(rng.choice(known), rng.choice(known))
            assignments.append((f"t{number}", parse(text)))
            known.append(f"t{number}")
        assignments.append(("value", parse("t0 + t1 * t2")))
        names = {one: rng.uniform(-2, 2) for one in ("value", "gate", "bias")} | {"upstream": 1.0}
        found = derivative(assignments, "value", ("value", "gate", "bias"))
        for one, node in found.by.items():
            slope = value_of(found.assignments, names, node.name) if node.name else node.number
            step = 1e-6
            high, low = (value_of(assignments, {**names, one: names[one] + sign * step}, "value") for sign in (1, -1))
            assert slope == pytest.approx((high - low) / (2 * step), rel=1e-4, abs=1e-5)
