"""Floating point arithmetic and conversion against exact rational arithmetic."""

import itertools
from fractions import Fraction
from math import isfinite

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmgen import emulator
from gemmgen.emulator import ieee

from .helpers import (
    AWKWARD_F32,
    DTYPES,
    FORMATS,
    all_pairs,
    bits_to_f32,
    round_exact,
    run_instruction,
)

RANDOM = np.random.default_rng(11)
MODES = ["rn", "rz", "rm", "rp"]
CANONICAL_NAN = 0x7FFFFFFF


def random_f32(count: int) -> np.ndarray:
    """Every exponent as likely as any other, and mantissas with few bits as likely as full ones."""
    bits = RANDOM.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    short = RANDOM.integers(0, 2, count).astype(bool)
    return bits_to_f32(np.where(short, bits & np.uint32(0xFFF00000), bits))


def misrounded(got, exact_of, format_name: str, mode: str, *operands: np.ndarray) -> list[str]:
    """Results that are not the exact ones, rounded once, of finite operands."""
    wrong = []
    for index, (result, *values) in enumerate(zip(got, *operands, strict=True)):
        if all(isfinite(float(value)) for value in values):
            exact = exact_of(*[Fraction(float(value)) for value in values])
            if exact is not None and float(result) != (wanted := float(round_exact(exact, format_name, mode))):
                wrong.append(f"#{index} {[float(v).hex() for v in values]}: got {float(result)!r}, want {wanted!r}")
    return wrong


def midpoint_triples(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a*b + c whose float64 sum lies on a float32 midpoint although the exact sum does not: c tiny beside the product.

    The product of two 24-bit numbers is made to have its 25th bit set and nothing below; c then breaks the tie.
    """
    a = bits_to_f32(np.full(count, 0x3F800001, np.uint32))  # 1 + 2**-23
    b = (1.5 + np.zeros(count)).astype(np.float32)  # product 1.5 + 1.5 * 2**-23: a tie
    scale = 2.0 ** RANDOM.integers(-40, 41, count)
    tiny = scale * 2.0 ** -RANDOM.integers(55, 80, count) * RANDOM.choice([-1.0, 1.0, 0.0], count)
    return a, (b * scale).astype(np.float32), tiny.astype(np.float32)


@pytest.mark.parametrize("mode", MODES)
def test_fma_rounds_once(mode):
    a, b = all_pairs(AWKWARD_F32)
    c = np.resize(AWKWARD_F32[::-1], len(a) + 3)[3:]
    more = [random_f32(1500) for _ in range(3)]
    ties = midpoint_triples(500)
    small = [random_f32(500), (random_f32(500)), bits_to_f32(RANDOM.integers(0, 1 << 24, 500).astype(np.uint32))]
    a, b, c = (np.concatenate(parts) for parts in zip((a, b, c), more, ties, small, strict=True))
    got = run_instruction(f"fma.{mode}.f32 %d, %a, %b, %c;", "f32", ("f32", a), ("f32", b), ("f32", c))
    assert not misrounded(got, lambda x, y, z: x * y + z, "f32", mode, a, b, c)


def test_ties_are_really_tested():
    a, b, c = midpoint_triples(500)
    naive = (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)
    exact = ieee.fma_f32(a, b, c)
    assert (naive != exact).sum() > 100


def test_the_group_of_fma_agrees_with_single_ones():
    """Many independent fma in a row take the grouped road: same bits, on ties, subnormals, infinities and NaN too."""
    count = 2048
    a, b = random_f32(count), random_f32(count)
    tie_a, tie_b, tie_c = midpoint_triples(count)
    a[::3], b[::3] = tie_a[::3], tie_b[::3]
    c = np.where(np.arange(count) % 3 == 0, tie_c, random_f32(count)).astype(np.float32)
    # The product is a hair below half a subnormal's ulp: float64 rounds the sum onto the tie, float32 then rounds up.
    a[1::64], b[1::64] = (1 + 2.0**-23) * 2.0**-75, (1 - 2.0**-23) * 2.0**-75
    c[1::64] = bits_to_f32(np.uint32(0x00400001))
    registers = ".reg .f32 %x<8>, %y<8>;"
    loads = "".join(f"mov.f32 %x{i}, %a; mov.f32 %y{i}, %b;" for i in range(4))
    group = "".join(f"fma.rn.f32 %x{4 + i}, %x{i}, %y{i}, %c;" for i in range(4)) + "fma.rn.f32 %d, %a, %b, %c;"
    got = run_instruction(registers + loads + group, "f32", ("f32", a), ("f32", b), ("f32", c))
    with np.errstate(all="ignore"):
        want = ieee.fma_f32(a, b, c)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
    assert not misrounded(got, lambda x, y, z: x * y + z, "f32", "rn", a, b, c)


f32_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=300, deadline=None)
@given(f32_floats, f32_floats, f32_floats, st.sampled_from(MODES))
def test_fma_f32_property(a, b, c, mode):
    with np.errstate(all="ignore"):
        got = ieee.fma_f32(np.float32([a]), np.float32([b]), np.float32([c]), mode)[0]
    assert float(got) == float(round_exact(Fraction(a) * Fraction(b) + Fraction(c), "f32", mode))


f64_floats = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=300, deadline=None)
@given(f64_floats, f64_floats, f64_floats, st.sampled_from(MODES))
def test_fma_f64_property(a, b, c, mode):
    with np.errstate(all="ignore"):
        got = ieee.fma_f64(np.array([a]), np.array([b]), np.array([c]), mode)[0]
    assert float(got) == float(round_exact(Fraction(a) * Fraction(b) + Fraction(c), "f64", mode))


@pytest.mark.parametrize("mode", MODES)
def test_fma_f64_of_special_values(mode):
    special = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1.7e308, 5e-324, -5e-324]
    a, b, c = (np.array(each) for each in zip(*itertools.product(special, repeat=3), strict=True))
    with np.errstate(all="ignore"):
        got = ieee.fma_f64(a, b, c, mode)
        expected = np.array([ieee.fma_f64_scalar(*map(float, each), mode) for each in zip(a, b, c, strict=True)])
    np.testing.assert_array_equal(got, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


def test_fma_f64_near_ties():
    a = 1.0 + RANDOM.integers(0, 1 << 20, 2000) * 2.0**-52
    b = (1.0 + RANDOM.integers(0, 1 << 20, 2000) * 2.0**-52) * RANDOM.choice([-1.0, 1.0], 2000)
    c = -(a * b) * (1 + RANDOM.choice([0, 2.0**-52, -(2.0**-53), 2.0**-30], 2000))
    got = run_instruction("fma.rn.f64 %d, %a, %b, %c;", "f64", ("f64", a), ("f64", b), ("f64", c))
    assert not misrounded(got, lambda x, y, z: x * y + z, "f64", "rn", a, b, c)


EXACT = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y if y else None,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", EXACT)
def test_f32_arithmetic(name, mode):
    a, b = all_pairs(AWKWARD_F32)
    a, b = np.concatenate([a, random_f32(1500)]), np.concatenate([b, random_f32(1500)])
    got = run_instruction(f"{name}.{mode}.f32 %d, %a, %b;", "f32", ("f32", a), ("f32", b))
    assert not misrounded(got, EXACT[name], "f32", mode, a, b)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", EXACT)
def test_f64_arithmetic(name, mode):
    a, b = all_pairs(np.array([0.0, -0.0, 1.0, -1.5, 1 / 3, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 1e16, 0.1]))
    got = run_instruction(f"{name}.{mode}.f64 %d, %a, %b;", "f64", ("f64", a), ("f64", b))
    assert not misrounded(got, EXACT[name], "f64", mode, a, b)


@pytest.mark.parametrize("mode", MODES)
def test_square_roots_and_reciprocals(mode):
    a = np.concatenate([np.abs(AWKWARD_F32), np.abs(random_f32(1000))])
    a = a[np.isfinite(a) & (a > 0)]
    root = run_instruction(f"sqrt.{mode}.f32 %d, %a;", "f32", ("f32", a))
    for value, result in zip(a.tolist(), root.tolist(), strict=True):
        exact, got = Fraction(value), Fraction(result)
        up = Fraction(float(np.nextafter(np.float32(result), np.float32(np.inf))))
        down = Fraction(float(np.nextafter(np.float32(result), np.float32(0))))
        if mode in ("rz", "rm"):
            assert got**2 <= exact < up**2
        elif mode == "rp":
            assert down**2 < exact <= got**2
        else:
            assert ((got + down) / 2) ** 2 <= exact <= ((got + up) / 2) ** 2
    reciprocal = run_instruction(f"rcp.{mode}.f32 %d, %a;", "f32", ("f32", a))
    assert not misrounded(reciprocal, lambda x: 1 / x, "f32", mode, a)


@pytest.mark.parametrize(
    "statement",
    [
        "add.f32 %d, %a, %b;",
        "mul.f32 %d, %a, %b;",
        "fma.rn.f32 %d, %a, %b, %a;",
        "div.rn.f32 %d, %a, %b;",
        "min.NaN.f32 %d, %a, %b;",
    ],
)
def test_f32_nan_is_canonical(statement):
    a = bits_to_f32([0x7FC00000, 0xFFC12345, 0x7F800001, 0x7FC00000])
    got = run_instruction(statement, "u32", ("f32", a), ("f32", np.ones(4, np.float32)))
    assert got.tolist() == [CANONICAL_NAN] * 4


def test_invalid_operations_give_nan():
    infinity = np.array([np.inf, -np.inf, 0.0], np.float32)
    other = np.array([-np.inf, np.inf, 1.0], np.float32)
    got = run_instruction("add.f32 %d, %a, %b;", "u32", ("f32", infinity), ("f32", other))
    assert got.tolist() == [CANONICAL_NAN, CANONICAL_NAN, 0x3F800000]
    got = run_instruction("sqrt.rn.f32 %d, %a;", "u32", ("f32", np.array([-1.0, -0.0], np.float32)))
    assert got.tolist() == [CANONICAL_NAN, 0x80000000]


@pytest.mark.parametrize("statement", ["add.ftz.f32 %d, %a, %b;", "fma.rn.ftz.f32 %d, %a, %c, %b;"])
def test_flushing_keeps_the_sign(statement):
    a = bits_to_f32([0x00000001, 0x80000001, 0x00800000, 0x807FFFFF])
    b = bits_to_f32([0x00000000, 0x80000000, 0x80000001, 0x80000000])
    got = run_instruction(statement, "u32", ("f32", a), ("f32", b), ("f32", np.ones(4, np.float32)))
    assert got.tolist() == [0, 0x80000000, 0x00800000, 0x80000000]


def test_saturation():
    a = np.array([-1, 0.5, 2, np.nan, np.inf, -0.0], np.float32)
    got = run_instruction("add.sat.f32 %d, %a, 0f00000000;", "f32", ("f32", a))
    assert got.tolist() == [0, 0.5, 1, 0, 1, 0]


def test_minimum_and_maximum():
    a, b = all_pairs(np.array([0.0, -0.0, 1.0, -2.0, np.nan, np.inf], np.float32))
    low = run_instruction("min.f32 %d, %a, %b;", "f32", ("f32", a), ("f32", b))
    high = run_instruction("max.f32 %d, %a, %b;", "f32", ("f32", a), ("f32", b))
    for x, y, least, most in zip(a, b, low, high, strict=True):
        numbers = sorted([v for v in (x, y) if not np.isnan(v)], key=lambda v: (v, not np.signbit(v)))
        if not numbers:
            assert least.view(np.uint32) == most.view(np.uint32) == CANONICAL_NAN
        else:
            assert (least, np.signbit(least)) == (numbers[0], np.signbit(numbers[0]))
            assert (most, np.signbit(most)) == (numbers[-1], np.signbit(numbers[-1]))


UNORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@pytest.mark.parametrize("name", UNORDERED)
@pytest.mark.parametrize("unordered", [False, True])
def test_comparison_of_floats(name, unordered):
    a, b = all_pairs(np.array([0.0, -0.0, 1.0, np.nan, np.inf, -np.inf]))
    got = run_instruction(f"setp.{name}{'u' * unordered}.f64 %p, %a, %b;", "u32", ("f64", a), ("f64", b), predicated=True)
    for x, y, result in zip(a.tolist(), b.tolist(), got, strict=True):
        nan = x != x or y != y
        assert bool(result) == (unordered if nan else eval(f"x {UNORDERED[name]} y"))


def test_classification_and_signs():
    a = np.array([1.0, -0.0, np.inf, np.nan, 1e-40], np.float32)
    tests = {
        "finite": [1, 1, 0, 0, 1],
        "infinite": [0, 0, 1, 0, 0],
        "number": [1, 1, 1, 0, 1],
        "notanumber": [0, 0, 0, 1, 0],
        "normal": [1, 1, 0, 0, 0],
        "subnormal": [0, 0, 0, 0, 1],
    }
    for name, want in tests.items():
        assert run_instruction(f"testp.{name}.f32 %p, %a;", "u32", ("f32", a), predicated=True).tolist() == want
    got = run_instruction("copysign.f32 %d, %a, %b;", "f32", ("f32", -np.abs(a)), ("f32", np.abs(a) + 1))
    assert np.signbit(got).all()
    assert run_instruction("neg.f32 %d, %a;", "u32", ("u32", np.array([0x7FC00001], np.uint32))).tolist() == [0x7FFFFFFF]


# -- conversions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", ["s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("target", ["f32", "f64"])
def test_integer_to_float(source, target, mode):
    info = np.iinfo(DTYPES[source])
    a = RANDOM.integers(info.min, info.max, 400, dtype=DTYPES[source], endpoint=True)
    a[:6] = [info.min, info.max, 0, 1, (1 << 24) + 1, (1 << 25) + 3]
    a[10:200] >>= RANDOM.integers(0, 40 if "64" in source else 8, 190).astype(DTYPES[source])
    got = run_instruction(f"cvt.{mode}.{target}.{source} %d, %a;", target, (source, a))
    assert [float(result) for result in got] == [float(round_exact(Fraction(value), target, mode)) for value in a.tolist()]


def whole(value: Fraction, mode: str) -> int:
    down = value.numerator // value.denominator
    rest = value - down
    if mode == "rzi":
        return down + (value < 0 and rest > 0)
    if mode == "rni":
        return down + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and down % 2))
    return down + (mode == "rpi" and rest > 0)


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("source", ["f32", "f64"])
@pytest.mark.parametrize("target", ["s32", "u32", "s64", "u64", "s16", "u16"])
def test_float_to_integer(source, target, mode):
    dtype = DTYPES[source]
    a = np.concatenate(
        [
            np.array(
                [
                    0.5,
                    1.5,
                    2.5,
                    -0.5,
                    -1.5,
                    2147483648.0,
                    -2147483648.0,
                    4294967296.0,
                    2.0**63,
                    -(2.0**63),
                    2.0**64,
                    1e30,
                    -1e30,
                    np.inf,
                    -np.inf,
                    0.49999997,
                    65535.5,
                ]
            ),
            RANDOM.standard_normal(200) * 10.0 ** RANDOM.integers(0, 20, 200),
        ]
    ).astype(dtype)
    got = run_instruction(f"cvt.{mode}.{target}.{source} %d, %a;", target, (source, a))
    info = np.iinfo(DTYPES[target])
    for value, result in zip(a.tolist(), got.tolist(), strict=True):
        if not isfinite(value):
            assert result == (info.max if value > 0 else info.min)
        else:
            assert result == max(int(info.min), min(int(info.max), whole(Fraction(value), mode))), value
    nan = run_instruction(f"cvt.{mode}.{target}.{source} %d, %a;", target, (source, np.array([np.nan], dtype)))
    top = source == "f64" or target in ("s64", "u64")
    assert nan.view(f"u{nan.itemsize}").tolist() == [1 << (nan.itemsize * 8 - 1) if top else 0]


def f16_value(bits: np.ndarray) -> np.ndarray:
    return bits.view(np.float16).astype(np.float64)


def bf16_value(bits: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target", ["f16", "bf16"])
def test_narrowing_to_halves(target, mode):
    a = np.concatenate([random_f32(1500), (RANDOM.standard_normal(1500) * 2.0 ** RANDOM.integers(-26, 17, 1500)).astype(np.float32)])
    a[:4] = [65520.0, 65519.99, 2.0**-25, 3 * 2.0**-26]
    a = a[np.isfinite(a)]
    got = run_instruction(f"cvt.{mode}.{target}.f32 %d, %a;", "b16", ("f32", a))
    value = f16_value(got) if target == "f16" else bf16_value(got)
    assert not misrounded(value, lambda x: x, target, mode, a)


@pytest.mark.parametrize("target", ["f16x2", "bf16x2"])
def test_narrowing_in_pairs(target):
    a, b = random_f32(500), random_f32(500)
    got = run_instruction(f"cvt.rn.{target}.f32 %d, %a, %b;", "b32", ("f32", a), ("f32", b)).view(np.uint16).reshape(-1, 2)
    for column, source in ((0, b), (1, a)):
        halves = np.ascontiguousarray(got[:, column])
        value = f16_value(halves) if target == "f16x2" else bf16_value(halves)
        assert not misrounded(value, lambda x: x, target[:-2], "rn", source)


@pytest.mark.parametrize("source", ["f16", "bf16"])
def test_every_half_widens_exactly(source):
    a = np.arange(1 << 16, dtype=np.uint16)
    got = run_instruction(f"cvt.f32.{source} %d, %a;", "f32", ("b16", a))
    with np.errstate(invalid="ignore"):
        want = (f16_value(a) if source == "f16" else bf16_value(a)).astype(np.float32)
    finite = ~np.isnan(want)
    np.testing.assert_array_equal(got[finite], want[finite])
    assert np.isnan(got[~finite]).all()


def test_f64_to_f32_in_every_mode():
    a = RANDOM.standard_normal(500) * 10.0 ** RANDOM.integers(-45, 39, 500)
    a[:3] = [1 + 2.0**-24, 3.5e38, -1e-46]
    for mode in MODES:
        assert not misrounded(run_instruction(f"cvt.{mode}.f32.f64 %d, %a;", "f32", ("f64", a)), lambda x: x, "f32", mode, a)


def test_rounding_to_integral_floats():
    a = np.array([0.5, 1.5, -0.5, 2.7, -2.7, 1e10], np.float32)
    for mode, function in {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}.items():
        np.testing.assert_array_equal(run_instruction(f"cvt.{mode}.f32.f32 %d, %a;", "f32", ("f32", a)), function(a))


def test_tf32_keeps_ten_bits():
    a = random_f32(500)
    a = a[np.isfinite(a)]
    got = run_instruction("cvt.rna.tf32.f32 %d, %a;", "u32", ("f32", a))
    assert not (got & 0x1FFF).any()
    finite = np.isfinite(got.view(np.float32)) & (np.abs(a) > 1e-30)
    assert (np.abs(got.view(np.float32)[finite].astype(np.float64) / a[finite] - 1) <= 2.0**-11).all()


# -- halves ------------------------------------------------------------------------------------------------------


def random_halves(count: int) -> np.ndarray:
    return RANDOM.integers(0, 1 << 16, count).astype(np.uint16)


@pytest.mark.parametrize("type_name", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
@pytest.mark.parametrize("packed", [False, True])
def test_half_arithmetic(type_name, name, packed):
    count = 2000
    value = f16_value if type_name == "f16" else bf16_value
    operands = [random_halves(2 * count) for _ in range(3 if name == "fma" else 2)]
    letters = ", ".join(f"%{letter}" for letter in "abc"[: len(operands)])
    rounding = ".rn" if name == "fma" or type_name == "bf16" else ""
    raw = "b32" if packed else "b16"
    arrays = [operand.view(DTYPES[raw]) for operand in operands]
    suffix = type_name + "x2" * packed
    got = run_instruction(f"{name}{rounding}.{suffix} %d, {letters};", raw, *[(raw, array) for array in arrays])
    exact = {**EXACT, "fma": lambda x, y, z: x * y + z}[name]
    assert not misrounded(value(got.view(np.uint16)), exact, type_name, "rn", *[value(operand) for operand in operands])


def test_half_comparison_in_pairs():
    a, b = random_halves(2000), random_halves(2000)
    body = "setp.lt.f16x2 %p|%q, %a, %b;"
    first = run_instruction(body, "u32", ("b32", a.view(np.uint32)), ("b32", b.view(np.uint32)), predicated=True)
    second = run_instruction(body + "mov.pred %p, %q;", "u32", ("b32", a.view(np.uint32)), ("b32", b.view(np.uint32)), predicated=True)
    want = f16_value(a) < f16_value(b)
    np.testing.assert_array_equal(first.astype(bool), want[::2])
    np.testing.assert_array_equal(second.astype(bool), want[1::2])


def test_half_negation_maximum_and_relu():
    a, b = random_halves(2000), random_halves(2000)
    negated = np.where((a & 0x7FFF) > 0x7C00, 0x7FFF, a ^ 0x8000)
    np.testing.assert_array_equal(run_instruction("neg.f16 %d, %a;", "b16", ("b16", a)), negated)
    magnitude = np.where((a & 0x7FFF) > 0x7F80, 0x7FFF, a & 0x7FFF)
    np.testing.assert_array_equal(run_instruction("abs.bf16 %d, %a;", "b16", ("b16", a)), magnitude)
    got = f16_value(run_instruction("max.f16 %d, %a, %b;", "b16", ("b16", a), ("b16", b)))
    np.testing.assert_array_equal(got, np.fmax(f16_value(a), f16_value(b)))
    got = f16_value(run_instruction("fma.rn.relu.f16 %d, %a, %b, %a;", "b16", ("b16", a), ("b16", b)))
    assert not (got < 0).any()


@pytest.mark.parametrize("name", ["ex2", "lg2", "sin", "cos", "tanh", "rsqrt"])
def test_approximate_functions_are_close(name):
    a = np.abs(RANDOM.standard_normal(500)).astype(np.float32)
    got = run_instruction(f"{name}.approx.f32 %d, %a;", "f32", ("f32", a)).astype(np.float64)
    function = {"ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "rsqrt": lambda x: x**-0.5}[name]
    np.testing.assert_allclose(got, function(a.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("operation", ["add", "mul", "fma"])
def test_pairs_of_f32(operation):
    operands = [random_f32(1000) for _ in range(3 if operation == "fma" else 2)]
    letters = ", ".join(f"%{letter}" for letter in "abc"[: len(operands)])
    statement = f"{operation}.rn.f32x2 %d, {letters};"
    got = run_instruction(statement, "b64", *[("b64", o.view(np.uint64)) for o in operands]).view(np.float32)
    assert not misrounded(got, {**EXACT, "fma": lambda x, y, z: x * y + z}[operation], "f32", "rn", *operands)


def test_the_oracle_itself():
    for format_name, dtype in (("f16", np.float16), ("f32", np.float32)):
        for value in RANDOM.standard_normal(300) * 10.0 ** RANDOM.integers(-9, 6, 300):
            wanted = round_exact(Fraction(float(value)), format_name)
            with np.errstate(all="ignore"):
                assert float(dtype(value)) == float(wanted)
    assert set(FORMATS) == {"f16", "bf16", "f32", "f64"}


@pytest.mark.parametrize("operands", ["%f1, %f2, %f3", "0f3F800000, %f2, %f3, %f1", "%f1"])
def test_an_fma_with_wrong_operands_is_refused(operands):
    ptx = f""".version 8.0
.target sm_80
.address_size 64
.visible .entry k() {{
    .reg .f32 %f<4>;
    fma.rn.f32 {operands};
    ret;
}}"""
    with pytest.raises(emulator.UnknownInstruction, match="fma"):
        emulator.launch(ptx, "k", grid=1, block=32)
