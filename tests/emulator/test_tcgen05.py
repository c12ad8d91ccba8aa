"""tcgen05.mma and the movement of data through tensor memory, against references that are written down independently."""

# ruff: noqa: E501 (CUDA)

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np
import pytest

from gemmgen import emulator

from .helpers import compile_ptx, run_cuda
from .tcgen05 import IMAGE, PLAIN, TCGEN05, descriptor, moves, named, product_kernel
from .test_block_scaled_mma import fused
from .wgmma import Layout

ARCHITECTURE = "sm_100a"
CODES = {"f16": 0, "bf16": 1, "tf32": 2, "u8": 0, "s8": 1, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}
SUMS = {"f16": 0, "f32": 1, "s32": 2}
FLOATS = {"f16": (5, 10), "bf16": (8, 7), "tf32": (8, 10), "e4m3": (4, 3), "e5m2": (5, 2), "e2m3": (2, 3), "e3m2": (3, 2), "e2m1": (2, 1)}
KINDS = {"f16": "mma_f16", "bf16": "mma_f16", "tf32": "mma_tf32", "u8": "mma_i8", "s8": "mma_i8"}
BYTES = {"f16": 2, "bf16": 2, "tf32": 4}
SWIZZLED = {mode: Layout(mode, stride=8 * span) for mode, span in (("128B", 128), ("64B", 64), ("32B", 32))}
ACROSS = {
    "none": Layout("none", k_major=False, leading=2048, stride=128),
    "128B": Layout("128B", k_major=False, leading=4096, stride=1024),
    "64B": Layout("64B", k_major=False, leading=2048, stride=512),
    "32B": Layout("32B", k_major=False, leading=1024, stride=256),
}


def value(code: int, name: str) -> tuple[Fraction | float, int]:
    """A float and the exponent that it counts with."""
    exponent_bits, mantissa_bits = FLOATS[name]
    if name == "tf32":
        code >>= 13
    sign = -1 if code >> (exponent_bits + mantissa_bits) & 1 else 1
    field, mantissa = code >> mantissa_bits & ((1 << exponent_bits) - 1), code & ((1 << mantissa_bits) - 1)
    if name in ("f16", "bf16", "tf32", "e5m2") and field == (1 << exponent_bits) - 1:
        return (float("nan") if mantissa else sign * float("inf")), 0
    if name == "e4m3" and code & 0x7F == 0x7F:
        return float("nan"), 0
    exponent = max(field, 1) - (1 << (exponent_bits - 1)) + 1
    return sign * Fraction(mantissa + (1 << mantissa_bits if field else 0), 1 << mantissa_bits) * Fraction(2) ** exponent, exponent


def codes(name: str, rows: int, seed: int, wild: bool) -> np.ndarray:
    """Random codes of a matrix of 32 bytes a row: any patterns, or numbers of like size."""
    rng = np.random.default_rng(seed)
    size = BYTES.get(name, 1)
    dtype = {1: np.uint8, 2: np.uint16, 4: np.uint32}[size]
    found = rng.integers(0, 1 << 8 * size, (rows, 32 // size), dtype=np.uint64).astype(dtype)
    if name in FLOATS and not wild:
        exponent_bits, mantissa_bits = FLOATS[name]
        low = 13 if name == "tf32" else 0
        bias = (1 << (exponent_bits - 1)) - 1
        field = (bias + rng.integers(-2, 3, found.shape).clip(1 - bias)).astype(dtype)
        sign = rng.integers(0, 2, found.shape).astype(dtype) << dtype(exponent_bits + mantissa_bits)
        found = (sign | field << dtype(mantissa_bits) | rng.integers(0, 1 << mantissa_bits, found.shape).astype(dtype)) << dtype(low)
    elif BYTES.get(name, 1) == 1 and name in FLOATS:
        found &= np.uint8((1 << 1 + sum(FLOATS[name])) - 1)
    return found


def stored(matrix: np.ndarray, name: str) -> np.ndarray:
    """Codes as they lie in shared memory: 16 elements below 8 bits begin each chunk of 16 bytes."""
    bits = {"e2m1": 4, "e2m3": 6, "e3m2": 6}.get(name)
    if bits is None:
        return matrix
    each = np.unpackbits(matrix[..., None], axis=-1, bitorder="little")[..., :bits].reshape(len(matrix), -1, 16 * bits)
    return np.pad(np.packbits(each, axis=-1, bitorder="little"), ((0, 0), (0, 0), (0, 16 - 2 * bits))).reshape(len(matrix), -1)


def multiply(a, b, types, sums, m, n, c, *, layouts=(PLAIN, PLAIN), accumulate=1, issue="", **bits) -> np.ndarray:
    """D [m, n] in words, of a product on the emulator."""
    images = [layout.image(stored(matrix, name), IMAGE) for layout, matrix, name in zip(layouts, (a, b), types, strict=True)]
    form = descriptor(m, n, CODES[types[0]], CODES[types[1]], SUMS[sums], **bits)
    lanes = np.arange(m) if m == 128 else np.arange(m) // 16 * 32 + np.arange(m) % 16
    words = np.full((128, n), 7, np.uint32)
    words[lanes] = c
    source = product_kernel(KINDS.get(types[0], "mma_f8"), form, n, *layouts, accumulate, issue)
    run_cuda(source, "kernel", 1, 128, [images[0], images[1], words], ARCHITECTURE)
    assert (np.delete(words, lanes, 0) == 7).all()
    return words[lanes]


def exact(a, b, types, sums, c, accumulate, places) -> list[int]:
    """Results at some places by the published model: terms cut to 25 bits below the largest exponent."""
    found = []
    for i, j in places:
        terms = []
        for left, right in zip(a[i].tolist(), b[j].tolist(), strict=True):
            (x, ex), (y, ey) = value(left, types[0]), value(right, types[1])
            finite = isinstance(x, Fraction) and isinstance(y, Fraction)
            terms.append((x * y if finite else float(x) * float(y), ex + ey))
        word = int(c[i, j]) if accumulate else 0
        terms.append(value(word & 0xFFFF, "f16") if sums == "f16" else single(word))
        found.append(fused(terms, 25, sums == "f16"))
    return found


def single(word: int) -> tuple[Fraction | float, int]:
    number = float(np.uint32(word).view(np.float32))
    return (Fraction(number) if np.isfinite(number) else number), max(word >> 23 & 0xFF, 1) - 127


FORMS = [
    *((("f16", "f16"), sums) for sums in ("f32", "f16")),
    *((types, "f32") for types in (("bf16", "bf16"), ("f16", "bf16"), ("tf32", "tf32"))),
    *(((a, b), "f32") for a, b in (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e2m3", "e3m2"), ("e2m1", "e4m3"), ("e2m1", "e2m1"))),
    (("e4m3", "e5m2"), "f16"),
]


def corners(name: str, rows: int, seed: int) -> np.ndarray:
    """Codes next to zero, to the smallest normal number and to the largest one, infinities and NaN, with both signs."""
    exponent_bits, mantissa_bits = FLOATS[name]
    low = 13 if name == "tf32" else 0
    top = 1 << exponent_bits + mantissa_bits
    near = [code + step for code in (0, 1 << mantissa_bits, top >> 1, top - (1 << mantissa_bits), top - 1) for step in (-1, 0, 1)]
    known = [code for code in near if 0 <= code < top]
    rng = np.random.default_rng(seed)
    found = rng.choice(known, (rows, 32 // BYTES.get(name, 1))) | rng.choice([0, top], (rows, 32 // BYTES.get(name, 1)))
    mostly_small = rng.random(found.shape) < 0.9  # a NaN makes the other terms of its sum invisible
    found[mostly_small] &= top | (top >> 1) - 1
    return (found << low).astype({1: np.uint8, 2: np.uint16, 4: np.uint32}[BYTES.get(name, 1)])


SEEDS = range(24) if os.environ.get("GEMMGEN_ALL_CASES") else range(1)
"""24 seeds are more than 90,000 operands of every pair of types."""


@pytest.mark.parametrize("data", ["alike", "any", "corners"])
@pytest.mark.parametrize(("types", "sums"), FORMS, ids=lambda each: each if isinstance(each, str) else "-".join(each))
def test_results_have_the_bits_of_the_published_model(types, sums, data):
    m, n = 128, 32
    for seed in SEEDS:
        if data == "corners":
            a, b = corners(types[0], m, 4 * seed + 1), corners(types[1], n, 4 * seed + 2)
        else:
            a, b = (codes(name, rows, 4 * seed + part, data == "any") for name, rows, part in ((types[0], m, 1), (types[1], n, 2)))
        rng = np.random.default_rng(4 * seed + 3)
        if sums == "f16":
            c = rng.integers(0, 1 << 16, (m, n)).astype(np.uint32)
        else:
            c = rng.standard_normal((m, n)).astype(np.float32).view(np.uint32)
        d = multiply(a, b, types, sums, m, n, c)
        places = [(i, (i + seed) % n) for i in range(m)]  # every row and every column
        wanted = exact(a, b, types, sums, c, True, places)
        assert [int(d[place]) for place in places] == wanted


PLACES = [
    (name, mode, across, (64, 128)[(number + (name == "s8")) % 2])
    for number, (mode, across) in enumerate(
        (mode, across) for mode in ("none", "128B", "64B", "32B") for across in ((False, False), (True, False), (False, True))
    )
    for name in ("bf16", "s8")
]


@pytest.mark.parametrize(("name", "mode", "across", "m"), PLACES)
def test_operands_lie_as_descriptors_say(name, mode, across, m):
    n = 64
    layouts = tuple(ACROSS[mode] if one else PLAIN if mode == "none" else SWIZZLED[mode] for one in across)
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-8, 8, (rows, 32 // BYTES.get(name, 1))) for rows in (m, n))
    c = rng.integers(-9, 9, (m, n))
    as_codes = {
        "bf16": lambda x: (x.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16),
        "s8": lambda x: x.astype(np.int8).view(np.uint8),
    }[name]
    sums, dtype = ("s32", np.int32) if name == "s8" else ("f32", np.float32)
    majors = {"a_major": int(across[0]), "b_major": int(across[1])}
    d = multiply(as_codes(a), as_codes(b), (name, name), sums, m, n, c.astype(dtype).view(np.uint32), layouts=layouts, **majors)
    assert np.array_equal(d.view(dtype), (a @ b.T + c).astype(dtype))


def halves(matrix: np.ndarray) -> np.ndarray:
    return matrix.astype(np.float16).view(np.uint16)


@pytest.fixture
def small():
    rng = np.random.default_rng(9)
    return rng.integers(-8, 8, (128, 16)), rng.integers(-8, 8, (32, 16)), rng.integers(-9, 9, (128, 32)).astype(np.float32)


def test_negated_factors_and_a_product_that_starts_from_zero(small):
    a, b, c = small
    d = multiply(halves(a), halves(b), ("f16", "f16"), "f32", 128, 32, c.view(np.uint32), accumulate=0, a_negate=1)
    assert np.array_equal(d.view(np.float32), -(a @ b.T).astype(np.float32))


def test_unsigned_bytes_and_saturation():
    a, b = np.full((128, 32), 255, np.uint8), np.full((16, 32), 255, np.uint8)
    c = np.full((128, 16), 2**31 - 5, np.int32).view(np.uint32)
    assert (multiply(a, b, ("u8", "u8"), "s32", 128, 16, c, saturate=1).view(np.int32) == 2**31 - 1).all()
    assert (multiply(a, b, ("u8", "u8"), "s32", 128, 16, c).view(np.int32) == 2**31 - 5 + 32 * 255**2 - 2**32).all()


MASKED = """asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; tcgen05.mma.cta_group::1.kind::f16.collector::a::fill [%0], %1, %2, %3, {%4, %5, %5, %6}, p, 2;}"
    :: "r"(tmem), "l"(A), "l"(B), "r"(FORM), "r"(0xFu), "r"(0u), "r"(0x80000000u) : "memory");"""


def test_lanes_that_are_disabled_stay_and_d_is_scaled(small):
    a, b, c = small
    issue = MASKED.replace("A)", f"{named(PLAIN, 'as')})", 1).replace("B)", f"{named(PLAIN, 'bs')})", 1)
    issue = issue.replace("FORM", f"{descriptor(128, 32, 0, 0, 1)}u")
    d = multiply(halves(a), halves(b), ("f16", "f16"), "f32", 128, 32, c.view(np.uint32), issue=issue).view(np.float32)
    wanted = (a @ b.T + c / 4).astype(np.float32)
    kept = np.array([0, 1, 2, 3, 127])
    wanted[kept] = c[kept]
    assert np.array_equal(d, wanted)


FROM_MEMORY = """}
    for (int w = 0; w < 8; ++w) tmem_st(mine + 256 + w, ((const u32*)a)[t * 8 + w]);
    wait_st(); before_sync(); __syncthreads(); after_sync();
    if (t == 0) { mma_f16_ts(tmem, tmem + 256, B, FORM, 1);"""


def test_a_comes_from_tensor_memory(small):
    a, b, c = small
    issue = FROM_MEMORY.replace("B,", f"{named(PLAIN, 'bs')},").replace("FORM", f"{descriptor(128, 32, 0, 0, 1)}u")
    images = [np.resize(halves(a).ravel().view(np.uint8), IMAGE), PLAIN.image(halves(b), IMAGE)]
    d = c.copy()
    run_cuda(product_kernel("mma_f16", 0, 32, issue=issue), "kernel", 1, 128, [*images, d], ARCHITECTURE)
    assert np.array_equal(d, (a @ b.T + c).astype(np.float32))


NARROW = FROM_MEMORY.replace("mma_f16_ts(tmem, tmem + 256, B, FORM, 1);", "mma_f8_ts(tmem, tmem + 256, B, FORM, 1);")


@pytest.mark.parametrize("name", ["e2m1", "e2m3", "e3m2", "e4m3"])
def test_narrow_floats_have_bytes_in_tensor_memory(name):
    """Four bits in the middle of a byte, six at its bottom; the other bits may hold anything."""
    a, b = codes(name, 128, 41, True), codes("e4m3", 32, 42, False)
    if name == "e4m3":
        a[a & 0x7F == 0x7F] = 0
    noise = np.random.default_rng(43).integers(0, 256, a.shape).astype(np.uint8)
    placed = {"e2m1": a << 2 | noise & 0xC3, "e4m3": a}.get(name, a | noise & 0xC0)
    c = np.random.default_rng(44).standard_normal((128, 32)).astype(np.float32)
    issue = NARROW.replace("B,", f"{named(PLAIN, 'bs')},").replace("FORM", f"{descriptor(128, 32, CODES[name], 0, 1)}u")
    source = product_kernel("", 0, 32, issue=issue)
    d = c.view(np.uint32).copy()
    run_cuda(source, "kernel", 1, 128, [np.resize(placed.ravel(), IMAGE), PLAIN.image(b, IMAGE), d], ARCHITECTURE)
    places = [(i, i % 32) for i in range(128)]
    assert [int(d[place]) for place in places] == exact(a, b, (name, "e4m3"), "f32", c.view(np.uint32), True, places)


WIDE = f"matrix(as, 1024, 512, 1), {named(PLAIN, 'bs')}"


def test_a_swizzle_may_move_32_bytes_at_a_time():
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-8, 8, (rows, 8)).astype(np.float32) for rows in (128, 32))
    image = np.zeros(IMAGE // 4, np.float32)
    for row in range(128):
        for k in range(8):
            linear = row // 32 * 1024 + k // 4 * 512 + k % 4 * 128 + row % 32 * 4
            image[(linear ^ (linear >> 7 & 3) << 5) // 4] = a[row, k]
    d = np.zeros((128, 32), np.float32)
    issue = f"mma_tf32(tmem, {WIDE}, {descriptor(128, 32, 2, 2, 1, a_major=1)}u, 0);"
    run_cuda(product_kernel("", 0, 32, issue=issue), "kernel", 1, 128, [image, PLAIN.image(b.view(np.uint32), IMAGE), d], ARCHITECTURE)
    assert np.array_equal(d, a @ b.T)


def test_rows_along_k_have_no_atoms_of_32_bytes():
    issue = f"mma_tf32(tmem, {WIDE}, {descriptor(128, 32, 2, 2, 1)}u, 0);"
    images = [np.zeros(IMAGE // 4, np.float32)] * 2
    with pytest.raises(emulator.EmulatorError, match="K-major operands do not have"):
        run_cuda(product_kernel("", 0, 32, issue=issue), "kernel", 1, 128, [*images, np.zeros((128, 32), np.float32)], ARCHITECTURE)


def stationary(form: int, more: str = ", 0", accumulate: int = 1) -> str:
    return (
        'asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0; tcgen05.mma.ws.cta_group::1.kind::f16 [%0], %1, %2, %4, p'
        f'{more}; }}" :: "r"(tmem), "l"({named(PLAIN, "as")}), "l"({named(PLAIN, "bs")}), "r"({accumulate}), "r"({form}u) : "memory");'
    )


@pytest.mark.parametrize("m", [32, 64, 128])
def test_a_stationary_product_has_columns_below_each_other(m):
    n, bands = 128, 128 // m
    rng = np.random.default_rng(m)
    a, b, c = (rng.integers(-8, 8, shape).astype(np.float32) for shape in ((m, 16), (n, 16), (m, n)))
    d = np.concatenate(np.split(c, bands, axis=1))
    images = [PLAIN.image(halves(matrix), IMAGE) for matrix in (a, b)]
    issue = stationary(descriptor(m, n, 0, 0, 1))
    run_cuda(product_kernel("", 0, n // bands, issue=issue), "kernel", 1, 128, [*images, d], ARCHITECTURE)
    assert np.array_equal(np.concatenate(np.split(d, bands), axis=1), a @ b.T + c)


@pytest.mark.parametrize(
    ("form", "more", "message"),
    [
        (descriptor(64, 96, 0, 0, 1), "", "n is 64, 128 or 256"),
        (descriptor(64, 64, 0, 0, 1), f", {1 << 36}", "reserved bits"),
        (descriptor(64, 64, 0, 0, 1), f", {4 << 56}", "passes over 4 columns"),
    ],
)
def test_a_stationary_product_that_is_not_understood_says_why(form, more, message, small):
    a, b, c = small
    images = [PLAIN.image(halves(matrix), IMAGE) for matrix in (a, b)]
    with pytest.raises(emulator.EmulatorError, match=message):
        run_cuda(product_kernel("", 0, 32, issue=stationary(form, more)), "kernel", 1, 128, [*images, c.copy()], ARCHITECTURE)


@pytest.mark.parametrize("m", [32, 64])
def test_each_part_of_a_stationary_product_has_its_copy_of_a(m):
    n, copies = 128, 128 // m
    rng = np.random.default_rng(m)
    a, b, c = rng.integers(-8, 8, (copies, m, 16)), rng.integers(-8, 8, (n, 16)), rng.integers(-9, 9, (m, n)).astype(np.float32)
    d = np.concatenate(np.split(c, copies, axis=1))
    issue = (
        stationary(descriptor(m, n, 0, 0, 1)).replace("[%0], %1,", "[%0], [%1],").replace(f'"l"({named(PLAIN, "as")})', '"r"(tmem + 256)')
    )
    issue = FROM_MEMORY[: FROM_MEMORY.index("mma_f16_ts")] + issue
    image = np.resize(halves(a).ravel().view(np.uint8), IMAGE)
    run_cuda(product_kernel("", 0, n // copies, issue=issue), "kernel", 1, 128, [image, PLAIN.image(halves(b), IMAGE), d], ARCHITECTURE)
    wanted = np.concatenate([part @ columns.T for part, columns in zip(a, np.split(b, copies), strict=True)], axis=1) + c
    assert np.array_equal(np.concatenate(np.split(d, copies), axis=1), wanted)


# Bits of a mask from the lowest on, as the PTX ISA prints its examples: 0 where a column of B is used.
MASKS = {
    "example 1": (128, {"skip": 4, "use": 3}, ["0"]),
    "example 2": (128, {"on": 1, "skip": 2, "use": 3}, ["0000111"]),
    "example 3": (64, {"on": 1, "skip": 2, "use": 3, "first": 0b01}, ["1110000", "0000111"]),
    "example 4": (
        32,
        {"on": 1, "skip": 2, "use": 3, "first": 0b0011, "start": (0, 1, 2, 1), "shift": 2},
        ["1110000", "1100001", "0011100", "0001110"],
    ),
}


@pytest.mark.parametrize("which", MASKS)
def test_columns_of_b_may_be_zeros(which):
    m, fields, patterns = MASKS[which]
    n, bands, shift = 128, 128 // m, fields.get("shift", 0)
    mask = fields.get("on", 0) << 39 | fields["skip"] << 40 | fields["use"] << 48 | fields.get("first", 0) << 32 | shift << 56
    mask |= sum(start << 8 * part for part, start in enumerate(fields.get("start", ())))
    rng = np.random.default_rng(m)
    a, b, c = (rng.integers(-8, 8, shape).astype(np.float32) for shape in ((m, 16), (n + shift, 16), (m, n)))
    zeros = np.concatenate([np.array([bit == "1" for bit in (pattern * n)[: n // bands]]) for pattern in patterns])
    d = np.concatenate(np.split(c, bands, axis=1))
    layout = Layout("none", leading=4096, stride=128)
    issue = stationary(descriptor(m, n, 0, 0, 1) | (1 << 30 if shift else 0), f", {mask}").replace(named(PLAIN, "bs"), named(layout, "bs"))
    padded = np.pad(b, ((0, -len(b) % 8), (0, 0)))
    images = [PLAIN.image(halves(a), IMAGE), layout.image(halves(padded), IMAGE)]
    run_cuda(product_kernel("", 0, n // bands, issue=issue), "kernel", 1, 128, [*images, d], ARCHITECTURE)
    wanted = a @ np.where(zeros[:, None], 0, b[shift:]).T + c
    assert np.array_equal(np.concatenate(np.split(d, bands), axis=1), wanted)


def test_one_instruction_adds_to_the_next(small):
    a, b, c = small
    one = f"mma_f16(tmem, {named(PLAIN, 'as')}, {named(PLAIN, 'bs')}, {descriptor(128, 32, 0, 0, 1)}u, 1);"
    d = multiply(halves(a), halves(b), ("f16", "f16"), "f32", 128, 32, c.view(np.uint32), issue=one * 3).view(np.float32)
    assert np.array_equal(d, (3 * (a @ b.T) + c).astype(np.float32))


WRONG = [
    (descriptor(128, 24, 0, 0, 1), "n a multiple of 16"),
    (descriptor(192, 32, 0, 0, 1), "m is 64 or 128"),
    (descriptor(128, 32, 3, 0, 1), "no types of this kind"),
    (descriptor(128, 32, 1, 0, 0), "no types of this kind"),
    (descriptor(128, 32, 0, 0, 1) | 4, "sparse"),
    (descriptor(128, 32, 0, 0, 1, saturate=1), "saturation"),
]


@pytest.mark.parametrize(("form", "message"), WRONG, ids=[message for _, message in WRONG])
def test_instruction_descriptors_without_a_meaning_are_errors(form, message, small):
    a, b, c = small
    images = [PLAIN.image(halves(matrix), IMAGE) for matrix in (a, b)]
    with pytest.raises(emulator.EmulatorError, match=message):
        run_cuda(product_kernel("mma_f16", form, 32), "kernel", 1, 128, [*images, c.copy()], ARCHITECTURE)


MATRICES = {
    "version": ("matrix(as, 2048, 128, 0) & ~(1ull << 46)", "bits 46 to 48 are 000"),
    "layout": ("matrix(as, 2048, 128, 3)", "bits 61 to 63 are 3"),
    "beyond": ("matrix(as, 2048, 65536, 0)", "shared memory has"),
    "reserved": ("matrix(as, 2048, 128, 0) | 1ull << 55", "bits 52 to 60"),
    "row": ("matrix((char*)as + 112, 16, 1024, 2)", "reach beyond their end"),
}


@pytest.mark.parametrize("which", MATRICES)
def test_matrix_descriptors_without_a_meaning_are_errors(which, small):
    a, b, c = small
    bits, message = MATRICES[which]
    issue = f"mma_f16(tmem, {bits}, {named(PLAIN, 'bs')}, {descriptor(128, 32, 0, 0, 1)}u, 0);"
    images = [PLAIN.image(halves(matrix), IMAGE) for matrix in (a, b)]
    with pytest.raises(emulator.EmulatorError, match=message):
        run_cuda(product_kernel("mma_f16", 0, 32, issue=issue), "kernel", 1, 128, [*images, c.copy()], ARCHITECTURE)


# -- loads and stores ------------------------------------------------------------------------------------------

SHAPES = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}


def place_of(shape: str, thread: int, register: int, split: int) -> tuple[int, int]:
    """Lane and column of a register, from the figures of the PTX ISA."""
    if shape == "32x32b":
        return thread, register
    if shape == "16x32bx2":
        return thread % 16, register + (split if thread >= 16 else 0)
    if shape == "16x64b":
        return thread // 4 + 8 * (thread % 2), 2 * register + thread // 2 % 2
    if shape == "16x128b":
        return thread // 4 + 8 * (register % 2), 4 * (register // 2) + thread % 4
    return thread // 4 + 8 * (register // 2 % 2), 8 * (register // 4) + 2 * (thread % 4) + register % 2


def moving_kernel(shape: str, count: int, packed: bool, stores: bool) -> str:
    registers = SHAPES[shape] * count
    list_ = ", ".join(f"%{i}" for i in range(registers))
    split = ", 32" if shape == "16x32bx2" else ""
    if stores:
        word = ".unpack::16b" if packed else ""
        inputs = ", ".join(f'"r"(x[{i}])' for i in range(registers))
        statement = f'asm volatile("tcgen05.st.sync.aligned.{shape}.x{count}{word}.b32 [%{registers}]{split}, {{{list_}}};" :: {inputs}, "r"(mine));'
        move = f"for (int i = 0; i < {registers}; ++i) x[i] = words[t * {registers} + i]; {statement} wait_st();"
    else:
        word = ".pack::16b" if packed else ""
        outputs = ", ".join(f'"=r"(x[{i}])' for i in range(registers))
        statement = f'asm volatile("tcgen05.ld.sync.aligned.{shape}.x{count}{word}.b32 {{{list_}}}, [%{registers}]{split};" : {outputs} : "r"(mine));'
        move = f"{statement} wait_ld(); for (int i = 0; i < {registers}; ++i) words[t * {registers} + i] = x[i];"
    return (
        TCGEN05
        + moves(64)
        + f"""extern "C" __global__ void __launch_bounds__(128) kernel(u32* memory, u32* words) {{
        __shared__ u32 slot; int t = threadIdx.x, warp = t / 32;
        if (warp == 0) tmem_alloc(&slot, 64);
        __syncthreads();
        u32 mine = slot + (warp * 32u << 16), x[{registers}];
        store_columns(mine, memory + t * 64);
        {move}
        load_columns(mine, memory + t * 64);
        __syncthreads();
        if (warp == 0) tmem_free(slot, 64);
    }}"""
    )


@pytest.mark.parametrize("stores", [False, True], ids=["ld", "st"])
@pytest.mark.parametrize("packed", [False, True], ids=["whole", "halves"])
@pytest.mark.parametrize("shape", SHAPES)
def test_registers_and_cells_match(shape, packed, stores):
    count = {"32x32b": 16, "16x64b": 8, "16x128b": 4, "16x256b": 2, "16x32bx2": 8}[shape]
    registers, rng = SHAPES[shape] * count, np.random.default_rng(2)
    memory = rng.integers(0, 1 << 32, (128, 64), dtype=np.uint32)
    words = rng.integers(0, 1 << 32, (128, registers), dtype=np.uint32)
    wanted_memory, wanted = memory.copy(), words.copy()
    for thread in range(128):
        for register in range(registers):
            lane, column = place_of(shape, thread % 32, register, 32)
            lane += thread // 32 * 32
            if not packed:
                cells = [(lane, column)]
            else:
                column -= 32 if shape == "16x32bx2" and thread % 32 >= 16 else 0
                column = 2 * column + (32 if shape == "16x32bx2" and thread % 32 >= 16 else 0)
                cells = [(lane, column), (lane, column + 1)]
            if stores:
                for part, cell in enumerate(cells):
                    wanted_memory[cell] = words[thread, register] if not packed else words[thread, register] >> (16 * part) & 0xFFFF
            else:
                found = [int(memory[cell]) for cell in cells]
                wanted[thread, register] = found[0] if not packed else found[0] & 0xFFFF | (found[1] & 0xFFFF) << 16
    run_cuda(moving_kernel(shape, count, packed, stores), "kernel", 1, 128, [memory, words], ARCHITECTURE)
    assert np.array_equal(memory, wanted_memory)
    assert np.array_equal(words, wanted)


def reducing_kernel(shape: str, reduction: str, kind: str) -> str:
    registers = ", ".join(f"%{i}" for i in range(8))
    outputs = ", ".join(f'"=r"(x[{i}])' for i in range(8))
    split, letter = (", 32" if shape == "16x32bx2" else ""), "f" if kind == "float" else "r"
    statement = f'asm volatile("tcgen05.ld.red.sync.aligned.{shape}.x8.{reduction} {{{registers}}}, %8, [%9]{split};" : {outputs}, "={letter}"(best) : "r"(mine));'
    return (
        TCGEN05
        + moves(64)
        + f"""extern "C" __global__ void __launch_bounds__(128) kernel(u32* memory, u32* words, {kind}* found) {{
        __shared__ u32 slot; int t = threadIdx.x, warp = t / 32;
        if (warp == 0) tmem_alloc(&slot, 64);
        __syncthreads();
        u32 mine = slot + (warp * 32u << 16), x[8]; {kind} best;
        store_columns(mine, memory + t * 64);
        {statement}
        WAIT
        for (int i = 0; i < 8; ++i) words[t * 8 + i] = x[i];
        found[t] = best;
        __syncthreads();
        if (warp == 0) tmem_free(slot, 64);
    }}"""
    )


REDUCTIONS = [
    ("min.u32", "u32"),
    ("max.s32", "int"),
    ("min.f32", "float"),
    ("max.abs.f32", "float"),
    ("min.abs.NaN.f32", "float"),
    ("max.NaN.f32", "float"),
]


def reduced(values: np.ndarray, reduction: str) -> float:
    """The least or the greatest number, as comparisons of Python find it."""
    numbers = [abs(float(x)) if "abs" in reduction else float(x) for x in values]
    if "NaN" in reduction and any(np.isnan(numbers)):
        return float("nan")
    numbers = [x for x in numbers if not np.isnan(x)]
    return (max if reduction.startswith("max") else min)(numbers)


@pytest.mark.parametrize("shape", ["32x32b", "16x32bx2"])
@pytest.mark.parametrize(("reduction", "kind"), REDUCTIONS, ids=[reduction for reduction, _ in REDUCTIONS])
def test_a_load_reduces_the_registers_of_each_thread(reduction, kind, shape):
    dtype = {"u32": np.uint32, "int": np.int32, "float": np.float32}[kind]
    rng = np.random.default_rng(6)
    memory = rng.standard_normal((128, 64)).astype(np.float32) * 100
    memory[rng.random(memory.shape) < 0.05] = np.nan
    words, found = np.zeros((128, 8), np.uint32), np.zeros(128, dtype)
    source = reducing_kernel(shape, reduction, kind).replace("WAIT", "wait_ld();")
    run_cuda(source, "kernel", 1, 128, [memory.view(np.uint32), words, found], "sm_103a", hazards=True)
    for thread in range(128):
        places = [place_of(shape, thread % 32, register, 32) for register in range(8)]
        held = np.array([memory[lane + thread // 32 * 32, column] for lane, column in places], np.float32)
        assert np.array_equal(words[thread], held.view(np.uint32))
        wanted = reduced(held if kind == "float" else held.view(dtype), reduction)
        assert float(found[thread]) == wanted or (np.isnan(wanted) and np.isnan(found[thread]))


def test_a_reduction_used_before_its_wait_is_a_finding():
    source = reducing_kernel("32x32b", "min.u32", "u32").replace("WAIT", "found[t] = best; wait_ld();")
    arrays = [np.zeros((128, 64), np.uint32), np.zeros((128, 8), np.uint32), np.zeros(128, np.uint32)]
    with pytest.raises(emulator.EmulatorError, match=r"tcgen05\.wait::ld has to come first"):
        run_cuda(source, "kernel", 1, 128, arrays, "sm_103a", hazards=True)


def test_a_reduction_does_not_exist_on_sm_100a():
    text = compile_ptx(reducing_kernel("32x32b", "min.u32", "u32").replace("WAIT", "wait_ld();"), "sm_103a").replace(
        ".target sm_103a", ".target sm_100a"
    )
    arrays = [np.zeros((128, 64), np.uint32), np.zeros((128, 8), np.uint32), np.zeros(128, np.uint32)]
    with pytest.raises(emulator.UnknownInstruction, match="does not exist on sm_100a"):
        emulator.launch(text, "kernel", grid=1, block=128, args=arrays)


# -- copies ----------------------------------------------------------------------------------------------------

COPIES = {
    "128x256b": (128, 2),
    "4x256b": (4, 2),
    "128x128b": (128, 1),
    "64x128b.warpx2::02_13": (64, 1),
    "64x128b.warpx2::01_23": (64, 1),
    "32x128b.warpx4": (32, 1),
}
UNPACKED = {"": 0, ".b8x16.b6x16_p32": 6, ".b8x16.b4x16_p64": 4}


def rows_copied(shape: str) -> list[tuple[int, int]]:
    """Lane and source row of everything that a copy writes."""
    if shape == "4x256b":
        return [(32 * row, row) for row in range(4)]
    if shape.endswith("02_13"):
        return [(lane, lane % 64) for lane in range(128)]
    if shape.endswith("01_23"):
        return [(lane, lane % 32 + lane // 64 * 32) for lane in range(128)]
    return [(lane, lane % 32 if shape.endswith("warpx4") else lane) for lane in range(128)]


def unpacked(chunk: np.ndarray, bits: int) -> np.ndarray:
    """Sixteen elements at the start of 16 bytes, one to a byte; four bits in its middle."""
    if not bits:
        return chunk
    number = int.from_bytes(chunk.tobytes(), "little")
    codes_ = [number >> bits * i & (1 << bits) - 1 for i in range(16)]
    return np.array([code << 2 if bits == 4 else code for code in codes_], np.uint8)


@pytest.mark.parametrize("format_", UNPACKED, ids=["bytes", "6 bits", "4 bits"])
@pytest.mark.parametrize("shape", COPIES)
def test_a_copy_writes_rows_to_its_lanes(shape, format_):
    rows, chunks = COPIES[shape]
    rng = np.random.default_rng(8)
    matrix = rng.integers(0, 256, (rows, 16 * chunks)).astype(np.uint8)
    layout = Layout("none", leading=4096, stride=128)
    issue = f"""asm volatile("tcgen05.cp.cta_group::1.{shape}{format_} [%0], %1;" :: "r"(tmem), "l"({named(layout, "as")}) : "memory");"""
    image = layout.image(matrix, IMAGE)
    before = rng.integers(0, 1 << 32, (128, 8), dtype=np.uint32)
    d, wanted = before.copy(), before.copy().view(np.uint8).reshape(128, 32)
    for lane, row in rows_copied(shape):
        for chunk in range(chunks):
            wanted[lane, 16 * chunk : 16 * (chunk + 1)] = unpacked(matrix[row, 16 * chunk : 16 * (chunk + 1)], UNPACKED[format_])
    run_cuda(product_kernel("", 0, 8, issue=issue), "kernel", 1, 128, [image, np.zeros(IMAGE, np.uint8), d], ARCHITECTURE, hazards=True)
    assert np.array_equal(d.view(np.uint8).reshape(128, 32), wanted)
