"""The tensor cores' arithmetic against an H200's results, bit for bit, and against sums of exact fractions."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import floor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmgen.emulator import tensor_core
from gemmgen.emulator.tensor_core import FLOAT_STEP, FP8_STEP, Step

from .test_multiply import WARPS, run_mma

DATA = Path(__file__).parents[1] / "data"


@lru_cache
def measured(name: str) -> dict[str, np.ndarray]:
    """Operands and results by the names in the files."""
    file = "tensor_core_h200" if name in tensor_core.FLOATS else "tensor_core_more_h200"
    with np.load(DATA / f"{file}.npz") as arrays:
        return {key.removeprefix(f"{name}_"): arrays[key] for key in arrays.files if key.startswith(f"{name}_")}


def type_of(name: str) -> str:
    return name.split("_")[-1]


def factors(name: str) -> tuple[tensor_core.Factor, tensor_core.Factor]:
    arrays = measured(name)
    return tensor_core.factor(arrays["a"], type_of(name)), tensor_core.factor(arrays["b"], type_of(name))


@pytest.mark.parametrize("name", [*tensor_core.FLOATS, "sub_bf16", "sub_tf32"])
def test_wgmma_equals_the_h200(name):
    step = FP8_STEP if type_of(name) in ("e4m3", "e5m2") else FLOAT_STEP
    got = tensor_core.multiply_float(*factors(name), measured(name)["c"], step)
    np.testing.assert_array_equal(got, measured(name)["wgmma"])


@pytest.mark.parametrize("which", ["wgmma", "mma"])
def test_half_accumulators_equal_the_h200(which):
    arrays = measured("acc16_f16")
    got = tensor_core.multiply_half(*factors("acc16_f16"), arrays["c"].astype(np.uint16))
    np.testing.assert_array_equal(got, arrays[which])


SHAPES = {
    "f16": "m16n8k16",
    "bf16": "m16n8k16",
    "tf32": "m16n8k8",
    "e4m3": "m16n8k32",
    "e5m2": "m16n8k32",
    "sub_bf16": "m16n8k16",
    "sub_tf32": "m16n8k8",
    "acc16_f16": "m16n8k16",
    "k8_f16": "m16n8k8",
    "k8_bf16": "m16n8k8",
    "k4_tf32": "m16n8k4",
}


@pytest.mark.parametrize("name", SHAPES)
def test_mma_sync_equals_the_h200(name):
    arrays, type_name, shape = measured(name), type_of(name), SHAPES[name]
    depth = int(shape.split("k")[1])
    a, b = (arrays[key][..., :depth] for key in ("a", "b"))
    half = name == "acc16_f16"
    c = arrays["c"].astype(np.uint16).view(np.float16) if half else arrays["c"].view(np.float32)
    # Each warp multiplies sixteen rows; the last ones fill the last block.
    a, c, want = (matrices.reshape(-1, 16, matrices.shape[-1]) for matrices in (a, c, arrays["mma"]))
    b = np.repeat(b.swapaxes(1, 2), 4, axis=0)
    whole = -(-len(a) // WARPS) * WARPS
    a, b, c, want = (np.resize(matrices, (whole, *matrices.shape[1:])) for matrices in (a, b, c, want))
    sums = "f16" if half else "f32"
    architecture = "compute_89" if type_name in ("e4m3", "e5m2") else "compute_80"
    got = run_mma(shape, (sums, type_name, type_name, sums), a, b, c, architecture=architecture)
    np.testing.assert_array_equal(got.view(np.uint16 if half else np.uint32), want)


@pytest.mark.parametrize("sums", ["f32", "f16"])
@pytest.mark.parametrize(("shape", "half_step"), [("m16n8k32", "m16n8k16"), ("m16n8k16", "m16n8k8")])
@pytest.mark.parametrize(("a_type", "b_type"), [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3")])
def test_fp8_on_mma_sync_is_two_steps_on_halves(a_type, b_type, shape, half_step, sums):
    """The composition that machine code shows, made of measured steps."""
    depth, warps = int(shape.split("k")[1]), 2 * WARPS
    rng = np.random.default_rng(depth)
    a, b = (rng.integers(0, 256, size).astype(np.uint8) & np.uint8(0xBB) for size in ((warps, 16, depth), (warps, depth, 8)))
    dtype = np.float32 if sums == "f32" else np.float16
    c = rng.normal(size=(warps, 16, 8)).astype(dtype)
    got = run_mma(shape, (sums, a_type, b_type, sums), a, b, c, architecture="compute_90")
    wide_a, wide_b = (tensor_core.factor(bits, type_name).values.astype(np.float16) for bits, type_name in ((a, a_type), (b, b_type)))
    total = np.zeros_like(c)
    for chosen in (np.arange(depth) % 4 < 2, np.arange(depth) % 4 >= 2):
        total = run_mma(half_step, (sums, "f16", "f16", sums), wide_a[..., chosen].copy(), wide_b[:, chosen].copy(), total)
    np.testing.assert_array_equal(got, total + c)


def probed() -> dict[str, str]:
    """The instruction's form, of each experiment of measurements/tensor_core_probe.py."""
    with np.load(DATA / "tensor_core_probe.npz") as arrays:
        return {key.removesuffix("_form"): str(arrays[key]) for key in arrays.files if key.endswith("_form")}


@pytest.mark.parametrize(("name", "form"), probed().items())
def test_what_the_probe_asked_equals_hopper(name, form):
    """Sums beyond float32, zeros, fp8 in pairs and with float16 accumulators, integers at their ends."""
    with np.load(DATA / "tensor_core_probe.npz") as arrays:
        a, b, c, d = (arrays[f"{name}_{key}"] for key in "abcd")
    wgmma = form.startswith("m64")
    sums, a_type, b_type = form.split(".")[-3:] if wgmma else form.split(".")[-4:-1]
    if sums == "s32":
        a, b = (bits.view(np.int8) if type_name == "s8" else bits for bits, type_name in ((a, a_type), (b, b_type)))
        products = tensor_core.multiply_integers(a, b)
        got = tensor_core.accumulate_integers(c.view(np.int32), products, saturate="satfinite" in form).view(np.uint32)
    else:
        fp8 = a_type in ("e4m3", "e5m2")
        left, right = tensor_core.factor(a, a_type), tensor_core.factor(b, b_type)
        addend = c.astype(np.uint16) if sums == "f16" else c
        if fp8 and not wgmma:
            got = tensor_core.multiply_fp8_on_halves(left, right, addend)
        else:
            multiply = tensor_core.multiply_half if sums == "f16" else tensor_core.multiply_float
            got = multiply(left, right, addend, FP8_STEP if fp8 else FLOAT_STEP)
    np.testing.assert_array_equal(got, d)


# -- beyond the measured vectors -----------------------------------------------------------------------------------

DTYPES = {"f16": np.uint16, "bf16": np.uint16, "tf32": np.uint32, "e4m3": np.uint8, "e5m2": np.uint8}
EXPONENT_BITS = {"f16": 5, "bf16": 8, "tf32": 8, "e4m3": 4, "e5m2": 5}
MANTISSA_BITS = {"f16": 10, "bf16": 7, "tf32": 23, "e4m3": 3, "e5m2": 2}


def parts(bits: int, exponent_bits: int, mantissa_bits: int) -> tuple[Fraction, int]:
    """Value and exponent of a finite number; subnormal numbers have the smallest normal one."""
    sign = -1 if bits >> (exponent_bits + mantissa_bits) else 1
    field = bits >> mantissa_bits & ((1 << exponent_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = max(field, 1) - bias
    significand = Fraction(bits & ((1 << mantissa_bits) - 1), 1 << mantissa_bits) + (field > 0)
    return sign * significand * Fraction(2) ** exponent, exponent


def toward_zero(value: Fraction, unit: Fraction) -> Fraction:
    return floor(abs(value) / unit) * unit * (1 if value > 0 else -1)


def sum_by_fractions(a: list[int], b: list[int], c: int, type_name: str, step: Step) -> float:
    """One result by the rules of docs/tensor_core_numerics.md, term by term."""
    form = EXPONENT_BITS[type_name], MANTISSA_BITS[type_name]
    terms = []
    for left, right in zip(a, b, strict=True):
        (x, e), (y, f) = parts(left, *form), parts(right, *form)
        terms.append((x * y, e + f))
    terms.append(parts(c, 8, 23))
    terms = [term for term in terms if term[0]]
    if not terms:
        return 0.0
    unit = Fraction(2) ** (max(exponent for _, exponent in terms) - step.fraction_bits)
    total = sum((toward_zero(value, unit) for value, _ in terms), Fraction(0))
    if not total:
        return 0.0
    exponent = abs(total).numerator.bit_length() - abs(total).denominator.bit_length()
    exponent -= Fraction(2) ** exponent > abs(total)
    return float(toward_zero(total, Fraction(2) ** (max(exponent, -126) - 23 + step.dropped_bits)))


@st.composite
def products(draw: st.DrawFn):
    type_name = draw(st.sampled_from(tensor_core.FLOATS))
    total_bits = 1 + EXPONENT_BITS[type_name] + MANTISSA_BITS[type_name]
    finite = st.integers(0, (1 << total_bits) - 1).map(
        lambda bits: bits & ~(1 << MANTISSA_BITS[type_name]) & (0xFFFFE000 if type_name == "tf32" else 0xFFFFFFFF)
    )
    element = st.one_of(st.just(0), finite)
    depth = draw(st.integers(1, 32))
    row, column = (draw(st.lists(element, min_size=depth, max_size=depth)) for _ in range(2))
    return type_name, row, column, draw(st.integers(0, (1 << 32) - 1).map(lambda bits: bits & ~(1 << 23))), draw(st.sampled_from([1, 40]))


@settings(max_examples=300, deadline=None)
@given(products())
def test_agrees_with_exact_fractions(case):
    type_name, row, column, c, columns = case
    step = FP8_STEP if type_name in ("e4m3", "e5m2") else FLOAT_STEP
    a, b = (np.array([values], DTYPES[type_name]) for values in (row, column))
    b = np.repeat(b, columns, axis=0)
    sums = np.full((1, columns), c, np.uint32)
    got = tensor_core.multiply_float(tensor_core.factor(a, type_name), tensor_core.factor(b, type_name), sums, step).view(np.float32)
    want = sum_by_fractions(row, column, c, type_name, step)
    assert (got == (np.float32(want) if abs(want) < 2.0**128 else np.copysign(np.inf, want))).all()


def test_stacks_of_every_size_agree_with_their_matrices():
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 0x7C00, (300, extent, 16)).astype(np.uint16) for extent in (16, 8))
    c = rng.normal(size=(300, 16, 8)).astype(np.float32).view(np.uint32)
    together = tensor_core.multiply_float(tensor_core.factor(a, "f16"), tensor_core.factor(b, "f16"), c)
    for index in (0, 150, 299):
        alone = tensor_core.multiply_float(tensor_core.factor(a[index], "f16"), tensor_core.factor(b[index], "f16"), c[index])
        np.testing.assert_array_equal(together[index], alone)


def test_what_cannot_be_cut_is_summed_in_one_product():
    rng = np.random.default_rng(2)
    values = [rng.integers(-8, 9, shape).astype(np.float16) for shape in ((64, 16), (256, 16))]
    a, b = (tensor_core.factor(v.view(np.uint16), "f16") for v in values)
    c = rng.integers(-99, 99, (64, 256)).astype(np.float32)
    got = tensor_core.multiply_float(a, b, c.view(np.uint32)).view(np.float32)
    np.testing.assert_array_equal(got, values[0].astype(np.float64) @ values[1].T.astype(np.float64) + c)
