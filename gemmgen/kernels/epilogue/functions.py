"""Functions of epilogues: each with its types, its reference and error bound, its CUDA text, its derivative and its cost.

A bound has two parts. *Propagation*: the change of the exact result within the bounds of the arguments, from monotony or from the largest
slope. *Evaluation*: the error of the CUDA text at any argument in that range, from the roundings of IEEE 754 and from the errors that the
CUDA C++ Programming Guide (appendix "Mathematical Functions") and the PTX ISA state for functions and approximate instructions.
``tests/kernels/epilogue/test_functions.py`` holds references and bounds against mpmath.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gemmgen.core.elements import ELEMENTS, FLOATS, DataType, float_format
from gemmgen.kernels.accuracy import LIBRARY_ERROR, SMALLEST, UNIT_ROUNDOFF
from gemmgen.kernels.epilogue.numbers import Tracked, clear_bounds, fused_multiply_add, rounded

Array = Any
"""An array of NumPy, which is imported when the first one is made."""
Reference = Callable[..., Tracked]

Takes = Literal["number", "float", "float32", "truth", "integers", "divided", "any"]
"""Types of arguments: numbers of any type, floats, float32 alone, truth values, integers that become int64 each, an integer and a positive
literal that it is divided by, or any of them."""

EXPONENTIAL_ULPS = 1.0
"""Error of the exponential functions that the kernels use, in units of the last place: the generated float32 one stays
below 1, which a test measures; for CUDA's float64 ``exp`` its Programming Guide states 1."""

EX2_ERROR = 2.0**-22
"""Relative error of ``ex2.approx.f32``: at most 2 ulp (PTX ISA)."""
RECIPROCAL_ERROR = 2.0**-23
"""Relative error of ``rcp.approx.ftz.f32``: at most 1 ulp (PTX ISA)."""
TANH_ERROR = 2.0**-10.987
"""Relative error of ``tanh.approx.f32`` (PTX ISA)."""
GELU_POLYNOMIAL_ERROR = 4.0e-5
"""Relative error of the polynomial in ``quick_gelu``; a test measures it."""
MIN_NORMAL = 2.0**-126
COARSE_GELU = (-0.0015527548, 0.16228047, 0.053823389, 0.28570315)
"""Coefficients of the polynomial in ``coarse_gelu``: of t = 1 / (1 + ``COARSE_GELU_SLOPE`` y), it is erfc(y / sqrt(2)) e^(y^2 / 2) / 2."""
COARSE_GELU_SLOPE = 0.35700923
COARSE_GELU_ERROR = 5.2e-4
"""Relative error of this polynomial where e^(-y^2 / 2) is not below 2^-126; a test measures it."""
SINGLE_GELU = (-1.0007819, -1.1429328, -0.4729459, -0.044406723, 0.005455837, -0.00041845438, 1.7816788e-05, -3.1948125e-07)
"""Coefficients of the polynomial in ``single_gelu``: of y = |x|, lowest power first, it is log2(erfc(y / sqrt(2)) / 2)."""
SINGLE_GELU_LIMIT = 13.2
"""Largest y that the polynomial is made for; beyond, it is below -126, so that its power of 2 is 0."""
SINGLE_GELU_ERROR = 5.5e-4
"""Relative error of 2 to the power of this polynomial up to the limit; a test measures it."""


SINGLE_SILU = (1.0, -0.98880315, 0.88001579, -0.55147421, 0.1604389)
"""Coefficients of the polynomial in ``single_silu``, of p from 0 to 1, lowest power first: it is 1 / (1 + p)."""
SINGLE_SILU_ERROR = 3.6e-4
"""Relative error of this polynomial; a test measures it."""
SINGLE_SILU_SCALE = 2.0**8
"""The factor of p in ``single_silu``."""


COARSE_GELU_TANH = (0.15224489, -0.53285746, 0.86589361, -0.98483504, 0.99970266)
"""Coefficients of the polynomial in ``coarse_gelu_tanh``, of p from 0 to 1, highest power first: it is 1 / (1 + p)."""
COARSE_GELU_TANH_ERROR = 3.0e-4
"""Relative error of this polynomial; a test measures it."""


@dataclass(frozen=True)
class Approximation:
    """A form of a float32 function on approximate instructions."""

    code: str
    """CUDA text of the result, a call."""
    reference: Reference
    cost: float
    """Instructions of an evaluation."""
    special: int | None = None
    """Special functions among them; None: as many as the function takes."""


@dataclass(frozen=True)
class Function:
    """One function, or an operator."""

    name: str
    arity: int
    reference: Reference
    """Value, bound and type of the result, from tracked arguments."""
    code: str
    """CUDA text of the result. ``{0}``, ``{1}`` ... are the arguments, ``{s}`` the suffix of math functions of the type, ``{zero}`` and
    ``{one}`` its constants."""
    torch: str = ""
    """The function of torch, or of ``torch.nn.functional``."""
    derivative: tuple[str | None, ...] = ()
    """Derivative by each argument, as expressions of the arguments ``x``, ``y``, ``z`` and the result ``f``; None: zero."""
    level: int = 8
    """Precedence of the text's outermost operator: 0 conditional, 1 or, 2 and, 3 equality, 4 order, 5 sum, 6 product, 7 sign, 8 call."""
    inner: tuple[int, ...] = ()
    """Precedence that each argument's text needs; calls need 0."""
    takes: Takes = "float"
    gives: Literal["same", "truth", "float32"] = "same"
    integer: str = ""
    """The text for integers, which wrap around; empty: that of floats."""
    quick: Approximation | None = None
    """The form on approximate instructions, for results of 16 bits or fewer."""
    coarse: Approximation | None = None
    """The form for results of bfloat16 and narrower, if it differs from ``quick``."""
    in_turn: Approximation | None = None
    """The form for the same results beside another group that multiplies, if it differs from ``coarse``: with fewer multiply-adds."""
    repeats: bool = False
    """True if the text has an argument twice."""
    approximate: bool = False
    """True where it calls a function of the CUDA math library. Those are built on approximate instructions, which the emulator
    rounds correctly and a GPU nearly so: within the error bound, but not with the same bits."""
    steps: bool = False
    """True if it jumps: arguments within their bounds of a jump make the result unknown, so that formulas want exact ones."""
    cost: float = 1
    """Instructions of a float32 evaluation."""
    special: int = 0
    """Minimum number of special functions: 2^x, square roots, reciprocals, which have separate execution units."""
    bound: str = "1 rounding"
    """Evaluation error in words."""


def _np() -> Any:
    import numpy as np

    return np


# ---- arithmetic ----


def _add(a: Tracked, b: Tracked) -> Tracked:
    total = a.value + b.value
    return rounded(total, a.bound + b.bound, a.kind) if a.kind in FLOATS else Tracked(total, a.bound + b.bound, a.kind)


def _sub(a: Tracked, b: Tracked) -> Tracked:
    total = a.value - b.value
    return rounded(total, a.bound + b.bound, a.kind) if a.kind in FLOATS else Tracked(total, a.bound + b.bound, a.kind)


def _scaled(bound: Array, size: Array) -> Array:
    """A bound times a factor; an exact value stays exact beside an infinity."""
    np = _np()
    return np.asarray(np.where(bound == 0, 0.0, clear_bounds(bound * np.abs(size))))


def _product_bound(a: Tracked, b: Tracked) -> Array:
    return _scaled(a.bound, b.value) + _scaled(b.bound, a.value) + _scaled(a.bound, b.bound)


def _mul(a: Tracked, b: Tracked) -> Tracked:
    product = a.value * b.value
    if a.kind not in FLOATS:
        return Tracked(product, _product_bound(a, b), a.kind)
    return rounded(product, _product_bound(a, b), a.kind)


def _div(a: Tracked, b: Tracked) -> Tracked:
    np = _np()
    with np.errstate(divide="ignore"):
        quotient = a.value / b.value
    least = np.abs(b.value) - b.bound
    exact = (a.bound == 0) & (b.bound == 0)
    safe = np.where(least > 0, least, 1.0)
    bound = np.where(exact, 0.0, np.where(least > 0, (a.bound + np.abs(quotient) * b.bound) / safe, np.inf))
    result = rounded(quotient, clear_bounds(bound), a.kind)
    # The quotient of two float32 rounded to float64 and then to float32 is correctly rounded (Figueroa); that of longer ones may not be.
    return result if a.kind == "f32" or not np.any(exact) else rounded(quotient, clear_bounds(bound), a.kind, ulps=1.0 + 2.0**-10)


def _neg(a: Tracked) -> Tracked:
    return Tracked(-a.value, a.bound, a.kind)


def _absolute(a: Tracked) -> Tracked:
    return Tracked(_np().abs(a.value), a.bound, a.kind)


def _square(a: Tracked) -> Tracked:
    np = _np()
    if a.kind not in FLOATS:
        return Tracked(a.value * a.value, a.bound, a.kind)
    return rounded(a.value * a.value, _scaled(a.bound, 2 * np.abs(a.value) + a.bound), a.kind)


def _fma(a: Tracked, b: Tracked, c: Tracked) -> Tracked:
    spread = _product_bound(a, b) + c.bound
    if a.kind == "f32":
        return rounded(fused_multiply_add(a.value, b.value, c.value), clear_bounds(spread), a.kind)
    product = a.value * b.value
    return rounded(c.value + product, clear_bounds(spread + abs(product) * 2.0**-60), a.kind, ulps=2.0)


def _extremum(smaller: bool) -> Reference:
    def reference(a: Tracked, b: Tracked) -> Tracked:
        np = _np()
        value = np.minimum(a.value, b.value) if smaller else np.maximum(a.value, b.value)
        # -0 is less than +0, which NumPy leaves open.
        zeros = -(-a.value - b.value) if smaller else a.value + b.value
        value = np.where((a.value == 0) & (b.value == 0), zeros, value)
        # The one that is certainly taken brings its own bound alone.
        first = (a.value + a.bound < b.value - b.bound) if smaller else (a.value - a.bound > b.value + b.bound)
        second = (b.value + b.bound < a.value - a.bound) if smaller else (b.value - b.bound > a.value + a.bound)
        bound = np.where(first, a.bound, np.where(second, b.bound, np.maximum(a.bound, b.bound)))
        return Tracked(value, bound, a.kind)

    return reference


def _relu(a: Tracked) -> Tracked:
    np = _np()
    return Tracked(np.where(a.value < 0, a.value.dtype.type(0), a.value), a.bound, a.kind)


def _leaky_relu(a: Tracked, slope: Tracked) -> Tracked:
    np = _np()
    below = _mul(a, slope)
    # A value within its bound of 0 may have taken either branch; both are 0 there.
    within = np.maximum(a.bound, below.bound + np.where(np.abs(a.value) <= a.bound, a.bound * (1 + np.abs(slope.value)), 0.0))
    bound = np.where(a.value > a.bound, a.bound, np.where(a.value < -a.bound, below.bound, within))
    return Tracked(np.where(a.value > 0, a.value, below.value), bound, a.kind)


def _hard_swish(a: Tracked) -> Tracked:
    np = _np()
    shifted = rounded(a.value + 3, a.bound, a.kind)
    gate = np.clip(shifted.value, 0.0, 6.0)
    bound = a.bound * 6 + shifted.bound * (np.abs(a.value) + a.bound)
    return rounded(a.value * gate, clear_bounds(bound), a.kind)


# ---- comparisons and choices ----


def _compared(compare: Callable[[Any, Any], Any]) -> Reference:
    def reference(a: Tracked, b: Tracked) -> Tracked:
        np = _np()
        spread = a.bound + b.bound
        undecided = (spread > 0) & ~(np.abs(a.value - b.value) > spread) & ~(np.isnan(a.value) | np.isnan(b.value))
        return Tracked(compare(a.value, b.value), np.where(undecided, np.inf, 0.0), "bool")

    return reference


def _and(a: Tracked, b: Tracked) -> Tracked:
    np = _np()
    settled = ((a.bound == 0) & ~a.value) | ((b.bound == 0) & ~b.value)
    return Tracked(a.value & b.value, np.where(settled, 0.0, np.maximum(a.bound, b.bound)), "bool")


def _or(a: Tracked, b: Tracked) -> Tracked:
    np = _np()
    settled = ((a.bound == 0) & a.value) | ((b.bound == 0) & b.value)
    return Tracked(a.value | b.value, np.where(settled, 0.0, np.maximum(a.bound, b.bound)), "bool")


def _not(a: Tracked) -> Tracked:
    return Tracked(~a.value, a.bound, "bool")


def _select(condition: Tracked, a: Tracked, b: Tracked) -> Tracked:
    np = _np()
    value = np.where(condition.value, a.value, b.value)
    with np.errstate(invalid="ignore"):
        either = np.maximum(a.bound, b.bound) + np.abs(np.asarray(a.value - b.value, np.float64))
    both_nan = np.isnan(np.asarray(a.value, np.float64)) & np.isnan(np.asarray(b.value, np.float64))
    bound = np.where(condition.bound > 0, np.where(both_nan, 0.0, clear_bounds(either)), np.where(condition.value, a.bound, b.bound))
    return Tracked(value, bound, a.kind)


# ---- transcendental functions ----


def square_root(value: Tracked, *, of_squares: bool = False) -> Tracked:
    """The square root of tracked values.

    Where a bound leaves the sign open, so is whether the root is NaN: nothing is known of it. ``of_squares``: the kernel adds up
    squares, which no error makes negative.
    """
    np = _np()
    with np.errstate(invalid="ignore"):
        root = np.sqrt(value.value)
        # |sqrt(v + e) - sqrt(v)| = |e| / (sqrt(v + e) + sqrt(v)) <= |e| / sqrt(v), and <= sqrt(|e|).
        bound = np.sqrt(value.bound)
        bound = np.minimum(bound, np.divide(value.bound, root, out=np.array(bound), where=root > 0))
        if not of_squares:
            unknown = (value.bound > 0) & (np.abs(value.value) <= value.bound)
            root, bound = np.where(unknown, 0.0, root), np.where(unknown, np.inf, bound)
            bound = np.where(value.value < -value.bound, 0.0, bound)  # NaN for certain
    return rounded(root, clear_bounds(bound), value.kind)


def _exp(a: Tracked) -> Tracked:
    np = _np()
    result = np.exp(a.value)
    exponential = rounded(result, _scaled(np.expm1(a.bound), result), a.kind, ulps=2 * EXPONENTIAL_ULPS)
    return Tracked(exponential.value, np.where((a.bound == 0) & ~np.isfinite(a.value), 0.0, exponential.bound), a.kind)


def _quick_exp(a: Tracked) -> Tracked:
    np = _np()
    result = np.exp(a.value)
    reach = np.abs(a.value) + a.bound
    spread = _scaled(np.expm1(a.bound), result)
    return _evaluated(a, result, spread, (EX2_ERROR + 2.02 * UNIT_ROUNDOFF * reach) * (result + spread) + SMALLEST)


def _evaluated(a: Tracked, result: Array, spread: Array, error: Array, smallest: float = SMALLEST) -> Tracked:
    """A float32 function's ``result`` with both parts of its bound; the result of an infinite or NaN argument is exact."""
    from gemmgen.kernels.epilogue.numbers import overflown

    np = _np()
    bound = np.where(np.isfinite(a.value), clear_bounds(spread + error + smallest), np.where(a.bound > 0, np.inf, 0.0))
    return overflown(Tracked(result, bound, a.kind), a.kind)


def _smooth(
    function: Callable[[Any], Array], slope: float, error: Callable[[Any], Any] | float, absolute: float = SMALLEST, shifted: float = 1.0
) -> Reference:
    """The reference of a float32 function: its largest ``slope``, and its relative ``error``, a number or a function of the largest size
    that the argument may have; ``absolute``: error beside it, times the argument's size where ``shifted`` is 0."""

    def reference(a: Tracked) -> Tracked:
        np = _np()
        result = function(a.value)
        spread = slope * a.bound
        reach = np.where(np.isfinite(a.value), np.abs(a.value) + a.bound, 0.0)
        relative = error(reach) if callable(error) else error
        size = np.maximum(1.0, reach) if shifted == 0 else 1.0
        return _evaluated(a, result, spread, clear_bounds(relative * (np.abs(result) + spread)) + absolute * size)

    return reference


def _monotone(function: Callable[[Any], Array], domain: float, ulps: float) -> Reference:
    """The reference of an increasing or decreasing float32 function on arguments above ``domain``, below which it is NaN."""

    def reference(a: Tracked) -> Tracked:
        np = _np()
        with np.errstate(divide="ignore", invalid="ignore"):
            result = function(a.value)
            low, high = function(np.maximum(a.value - a.bound, domain)), function(a.value + a.bound)
            spread = np.maximum(np.abs(high - result), np.abs(result - low))
            spread = np.where(a.bound == 0, 0.0, clear_bounds(spread))
            unknown = (a.bound > 0) & (np.abs(a.value - domain) <= a.bound)
            certain_nan = a.value < domain - a.bound
            result = np.where(unknown, 0.0, result)
            roundoff = float_format(a.kind).roundoff
            error = (2 * ulps + 1) * roundoff * (np.abs(result) + spread)
            evaluated = _evaluated(a, result, np.where(unknown, np.inf, spread), error, float_format(a.kind).smallest)
        return Tracked(evaluated.value, np.where(certain_nan | (np.isinf(evaluated.value) & (a.bound == 0)), 0.0, evaluated.bound), a.kind)

    return reference


def _erfc(x: object) -> Array:
    np = _np()
    return np.asarray(np.vectorize(math.erfc, otypes=[np.float64])(np.asarray(x, np.float64)))


def _erf(x: object) -> Array:
    np = _np()
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(np.asarray(x, np.float64)))


def _sigmoid(x: Any) -> Array:
    np = _np()
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1.0) / (1 + e))


def _silu(x: Any) -> Array:
    np = _np()
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, x * e, x) / (1 + e))


def _gelu(x: Any) -> Array:
    return np_multiply(0.5 * x, _erfc(-x / math.sqrt(2)))


def _gelu_tanh(x: Any) -> Array:
    np = _np()
    w = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return np_multiply(x, np.where(np.isnan(w), w, _sigmoid(w)))


def np_multiply(a: object, b: object) -> Array:
    """A product, NaN where infinity meets 0, as in the kernels."""
    return _np().asarray(_np().multiply(a, b))


def _softplus(x: object) -> Array:
    np = _np()
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def philox(seed: Any, offset: Any, index: Any, threads: Any) -> Array:
    """Words of Philox 4x32-10 for elements: the seed is the key, the thread that draws for an element the subsequence."""
    np = _np()
    seed, offset, index, threads = (
        np.asarray(one, np.int64).astype(np.uint64) for one in np.broadcast_arrays(seed, offset, index, threads)
    )
    quad, many = index // 4, np.maximum(threads, 1)
    serial = (threads == 0) | (threads >= np.uint64(2**63))
    drawn = offset // 4 + np.where(serial, 0, quad // many).astype(np.uint64)
    thread = np.where(serial, quad, quad % many).astype(np.uint64)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter = [drawn & low, drawn >> shift, thread & low, thread >> shift]
    keys = [seed & low, seed >> shift]
    for _ in range(10):
        first, second = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = [(second >> shift) ^ counter[1] ^ keys[0], second & low, (first >> shift) ^ counter[3] ^ keys[1], first & low]
        keys = [(keys[0] + np.uint64(0x9E3779B9)) & low, (keys[1] + np.uint64(0xBB67AE85)) & low]
    return np.choose((index & np.uint64(3)).astype(np.int64), counter)


def _rand(seed: Tracked, offset: Tracked, index: Tracked, threads: Tracked) -> Tracked:
    """A word times 2^-32, after its rounding to float32, plus 2^-33."""
    np = _np()
    words = philox(seed.value, offset.value, index.value, threads.value).astype(np.float32).astype(np.float64)
    value = (words * 2.0**-32 + 2.0**-33).astype(np.float32).astype(np.float64)
    return Tracked(value, np.zeros(value.shape), "f32")


_U = UNIT_ROUNDOFF
_TANH_FORM = 2 * math.sqrt(2 / math.pi)


def _gelu_condition(reach: Array) -> Array:
    """Relative change of erfc(z) by a relative change of z = |x| / sqrt(2): at most 2 z^2 + 2, from the bounds of Mills' ratio."""
    return reach * reach + 2


def _gelu_polynomial_error(polynomial: float) -> Callable[[Array], Array]:
    """Relative error of GELU by a polynomial of t = 1 / (1 + c |x|) with a relative error, times e^(-x^2 / 2). The exponent, whose size is
    x^2 / 2, has the roundings of its coefficient, which is half of a unit roundoff at most, and of two products. Ten roundings at most are
    those of the polynomial's terms, which have up to five factors t with its error."""

    def error(reach: Array) -> Array:
        return polynomial + EX2_ERROR + 5 * RECIPROCAL_ERROR + (1.27 * reach * reach + 20) * _U

    return error


def _single_gelu_error(reach: Array) -> Array:
    """Relative error of ``single_gelu``. Each term of the polynomial passes through at most eight roundings, and its coefficient has one;
    an error of the exponent counts ln 2 times. A multiply-add follows."""
    np = _np()
    sizes = np.polynomial.polynomial.polyval(np.minimum(reach, SINGLE_GELU_LIMIT), np.abs(SINGLE_GELU))
    return SINGLE_GELU_ERROR + EX2_ERROR + (9.1 * math.log(2) * sizes + 2) * _U


def _single_silu_error(reach: Array) -> Array:
    """Relative error of ``single_silu``. The exponent, 8 - |x| / ln 2, has the roundings of 1 / ln 2, which is a quarter of a unit
    roundoff, and of the multiply-add; those of the polynomial, which is at least 1 / 2, and of two products follow. Beyond |x| = 100 the
    power is 0."""
    exponent = 1.25 * _np().minimum(reach, 100.0) + 8 * math.log(2)
    return SINGLE_SILU_ERROR + EX2_ERROR + (1.01 * exponent + 10.1 * sum(map(abs, SINGLE_SILU)) + 3) * _U


def _gelu_tanh_exponent(reach: Array) -> Array:
    """The size of 2 sqrt(2 / pi) (x + 0.044715 x^3)."""
    return _TANH_FORM * (reach + 0.044715 * reach**3)


def _scaled_power_error(reach: Array) -> Array:
    """Relative error of 1 / (1 + e^-x) and its product with x by way of 2^-64 e^-x. The exponent, -x / ln 2 - 64, has the roundings of
    1 / ln 2, which is a quarter of a unit roundoff, and of the fused multiply-add; a sum, a reciprocal and two products follow."""
    exponent = 1.25 * reach + 64 * math.log(2)
    return EX2_ERROR + RECIPROCAL_ERROR + (1.01 * exponent + 4) * _U


def _rint(a: Tracked) -> Tracked:
    np = _np()
    return Tracked(np.rint(a.value), np.where(a.bound > 0, np.ceil(a.bound) + 1, 0.0), a.kind)


def _floordiv(a: Tracked, b: Tracked) -> Tracked:
    np = _np()
    return Tracked(a.value // b.value, np.where(a.bound > 0, np.ceil(a.bound / b.value) + 1, 0.0), a.kind)


def _mod(a: Tracked, b: Tracked) -> Tracked:
    np = _np()
    return Tracked(a.value % b.value, np.where(a.bound > 0, 1.0 * b.value, 0.0), a.kind)


_WRAPPED = "static_cast<{c}>(static_cast<{u}>({0}) {sign} static_cast<{u}>({1}))"


def _wrapped(sign: str) -> str:
    return _WRAPPED.replace("{sign}", sign)


_QUICK_SILU = Approximation("quick_silu({0})", _smooth(_silu, 1.1, _scaled_power_error, SMALLEST, 0), 6)
_QUICK_GELU_TANH = Approximation(
    "quick_gelu_tanh({0})",
    _smooth(_gelu_tanh, 1.13, lambda reach: 8 * _U * _gelu_tanh_exponent(reach) + _scaled_power_error(0.0), SMALLEST, 0),
    8,
)
_TABLE = (
    Function("add", 2, _add, "{0} + {1}", "add", ("1", "1"), 5, (5, 6), "number", integer=_wrapped("+")),
    Function("sub", 2, _sub, "{0} - {1}", "sub", ("1", "-1"), 5, (5, 6), "number", integer=_wrapped("-")),
    Function("mul", 2, _mul, "{0} * {1}", "mul", ("y", "x"), 6, (6, 7), "number", integer=_wrapped("*")),
    Function("div", 2, _div, "{0} / {1}", "div", ("1 / y", "-f / y"), 6, (6, 7), cost=8, special=1),
    Function("floordiv", 2, _floordiv, "{0} / {1} - ({0} % {1} < 0)", "floor_divide", (None, None), 5, (7,), "divided",
             repeats=True, cost=6, bound="exact"),
    Function("mod", 2, _mod, "{0} % {1} + ({0} % {1} < 0 ? {1} : 0)", "remainder", (None, None), 5, (7,), "divided",
             repeats=True, cost=6, bound="exact"),
    Function("neg", 1, _neg, "-{0}", "neg", ("-1",), 7, (8,), "number", bound="exact"),
    Function("lt", 2, _compared(lambda a, b: a < b), "{0} < {1}", "lt", (None, None), 4, (5, 5), "number", "truth", bound="exact"),
    Function("le", 2, _compared(lambda a, b: a <= b), "{0} <= {1}", "le", (None, None), 4, (5, 5), "number", "truth", bound="exact"),
    Function("gt", 2, _compared(lambda a, b: a > b), "{0} > {1}", "gt", (None, None), 4, (5, 5), "number", "truth", bound="exact"),
    Function("ge", 2, _compared(lambda a, b: a >= b), "{0} >= {1}", "ge", (None, None), 4, (5, 5), "number", "truth", bound="exact"),
    Function("eq", 2, _compared(lambda a, b: a == b), "{0} == {1}", "eq", (None, None), 3, (4, 4), "any", "truth", bound="exact"),
    Function("ne", 2, _compared(lambda a, b: a != b), "{0} != {1}", "ne", (None, None), 3, (4, 4), "any", "truth", bound="exact"),
    Function("and", 2, _and, "{0} && {1}", "logical_and", (None, None), 2, (2, 3), "truth", "truth", bound="exact"),
    Function("or", 2, _or, "{0} || {1}", "logical_or", (None, None), 1, (2, 2), "truth", "truth", bound="exact"),
    Function("not", 1, _not, "!{0}", "logical_not", (None,), 7, (8,), "truth", "truth", bound="exact"),
    Function("select", 3, _select, "{0} ? {1} : {2}", "where", (None, "select(x, 1, 0)", "select(x, 0, 1)"), 0, (1, 1, 1), "any",
             bound="exact"),
    Function("min", 2, _extremum(True), "smaller{s}({0}, {1})", "minimum", ("select(y < x, 0, 1)", "select(x <= y, 0, 1)"), takes="number",
             integer="min({0}, {1})", bound="exact"),
    Function("max", 2, _extremum(False), "larger{s}({0}, {1})", "maximum", ("select(y > x, 0, 1)", "select(x >= y, 0, 1)"), takes="number",
             integer="max({0}, {1})", bound="exact"),
    Function("abs", 1, _absolute, "fabs{s}({0})", "abs", ("select(x < 0, -1, select(x > 0, 1, 0))",), takes="number",
             integer="{0} < 0 ? static_cast<{c}>(0 - static_cast<{u}>({0})) : {0}", repeats=True, bound="exact"),
    Function("square", 1, _square, "{0} * {0}", "square", ("2 * x",), 6, (8,), "number",
             integer="static_cast<{c}>(static_cast<{u}>({0}) * static_cast<{u}>({0}))", repeats=True),
    Function("fma", 3, _fma, "fma{s}({0}, {1}, {2})", "fma", ("y", "x", "1")),
    Function("round", 1, _rint, "rint{s}({0})", "round", (None,), steps=True, bound="exact"),
    Function("exp", 1, _exp, "{exponential}({0})", "exp", ("f",), special=1, cost=14, bound="1 ulp",
             quick=Approximation("quick_exp({0})", _quick_exp, 5)),
    Function("log", 1, _monotone(lambda x: _np().log(x), 0.0, 2.0), "log{s}({0})", "log", ("1 / x",), approximate=True, special=1, cost=20,
             bound="2 ulp"),
    Function("sqrt", 1, square_root, "sqrt{s}({0})", "sqrt", ("0.5 / f",), special=1, cost=8),
    Function("rsqrt", 1, _monotone(lambda x: 1 / _np().sqrt(x), 0.0, 2.0), "rsqrt{s}({0})", "rsqrt", ("-0.5 * f / x",), takes="float32",
             approximate=True, special=1, cost=4, bound="2 ulp"),
    Function("tanh", 1, _smooth(lambda x: _np().tanh(x), 1.0, LIBRARY_ERROR), "tanhf({0})", "tanh", ("1 - f * f",), takes="float32",
             approximate=True, special=2, cost=22, bound="2 ulp",
             coarse=Approximation("quick_tanh({0})", _smooth(lambda x: _np().tanh(x), 1.0, TANH_ERROR), 1)),
    Function("erf", 1, _smooth(_erf, 1.13, LIBRARY_ERROR), "erff({0})", "erf", ("1.12837917 * exp(-(x * x))",), takes="float32",
             approximate=True, special=1, cost=22, bound="2 ulp"),
    Function("erfc", 1, _smooth(_erfc, 1.13, 9 * _U), "erfcf({0})", "erfc", ("-1.12837917 * exp(-(x * x))",), takes="float32",
             approximate=True, special=2, cost=30, bound="4 ulp"),
    Function("sigmoid", 1, _smooth(_sigmoid, 0.25, LIBRARY_ERROR + 2 * _U, 2.0**-128), "1{point} / (1{point} + expf(-{0}))", "sigmoid",
             ("f * (1 - f)",), 6, (8,), "float32", approximate=True, special=2, cost=20, bound="3.5 ulp; 0 below x = -88.7",
             quick=Approximation("quick_sigmoid({0})", _smooth(_sigmoid, 0.25, _scaled_power_error, SMALLEST), 5)),
    Function("silu", 1, _smooth(_silu, 1.1, LIBRARY_ERROR + 3 * _U, SMALLEST, 0), "silu({0})", "silu",
             ("sigmoid(x) + f * (1 - sigmoid(x))",), takes="float32", approximate=True, special=2, cost=22, bound="4 ulp",
             quick=_QUICK_SILU, in_turn=_QUICK_SILU,
             coarse=Approximation("single_silu({0})", _smooth(_silu, 1.1, _single_silu_error, MIN_NORMAL), 10, special=1)),
    Function("gelu", 1, _smooth(_gelu, 1.13, lambda reach: 2.02 * _U * _gelu_condition(reach) + 12 * _U, SMALLEST, 0), "gelu({0})", "gelu",
             ("0.5 * erfc(-0.70710678 * x) + 0.39894228 * x * exp(-0.5 * x * x)",), takes="float32", approximate=True, special=2, cost=34,
             bound="(x^2 + 8) ulp",
             quick=Approximation("quick_gelu({0})", _smooth(_gelu, 1.13, _gelu_polynomial_error(GELU_POLYNOMIAL_ERROR), MIN_NORMAL), 15),
             coarse=Approximation("single_gelu({0})", _smooth(_gelu, 1.13, _single_gelu_error, 16 * MIN_NORMAL), 11, special=1),
             in_turn=Approximation("coarse_gelu({0})", _smooth(_gelu, 1.13, _gelu_polynomial_error(COARSE_GELU_ERROR), MIN_NORMAL), 12)),
    Function("gelu_tanh", 1,
             _smooth(_gelu_tanh, 1.13, lambda reach: 8 * _U * _gelu_tanh_exponent(reach) + LIBRARY_ERROR + 4 * _U, SMALLEST, 0),
             "gelu_tanh({0})", "gelu_tanh",
             ("sigmoid(1.59576912 * (x + 0.044715 * x * x * x))"
              " + f * (1 - sigmoid(1.59576912 * (x + 0.044715 * x * x * x))) * (1.59576912 + 0.21406859 * x * x)",),
             takes="float32", approximate=True, special=2, cost=26, bound="(4 |w| + 5) ulp, w = 1.6 x + 0.071 x^3",
             quick=_QUICK_GELU_TANH, in_turn=_QUICK_GELU_TANH,
             coarse=Approximation(
                 "coarse_gelu_tanh({0})", _smooth(
                     _gelu_tanh, 1.13,
                     lambda reach: 8 * _U * _gelu_tanh_exponent(reach) + COARSE_GELU_TANH_ERROR + EX2_ERROR + 12 * _U, MIN_NORMAL, 0),
                 12, special=1)),
    Function("softplus", 1, _smooth(_softplus, 1.0, 2 * LIBRARY_ERROR + 4 * _U), "softplus({0})", "softplus", ("sigmoid(x)",),
             takes="float32", approximate=True, special=2, cost=36, bound="7 ulp"),
    Function("relu", 1, _relu, "{0} < {zero} ? {zero} : {0}", "relu", ("select(x <= 0, 0, 1)",), 0, (5,), "number", repeats=True, cost=2,
             bound="exact"),
    Function("leaky_relu", 2, _leaky_relu, "{0} > {zero} ? {0} : {1} * {0}", "leaky_relu", ("select(x > 0, 1, y)", "min(x, 0)"), 0, (8, 7),
             repeats=True, cost=3),
    Function("hard_swish", 1, _hard_swish, "{0} * fmin{s}(fmax{s}({0} + 3{point}, 0{point}), 6{point})", "",
             ("select(x <= -3, 0, select(x < 3, 2 * x + 3, 6))",), 6, (8,), repeats=True, cost=4, bound="2 roundings"),
    Function("rand", 4, _rand, "uniform_random({0}, {1}, {2}, {3})", derivative=(None, None, None, None), takes="integers",
             gives="float32", cost=110, bound="exact"),
)  # fmt: skip
FUNCTIONS: Mapping[str, Function] = {function.name: function for function in _TABLE}
"""All functions and operators."""

MACROS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "clamp": (("x", "low", "high"), "min(max(x, low), high)"),
    "elu": (("x", "alpha"), "select(x > 0, x, alpha * (exp(select(x > 0, 0, x)) - 1))"),
    "hard_sigmoid": (("x",), "min(max(x + 3, 0), 6) * 0.16666667"),
    "mish": (("x",), "x * tanh(softplus(x))"),
    "quick_gelu": (("x",), "x * sigmoid(1.702 * x)"),
    "relu6": (("x",), "min(relu(x), 6)"),
}
"""Functions that are short for expressions: their parameters and their texts."""

CASTS: Mapping[str, DataType] = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int8": "s8", "int32": "s32",
                                 "int64": "s64"}  # fmt: skip
"""Functions that round to a type, by their names; the short names f32, bf16 ... are the same."""


def known_functions() -> frozenset[str]:
    """Names of functions, operators and casts."""
    return frozenset((*FUNCTIONS, *MACROS, *CASTS, *CASTS.values()))


def constants_of(kind: DataType) -> dict[str, str]:
    """The pieces of CUDA text that depend on the type of the arguments."""
    single = kind == "f32"
    constants = {
        "s": "f" if single else "",
        "zero": ELEMENTS[kind].literal(0) if kind != "bool" else "false",
        "point": ".0f" if single else ".0",
    }
    constants["exponential"] = "exponential" if single else "exp"
    constants["c"] = ELEMENTS[kind].c_type
    if kind in ("s32", "s64"):
        constants["u"] = ELEMENTS[kind].unsigned_c_type
    return constants
