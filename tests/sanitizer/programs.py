"""Programs that are right by CUDA's rules, of kinds that suites of samples have, each with a reference in NumPy and planted mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from gemmgen.emulator import TensorMap

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Mistake:
    """A change of a program that makes it wrong: every `old` becomes `new`. `codes` are the findings that name it."""

    name: str
    old: str
    new: str
    codes: tuple[str, ...]
    block: int | None = None
    grid: int | None = None


@dataclass(frozen=True)
class Program:
    """A program: `given(random)` makes its arguments, `expected(*arguments)` the arrays that it must leave, by parameter."""

    name: str
    source: str
    given: Callable[[np.random.Generator], list[Any]]
    expected: Callable[..., Arrays]
    block: Any = 32
    grid: Any = 1
    shared: int = 0
    architecture: str | None = None
    tolerance: float = 0.0
    cluster: int | None = None
    output: str | None = None
    mistakes: tuple[Mistake, ...] = ()


PROGRAMS: list[Program] = []


def add(name: str, source: str, given: Any, expected: Any, *mistakes: Mistake, **more: Any) -> None:
    """Adds a program."""
    PROGRAMS.append(Program(name, source, given, expected, mistakes=mistakes, **more))


def _out(count: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(count, dtype)


def _ints(random: np.random.Generator, count: int, high: int = 1000) -> np.ndarray:
    return random.integers(0, high, count).astype(np.int32)


def _floats(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Small integers as floats: sums are exact in any order."""
    return random.integers(-8, 9, shape).astype(np.float32)


SHARED_RACE, GLOBAL_RACE = ("shared-race",), ("global-race",)

# -- reductions --------------------------------------------------------------------------------------------------

add(
    "sum_of_warps_by_butterflies",
    """__global__ void k(const float* x, float* y) {
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int d = 16; d; d /= 2) v += __shfl_xor_sync(0xffffffff, v, d);
  if (threadIdx.x % 32 == 0) y[(blockIdx.x * blockDim.x + threadIdx.x) / 32] = v;
}""",
    lambda r: [_floats(r, 128), _out(4)],
    lambda x, y: {"y": x.reshape(4, 32).sum(1)},
    Mistake("mask_leaves_lanes_out", "0xffffffff", "0x0000ffff", ("divergent-warp",)),
    Mistake("beyond_the_array", "x[blockIdx", "x[1 + blockIdx", ("out-of-bounds",)),
    block=64,
    grid=2,
)

add(
    "sum_of_a_block_in_shared_memory",
    """__global__ void k(const int* x, int* y) {
  __shared__ int s[128];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (int d = 64; d; d /= 2) { if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d]; __syncthreads(); /* each */ }
  if (threadIdx.x == 0) *y = s[0];
}""",
    lambda r: [_ints(r, 128), _out(1, np.int32)],
    lambda x, y: {"y": x.sum(dtype=np.int32)},
    Mistake("no_barrier_in_the_loop", "__syncthreads(); /* each */", "", SHARED_RACE),
    Mistake("no_barrier_before_the_loop", "__syncthreads();\n  for", "for", SHARED_RACE),
    Mistake("half_of_the_array_empty", "s[threadIdx.x] = x", "if (threadIdx.x < 64) s[threadIdx.x] = x", ("unwritten-read",)),
    Mistake(
        "barrier_in_a_branch",
        "if (threadIdx.x < d) s[",
        "if (threadIdx.x < d) __syncthreads(), s[",
        ("divergent-barrier", "deadlock", "shared-race"),
    ),
    block=128,
)

add(
    "last_block_adds_what_all_blocks_found",
    """__device__ unsigned tickets;
__global__ void k(const int* x, volatile int* partial, int* y) {
  __shared__ bool last;
  int v = __reduce_add_sync(0xffffffff, x[blockIdx.x * 32 + threadIdx.x]);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = v;
    __threadfence();
    last = atomicInc(&tickets, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    __threadfence();
    int sum = 0;
    for (int i = 0; i < gridDim.x; ++i) sum += partial[i];
    *y = sum;
  }
}""",
    lambda r: [_ints(r, 256), _out(8, np.int32), _out(1, np.int32)],
    lambda x, partial, y: {"y": x.sum(dtype=np.int32), "partial": x.reshape(8, 32).sum(1)},
    Mistake("fence_left_out", "    __threadfence();\n    last", "    last", ("global-race", "volatile-race")),
    Mistake("shared_flag_without_a_barrier", "  __syncthreads();\n", "", ("shared-race", "unwritten-read")),
    grid=8,
    architecture="sm_80",
)

add(
    "largest_element_by_packed_atomics",
    """__global__ void k(const unsigned* x, unsigned long long* best) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicMax(best, (unsigned long long)x[i] << 32 | (unsigned)i);
}""",
    lambda r: [r.permutation(128).astype(np.uint32), _out(1, np.uint64)],
    lambda x, best: {"best": np.array([int(x.max()) << 32 | int(x.argmax())], np.uint64)},
    Mistake(
        "a_plain_store",
        "atomicMax(best, (unsigned long long)x[i] << 32 | (unsigned)i)",
        "*best = (unsigned long long)x[i] << 32 | (unsigned)i",
        GLOBAL_RACE,
    ),
    block=64,
    grid=2,
)

add(
    "redux_and_votes",
    """__global__ void k(const int* x, int* y) {
  int v = x[threadIdx.x];
  y[threadIdx.x] = __reduce_max_sync(~0u, v) + __reduce_xor_sync(~0u, v) * __any_sync(~0u, v == 3) + 2 * __all_sync(~0u, v < 64)
      + (__popc(__ballot_sync(~0u, v & 1)) << 8);
}""",
    lambda r: [_ints(r, 32, 64), _out(32, np.int32)],
    lambda x, y: {"y": np.full(32, x.max() + np.bitwise_xor.reduce(x) * int((x == 3).any()) + 2 + ((x & 1).sum() << 8), np.int32)},
    architecture="sm_80",
)

# -- scans and sorts ---------------------------------------------------------------------------------------------

add(
    "scan_of_blelloch",
    """__global__ void k(int* x) {
  __shared__ int s[128];
  int t = threadIdx.x, offset = 1;
  s[2 * t] = x[2 * t]; s[2 * t + 1] = x[2 * t + 1];
  for (int d = 64; d; d /= 2, offset *= 2) {
    __syncthreads();
    if (t < d) s[offset * (2 * t + 2) - 1] += s[offset * (2 * t + 1) - 1];
  }
  if (t == 0) s[127] = 0;
  for (int d = 1; d < 128; d *= 2) {
    offset /= 2;
    __syncthreads(); // down
    if (t < d) {
      int a = offset * (2 * t + 1) - 1, b = offset * (2 * t + 2) - 1, v = s[a];
      s[a] = s[b]; s[b] += v;
    }
  }
  __syncthreads();
  x[2 * t] = s[2 * t]; x[2 * t + 1] = s[2 * t + 1];
}""",
    lambda r: [_ints(r, 128)],
    lambda x: {"x": np.cumsum(x, dtype=np.int32) - x},
    Mistake("no_barrier_on_the_way_down", "__syncthreads(); // down", "", SHARED_RACE),
    Mistake("too_few_elements", "__shared__ int s[128]", "__shared__ int s[127]", ("out-of-bounds",)),
    block=64,
)

add(
    "scan_of_kogge_and_stone",
    """__global__ void k(int* x) {
  __shared__ int s[2][64];
  int t = threadIdx.x, now = 0;
  s[0][t] = x[t];
  for (int d = 1; d < 64; d *= 2) {
    __syncthreads();
    s[!now][t] = s[now][t] + (t >= d ? s[now][t - d] : 0);
    now = !now;
  }
  x[t] = s[now][t];
}""",
    lambda r: [_ints(r, 64)],
    lambda x: {"x": np.cumsum(x, dtype=np.int32)},
    Mistake(
        "one_buffer",
        "s[!now][t] = s[now][t] + (t >= d ? s[now][t - d] : 0);\n    now = !now;",
        "s[0][t] += t >= d ? s[0][t - d] : 0;",
        SHARED_RACE,
    ),
    Mistake("before_the_array", "t >= d ?", "t + 1 >= d ?", ("out-of-bounds", "shared-race", "wrong-result")),
    block=64,
)

add(
    "scan_of_a_warp",
    """__global__ void k(int* x) {
  int v = x[threadIdx.x];
  for (int d = 1; d < 32; d *= 2) { int u = __shfl_up_sync(0xffffffff, v, d); if (threadIdx.x >= d) v += u; }
  x[threadIdx.x] = v;
}""",
    lambda r: [_ints(r, 32)],
    lambda x: {"x": np.cumsum(x, dtype=np.int32)},
    Mistake(
        "shuffle_in_a_branch",
        "int u = __shfl_up_sync(0xffffffff, v, d); if (threadIdx.x >= d) v += u;",
        "if (threadIdx.x >= d) v += __shfl_up_sync(0xffffffff, v, d);",
        ("divergent-warp", "deadlock", "inactive-shuffle"),
    ),
)

add(
    "scan_with_decoupled_look_back",
    """struct Part { int state, sum; };
__global__ void k(const int* x, int* y, volatile int* state, volatile int* sum, volatile int* prefix) {
  int t = threadIdx.x, b = blockIdx.x, v = x[b * 32 + t];
  for (int d = 1; d < 32; d *= 2) { int u = __shfl_up_sync(0xffffffff, v, d); if (t >= d) v += u; }
  int total = __shfl_sync(0xffffffff, v, 31), before = 0;
  if (t == 0) {
    if (b) {
      sum[b] = total;
      __threadfence();
      atomicExch((int*)&state[b], 1);
      for (int p = b - 1; p >= 0; --p) {
        int s;
        while ((s = atomicAdd((int*)&state[p], 0)) == 0) ;
        __threadfence();
        if (s == 2) { before += prefix[p]; break; }
        before += sum[p];
      }
    }
    prefix[b] = before + total;
    __threadfence(); // publish
    atomicExch((int*)&state[b], 2);
  }
  y[b * 32 + t] = v + __shfl_sync(0xffffffff, before, 0);
}""",
    lambda r: [_ints(r, 256), *(_out(n, np.int32) for n in (256, 8, 8, 8))],
    lambda x, *rest: {"y": np.cumsum(x, dtype=np.int32)},
    Mistake("published_without_a_fence", "__threadfence(); // publish", "", ("global-race", "volatile-race")),
    grid=8,
)

add(
    "bitonic_sort",
    """__global__ void k(int* x) {
  __shared__ int s[64];
  int t = threadIdx.x;
  s[t] = x[t];
  for (int n = 2; n <= 64; n *= 2)
    for (int d = n / 2; d; d /= 2) {
      __syncthreads();
      int o = t ^ d;
      if (o > t && (s[t] > s[o]) == ((t & n) == 0)) { int v = s[t]; s[t] = s[o]; s[o] = v; }
    }
  __syncthreads(); // last
  x[t] = s[t];
}""",
    lambda r: [_ints(r, 64)],
    lambda x: {"x": np.sort(x)},
    Mistake("no_barrier_between_steps", "      __syncthreads();\n", "", ("shared-race", "unwritten-read")),
    Mistake("no_barrier_after_the_last_step", "__syncthreads(); // last", "", SHARED_RACE),
    block=64,
)

add(
    "odd_even_sort_until_nothing_moves",
    """__global__ void k(int* x, int n) {
  extern __shared__ int s[];
  int t = threadIdx.x, moved = 1;
  s[2 * t] = x[2 * t]; s[2 * t + 1] = x[2 * t + 1];
  __syncthreads();
  while (__syncthreads_or(moved)) {
    moved = 0;
    for (int parity = 0; parity < 2; ++parity) {
      int i = 2 * t + parity;
      if (i + 1 < n && s[i] > s[i + 1]) { int v = s[i]; s[i] = s[i + 1]; s[i + 1] = v; moved = 1; }
      __syncthreads();
    }
  }
  x[2 * t] = s[2 * t]; x[2 * t + 1] = s[2 * t + 1];
}""",
    lambda r: [_ints(r, 32), 32],
    lambda x, n: {"x": np.sort(x)},
    Mistake("beyond_dynamic_memory", "if (i + 1 < n &&", "if (", ("out-of-bounds",)),
    Mistake(
        "lanes_leave_the_loop_alone", "__syncthreads_or(moved)", "moved", ("divergent-barrier", "deadlock", "missed-barrier", "shared-race")
    ),
    block=16,
    shared=128,
)

add(
    "radix_sort_by_splits",
    """__global__ void k(unsigned* x) {
  __shared__ unsigned s[64]; __shared__ int zeros[2];
  int t = threadIdx.x, w = t / 32; unsigned below = (1u << t % 32) - 1;
  unsigned v = x[t];
  for (int bit = 0; bit < 8; ++bit) {
    bool one = v >> bit & 1;
    unsigned ballot = __ballot_sync(~0u, !one);
    if (t % 32 == 0) zeros[w] = __popc(ballot);
    __syncthreads();
    int all = zeros[0] + zeros[1], mine = __popc(ballot & below) + (w ? zeros[0] : 0);
    s[one ? all + t - mine : mine] = v;
    __syncthreads(); // written
    v = s[t];
  }
  x[t] = v;
}""",
    lambda r: [_ints(r, 64, 256).astype(np.uint32)],
    lambda x: {"x": np.sort(x)},
    Mistake("read_too_early", "__syncthreads(); // written", "", SHARED_RACE),
    block=64,
)

add(
    "top_three_of_each_warp",
    """__global__ void k(const int* x, int* y) {
  int v = x[threadIdx.x];
  for (int n = 0; n < 3; ++n) {
    int best = v;
    for (int d = 16; d; d /= 2) best = max(best, __shfl_xor_sync(~0u, best, d));
    if (threadIdx.x % 32 == 0) y[threadIdx.x / 32 * 3 + n] = best;
    if (v == best) v = -1;
  }
}""",
    lambda r: [r.permutation(64).astype(np.int32), _out(6, np.int32)],
    lambda x, y: {"y": np.sort(x.reshape(2, 32))[:, :-4:-1].ravel()},
    Mistake("written_past_the_end", "/ 32 * 3 + n", "/ 32 * 3 + n + 1", ("out-of-bounds",)),
    block=64,
)

# -- histograms, compaction, hashing -----------------------------------------------------------------------------

add(
    "histogram_of_each_block_first",
    """__global__ void k(const int* x, int* h, int n) {
  __shared__ int own[16];
  if (threadIdx.x < 16) own[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[x[i] & 15], 1);
  __syncthreads(); // counted
  if (threadIdx.x < 16) atomicAdd(&h[threadIdx.x], own[threadIdx.x]);
}""",
    lambda r: [_ints(r, 500), _out(16, np.int32), 500],
    lambda x, h, n: {"h": np.bincount(x & 15, minlength=16)},
    Mistake("counted_without_atomics", "atomicAdd(&own[x[i] & 15], 1)", "own[x[i] & 15]++", SHARED_RACE),
    Mistake("not_cleared", "if (threadIdx.x < 16) own[threadIdx.x] = 0;", "", ("unwritten-read",)),
    Mistake("added_too_early", "__syncthreads(); // counted", "", SHARED_RACE),
    Mistake("added_without_atomics", "atomicAdd(&h[threadIdx.x], own[threadIdx.x])", "h[threadIdx.x] += own[threadIdx.x]", GLOBAL_RACE),
    block=64,
    grid=2,
)

add(
    "histogram_by_matching_lanes",
    """__global__ void k(const int* x, int* h) {
  int v = x[threadIdx.x];
  unsigned same = __match_any_sync(0xffffffff, v);
  if (threadIdx.x % 32 == __ffs(same) - 1) atomicAdd(&h[v], __popc(same));
}""",
    lambda r: [_ints(r, 64, 8), _out(8, np.int32)],
    lambda x, h: {"h": np.bincount(x, minlength=8)},
    Mistake("lanes_returned_before", "int v =", "if (threadIdx.x % 2) return; int v =", ("wrong-result",)),
    block=64,
)

add(
    "compaction_with_one_atomic_a_warp",
    """__global__ void k(const int* x, int* y, int* count) {
  int v = x[blockIdx.x * 32 + threadIdx.x];
  unsigned keep = __ballot_sync(~0u, v & 1);
  int base = 0;
  if (threadIdx.x == 0) base = atomicAdd(count, __popc(keep));
  base = __shfl_sync(~0u, base, 0);
  if (v & 1) y[base + __popc(keep & ((1u << threadIdx.x) - 1))] = v;
}""",
    lambda r: [np.arange(64, dtype=np.int32), _out(32, np.int32), _out(1, np.int32)],
    lambda x, y, count: {"y": x[x % 2 == 1], "count": np.array([32])},
    Mistake(
        "count_read_and_written_plainly",
        "base = atomicAdd(count, __popc(keep))",
        "base = *count, *count = base + __popc(keep)",
        GLOBAL_RACE,
    ),
    grid=2,
)

add(
    "hash_table_with_open_addresses",
    """__global__ void k(const unsigned* keys, unsigned* table, unsigned* slots) {
  unsigned key = keys[threadIdx.x], at = key * 2654435761u >> 26;
  while (true) {
    unsigned found = atomicCAS(&table[at], 0xffffffffu, key);
    if (found == 0xffffffffu || found == key) break;
    at = (at + 1) & 63;
  }
  slots[threadIdx.x] = at;
}""",
    lambda r: [np.arange(1, 57, dtype=np.uint32) * 9176, np.full(64, 0xFFFFFFFF, np.uint32), _out(56, np.uint32)],
    lambda keys, table, slots: {"table": _table(keys)},
    Mistake("never_wraps_around", "(at + 1) & 63", "at + 1 + 64", ("out-of-bounds",)),
    Mistake("looked_at_plainly", "atomicCAS(&table[at], 0xffffffffu, key);", "table[at]; table[at] = key;", GLOBAL_RACE),
    block=56,
)


def _table(keys: np.ndarray) -> np.ndarray:
    """Keys by their slots: the lanes take turns in their order here; any order fills the same slots."""
    table = np.full(64, 0xFFFFFFFF, np.uint32)
    for key in keys.tolist():
        at = (key * 2654435761 & 0xFFFFFFFF) >> 26
        while table[at] != 0xFFFFFFFF:
            at = (at + 1) & 63
        table[at] = key
    return table


# -- matrices and stencils ---------------------------------------------------------------------------------------

add(
    "transpose_with_padding",
    """__global__ void k(const float* x, float* y) {
  __shared__ float s[16][17];
  s[threadIdx.y][threadIdx.x] = x[(blockIdx.y * 16 + threadIdx.y) * 32 + blockIdx.x * 16 + threadIdx.x];
  __syncthreads();
  y[(blockIdx.x * 16 + threadIdx.y) * 32 + blockIdx.y * 16 + threadIdx.x] = s[threadIdx.x][threadIdx.y];
}""",
    lambda r: [_floats(r, 32, 32), _out(1024)],
    lambda x, y: {"y": x.T.ravel()},
    Mistake("no_barrier", "__syncthreads();", "", SHARED_RACE),
    Mistake("rows_too_few", "s[16][17]", "s[15][17]", ("out-of-bounds",)),
    block=(16, 16),
    grid=(2, 2),
)

add(
    "product_of_matrices_by_tiles",
    """__global__ void k(const float* a, const float* b, float* c, int n) {
  __shared__ float s[8][8], t[8][8];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 8 + y, column = blockIdx.x * 8 + x;
  float sum = 0;
  for (int k = 0; k < n; k += 8) {
    s[y][x] = a[row * n + k + x]; t[y][x] = b[(k + y) * n + column];
    __syncthreads();
    for (int i = 0; i < 8; ++i) sum += s[y][i] * t[i][x];
    __syncthreads(); // used
  }
  c[row * n + column] = sum;
}""",
    lambda r: [_floats(r, 16, 16), _floats(r, 16, 16), _out(256), 16],
    lambda a, b, c, n: {"c": (a @ b).ravel()},
    Mistake("refilled_too_early", "__syncthreads(); // used", "", SHARED_RACE),
    Mistake("a_column_too_far", "b[(k + y) * n + column]", "b[(k + y + 1) * n + column]", ("out-of-bounds",)),
    block=(8, 8),
    grid=(2, 2),
)

add(
    "convolution_with_a_halo",
    """__constant__ float w[5] = {1, 2, 3, 2, 1};
__global__ void k(const float* x, float* y, int n) {
  __shared__ float s[68];
  int i = blockIdx.x * 64 + threadIdx.x;
  s[threadIdx.x + 2] = x[i];
  if (threadIdx.x < 2) { s[threadIdx.x] = i >= 2 ? x[i - 2] : 0; s[threadIdx.x + 66] = i + 64 < n ? x[i + 64] : 0; }
  __syncthreads();
  float sum = 0;
  for (int d = 0; d < 5; ++d) sum += w[d] * s[threadIdx.x + d];
  y[i] = sum;
}""",
    lambda r: [_floats(r, 192), _out(192), 192],
    lambda x, y, n: {"y": np.convolve(x, [1, 2, 3, 2, 1], "same")},
    Mistake("halo_of_one", "threadIdx.x < 2)", "threadIdx.x < 1)", ("unwritten-read",)),
    Mistake("edge_not_looked_at", "i + 64 < n ? x[i + 64] : 0", "x[i + 64]", ("out-of-bounds",)),
    block=64,
    grid=3,
)

add(
    "life_on_a_torus",
    """__global__ void k(const unsigned char* a, unsigned char* b, int n) {
  int x = threadIdx.x, y = blockIdx.x, alive = 0;
  for (int dy = n - 1; dy <= n + 1; ++dy)
    for (int dx = n - 1; dx <= n + 1; ++dx)
      if (dx != n || dy != n) alive += a[(y + dy) % n * n + (x + dx) % n];
  b[y * n + x] = alive == 3 || (alive == 2 && a[y * n + x]);
}""",
    lambda r: [r.integers(0, 2, (16, 16)).astype(np.uint8), _out(256, np.uint8), 16],
    lambda a, b, n: {"b": _life(a)},
    Mistake("in_place", "b[y * n + x] = alive", "((unsigned char*)a)[y * n + x] = alive", GLOBAL_RACE),
    Mistake("no_torus", "(y + dy) % n", "(y + dy)", ("out-of-bounds",)),
    block=16,
    grid=16,
)


def _life(a: np.ndarray) -> np.ndarray:
    alive = sum(np.roll(a, (y, x), (0, 1)) for y in (-1, 0, 1) for x in (-1, 0, 1) if x or y)
    return ((alive == 3) | ((alive == 2) & (a == 1))).ravel()


add(
    "sparse_matrix_times_vector",
    """__global__ void k(const int* rows, const int* columns, const float* values, const float* x, float* y) {
  int row = blockIdx.x, lane = threadIdx.x;
  float sum = 0;
  for (int i = rows[row] + lane; i < rows[row + 1]; i += 32) sum += values[i] * x[columns[i]];
  for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
  if (lane == 0) y[row] = sum;
}""",
    lambda r: [
        np.array([0, 40, 40, 43, 100], np.int32),
        _ints(r, 100, 50),
        _floats(r, 100),
        _floats(r, 50),
        _out(4),
    ],
    lambda rows, columns, values, x, y: {"y": [(values[a:b] * x[columns[a:b]]).sum() for a, b in pairwise(rows)]},
    Mistake("a_row_more", "int row = blockIdx.x", "int row = blockIdx.x + 1", ("out-of-bounds",)),
    Mistake("last_element_twice", "i < rows[row + 1]", "i <= rows[row + 1]", ("out-of-bounds",)),
    grid=4,
)

add(
    "rows_times_vector_in_float4",
    """__global__ void k(const float4* a, const float4* x, float* y, int n) {
  float sum = 0;
  for (int i = threadIdx.x; i < n / 4; i += 32) {
    float4 u = a[blockIdx.x * (n / 4) + i], v = x[i];
    sum += u.x * v.x + u.y * v.y + u.z * v.z + u.w * v.w;
  }
  for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}""",
    lambda r: [_floats(r, 3, 64), _floats(r, 64), _out(3), 64],
    lambda a, x, y, n: {"y": a @ x},
    Mistake("one_float_too_far", "v = x[i]", "v = *(const float4*)((const float*)x + 4 * i + 1)", ("misaligned", "out-of-bounds")),
    grid=3,
)

# -- numerics ----------------------------------------------------------------------------------------------------

add(
    "softmax_in_one_pass",
    """__global__ void k(const float* x, float* y, int n) {
  __shared__ float m[2], s[2];
  float most = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < n; i += 64) {
    float v = x[blockIdx.x * n + i], higher = fmaxf(most, v);
    sum = sum * expf(most - higher) + expf(v - higher); most = higher;
  }
  for (int d = 16; d; d /= 2) {
    float om = __shfl_xor_sync(~0u, most, d), os = __shfl_xor_sync(~0u, sum, d), higher = fmaxf(most, om);
    sum = sum * expf(most - higher) + os * expf(om - higher); most = higher;
  }
  if (threadIdx.x % 32 == 0) { m[threadIdx.x / 32] = most; s[threadIdx.x / 32] = sum; }
  __syncthreads();
  float higher = fmaxf(m[0], m[1]), all = s[0] * expf(m[0] - higher) + s[1] * expf(m[1] - higher);
  for (int i = threadIdx.x; i < n; i += 64) y[blockIdx.x * n + i] = expf(x[blockIdx.x * n + i] - higher) / all;
}""",
    lambda r: [r.standard_normal((2, 100)).astype(np.float32), _out(200), 100],
    lambda x, y, n: {"y": (np.exp(x) / np.exp(x).sum(1, keepdims=True)).ravel()},
    Mistake("no_barrier", "__syncthreads();", "", SHARED_RACE),
    Mistake("one_warp_writes", "if (threadIdx.x % 32 == 0)", "if (threadIdx.x == 0)", ("unwritten-read",)),
    block=64,
    grid=2,
    tolerance=1e-5,
)

add(
    "layer_norm_by_welford",
    """__global__ void k(const float* x, float* y, int n) {
  float mean = 0, m2 = 0, count = 0;
  for (int i = threadIdx.x; i < n; i += 32) {
    float v = x[blockIdx.x * n + i], delta = v - mean;
    count += 1; mean += delta / count; m2 += delta * (v - mean);
  }
  for (int d = 16; d; d /= 2) {
    float om = __shfl_xor_sync(~0u, mean, d), o2 = __shfl_xor_sync(~0u, m2, d), oc = __shfl_xor_sync(~0u, count, d);
    float all = count + oc, delta = om - mean;
    m2 += o2 + delta * delta * count * oc / all; mean = (mean * count + om * oc) / all; count = all;
  }
  for (int i = threadIdx.x; i < n; i += 32) y[blockIdx.x * n + i] = (x[blockIdx.x * n + i] - mean) * rsqrtf(m2 / n + 1e-5f);
}""",
    lambda r: [r.standard_normal((3, 70)).astype(np.float32), _out(210), 70],
    lambda x, y, n: {"y": ((x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)).ravel()},
    grid=3,
    tolerance=1e-4,
)

add(
    "bodies_by_tiles",
    """__global__ void k(const float2* p, float2* f, int n) {
  __shared__ float2 s[32];
  int i = blockIdx.x * 32 + threadIdx.x;
  float2 mine = p[i], sum = {0, 0};
  for (int t = 0; t < n; t += 32) {
    s[threadIdx.x] = p[t + threadIdx.x];
    __syncthreads();
    for (int j = 0; j < 32; ++j) { float dx = s[j].x - mine.x, dy = s[j].y - mine.y, q = rsqrtf(dx * dx + dy * dy + 1);
      sum.x += dx * q; sum.y += dy * q; }
    __syncthreads(); // used
  }
  f[i] = sum;
}""",
    lambda r: [r.standard_normal((64, 2)).astype(np.float32), _out(128), 64],
    lambda p, f, n: {"f": _forces(p).ravel()},
    Mistake("refilled_too_early", "__syncthreads(); // used", "", SHARED_RACE),
    grid=2,
    tolerance=1e-3,
)


def _forces(p: np.ndarray) -> np.ndarray:
    d = p[None] - p[:, None]
    return (d / np.sqrt((d**2).sum(2, keepdims=True) + 1)).sum(1)


add(
    "fourier_transform_in_shared_memory",
    """__global__ void k(float2* x) {
  __shared__ float2 s[64];
  int t = threadIdx.x;
  s[__brev(t) >> 26] = x[t]; s[__brev(t + 32) >> 26] = x[t + 32];
  for (int half = 1; half < 64; half *= 2) {
    __syncthreads();
    int j = t % half, a = t / half * 2 * half + j, b = a + half;
    float c, n; sincospif(-(float)j / half, &n, &c);
    float2 u = s[a], v = s[b], w = {v.x * c - v.y * n, v.x * n + v.y * c};
    s[a] = {u.x + w.x, u.y + w.y}; s[b] = {u.x - w.x, u.y - w.y};
  }
  __syncthreads(); // last
  x[t] = s[t]; x[t + 32] = s[t + 32];
}""",
    lambda r: [r.standard_normal(128).astype(np.float32)],
    lambda x: {"x": np.fft.fft(x.view(np.complex64)).astype(np.complex64).view(np.float32)},
    Mistake("stages_without_a_barrier", "    __syncthreads();\n", "", ("shared-race", "unwritten-read")),
    Mistake("read_in_another_order", "x[t] = s[t]; x", "x[t] = s[t ^ 1]; x", ("wrong-result",)),
    Mistake("last_stage_without_a_barrier", "__syncthreads(); // last\n  x[t] = s[t]", "x[t] = s[t ^ 1]", SHARED_RACE),
    tolerance=1e-3,
)

add(
    "alignment_of_smith_and_waterman",
    """__global__ void k(const char* a, const char* b, int* best, int n) {
  __shared__ int h[3][33];
  int t = threadIdx.x, most = 0;
  h[0][t + 1] = h[1][t + 1] = h[2][t + 1] = 0;
  if (t < 3) h[t][0] = 0;
  __syncthreads();
  for (int d = 0; d < 2 * n - 1; ++d) {
    int j = d - t, *now = h[d % 3], *last = h[(d + 2) % 3], *before = h[(d + 1) % 3], v = 0;
    if (j >= 0 && j < n) {
      v = max(max(0, before[t] + (a[t] == b[j] ? 2 : -1)), max(last[t] - 1, last[t + 1] - 1));
      if (j == 0) v = max(0, max(a[t] == b[0] ? 2 : -1, last[t] - 1));
      most = max(most, v);
    }
    now[t + 1] = v;
    __syncthreads(); // diagonal
  }
  most = __reduce_max_sync(~0u, most);
  if (t == 0) *best = most;
}""",
    lambda r: [r.integers(0, 4, 32).astype(np.int8), r.integers(0, 4, 32).astype(np.int8), _out(1, np.int32), 32],
    lambda a, b, best, n: {"best": [_alignment(a, b)]},
    Mistake("diagonals_without_a_barrier", "__syncthreads(); // diagonal", "", ("shared-race",)),
    Mistake("a_border_not_set", "if (t < 3) h[t][0] = 0;", "", ("unwritten-read",)),
    architecture="sm_80",
)


def _alignment(a: np.ndarray, b: np.ndarray) -> int:
    h = np.zeros((len(a) + 1, len(b) + 1), np.int64)
    for i in range(len(a)):
        for j in range(len(b)):
            h[i + 1, j + 1] = max(0, h[i, j] + (2 if a[i] == b[j] else -1), h[i, j + 1] - 1, h[i + 1, j] - 1)
    return int(h.max())


add(
    "random_numbers_of_xorshift",
    """__global__ void k(unsigned* s, int* inside, int n) {
  unsigned v = s[threadIdx.x]; int hits = 0;
  for (int i = 0; i < n; ++i) {
    v ^= v << 13; v ^= v >> 17; v ^= v << 5; unsigned x = v >> 17;
    v ^= v << 13; v ^= v >> 17; v ^= v << 5; unsigned y = v >> 17;
    hits += x * x + y * y < 1u << 30;
  }
  s[threadIdx.x] = v; atomicAdd(inside, hits);
}""",
    lambda r: [np.arange(1, 33, dtype=np.uint32), _out(1, np.int32), 40],
    lambda s, inside, n: _xorshift(s, n),
    Mistake("hits_added_plainly", "atomicAdd(inside, hits)", "*inside += hits", GLOBAL_RACE),
)


def _xorshift(s: np.ndarray, n: int) -> Arrays:
    v, hits = s.copy(), 0

    def step() -> np.ndarray:
        nonlocal v
        v = v ^ (v << np.uint32(13))
        v = v ^ (v >> np.uint32(17))
        v = v ^ (v << np.uint32(5))
        return v >> np.uint32(17)

    for _ in range(n):
        x, y = step(), step()
        hits += int((x * x + y * y < 1 << 30).sum())
    return {"s": v, "inside": [hits]}


add(
    "collatz_with_divergence",
    """__global__ void k(const int* x, int* y) {
  int v = x[threadIdx.x] + 1, n = 0;
  while (v > 1) { v = v & 1 ? 3 * v + 1 : v / 2; if (++n > 500) return; }
  y[threadIdx.x] = n;
}""",
    lambda r: [np.arange(64, dtype=np.int32), _out(64, np.int32)],
    lambda x, y: {"y": [_collatz(int(v) + 1) for v in x]},
    Mistake("an_uninitialised_count", "n = 0", "n", ("undefined-register", "wrong-result")),
    block=64,
)


def _collatz(v: int) -> int:
    n = 0
    while v > 1:
        v, n = (3 * v + 1 if v & 1 else v // 2), n + 1
    return n


# -- types and bits ----------------------------------------------------------------------------------------------

add(
    "atomics_on_halves",
    """#include <cuda_fp16.h>
__global__ void k(__half2* sum) { atomicAdd(sum, __floats2half2_rn(1.0f, (float)threadIdx.x)); }""",
    lambda r: [_out(2, np.float16)],
    lambda sum: {"sum": [32, 496]},
    Mistake(
        "added_plainly",
        "atomicAdd(sum, __floats2half2_rn(1.0f, (float)threadIdx.x))",
        "*sum = __hadd2(*sum, __floats2half2_rn(1.0f, (float)threadIdx.x))",
        GLOBAL_RACE,
    ),
)

add(
    "products_of_bfloat16",
    """#include <cuda_bf16.h>
__global__ void k(const float* x, const float* y, float* z) {
  int i = threadIdx.x;
  __nv_bfloat162 a = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]), b = __floats2bfloat162_rn(y[2 * i], y[2 * i + 1]);
  float2 p = __bfloat1622float2(__hmul2(a, b));
  z[i] = p.x + p.y;
}""",
    lambda r: [_floats(r, 64), _floats(r, 64), _out(32)],
    lambda x, y, z: {"z": (x * y).reshape(32, 2).sum(1)},
)

add(
    "round_trip_through_fp8",
    """#include <cuda_fp8.h>
__global__ void k(const float* x, float* y) { __nv_fp8_e4m3 v(x[threadIdx.x]); y[threadIdx.x] = float(v); }""",
    lambda r: [np.arange(-16, 16, dtype=np.float32), _out(32)],
    lambda x, y: {"y": x},
    architecture="sm_90",
)

add(
    "bytes_bits_and_video_instructions",
    """__global__ void k(const unsigned* x, unsigned* y) {
  unsigned v = x[threadIdx.x], w = x[threadIdx.x ^ 1];
  y[4 * threadIdx.x] = __byte_perm(v, 0, 0x0123);
  y[4 * threadIdx.x + 1] = __vabsdiffu4(v, w);
  y[4 * threadIdx.x + 2] = __dp4a(v, w, 7u) + __popc(v) + __clz(v) + __ffs(w);
  y[4 * threadIdx.x + 3] = __funnelshift_l(v, w, 8) ^ __brev(v) ^ __umulhi(v, w) ^ __vaddus4(v, w);
}""",
    lambda r: [r.integers(1, 1 << 32, 32, dtype=np.uint64).astype(np.uint32), _out(128, np.uint32)],
    lambda x, y: {"y": _bits(x)},
    Mistake("one_byte_off", "v = x[threadIdx.x]", "v = *(const unsigned*)((const char*)x + threadIdx.x)", ("misaligned",)),
)


def _bits(x: np.ndarray) -> np.ndarray:
    rows = []
    for v, w in zip(x.tolist(), x.reshape(-1, 2)[:, ::-1].ravel().tolist(), strict=True):
        p, q = v.to_bytes(4, "little"), w.to_bytes(4, "little")
        difference = bytes(abs(a - b) for a, b in zip(p, q, strict=True))
        total = bytes(min(a + b, 255) for a, b in zip(p, q, strict=True))
        dot = sum(a * b for a, b in zip(p, q, strict=True)) + 7
        counts = v.bit_count() + 32 - v.bit_length() + (w & -w).bit_length()
        reverse = int(f"{v:032b}"[::-1], 2)
        rows += [
            int.from_bytes(p, "big"),
            int.from_bytes(difference, "little"),
            dot + counts,
            ((w << 8 | v >> 24) & 0xFFFFFFFF) ^ reverse ^ (v * w >> 32) ^ int.from_bytes(total, "little"),
        ]
    return np.array(rows, np.uint32)


add(
    "powers_modulo_a_prime",
    """__global__ void k(unsigned long long* x, unsigned long long m) {
  unsigned long long b = x[threadIdx.x] % m, r = 1;
  for (unsigned e = 65537; e; e >>= 1) { if (e & 1) r = r * b % m; b = b * b % m; }
  x[threadIdx.x] = r;
}""",
    lambda r: [r.integers(1, 1 << 40, 32).astype(np.uint64), np.uint64(4294967291)],
    lambda x, m: {"x": [pow(int(v), 65537, int(m)) for v in x]},
)

add(
    "compensated_sum_in_double",
    """__global__ void k(const double* x, double* y, int n) {
  double sum = 0, rest = 0;
  for (int i = 0; i < n; ++i) { double v = __dadd_rn(x[i * 32 + threadIdx.x], -rest), t = __dadd_rn(sum, v);
    rest = __dadd_rn(__dadd_rn(t, -sum), -v); sum = t; }
  y[threadIdx.x] = sum;
}""",
    lambda r: [r.standard_normal(32 * 20), np.zeros(32), 20],
    lambda x, y, n: {"y": x.reshape(20, 32).sum(0)},
    Mistake("one_row_more", "i < n", "i <= n", ("out-of-bounds",)),
    tolerance=1e-14,
)

# -- the language ------------------------------------------------------------------------------------------------

add(
    "text_of_a_kernel",
    """#include <cstdio>
__global__ void k(int n) { if (threadIdx.x == 3) printf("%d of %s: %5.2f %c\\n", n, "warp", 1.5, 'x'); }""",
    lambda r: [7],
    lambda n: {},
    output="7 of warp:  1.50 x\n",
)

add(
    "a_list_on_the_heap",
    """struct Node { int value; Node* next; };
__global__ void k(int* y) {
  Node* head = nullptr;
  for (int i = 0; i < 4; ++i) { Node* node = (Node*)malloc(sizeof(Node)); node->value = i * (int)threadIdx.x;
    node->next = head; head = node; }
  int sum = 0;
  while (head) { Node* next = head->next; sum += head->value; free(head); head = next; }
  y[threadIdx.x] = sum;
}""",
    lambda r: [_out(8, np.int32)],
    lambda y: {"y": np.arange(8) * 6},
    Mistake(
        "used_after_free",
        "Node* next = head->next; sum += head->value; free(head); head = next;",
        "sum += head->value; free(head); head = head->next;",
        ("out-of-bounds",),
    ),
    Mistake("freed_twice", "free(head);", "free(head); free(head);", ("bad-allocation",)),
    Mistake("a_member_not_set", "node->next = head;", "if (i) node->next = head;", ("unwritten-read",)),
    block=8,
)

add(
    "recursion_of_hanoi",
    """__device__ __noinline__ int moves(int n, int a, int b) { return n == 0 ? 0 : moves(n - 1, a, 3 - a - b) * 2 + 1 + (a == 9); }
__global__ void k(int* y) { y[threadIdx.x] = moves(threadIdx.x, 0, 2); }""",
    lambda r: [_out(8, np.int32)],
    lambda y: {"y": 2 ** np.arange(8) - 1},
    Mistake("no_end", "n == 0 ? 0 : moves(", "moves(", ("trapped", "deadlock")),
    block=8,
)

add(
    "virtual_functions",
    """struct Shape { __device__ virtual int area() const = 0; };
struct Square : Shape { int a; __device__ Square(int a) : a(a) {} __device__ int area() const override { return a * a; } };
struct Strip : Shape { int a; __device__ Strip(int a) : a(a) {} __device__ int area() const override { return 2 * a; } };
__device__ __noinline__ int measure(const Shape* s) { return s->area(); }
__global__ void k(int* y) {
  Square square(threadIdx.x); Strip strip(threadIdx.x);
  y[threadIdx.x] = measure(threadIdx.x % 2 ? (const Shape*)&square : (const Shape*)&strip);
}""",
    lambda r: [_out(8, np.int32)],
    lambda y: {"y": [i * i if i % 2 else 2 * i for i in range(8)]},
    block=8,
)

add(
    "functions_from_a_table",
    """typedef int (*Step)(int);
__device__ __noinline__ int twice(int v) { return 2 * v; }
__device__ __noinline__ int next(int v) { return v + 1; }
__device__ Step steps[2] = {twice, next};
__global__ void k(int* y) { y[threadIdx.x] = steps[threadIdx.x & 1](y[threadIdx.x]); }""",
    lambda r: [np.arange(8, dtype=np.int32)],
    lambda y: {"y": [i + 1 if i & 1 else 2 * i for i in range(8)]},
    block=8,
)

add(
    "insertion_sort_in_local_memory",
    """__global__ void k(int* x) {
  int a[8];
  for (int i = 0; i < 8; ++i) { int v = x[threadIdx.x * 8 + i], j = i; while (j > 0 && a[j - 1] > v) { a[j] = a[j - 1]; --j; } a[j] = v; }
  for (int i = 0; i < 8; ++i) x[threadIdx.x * 8 + i] = a[i];
}""",
    lambda r: [_ints(r, 128)],
    lambda x: {"x": np.sort(x.reshape(16, 8)).ravel()},
    Mistake("compared_with_nothing", "j = i;", "j = i ? i : 1;", ("unwritten-read", "undefined-register", "wrong-result")),
    block=16,
)

# -- blocks that wait for each other -----------------------------------------------------------------------------

add(
    "a_lock_by_compare_and_swap",
    """__device__ int lock;
__global__ void k(int* count) {
  if (threadIdx.x == 0) {
    while (atomicCAS(&lock, 0, 1) != 0) __nanosleep(20);
    __threadfence();
    *count += 1;
    __threadfence(); // release
    atomicExch(&lock, 0);
  }
}""",
    lambda r: [_out(1, np.int32)],
    lambda count: {"count": [8]},
    Mistake("no_release", "__threadfence(); // release", "", GLOBAL_RACE),
    Mistake("never_unlocked", "atomicExch(&lock, 0);", "", ("deadlock",)),
    Mistake("not_locked", "while (atomicCAS(&lock, 0, 1) != 0) __nanosleep(20);", "", GLOBAL_RACE),
    grid=8,
)

add(
    "a_message_by_release_and_acquire",
    """__global__ void k(int* data, int* flag, int* out) {
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0) { *data = 42; asm volatile("st.release.gpu.b32 [%0], %1;" :: "l"(flag), "r"(1) : "memory"); }
    else { int v; do asm volatile("ld.acquire.gpu.b32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory"); while (!v); *out = *data; }
  }
}""",
    lambda r: [_out(1, np.int32), _out(1, np.int32), _out(1, np.int32)],
    lambda data, flag, out: {"out": [42]},
    Mistake("relaxed_store", "st.release.gpu", "st.relaxed.gpu", GLOBAL_RACE),
    Mistake("relaxed_load", "ld.acquire.gpu", "ld.relaxed.gpu", GLOBAL_RACE),
    Mistake("scope_of_the_block", "st.release.gpu", "st.release.cta", ("global-race", "scope-race")),
    Mistake("nobody_sends", 'asm volatile("st.release.gpu.b32 [%0], %1;" :: "l"(flag), "r"(1) : "memory");', "", ("deadlock",)),
    grid=2,
)

add(
    "tickets_of_a_queue",
    """__device__ int next;
__global__ void k(const int* x, int* y, int n) {
  __shared__ int item;
  while (true) {
    if (threadIdx.x == 0) item = atomicAdd(&next, 64);
    __syncthreads();
    int i = item + threadIdx.x;
    __syncthreads(); // taken
    if (i - threadIdx.x >= n) return;
    if (i < n) y[i] = x[i] * 2;
  }
}""",
    lambda r: [_ints(r, 150), _out(150, np.int32), 150],
    lambda x, y, n: {"y": 2 * x},
    Mistake("taken_too_late", "__syncthreads(); // taken", "", SHARED_RACE),
    Mistake("last_items_unchecked", "if (i < n) y", "y", ("out-of-bounds",)),
    block=64,
    grid=2,
)

add(
    "atomics_of_one_block",
    """__global__ void k(int* count) { atomicAdd_block(&count[0], 1); }""",
    lambda r: [_out(1, np.int32)],
    lambda count: {"count": [64]},
    Mistake("two_blocks", "count[0], 1)", "count[0], 2)", ("scope-race",), grid=2),
    block=64,
)

add(
    "breadth_first_search",
    """__global__ void k(const int* rows, const int* edges, int* level, int depth, int* more) {
  int v = threadIdx.x;
  if (atomicAdd(&level[v], 0) == depth)
    for (int e = rows[v]; e < rows[v + 1]; ++e)
      if (atomicCAS(&level[edges[e]], -1, depth + 1) == -1) atomicOr(more, 1);
}""",
    lambda r: [
        np.arange(0, 66, 2, dtype=np.int32),
        np.array([n for v in range(32) for n in ((v + 1) % 32, (v + 5) % 32)], np.int32),
        np.array([0] + [-1] * 31, np.int32),
        0,
        _out(1, np.int32),
    ],
    lambda rows, edges, level, depth, more: {"level": [{0: 0, 1: 1, 5: 1}.get(v, -1) for v in range(32)], "more": [1]},
    Mistake("level_read_plainly", "atomicAdd(&level[v], 0)", "level[v]", GLOBAL_RACE),
    Mistake("edges_beyond_the_last", "e < rows[v + 1]", "e < rows[v + 1] + (v == 0) * 64", ("out-of-bounds",)),
)

# -- barriers and copies -----------------------------------------------------------------------------------------

add(
    "producer_and_consumer_on_named_barriers",
    """__global__ void k(const int* x, int* y) {
  __shared__ int s[32];
  int t = threadIdx.x % 32;
  if (threadIdx.x < 32)
    for (int i = 0; i < 4; ++i) {
      if (i) asm volatile("bar.sync 2, 64;" ::: "memory");
      s[t] = x[i * 32 + t];
      asm volatile("bar.arrive 1, 64;" ::: "memory");
    }
  else
    for (int i = 0; i < 4; ++i) {
      asm volatile("bar.sync 1, 64;" ::: "memory");
      y[i * 32 + t] = s[31 - t];
      if (i < 3) asm volatile("bar.arrive 2, 64;" ::: "memory");
    }
}""",
    lambda r: [_ints(r, 128), _out(128, np.int32)],
    lambda x, y: {"y": x.reshape(4, 32)[:, ::-1].ravel()},
    Mistake("slot_never_given_back", 'if (i < 3) asm volatile("bar.arrive 2, 64;" ::: "memory");', "", ("divergent-barrier",)),
    Mistake(
        "slot_refilled_early",
        'if (i) asm volatile("bar.sync 2, 64;" ::: "memory");',
        "",
        ("shared-race", "deadlock", "divergent-barrier", "barrier-misuse"),
    ),
    Mistake("another_barrier", "bar.sync 1, 64", "bar.sync 3, 64", ("divergent-barrier",)),
    block=64,
)

add(
    "copies_in_two_stages",
    """__global__ void k(const int* x, int* y) {
  __shared__ int s[2][64];
  auto copy = [&](int i) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\\ncp.async.commit_group;" ::
      "r"((unsigned)__cvta_generic_to_shared(&s[i & 1][threadIdx.x])), "l"(x + i * 64 + threadIdx.x) : "memory");
  };
  copy(0);
  for (int i = 0; i < 4; ++i) {
    if (i < 3) { copy(i + 1); asm volatile("cp.async.wait_group 1;" ::: "memory"); }
    else asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    y[i * 64 + threadIdx.x] = s[i & 1][63 - threadIdx.x];
    __syncthreads(); // used
  }
}""",
    lambda r: [_ints(r, 256), _out(256, np.int32)],
    lambda x, y: {"y": x.reshape(4, 64)[:, ::-1].ravel()},
    Mistake("one_group_too_few_awaited", "cp.async.wait_group 1;", "cp.async.wait_group 2;", ("in-flight-read",)),
    Mistake("no_barrier_behind_the_wait", "__syncthreads();\n    y", "y", ("shared-race", "in-flight-read")),
    Mistake("overwritten_too_early", "__syncthreads(); // used", "", ("shared-race",)),
    Mistake("nothing_awaited", "cp.async.wait_group 0;", "", ("in-flight-read",)),
    block=64,
    architecture="sm_80",
)

MBARRIER = """
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void wait(void* bar, int parity) {
  asm volatile("{.reg .pred p;\\nAGAIN: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\\n@!p bra AGAIN;}"
    :: "r"(at(bar)), "r"(parity) : "memory");
}
"""

add(
    "a_barrier_in_memory",
    MBARRIER
    + """__global__ void k(int* x) {
  __shared__ unsigned long long bar; __shared__ int s[64];
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 64;" :: "r"(at(&bar)) : "memory");
  __syncthreads();
  for (int turn = 0; turn < 3; ++turn) {
    s[threadIdx.x] = x[threadIdx.x] + turn;
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at(&bar)) : "memory");
    wait(&bar, turn & 1);
    int v = s[63 - threadIdx.x];
    __syncthreads(); // used
    x[threadIdx.x] = v;
  }
}""",
    lambda r: [_ints(r, 64)],
    lambda x: {"x": x[::-1] + 3},
    Mistake("one_arrival_too_many", "[%0], 64;", "[%0], 65;", ("deadlock",)),
    Mistake("wrong_parity", "turn & 1", "~turn & 1", ("shared-race", "deadlock", "unwritten-read")),
    Mistake("not_initialised", "if (threadIdx.x == 0) asm", "if (threadIdx.x == 99) asm", ("barrier-misuse",)),
    Mistake("not_awaited", "wait(&bar, turn & 1);", "", SHARED_RACE),
    Mistake("initialised_without_a_barrier", "  __syncthreads();\n  for", "  for", ("early-barrier-use",)),
    block=64,
    architecture="sm_90a",
)

add(
    "a_bulk_copy_there_and_back",
    MBARRIER
    + """__global__ void k(const float* x, float* y) {
  __shared__ __align__(16) float s[64]; __shared__ unsigned long long bar;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(at(&bar)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 256;" :: "r"(at(&bar)) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
      :: "r"(at(s)), "l"(x), "r"(at(&bar)) : "memory");
  }
  __syncthreads();
  wait(&bar, 0);
  s[threadIdx.x] *= 2;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads(); // doubled
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256; cp.async.bulk.commit_group;"
      :: "l"(y), "r"(at(s)) : "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}""",
    lambda r: [_floats(r, 64), _out(64)],
    lambda x, y: {"y": 2 * x},
    Mistake(
        "too_few_bytes_expected",
        '[%0], 256;" :: "r"(at(&bar))',
        '[%0], 128;" :: "r"(at(&bar))',
        ("barrier-misuse", "in-flight-read", "deadlock", "shared-race"),
    ),
    Mistake("too_many_bytes_expected", '[%0], 256;" :: "r"(at(&bar))', '[%0], 512;" :: "r"(at(&bar))', ("deadlock",)),
    Mistake("no_fence_between_proxies", 'asm volatile("fence.proxy.async;" ::: "memory");', "", ("missing-proxy-fence",)),
    Mistake("read_before_it_is_there", "wait(&bar, 0);", "", ("in-flight-read", "shared-race")),
    Mistake("never_awaited", 'asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");', "", ("unfinished-copy",)),
    Mistake("stored_before_the_others", "__syncthreads(); // doubled", "", ("shared-race",)),
    block=64,
    architecture="sm_90a",
)

add(
    "shared_memory_of_the_neighbour",
    """__global__ void k(int* x) {
  __shared__ int s[32];
  s[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
  unsigned mine = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]), theirs; int v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(blockIdx.x ^ 1));
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(theirs) : "memory");
  x[blockIdx.x * 32 + threadIdx.x] = v;
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; // end" ::: "memory");
}""",
    lambda r: [_ints(r, 64)],
    lambda x: {"x": x.reshape(2, 32)[::-1].ravel()},
    Mistake(
        "no_cluster_barrier",
        'asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");',
        "",
        ("cluster-misuse", "shared-race", "unwritten-read"),
    ),
    Mistake(
        "ended_too_early",
        'asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; // end" ::: "memory");',
        "",
        ("outliving-access",),
    ),
    Mistake("a_block_that_is_not_there", "blockIdx.x ^ 1", "blockIdx.x + 1", ("cluster-misuse", "out-of-bounds")),
    grid=2,
    cluster=2,
    architecture="sm_90a",
)

# -- headers of CUDA ---------------------------------------------------------------------------------------------

add(
    "tiles_of_cooperative_groups",
    """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void k(const int* x, int* y) {
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  int v = x[threadIdx.x];
  for (int d = tile.size() / 2; d; d /= 2) v += tile.shfl_down(v, d);
  if (tile.thread_rank() == 0) y[threadIdx.x / 8] = v;
}""",
    lambda r: [_ints(r, 64), _out(8, np.int32)],
    lambda x, y: {"y": x.reshape(8, 8).sum(1)},
    Mistake("too_large_a_result", "y[threadIdx.x / 8]", "y[threadIdx.x / 4]", ("out-of-bounds",)),
    block=64,
)

add(
    "coalesced_threads_add_together",
    """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void k(const int* x, int* count, int* slots) {
  if (x[threadIdx.x] & 1) {
    auto active = cg::coalesced_threads();
    int base = 0;
    if (active.thread_rank() == 0) base = atomicAdd(count, (int)active.size());
    slots[threadIdx.x] = active.shfl(base, 0) + active.thread_rank();
  }
}""",
    lambda r: [np.arange(32, dtype=np.int32), _out(1, np.int32), _out(32, np.int32)],
    lambda x, count, slots: {"count": [16], "slots": np.where(x & 1, x // 2, 0)},
    Mistake("beyond_the_slots", "slots[threadIdx.x]", "slots[threadIdx.x + 1]", ("out-of-bounds",)),
)

add(
    "the_whole_grid_meets",
    """#include <cooperative_groups.h>
__global__ void k(int* x) {
  auto grid = cooperative_groups::this_grid();
  int i = grid.thread_rank();
  x[i] += 1;
  grid.sync();
  int v = x[(i + 32) % 128];
  grid.sync(); // read
  x[i] += v;
}""",
    lambda r: [_ints(r, 128)],
    lambda x: {"x": x + 1 + np.roll(x + 1, -32)},
    Mistake("written_before_all_have_read", "grid.sync(); // read", "", GLOBAL_RACE),
    Mistake("read_before_all_have_written", "  grid.sync();\n  int v", "  int v", GLOBAL_RACE),
    grid=4,
)

add(
    "a_pipeline_of_cuda",
    """#include <cuda_pipeline.h>
__global__ void k(const int* x, int* y) {
  __shared__ int s[2][32];
  __pipeline_memcpy_async(&s[0][threadIdx.x], x + threadIdx.x, 4); __pipeline_commit();
  __pipeline_memcpy_async(&s[1][threadIdx.x], x + 32 + threadIdx.x, 4); __pipeline_commit();
  __pipeline_wait_prior(1);
  __syncwarp();
  y[threadIdx.x] = s[0][31 - threadIdx.x];
  __pipeline_wait_prior(0);
  __syncwarp();
  y[32 + threadIdx.x] = s[1][31 - threadIdx.x];
}""",
    lambda r: [_ints(r, 64), _out(64, np.int32)],
    lambda x, y: {"y": x.reshape(2, 32)[:, ::-1].ravel()},
    Mistake("one_stage_too_few", "__pipeline_wait_prior(1)", "__pipeline_wait_prior(2)", ("in-flight-read",)),
    Mistake("lanes_not_met", "__syncwarp();", "", ("shared-race", "in-flight-read")),
    architecture="sm_80",
)

add(
    "matrices_of_a_warp",
    """#include <mma.h>
using namespace nvcuda;
__global__ void k(const half* a, const half* b, float* c) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.0f);
  wmma::load_matrix_sync(fa, a, 16); wmma::load_matrix_sync(fb, b, 16);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}""",
    lambda r: [_floats(r, 16, 16).astype(np.float16), _floats(r, 16, 16).astype(np.float16), _out(256)],
    lambda a, b, c: {"c": (a.astype(np.float32) @ b.astype(np.float32).T).ravel()},
    Mistake("rows_too_far_apart", "wmma::load_matrix_sync(fa, a, 16)", "wmma::load_matrix_sync(fa, a, 24)", ("out-of-bounds",)),
    Mistake(
        "half_a_warp",
        "wmma::fill_fragment",
        "if (threadIdx.x >= 16) return; wmma::fill_fragment",
        ("divergent-warp", "deadlock", "undefined-register"),
    ),
    architecture="sm_80",
)

add(
    "references_that_are_atomic",
    """#include <cuda/atomic>
__global__ void k(int* data, int* flag, int* out) {
  cuda::atomic_ref<int, cuda::thread_scope_block> f(*flag);
  if (threadIdx.x == 0) { *data = 7; f.store(1, cuda::std::memory_order_release); }
  if (threadIdx.x == 32) { while (!f.load(cuda::std::memory_order_acquire)); *out = *data; }
}""",
    lambda r: [_out(1, np.int32), _out(1, np.int32), _out(1, np.int32)],
    lambda data, flag, out: {"out": [7]},
    Mistake("relaxed_load", "memory_order_acquire", "memory_order_relaxed", GLOBAL_RACE),
    block=64,
    architecture="sm_80",
)

add(
    "sum_of_a_block_by_cub",
    """#include <cub/block/block_reduce.cuh>
__global__ void k(const int* x, int* y) {
  typedef cub::BlockReduce<int, 64> Reduce;
  __shared__ typename Reduce::TempStorage storage;
  int first = Reduce(storage).Sum(x[threadIdx.x]);
  __syncthreads();
  int second = Reduce(storage).Reduce(x[threadIdx.x], [](int a, int b) { return a < b ? a : b; });
  if (threadIdx.x == 0) { y[0] = first; y[1] = second; }
}""",
    lambda r: [_ints(r, 64), _out(2, np.int32)],
    lambda x, y: {"y": [x.sum(), x.min()]},
    Mistake("storage_used_again", "  __syncthreads();\n  int second", "  int second", SHARED_RACE),
    block=64,
    architecture="sm_80",
)

MAP = "struct __align__(64) CUtensorMap { unsigned long long opaque[16]; };"


def _map(array: np.ndarray, **more: Any) -> TensorMap:
    """A map over rows of floats, with boxes of 8 rows and 32 columns."""
    rows, columns = array.shape
    return TensorMap("f32", (columns, rows), (4 * columns,), (32, 8), base=array, **more)


add(
    "boxes_of_a_tensor_map",
    MAP
    + MBARRIER
    + """__global__ void k(const __grid_constant__ CUtensorMap map, float* y) {
  __shared__ __align__(1024) float s[256]; __shared__ unsigned long long bar;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(at(&bar)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" :: "r"(at(&bar)) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
      :: "r"(at(s)), "l"(&map), "r"(at(&bar)), "r"(16), "r"(12) : "memory");
  }
  __syncthreads();
  wait(&bar, 0);
  int row = threadIdx.x / 32, place = threadIdx.x * 4;
  y[threadIdx.x] = *(float*)((char*)s + (place ^ (row & 7) << 4)); // swizzled
}""",
    lambda r: [_map(_floats(r, 16, 64), swizzle="128B"), _out(256)],
    lambda map, y: {"y": np.pad(map.base, ((0, 8), (0, 0)))[12:20, 16:48].ravel()},
    Mistake("not_awaited", "wait(&bar, 0);", "", ("in-flight-read",)),
    Mistake("not_swizzled", "(place ^ (row & 7) << 4)", "place", ("wrong-result",)),
    Mistake("bytes_that_never_come", "[%0], 1024;", "[%0], 1040;", ("deadlock",)),
    Mistake(
        "a_place_that_is_not_aligned",
        '"r"(at(s)), "l"(&map)',
        '"r"(at(s) + 16), "l"(&map)',
        ("misaligned", "invalid-copy", "out-of-bounds"),
    ),
    block=256,
    architecture="sm_90a",
)

add(
    "one_product_of_a_warpgroup",
    """__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ unsigned long long matrix(const void* p) { return at(p) >> 4 | 8ull << 16 | 16ull << 32; } // 128 and 256 bytes apart
__global__ void k(const unsigned short* a, const unsigned short* b, float* c) {
  __shared__ __align__(128) unsigned short s[1024], t[128];
  for (int i = threadIdx.x; i < 1024; i += 128) { int r = i / 16, k = i % 16; s[r % 8 * 8 + r / 8 * 128 + k % 8 + k / 8 * 64] = a[i]; }
  { int r = threadIdx.x / 16, k = threadIdx.x % 16; t[r * 8 + k % 8 + k / 8 * 64] = b[threadIdx.x]; }
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(matrix(s)), "l"(matrix(t)));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
  for (int i = 0; i < 4; ++i) c[(row + i / 2 * 8) * 8 + column + i % 2] = d[i];
}""",
    lambda r: [_floats(r, 64, 16).astype(np.float16), _floats(r, 8, 16).astype(np.float16), _out(512)],
    lambda a, b, c: {"c": (a.astype(np.float32) @ b.astype(np.float32).T).ravel()},
    Mistake(
        "not_awaited", 'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");', "", ("register-in-flight", "unfinished-wgmma")
    ),
    Mistake(
        "never_committed", 'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");', "", ("register-in-flight", "unfinished-wgmma")
    ),
    Mistake("no_fence_of_the_proxy", 'asm volatile("fence.proxy.async;" ::: "memory");', "", ("missing-proxy-fence",)),
    Mistake("no_fence_of_wgmma", 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");', "", ("missing-warpgroup-fence",)),
    Mistake("no_barrier", "  __syncthreads();\n", "", ("shared-race", "missing-proxy-fence")),
    block=128,
    architecture="sm_90a",
)


def _relaxed(a: np.ndarray, steps: int) -> np.ndarray:
    now, then = a.copy(), a.copy()
    for _ in range(steps):
        then[1:-1] = (now[:-2] + now[2:]) / 2
        now, then = then, now
    return now


def _twice(random: np.random.Generator) -> list[Any]:
    a = _floats(random, 256)
    return [a, a.copy(), 256, 4]


add(
    "a_grid_barrier_by_hand",
    """__device__ unsigned count, generation;
__device__ void meet() {
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned mine = *(volatile unsigned*)&generation;
    __threadfence(); // releases
    if (atomicAdd(&count, 1) == gridDim.x - 1) { count = 0; __threadfence(); atomicAdd(&generation, 1); }
    else while (*(volatile unsigned*)&generation == mine) {}
    __threadfence(); // acquires
  }
  __syncthreads();
}
__global__ void k(float* a, float* b, int n, int steps) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int step = 0; step < steps; ++step) {
    if (i > 0 && i < n - 1) b[i] = (a[i - 1] + a[i + 1]) / 2;
    meet(); /* all */
    float* other = a; a = b; b = other;
  }
}""",
    _twice,
    lambda a, b, n, steps: {"a": _relaxed(a, steps)},
    Mistake("no_release", "__threadfence(); // releases", "", GLOBAL_RACE),
    Mistake("no_acquire", "__threadfence(); // acquires", "", GLOBAL_RACE),
    Mistake("no_meeting", "meet(); /* all */", "", GLOBAL_RACE),
    Mistake("one_block_counted_twice", "gridDim.x - 1) {", "gridDim.x) {", ("deadlock",)),
    block=64,
    grid=4,
)

add(
    "two_arrays_carved_from_dynamic_memory",
    """__global__ void k(const double* x, double* y, int n) {
  extern __shared__ char raw[];
  int* index = (int*)raw;
  double* value = (double*)(raw + (n * 4 + 7) / 8 * 8);
  index[threadIdx.x] = n - 1 - threadIdx.x;
  value[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = value[index[threadIdx.x]];
}""",
    lambda r: [r.random(33), _out(33, np.float64), 33],
    lambda x, y, n: {"y": x[::-1]},
    Mistake("not_rounded_up", "(n * 4 + 7) / 8 * 8", "n * 4", ("misaligned",)),
    Mistake("they_overlap", "(n * 4 + 7) / 8 * 8", "n / 4 * 8", SHARED_RACE),
    Mistake("too_far_apart", "(n * 4 + 7) / 8 * 8", "(n * 8 + 7) / 8 * 8", ("out-of-bounds",)),
    block=33,
    shared=33 * 8 + 136,
)

add(
    "matrices_of_a_warp_through_shared_memory",
    """#include <mma.h>
using namespace nvcuda;
__global__ void k(const half* a, const half* b, float* c, int n) {
  __shared__ half s[16][24], t[16][24];
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int k = 0; k < n; k += 16) {
    for (int i = threadIdx.x; i < 256; i += 32) {
      s[i / 16][i % 16] = a[i / 16 * n + k + i % 16];
      t[i / 16][i % 16] = b[i / 16 * n + k + i % 16];
    }
    __syncwarp(); // stored
    wmma::load_matrix_sync(left, &s[0][0], 24);
    wmma::load_matrix_sync(right, &t[0][0], 24);
    wmma::mma_sync(sum, left, right, sum);
    __syncwarp(); // loaded
  }
  wmma::store_matrix_sync(c, sum, 16, wmma::mem_row_major);
}""",
    lambda r: [_floats(r, 16, 48).astype(np.float16), _floats(r, 16, 48).astype(np.float16), _out(256), 48],
    lambda a, b, c, n: {"c": a.astype(np.float32) @ b.astype(np.float32).T},
    Mistake("no_barrier_after_the_stores", "__syncwarp(); // stored", "", SHARED_RACE),
    Mistake("no_barrier_after_the_loads", "__syncwarp(); // loaded", "", SHARED_RACE),
    Mistake("rows_lie_further_apart", "&t[0][0], 24", "&t[0][0], 16", ("unwritten-read",)),
)

add(
    "bins_in_the_shared_memory_of_a_cluster",
    """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void __cluster_dims__(2) k(const int* x, int n, int* bins) {
  __shared__ int own[64];
  auto cluster = cg::this_cluster();
  own[threadIdx.x] = 0;
  cluster.sync(); // cleared
  for (int i = blockIdx.x * 64 + threadIdx.x; i < n; i += gridDim.x * 64)
    atomicAdd(cluster.map_shared_rank(own, x[i] / 64) + x[i] % 64, 1);
  cluster.sync(); // counted
  atomicAdd(bins + cluster.block_rank() * 64 + threadIdx.x, own[threadIdx.x]);
}""",
    lambda r: [_ints(r, 256, 128), 256, _out(128, np.int32)],
    lambda x, n, bins: {"bins": np.bincount(x, minlength=128)},
    Mistake("blocks_clear_alone", "cluster.sync(); // cleared", "__syncthreads();", ("cluster-misuse", "shared-race")),
    Mistake("blocks_count_alone", "cluster.sync(); // counted", "__syncthreads();", ("outliving-access", "shared-race")),
    block=64,
    grid=4,
    architecture="sm_90",
)

# -- copies through libcu++ ---------------------------------------------------------------------------------------

LIBRARY = """#include <cuda/barrier>
#include <cuda/ptx>
using Barrier = cuda::barrier<cuda::thread_scope_block>;
namespace cde = cuda::device::experimental;
namespace ptx = cuda::ptx;
#pragma nv_diag_suppress static_var_with_dynamic_init
"""

add(
    "rows_by_bulk_copies_of_the_library",
    LIBRARY
    + """__global__ void k(const float* x, float* y) {
  __shared__ alignas(16) float row[256];
  __shared__ Barrier full;
  if (threadIdx.x == 0) { init(&full, blockDim.x); cde::fence_proxy_async_shared_cta(); /* initialised */ }
  __syncthreads();
  Barrier::arrival_token token;
  if (threadIdx.x == 0) {
    cuda::device::memcpy_async_tx(row, x + 256 * blockIdx.x, cuda::aligned_size_t<16>(sizeof(row)), full);
    token = cuda::device::barrier_arrive_tx(full, 1, sizeof(row));
  } else token = full.arrive();
  full.wait(cuda::std::move(token));
  for (int i = threadIdx.x; i < 256; i += blockDim.x) row[i] *= 2;
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads(); // doubled
  if (threadIdx.x == 0) {
    ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, y + 256 * blockIdx.x, row, sizeof(row));
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
  }
}""",
    lambda r: [_floats(r, 512), _out(512)],
    lambda x, y: {"y": 2 * x},
    Mistake("not_awaited", "full.wait(cuda::std::move(token));", "", ("in-flight-read", "shared-race")),
    Mistake("no_fence_between_proxies", "ptx::fence_proxy_async(ptx::space_shared);", "", ("missing-proxy-fence",)),
    Mistake("no_fence_behind_the_initialisation", "cde::fence_proxy_async_shared_cta(); /* init", "/* init", ("missing-init-fence",)),
    Mistake("too_many_bytes_expected", "barrier_arrive_tx(full, 1, sizeof(row))", "barrier_arrive_tx(full, 1, 2048)", ("deadlock",)),
    Mistake("bytes_not_expected", "barrier_arrive_tx(full, 1, sizeof(row))", "barrier_arrive_tx(full, 1, 16)", ("barrier-misuse",)),
    Mistake("one_arrival_too_many_awaited", "init(&full, blockDim.x)", "init(&full, blockDim.x + 1)", ("deadlock",)),
    Mistake("stored_before_the_others", "__syncthreads(); // doubled", "", ("shared-race",)),
    Mistake("reading_not_awaited", "ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());", "", ("unfinished-copy",)),
    Mistake("group_not_committed", "ptx::cp_async_bulk_commit_group();", "", ("unfinished-copy",)),
    block=64,
    grid=2,
    architecture="sm_90a",
)

add(
    "a_tile_by_tensor_copies_of_the_library",
    LIBRARY.replace("#include <cuda/barrier>", "#include <cuda.h>\n#include <cuda/barrier>")
    + """__global__ void k(const __grid_constant__ CUtensorMap array, int column, int row) {
  __shared__ alignas(128) int tile[8][32];
  __shared__ Barrier full;
  if (threadIdx.x == 0) { init(&full, blockDim.x); cde::fence_proxy_async_shared_cta(); /* initialised */ }
  __syncthreads();
  Barrier::arrival_token token;
  if (threadIdx.x == 0) {
    cde::cp_async_bulk_tensor_2d_global_to_shared(tile, &array, column, row, full);
    token = cuda::device::barrier_arrive_tx(full, 1, sizeof(tile));
  } else token = full.arrive();
  full.wait(cuda::std::move(token));
  for (int i = 0; i < 8; ++i) tile[i][threadIdx.x] += 100 * i;
  cde::fence_proxy_async_shared_cta(); // changed
  __syncthreads();
  if (threadIdx.x == 0) {
    cde::cp_async_bulk_tensor_2d_shared_to_global(&array, column, row, tile);
    cde::cp_async_bulk_commit_group();
    cde::cp_async_bulk_wait_group_read<0>();
    full.~Barrier();
  }
}""",
    lambda r: [TensorMap("s32", (64, 24), (256,), (32, 8), base=_ints(r, 24 * 64).reshape(24, 64)), 32, 8],
    lambda array, column, row: {"array": _raised(array.base)},
    Mistake("not_awaited", "full.wait(cuda::std::move(token));", "", ("in-flight-read", "shared-race", "in-flight-write")),
    Mistake("no_fence_between_proxies", "cde::fence_proxy_async_shared_cta(); // changed", "", ("missing-proxy-fence",)),
    Mistake("off_its_alignment", "global_to_shared(tile,", "global_to_shared(&tile[0][4],", ("misaligned",)),
    Mistake("too_few_bytes_expected", "barrier_arrive_tx(full, 1, sizeof(tile))", "barrier_arrive_tx(full, 1, 512)", ("barrier-misuse",)),
    Mistake("reading_not_awaited", "cde::cp_async_bulk_wait_group_read<0>();", "", ("unfinished-copy",)),
    architecture="sm_90a",
)


def _raised(array: np.ndarray) -> np.ndarray:
    wanted = array.copy()
    wanted[8:16, 32:] += 100 * np.arange(8, dtype=np.int32)[:, None]
    return wanted


add(
    "a_swizzled_tile_for_two_blocks_by_the_library",
    LIBRARY.replace("#include <cuda/barrier>", "#include <cuda.h>")
    .replace("using Barrier = cuda::barrier<cuda::thread_scope_block>;\n", "")
    .replace("namespace cde = cuda::device::experimental;\n", "")
    + """__global__ void k(const __grid_constant__ CUtensorMap array, int* out) {
  __shared__ alignas(1024) int tile[8][32];
  __shared__ unsigned long long full;
  unsigned long long* bar = &full;
  unsigned rank = ptx::get_sreg_cluster_ctarank();
  if (threadIdx.x == 0) { ptx::mbarrier_init((uint64_t*)bar, 1); ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster); }
  ptx::barrier_cluster_arrive(); ptx::barrier_cluster_wait();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, (uint64_t*)bar, sizeof(tile));
    const int32_t at[2] = {0, 8 * (int)(blockIdx.x / 2)};
    if (rank == 0)
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, &array, at, (uint64_t*)bar, (uint16_t)3);
  }
  while (!ptx::mbarrier_try_wait_parity((uint64_t*)bar, 0)) {}
  for (int i = threadIdx.x; i < 256; i += blockDim.x) {
    int row = i / 32, column = i % 32;
    out[256 * blockIdx.x + i] = tile[row][((column / 4) ^ row) * 4 + column % 4];
  }
}""",
    lambda r: [
        TensorMap("s32", (32, 16), (128,), (32, 8), swizzle="128B", base=_ints(r, 512).reshape(16, 32)),
        np.zeros(1024, np.int32),
    ],
    lambda array, out: {"out": array.base.reshape(2, 256).repeat(2, axis=0)},
    Mistake("blocks_do_not_meet", "ptx::barrier_cluster_arrive(); ptx::barrier_cluster_wait();", "__syncthreads();", ("cluster-misuse",)),
    Mistake("one_block_left_out", "(uint16_t)3", "(uint16_t)1", ("deadlock",)),
    Mistake("no_such_block", "(uint16_t)3", "(uint16_t)7", ("cluster-misuse",)),
    Mistake("parity_of_the_phase_before", "try_wait_parity((uint64_t*)bar, 0)", "try_wait_parity((uint64_t*)bar, 1)", ("in-flight-read",)),
    Mistake("not_fenced", "ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);", "", ("missing-init-fence",)),
    block=64,
    grid=4,
    cluster=2,
    architecture="sm_90a",
)

add(
    "a_stack_whose_nodes_come_back",
    """#include <cuda/atomic>
struct Node { cuda::atomic<unsigned, cuda::thread_scope_device> next; int value; };
__device__ Node nodes[65];
__device__ cuda::atomic<unsigned long long, cuda::thread_scope_device> head;
__global__ void k(int* out) {
  unsigned mine = 1 + blockIdx.x * blockDim.x + threadIdx.x;
  for (int turn = 0; turn < 3; ++turn) {
    nodes[mine].value = mine;
    unsigned long long old = head.load(cuda::memory_order_relaxed), top;
    do nodes[mine].next.store((unsigned)old, cuda::memory_order_relaxed);
    while (!head.compare_exchange_weak(old, (old >> 32) + 1 << 32 | mine, cuda::memory_order_release, cuda::memory_order_relaxed));
    top = head.load(cuda::memory_order_acquire);
    while (!head.compare_exchange_weak(top, (top >> 32) + 1 << 32 | nodes[(unsigned)top].next.load(cuda::memory_order_relaxed),
                                       cuda::memory_order_acquire, cuda::memory_order_acquire)) {}
    mine = (unsigned)top;
    if (nodes[mine].value != mine) return;
  }
  atomicAdd(&out[mine - 1], 1);
}""",
    lambda r: [_out(64, np.int32)],
    lambda out: {"out": np.ones(64)},
    Mistake("pushes_release_nothing", "cuda::memory_order_release", "cuda::memory_order_relaxed", GLOBAL_RACE),
    Mistake(
        "next_is_a_plain_number",
        "cuda::atomic<unsigned, cuda::thread_scope_device> next",
        "struct Plain { unsigned v; template <class O> __device__ unsigned load(O) { return v; } "
        "template <class O> __device__ void store(unsigned to, O) { v = to; } } next",
        GLOBAL_RACE,
    ),
    block=32,
    grid=2,
)
