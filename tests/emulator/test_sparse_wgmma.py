"""wgmma.mma_async.sp: products of a sparse A are those of the dense A that its metadata stand for."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import tensor_core
from gemmgen.emulator.errors import EmulatorError
from gemmgen.kernels.gemm.sparsity import places, random_metadata

from .helpers import run_cuda, wrap_ptx
from .test_sparse_mma import metadata
from .test_tensor_core import DATA
from .test_wgmma import PLAIN, UNSIGNED, integers
from .wgmma import ELEMENT_BYTES, HELPERS, IMAGE_BYTES, SUM_DTYPES, Layout, a_place, accumulator_place, fragments, from_fragments

KERNEL = """
extern "C" __global__ void __launch_bounds__(128) kernel(
    const uint32_t* in_a, const uint32_t* in_b, const uint32_t* in_e, const uint32_t* c, uint32_t* out)
{{
    __shared__ __align__(1024) unsigned char a[{image} / 2];
    __shared__ __align__(1024) unsigned char b[{image}];
    for (int i = threadIdx.x; i < {image} / 8; i += 128) ((uint32_t*)a)[i] = {from_registers} ? 0 : in_a[i];
    for (int i = threadIdx.x; i < {image} / 4; i += 128) ((uint32_t*)b)[i] = in_b[i];
    uint32_t f[4], d[{registers}];
    for (int i = 0; i < 4; ++i) f[i] = in_a[threadIdx.x * 4 + i];
    for (int i = 0; i < {registers}; ++i) d[i] = c[threadIdx.x * {registers} + i];
    const uint32_t e = in_e[threadIdx.x];
    proxy_fence();
    __syncthreads();
    wgmma_fence();
    asm volatile("wgmma.mma_async.sp.sync.aligned.{form} {{{d}}}, {a}, %{first}, %{e}, {selector}, 1{tail};"
        : {outputs} : {a_inputs}, "l"({descriptor_b}), "r"(e));
    wgmma_commit();
    wgmma_wait<0>();
    for (int i = 0; i < {registers}; ++i) out[threadIdx.x * {registers} + i] = d[i];
}}
"""


DEEP = Layout("none", leading=128, stride=512)


def run(
    a: np.ndarray,
    b: np.ndarray,
    e: np.ndarray,
    c: np.ndarray,
    types: tuple[str, str, str],
    selector: int = 0,
    a_layout: Layout = PLAIN,
    b_layout: Layout = DEEP,
    a_registers: bool = False,
) -> np.ndarray:
    """D of one instruction; a [64, k / 2] and b [n, k] are bits, c [64, n] values, e the register of metadata of each lane."""
    sums, a_type, b_type = types
    columns, depth = b.shape
    n = columns // (4 if sums == "f16" else 2)
    majors = f", {int(not a_layout.k_major)}, {int(not b_layout.k_major)}"
    halves = a_type in ("f16", "bf16")
    tail = "" if sums == "s32" else ", 1, 1" + ((majors[3:] if a_registers else majors) if halves else "")
    first = n + (4 if a_registers else 1)
    # Sums are bits in registers, whatever they stand for: a float is read from one by its type.
    source = HELPERS + KERNEL.format(
        image=IMAGE_BYTES,
        from_registers=int(a_registers),
        registers=n,
        form=f"m64n{columns}k{depth}.{sums}.{a_type}.{b_type}",
        d=", ".join(f"%{i}" for i in range(n)),
        outputs=", ".join(f'"+{"f" if sums == "f32" else "r"}"({"(float&)" if sums == "f32" else ""}d[{i}])' for i in range(n)),
        a="{" + ", ".join(f"%{n + i}" for i in range(4)) + "}" if a_registers else f"%{n}",
        a_inputs=", ".join(f'"r"(f[{i}])' for i in range(4)) if a_registers else f'"l"({a_layout.descriptor("a")})',
        descriptor_b=b_layout.descriptor("b"),
        first=first,
        e=first + 1,
        selector=selector,
        tail=tail,
    )
    in_a = fragments(a, a_place(4 // a.itemsize)) if a_registers else a_layout.image(a, IMAGE_BYTES // 2)
    in_c = fragments(c, accumulator_place)
    out = np.zeros_like(in_c)
    arrays = [in_a.view(np.uint32), b_layout.image(b, IMAGE_BYTES).view(np.uint32), e, in_c.view(np.uint32), out.view(np.uint32)]
    run_cuda(source, "kernel", 1, 128, arrays, "compute_90a", hazards=True)
    return from_fragments(out, columns)


def registers_of(words: np.ndarray, size: int, selector: int) -> np.ndarray:
    """The register of each lane, of metadata (64, k / 16); lanes that the selector leaves out have others."""
    nibbles = (words[..., None] >> (4 * np.arange(4)) & 15).reshape(64, -1)
    return np.concatenate([metadata(nibbles[16 * warp : 16 * warp + 16], size, selector) for warp in range(4)])


def case(types: tuple[str, str, str], columns: int, selector: int = 0, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Bits of A, B, C, registers of metadata, and the product of the dense matrix."""
    sums, a_type, b_type = types
    size = ELEMENT_BYTES[a_type]
    kept = 32 // size
    (a, x), (b, y) = integers((64, kept), a_type, seed), integers((columns, 2 * kept), b_type, seed + 1)
    words = random_metadata((64, 2 * kept // 16), np.random.default_rng(seed + 3))
    dense = np.zeros((64, 2 * kept))
    np.put_along_axis(dense, places(words), x.astype(np.float64), axis=1)
    c = np.random.default_rng(seed + 2).integers(-99, 99, (64, columns)).astype(SUM_DTYPES[sums])
    return a, b, c, registers_of(words, size, selector), dense @ y.T.astype(np.float64)


TYPES = [
    (("f32", "f16", "f16"), 0),
    (("f32", "bf16", "bf16"), 1),
    (("f16", "f16", "f16"), 1),
    (("s32", "s8", "s8"), 0),
    (("s32", "u8", "s8"), 0),
]


@pytest.mark.parametrize("a_registers", [False, True])
@pytest.mark.parametrize(("types", "selector"), TYPES)
def test_sparse_products_are_those_of_the_dense(types: tuple[str, str, str], selector: int, a_registers: bool) -> None:
    a, b, c, e, product = case(types, 48, selector)
    np.testing.assert_array_equal(run(a, b, e, c, types, selector, a_registers=a_registers), (product + c).astype(c.dtype))


B_LAYOUTS = [
    Layout("64B", stride=512),
    Layout("128B", stride=1024),
    Layout("128B", k_major=False, leading=4096, stride=1024),
    Layout("none", k_major=False, leading=2048, stride=128),
]


@pytest.mark.parametrize("layout", B_LAYOUTS, ids=str)
def test_b_is_twice_as_deep_in_every_layout(layout: Layout) -> None:
    types = ("f32", "bf16", "bf16")
    a, b, c, e, product = case(types, 64)
    np.testing.assert_array_equal(run(a, b, e, c, types, a_layout=Layout("128B"), b_layout=layout), product + c)


def test_a_row_of_b_must_hold_an_instruction() -> None:
    types = ("f32", "bf16", "bf16")
    a, b, c, e, _ = case(types, 16)
    with pytest.raises(EmulatorError, match="64 bytes along k reach beyond their end"):
        run(a, b, e, c, types, b_layout=Layout("32B", stride=256))


@pytest.mark.parametrize("kind", ["bf16", "e4m3"])
def test_kept_products_are_summed_in_one_step(kind: str) -> None:
    """Sums of numbers of many magnitudes, cut as those of a dense product of half the depth are."""
    size, kept = ELEMENT_BYTES[kind], 32 // ELEMENT_BYTES[kind]
    rng = np.random.default_rng(5)
    a, b = (
        rng.integers(0, 1 << (8 * size), shape).astype(UNSIGNED[size]) & 0x9F9F >> (16 - 8 * size) for shape in ((64, kept), (8, 2 * kept))
    )
    words = np.tile(random_metadata((1, 2 * kept // 16), rng), (64, 1))
    got = run(a, b, registers_of(words, size, 0), np.zeros((64, 8), np.float32), ("f32", kind, kind))
    left, right = tensor_core.factor(a, kind), tensor_core.factor(np.ascontiguousarray(b[:, places(words)[0]]), kind)
    step = tensor_core.FP8_STEP if size == 1 else tensor_core.FLOAT_STEP
    np.testing.assert_array_equal(got.view(np.uint32), tensor_core.multiply_float(left, right, np.zeros((64, 8), np.uint32), step))


@pytest.mark.parametrize("kind", ["bf16", "f16", "e4m3"])
def test_sums_equal_those_of_an_h200(kind: str) -> None:
    """Products 1024 deep by ``strategy: wgmma``, of numbers of many magnitudes; sums of e4m3 leave the tensor core after every 128 of k."""
    with np.load(DATA / "sparse_wgmma_h200.npz") as arrays:
        a, b, words, c = (arrays[f"{kind}_{name}"] for name in ("a", "b", "metadata", "c"))
    at, kept = places(words), 32 // ELEMENT_BYTES[kind]
    step = tensor_core.FP8_STEP if kind == "e4m3" else tensor_core.FLOAT_STEP
    sums, total = np.zeros((len(a), 1, len(b)), np.uint32), np.zeros((len(a), len(b)), np.float32)
    for first in range(0, a.shape[1], kept):
        chosen = slice(first, first + kept)
        rows = np.ascontiguousarray(b[:, at[:, chosen]].transpose(1, 0, 2))
        left = tensor_core.factor(np.ascontiguousarray(a[:, None, chosen]), kind)
        sums = tensor_core.multiply_float(left, tensor_core.factor(rows, kind), sums, step)
        if kind == "e4m3" and (first + kept) % 64 == 0:
            total, sums = total + sums[:, 0].view(np.float32), np.zeros_like(sums)
    np.testing.assert_array_equal(total.view(np.uint32) if kind == "e4m3" else sums[:, 0], c)


def test_left_out_elements_of_b_may_be_infinite() -> None:
    types = ("f32", "f16", "f16")
    a, b, c, _, _ = case(types, 16)
    kept = b.copy()
    b[:, 2::4], b[:, 3::4] = 0x7C00, 0x7E00
    e = registers_of(np.full((64, 2), 0x4444), 2, 0)
    got = run(a, b, e, c, types)
    assert np.isfinite(got).all()
    np.testing.assert_array_equal(got, run(a, kept, e, c, types))


def test_zeros_may_have_metadata_of_zeros() -> None:
    """As CUTLASS's compressor writes them; a value that is not zero needs a place."""
    types = ("f32", "f16", "f16")
    a, b, c, _, _ = case(types, 16)
    a = np.zeros_like(a)
    zeros, named = (registers_of(np.full((64, 2), words), 2, 0) for words in (0, 0x4444))
    np.testing.assert_array_equal(run(a, b, zeros, c, types), run(a, b, named, c, types))
    a[5, 3] = 0x3C00
    with pytest.raises(EmulatorError, match="metadata name elements twice"):
        run(a, b, zeros, c, types)


def test_metadata_that_name_an_element_twice_are_an_error() -> None:
    types = ("f32", "f16", "f16")
    a, b, c, _, _ = case(types, 16)
    with pytest.raises(EmulatorError, match="metadata name elements twice"):
        run(a, b, registers_of(np.full((64, 2), 0x5555), 2, 0), c, types)


@pytest.mark.parametrize(
    "text",
    [
        "m64n8k16.f32.bf16.bf16 {%f, %g, %h, %i}, %l, %l, %e, 0, %p, 1, 1, 0, 0",
        "m64n8k32.f32.bf16.bf16 {%f, %g, %h, %i}, %l, %l, %e, 2, %p, 1, 1, 0, 0",
        "m64n8k64.s32.s8.s8 {%r, %s, %t, %u}, %l, %l, %e, 1, %p",
        "m64n8k32.f32.bf16.bf16 {%f, %g, %h, %i}, %l, %l, %e, %e, %p, 1, 1, 0, 0",
        "m64n8k32.f32.bf16.bf16 {%f, %g, %h, %i}, %l, %l, %p, 1, 1, 0, 0",
    ],
)
def test_other_forms_are_refused(text: str) -> None:
    registers = ".reg .f32 %f, %g, %h, %i; .reg .b32 %e, %r, %s, %t, %u; .reg .b64 %l; .reg .pred %p;"
    with pytest.raises(emulator.UnknownInstruction):
        emulator.launch(wrap_ptx(f"{registers} wgmma.mma_async.sp.sync.aligned.{text}; ret;"), grid=1, block=128)


def test_metadata_must_stay_until_the_wait() -> None:
    """On an H200, results were wrong where the register was loaded again while the product ran."""
    product = "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16 {%f, %g, %h, %i}, %l, %l, %e, 0, %p, 1, 1, 0, 0"
    registers = ".reg .f32 %f, %g, %h, %i; .reg .b32 %e; .reg .b64 %l; .reg .pred %p; .shared .align 1024 .b8 s[8192];"
    begin = "mov.u64 %l, s; shr.u64 %l, %l, 4; or.b64 %l, %l, 0x4000004000000000; mov.b32 %e, 0x44444444; setp.eq.u32 %p, 0, 1;"
    body = f"{registers} {begin} wgmma.fence.sync.aligned; {product}; wgmma.commit_group.sync.aligned; "
    wait = "wgmma.wait_group.sync.aligned 0;"
    emulator.launch(wrap_ptx(f"{body} {wait} mov.b32 %e, 1; ret;"), grid=1, block=128)
    with pytest.raises(EmulatorError, match="is written while a wgmma in flight owns it as metadata"):
        emulator.launch(wrap_ptx(f"{body} mov.b32 %e, 1; {wait} ret;"), grid=1, block=128)
