"""Random calls of each operation of ``gemmgen.ops``: the arguments, the expected result by NumPy, and how far it may be off.

Bounds of sums hold for any order of the additions; exact results have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gemmgen import ops
from measurements.random_arrays import FLOATS, UNIT, Draw, fault, found, rounded

INTEGERS = ("int8", "int32", "int64", "bool", "uint8", "int16", "uint32")
TYPES = ("float32", "float32", "float16", "bfloat16", "float64", *INTEGERS)
REDUCTIONS = (
    "sum", "prod", "min", "max", "mean", "sum_of_squares", "l1_norm", "norm", "any", "all", "argmin", "argmax", "var", "std", "logsumexp",
    "mean_variance",
)  # fmt: skip
PLAIN = ("sum", "min", "max", "any", "all", "argmin", "argmax")
"""Reductions among which pairs are drawn."""
ROWS = (
    "softmax", "log_softmax", "cumsum", "logcumsumexp", "rms_norm", "layer_norm", "softmax_gradient", "log_softmax_gradient",
    "rms_norm_gradient", "layer_norm_gradient",
)  # fmt: skip
ROUNDOFF = 2.0**-24
"""Unit roundoff of the type that kernels compute in, but for float64."""
MAX_FACTORS = 126
"""Sum of the factors' binary exponents, without their signs, up to which no order of a product leaves the range of float32."""
ALIGNED = (0, 0, 16)
"""Elements before an array of images, which has to begin at a multiple of 16 bytes."""
MAX_SELECTED_FROM = 6000
"""Elements of an array for ``topk`` on the emulator, which compares them in many turns."""


@dataclass(frozen=True)
class Call:
    """One call: its description, and a function that makes it and returns the difference from the right result, in words."""

    said: str
    make: Callable[[], str]
    refused: bool = False
    """True if the call must raise ``LaunchError``."""


def said_of(x: np.ndarray, word: str) -> str:
    """Type, shape and strides in elements."""
    return f"{word}{list(x.shape)}:{[stride // x.itemsize for stride in x.strides]}"


def first_faults(faults: list[str]) -> str:
    """The faults of several results, in words."""
    return "; ".join(f"result {number}: {one}" for number, one in enumerate(faults) if one)


def reduced_type(op: str, word: str) -> str:
    """The type of a reduction's result, as docs/operations.md lists it."""
    if op in ("any", "all"):
        return "bool"
    if op in ("argmin", "argmax"):
        return "int64"
    if word in FLOATS:
        return "float64" if word == "float64" else "float32"
    if op in ("min", "max"):
        return {"int8": "int32"}.get(word, word)
    return "int64" if op in ("sum", "prod", "sum_of_squares", "l1_norm") else "float64"


def reduction(x: np.ndarray, word: str, op: str, named: dict[str, Any], correction: int) -> list[tuple[np.ndarray, Any]]:
    """Results and bounds of a reduction."""
    floats = word in FLOATS
    wide = x if floats else x.astype(np.int64)
    real = wide.astype(np.float64)
    ones = np.sum(np.ones(x.shape), **named)
    n = float(np.max(ones, initial=0))
    unit = ROUNDOFF if floats and word != "float64" else 2.0**-53
    size = np.sum(np.abs(real), **named)
    if op in ("any", "all", "argmin", "argmax", "min", "max"):
        return [(getattr(np, op)(wide, **named), 0.0)]
    if op == "sum":
        return [(np.sum(wide, **named), (n + 2) * unit * size)]
    if op == "l1_norm":
        return [(np.sum(np.abs(wide), **named), (n + 2) * unit * size)]
    if op == "sum_of_squares":
        return [(np.sum(wide * wide, **named), (n + 2) * unit * np.sum(real * real, **named))]
    if op == "norm":
        norm = np.sqrt(np.sum(real * real, **named))
        return [(norm, (n + 8) * unit * norm)]
    if op == "prod":
        product = np.prod(wide, **named)
        if not floats:
            return [(product, 0.0)]
        exponents = np.sum(np.abs(np.log2(np.where(real == 0, 1, np.abs(real)))), **named)
        return [(product, np.where(exponents < MAX_FACTORS, (n + 2) * unit * np.abs(product), np.inf))]
    if op == "mean":
        return [(np.mean(real, **named), ((n + 2) * unit * size / ones + 8 * 2.0**-149) if x.size else 0.0)]
    if op == "logsumexp":
        most = np.max(real, initial=-np.inf, **(named | {"keepdims": True}))
        result = np.log(np.sum(np.exp(real - most), **named)) + most.reshape(size.shape)
        return [(result, 5 * (n + 2) * unit + 2 * unit * np.abs(result))]
    spread = np.max(real, **named) - np.min(real, **named) if x.size else 0.0
    mean, variance = np.mean(real, **named), np.var(real, ddof=correction, **named)
    sigma, d = np.sqrt(variance), 4 * (n + 6) * unit * spread
    bound = 4 * d * sigma * (1 + np.sqrt(n)) + 4 * d * d * (1 + n) + 4 * (n + 6) * unit * variance
    if op == "std":
        bound = np.minimum(np.sqrt(bound), bound / np.where(sigma > 0, sigma, 1e-300)) + 8 * unit * sigma
    of_mean = 4 * (n + 6) * unit * spread + 2 * unit * np.abs(mean) + 8 * 2.0**-149
    return [(mean, of_mean), (variance, bound)] if op == "mean_variance" else [(variance if op == "var" else sigma, bound)]


def reduce_call(draw: Draw) -> Call:
    """A reduction along one axis, several or all, by one operation or by two."""
    word, op = draw.one_of(*TYPES), draw.one_of(*REDUCTIONS)
    if draw.library == "torch" and word == "uint32":
        word = "uint8"
    x = draw.view(draw.values(word, draw.shape()))
    rank = x.ndim
    several = tuple(sorted(int(axis) for axis in draw.form.choice(rank, int(draw.form.integers(1, rank, endpoint=True)), replace=False)))
    axis: Any = draw.one_of(None, int(draw.form.integers(-rank, rank)), int(draw.form.integers(-rank, rank)), several)
    if op in ("argmin", "argmax") and isinstance(axis, tuple):
        axis = axis[0]
    pair = (op, draw.one_of(*(one for one in PLAIN if one != op))) if op in PLAIN and draw.chance(0.15) else None
    if pair is not None and isinstance(axis, tuple):
        axis = axis[0]
    correction = draw.one_of(0, 1) if op in ("var", "std", "mean_variance") else 0
    keepdims, invariant = draw.chance(0.3), pair is None and axis in (-1, rank - 1) and x.flags.c_contiguous and draw.chance(0.2)
    given = draw.given(x, word)
    named: dict[str, Any] = {"axis": axis, "keepdims": keepdims}
    said = (
        f"{pair or op} of {said_of(x, word)}, axis {axis}, {correction}{', kept' if keepdims else ''}{', invariant' if invariant else ''}"
    )

    def make() -> str:
        if pair is not None:
            results = ops.reduce(given, list(pair), axis, keepdims=keepdims)
            wanted = [one for name in pair for one in reduction(x, word, name, named, 0)]
            types = [reduced_type(name, word) for name in pair]
        else:
            got: Any = ops.reduce(given, op, axis, keepdims=keepdims, correction=correction, batch_invariant=invariant)
            results = got if isinstance(got, tuple) else (got,)
            wanted = reduction(x, word, op, named, correction)
            types = [reduced_type(op, word)] * len(wanted)
        return first_faults([fault(one, kind, *want) for one, kind, want in zip(results, types, wanted, strict=True)])

    return Call(said, make)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function."""
    return np.vectorize(math.erf, otypes=[float])(x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), exact at both ends."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1 + small)


FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float]] = {
    "sqrt": (np.sqrt, 4, 0),
    "exp": (np.exp, 4, 4),
    "gelu": (lambda x: x / 2 * np.vectorize(math.erfc, otypes=[float])(-x / math.sqrt(2)), 16, 4),
    "gelu_tanh": (lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)), 16, 8),
    "silu": (lambda x: x * sigmoid(x), 8, 2),
    "sigmoid": (sigmoid, 8, 2),
    "tanh": (np.tanh, 8, 4),
    "leaky_relu": (lambda x: np.where(x < 0, 0.01 * x, x), 2, 0),
}
"""Value, and error in units of its roundoff: so many, and so many for each 1 of the argument's size."""
ACTIVATIONS = ("relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
QUICK = 2.0**-10
"""Relative error of functions by approximate instructions, which results of 16 bits may have."""


def function(name: str, x: np.ndarray, word: str) -> tuple[np.ndarray, np.ndarray]:
    """Value and error bound of a function of floats."""
    if name in ("relu", "none"):
        return (np.maximum(x, 0) if name == "relu" else x), np.zeros(x.shape)
    of, units, by_size = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        value = of(x)
        unit = 2.0**-53 if word == "float64" else ROUNDOFF
        bound = (units + by_size * np.abs(x) * (1 + np.abs(x) * (name.startswith("gelu")))) * unit * np.abs(value)
        quick = QUICK * np.abs(value) if word in ("float16", "bfloat16") else 0.0
        return value, bound + quick + (2.0**-126 if word != "float64" else 0.0)


def elementwise_call(draw: Draw) -> Call:
    """One elementwise operation, or two, with numbers, arrays and broadcast arrays."""
    word = draw.one_of(*TYPES)
    if draw.library == "torch" and word == "uint32":
        word = "uint8"
    floats = word in FLOATS
    plain = ("relu", "abs", "square", "copy", "bias", "bias_number", "cast", "cast_square")
    op = draw.one_of(*plain, *(("residual", "multiply", "scale", "clamp") if floats else ()), *(("functions",) * 3 if floats else ()))
    if op == "functions":
        op = draw.one_of(*(("sqrt", "exp") if word == "float64" else FUNCTIONS))
    x = draw.view(draw.values(word, draw.shape()))
    held = "int8" if word == "bool" else word
    given, said = draw.given(x, word), f"{op} of {said_of(x, word)}"
    wide = x.astype(np.float64 if floats else held)
    unit = UNIT[word] if word == "float64" else ROUNDOFF
    named: dict[str, Any] = {}
    steps: Any = op
    want, bound, kind = wide, 0.0, held
    with np.errstate(all="ignore"):
        if op in ("bias", "residual", "multiply"):
            shape = tuple(1 if draw.chance(0.3) else extent for extent in x.shape)[draw.one_of(0, 0, x.ndim - 1) :]
            other = draw.values(word, shape)
            name = {"bias": "bias", "residual": "z", "multiply": "f"}[op]
            named[name] = draw.given(other, word)
            gamma = draw.one_of(1.0, -2.5) if op == "residual" else 1.0
            named |= {"gamma": gamma} if gamma != 1.0 else {}
            second = other.astype(wide.dtype)
            want = wide * second if op == "multiply" else wide + (gamma * second if op == "residual" else second)
            bound = 4 * unit * (np.abs(want) if op == "multiply" else np.abs(wide) + abs(gamma) * np.abs(second)) if floats else 0.0
            said += f" and {list(shape)}"
        elif op == "bias_number":
            number = draw.one_of(1.5, -3.25, np.float32(0.5)) if floats else draw.one_of(1, 4, np.int64(2))
            steps, named["bias"] = "bias", number
            want = wide + (float(number) if floats else np.asarray(number).astype(held))
            bound = 2 * unit * (np.abs(wide) + abs(float(number))) if floats else 0.0
        elif op in ("cast", "cast_square"):
            kind = draw.one_of("float32", "float16", "int8", "int32") if floats or word != "bool" else draw.one_of("float32", "int32")
            if floats and kind in ("int8", "int32"):
                kind = "float32"
            steps = [{"op": "cast", "type": kind}, *(["square"] if op == "cast_square" else [])]
            cast = rounded(wide, kind) if kind in FLOATS else wide.astype(kind)
            want = cast * cast if op == "cast_square" else cast
            bound = 2 * ROUNDOFF * np.abs(want) if kind in FLOATS else 0.0
            said += f" to {kind}"
        elif op == "copy":
            steps = ()
        elif op == "scale":
            factor = draw.one_of(0.5, -3.0, 1.7)
            steps, want = (
                {"op": "scale", "factor": factor},
                wide * float(rounded(np.asarray(factor), "float64" if word == "float64" else "float32")),
            )
            bound = 4 * unit * np.abs(want)
        elif op == "clamp":
            steps, want = {"op": "clamp", "low": -1.0, "high": 2.0}, np.clip(wide, -1.0, 2.0)
        elif op in ("abs", "square"):
            want = np.abs(wide) if op == "abs" else wide * wide
            bound = 2 * unit * np.abs(want) if floats and op == "square" else 0.0
        elif op == "relu":
            want = np.maximum(wide, 0)
        else:
            want, bound = function(op, wide, word)
    return Call(said, lambda: fault(ops.elementwise(given, steps, **named), kind, want, bound))


def matmul_call(draw: Draw) -> Call:
    """A product with an epilogue."""
    word = draw.one_of("float32", "float32", "float16", "bfloat16", "int8", "uint8", "bool", "float64", "mixed")
    other_word = word
    if word == "mixed":
        word, other_word = draw.one_of(("float32", "float16"), ("bfloat16", "float32"), ("float16", "float32"))
    most = 200 if draw.device else 48  # the emulator is slow
    m, n, k = (draw.one_of(1, draw.extent(1, 40), draw.extent(1, most), 8 * draw.extent(1, most // 8)) for _ in range(3))
    batch = draw.one_of((), (), (), (draw.extent(1, 4),), (2, 3))
    shapes = [(*batch, m, k), (*(batch if draw.chance(0.5) else ()), k, n)]
    vector = draw.chance(0.1) and not batch
    a, b = (
        np.clip(draw.values(kind, shape), -100, 100) if kind != "bool" else draw.values(kind, shape)
        for kind, shape in zip((word, other_word), shapes, strict=True)
    )
    if draw.chance(0.4):
        b = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)
    if draw.chance(0.3):
        a = np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)
    if draw.chance(0.1):
        a = a[..., ::-1]
    if draw.chance(0.1) and m > 1:
        a = a[..., ::2, :]
    if vector:
        a = a[0]
    if vector and draw.chance(0.5):
        b = b[:, 0]
    floats = word in FLOATS
    wide = np.float64 if floats else np.int64
    product, sizes = np.matmul(a.astype(wide), b.astype(wide)), np.matmul(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
    product, sizes = np.asarray(product), np.asarray(sizes)
    kind = "float64" if word == "float64" else "int32" if not floats else word if word == other_word else "float32"
    unit = 2.0**-53 if word == "float64" else ROUNDOFF
    bound: Any = (k + 8) * unit * sizes if floats else 0.0
    named: dict[str, Any] = {}
    said = f"{said_of(a, word)} x {said_of(b, other_word)}"
    extra = draw.one_of("", "", "alpha", "beta", "bias", "residual", "activation", "all", "invariant", "output")
    if product.ndim < 2 or (extra in ("residual", "all", "beta") and word == "float64"):
        extra = ""
    if extra and not floats and extra not in ("invariant", "output"):
        kind = "float32"
    want = product.astype(np.float64) if extra and (floats or kind == "float32") else product
    if extra in ("alpha", "all"):
        alpha = draw.one_of(0.5, -1.25, np.float32(2.0))
        named["alpha"], want, bound = alpha, want * float(alpha), (bound + (2 * unit * sizes)) * abs(float(alpha))
    if extra in ("bias", "all") and word != "float64":
        per_row, number = draw.chance(0.2), draw.chance(0.2)
        given_type = kind
        if number:
            named["bias"], values = 1.5, np.asarray(1.5)
        else:
            shape = (product.shape[-2], 1) if per_row else (product.shape[-1],)
            values = np.clip(draw.values(given_type, shape), -100, 100)
            named["bias"] = draw.given(np.ascontiguousarray(values), given_type)
        want, bound = want + values, bound + 4 * unit * (np.abs(want) + np.abs(values))
    if extra in ("residual", "all") and word != "float64":
        values = np.clip(draw.values(kind, product.shape), -100, 100)
        gamma = draw.one_of(1.0, 0.5)
        named |= {"residual": draw.given(values, kind), "gamma": gamma}
        want, bound = want + gamma * values, bound + 4 * unit * (np.abs(want) + np.abs(values))
    if extra in ("activation", "all") and word != "float64":
        name = draw.one_of(*ACTIVATIONS)
        named["activation"] = name
        value, more = function(name, np.asarray(want, np.float64), kind)
        want, bound = value, 1.2 * np.asarray(bound) + more
    if extra == "invariant" and word not in ("float64",):
        named["batch_invariant"] = True
    if extra == "output" and floats and word != "float64":
        kind = named["output"] = draw.one_of("float32", "float16", "bfloat16")
    if extra == "beta":
        values = draw.values(kind, product.shape)
        values = np.clip(values, -100, 100)
        out = draw.given(np.ascontiguousarray(values), kind)
        beta = draw.one_of(1.0, 0.5)
        named |= {"out": out, "beta": beta}
        want, bound = want + beta * values, bound + 4 * unit * (np.abs(want) + np.abs(values))
    left, right = draw.given(a, word), draw.given(b, other_word)
    return Call(
        f"{said}, {extra or 'plain'} {named.get('activation', '')}", lambda: fault(ops.matmul(left, right, **named), kind, want, bound)
    )


def rows_call(op: str, draw: Draw) -> Call:
    """One operation on rows, with or without weights."""
    word = draw.one_of("float32", "float16", "bfloat16")
    shape = draw.shape()
    axis = int(draw.form.integers(-len(shape), len(shape)))
    x = draw.view(np.clip(draw.values(word, shape), -100, 100))
    n, said = x.shape[axis], f"{said_of(x, word)}, axis {axis}"
    wide, line = np.moveaxis(x, axis, -1), {"axis": -1, "keepdims": True}
    most = wide.max(**line)
    powers = np.exp(wide - most)
    shares = powers / powers.sum(**line)
    distance = most - wide  # the rounding of an exponent is a relative error of its power
    unit, growth = 2 * ROUNDOFF, 8.0 + n
    given = draw.given(x, word)
    operation: Callable[..., Any] = getattr(ops, op)
    extra: list[Any] = []
    named: dict[str, Any] = {"axis": axis}
    if op in ("softmax", "log_softmax"):
        wanted = [shares if op == "softmax" else wide - most - np.log(powers.sum(**line))]
        sizes = [np.abs(wanted[0]) + (shares * distance if op == "softmax" else 1 + np.abs(wide))]
    elif op in ("cumsum", "logcumsumexp"):
        wanted = [np.cumsum(wide, axis=-1) if op == "cumsum" else np.logaddexp.accumulate(wide, axis=-1)]
        sizes = [np.cumsum(np.abs(wide), axis=-1) + (op != "cumsum")]
    elif op.endswith("softmax_gradient"):
        soft = op == "softmax_gradient"
        y = rounded(np.moveaxis(shares if soft else np.log(np.maximum(shares, 1e-30)), -1, axis), word)
        extra = [draw.given(y, word)]
        kept = np.moveaxis(y, axis, -1)
        whole = ((wide * kept) if soft else wide).sum(**line)
        total = np.abs(wide * (kept if soft else 1)).sum(**line)
        wanted = [(wide - whole) * kept if soft else wide - np.exp(kept) * whole]
        sizes = [(np.abs(wide) + total) * np.abs(kept if soft else np.exp(kept)) * (1 if soft else 1 + np.abs(kept)) + np.abs(wide)]
    else:
        return norm_call(op, draw, x, word, axis, said)
    bounds = [unit * growth * size for size in sizes]

    def make() -> str:
        got = operation(given, *extra, **named)
        return fault(got, word, np.moveaxis(wanted[0], -1, axis), np.moveaxis(bounds[0], -1, axis))

    return Call(said, make)


def norm_call(op: str, draw: Draw, x: np.ndarray, word: str, axis: int, said: str) -> Call:
    """A norm, or its gradient."""
    layer, gradient = op.startswith("layer"), op.endswith("gradient")
    n, line = x.shape[axis], {"axis": -1, "keepdims": True}
    unit, growth = 2 * ROUNDOFF, 8.0 + n
    given = draw.given(x, word)
    residual = not gradient and draw.chance(0.3)
    weight_type = draw.one_of(word, "float32")
    weight = np.clip(draw.values(weight_type, (n,)), -100, 100) if draw.chance(0.8) else None
    bias = (
        np.clip(draw.values(weight_type, (n,)), -100, 100) if layer and not gradient and weight is not None and draw.chance(0.7) else None
    )
    vectors = [None if one is None else draw.given(one, weight_type) for one in (weight, bias)]
    named: dict[str, Any] = {"axis": axis}
    total = x
    if residual:
        other = np.clip(draw.values(word, x.shape), -100, 100)
        named["residual"] = draw.given(other, word)
        total = rounded(rounded(x + other, "float32") if word != "float32" else x + other, word)
    wide = np.moveaxis(total, axis, -1)
    centred = wide - wide.mean(**line) if layer else wide
    inverse = 1 / np.sqrt((centred**2).mean(**line) + (1e-5 if layer else 1e-6))
    normal = centred * inverse
    blurred = np.abs(normal) + inverse * np.abs(wide).mean(**line)
    scale = np.ones(n) if weight is None else weight
    # A mean is off by the roundings of its sum, which moves all elements of a row, and by that the deviation.
    moved = blurred * (1 + (blurred.max(**line) if layer else 0))
    said += f"{'' if weight is None else f', weight {weight_type}'}{', bias' if bias is not None else ''}{', residual' if residual else ''}"
    operation: Callable[..., Any] = getattr(ops, op)
    if not gradient:
        want = normal * scale + (0 if bias is None else bias)
        bound = unit * growth * (moved * np.abs(scale) + (0 if bias is None else np.abs(bias)))
        arguments = [given, vectors[0], *([vectors[1]] if layer else [])]

        def make() -> str:
            got = operation(*arguments, **named)
            faults = [fault(got[0] if residual else got, word, np.moveaxis(want, -1, axis), np.moveaxis(bound, -1, axis))]
            return first_faults([*faults, *([fault(got[1], word, total)] if residual else [])])

        return Call(said, make)
    dy = np.clip(draw.values(word, x.shape), -100, 100)
    down = np.moveaxis(dy, axis, -1)
    weighted = down * scale
    along, level = (weighted * normal).mean(**line), weighted.mean(**line) if layer else 0.0
    others = tuple(range(x.ndim - 1))
    size = np.abs(weighted) + np.abs(weighted).mean(**line) * (1 + moved * blurred.max(**line))
    lines = x.size // n
    wanted = [(weighted - level - normal * along) * inverse, (down * normal).sum(others), down.sum(others)]
    bounds = [
        unit * growth * size * inverse * (1 + blurred.max(**line)),
        unit * (growth + lines) * (np.abs(down) * moved).sum(others),
        unit * (growth + lines) * np.abs(down).sum(others),
    ]
    upper, types = draw.given(dy, word), [word, weight_type, weight_type]

    def make_gradient() -> str:
        got = operation(upper, given, vectors[0], **named)
        results = got if isinstance(got, list | tuple) else [got]
        faults = [fault(results[0], word, np.moveaxis(wanted[0], -1, axis), np.moveaxis(bounds[0], -1, axis))]
        if len(results) != (1 if weight is None else 3 if layer else 2):
            faults.append(f"{len(results)} results")
        for number in range(1, len(results)):
            faults.append(fault(results[number], types[number], wanted[number], bounds[number]))
        return first_faults(faults)

    return Call(said, make_gradient)


def topk_call(draw: Draw) -> Call:
    """The largest or smallest elements and their places in a stable order, NaN and infinities among them."""
    word, largest = draw.one_of("float32", "float16", "bfloat16"), draw.chance(0.5)
    x = draw.values(word, draw.shape() if draw.chance(0.85) else (draw.extent(1, 4), draw.extent(300, 3000)))
    x[draw.data.random(x.shape) < draw.one_of(0, 0.05, 0.3)] = draw.one_of(np.nan, -np.inf, np.inf, -0.0, 0.0, 1.0)
    while draw.device is None and x.size > MAX_SELECTED_FROM:
        x = x[: -(-x.shape[0] // 2)] if x.shape[0] > 1 else x[0]
    x = draw.view(x)
    axis = int(draw.form.integers(-x.ndim, x.ndim))
    n = x.shape[axis]
    k = min(n, draw.one_of(1, 2, 5, 16, 40, 64))
    order = np.argsort(x, axis, kind="stable") if not largest else n - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    first = np.take(order, np.arange(k), axis)
    wanted = np.take_along_axis(x, first, axis)
    given = draw.given(x, word)

    def make() -> str:
        values, places = ops.topk(given, k, axis, largest=largest)
        numbers, _ = found(values)
        signs = (
            "signs of zeros differ"
            if numbers.shape == wanted.shape and (np.signbit(numbers) != np.signbit(wanted))[wanted == 0].any()
            else ""
        )
        return first_faults([fault(values, word, wanted) or signs, fault(places, "int64", first)])

    return Call(f"{said_of(x, word)}, k {k}, axis {axis}, {'largest' if largest else 'smallest'}", make)


@dataclass(frozen=True)
class Layer:
    """A convolution of small integers."""

    n: int
    h: int
    w: int
    groups: int
    inputs: int
    outputs: int
    r: int
    s: int
    stride: int
    padding: int
    dilation: int

    @property
    def window(self) -> dict[str, int]:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}

    @property
    def pixels(self) -> tuple[int, int]:
        """Rows and columns of the results."""
        p, q = (
            (extent + 2 * self.padding - self.dilation * (taps - 1) - 1) // self.stride + 1
            for extent, taps in ((self.h, self.r), (self.w, self.s))
        )
        return p, q


def layer_of(draw: Draw, dilated: bool = True) -> Layer:
    """A layer whose filter is no larger than the padded image."""
    groups = draw.one_of(1, 1, 2, 3, 4, 8)
    if groups > 1:
        inputs = draw.one_of(1, 2, 4, 8, 16, 24, 40)
        outputs = inputs if draw.chance(0.5) else draw.one_of(1, 4, 16, 48)
    else:
        inputs, outputs = (draw.one_of(int(draw.form.integers(1, 71)), 8 * int(draw.form.integers(1, 10))) for _ in range(2))
    r, s = draw.one_of(1, 3, 5), draw.one_of(1, 3, 5)
    stride, padding, dilation = draw.one_of(1, 1, 2, 3), draw.one_of(0, 1, 2), draw.one_of(1, 1, 1, 2) if dilated else 1
    h, w = (max(int(draw.form.integers(1, 15)), dilation * (taps - 1) + 1 - 2 * padding) for taps in (r, s))
    return Layer(int(draw.data.integers(1, 4)), h, w, groups, inputs, outputs, r, s, stride, padding, dilation)


def small_integers(draw: Draw, most: int, shape: tuple[int, ...], least: int | None = None) -> np.ndarray:
    """Integers up to ``most``, as float64."""
    return draw.data.integers(-most if least is None else least, most + 1, shape).astype(np.float64)


def windows(x: np.ndarray, layer: Layer) -> np.ndarray:
    """The pixels that each result reads, (n, p, q, c, r, s)."""
    d, pad = layer.dilation, layer.padding
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    shape = (d * (layer.r - 1) + 1, d * (layer.s - 1) + 1)
    views = np.lib.stride_tricks.sliding_window_view(padded, shape, (1, 2))
    return views[:, :: layer.stride, :: layer.stride, :, ::d, ::d]


def conv2d_call(draw: Draw) -> Call:
    """A convolution of small integers with an epilogue, exact but for the rounding of its results; some with infinities."""
    word, layer = draw.one_of("int8", "uint8", "float16", "bfloat16"), layer_of(draw)
    floats = word in FLOATS
    inputs, outputs, groups = layer.inputs, layer.outputs, layer.groups
    x = small_integers(draw, 3, (layer.n, layer.h, layer.w, groups * inputs), 0 if word == "uint8" else None)
    f = small_integers(draw, 2, (groups * outputs, layer.r, layer.s, inputs))
    if floats and groups > 1 and draw.chance(0.3):
        x[draw.data.random(x.shape) < 0.01] = draw.one_of(np.inf, -np.inf, np.nan)
    views = windows(x, layer)
    with np.errstate(invalid="ignore"):
        parts = [
            np.einsum("npqcrs,krsc->npqk", views[..., g * inputs : (g + 1) * inputs, :, :], f[g * outputs : (g + 1) * outputs])
            for g in range(groups)
        ]
    want, kind = np.concatenate(parts, axis=3), word
    named: dict[str, Any] = dict(layer.window)
    extra = draw.one_of("", "", "bias", "alpha", "relu", "residual", "invariant", "output")
    if extra == "bias":
        values = small_integers(draw, 20, (groups * outputs,))
        named["bias"], want = draw.given(values, "float32", ALIGNED), want + values
    elif extra == "alpha":
        named["alpha"], want = 0.5, want * 0.5
    elif extra == "relu":
        named["activation"], want = "relu", np.maximum(want, 0)
    elif extra == "residual":
        values = small_integers(draw, 5, want.shape, 0 if word == "uint8" else None)
        named["residual"], want = draw.given(values.transpose(0, 3, 1, 2), word, ALIGNED), want + values
    elif extra == "invariant":
        named["batch_invariant"] = True
    elif extra == "output":
        kind = named["output"] = "float32" if floats else draw.one_of("int32", "float32")
    low, high = {"int8": (-128, 127), "uint8": (0, 255)}.get(kind, (-np.inf, np.inf))
    want = rounded(want, kind) if kind in FLOATS else np.clip(np.rint(want), low, high)
    image = draw.given(x.transpose(0, 3, 1, 2), word, ALIGNED)
    filters = draw.given(f.transpose(0, 3, 1, 2), word if floats else "int8", ALIGNED)
    return Call(f"{word} {layer} {extra}", lambda: fault(ops.conv2d(image, filters, **named), kind, want.transpose(0, 3, 1, 2)))


def gradient_call(op: str, draw: Draw) -> Call:
    """A gradient of a convolution, or a transposed convolution, of small integers: exact but for the rounding of its results."""
    word, layer = draw.one_of("float16", "bfloat16") if draw.library == "torch" else "float16", layer_of(draw)
    inputs, outputs, groups = layer.inputs, layer.outputs, layer.groups
    p, q = layer.pixels
    x = small_integers(draw, 2, (layer.n, layer.h, layer.w, groups * inputs))
    f = small_integers(draw, 2, (groups * outputs, layer.r, layer.s, inputs))
    dy = small_integers(draw, 2, (layer.n, p, q, groups * outputs))
    arrays = {name: draw.given(one.transpose(0, 3, 1, 2), word, ALIGNED) for name, one in (("x", x), ("w", f), ("dy", dy))}
    if op == "conv2d_filter_gradient":
        views = windows(x, layer)
        parts = [
            np.einsum("npqcrs,npqk->krsc", views[..., g * inputs : (g + 1) * inputs, :, :], dy[..., g * outputs : (g + 1) * outputs])
            for g in range(groups)
        ]
        want = np.concatenate(parts, axis=0)
        return Call(
            f"{word} {layer}",
            lambda: fault(
                ops.conv2d_filter_gradient(arrays["x"], arrays["dy"], (layer.r, layer.s), **layer.window),
                word,
                rounded(want.transpose(0, 3, 1, 2), word),
            ),
        )
    pad, d, step = layer.padding, layer.dilation, layer.stride
    whole = np.zeros((layer.n, layer.h + 2 * pad + step, layer.w + 2 * pad + step, groups * inputs))
    for i in range(layer.r):
        for j in range(layer.s):
            for g in range(groups):
                one = np.einsum("npqk,kc->npqc", dy[..., g * outputs : (g + 1) * outputs], f[g * outputs : (g + 1) * outputs, i, j])
                rows, columns = slice(i * d, i * d + step * (p - 1) + 1, step), slice(j * d, j * d + step * (q - 1) + 1, step)
                whole[:, rows, columns, g * inputs : (g + 1) * inputs] += one
    want = rounded(whole[:, pad : pad + layer.h, pad : pad + layer.w].transpose(0, 3, 1, 2), word)
    if op == "conv2d_input_gradient":
        return Call(
            f"{word} {layer}",
            lambda: fault(ops.conv2d_input_gradient(arrays["dy"], arrays["w"], (layer.h, layer.w), **layer.window), word, want),
        )
    more = tuple(
        extent - (step * (count - 1) + d * (taps - 1) + 1 - 2 * pad)
        for extent, count, taps in ((layer.h, p, layer.r), (layer.w, q, layer.s))
    )
    return Call(
        f"{word} {layer} {more}",
        lambda: fault(ops.conv_transpose2d(arrays["dy"], arrays["w"], output_padding=more, **layer.window), word, want),
    )


KINDS: dict[str, Callable[[Draw], Call]] = {
    "reduce": reduce_call,
    "elementwise": elementwise_call,
    "matmul": matmul_call,
    "topk": topk_call,
    "conv2d": conv2d_call,
    **{op: partial(rows_call, op) for op in ROWS},
    **{op: partial(gradient_call, op) for op in ("conv2d_input_gradient", "conv2d_filter_gradient", "conv_transpose2d")},
}
