"""tcgen05.mma.sp: A holds half of the elements along k, and metadata in tensor memory say which."""

# ruff: noqa: E501 (CUDA)

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from gemmgen import emulator

from .helpers import run_cuda
from .tcgen05 import IMAGE, PLAIN, TCGEN05, core_matrices, descriptor, moves, named, product_kernel
from .test_block_scaled_mma import fused
from .test_tcgen05 import ACROSS, CODES, SUMS, SWIZZLED, codes, single, stored, value
from .test_tcgen05_scales import elements, factor, reference
from .wgmma import Layout

ARCHITECTURE = "sm_100a"
M, N = 128, 32
BITS = {"f16": 16, "bf16": 16, "tf32": 32}
KIND = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "s8": "i8"}
METADATA = 8192
SCALES = 12288
"""Bytes of the image of A at which the metadata and the scales begin."""
TWO_OF_FOUR = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 1), (2, 3)]


def chosen_places(rows: int, depth: int, bits: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random nibbles [rows, nibbles], and the values of k that they name [rows, depth / 2]; ``bits`` of an element."""
    rng = np.random.default_rng(seed)
    chunk = {32: 2, 4: 8}.get(bits, 4)
    nibbles = np.zeros((rows, depth // chunk), np.int64)
    places = np.zeros((rows, depth // 2), np.int64)
    for row in range(rows):
        found: list[int] = []
        for part in range(depth // chunk):
            first = part * chunk
            if bits == 32:
                second = int(rng.integers(0, 2))
                nibbles[row, part] = 0b1110 if second else 0b0100
                found.append(first + second)
                continue
            low, high = TWO_OF_FOUR[rng.integers(0, len(TWO_OF_FOUR))]
            nibbles[row, part] = low | high << 2
            found += [first + low, first + high] if bits != 4 else [first + 2 * pair + k for pair in (low, high) for k in (0, 1)]
        places[row] = found
    return nibbles, places


def metadata_words(nibbles: np.ndarray, bits: int, lanes: np.ndarray, selector: int) -> np.ndarray:
    """Words of two columns of all lanes, written down from the figures of the PTX ISA."""
    words = np.zeros((128, 2), np.uint32)
    for row, of_row in enumerate(nibbles.tolist()):
        for place, nibble in enumerate(of_row):
            if bits in (16, 32):
                lane = lanes[row // 16 * 16 + row % 8 + 8 * (place // 4)]
                words[lane, selector] |= np.uint32(nibble << 4 * (place % 4) + 16 * (row % 16 // 8))
            else:
                words[lanes[row], place // 8] |= np.uint32(nibble << 4 * (place % 8))
    return words


def rows_in_lanes(m: int, stationary: bool = False) -> np.ndarray:
    return np.arange(m) if m == 128 or stationary else np.arange(m) // 16 * 32 + np.arange(m) % 16


ISSUE = """}
    tmem_st(mine + 256, ((const u32*)a)[%d + t * 2]); tmem_st(mine + 257, ((const u32*)a)[%d + t * 2 + 1]);
    wait_st(); before_sync(); __syncthreads(); after_sync();
    if (t == 0) { %s asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; tcgen05.mma%s.cta_group::1.%s [%%0], %s, %%2, [%%3], %%4, %sp%s;}"
        :: "r"(tmem), %s, "l"(%s), "r"(tmem + %s), "r"(%uu), "r"(tmem + 260), "r"(tmem + 264) : "memory");"""


def issue(kind: str, form: int, b: Layout, *, name=".sp", a="", first="", scales="", tail="", at="256") -> str:
    a = a or f'"l"({named(PLAIN, "as")})'
    word = METADATA // 4
    return ISSUE % (word, word, first, name, kind, "[%1]" if a.startswith('"r"') else "%1", scales, tail, a, named(b, "bs"), at, form)


def image_of_a(matrix: np.ndarray, words: np.ndarray) -> np.ndarray:
    image = PLAIN.image(matrix, IMAGE).view(np.uint8).copy()
    image[METADATA : METADATA + words.nbytes] = words.view(np.uint8).ravel()
    return image


def codes_of(name: str, rows: int, seed: int, depth: int, wild: bool = False) -> np.ndarray:
    return np.concatenate([codes(name, rows, seed + part, wild) for part in range(2)], axis=1)[:, :depth]


def exact(a, b, places, types, sums, c, at) -> list[int]:
    """Results by the model of a dense step over the products that the metadata name."""
    found = []
    for i, j in at:
        terms = []
        for left, k in zip(a[i].tolist(), places[i].tolist(), strict=True):
            (x, ex), (y, ey) = value(left, types[0]), value(int(b[j, k]), types[1])
            finite = isinstance(x, Fraction) and isinstance(y, Fraction)
            terms.append((x * y if finite else float(x) * float(y), ex + ey))
        terms.append(value(int(c[i, j]) & 0xFFFF, "f16") if sums == "f16" else single(int(c[i, j])))
        found.append(fused(terms, 25, sums == "f16"))
    return found


FORMS = [
    (("f16", "f16"), "f32", 128, 0, "none"),
    (("f16", "f16"), "f16", 64, 1, "128B"),
    (("bf16", "bf16"), "f32", 128, 1, "64B"),
    (("tf32", "tf32"), "f32", 128, 1, "none"),
    (("tf32", "tf32"), "f32", 64, 0, "none"),
    (("e4m3", "e5m2"), "f32", 128, 0, "none"),
    (("e2m1", "e4m3"), "f32", 64, 0, "128B"),
    (("e2m3", "e2m1"), "f32", 128, 0, "none"),
]


@pytest.mark.parametrize("wild", [False, True], ids=["alike", "any"])
@pytest.mark.parametrize(
    ("types", "sums", "m", "selector", "mode"), FORMS, ids=lambda each: "-".join(each) if isinstance(each, tuple) else each
)
def test_results_are_those_of_the_products_that_are_named(types, sums, m, selector, mode, wild):
    bits = BITS.get(types[0], 8)
    depth = 512 // bits
    layout = PLAIN if mode == "none" else SWIZZLED[mode]
    a, b = codes(types[0], m, 3, wild)[:, : depth // 2], codes_of(types[1], N, 5, depth, wild)
    nibbles, places = chosen_places(m, depth, bits, 7)
    words = metadata_words(nibbles, bits, rows_in_lanes(m), selector)
    form = descriptor(m, N, CODES[types[0]], CODES[types[1]], SUMS[sums]) | 4 | selector
    rng = np.random.default_rng(9)
    c = (
        rng.integers(0, 1 << 16, (m, N)).astype(np.uint32)
        if sums == "f16"
        else rng.standard_normal((m, N)).astype(np.float32).view(np.uint32)
    )
    d = np.zeros((128, N), np.uint32)
    d[rows_in_lanes(m)] = c
    kind = f"kind::{KIND.get(types[0], 'f8f6f4')}"
    source = product_kernel("", 0, N, issue=issue(kind, form, layout))
    run_cuda(
        source,
        "kernel",
        1,
        128,
        [image_of_a(stored(a, types[0]), words), layout.image(stored(b, types[1]), IMAGE), d],
        ARCHITECTURE,
        hazards=True,
    )
    at = [(i, (i * 5) % N) for i in range(m)]
    assert [int(d[rows_in_lanes(m)][place]) for place in at] == exact(a, b, places, types, sums, c, at)


def small_case(m: int = M, n: int = N, bits: int = 16, stationary: bool = False, copies: int = 1):
    """A, B, C of small integers, the words of metadata, and the exact results."""
    rng = np.random.default_rng(13)
    depth = 512 // bits
    a, b, c = (rng.integers(-8, 8, shape) for shape in ((m, depth // 2), (n, depth), (m, n)))
    words = np.zeros((128, 2), np.uint32)
    parts = []
    for copy in range(copies):
        nibbles, places = chosen_places(m, depth, bits, 20 + copy)
        words |= metadata_words(nibbles, bits, rows_in_lanes(m, stationary) + copy * m, 0)
        dense = np.zeros((m, depth), np.int64)
        np.put_along_axis(dense, places, a, axis=1)
        columns = slice(copy * n // copies, (copy + 1) * n // copies)
        parts.append(dense @ b[columns].T + c[:, columns])
    return a, b, c, words, np.concatenate(parts, axis=1)


def test_integers_are_exact():
    a, b, c, words, wanted = small_case(bits=8)
    d = c.astype(np.int32)
    form = descriptor(M, N, 1, 1, 2) | 4
    images = [image_of_a(a.astype(np.int8).view(np.uint8), words), PLAIN.image(b.astype(np.int8).view(np.uint8), IMAGE)]
    run_cuda(product_kernel("", 0, N, issue=issue("kind::i8", form, PLAIN)), "kernel", 1, 128, [*images, d], ARCHITECTURE)
    assert np.array_equal(d, wanted)


def halves(matrix: np.ndarray) -> np.ndarray:
    return matrix.astype(np.float16).view(np.uint16)


@pytest.mark.parametrize("m", [32, 64, 128])
def test_each_part_of_a_stationary_product_has_its_own_metadata(m):
    n, copies = 128, 128 // m
    a, b, c, words, wanted = small_case(m, n, stationary=True, copies=copies)
    d = np.concatenate(np.split(c.astype(np.float32), copies, axis=1))
    form = descriptor(m, n, 0, 0, 1) | 4
    text = issue("kind::f16", form, PLAIN, name=".ws.sp", tail=", 0")
    images = [image_of_a(halves(a), words), PLAIN.image(halves(b), IMAGE)]
    run_cuda(product_kernel("", 0, n // copies, issue=text), "kernel", 1, 128, [*images, d], ARCHITECTURE)
    assert np.array_equal(np.concatenate(np.split(d, copies), axis=1), wanted)


def test_b_may_lie_across_its_rows():
    a, b, c, words, wanted = small_case(n=64)
    d = c.astype(np.float32)
    form = descriptor(M, 64, 0, 0, 1, b_major=1) | 4
    images = [image_of_a(halves(a), words), ACROSS["128B"].image(halves(b), IMAGE)]
    run_cuda(product_kernel("", 0, 64, issue=issue("kind::f16", form, ACROSS["128B"])), "kernel", 1, 128, [*images, d], ARCHITECTURE)
    assert np.array_equal(d, wanted)


def test_a_may_come_from_tensor_memory():
    a, b, c, words, wanted = small_case()
    d = c.astype(np.float32)
    text = issue("kind::f16", descriptor(M, N, 0, 0, 1) | 4, PLAIN, a='"r"(tmem + 300)')
    text = text.replace("wait_st();", "for (int w = 0; w < 8; ++w) tmem_st(mine + 300 + w, ((const u32*)a)[t * 8 + w]);\n    wait_st();", 1)
    image = np.zeros(IMAGE, np.uint8)
    image[: a.size * 2] = halves(a).ravel().view(np.uint8)
    image[METADATA : METADATA + words.nbytes] = words.view(np.uint8).ravel()
    run_cuda(product_kernel("", 0, N, issue=text), "kernel", 1, 128, [image, PLAIN.image(halves(b), IMAGE), d], ARCHITECTURE)
    assert np.array_equal(d, wanted)


SCALED = {
    "mxf8": ("kind::mxf8f6f4.block_scale", "e4m3", 1, "ue8m0", 8),
    "mxf4": ("kind::mxf4.block_scale.scale_vec::2X", "e2m1", 2, "ue8m0", 4),
    "nvf4": ("kind::mxf4nvf4.block_scale.scale_vec::4X", "e2m1", 4, "ue4m3", 4),
}


@pytest.mark.parametrize("name", SCALED)
def test_block_scales_belong_to_twice_as_many_values_of_k(name):
    kind, element, vector, scale_type, bits = SCALED[name]
    rng = np.random.default_rng(31)
    a, b = rng.integers(0, 256, (M, 32)).astype(np.uint8), rng.integers(0, 256, (N, 64)).astype(np.uint8)
    if element == "e4m3":
        a[a & 0x7F == 0x7F], b[b & 0x7F == 0x7F] = 0, 0
    low, high = (120, 136) if scale_type == "ue8m0" else (0x28, 0x48)
    scales = [rng.integers(low, high, (128, 4)).astype(np.uint8) for _ in range(2)]
    nibbles, places = chosen_places(M, 512 // bits, bits, 33)
    image = image_of_a(a, metadata_words(nibbles, bits, np.arange(M), 0))
    for part, side in enumerate(scales):
        tile = np.ascontiguousarray(side.reshape(4, 32, 4).transpose(1, 0, 2)).ravel()
        image[SCALES + 512 * part : SCALES + 512 * (part + 1)] = tile
    c = rng.standard_normal((M, N)).astype(np.float32)
    d = c.view(np.uint32).copy()
    code = 1 if bits == 4 else 0
    form = descriptor(M, N, code, code, 0) | 4 | (scale_type == "ue8m0") << 23
    first = " ".join(
        f'asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"(tmem + {column}), "l"(matrix((char*)as + {SCALES + offset}, 0, 128, 0)) : "memory");'
        for column, offset in ((260, 0), (264, 512))
    )
    text = issue(kind, form, PLAIN, first=first, scales="[%5], [%6], ")
    run_cuda(product_kernel("", 0, N, issue=text), "kernel", 1, 128, [image, PLAIN.image(b, IMAGE), d], ARCHITECTURE)
    for i in range(0, M, 9):
        j = (3 * i) % N
        left, whole = elements(a[i], element), elements(b[j], element)
        right = [whole[k] for k in places[i].tolist()]
        scale = [[factor(int(side[row, k]), scale_type) for k in range(vector)] for side, row in zip(scales, (i, j), strict=True)]
        number_ = float(c[i, j])
        start = Fraction(number_), max((int(c.view(np.uint32)[i, j]) >> 23 & 0xFF) - 127, -126)
        assert int(d[i, j]) == reference((left, right), scale, start, 32 if bits == 8 else 64)


def test_a_product_that_is_left_out_takes_no_part():
    a, b, c, _, _ = small_case()
    nibbles = np.full((M, 8), 0b0100)
    words = metadata_words(nibbles, 16, np.arange(M), 0)
    matrix = b.astype(np.float16)
    matrix[:, 2::4] = np.inf
    matrix[:, 3::4] = np.nan
    d = c.astype(np.float32)
    images = [image_of_a(halves(a), words), PLAIN.image(matrix.view(np.uint16), IMAGE)]
    run_cuda(
        product_kernel("", 0, N, issue=issue("kind::f16", descriptor(M, N, 0, 0, 1) | 4, PLAIN)),
        "kernel",
        1,
        128,
        [*images, d],
        ARCHITECTURE,
    )
    kept = np.array([4 * part + k for part in range(8) for k in (0, 1)])
    assert np.array_equal(d, a @ b[:, kept].T + c)


PAIR = r"""
extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(128) kernel(const uint4* a, const uint4* b, const u32* metadata, u32* d) {
    __shared__ __align__(1024) uint4 as[256], bs[256];
    __shared__ u32 slot; __shared__ __align__(8) u64 bar;
    int t = threadIdx.x, warp = t / 32, rank = blockIdx.x;
    if (t == 0) { init(&bar, 1); fence_init(); }
    if (warp == 0) { tmem_alloc(&slot, 128); relinquish(); }
    for (int i = t; i < ROWS * 2; i += 128) as[i] = a[rank * ROWS * 2 + i];
    for (int i = t; i < 128; i += 128) bs[i] = b[rank * 128 + i];
    fence_async();
    __syncthreads();
    u32 tmem = slot, mine = tmem + (warp * 32u << 16);
    tmem_st(mine + 64, metadata[rank * 256 + t * 2]); tmem_st(mine + 65, metadata[rank * 256 + t * 2 + 1]);
    wait_st(); before_sync();
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    after_sync();
    if (rank == 0 && t == 0) {
        asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0; tcgen05.mma.sp.cta_group::1.kind::f16 [%0], %1, %2, [%3], %4, p;}"
            :: "r"(tmem), "l"(matrix(as, ROWS * 16, 128, 0)), "l"(matrix(bs, 512, 128, 0)), "r"(tmem + 64), "r"(FORMu) : "memory");
        asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
            :: "r"(shared_address(&bar)), "h"((u16)3) : "memory");
    }
    wait(&bar, 0); after_sync();
    load_columns(mine, d + (rank * 128 + t) * COLUMNS);
    before_sync();
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    if (warp == 0) tmem_free(tmem, 128);
}
"""


@pytest.mark.parametrize("m", [128, 256])
def test_each_block_of_a_pair_has_the_metadata_of_its_rows(m):
    n, rows = 64, m // 2
    columns = n if m == 256 else n // 2
    rng = np.random.default_rng(2)
    a, b = rng.integers(-8, 8, (m, 16)).astype(np.float16), rng.integers(-8, 8, (n, 32)).astype(np.float16)
    nibbles, places = chosen_places(m, 32, 16, 3)
    words = np.concatenate([metadata_words(half, 16, np.arange(rows), 0) for half in np.split(nibbles, 2)])
    dense = np.zeros((m, 32), np.float32)
    np.put_along_axis(dense, places, a.astype(np.float32), axis=1)
    images = [np.concatenate([core_matrices(half) for half in np.split(matrix, 2)]) for matrix in (a, b)]
    d = np.zeros((2, 128, columns), np.float32)
    source = PAIR.replace("ROWS", str(rows)).replace("FORM", str(descriptor(m, n, 0, 0, 1) | 4)).replace("COLUMNS", str(columns))
    source = (TCGEN05 + moves(columns) + source).replace("cta_group::1", "cta_group::2")
    run_cuda(source, "kernel", 2, 128, [*images, words, d], "sm_100a", hazards=True)
    found = d.reshape(256, n) if m == 256 else np.concatenate([np.concatenate([half[:64], half[64:]], axis=1) for half in d])
    assert np.array_equal(found, dense @ b.astype(np.float32).T)


WRONG = {
    "dense": (descriptor(M, N, 0, 0, 1), "256", {}, "its bit 2 says that A is dense"),
    "selector": (descriptor(M, N, 0, 0, 1) | 4 | 2, "256", {}, "the sparsity selector is 2"),
    "odd": (descriptor(M, N, 0, 0, 1) | 4, "257", {}, "must be even"),
    "overlap": (descriptor(M, N, 0, 0, 1) | 4, "16", {}, "overlaps the sums"),
    "unwritten": (descriptor(M, N, 0, 0, 1) | 4, "400", {}, "nobody has written|not been written|unwritten"),
    "nibble": (descriptor(M, N, 0, 0, 1) | 4, "256", {"nibble": 0b0101}, "0b0101, which has no meaning"),
}


@pytest.mark.parametrize("which", WRONG)
def test_wrong_metadata_are_errors(which):
    form, at, change, message = WRONG[which]
    a, b, c, words, _ = small_case()
    if change:
        words[5, 0] = words[5, 0] & ~np.uint32(15) | np.uint32(change["nibble"])
    images = [image_of_a(halves(a), words), PLAIN.image(halves(b), IMAGE)]
    source = product_kernel("", 0, N, issue=issue("kind::f16", form, PLAIN, at=at))
    with pytest.raises(emulator.EmulatorError, match=message):
        run_cuda(source, "kernel", 1, 128, [*images, c.astype(np.float32)], ARCHITECTURE, hazards=True)


def test_a_chunk_of_zeros_may_have_a_nibble_of_zeros():
    """As CUTLASS's compressor writes them; a value that is not zero needs a place."""
    a, b, c, _, _ = small_case()
    nibbles, places = chosen_places(M, 32, 16, 20)
    a[:, :4] = 0
    dense = np.zeros((M, 32), np.int64)
    np.put_along_axis(dense, places, a, axis=1)
    nibbles[:, :2] = 0
    words = metadata_words(nibbles, 16, np.arange(M), 0)
    source = product_kernel("", 0, N, issue=issue("kind::f16", descriptor(M, N, 0, 0, 1) | 4, PLAIN))
    d, images = c.astype(np.float32), [image_of_a(halves(a), words), PLAIN.image(halves(b), IMAGE)]
    run_cuda(source, "kernel", 1, 128, [*images, d], ARCHITECTURE)
    assert np.array_equal(d, dense @ b.T + c)
    a[77, 3] = 1
    with pytest.raises(emulator.EmulatorError, match="row 77 of A have the nibble 0b0000"):
        run_cuda(source, "kernel", 1, 128, [image_of_a(halves(a), words), images[1], d], ARCHITECTURE)


def test_metadata_refilled_during_a_product_are_a_hazard():
    a, b, c, words, _ = small_case()
    text = issue("kind::f16", descriptor(M, N, 0, 0, 1) | 4, PLAIN) + "\n    } tmem_st(mine + 256, 0x44444444u); wait_st(); if (t == 0) {"
    images = [image_of_a(halves(a), words), PLAIN.image(halves(b), IMAGE)]
    with pytest.raises(emulator.EmulatorError) as found:
        run_cuda(product_kernel("", 0, N, issue=text), "kernel", 1, 128, [*images, c.astype(np.float32)], ARCHITECTURE, hazards=True)
    assert "tcgen05.st" in str(found.value) and "tcgen05.mma" in str(found.value)
