"""tcgen05.mma with k = 96 (sm_103a): stages of 768 values of k, whose eight products cross the ends of three swizzled buffers.

A product takes 48 bytes of each row. Those of a row that crosses the end of its 128 bytes continue in the next buffer, at the address that the
descriptor names (bit 52). Scales continue in the words of the next four scales.
"""

# ruff: noqa: E501 (CUDA)

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from gemmgen import emulator

from .helpers import run_cuda
from .tcgen05 import TCGEN05, descriptor, moves
from .test_block_scaled_mma import to_float32, toward_zero
from .test_tcgen05_scales import elements, factor, single

M, DEPTH = 128, 768
BUFFER = 128
"""Bytes of a row in one of the three buffers of a stage."""


DEEP = """
#define NEXT(byte) (byte % 128 > 80)
DEVICE u64 deep(const void* p, const void* next) {
    return matrix(p, 0, 1024, 2) | 1ull << 52 | (u64)(shared_address(next) >> 4 & 0x3FFF) << 16;
}
"""


def kernel(vector: int, bits: int, n: int, m: int = M) -> str:
    """One stage of a block. Scales of A and B lie in tiles of 128 rows and four blocks of k, as in cuBLASLt; each goes to its columns by
    `tcgen05.cp`. ``vector``: the values that share a scale."""
    words = DEPTH // vector // 4
    tiles = -(-n // 128)
    free = 512 - n
    of_a, of_b = n, n + 4 * words
    assert 4 * words * (1 + tiles) <= free
    scales = DEPTH // 8 // vector
    return (
        TCGEN05
        + moves(n)
        + DEEP
        + f"""
extern "C" __global__ void __launch_bounds__(128) kernel(const uint4* a, const uint4* b, const uint4* scales, u32* d) {{
    extern __shared__ __align__(1024) uint4 shared[];
    uint4 *as = shared, *bs = as + {3 * m * 8}, *sa = bs + {3 * n * 8}, *sb = sa + {32 * words};
    __shared__ u32 slot; __shared__ __align__(8) u64 bar;
    int t = threadIdx.x, warp = t / 32;
    if (t == 0) {{ init(&bar, 1); fence_init(); }}
    if (warp == 0) tmem_alloc(&slot, 512);
    for (int i = t; i < {3 * m * 8}; i += 128) {{ int row = i / 8 % {m}; as[i ^ row % 8] = a[i]; }}
    for (int i = t; i < {3 * n * 8}; i += 128) {{ int row = i / 8 % {n}; bs[i ^ row % 8] = b[i]; }}
    for (int i = t; i < {32 * words * (1 + tiles)}; i += 128) sa[i] = scales[i];
    fence_async();
    before_sync(); __syncthreads(); after_sync();
    u32 tmem = slot, mine = tmem + (warp * 32u << 16);
    if (t == 0) {{
        for (int w = 0; w < {words}; ++w) {{
            asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"(tmem + {of_a} + 4 * w), "l"(matrix(sa + 32 * w, 0, 128, 0)) : "memory");
            for (int tile = 0; tile < {tiles}; ++tile)
                asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;"
                    :: "r"(tmem + {of_b} + {4 * tiles} * w + 4 * tile), "l"(matrix(sb + 32 * (tile * {words} + w), 0, 128, 0)) : "memory");
        }}
        #pragma unroll
        for (int i = 0; i < 8; ++i) {{
            int byte = 48 * i, scale = {scales} * i;
            char *x = (char*)as + byte / 128 * {128 * m}, *y = (char*)bs + byte / 128 * {128 * n};
            u64 left = deep(x + byte % 128, x + NEXT(byte) * {128 * m}), right = deep(y + byte % 128, y + NEXT(byte) * {128 * n});
            u32 form = {bits}u | (scale % 4) << 29 | (scale % 4) << 4;
            asm volatile("{{.reg .pred p; setp.ne.b32 p, %6, 0; tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block{vector} [%0], %1, %2, %3, [%4], [%5], p;}}"
                :: "r"(tmem), "l"(left), "l"(right), "r"(form), "r"(tmem + {of_a} + scale / 4 * 4), "r"(tmem + {of_b} + scale / 4 * {4 * tiles}), "r"(i) : "memory");
        }}
        commit(&bar);
    }}
    wait(&bar, 0); after_sync();
    load_columns(mine, d + t * {n});
    before_sync(); __syncthreads();
    if (warp == 0) tmem_free(tmem, 512);
}}
"""
    )


def image(matrix: np.ndarray) -> np.ndarray:
    """Rows of packed bytes as three buffers of 128 bytes a row."""
    return np.ascontiguousarray(matrix.reshape(len(matrix), 3, BUFFER).transpose(1, 0, 2)).ravel()


def tiles(scales: np.ndarray) -> np.ndarray:
    """Scales [rows, blocks] in tiles of 128 rows and four blocks."""
    rows, blocks = scales.shape
    parts = scales.reshape(rows // 128, 4, 32, blocks // 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(parts).ravel()


def operands(vector: int, n: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(0, 256, (rows, DEPTH // 2)).astype(np.uint8) for rows in (M, n))
    low, high = (120, 136) if vector == 32 else (0x28, 0x48)
    padded = -(-n // 128) * 128
    return a, b, *(rng.integers(low, high, (rows, DEPTH // vector)).astype(np.uint8) for rows in (M, padded))


def run(source: str, a, b, of_a, of_b, n: int, arch: str = "sm_103a", **options) -> np.ndarray:
    d = np.zeros((M, n), np.uint32)
    scales = np.concatenate([tiles(of_a), tiles(of_b)])
    shared = image(a).size + image(b).size + scales.size
    run_cuda(source, "kernel", 1, 128, [image(a), image(b), scales, d], arch, shared_bytes=shared, hazards=True, **options)
    return d


def wanted(a, b, of_a, of_b, vector: int, i: int, j: int) -> int:
    """A result by the published model of kind::mxf4nvf4, for which k = 96 has six terms of 16 products."""
    kind = "ue8m0" if vector == 32 else "ue4m3"
    left, right = elements(a[i], "e2m1"), elements(b[j], "e2m1")
    word = 0
    for product in range(8):
        terms = [single(word)] if product else [(Fraction(0), -126)]
        for first in range(96 * product, 96 * product + 96, 16):
            (x, ex), (y, ey) = factor(int(of_a[i, first // vector]), kind), factor(int(of_b[j, first // vector]), kind)
            total = sum(p * q for (p, _), (q, _) in zip(left[first : first + 16], right[first : first + 16], strict=True))
            terms.append((total * x * y, ex + ey))
        unit = Fraction(2) ** (max(exponent for _, exponent in terms) - 35)
        word = to_float32(sum((toward_zero(value, unit) for value, _ in terms), Fraction(0)))
    return word


FORM = descriptor(M, 0, 1, 1, 0) | 1 << 31
SCALE_TYPE = {16: 0, 32: 1 << 23}


def form_of(vector: int, n: int) -> int:
    return FORM | n >> 3 << 17 | SCALE_TYPE[vector]


@pytest.mark.parametrize(("vector", "n"), [(16, 64), (32, 64), (16, 144)])
def test_eight_products_across_three_buffers(vector, n):
    a, b, of_a, of_b = operands(vector, n)
    d = run(kernel(vector, form_of(vector, n), n), a, b, of_a, of_b, n)
    values = [
        np.array([[float(value) for value, _ in elements(row, "e2m1")] for row in matrix])
        * np.array(
            [[float(factor(int(code), "ue8m0" if vector == 32 else "ue4m3")[0]) for code in row] for row in scales[: len(matrix)]]
        ).repeat(vector, axis=1)
        for matrix, scales in ((a, of_a), (b, of_b))
    ]
    exact = values[0] @ values[1].T
    assert np.abs(d.view(np.float32) - exact).max() <= 2.0**-20 * (np.abs(values[0]) @ np.abs(values[1]).T).max()
    places = [(0, 0), (1, n - 1), (M - 1, n // 2), (77, 33)]
    assert [int(d[place]) for place in places] == [wanted(a, b, of_a, of_b, vector, *place) for place in places]


COPY = 'asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"(tmem + 64 + 4 * w)'
PLANTS = {
    "a row that ends within the product": ("| 1ull << 52 ", "", "reach beyond their end"),
    "a continuation that nobody wrote": (
        f"NEXT(byte) * {128 * M})",
        f"NEXT(byte) * {128 * M * 5})",
        "reaches to|unwritten|nothing has written",
    ),
    "the end of a buffer refilled": ("wait(&bar, 0);", f"as[{128 * 8} + t] = a[t];\n    wait(&bar, 0);", "may still be reading"),
    "the next buffer's first chunk refilled": ("wait(&bar, 0);", f"bs[{64 * 8} + t] = b[t];\n    wait(&bar, 0);", "may still be reading"),
    "results read before the commit": ("wait(&bar, 0); after_sync();", "", "is going to write|race|unwritten"),
    "a scale id between the halves of a word": ("(scale % 4) << 29", "(scale % 4 | 1) << 29", "0 or 2 are possible"),
    "scales of the last word missing": (COPY, f"if (w < 11) {COPY}", "nothing has written a part"),
    "scales over the sums": ("tmem + 64 + scale / 4 * 4)", "tmem + 60 + scale / 4 * 4)", "overlaps the sums|nothing has written"),
    "17 columns": (f"{form_of(16, 64)}u", f"{form_of(16, 72)}u", "n a multiple of 16"),
    "a sparse A": (f"{form_of(16, 64)}u", f"{form_of(16, 64) | 4}u", "bit 2 says that A is sparse"),
}


@pytest.mark.parametrize("name", PLANTS)
def test_planted_hazards_of_deep_products_are_reported(name):
    before, after, message = PLANTS[name]
    source = kernel(16, form_of(16, 64), 64)
    assert before in source
    with pytest.raises((emulator.EmulatorError, emulator.HazardError), match=message):
        run(source.replace(before, after), *operands(16, 64), 64)


def test_other_architectures_lack_deep_products():
    with pytest.raises(emulator.EmulatorError, match="for sm_103a"):
        run(kernel(16, form_of(16, 64), 64), *operands(16, 64), 64, arch="sm_100a")
