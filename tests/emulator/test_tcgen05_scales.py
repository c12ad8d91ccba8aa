"""tcgen05.mma with block scales, whose scales go to tensor memory by tcgen05.cp, and products of pairs of blocks."""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np
import pytest

from gemmgen import emulator

from .helpers import run_cuda
from .tcgen05 import TCGEN05, core_matrices, descriptor, moves
from .test_block_scaled_mma import fused, number, to_float32, toward_zero

M, N = 128, 64
ALL = bool(os.environ.get("GEMMGEN_ALL_CASES"))
SEEDS = range(9 if ALL else 1)
"""Nine seeds are 55,296 operands of every kind."""
EVERY = 7 if ALL else 151
"""One of so many results is compared."""
FORMS = {
    "mxf8": ("kind::mxf8f6f4.block_scale", "e4m3", 1, "ue8m0", 32),
    "mxf4": ("kind::mxf4.block_scale.scale_vec::2X", "e2m1", 2, "ue8m0", 64),
    "nvf4": ("kind::mxf4nvf4.block_scale.scale_vec::4X", "e2m1", 4, "ue4m3", 64),
}


def kernel(form: str, bits: int) -> str:
    return (
        TCGEN05
        + moves(N)
        + f"""
extern "C" __global__ void __launch_bounds__(128) kernel(const uint4* a, const uint4* b, const uint4* scales, u32* d) {{
    __shared__ __align__(1024) uint4 as[256], bs[128], sa[32], sb[32];
    __shared__ u32 slot; __shared__ __align__(8) u64 bar;
    int t = threadIdx.x, warp = t / 32;
    if (t == 0) {{ init(&bar, 1); fence_init(); }}
    if (warp == 0) tmem_alloc(&slot, 128);
    for (int i = t; i < 256; i += 128) as[i] = a[i];
    bs[t] = b[t];
    if (t < 32) {{ sa[t] = scales[t]; sb[t] = scales[32 + t]; }}
    fence_async();
    __syncthreads();
    u32 tmem = slot, mine = tmem + (warp * 32u << 16);
    store_columns(mine, d + t * {N});
    before_sync(); __syncthreads(); after_sync();
    if (t == 0) {{
        asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"(tmem + 64), "l"(matrix(sa, 0, 128, 0)) : "memory");
        asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"(tmem + 68), "l"(matrix(sb, 0, 128, 0)) : "memory");
        asm volatile("{{.reg .pred p; setp.ne.b32 p, 1, 0; tcgen05.mma.cta_group::1.{form} [%0], %1, %2, %3, [%4], [%5], p;}}"
            :: "r"(tmem), "l"(matrix(as, 2048, 128, 0)), "l"(matrix(bs, 1024, 128, 0)), "r"({bits}u), "r"(tmem + 64), "r"(tmem + 68));
        commit(&bar);
    }}
    wait(&bar, 0); after_sync();
    load_columns(mine, d + t * {N});
    before_sync(); __syncthreads();
    if (warp == 0) tmem_free(tmem, 128);
}}
"""
    )


def scaled(name: str, ids: tuple[int, int] = (0, 0), seed: int = 0) -> tuple[np.ndarray, list[int], list[tuple[int, int]]]:
    """Results on the emulator, and those of the published model at some places."""
    form, element, vector, scale_type, depth = FORMS[name]
    rng = np.random.default_rng(11 + 10 * seed)
    a, b = (rng.integers(0, 256, (rows, 32)).astype(np.uint8) for rows in (M, N))
    if element == "e4m3":
        a[a & 0x7F == 0x7F], b[b & 0x7F == 0x7F] = 0, 0
    alike, apart = ((120, 136), (97, 160)) if scale_type == "ue8m0" else ((0x28, 0x48), (0, 0x7F))
    low, high = apart if seed % 2 else alike
    scales = [rng.integers(low, high, (128, 4)).astype(np.uint8) for _ in range(2)]
    c = rng.standard_normal((M, N)).astype(np.float32)
    words = [np.ascontiguousarray(side.reshape(4, 32, 4).transpose(1, 0, 2)).reshape(32, 16) for side in scales]
    code = 1 if depth == 64 else 0
    bits = descriptor(M, N, code, code, ids[1]) | ids[0] << 29 | (scale_type == "ue8m0") << 23
    d = c.view(np.uint32).copy()
    run_cuda(kernel(form, bits), "kernel", 1, 128, [core_matrices(a), core_matrices(b), np.concatenate(words), d], "sm_100a", hazards=True)
    places = [(i, j) for i in range(M) for j in range(N)][::EVERY]
    wanted = []
    for i, j in places:
        scale = [
            [factor(int(side[row, first + k]), scale_type) for k in range(vector)]
            for side, row, first in zip(scales, (i, j), ids, strict=True)
        ]
        rows = [elements(matrix[row], element) for matrix, row in ((a, i), (b, j))]
        word = int(c.view(np.uint32)[i, j])
        wanted.append(reference(rows, scale, single(word), depth))
    return d, wanted, places


def single(word: int):
    number_ = float(np.uint32(word).view(np.float32))
    return Fraction(number_), max(max(word >> 23 & 0xFF, 1) - 127, -126)


def factor(code: int, scale_type: str):
    if scale_type == "ue8m0":
        return Fraction(2) ** (code - 127), code - 127
    found, exponent = number(code, "e4m3")
    return found, exponent


def elements(row: np.ndarray, element: str):
    if element != "e2m1":
        return [number(int(code), element) for code in row]
    return [number(int(code) >> shift & 15, "e2m1") for code in row for shift in (0, 4)]


def reference(rows, scale, start, depth: int) -> int:
    left, right = rows
    if depth == 32:
        (x, ex), (y, ey) = scale[0][0], scale[1][0]
        return fused([*((p * q * x * y, ep + eq + ex + ey) for (p, ep), (q, eq) in zip(left, right, strict=True)), start], 25, False)
    terms = []
    for first in range(0, 64, 16):
        block = first * len(scale[0]) // 64
        (x, ex), (y, ey) = scale[0][block], scale[1][block]
        total = sum(p * q for (p, _), (q, _) in zip(left[first : first + 16], right[first : first + 16], strict=True))
        terms.append((total * x * y, ex + ey))
    # The exponents of all blocks count, those of blocks whose products add up to zero, too.
    unit = Fraction(2) ** (max(exponent for _, exponent in [*terms, start]) - 35)
    return to_float32(sum((toward_zero(value, unit) for value, _ in [*terms, start]), Fraction(0)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "ids"), [("mxf8", (0, 0)), ("mxf8", (3, 1)), ("mxf4", (0, 2)), ("nvf4", (0, 0))])
def test_scaled_results_have_the_bits_of_the_published_model(name, ids, seed):
    d, wanted, places = scaled(name, ids, seed)
    assert [int(d[place]) for place in places] == wanted


def test_a_scale_that_does_not_exist_is_an_error():
    with pytest.raises(emulator.EmulatorError, match="scale id 1"):
        scaled("mxf4", (1, 0))


PAIR = r"""
extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(128) kernel(const uint4* a, const uint4* b, u32* d) {
    __shared__ __align__(1024) uint4 as[256], bs[128];
    __shared__ u32 slot; __shared__ __align__(8) u64 bar, ready;
    int t = threadIdx.x, warp = t / 32, rank = blockIdx.x;
    if (t == 0) { init(&bar, 1); init(&ready, 2); fence_init(); }
    if (warp == 0) { tmem_alloc(&slot, 64); relinquish(); }
    for (int i = t; i < ROWS * 2; i += 128) as[i] = a[rank * ROWS * 2 + i];
    for (int i = t; i < 64; i += 128) bs[i] = b[rank * 64 + i];
    fence_async();
    before_sync();
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    after_sync();
    u32 tmem = slot, mine = tmem + (warp * 32u << 16);
    if (rank == 0 && t == 0) {
        mma_f16(tmem, matrix(as, ROWS * 16, 128, 0), matrix(bs, 512, 128, 0), FORMu, 0);
        asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
            :: "r"(shared_address(&bar)), "h"((u16)3) : "memory");
    }
    wait(&bar, 0); after_sync();
    load_columns(mine, d + (rank * 128 + t) * COLUMNS);
    before_sync();
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    if (warp == 0) tmem_free(tmem, 64);
}
"""


@pytest.mark.parametrize("m", [128, 256])
def test_a_pair_of_blocks_multiplies_together(m):
    n, rows = 64, m // 2
    columns = n if m == 256 else n // 2
    rng = np.random.default_rng(2)
    a, b = rng.integers(-8, 8, (m, 16)).astype(np.float16), rng.integers(-8, 8, (n, 16)).astype(np.float16)
    images = [np.concatenate([core_matrices(half) for half in np.split(matrix, 2)]) for matrix in (a, b)]
    d = np.zeros((2, 128, columns), np.float32)
    source = PAIR.replace("ROWS", str(rows)).replace("FORM", str(descriptor(m, n, 0, 0, 1))).replace("COLUMNS", str(columns))
    source = (TCGEN05 + moves(columns) + source).replace("cta_group::1", "cta_group::2")
    run_cuda(source, "kernel", 2, 128, [*images, d], "sm_100a", hazards=True)
    wanted = a.astype(np.float32) @ b.astype(np.float32).T
    found = d.reshape(256, n) if m == 256 else np.concatenate([np.concatenate([half[:64], half[64:]], axis=1) for half in d])
    assert np.array_equal(found, wanted)
