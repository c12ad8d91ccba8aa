"""cvt.rs against neighbours in exact fractions: random bits decide between the two, with the probability that the distances have."""

from fractions import Fraction

import numpy as np
import pytest

from gemmgen import emulator

from .helpers import AWKWARD_F32, bits_to_f32, compile_ptx

# Exponent bits, mantissa bits, random bits, bits of a field of the result.
FORMATS = {
    "f16x2": (5, 10, 13, 16),
    "bf16x2": (8, 7, 16, 16),
    "e4m3x4": (4, 3, 8, 8),
    "e5m2x4": (5, 2, 8, 8),
    "e2m3x4": (2, 3, 8, 8),
    "e3m2x4": (3, 2, 8, 8),
    "e2m1x4": (2, 1, 8, 4),
}
LARGEST = {"f16x2": 0x7BFF, "bf16x2": 0x7F7F, "e4m3x4": 0x7E, "e5m2x4": 0x7B, "e2m3x4": 0x1F, "e3m2x4": 0x1F, "e2m1x4": 7}
NAN = {"f16x2": 0x7FFF, "bf16x2": 0x7FFF, "e4m3x4": 0x7F, "e5m2x4": 0x7F, "e2m3x4": 0x1F, "e3m2x4": 0x1F, "e2m1x4": 7}


def convert(name: str, values: np.ndarray, random: np.ndarray, suffix: str = ".satfinite", architecture: str = "sm_100a") -> np.ndarray:
    """Codes of values [n, 2 or 4], the lowest field first, by one random word for each row."""
    count = values.shape[1]
    names = [f'"f"(x[{count} * i + {part}])' for part in reversed(range(count))]
    inputs = ", ".join(f"%{1 + part}" for part in range(count))
    inputs = inputs if count == 2 else f"{{{inputs}}}"
    register, kind = ("h", "unsigned short") if name == "e2m1x4" else ("r", "unsigned")
    source = f"""extern "C" __global__ void kernel(const float* x, const unsigned* random, unsigned* out) {{
        int i = threadIdx.x + blockIdx.x * 128; {kind} d;
        asm("cvt.rs{suffix}.{name}.f32 %0, {inputs}, %{count + 1};" : "={register}"(d) : {", ".join(names)}, "r"(random[i]));
        out[i] = d;
    }}"""
    padded = -len(values) % 128
    x = np.ascontiguousarray(np.pad(values.astype(np.float32), ((0, padded), (0, 0))))
    out = np.zeros(len(x), np.uint32)
    words = np.pad(random.astype(np.uint32), (0, padded))
    emulator.launch(compile_ptx(source, architecture), "kernel", grid=len(x) // 128, block=128, args=[x, words, out])
    width = FORMATS[name][3]
    return np.stack([out[: len(values)] >> np.uint32(width * part) & np.uint32((1 << width) - 1) for part in range(count)], axis=1)


def magnitude(code: int, name: str) -> Fraction:
    exponent_bits, mantissa_bits, _, _ = FORMATS[name]
    mantissa, exponent = code & (1 << mantissa_bits) - 1, code >> mantissa_bits
    whole = mantissa + (1 << mantissa_bits if exponent else 0)
    return Fraction(whole) * Fraction(2) ** (max(exponent, 1) - (1 << exponent_bits - 1) + 1 - mantissa_bits)


def rounded(value: float, random: int, name: str, saturate: bool = True) -> int:
    """The code of a value: up where its distance from the number below, in random bits' units, and the random number carry."""
    exponent_bits, mantissa_bits, random_bits, _ = FORMATS[name]
    if np.isnan(value):
        return NAN[name]
    sign = int(np.signbit(value)) << exponent_bits + mantissa_bits
    beyond = LARGEST[name] if saturate else LARGEST[name] + 1
    if np.isinf(value) or abs(Fraction(value)) >= magnitude(LARGEST[name] + 1, name):
        return sign | beyond
    size, low, high = abs(Fraction(value)), 0, LARGEST[name] + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if magnitude(middle, name) <= size else (low, middle)
    below, above = magnitude(low, name), magnitude(low + 1, name)
    distance = int((size - below) / (above - below) * 2**random_bits)
    code = low + (distance + random >= 2**random_bits)
    return sign | (code if code <= LARGEST[name] else beyond)


def samples(name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Values around the numbers of a type and others, with random words."""
    rng = np.random.default_rng(11)
    largest = float(magnitude(LARGEST[name], name))
    smallest = float(magnitude(1, name))
    with np.errstate(invalid="ignore", over="ignore"):
        values = np.concatenate(
            [
                AWKWARD_F32,
                bits_to_f32(rng.integers(0, 1 << 32, 300, dtype=np.uint64)),
                rng.uniform(-1.1, 1.1, 300) * largest,
                rng.uniform(-20, 20, 400) * smallest,
                rng.standard_normal(400),
                np.array([largest, -largest, smallest, smallest / 2, smallest / 1024, 0.0, -0.0, np.inf, -np.inf, np.nan]),
            ]
        ).astype(np.float32)
    values = values[: len(values) // count * count].reshape(-1, count)
    return values, rng.integers(0, 1 << 32, len(values), dtype=np.uint64).astype(np.uint32)


def reversed_byte(byte: int) -> int:
    return int(f"{byte:08b}"[::-1], 2)


def parts(word: int, name: str, architecture: str) -> list[int]:
    """Random numbers of each field, the lowest first."""
    if name == "f16x2":
        return [word & 0x1FFF, word >> 16 & 0x1FFF]
    if name == "bf16x2":
        return [word & 0xFFFF, word >> 16]
    bytes_ = [word >> shift & 0xFF for shift in (0, 8, 16, 24)]
    if architecture == "sm_100a":
        return [bytes_[0], bytes_[2], bytes_[1], bytes_[3]] if name == "e2m1x4" else bytes_
    first, second, third, fourth = (2, 0, 3, 1) if name == "e2m1x4" else (1, 0, 3, 2)
    return [bytes_[first], reversed_byte(bytes_[second]), bytes_[third], reversed_byte(bytes_[fourth])]


@pytest.mark.parametrize("architecture", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("name", FORMATS)
def test_random_bits_choose_between_neighbours(name, architecture):
    values, random = samples(name, 2 if name.endswith("x2") else 4)
    got = convert(name, values, random, architecture=architecture)
    for row, word, codes in zip(values.tolist(), random.tolist(), got.tolist(), strict=True):
        wanted = [rounded(value, part, name) for value, part in zip(row, parts(word, name, architecture), strict=True)]
        assert codes == wanted, (row, hex(word))


@pytest.mark.parametrize("name", ["f16x2", "bf16x2"])
def test_large_values_become_infinite_without_saturation(name):
    values, random = samples(name, 2)
    got = convert(name, values, random, "")
    for row, word, codes in zip(values.tolist(), random.tolist(), got.tolist(), strict=True):
        assert codes == [rounded(value, part, name, False) for value, part in zip(row, parts(word, name, "sm_100a"), strict=True)]


@pytest.mark.parametrize("name", ["f16x2", "e4m3x4"])
def test_relu_clears_negative_values(name):
    values, random = samples(name, 2 if name == "f16x2" else 4)
    plain, clamped = convert(name, values, random), convert(name, values, random, ".relu.satfinite")
    negative = np.signbit(values) & ~np.isnan(values)
    assert np.array_equal(clamped, np.where(negative, 0, plain)) and negative.any()


def test_results_are_unbiased():
    """Every random byte once for each value: as many results above as the distance says."""
    value = np.float32(2.3)
    random = np.arange(256, dtype=np.uint32) * np.uint32(0x01010101)
    got = convert("e2m1x4", np.full((256, 4), value), random)
    ups = (got == 5).sum(axis=0)
    assert set(np.unique(got)) == {4, 5} and ups.tolist() == [int((2.3 - 2) * 256)] * 4


def test_other_targets_are_refused():
    ptx = compile_ptx('extern "C" __global__ void kernel() {}', "sm_120a")
    body = ".reg .f32 %f<2>; .reg .b32 %r<2>; mov.f32 %f1, 0f3F800000; mov.b32 %r1, 1; cvt.rs.f16x2.f32 %r1, %f1, %f1, %r1; ret;"
    text = f"{ptx[: ptx.index('.visible')]}.visible .entry kernel() {{ {body} }}"
    with pytest.raises(emulator.UnknownInstruction, match="sm_100a and sm_103a only"):
        emulator.launch(text, "kernel", grid=1, block=32, args=[])
