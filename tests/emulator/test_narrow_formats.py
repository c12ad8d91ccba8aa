"""Instructions beyond the usual types, against references of Python integers and fractions."""

from fractions import Fraction
from math import copysign, inf, isinf, isnan, nan

import numpy as np
import pytest

from gemmgen import emulator

from .helpers import AWKWARD_F32, all_pairs, bits_to_f32, run_instruction, wrap_ptx

# Exponent bits, mantissa bits, and the meaning of the codes that are no numbers.
FORMATS = {
    "e4m3x2": (4, 3, {0x7F: nan}),
    "e5m2x2": (5, 2, {0x7C: inf, 0x7D: nan, 0x7E: nan, 0x7F: nan}),
    "e2m3x2": (2, 3, {}),
    "e3m2x2": (3, 2, {}),
    "e2m1x2": (2, 1, {}),
}
RANDOM = np.random.default_rng(5)
with np.errstate(invalid="ignore"):  # some of the random bits are signalling NaN
    VALUES = np.concatenate(
        [
            AWKWARD_F32,
            bits_to_f32(RANDOM.integers(0, 1 << 32, 200, dtype=np.uint64)),
            np.ldexp(RANDOM.integers(-64, 65, 300), -4),
            RANDOM.uniform(-8, 8, 200),
            [448.0, 464.0, 465.0, 57344.0, 61440.0, 7.5, 7.75, 28.0, 6.0, 5.0, 0.25, 0.75],
        ]
    ).astype(np.float32)


def value_of(code: int, name: str) -> float | Fraction:
    exponent_bits, mantissa_bits, special = FORMATS[name]
    sign = -1 if code >> (exponent_bits + mantissa_bits) & 1 else 1
    code &= (1 << (exponent_bits + mantissa_bits)) - 1
    if code in special:
        return copysign(special[code], sign)
    mantissa, exponent = code & ((1 << mantissa_bits) - 1), code >> mantissa_bits
    bias = (1 << (exponent_bits - 1)) - 1
    if exponent:
        return sign * Fraction(mantissa + (1 << mantissa_bits)) * Fraction(2) ** (exponent - bias - mantissa_bits)
    return sign * Fraction(mantissa) * Fraction(2) ** (1 - bias - mantissa_bits)


def code_of(value: float, name: str, relu: bool) -> int:
    """The nearest code, ties to even; values that are too large become the largest number."""
    exponent_bits, mantissa_bits, special = FORMATS[name]
    finite = [code for code in range(1 << (exponent_bits + mantissa_bits)) if code not in special]
    if isnan(value):
        return next((code for code, meaning in reversed(special.items()) if isnan(meaning)), finite[-1])
    negative = copysign(1, value) < 0
    if negative and relu:
        return 0
    largest = value_of(finite[-1], name)
    size = largest if isinf(value) else min(abs(Fraction(value)), largest)
    code = min(finite, key=lambda code: (abs(value_of(code, name) - size), code & 1))
    return code | negative << (exponent_bits + mantissa_bits)


def run_to_small(statement: str, values: list[np.ndarray]) -> np.ndarray:
    return run_instruction(statement, "u16", *[("f32", v) for v in values])


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("name", FORMATS)
def test_pairs_of_small_floats_from_float32(name, relu):
    other = np.roll(VALUES, 7)
    got = run_to_small(f"cvt.rn.satfinite{relu}.{name}.f32 %d, %a, %b;", [VALUES, other])
    width = 4 if name == "e2m1x2" else 8
    for result, upper, lower in zip(got.tolist(), VALUES.tolist(), other.tolist(), strict=True):
        wanted = code_of(upper, name, bool(relu)) << width | code_of(lower, name, bool(relu))
        assert result == wanted, (name, upper, lower, hex(result), hex(wanted))


@pytest.mark.parametrize("name", FORMATS)
def test_small_floats_widen_exactly(name):
    exponent_bits, mantissa_bits, _ = FORMATS[name]
    bits = 1 + exponent_bits + mantissa_bits
    codes = np.arange(1 << bits)
    pairs = (codes << (4 if name == "e2m1x2" else 8) | codes[::-1]).astype(np.uint16)
    halves = run_instruction(f"cvt.rn.f16x2.{name} %d, %a;", "u32", ("u16", pairs)).view(np.float16).reshape(-1, 2)
    for row, upper, lower in zip(halves.astype(np.float64), codes.tolist(), codes[::-1].tolist(), strict=True):
        for got, code in ((row[1], upper), (row[0], lower)):
            wanted = float(value_of(code, name))
            assert (isnan(got) and isnan(wanted)) or got == wanted


def test_halves_to_small_floats():
    halves = np.array([[1.0, -2.5], [0.4, 1e4], [np.nan, -0.0]], np.float16)
    got = run_instruction("cvt.rn.satfinite.e4m3x2.f16x2 %d, %a;", "u16", ("u32", halves.view(np.uint32)[:, 0]))
    wanted = [code_of(float(b), "e4m3x2", False) << 8 | code_of(float(a), "e4m3x2", False) for a, b in halves]
    assert got.tolist() == wanted


@pytest.mark.parametrize("mode", ["rz", "rp"])
def test_scales_are_powers_of_two(mode):
    values = np.abs(VALUES[np.isfinite(VALUES)])
    got = run_to_small(f"cvt.{mode}.satfinite.ue8m0x2.f32 %d, %a, %a;", [values])
    for code, value in zip((got & 0xFF).tolist(), values.tolist(), strict=True):
        scale, exact = Fraction(2) ** (code - 127), Fraction(value)
        if mode == "rz":
            assert code == 0 or scale <= exact < 2 * scale
        else:
            assert exact <= scale or code == 0xFE
            assert code == 0 or scale / 2 < exact
    back = run_instruction("cvt.rn.bf16x2.ue8m0x2 %d, %a;", "u32", ("u16", np.array([0x0001, 0xFE7F, 0xFF80], np.uint16)))
    numbers = (back.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(-1, 2)
    np.testing.assert_array_equal(numbers, np.array([[2.0**-126, 2.0**-127], [1.0, 2.0**127], [2.0, np.nan]], np.float32))


@pytest.mark.parametrize("operation", ["add", "sub", "fma"])
@pytest.mark.parametrize("narrow", ["f16", "bf16"])
def test_narrow_operands_are_added_to_float32(operation, narrow):
    a, b = RANDOM.normal(size=(2, 300)).astype(np.float16 if narrow == "f16" else np.float32)
    c = RANDOM.normal(size=300).astype(np.float32)
    bits = [x.view(np.uint16) if narrow == "f16" else (x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
    wide = [
        x.astype(np.float32) if narrow == "f16" else (y.astype(np.uint32) << 16).view(np.float32) for x, y in zip((a, b), bits, strict=True)
    ]
    if operation == "fma":
        got = run_instruction(f"fma.rn.f32.{narrow} %d, %a, %b, %c;", "f32", ("u16", bits[0]), ("u16", bits[1]), ("f32", c))
        wanted = [np.float32(float(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))) for x, y, z in zip(*wide, c, strict=True)]
    else:
        got = run_instruction(f"{operation}.rn.f32.{narrow} %d, %a, %b;", "f32", ("u16", bits[0]), ("f32", c))
        wanted = wide[0] + c if operation == "add" else wide[0] - c
    np.testing.assert_allclose(got, np.array(wanted, np.float32), rtol=2**-23 if operation == "fma" else 0)


@pytest.mark.parametrize("operation", ["min", "max"])
def test_the_signs_of_magnitudes_cross(operation):
    a, b = all_pairs(AWKWARD_F32[np.isfinite(AWKWARD_F32)])
    got = run_instruction(f"{operation}.xorsign.abs.f32 %d, %a, %b;", "f32", ("f32", a), ("f32", b))
    size = (np.minimum if operation == "min" else np.maximum)(np.abs(a), np.abs(b))
    wanted = np.where(np.signbit(a) != np.signbit(b), -size, size)
    assert got.view(np.uint32).tolist() == wanted.astype(np.float32).view(np.uint32).tolist()


@pytest.mark.parametrize(("signed", "mode"), [("s32", "clamp"), ("s32", "wrap"), ("u32", "clamp"), ("u32", "wrap")])
def test_a_field_of_low_bits_is_extended(signed, mode):
    value, count = all_pairs(np.array([0, 1, 5, 31, 32, 33, 64, 0x80000000, 0xFFFFFFFF, 0x12345678], np.uint32))
    got = run_instruction(f"szext.{mode}.{signed} %d, %a, %b;", "u32", ("u32", value), ("u32", count))
    for result, x, n in zip(got.tolist(), value.tolist(), count.tolist(), strict=True):
        bits = min(n, 32) if mode == "clamp" else n & 31
        field = x & ((1 << bits) - 1)
        if signed == "s32" and bits and field >> (bits - 1):
            field -= 1 << bits
        assert result == field & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("opcode", "product"),
    [
        ("mad.hi", lambda a, b: (a * b) >> 32),
        ("mad24.hi", lambda a, b: (((a + 2**23) % 2**24 - 2**23) * ((b + 2**23) % 2**24 - 2**23)) >> 16),
    ],
)
def test_saturated_upper_products(opcode, product):
    a, b = all_pairs(np.array([0, 1, -1, 2**31 - 1, -(2**31), 0x7FFFFF, -0x800000, 12345678], np.int32))
    for c in (2**31 - 1, -(2**31), 7):
        got = run_instruction(f"{opcode}.sat.s32 %d, %a, %b, %c;", "s32", ("s32", a), ("s32", b), ("s32", np.full(len(a), c, np.int32)))
        wanted = [
            max(min((product(x, y) + 2**31) % 2**32 - 2**31 + c, 2**31 - 1), -(2**31)) for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ]
        assert got.tolist() == wanted


@pytest.mark.parametrize(
    ("opcode", "signed", "accumulates"),
    [
        ("vabsdiff4", False, False),
        ("vabsdiff4", False, True),
        ("vabsdiff2", False, True),
        ("vadd4", True, False),
        ("vmax2", True, False),
        ("vmin4", False, False),
        ("vsub2", True, False),
    ],
)
def test_video_instructions_on_parts_of_words(opcode, signed, accumulates):
    a, b, c = RANDOM.integers(0, 1 << 32, (3, 100), dtype=np.uint64).astype(np.uint32)
    kind, bits = ("s32" if signed else "u32"), 32 // int(opcode[-1])
    functions = {"vabsdiff": lambda x, y: abs(x - y), "vadd": lambda x, y: x + y, "vmax": max, "vmin": min, "vsub": lambda x, y: x - y}

    def parts(word: int) -> list[int]:
        found = [word >> shift & ((1 << bits) - 1) for shift in range(0, 32, bits)]
        return [part - (1 << bits) if signed and part >> (bits - 1) else part for part in found]

    add = ".add" if accumulates else ""
    got = run_instruction(f"{opcode}.{kind}.{kind}.{kind}{add} %d, %a, %b, %c;", "u32", ("u32", a), ("u32", b), ("u32", c))
    for result, x, y, z in zip(got.tolist(), a.tolist(), b.tolist(), c.tolist(), strict=True):
        each = [functions[opcode[:-1]](p, q) for p, q in zip(parts(x), parts(y), strict=True)]
        packed = sum((part & ((1 << bits) - 1)) << (bits * index) for index, part in enumerate(each))
        assert result == ((sum(each) + z) & 0xFFFFFFFF if accumulates else packed)


def test_logic_with_a_predicate():
    a, b = all_pairs(np.array([0, 1, 0xF0F0F0F0, 0xFFFFFFFF], np.uint32))
    statement = ".reg .b32 %e; .reg .pred %q2; setp.gt.u32 %q2, %a, 1; lop3.and.b32 %e|%p, %a, %b, 0, 0xC0, !%q2;"
    got = run_instruction(statement, "u32", ("u32", a), ("u32", b), predicated=True)
    assert got.tolist() == [int((x & y) != 0 and not x > 1) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


def test_comparisons_of_halves_are_combined():
    a, b = all_pairs(np.array([0, 1, -1, np.nan, np.inf], np.float16))
    statement = ".reg .pred %q2; setp.ne.u16 %q2, %a, 0; setp.lt.xor.f16 %p, %a, %b, %q2;"
    got = run_instruction(statement, "u32", ("u16", a.view(np.uint16)), ("u16", b.view(np.uint16)), predicated=True)
    assert got.tolist() == [int((x < y) != (x.view(np.uint16) != 0)) for x, y in zip(a, b, strict=True)]


def test_vectors_of_atomic_additions():
    body = """.reg .b64 %a; .reg .f32 %f<3>; ld.param.u64 %a, [p]; mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000;
        red.global.add.v2.f32 [%a], {%f1, %f2}; ret;"""
    out = np.zeros(2, np.float32)
    emulator.launch(wrap_ptx(body, ".param .u64 p"), grid=2, block=32, args=[out], hazards=True)
    assert out.tolist() == [64, 128]
