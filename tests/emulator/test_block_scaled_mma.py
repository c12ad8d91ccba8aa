"""mma.sync on floats of 4, 6 and 8 bits with and without block scales, against an exact model that is written down from published ones.

The model works on Python integers, one result at a time, and takes its operands from the layouts of the PTX ISA, lane by lane.
"""

from __future__ import annotations

import os
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from gemmgen import emulator

from .helpers import wrap_ptx

FORMATS = {"e4m3": (4, 3), "e5m2": (5, 2), "e3m2": (3, 2), "e2m3": (2, 3), "e2m1": (2, 1)}
SHIFT = {"e2m1": 2}
"""Unused bits below a float in a byte of its own."""
NAN = 0x7FFFFFFF
WARPS = 24
ALL = bool(os.environ.get("GEMMGEN_ALL_CASES"))
SEEDS = range(3 if ALL else 1)
"""Three seeds are 55,296 operands of every kind."""
EVERY = 1 if ALL else 17
"""One of so many results is compared: the model takes a millisecond for each."""


@cache
def number(code: int, name: str) -> tuple[Fraction | float, int]:
    """A value and the exponent that it counts with."""
    exponent_bits, mantissa_bits = FORMATS[name]
    sign = -1 if code >> (exponent_bits + mantissa_bits) & 1 else 1
    field, mantissa = code >> mantissa_bits & ((1 << exponent_bits) - 1), code & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    if name == "e5m2" and field == 31:
        return (sign * float("inf") if mantissa == 0 else float("nan")), 0
    if name == "e4m3" and field == 15 and mantissa == 7:
        return float("nan"), 0
    exponent = max(field, 1) - bias
    return sign * Fraction(mantissa + (1 << mantissa_bits if field else 0), 1 << mantissa_bits) * Fraction(2) ** exponent, exponent


def float32(bits: int) -> tuple[Fraction | float, int]:
    value = float(np.uint32(bits).view(np.float32))
    exponent = max(bits >> 23 & 0xFF, 1) - 127
    return (Fraction(value) if np.isfinite(value) else value), exponent


def toward_zero(value: Fraction, unit: Fraction) -> Fraction:
    return int(value / unit) * unit


def to_float32(value: Fraction) -> int:
    if abs(value) >= Fraction(2) ** 128:
        return 0xFF800000 if value < 0 else 0x7F800000
    size, exponent = abs(value), -126
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    cut = toward_zero(value, Fraction(2) ** (exponent - 23))
    bits = int(np.float32(float(cut)).view(np.uint32))
    return 0 if cut == 0 else bits


def to_float16(value: Fraction) -> int:
    with np.errstate(over="ignore"):
        bits = int(np.float16(float(value)).view(np.uint16))  # value has fewer than 53 bits: one rounding
    return 0 if bits == 0x8000 else bits


def fused(terms: list[tuple[Fraction | float, int]], fraction_bits: int, half: bool) -> int:
    """Terms with exponents, cut to a number of bits below the largest exponent, added exactly."""
    if not all(isinstance(value, Fraction) for value, _ in terms):
        total = float(sum(float(value) for value, _ in terms))
        if np.isnan(total):
            return 0x7FFF if half else NAN
        return {True: {True: 0x7C00, False: 0xFC00}, False: {True: 0x7F800000, False: 0xFF800000}}[half][total > 0]
    largest = max((exponent for value, exponent in terms if value or exponent == -126), default=-126)
    unit = Fraction(2) ** (largest - fraction_bits)
    total = sum((toward_zero(value, unit) for value, _ in terms), Fraction(0))
    return to_float16(total) if half else to_float32(total)


def times(a: Fraction | float, b: Fraction | float) -> Fraction | float:
    return a * b if isinstance(a, Fraction) and isinstance(b, Fraction) else float(a) * float(b)


class Operands:
    """Registers of all warps, and the elements that the lanes hold by the layouts of the PTX ISA."""

    def __init__(self, random: np.random.Generator, types: tuple[str, str], packed: bool, half: bool) -> None:
        self.types, self.packed, self.half = types, packed, half
        self.a = self._codes(random, types[0], 4)
        self.b = self._codes(random, types[1], 2)
        if half:
            self.c = random.integers(0, 1 << 16, (WARPS, 4, 32)).astype(np.uint32)
            self.c[: WARPS // 2] = (random.standard_normal((WARPS // 2, 4, 32)) * 64).astype(np.float16).view(np.uint16)
        else:
            values = random.standard_normal((WARPS, 4, 32)) * np.exp2(random.integers(-12, 20, (WARPS, 4, 32)))
            self.c = values.astype(np.float32).view(np.uint32)
            self.c[3] = random.integers(0, 1 << 32, (4, 32), dtype=np.uint64).astype(np.uint32)
            self.c[4:6] = 0
            self.c[6] = random.choice([0x80000000, 1, 0x807FFFFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x00800000], (4, 32))

    def _codes(self, random: np.random.Generator, name: str, registers: int) -> np.ndarray:
        bits = sum(FORMATS[name]) + 1
        per_register = 8 if self.packed else 4
        codes = random.integers(0, 1 << bits, (WARPS, registers, 32, per_register))
        quiet = codes & ((1 << (bits - 1)) - 1)
        # No infinities and NaN in most warps, nearly only zeros in some, in one the largest numbers.
        largest = {"e4m3": 0x7E, "e5m2": 0x7B}.get(name, (1 << (bits - 1)) - 1)
        codes = np.where(quiet > largest, largest, codes)
        codes[1] = np.where(random.random(codes[1].shape) < 0.9, 0, codes[1])
        codes[2] = largest | (codes[2] & 1 << (bits - 1))
        codes[7] = random.integers(0, 1 << bits, codes[7].shape)
        return codes

    def words(self, codes: np.ndarray, name: str) -> np.ndarray:
        width = 4 if self.packed else 8
        shift = 0 if self.packed else SHIFT.get(name, 0)
        return sum((codes[..., i] << shift << (width * i) for i in range(codes.shape[-1])), 0).astype(np.uint32)

    def of_a(self, warp: int, row: int, k: int) -> int:
        size = self.a.shape[-1]
        half, within = divmod(k, size * 4)
        register = row // 8 + 2 * half
        return int(self.a[warp, register, row % 8 * 4 + within // size, within % size])

    def of_b(self, warp: int, k: int, column: int) -> int:
        size = self.b.shape[-1]
        half, within = divmod(k, size * 4)
        return int(self.b[warp, half, column * 4 + within // size, within % size])

    def of_c(self, warp: int, row: int, column: int) -> int:
        return int(self.c[warp, row // 8 * 2 + column % 2, row % 8 * 4 + column // 2])


def launch(statement: str, operands: Operands, scales: list[np.ndarray]) -> np.ndarray:
    """Runs the statement in every warp; results as [warps, 4, 32]. Registers: %d0-3, %a0-3, %b0-1, %sa, %sb."""
    half = operands.half
    arrays = [operands.words(operands.a, operands.types[0]), operands.words(operands.b, operands.types[1])]
    c = operands.c if not half else np.stack([operands.c[:, 0] | operands.c[:, 1] << 16, operands.c[:, 2] | operands.c[:, 3] << 16], 1)
    arrays += [c, *(s[:, None] for s in scales)]
    names = [("a", 4), ("b", 2), ("d", c.shape[1]), ("sa", 1), ("sb", 1)][: len(arrays)]
    body = [".reg .b32 %d<4>, %a<4>, %b<2>, %sa<1>, %sb<1>, %lane, %warp, %at; .reg .b64 %p, %q;"]
    body += ["mov.u32 %lane, %tid.x; mov.u32 %warp, %ctaid.x;"]

    def address(parameter: str, register: int, count: int) -> str:
        return (
            f"ld.param.u64 %p, [{parameter}]; mad.lo.u32 %at, %warp, {count * 32}, {register * 32}; add.u32 %at, %at, %lane;"
            f"mul.wide.u32 %q, %at, 4; add.u64 %p, %p, %q;"
        )

    for name, count in names:
        for register in range(count):
            body.append(address(f"p_{name}", register, count) + f"ld.global.b32 %{name}{register}, [%p];")
    body.append(statement)
    results = np.zeros((WARPS, c.shape[1], 32), np.uint32)
    for register in range(c.shape[1]):
        body.append(address("p_o", register, c.shape[1]) + f"st.global.b32 [%p], %d{register};")
    body.append("ret;")
    parameters = ", ".join(f".param .u64 p_{name}" for name in [*(name for name, _ in names), "o"])
    text = wrap_ptx("\n".join(body), parameters).replace(".target sm_90", ".target sm_120a").replace(".version 8.0", ".version 8.8")
    emulator.launch(text, grid=WARPS, block=32, args=[*(np.ascontiguousarray(array) for array in arrays), results])
    if not half:
        return results
    return np.stack([results[:, 0] & 0xFFFF, results[:, 0] >> 16, results[:, 1] & 0xFFFF, results[:, 1] >> 16], 1)


def differences(results: np.ndarray, model) -> list[tuple[object, ...]]:
    """Wrong ones among some results of every warp, of every row and column over all warps."""
    wrong: list[tuple[object, ...]] = []
    for warp in range(WARPS):
        for position in range(warp % EVERY, 128, EVERY):
            row, column = divmod(position, 8)
            got = int(results[warp, row // 8 * 2 + column % 2, row % 8 * 4 + column // 2])
            wanted = model(warp, row, column)
            if got != wanted:
                wrong.append((warp, row, column, hex(got), hex(wanted)))
    return wrong


PAIRS = [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e2m1", "e2m1"), ("e2m1", "e5m2"), ("e3m2", "e2m3"), ("e2m3", "e2m1"), ("e4m3", "e3m2")]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("types", PAIRS, ids="-".join)
def test_small_floats_of_every_kind(types, half, seed):
    operands = Operands(np.random.default_rng(1 + 10 * seed), types, False, half)
    sums, registers = ("f16", "{%d0, %d1}") if half else ("f32", "{%d0, %d1, %d2, %d3}")
    statement = (
        f"mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.{sums}.{types[0]}.{types[1]}.{sums} "
        f"{registers}, {{%a0, %a1, %a2, %a3}}, {{%b0, %b1}}, {registers};"
    )

    def model(warp: int, row: int, column: int) -> int:
        c = operands.of_c(warp, row, column)
        if half:
            value = float(np.uint16(c).view(np.float16))
            exact: Fraction | float = Fraction(value) if np.isfinite(value) else value
            terms = [(exact, max(c >> 10 & 31, 1) - 15)]
        else:
            terms = [float32(c)]
            terms = [terms[0]] if terms[0][0] else []
        for k in range(32):
            (x, ex), (y, ey) = number(operands.of_a(warp, row, k), types[0]), number(operands.of_b(warp, k, column), types[1])
            terms.append((times(x, y), ex + ey if x and y else -1000))
        return fused(terms, 25, half)

    assert differences(launch(statement, operands, []), model) == []


@cache
def scale_number(code: int, name: str) -> tuple[Fraction | float, int]:
    """The significand of a scale and its exponent."""
    if name == "ue8m0":
        return (float("nan"), 0) if code == 255 else (Fraction(1), code - 127)
    code &= 127
    if code == 127:
        return float("nan"), 0
    value, exponent = number(code, "e4m3")
    return value / Fraction(2) ** exponent, exponent


def scale_registers(random: np.random.Generator, name: str) -> np.ndarray:
    codes = random.integers(0, 256, (WARPS, 32, 4))
    if name == "ue8m0":
        codes[: WARPS // 2] = random.integers(107, 147, codes[: WARPS // 2].shape)
        codes = np.where((codes == 255) & (np.arange(WARPS) != 9)[:, None, None], 254, codes)
    else:
        codes = np.where((codes & 127 == 127) & (np.arange(WARPS) != 9)[:, None, None], 126, codes)
    return np.ascontiguousarray(codes.astype(np.uint8)).view(np.uint32)[..., 0]


def byte_of(registers: np.ndarray, warp: int, lane: int, byte: int) -> int:
    return int(registers[warp, lane]) >> (8 * byte) & 255


def launch_scaled(operands: Operands, kind: str, scale: str, ids: tuple[int, int, int, int], seed: int):
    random = np.random.default_rng(7 + 10 * seed)
    of_a, of_b = scale_registers(random, scale), scale_registers(random, scale)
    depth = 64 if operands.packed else 32
    statement = (
        f"mma.sync.aligned.kind::{kind}.m16n8k{depth}.row.col.f32.{operands.types[0]}.{operands.types[1]}.f32.{scale} "
        "{%d0, %d1, %d2, %d3}, {%a0, %a1, %a2, %a3}, {%b0, %b1}, {%d0, %d1, %d2, %d3}, "
        f"{{%sa0}}, {{{ids[0]}, {ids[1]}}}, {{%sb0}}, {{{ids[2]}, {ids[3]}}};"
    )
    return of_a, of_b, launch(statement, operands, [of_a, of_b])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ids", [(0, 0, 0, 0), (3, 1, 1, 3)], ids=str)
@pytest.mark.parametrize("types", PAIRS, ids="-".join)
def test_one_scale_a_row(types, ids, seed):
    operands = Operands(np.random.default_rng(2 + 10 * seed), types, False, False)
    of_a, of_b, results = launch_scaled(operands, "mxf8f6f4.block_scale.scale_vec::1X", "ue8m0", ids, seed)

    def model(warp: int, row: int, column: int) -> int:
        (sa, ea) = scale_number(byte_of(of_a, warp, row % 8 * 4 + 2 * ids[1] + row // 8, ids[0]), "ue8m0")
        (sb, eb) = scale_number(byte_of(of_b, warp, column * 4 + ids[3], ids[2]), "ue8m0")
        if not isinstance(sa, Fraction) or not isinstance(sb, Fraction):
            return NAN
        c, ec = float32(operands.of_c(warp, row, column))
        terms: list[tuple[Fraction | float, int]] = [(c, ec)]
        for k in range(32):
            (x, ex), (y, ey) = number(operands.of_a(warp, row, k), types[0]), number(operands.of_b(warp, k, column), types[1])
            product = times(x, y)
            scaled = product * Fraction(2) ** (ea + eb) if isinstance(product, Fraction) else product
            terms.append((scaled, ex + ey + ea + eb if x and y else -1000))
        return fused(terms, 25, False)

    assert differences(results, model) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("kind", "scale", "count", "ids"),
    [
        ("mxf4.block_scale", "ue8m0", 2, (0, 0, 2, 3)),
        ("mxf4.block_scale.scale_vec::2X", "ue8m0", 2, (2, 1, 0, 1)),
        ("mxf4nvf4.block_scale.scale_vec::2X", "ue8m0", 2, (2, 1, 2, 2)),
        ("mxf4nvf4.block_scale.scale_vec::4X", "ue8m0", 4, (0, 1, 0, 0)),
        ("mxf4nvf4.block_scale.scale_vec::4X", "ue4m3", 4, (0, 0, 0, 1)),
    ],
)
def test_a_scale_for_each_block(kind, scale, count, ids, seed):
    operands = Operands(np.random.default_rng(3 + 10 * seed), ("e2m1", "e2m1"), True, False)
    of_a, of_b, results = launch_scaled(operands, kind, scale, ids, seed)

    def model(warp: int, row: int, column: int) -> int:
        c, ec = float32(operands.of_c(warp, row, column))
        terms: list[tuple[Fraction | float, int]] = []
        for group in range(4):
            block = group * count // 4
            sa, ea = scale_number(byte_of(of_a, warp, row % 8 * 4 + 2 * ids[1] + row // 8, ids[0] + block), scale)
            sb, eb = scale_number(byte_of(of_b, warp, column * 4 + ids[3], ids[2] + block), scale)
            if not isinstance(sa, Fraction) or not isinstance(sb, Fraction):
                return NAN
            total = Fraction(0)
            for k in range(16 * group, 16 * group + 16):
                total += number(operands.of_a(warp, row, k), "e2m1")[0] * number(operands.of_b(warp, k, column), "e2m1")[0]
            terms.append((total * sa * sb * Fraction(2) ** (ea + eb), ea + eb))
        if not isinstance(c, Fraction):
            return fused([(c, 0)], 35, False)
        largest = max(max(e for _, e in terms), ec)
        unit = Fraction(2) ** (largest - 35)
        return to_float32(sum((toward_zero(value, unit) for value, _ in [*terms, (c, ec)]), Fraction(0)))

    assert differences(results, model) == []


FORM = (
    "mma.sync.aligned.{kind}.row.col.f32.{types}.f32{scale} "
    "{{%d0, %d1, %d2, %d3}}, {{%a0, %a1, %a2, %a3}}, {{%b0, %b1}}, {{%d0, %d1, %d2, %d3}}{rest};"
)
RIGHT = ", {{%sa0}}, {{{0}, {1}}}, {{%sb0}}, {{{2}, {3}}}"


@pytest.mark.parametrize(
    ("kind", "types", "scale", "rest"),
    [
        ("kind::f8f6f4.m16n8k64", "e4m3.e4m3", "", ""),
        ("kind::f8f6f4.m16n8k32", "e4m3.f16", "", ""),
        ("kind::mxf4.block_scale.scale_vec::2X.m16n8k64", "e4m3.e4m3", ".ue8m0", RIGHT.format(0, 0, 0, 0)),
        ("kind::mxf4.block_scale.scale_vec::4X.m16n8k64", "e2m1.e2m1", ".ue8m0", RIGHT.format(0, 0, 0, 0)),
        ("kind::mxf4nvf4.block_scale.m16n8k64", "e2m1.e2m1", ".ue4m3", RIGHT.format(0, 0, 0, 0)),
        ("kind::mxf4nvf4.block_scale.scale_vec::2X.m16n8k64", "e2m1.e2m1", ".ue4m3", RIGHT.format(0, 0, 0, 0)),
        ("kind::mxf8f6f4.m16n8k32", "e4m3.e4m3", ".ue8m0", RIGHT.format(0, 0, 0, 0)),
        ("kind::mxf8f6f4.block_scale.m16n8k32", "e4m3.e4m3", ".ue4m3", RIGHT.format(0, 0, 0, 0)),
        ("kind::mxf8f6f4.block_scale.m16n8k32", "e4m3.e4m3", ".ue8m0", RIGHT.format(4, 0, 0, 0)),
        ("kind::mxf8f6f4.block_scale.m16n8k32", "e4m3.e4m3", ".ue8m0", RIGHT.format(0, 2, 0, 0)),
        ("kind::mxf4.block_scale.m16n8k64", "e2m1.e2m1", ".ue8m0", RIGHT.format(1, 0, 0, 0)),
        ("kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64", "e2m1.e2m1", ".ue4m3", RIGHT.format(0, 0, 2, 0)),
        ("kind::mxf8f6f4.block_scale.m16n8k32", "e4m3.e4m3", ".ue8m0", ""),
    ],
)
def test_other_forms_are_refused(kind, types, scale, rest):
    operands = Operands(np.random.default_rng(1), ("e4m3", "e4m3"), False, False)
    scales = np.zeros((WARPS, 32), np.uint32)
    with pytest.raises(emulator.UnknownInstruction):
        launch(FORM.format(kind=kind, types=types, scale=scale, rest=rest), operands, [scales, scales])


def test_fp8_without_a_kind_is_one_step_on_sm_120():
    operands = Operands(np.random.default_rng(4), ("e4m3", "e4m3"), False, False)
    kinds = ("kind::f8f6f4.m16n8k32", "m16n8k32")
    with_kind, without = (launch(FORM.format(kind=kind, types="e4m3.e4m3", scale="", rest=""), operands, []) for kind in kinds)
    assert (with_kind == without).all()
