"""Programs in the styles of samples, tutorials and frameworks: right by CUDA's rules, with a reference in NumPy and planted mistakes."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from .programs import GLOBAL_RACE, SHARED_RACE, Mistake, _floats, _ints, _out, add

f = np.float32
OUT_OF_BOUNDS, IN_FLIGHT, WR = ("out-of-bounds",), ("in-flight-read",), ("wrong-result",)


def softmax(x: Any) -> Any:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


add(
    "softmax_online_by_tiles",
    """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
struct __align__(8) SumMax { float maxval; float sum; };
__device__ __forceinline__ SumMax reduce_sum_max_op(SumMax a, SumMax b) {
    bool a_bigger = a.maxval > b.maxval;
    SumMax bigger = a_bigger ? a : b, smaller = a_bigger ? b : a, res;
    res.maxval = bigger.maxval;
    res.sum = bigger.sum + smaller.sum * expf(smaller.maxval - bigger.maxval);
    return res;
}
__global__ void softmax_forward(float* out, const float* inp, int N, int C) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    int idx = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (idx >= N) return;
    const float* x = inp + idx * C;
    SumMax sm{-INFINITY, 0.f};
    for (int i = warp.thread_rank(); i < C; i += warp.size()) sm = reduce_sum_max_op(sm, {x[i], 1.f});
    SumMax total = cg::reduce(warp, sm, reduce_sum_max_op);
    for (int i = warp.thread_rank(); i < C; i += warp.size()) out[idx * C + i] = expf(x[i] - total.maxval) / total.sum;
}""",
    lambda r: [_out(7 * 50), _floats(r, 7, 50), 7, 50],
    lambda out, inp, n, c: {"out": softmax(inp)},
    Mistake("guard", "if (idx >= N) return;", "", OUT_OF_BOUNDS),
    Mistake("row", "inp + idx * C", "inp + idx * C + 1", OUT_OF_BOUNDS),
    block=128,
    grid=2,
    tolerance=1e-5,
)

add(
    "inclusive_scan_shuffles_three_phases",
    """#define WARP 32
__global__ void scan(const int *in, int *out, int n) {
  __shared__ int sums[32];
  const unsigned lane = threadIdx.x & 31u, wid = threadIdx.x >> 5;
  int v = (threadIdx.x < n) ? in[threadIdx.x] : 0;
  #pragma unroll
  for (int i = 1; i <= WARP / 2; i *= 2) { int u = __shfl_up_sync(0xffffffff, v, i, WARP); if (lane >= i) v += u; }
  if (lane == 31) sums[wid] = v;
  __syncthreads();
  if (wid == 0) {
    const unsigned mask = __ballot_sync(0xffffffff, lane < blockDim.x / 32);
    if (lane < blockDim.x / 32) {
      int s = sums[lane];
      for (int i = 1; i < blockDim.x / 32; i *= 2) { int u = __shfl_up_sync(mask, s, i); if (lane >= i) s += u; }
      sums[lane] = s;
    }
  }
  __syncthreads();
  if (wid > 0) v += sums[wid - 1];
  if (threadIdx.x < n) out[threadIdx.x] = v;
}""",
    lambda r: [_ints(r, 200), _out(200, np.int32), 200],
    lambda x, y, n: {"out": np.cumsum(x)},
    Mistake("full_mask", "__shfl_up_sync(mask,", "__shfl_up_sync(0xffffffff,", ("divergent-warp",)),
    Mistake("second_barrier", "  __syncthreads();\n  if (wid > 0)", "  if (wid > 0)", SHARED_RACE),
    Mistake("guard", "(threadIdx.x < n) ? in[threadIdx.x] : 0", "in[threadIdx.x]", OUT_OF_BOUNDS),
    block=224,
)

add(
    "pipeline_of_the_library_two_stages",
    """#include <cooperative_groups.h>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
template <size_t stages> __device__ void body(const int* in, int* out, size_t batches) {
  auto block = cg::this_thread_block();
  __shared__ int buf[stages][64];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, stages> state;
  auto pipe = cuda::make_pipeline(block, &state);
  size_t fetch = 0;
  for (size_t compute = 0; compute < batches; ++compute) {
    for (; fetch < batches && fetch < compute + stages; ++fetch) {
      pipe.producer_acquire();
      cuda::memcpy_async(block, buf[fetch % stages], in + fetch * 64, sizeof(int) * 64, pipe);
      pipe.producer_commit();
    }
    pipe.consumer_wait();
    out[compute * 64 + threadIdx.x] = buf[compute % stages][63 - threadIdx.x];
    pipe.consumer_release();
  }
}
__global__ void k(const int* in, int* out, int batches) { body<2>(in, out, batches); }""",
    lambda r: [_ints(r, 320), _out(320, np.int32), 5],
    lambda x, y, n: {"out": x.reshape(5, 64)[:, ::-1]},
    Mistake("no_wait", "    pipe.consumer_wait();\n", "", IN_FLIGHT),
    Mistake("slot", "in + fetch * 64, ", "in + fetch * 64 + 8, ", OUT_OF_BOUNDS),
    block=64,
)

add(
    "barriers_of_the_library_by_roles",
    """#include <cuda/barrier>
using barrier = cuda::barrier<cuda::thread_scope_block>;
__global__ void k(const float* in, float* out, int n) {
  __shared__ float buffer[2][32];
#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ barrier bar[4];
  if (threadIdx.x < 4) init(bar + threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x < 32) {
    for (int i = 0; i < n / 32; ++i) {
      bar[i % 2].arrive_and_wait();
      buffer[i % 2][threadIdx.x] = in[i * 32 + threadIdx.x];
      (void)bar[i % 2 + 2].arrive();
    }
  } else {
    (void)bar[0].arrive(); (void)bar[1].arrive();
    for (int i = 0; i < n / 32; ++i) {
      bar[i % 2 + 2].arrive_and_wait();
      out[i * 32 + threadIdx.x - 32] = buffer[i % 2][63 - threadIdx.x];
      (void)bar[i % 2].arrive();
    }
  }
}""",
    lambda r: [_floats(r, 128), _out(128), 128],
    lambda x, y, n: {"out": x.reshape(4, 32)[:, ::-1]},
    Mistake("no_wait", "bar[i % 2 + 2].arrive_and_wait()", "(void)bar[i % 2 + 2].arrive()", (*SHARED_RACE, "unwritten-read")),
    Mistake("never_free", "      (void)bar[i % 2].arrive();\n", "", ("deadlock",)),
    block=64,
)

add(
    "stencil_in_three_dimensions",
    """#define B 8
__global__ void stencil(const float* __restrict__ in, float* __restrict__ out, int nx, int ny, int nz) {
  __shared__ float plane[B + 2][B + 2];
  int ix = blockIdx.x * B + threadIdx.x, iy = blockIdx.y * B + threadIdx.y, tx = threadIdx.x + 1, ty = threadIdx.y + 1;
  bool inside = ix < nx && iy < ny;
  auto at = [&](int x, int y, int z) {
    return (x < 0 || y < 0 || z < 0 || x >= nx || y >= ny || z >= nz) ? 0.f : in[(z * ny + y) * nx + x]; };
  float below = 0, current = at(ix, iy, 0), above;
  for (int z = 0; z < nz; z++) {
    above = at(ix, iy, z + 1);
    plane[ty][tx] = current;
    if (threadIdx.x == 0) plane[ty][0] = at(ix - 1, iy, z);
    if (threadIdx.x == B - 1) plane[ty][B + 1] = at(ix + 1, iy, z);
    if (threadIdx.y == 0) plane[0][tx] = at(ix, iy - 1, z);
    if (threadIdx.y == B - 1) plane[B + 1][tx] = at(ix, iy + 1, z);
    __syncthreads();
    if (inside) out[(z * ny + iy) * nx + ix] = below + above + plane[ty - 1][tx] + plane[ty + 1][tx]
         + plane[ty][tx - 1] + plane[ty][tx + 1] - 6 * current;
    __syncthreads();  // before the next plane
    below = current; current = above;
  }
}""",
    lambda r: [_floats(r, 5, 11, 13), _out(5 * 11 * 13), 13, 11, 5],
    lambda x, y, *_: {"out": sum(np.roll(np.pad(x, 1), s, a)[1:-1, 1:-1, 1:-1] for a in range(3) for s in (1, -1)) - 6 * x},
    Mistake("no_second_barrier", "    __syncthreads();  // before the next plane\n", "", SHARED_RACE),
    Mistake("corner", "plane[ty - 1][tx] +", "plane[ty - 1][tx - 1] +", ("unwritten-read", *WR)),
    Mistake("z", "z >= nz", "z > nz", OUT_OF_BOUNDS),
    block=(8, 8),
    grid=(2, 2),
)

add(
    "spmv_ellpack",
    """struct Ell { int rows, width; const int* cols; const float* vals; };
__global__ void spmv(Ell m, const float* x, float* y) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= m.rows) return;
  float acc = 0;
  for (int j = 0; j < m.width; ++j) { int c = m.cols[j * m.rows + r]; if (c >= 0) acc += m.vals[j * m.rows + r] * x[c]; }
  y[r] = acc;
}""",
    lambda r: [{"rows": 50, "width": 3, "cols": _ints(r, 150, 40) - 1, "vals": _floats(r, 150)}, _floats(r, 39), _out(50)],
    lambda m, x, y: {"y": np.where(m["cols"] >= 0, m["vals"] * x[m["cols"]], 0).reshape(3, 50).sum(0)},
    Mistake("padding", "if (c >= 0) ", "", OUT_OF_BOUNDS),
    Mistake("rows", "r >= m.rows", "r > m.rows", OUT_OF_BOUNDS),
    block=64,
)

add(
    "merge_by_ranks",
    """static __device__ int rank(const int* a, int n, int v, bool upper) { int lo = 0, hi = n; while (lo < hi) {
  int mid = (lo + hi) >> 1; if (upper ? a[mid] <= v : a[mid] < v) lo = mid + 1; else hi = mid; } return lo; }
__global__ void sort(int* keys) {
  __shared__ int s[128];
  int t = threadIdx.x;
  s[t] = keys[t];
  for (int w = 1; w < 128; w <<= 1) {
    __syncthreads();
    int v = s[t], base = t & ~(2 * w - 1); bool right = t & w;
    int pos = base + (t & (w - 1)) + rank(s + base + (right ? 0 : w), w, v, right);
    __syncthreads();  // all ranks are known
    s[pos] = v;
  }
  __syncthreads();
  keys[t] = s[t];
}""",
    lambda r: [_ints(r, 128, 50)],
    lambda k: {"keys": np.sort(k)},
    Mistake("no_barrier", "    __syncthreads();  // all ranks are known\n", "", SHARED_RACE),
    Mistake("stability", "v, right)", "v, false)", (*SHARED_RACE, "unwritten-read", *WR, "same-value")),
    block=128,
)

add(
    "asserts_and_text",
    r"""#include <cstdio>
#include <cassert>
__global__ void k(const int* x) { assert(x[threadIdx.x] >= 0); if (threadIdx.x == 3) printf("block %d: %5.2f %s\n",
  blockIdx.x, x[3] / 2.0, "done"); }
int main() { k<<<1, 4>>>(nullptr); }""",
    lambda r: [np.array([1, 2, 3, 5], np.int32)],
    lambda x: {},
    Mistake("assert", ">= 0", "> 1", ("trapped",)),
    block=4,
    output="block 0:  2.50 done\n",
)

add(
    "tree_on_the_device_heap",
    """struct Node { int key; Node *left, *right; __device__ Node(int k) : key(k), left(nullptr), right(nullptr) {} };
__device__ void insert(Node** at, int k) { while (*at) at = k < (*at)->key ? &(*at)->left : &(*at)->right;
  *at = new Node(k); }
__device__ int walk(Node* n, int* out, int p) { if (!n) return p; p = walk(n->left, out, p); out[p++] = n->key;
  p = walk(n->right, out, p); delete n; return p; }
__global__ void k(const int* x, int* out, int n) { Node* root = nullptr; for (int i = 0; i < n; i++) insert(&root,
  x[threadIdx.x * n + i]); walk(root, out + threadIdx.x * n, 0); }""",
    lambda r: [_ints(r, 64), _out(64, np.int32), 16],
    lambda x, y, n: {"out": np.sort(x.reshape(4, 16), 1)},
    Mistake("after_delete", "p = walk(n->right, out, p); delete n;", "delete n; p = walk(n->right, out, p);", OUT_OF_BOUNDS),
    Mistake("uninitialised", "left(nullptr), right(nullptr)", "left(nullptr)", ("unwritten-read",)),
    block=4,
)

add(
    "shapes_by_virtual_calls",
    """struct Shape { __device__ virtual float area() const = 0; __device__ virtual ~Shape() {} };
struct Square : Shape { float a; __device__ Square(float a) : a(a) {} __device__ float area() const override {
  return a * a; } };
struct Rect : Square { float b; __device__ Rect(float a, float b) : Square(a),
  b(b) {} __device__ float area() const override { return a * b; } };
__global__ void k(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  Shape* s = i % 3 ? static_cast<Shape*>(new Rect(x[i], 3)) : new Square(x[i]);
  y[i] = s->area(); delete s;
}""",
    lambda r: [_floats(r, 40), _out(40), 40],
    lambda x, y, n: {"y": np.where(np.arange(40) % 3, x * 3, x * x)},
    Mistake("after_delete", "y[i] = s->area(); delete s;", "delete s; y[i] = s->area();", OUT_OF_BOUNDS),
    Mistake("guard", "i >= n", "i > n", OUT_OF_BOUNDS),
    block=32,
    grid=2,
)

add(
    "quicksort_by_recursion",
    """__device__ void qs(int* a, int l, int r) { if (l >= r) return; int p = a[(l + r) / 2], i = l, j = r; while (i <= j) {
  while (a[i] < p) i++; while (a[j] > p) j--; if (i <= j) { int t = a[i]; a[i++] = a[j]; a[j--] = t; } } qs(a, l, j);
    qs(a, i, r); }
__global__ void k(int* x, int n) { qs(x + threadIdx.x * n, 0, n - 1); }""",
    lambda r: [_ints(r, 80, 30), 20],
    lambda x, n: {"x": np.sort(x.reshape(4, 20), 1)},
    Mistake("last", "n - 1", "n", OUT_OF_BOUNDS + GLOBAL_RACE),
    Mistake("no_end", "if (l >= r) return;", "", ("trapped",)),
    block=4,
)

add(
    "wmma_bf16_relu",
    """#include <mma.h>
#include <cuda_bf16.h>
using namespace nvcuda;
__global__ void k(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int K) {
  __shared__ __align__(32) float tile[2][16 * 16];
  int warp = threadIdx.x / 32;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
  wmma::fill_fragment(acc, 0.0f);
  for (int k = 0; k < K; k += 16) { wmma::load_matrix_sync(fa, a + k, K); wmma::load_matrix_sync(fb,
    b + warp * 16 * K + k, K); wmma::mma_sync(acc, fa, fb, acc); }
  for (int i = 0; i < acc.num_elements; i++) acc.x[i] = fmaxf(acc.x[i], 0.f);
  wmma::store_matrix_sync(tile[warp], acc, 16, wmma::mem_row_major);
  __syncwarp();
  for (int i = threadIdx.x % 32; i < 256; i += 32) c[i / 16 * 32 + warp * 16 + i % 16] = tile[warp][i];
}""",
    lambda r: [
        (_floats(r, 16, 32).view(np.uint32) >> 16).astype(np.uint16),
        (_floats(r, 32, 32).view(np.uint32) >> 16).astype(np.uint16),
        _out(512),
        32,
    ],
    lambda a, b, c, K: {"c": np.maximum((a.astype(np.uint32) << 16).view(f) @ (b.astype(np.uint32) << 16).view(f).T, 0)},
    Mistake("no_syncwarp", "  __syncwarp();\n", "", SHARED_RACE),
    Mistake("k", "k < K; k", "k <= K; k", OUT_OF_BOUNDS),
    block=64,
)

add(
    "dot_with_grid_sync",
    """#include <cooperative_groups.h>
using namespace cooperative_groups;
__global__ void dot(const double* x, const double* y, double* partial, double* out, int n) {
  grid_group g = this_grid(); __shared__ double s[64]; double t = 0;
  for (int i = g.thread_rank(); i < n; i += g.size()) t += x[i] * y[i];
  s[threadIdx.x] = t; __syncthreads();
  for (int k = blockDim.x / 2; k; k >>= 1) { if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k]; __syncthreads(); }
  if (threadIdx.x == 0) partial[blockIdx.x] = s[0];
  g.sync();
  if (g.thread_rank() == 0) { double a = 0; for (int b = 0; b < gridDim.x; b++) a += partial[b]; *out = a; }
}""",
    lambda r: [r.integers(0, 9, 300).astype(float), r.integers(0, 9, 300).astype(float), np.zeros(3), np.zeros(1), 300],
    lambda x, y, p, o, n: {"out": [x @ y]},
    Mistake("no_sync", "  g.sync();\n", "", (*GLOBAL_RACE, "unwritten-read")),
    Mistake("block_only", "g.sync()", "this_thread_block().sync()", GLOBAL_RACE),
    block=64,
    grid=3,
)

add(
    "separable_convolution_constant",
    """#define R 3
__constant__ float c_Kernel[2 * R + 1] = {1, 2, 3, 4, 3, 2, 1};
__global__ void rows(float *dst, const float *src, int w, int pitch) {
  __shared__ float s[2][32 + 2 * R];
  const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 2 + threadIdx.y;
  src += y * pitch;
  s[threadIdx.y][threadIdx.x + R] = x < w ? src[x] : 0;
  if (threadIdx.x < R) { s[threadIdx.y][threadIdx.x] = x >= R ? src[x - R] : 0;
    s[threadIdx.y][threadIdx.x + 32 + R] = x + 32 < w ? src[x + 32] : 0; }
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int j = -R; j <= R; j++) sum += c_Kernel[R - j] * s[threadIdx.y][threadIdx.x + R + j];
  if (x < w) dst[y * pitch + x] = sum;
}""",
    lambda r: [_out(4 * 50), _floats(r, 4, 50), 50, 50],
    lambda d, s, w, p: {"dst": np.stack([np.convolve(q, [1, 2, 3, 4, 3, 2, 1], "same") for q in s])},
    Mistake("halo", "if (threadIdx.x < R)", "if (threadIdx.x < R - 1)", ("unwritten-read",)),
    Mistake("left_edge", "x >= R ? src[x - R] : 0", "src[x - R]", OUT_OF_BOUNDS),
    Mistake("array", "threadIdx.x + R + j]", "threadIdx.x + 2 * R + j + 1]", (*OUT_OF_BOUNDS, "unwritten-read", *WR)),
    block=(32, 2),
    grid=(2, 2),
)

add(
    "message_by_cuda_atomic",
    """#include <cuda/atomic>
__global__ void k(int* data, int* flag, int* out) {
  cuda::atomic_ref<int, cuda::thread_scope_device> f(*flag);
  if (blockIdx.x == 0) { data[threadIdx.x] = threadIdx.x * 3; __syncthreads(); if (threadIdx.x == 0) f.store(1,
    cuda::memory_order_release); }
  else { if (threadIdx.x == 0) while (f.load(cuda::memory_order_acquire) == 0) ; __syncthreads();
    out[threadIdx.x] = data[threadIdx.x]; }
}""",
    lambda r: [_out(32, np.int32), _out(1, np.int32), _out(32, np.int32)],
    lambda *a: {"out": np.arange(32) * 3},
    Mistake("relaxed", "memory_order_release", "memory_order_relaxed", GLOBAL_RACE),
    Mistake("relaxed_load", "memory_order_acquire", "memory_order_relaxed", GLOBAL_RACE),
    Mistake("block_scope", "thread_scope_device", "thread_scope_block", GLOBAL_RACE),
    block=32,
    grid=2,
)

add(
    "run_lengths_by_cub",
    """#include <cub/block/block_discontinuity.cuh>
#include <cub/block/block_scan.cuh>
__global__ void k(const int* x, int* ids, int* n) {
  using D = cub::BlockDiscontinuity<int, 128>; using S = cub::BlockScan<int, 128>;
  __shared__ union { typename D::TempStorage d; typename S::TempStorage s; } t;
  int v[1] = {x[threadIdx.x]}, h[1], total, id;
  D(t.d).FlagHeads(h, v, ::cuda::std::not_equal_to<>());
  __syncthreads();
  S(t.s).InclusiveSum(h[0], id, total);
  ids[threadIdx.x] = id - 1; if (threadIdx.x == 0) *n = total;
}""",
    lambda r: [np.sort(_ints(r, 128, 20)), _out(128, np.int32), _out(1, np.int32)],
    lambda x, i, n: {"ids": np.unique(x, return_inverse=True)[1], "n": [len(np.unique(x))]},
    Mistake("no_barrier_between", "  __syncthreads();\n", "", SHARED_RACE),
    block=128,
)

add(
    "walsh_hadamard_in_place",
    """__global__ void fwt(float *d_Output, const float *d_Input, int log2N) {
  extern __shared__ float s_data[];
  const int N = 1 << log2N, base = blockIdx.x << log2N;
  for (int pos = threadIdx.x; pos < N; pos += blockDim.x) s_data[pos] = d_Input[base + pos];
  for (int stride = N >> 1; stride > 0; stride >>= 1) {
    __syncthreads();
    for (int p = threadIdx.x; p < N / 2; p += blockDim.x) { int lo = p & (stride - 1), i0 = ((p - lo) << 1) + lo,
      i1 = i0 + stride; float a = s_data[i0], b = s_data[i1]; s_data[i0] = a + b; s_data[i1] = a - b; }
  }
  __syncthreads();  // last
  for (int pos = threadIdx.x; pos < N; pos += blockDim.x) d_Output[base + pos] = s_data[pos];
}""",
    lambda r: [_out(512), _floats(r, 2, 256), 8],
    lambda out, x, log: {"d_Output": x @ reduce(np.kron, [np.array([[1, 1], [1, -1]])] * 8)},
    Mistake("no_barrier", "    __syncthreads();\n", "", SHARED_RACE),
    Mistake("no_last", "  __syncthreads();  // last\n", "", SHARED_RACE),
    Mistake("half", "pos < N; pos += blockDim.x) s_data", "pos < N / 2; pos += blockDim.x) s_data", ("unwritten-read",)),
    block=64,
    grid=2,
    shared=1024,
)

add(
    "pipeline_primitives_double_buffer",
    """#include <cuda_pipeline.h>
__global__ void k(const float4* in, float4* out, int tiles) {
  __shared__ float4 s[2][32];
  int t = threadIdx.x;
  __pipeline_memcpy_async(&s[0][t], in + t, 16); __pipeline_commit();
  for (int i = 0; i < tiles; i++) {
    if (i + 1 < tiles) __pipeline_memcpy_async(&s[(i + 1) & 1][t], in + (i + 1) * 32 + t, 16);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    out[i * 32 + t] = s[i & 1][31 - t];
    __syncthreads();  // consumed
  }
}""",
    lambda r: [_floats(r, 3 * 32, 4), _out(384), 3],
    lambda x, y, n: {"out": x.reshape(3, 32, 4)[:, ::-1]},
    Mistake("prior_2", "wait_prior(1)", "wait_prior(2)", IN_FLIGHT),
    Mistake("not_consumed", "    __syncthreads();  // consumed\n", "", SHARED_RACE),
    Mistake("size", "out[i * 32 + t]", "out[i * 33 + t]", OUT_OF_BOUNDS + GLOBAL_RACE),
    block=32,
)
