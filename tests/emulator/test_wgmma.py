"""wgmma: every type, shape, layout and operand form, against an H200's results and against NumPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import matrix_descriptor, tensor_core
from gemmgen.emulator.counters import CounterObserver
from gemmgen.hardware.tensor_map import swizzled

from .helpers import run_cuda, wrap_ptx
from .test_tensor_core import measured
from .wgmma import ELEMENT_BYTES, IMAGE_BYTES, SUM_DTYPES, Layout, a_place, accumulator_place, fragments, from_fragments, kernel

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}
PLAIN = Layout("none", leading=128, stride=256)


def run(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    types: tuple[str, str, str],
    a_layout: Layout = PLAIN,
    b_layout: Layout = PLAIN,
    immediates: str | None = None,
    a_registers: bool = False,
    scale_d: int = 1,
    satfinite: str = "",
    body: str | None = None,
    **more,
) -> np.ndarray:
    """D of one wgmma; a [64, k] and b [n, k] are bits, c [64, n] values."""
    sums, a_type, b_type = types
    columns, depth = b.shape
    if immediates is None:
        majors = f", {int(not a_layout.k_major)}, {int(not b_layout.k_major)}"
        if a_registers:
            majors = majors[3:]
        immediates = "" if sums == "s32" else "1, 1" + (majors if a_type in ("f16", "bf16") else "")
    form = f"m64n{columns}k{depth}{satfinite}.{sums}.{a_type}.{b_type}"
    source = kernel(form, sums, columns, a_layout, b_layout, immediates, a_registers, body)
    in_a = fragments(a, a_place(4 // a.itemsize)) if a_registers else a_layout.image(a, IMAGE_BYTES // 2)
    in_c = fragments(c, accumulator_place)
    out = np.zeros_like(in_c)
    more = {"hazards": True, **more}
    run_cuda(
        source,
        "kernel",
        1,
        128,
        [in_a.view(np.uint32), b_layout.image(b, IMAGE_BYTES).view(np.uint32), in_c, out, scale_d],
        "compute_90a",
        **more,
    )
    return from_fragments(out, columns)


def integers(shape: tuple[int, int], type_name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Small integers: bits of a type, and values."""
    rng = np.random.default_rng(seed)
    if type_name in ("s8", "u8"):
        values = rng.integers(-128 if type_name == "s8" else 0, 128 if type_name == "s8" else 256, shape)
        return values.astype(np.uint8), values
    if type_name in ("e4m3", "e5m2"):
        bits = rng.integers(0, 256, shape).astype(np.uint8) & np.uint8(0xBF)
        return bits, tensor_core.factor(bits, type_name).values
    values = rng.integers(-8, 9, shape).astype(np.float32)
    bits = {
        "f16": values.astype(np.float16).view(np.uint16),
        "bf16": (values.view(np.uint32) >> 16).astype(np.uint16),
        "tf32": values.view(np.uint32),
    }[type_name]
    return bits, values


def case(types: tuple[str, str, str], columns: int, seed: int = 0):
    sums, a_type, b_type = types
    depth = 32 // ELEMENT_BYTES[a_type]
    (a, x), (b, y) = integers((64, depth), a_type, seed), integers((columns, depth), b_type, seed + 1)
    c = np.random.default_rng(seed + 2).integers(-99, 99, (64, columns)).astype(SUM_DTYPES[sums])
    return a, b, c, x.astype(np.float64) @ y.T.astype(np.float64)


@pytest.mark.parametrize("a_registers", [False, True])
@pytest.mark.parametrize("name", [*tensor_core.FLOATS, "sub_bf16", "sub_tf32", "acc16_f16"])
def test_equals_the_h200(name, a_registers):
    arrays, type_name = measured(name), name.split("_")[-1]
    half = name == "acc16_f16"
    sums = "f16" if half else "f32"
    dtype = np.uint16 if half else np.uint32
    for index in range(0, len(arrays["a"]), 6):
        c = arrays["c"][index].astype(dtype).view(SUM_DTYPES[sums])
        got = run(arrays["a"][index], arrays["b"][index], c, (sums, type_name, type_name), a_registers=a_registers)
        np.testing.assert_array_equal(got.view(dtype), arrays["wgmma"][index])


TYPES = [
    ("f32", "f16", "f16"),
    ("f16", "f16", "f16"),
    ("f32", "bf16", "bf16"),
    ("f32", "tf32", "tf32"),
    ("s32", "s8", "s8"),
    ("s32", "u8", "s8"),
    ("s32", "s8", "u8"),
    ("s32", "u8", "u8"),
]


@pytest.mark.parametrize("a_registers", [False, True])
@pytest.mark.parametrize("types", TYPES)
def test_small_integers_are_exact_in_every_type(types, a_registers):
    a, b, c, product = case(types, 48)
    np.testing.assert_array_equal(run(a, b, c, types, a_registers=a_registers), (product + c).astype(c.dtype))


@pytest.mark.parametrize("types", [("f32", "e4m3", "e5m2"), ("f32", "e5m2", "e4m3"), ("f16", "e4m3", "e4m3"), ("f16", "e5m2", "e4m3")])
def test_mixed_pairs_of_fp8_read_each_operand_by_its_type(types):
    a, b, _, _ = case(types, 16)
    a &= np.uint8(0x9F)
    b &= np.uint8(0x9F)
    c = np.zeros((64, 16), SUM_DTYPES[types[0]])
    got = run(a, b, c, types)
    exact = tensor_core.factor(a, types[1]).values.astype(np.float64) @ tensor_core.factor(b, types[2]).values.T.astype(np.float64)
    np.testing.assert_allclose(got, exact, atol=np.abs(exact).max() * 2**-8)


K_MAJOR = [
    Layout("none", leading=128, stride=256),
    Layout("none", leading=4096, stride=128),
    Layout("32B", stride=256),
    Layout("64B", stride=512),
    Layout("128B", stride=1024),
    Layout("128B", stride=1024 + 1024, leading=0),
]
MN_MAJOR = [
    Layout("none", k_major=False, leading=2048, stride=128),
    Layout("32B", k_major=False, leading=256, stride=4096),
    Layout("64B", k_major=False, leading=1024, stride=512),
    Layout("128B", k_major=False, leading=2048, stride=1024),
]


@pytest.mark.parametrize("layout", [*K_MAJOR, *MN_MAJOR], ids=str)
@pytest.mark.parametrize("which", ["a", "b"])
def test_16_bit_operands_in_every_layout(layout, which):
    types = ("f32", "bf16", "bf16")
    a, b, c, product = case(types, 64)
    layouts = {f"{which}_layout": layout}
    np.testing.assert_array_equal(run(a, b, c, types, **layouts), product + c)


@pytest.mark.parametrize("layout", K_MAJOR, ids=str)
@pytest.mark.parametrize("types", [("f32", "tf32", "tf32"), ("s32", "s8", "u8")])
def test_other_operands_in_every_layout(layout, types):
    a, b, c, product = case(types, 32)
    np.testing.assert_array_equal(run(a, b, c, types, layout, layout), product + c)


@pytest.mark.parametrize(("mode", "swizzle"), list(enumerate(("none", "128B", "64B", "32B"))))
def test_swizzles_are_those_of_tensor_copies(mode, swizzle):
    span = matrix_descriptor.SPANS[mode]
    descriptor = matrix_descriptor.decode(2048 >> 4 | 8 * span >> 4 << 32 | mode << 62)
    got = matrix_descriptor.chunks(descriptor, 64, span // 16, k_major=True)
    linear = 2048 + np.arange(64)[:, None] * span + np.arange(span // 16) * 16
    np.testing.assert_array_equal(got, np.vectorize(lambda address: swizzled(int(address), swizzle))(linear))


@pytest.mark.parametrize("columns", [8, 24, 136, 256])
def test_every_width(columns):
    types = ("f32", "f16", "f16")
    a, b, c, product = case(types, columns)
    np.testing.assert_array_equal(run(a, b, c, types), product + c)


@pytest.mark.parametrize(("immediates", "sign"), [("-1, 1, 0, 0", -1), ("1, -1, 0, 0", -1), ("-1, -1, 0, 0", 1)])
def test_operands_can_be_negated(immediates, sign):
    types = ("f32", "f16", "f16")
    a, b, c, product = case(types, 16)
    np.testing.assert_array_equal(run(a, b, c, types, immediates=immediates), sign * product + c)


SIGNS = (1, -1)
IMMEDIATES = [
    (sums, kind, signs, majors, a_registers)
    for sums, kind, transposable in (
        ("f32", "f16", True),
        ("f16", "f16", True),
        ("f32", "bf16", True),
        ("f32", "tf32", False),
        ("f32", "e4m3", False),
        ("f16", "e5m2", False),
    )
    for a_registers in (False, True)
    for signs in product(SIGNS, SIGNS)
    for majors in (product((0, 1) if not a_registers else (0,), (0, 1)) if transposable else [(0, 0)])
]
"""Signs of A and B and, of 16-bit types, their major orders, A from registers being k-major: all that the ISA allows."""


@pytest.mark.parametrize(("sums", "kind", "signs", "majors", "a_registers"), IMMEDIATES)
def test_every_immediate(sums, kind, signs, majors, a_registers):
    """A sum with signs is that of operands negated beforehand; one in another major order that of the same numbers."""
    types = (sums, kind, kind)
    a, b, c, _ = case(types, 16)
    sign_bit = 1 << (8 * a.itemsize - 1)
    negated = [operand ^ a.dtype.type(sign_bit) if sign < 0 else operand for operand, sign in zip((a, b), signs, strict=True)]
    layouts = [MN_MAJOR[0] if major else PLAIN for major in majors]
    words = [*signs, *(majors[a_registers:] if kind in ("f16", "bf16") else ())]
    got = run(a, b, c, types, *layouts, immediates=", ".join(map(str, words)), a_registers=a_registers)
    np.testing.assert_array_equal(got, run(*negated, c, types))


REFUSED_IMMEDIATES = {
    "f32.bf16.bf16": ["0, 1, 0, 0", "1, 0, 0, 0", "1, 1, 2, 0", "1, 1, 0, -1", "1, 1", "1, 1, 0", "1, 1, 0, 0, 0", ""],
    "f32.tf32.tf32": ["1, 2", "1", "1, 1, 0", ""],
    "f32.e4m3.e5m2": ["-2, 1", "1, 1, 1, 0", ""],
    "s32.s8.u8": ["1, 1", "1", "1, 1, 0, 0"],
}


@pytest.mark.parametrize(("types", "immediates"), [(types, words) for types, rows in REFUSED_IMMEDIATES.items() for words in rows])
def test_other_immediates_are_refused(types, immediates):
    sums, kind = types.split(".")[:2]
    letter, depth = "r" if sums == "s32" else "f", 32 // ELEMENT_BYTES[kind]
    form = f"wgmma.mma_async.sync.aligned.m64n8k{depth}.{types} {{%{letter}0, %{letter}1, %{letter}2, %{letter}3}}, %l, %l, %p"
    body = f".reg .f32 %f<4>; .reg .b32 %r<4>; .reg .b64 %l; .reg .pred %p; {form}{immediates and ', ' + immediates}; ret;"
    with pytest.raises(emulator.UnknownInstruction):
        emulator.launch(wrap_ptx(body), grid=1, block=128)


def test_scale_d_zero_ignores_the_accumulators():
    types = ("f32", "f16", "f16")
    a, b, c, product = case(types, 16)
    np.testing.assert_array_equal(run(a, b, np.full_like(c, np.nan), types, scale_d=0), product)


@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
def test_integer_sums_wrap_or_saturate(satfinite):
    types = ("s32", "u8", "u8")
    a, b, c, product = case(types, 16)
    c[:] = 2**31 - 1
    exact = product.astype(np.int64) + c
    want = np.minimum(exact, 2**31 - 1) if satfinite else exact.astype(np.int32)
    np.testing.assert_array_equal(run(a, b, c, types, satfinite=satfinite), want)


@pytest.mark.parametrize("schedule", [emulator.RandomWarps(1), emulator.RandomCrowds(2)])
def test_warps_one_by_one(schedule):
    types = ("f32", "bf16", "bf16")
    a, b, c, product = case(types, 32)
    np.testing.assert_array_equal(run(a, b, c, types, schedule=schedule), product + c)


def test_operations_on_the_same_accumulators_follow_each_other():
    body = """
    wgmma_fence();
    mma(d, A, B, 0);
    wgmma_commit();
    mma(d, A, B, 1);
    mma(d, A, B, 1);
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_wait<0>();"""
    types = ("f32", "bf16", "bf16")
    a, b, c, product = case(types, 8)
    np.testing.assert_array_equal(run(a, b, c, types, body=body), 3 * product)


@pytest.mark.parametrize(("a_registers", "shared_bytes"), [(False, 2048 + 512), (True, 512)])
def test_counters_know_operations(a_registers, shared_bytes):
    types = ("f32", "bf16", "bf16")
    a, b, c, _ = case(types, 16)
    observer = CounterObserver()
    run(a, b, c, types, a_registers=a_registers, observers=[observer])
    total = observer.counters().total
    assert total.to_json()["tensor"] == {"wgmma": {"operations": 1, "shared_bytes": shared_bytes}}
    assert total.instructions["mma"] == 4 * 4


@pytest.mark.parametrize(
    "text",
    [
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.bf16.bf16 {%f, %g, %h, %i}, %l, %l, %p, 1, 1, 0, 0",
        "wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16 {%f, %g, %h, %i}, %l, %l, %p, 1, 1, 0, 0",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.f16 {%f, %g, %h, %i}, %l, %l, %p, 1, 1, 0, 0",
        "wgmma.mma_async.sync.aligned.m64n8k16.f16.bf16.bf16 {%f, %g}, %l, %l, %p, 1, 1, 0, 0",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f, %g, %h}, %l, %l, %p, 1, 1, 0, 0",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f, %g, %h, %f}, %l, %l, %p, 1, 1, 0, 0",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f, %g, %h, %i}, %l, %l, %p, 2, 1, 0, 0",
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%f, %g, %h, %i}, %l, %l, %p, 1, 1, 0, 0",
        "wgmma.mma_async.sync.aligned.m64n40k32.s32.s8.s8 {%f, %g, %h, %i}, %l, %l, %p",
        "wgmma.mma_async.aligned.m64n8k16.f32.bf16.bf16 {%f, %g, %h, %i}, %l, %l, %p, 1, 1, 0, 0",
    ],
)
def test_other_forms_are_refused(text):
    body = f".reg .f32 %f, %g, %h, %i; .reg .b64 %l; .reg .pred %p; {text}; ret;"
    with pytest.raises(emulator.UnknownInstruction):
        emulator.launch(wrap_ptx(body), grid=1, block=128)
