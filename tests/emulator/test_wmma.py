"""wmma through mma.h: every shape and type against NumPy."""

import numpy as np
import pytest

from gemmgen import emulate

SOURCE = """
#include <mma.h>
using namespace nvcuda;
template <class L> struct by_rows { static const bool value = false; };
template <> struct by_rows<wmma::row_major> { static const bool value = true; };
template <class T, class S, class A, int M, int N, int K, class LA, class LB> __global__ void k(const S* a, const S* b, A* c) {
  __shared__ S tile[K * N];
  for (int i = threadIdx.x; i < K * N; i += 32) tile[i] = b[i];
  __syncthreads();
  wmma::fragment<wmma::matrix_a, M, N, K, T, LA> fa;
  wmma::fragment<wmma::matrix_b, M, N, K, T, LB> fb;
  wmma::fragment<wmma::accumulator, M, N, K, A> fc;
  const bool rows_a = by_rows<LA>::value, rows_b = by_rows<LB>::value;
  wmma::load_matrix_sync(fc, c, N, wmma::mem_row_major);
  wmma::load_matrix_sync(fa, a, rows_a ? K : M);
  wmma::load_matrix_sync(fb, tile, rows_b ? N : K);
  wmma::mma_sync(fc, fa, fb, fc);
  for (int i = 0; i < fc.num_elements; ++i) fc.x[i] = fc.x[i] + fc.x[i];
  wmma::store_matrix_sync(c, fc, N, wmma::mem_row_major);
}
"""


@pytest.mark.parametrize(
    ("shape", "layouts"),
    [
        ((16, 16, 16), "row row"),
        ((32, 8, 16), "row row"),
        ((8, 32, 16), "row row"),
        ((32, 8, 16), "col row"),
        ((8, 32, 16), "row col"),
    ],
)
@pytest.mark.parametrize(
    ("fragment", "c_type", "dtype", "sums"),
    [
        ("half", "half", np.float16, np.float32),
        ("half", "half", np.float16, np.float16),
        ("signed char", "signed char", np.int8, np.int32),
        ("unsigned char", "unsigned char", np.uint8, np.int32),
    ],
)
def test_products_of_fragments(shape, layouts, fragment, c_type, dtype, sums):
    m, n, k = shape
    names = {np.float32: "float", np.float16: "half", np.int32: "int"}
    first, second = (f"nvcuda::wmma::{word}_major" for word in layouts.split())
    entry = f"k<{fragment}, {c_type}, {names[sums]}, {m}, {n}, {k}, {first}, {second}>"
    rng = np.random.default_rng(m)
    a, b = (rng.integers(0 if dtype is np.uint8 else -4, 5, size).astype(dtype) for size in ((m, k), (k, n)))
    c = rng.integers(-9, 9, (m, n)).astype(sums)
    given = [x.T.copy() if layout == "col" else x for x, layout in zip((a, b), layouts.split(), strict=True)]
    result = emulate(SOURCE, entry, grid=1, block=32, args=[*given, c]).check()
    np.testing.assert_array_equal(result["c"], 2 * (a.astype(np.float64) @ b.astype(np.float64) + c))


def test_float64_fragments():
    a, b, c = (np.random.default_rng(s).integers(-5, 5, size).astype(np.float64) for s, size in enumerate([(8, 4), (4, 8), (8, 8)]))
    entry = "k<double, double, double, 8, 8, 4, nvcuda::wmma::row_major, nvcuda::wmma::row_major>"
    result = emulate(SOURCE, entry, grid=1, block=32, args=[a, b, c]).check()
    np.testing.assert_array_equal(result["c"], 2 * (a @ b + c))


def test_a_fragment_beyond_its_array():
    entry = "k<half, half, float, 16, 16, 16, nvcuda::wmma::row_major, nvcuda::wmma::row_major>"
    arrays = [np.zeros(255, np.float16), np.zeros(256, np.float16), np.zeros(256, np.float32)]
    assert [finding.code for finding in emulate(SOURCE, entry, grid=1, block=32, args=arrays).findings] == ["out-of-bounds"]
