"""Kernels in other styles, each with a mistake that one property must see: none may be called proved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("z3")

from gemmgen.cli.proof_files import ForeignKernel, read_foreign
from gemmgen.proof.prover import KernelProof, prove_sequence


@dataclass(frozen=True)
class Wrong:
    """A kernel's parameters, body and launch, and the property that does not hold."""

    parameters: str
    body: str
    arrays: tuple[str, ...]
    property: str
    grid: str = "ceil_div(n, 64)"
    block: tuple[int, ...] = (64,)
    expects: tuple[str, ...] = ()
    architecture: str | None = None

    @property
    def source(self) -> str:
        return f'extern "C" __global__ void kernel({self.parameters})\n{{\n{self.body}\n}}\n'

    def read(self, folder: Path) -> ForeignKernel:
        file = folder / "kernel.cu"
        file.write_text(self.source)
        return read_foreign(
            file,
            entry_name=None,
            architecture=self.architecture,
            block=self.block,
            grid=self.grid,
            arrays=self.arrays,
            expects=self.expects,
            shared="0",
            seconds=60,
        )


X, Y, N = "x=in f32[n]", "y=out f32[n]", "const float* x, float* y, int n"
AT = "int i = blockIdx.x * 64 + threadIdx.x;"
TILE = "__shared__ float s[64]; int t = threadIdx.x;"
COPY = (
    "auto copy = [](float* to, const float* from) {"
    ' asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory"); };'
)
WAIT = 'asm volatile("cp.async.wait_all;" ::: "memory");'

WRONG = {
    # Memory
    "a quotient on one way only": Wrong(
        "const float* x, float* y, int n, int d",
        "int i = (int)threadIdx.x - 5; if (d < 1) return;\n"
        "if (i >= 0) { unsigned q = (unsigned)i / (unsigned)d; if (q < n) y[q] = 1; } else y[i] = x[0];",
        (X, Y),
        "memory",
        "1",
    ),
    "a parameter's low byte": Wrong(N, "int b = (unsigned char)n; if (threadIdx.x < 1 && n < 300) y[b + 40] = 1;", (X, Y), "memory", "1"),
    "the address in 32 bits": Wrong(
        N, f"{AT} if (i < n) {{ float* z = (float*)(size_t)(unsigned)(size_t)y; z[i] = 1; }}", (X, Y), "memory"
    ),
    "two numbers in a register": Wrong(
        N, "unsigned v = __vadd2(threadIdx.x + 65535, 1u); if (v < n) y[v > 65535 ? 0 : v - 1] = 1;", (X, Y), "memory", "1"
    ),
    "a loop within a loop goes one too far": Wrong(
        N,
        "for (int a = 0; a < n; a += 64) for (int b = 0; b <= 64; b++) if (a + 63 < n) y[a + b] = 0;",
        (X, Y),
        "memory",
        "1",
        (1,),
        ("n <= 2147483000",),
    ),
    "the middle of a search": Wrong(
        N,
        f"{AT} int low = 0, high = n; while (low < high) {{ int mid = (low + high) / 2; "
        "if (x[mid] < 1) low = mid + 1; else high = mid; }"
        " if (i == 0) y[low] = 1;",
        (X, Y),
        "memory",
    ),
    "an index from memory": Wrong("const int* p, float* y, int n", f"{AT} if (i < n) y[p[i]] = 1;", ("p=in s32[n]", Y), "memory"),
    "a guard that wraps": Wrong(N, f"{AT} if ((unsigned)(i - 1) < (unsigned)n) y[i] = 1;", (X, Y), "memory"),
    "a product that wraps": Wrong(
        "float* y, int m, int n",
        "int i = blockIdx.x * 64 + threadIdx.x; if (i < m * n) y[i] = 1;",
        ("y=out f32[m, n]",),
        "memory",
        "ceil_div(m, 64) * n",
        (64,),
        ("m >= 1", "n >= 1"),
    ),
    "columns beyond the row": Wrong(
        "float* y, int m, int n, int ld",
        f"{AT} if (i < m) for (int j = 0; j < ld; j++) y[(long long)i * ld + j] = 0;",
        ("y=out f32[m, n : ld, 1]",),
        "memory",
        "ceil_div(m, 64)",
        (64,),
        ("ld >= n",),
    ),
    "four at once without a multiple": Wrong(
        N, f"{AT} if (4 * (long long)i < n) *(float4*)(y + 4 * (long long)i) = float4{{1, 2, 3, 4}};", (X, "y=out f32[n] @16"), "memory"
    ),
    "four at once from an odd place": Wrong(
        N,
        f"{AT} if (4 * (long long)i + 5 < n) *(float4*)(y + 4 * (long long)i + 1) = float4{{1, 2, 3, 4}};",
        (X, "y=out f32[n] @16"),
        "memory",
    ),
    "a tile of too few rows": Wrong(
        N,
        "__shared__ float s[7][9]; s[threadIdx.x / 8][threadIdx.x % 8] = 1; __syncthreads();"
        " if (threadIdx.x < n) y[threadIdx.x] = s[0][0];",
        (X, Y),
        "memory",
        "1",
    ),
    "a stack's end": Wrong(N, f"{AT} float v[4] = {{1, 2, 3, 4}}; if (i < n) {{ v[i % 5] = 2; y[i] = v[(i + n) % 4]; }}", (X, Y), "memory"),
    "a size in bytes": Wrong(N, f"{AT} if (i < 4 * n) y[i] = 1;", (X, Y), "memory", expects=("n <= 500000000",)),
    "the block before": Wrong(N, f"{AT} if (i < n) y[i] = x[i - 64 * (blockIdx.x > 5)] + x[i - 64 * (blockIdx.x < 3)];", (X, Y), "memory"),
    "the other array's extent": Wrong(
        "const float* x, float* y, int n, int m", f"{AT} if (i < n) y[i] = x[i];", ("x=in f32[m]", Y), "memory"
    ),
    "a limit of an earlier turn": Wrong(
        "const int* p, float* y, int n",
        "if (threadIdx.x) return; int i = 0, limit = 3;\n"
        "for (;;) { int c = limit & 3; y[c - i] = 1; limit = p[i]; i++; if (i >= c) break; }",
        ("p=in s32[n]", "y=inout f32[n]"),
        "memory",
        "1",
        expects=("n >= 8",),
    ),
    "a count of turns with a flag that each turn loads": Wrong(
        "const int* p, float* y, int n",
        "if (threadIdx.x) return; int c = 0, flag = 1;\n#pragma unroll 1\n"
        "for (int j = 0; j < n; j++) { if (flag) { y[j - c] = 1; c += 1; } flag = p[j]; }",
        ("p=in s32[n]", "y=inout f32[1]"),
        "memory",
        "1",
        expects=("n >= 8", "n <= 100000"),
    ),
    # Races
    "a quotient of a quotient in a loop": Wrong(
        "float* y, int n, int d, int e",
        "__shared__ int s[64]; if (d < 1 || e < 1) return; for (int t = 0; t < n; t++) "
        "{ int q = t / d / e; s[(q + threadIdx.x) & 63] = t; } __syncthreads(); if (threadIdx.x < n) y[threadIdx.x] = s[threadIdx.x];",
        (Y,),
        "races",
        "1",
    ),
    "a tree that stops waiting": Wrong(
        N,
        f"{TILE} s[t] = t < n ? x[t] : 0; __syncthreads(); for (int h = 32; h > 0; h /= 2) {{ if (t < h) s[t] += s[t + h];"
        " if (h > 8) __syncthreads(); } if (t == 0 && n > 0) y[0] = s[0];",
        (X, Y),
        "races",
        "1",
    ),
    "warps that are not together": Wrong(
        N, f"{TILE} s[t] = t < n ? x[t] : 0; __syncwarp(); if (t < n) y[t] = s[t ^ 32];", (X, Y), "races", "1"
    ),
    "two threads of one counter": Wrong(
        N, f"{TILE} if (t == 0) s[0] = 0; __syncthreads(); s[0] += 1; if (t < n) y[t] = s[0];", (X, Y), "races", "1"
    ),
    "atomics and a plain read": Wrong(
        N,
        "__shared__ int c; if (threadIdx.x == 0) c = 0; __syncthreads(); atomicAdd(&c, 1); if (threadIdx.x < n) y[threadIdx.x] = c;",
        (X, Y),
        "races",
        "1",
    ),
    "a slot that the eleventh turn shares": Wrong(
        N,
        f"{TILE} for (int a = 0; a < n; a++) {{ if (a != 11) __syncthreads(); s[(t + a) & 63] = a; }} __syncthreads();"
        " if (t < n) y[t] = s[t];",
        (X, Y),
        "races",
        "1",
    ),
    "barriers of odd turns": Wrong(
        N,
        f"{TILE} float v = 0; for (int a = 0; a < n; a++) {{ s[t] = a; if (a & 1) __syncthreads(); v += s[63 - t]; __syncthreads(); }}"
        " if (t < n) y[t] = v;",
        (X, Y),
        "races",
        "1",
    ),
    "one array inside another": Wrong(
        N,
        "__shared__ float s[64], r[64]; int t = threadIdx.x; s[t + 8] = 1; r[t] = 2; __syncthreads(); if (t < n) y[t] = r[t] + s[t];",
        (X, Y),
        "races",
        "1",
    ),
    "a flag in shared memory": Wrong(
        N, "__shared__ volatile int f; if (threadIdx.x == 0) f = 1; if (threadIdx.x < n) y[threadIdx.x] = f;", (X, Y), "races", "1"
    ),
    "a pointer that iterations exchange": Wrong(
        N,
        f"{AT} const float* a = x; float v = 0;\n#pragma unroll 1\n"
        "for (int j = 0; j < n; ++j) { if (i < n) v += *(volatile const float*)(a + (i ^ 1)); a = y; } if (i < n) y[i] = v;",
        (X, Y),
        "races",
    ),
    # Once
    "rows that overlap": Wrong(
        "float* y, int m, int n, int ld",
        f"{AT} if (i < n) for (int j = 0; j < m; j++) y[(long long)j * ld + i] = j;",
        ("y=out f32[m, n : ld, 1]",),
        "once",
        "ceil_div(n, 64)",
        (64,),
        ("ld >= 1",),
    ),
    "one block more than tiles": Wrong(
        N, "int i = blockIdx.x % ((n + 63) / 64) * 64 + threadIdx.x; if (i < n) y[i] = 1;", (X, Y), "once", "ceil_div(n, 64) + 1"
    ),
    "the last one twice": Wrong(
        N,
        f"{AT} if (i < n) y[i] = 1; if (i == n) y[n - 1] = 2;",
        (X, Y),
        "once",
        "ceil_div(n + 1, 64)",
        (64,),
        ("n >= 1", "n <= 2147483000"),
    ),
    "a clamped index": Wrong(N, f"{AT} y[min(i, n - 1)] = 1;", (X, Y), "once", expects=("n >= 1",)),
    "a store beside atomics": Wrong(
        "float* y, int n", f"{AT} if (i == 0) y[0] = 0; if (i < n) atomicAdd(y, 1.f);", ("y=inout f32[n]",), "once"
    ),
    "two blocks of a pair": Wrong(
        N, "int i = blockIdx.x / 2 * 64 + threadIdx.x; if (i < n) y[i] = 1;", (X, Y), "once", "2 * ceil_div(n, 64)"
    ),
    "a mirrored half": Wrong(N, f"{AT} if (i < n) y[i] = 1; if (i < n && n - 1 - i < 3) y[n - 1 - i] = 2;", (X, Y), "once"),
    # Progress
    "an early return before a barrier": Wrong(
        N, f"{AT} {TILE} if (i >= n) return; s[t] = x[i]; __syncthreads(); y[i] = s[t];", (X, Y), "progress"
    ),
    "a barrier by data": Wrong(
        N, f"{AT} if (i < n) y[i] = 1; if (x[0] > 0 && i < n) __syncthreads();", (X, Y), "progress", expects=("n >= 1",)
    ),
    "a wait for nobody": Wrong(
        "volatile int* p, float* y, int n", f"while (p[0] == 0); {AT} if (i < n) y[i] = 1;", ("p=inout s32[1]", Y), "progress"
    ),
    "a step of 0 or more": Wrong(
        "const float* x, float* y, int n, int d",
        "for (int a = threadIdx.x; a < n; a += d) y[a] = 1;",
        (X, Y),
        "progress",
        "1",
        (1,),
        ("d >= 0", "d <= 1000000", "n <= 1000000"),
    ),
    "a loop that may never meet its end": Wrong(
        N, "for (unsigned a = 0; a != (unsigned)n; a += 4) if (a < n) y[a] = 1;", (X, Y), "progress", "1", (1,)
    ),
    "threads with different numbers of turns": Wrong(
        N,
        f"{TILE} for (int a = t; a < n; a += 64) {{ s[t] = x[a]; __syncthreads(); y[a] = s[t]; __syncthreads(); }}",
        (X, Y),
        "progress",
        "1",
    ),
    "half a warp at its barrier": Wrong(N, f"{AT} if (threadIdx.x % 32 < 16) __syncwarp(); if (i < n) y[i] = 1;", (X, Y), "progress"),
    "a barrier by the flag of a thread's last turn": Wrong(
        N,
        "__shared__ volatile int s[64]; int t = threadIdx.x, j = 0, v; s[t] = t & 1; __syncthreads();\n#pragma unroll 1\n"
        "do { v = s[j & 63]; j++; } while (j <= t); if (v) __syncthreads(); if (t < n) y[t] = x[t];",
        (X, Y),
        "progress",
        "1",
    ),
    "a matrix for half a warp": Wrong(
        N,
        "__shared__ __align__(16) unsigned short s[64]; int t = threadIdx.x; for (int j = 0; j < 4; j++) s[t * 4 + j] = t;\n"
        '__syncthreads(); unsigned v; asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(v) :'
        ' "r"((unsigned)__cvta_generic_to_shared(&s[t % 8 * 8]))); if (t < n) y[t] = v;',
        (X, Y),
        "progress",
        "1",
        (16,),
    ),
    # Initialised
    "a sum that begins anywhere": Wrong(
        N, f"{AT} float v; for (int a = 0; a < n; a++) v += x[a]; if (i < n) y[i] = v;", (X, Y), "initialised"
    ),
    "the result as it was": Wrong(N, f"{AT} if (i < n) y[i] += x[i];", (X, Y), "initialised"),
    "stores of another round": Wrong(
        N, f"{TILE} if (n > 64) s[t] = x[t]; __syncthreads(); if (t < n) y[t] = s[t];", (X, Y), "initialised", "1"
    ),
    "stores by the first warp": Wrong(
        N, f"{TILE} if (t < 32) s[t] = 1; __syncthreads(); if (t < n) y[t] = s[63 - t];", (X, Y), "initialised", "1"
    ),
    "a loop that may have no turn": Wrong(
        N, f"{TILE} for (int a = 0; a < n - 1; a++) s[t] = x[a]; __syncthreads(); if (t < n) y[t] = s[63 - t];", (X, Y), "initialised", "1"
    ),
    "the edge of a tile": Wrong(
        N,
        "__shared__ float s[66]; int t = threadIdx.x; s[t + 1] = t < n ? x[t] : 0; if (t == 0) s[0] = 0; __syncthreads();"
        " if (t < n) y[t] = s[t] + s[t + 1] + s[t + 2];",
        (X, Y),
        "initialised",
        "1",
    ),
    "every second place": Wrong(
        N,
        "__shared__ float s[128]; int t = threadIdx.x; s[2 * t] = 1; __syncthreads(); if (t < n) y[t] = s[t + 64];",
        (X, Y),
        "initialised",
        "1",
    ),
    "a pointer that comes to the result": Wrong(
        N,
        f"{AT} const float* a = x; float v = 0;\n#pragma unroll 1\n"
        "for (int j = 0; j < n; ++j) { if (i < n) v += *(volatile const float*)(a + i); a = y; } if (i < n) y[i] = v;",
        (X, Y),
        "initialised",
    ),
    # Copies
    "a copy after the wait": Wrong(
        N,
        f"{COPY} __shared__ float s[2][64]; int t = threadIdx.x; copy(&s[0][t], x + t); {WAIT} __syncthreads();"
        " copy(&s[1][t], x + t + 64); y[t] = s[0][63 - t]; __syncthreads(); y[t + 64] = s[1][63 - t];",
        (X, Y),
        "races",
        "1",
        expects=("n >= 128",),
        architecture="sm_80",
    ),
    "a copy that still reads what its thread stores": Wrong(
        "float* x, float* y, int n",
        f"{COPY} {TILE} {AT} if (i < n) copy(s + t, x + i); if (i < n) x[i] = 5; {WAIT} __syncthreads(); if (i < n) y[i] = s[t];",
        ("x=inout f32[n]", Y),
        "races",
        architecture="sm_80",
    ),
    "a thread's own copy after the wait": Wrong(
        N,
        f"{COPY} {TILE} if (t < n) copy(s + t, x + t); {WAIT} __syncthreads(); if (t + 64 < n) copy(s + t, x + t + 64);"
        f" if (t < n) y[t] = s[t]; {WAIT} __syncthreads(); if (t + 64 < n) y[t + 64] = s[t];",
        (X, Y),
        "races",
        "1",
        architecture="sm_80",
    ),
    # Coverage
    "the old result in place of the sum": Wrong(
        "const float* A, const float* B, float* C, int m, int n, int k, float alpha, float beta",
        "int r = blockIdx.y * 16 + threadIdx.y, c = blockIdx.x * 16 + threadIdx.x; if (r >= m || c >= n) return; float s = 0;\n"
        "for (int p = 0; p < k; ++p) s += A[r * k + p] * B[p * n + c];\n"
        "s *= alpha; if (beta != 0.0f) s = beta * C[r * n + c]; C[r * n + c] = s;",
        ("A=in f32[m, k]", "B=in f32[k, n]", "C=inout f32[m, n]"),
        "coverage",
        "ceil_div(n, 16), ceil_div(m, 16)",
        (16, 16),
        ("m <= 10000", "n <= 10000", "k <= 10000"),
    ),
    "a bias in place of the sum": Wrong(
        "const float* A, const float* B, const float* D, float* C, int m, int n, int k, float beta",
        "int r = blockIdx.y * 16 + threadIdx.y, c = blockIdx.x * 16 + threadIdx.x; if (r >= m || c >= n) return; float s = 0;\n"
        "for (int p = 0; p < k; ++p) s += A[r * k + p] * B[p * n + c];\n"
        "float d = D[c]; s += d; C[r * n + c] = beta > 0.0f ? s : d;",
        ("A=in f32[m, k]", "B=in f32[k, n]", "D=in f32[n]", "C=out f32[m, n]"),
        "coverage",
        "ceil_div(n, 16), ceil_div(m, 16)",
        (16, 16),
        ("m <= 10000", "n <= 10000", "k <= 10000"),
    ),
    # Complete
    "no block for an empty sum": Wrong(
        "float* y, int n, int k", f"{AT} if (i < n) y[i] = k;", (Y,), "complete", "ceil_div(n, 64) * min(k, 1)"
    ),
    "whole tiles alone": Wrong(N, f"{AT} if (i < n / 64 * 64) y[i] = 1;", (X, Y), "complete"),
    "a floor for a ceiling": Wrong(N, f"{AT} if (i < n) y[i] = 1;", (X, Y), "complete", "n // 64"),
    "all but the first": Wrong(N, f"{AT} if (i < n && i > 0) y[i] = 1;", (X, Y), "complete"),
    "positive numbers alone": Wrong(N, f"{AT} if (i < n && x[i] > 0) y[i] = 1;", (X, Y), "complete"),
    "few sizes": Wrong(N, f"{AT} if (i < n && n < 1048576) y[i] = 1;", (X, Y), "complete"),
    "an early return of a block": Wrong(N, f"if (blockIdx.x == 4095) return; {AT} if (i < n) y[i] = 1;", (X, Y), "complete"),
    "a second result": Wrong("float* x, float* y, int n", f"{AT} if (i < n) y[i] = 1;", ("x=out f32[n]", Y), "complete"),
    "even places": Wrong(N, f"{AT} if (2 * (long long)i < n) y[2 * (long long)i] = 1;", (X, Y), "complete"),
}


def proof_of(wrong: Wrong, folder: Path) -> KernelProof:
    kernel = wrong.read(folder)
    return prove_sequence(kernel.sequence, kernel.code.ptx, 20)[0]


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_in_another_style_is_not_proved(name: str, tmp_path: Path) -> None:
    wrong = WRONG[name]
    proof = proof_of(wrong, tmp_path)
    assert wrong.property not in proof.proved
