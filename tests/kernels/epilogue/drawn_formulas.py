"""Formulas for epilogues, drawn by chance."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass(frozen=True)
class Space:
    """The properties of a family's formulas that are drawn."""

    axes: tuple[str, ...]
    """Along which axes the inputs may differ."""
    types: tuple[str, ...] = ("f32", "f64", "f16", "bf16", "e4m3", "e5m2", "s8", "u8")
    """Types of the inputs that lie in arrays."""
    coordinates: bool = False
    stored: bool = True
    """True if there are further outputs for each element."""
    extrema: tuple[str, ...] = ()
    """Axes of the maxima and minima."""
    sums: tuple[str, ...] = ()


LINES = ("all", "row", "column")
SPACES = {
    "gemm": Space(
        ("all", "memory", "row", "column", "element"), coordinates=True, extrema=("all", "row", "column"), sums=("all", "row", "column")
    ),
    "batched": Space(("all", "memory", "row", "column", "element"), coordinates=True, extrema=LINES, sums=LINES),
    "grouped": Space(("all", "memory", "row", "column", "group", "element"), coordinates=True, extrema=LINES, sums=LINES),
    "elementwise": Space(("all", "memory", "row", "column", "element"), coordinates=True, extrema=LINES),
    "elements": Space(("all", "memory", "row", "column", "element"), coordinates=True),
    "reduction": Space(("all", "memory", "element"), extrema=("all",)),
    "conv2d": Space(("all", "memory", "row", "channel", "element"), coordinates=True, extrema=LINES, sums=LINES),
    "cpu_gemm": Space(("all", "memory", "row", "column", "element"), coordinates=True, extrema=LINES, sums=LINES),
}


UNARY = (
    *("silu({0})", "gelu({0})", "gelu_tanh({0})", "tanh({0})", "sigmoid({0})", "relu({0})", "abs({0})", "-{0}", "square(0.125 * {0})"),
    *("exp(min(0.125 * {0}, 3))", "sqrt(abs({0}))", "clamp({0}, -2, 30)", "softplus({0})", "erf({0})", "leaky_relu({0}, 0.25)"),
    *("rsqrt(square({0}) + 1)", "elu({0}, 0.5)", "hard_swish({0})", "log(abs({0}) + 1)", "bfloat16({0})", "float16(0.0625 * {0})"),
)
BINARY = ("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / (abs({1}) + 1)", "min({0}, {1})", "max({0}, {1})", "fma({0}, 0.5, {1})",
          "{0} if {0} > {1} else 0.5 * {1}")  # fmt: skip


def drawn(rng: Random, space: Space) -> dict[str, Any] | list[dict[str, Any]]:
    """A formula: operands, two or three intermediate values, and further outputs; one in four has a shorter one before or after it."""
    inputs: dict[str, Any] = {}
    for number in range(rng.randint(1, 3)):
        per = rng.choice(space.axes)
        inputs[f"given{number}"] = {"per": per, "type": rng.choice(("f32", "f32", "f64") if per in ("all", "memory") else space.types)}
    known = ["acc", *inputs]
    let: dict[str, str] = {}
    unused = [*inputs]
    for number in range(rng.randint(2, 3)):
        first, second = (f"({rng.choice(known)})" for _ in range(2))
        if unused:
            second = unused.pop()
        text = rng.choice(BINARY).format(rng.choice(UNARY).format(first), second)
        let[f"t{number}"] = rng.choice((text, rng.choice(UNARY).format(f"({text})")))
        known.append(f"t{number}")
    for name in unused:
        let["t0"] += f" + {name}"
    result = " + ".join(name for name in let)
    outputs: dict[str, Any] = {}
    if space.coordinates:
        masks = ("row >= column", "(row // 3 + column) % 5 > 1", "(row - 2 * column) % 7 < 4")
        result = rng.choice((result, f"{result} if {rng.choice(masks)} else 0"))
    if space.stored and rng.random() < 0.7:
        outputs["saved"] = {"value": rng.choice(list(let)), "type": rng.choice(["f32", "f64", "f16", "bf16"])}
    if space.stored and rng.random() < 0.5:
        outputs["positive"] = {"value": f"{rng.choice(list(let))} > 0", "type": "bool"}
    if space.extrema and rng.random() < 0.7:
        outputs["reach"] = {"reduce": rng.choice(["max", "min", "absmax"]), "per": rng.choice(space.extrema), "of": "t0"}
    if space.sums and rng.random() < 0.5:
        outputs["added"] = {"reduce": rng.choice(["sum", "sum_of_squares"]), "per": rng.choice(space.sums), "of": rng.choice(list(let))}
    formula = {"inputs": inputs, "let": let, "outputs": {**outputs, "value": result}}
    if rng.random() < 0.75:
        return formula
    more = {"let": {"t0": rng.choice(UNARY).format("acc")}, "value": rng.choice(BINARY).format("(t0)", "acc")}
    return [{"op": "formula", **one} for one in rng.sample([formula, more], 2)]
