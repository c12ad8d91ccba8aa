"""Mistakes that only some sizes show: each is refuted, with sizes on which the emulator sees the same fault."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("z3")

from gemmgen.proof.prover import prove_sequence
from tests.proof.test_held_out import AT, TILE, N, Wrong, X, Y

SIZED = "const float* x, float* y, int n, int s"
SECONDS = 20.0

WRONG = {
    "one thread more than elements": Wrong(N, f"{AT} if (i <= n) y[i] = x[0];", (X, Y), "memory"),
    "the right neighbour of the last": Wrong(N, f"{AT} if (i < n) y[i] = x[i + 1];", (X, Y), "memory"),
    "the left neighbour of the first": Wrong(N, f"{AT} if (i < n) y[i] = x[i - 1];", (X, Y), "memory"),
    "the second of an odd pair": Wrong(N, f"{AT} if (2 * i < n) y[2 * i + 1] = 1;", (X, Y), "memory"),
    "a quad at the end": Wrong(N, f"{AT} if (4 * i < n) *(float4*)&y[4 * i] = float4();", (X, "y=out f32[n] @16"), "memory"),
    "no guard in the last block": Wrong(N, f"{AT} y[i] = 1;", (X, Y), "memory"),
    "a block too many": Wrong(N, f"{AT} y[i] = 1;", (X, "y=out f32[ceil_div(n, 64) * 64]"), "memory", "n // 64 + 1"),
    "sizes below 64 wrap around": Wrong(N, f"{AT} if ((unsigned)i < (unsigned)(n - 64)) y[i + 64] = 1;", (X, Y), "memory"),
    "more than a million elements": Wrong(N, "if (threadIdx.x == 0) y[n >> 20] = 1;", (X, "y=out f32[1]"), "memory", "1"),
    "more than 2^30 elements": Wrong("float* y, int n", "if (threadIdx.x == 0) y[n >> 30] = 1;", ("y=out f32[1]",), "memory", "1"),
    "a stride near 2^31": Wrong(SIZED, f"{AT} int j = i * s; if (j < n) y[j] = 1;", (X, Y), "memory", "1", expects=("s >= 1",)),
    "a sum near 2^31": Wrong(
        "float* y, int s", f"{AT} int j = i + s; if (j < 64) y[j] = 1;", ("y=out f32[64]",), "memory", "1", expects=("s >= 0",)
    ),
    "a ring that fails at turn eleven": Wrong(
        "float* y, int n",
        "volatile __shared__ float s[8]; for (int j = 0; j < n; j++) s[j < 11 ? j % 8 : j - 3] = 1; y[0] = s[0];",
        ("y=out f32[1]",),
        "memory",
        "1",
        (1,),
    ),
    "a third stage of two": Wrong(
        "float* y, int n",
        "volatile __shared__ float s[2][64]; for (int j = 0; j < n; j++) s[j % 3][threadIdx.x] = 1; y[0] = s[0][0];",
        ("y=out f32[1]",),
        "memory",
        "1",
    ),
    "sizes beyond 16 bits": Wrong("float* y, int n", "int j = (short)n; if (j < 64) y[j] = 1;", ("y=out f32[64]",), "memory", "1", (1,)),
    "sizes beyond 8 bits": Wrong(N, f"{AT} int j = (signed char)n; if (i == 0 && j < n) y[j] = 1;", (X, Y), "memory", "1"),
    "rows that are a column too short": Wrong(
        "float* y, int n, int ld",
        f"{AT} if (i < n) y[ld + i] = 1;",
        ("y=out f32[ld * 2 - 1]",),
        "memory",
        expects=("ld >= n",),
    ),
    "rows for columns": Wrong(
        "float* y, int m, int n",
        f"{AT} for (int j = 0; j < m; j++) if (i < n) y[i * n + j] = 1;",
        ("y=out f32[m, n]",),
        "memory",
        expects=("m <= 9999", "n <= 9999"),
    ),
    "one size of 65": Wrong(N, f"{TILE} s[n % 65] = 1; y[0] = s[t];", (X, "y=out f32[1]"), "memory", "1", (1,)),
    "one size in a million": Wrong(N, f"{AT} if (i < n) y[n == 1000003 && i == 7 ? n : i] = 1;", (X, Y), "memory"),
    "a copy of the tail only": Wrong(N, f"{AT} if (i < n % 64 || n >= 4096) y[i] = 1;", (X, Y), "memory"),
    "threads share a place in large sizes": Wrong(
        N, f"{TILE} s[n > 5000 ? t / 2 : t] = t; __syncthreads(); y[0] = s[0];", (X, "y=out f32[1]"), "races", "1"
    ),
    "no barrier in small sizes": Wrong(
        N, f"{TILE} s[t] = t; if (n > 3) __syncthreads(); y[t] = s[63 - t];", (X, "y=out f32[64]"), "races", "1"
    ),
}
FAR = {
    "an index of 32 bits in rows of 2^30": Wrong(
        "const float* A, float* y, int m, int k, int lda",
        f"{AT} if (i < m) {{ float s = 0; for (int c = 0; c < k; ++c) s += A[i * lda + c]; y[i] = s; }}",
        ("A=in f32[m, k : lda, 1]", "y=out f32[m]"),
        "memory",
        "ceil_div(m, 64)",
        expects=("lda >= k", "k <= 64"),
    ),
    "a row more from 2^20 rows on": Wrong(
        "const float* A, float* y, int n, int k",
        f"{AT} if (i < n) y[i] = k > 1048576 ? A[(long long)k * n + i] : 0;",
        ("A=in f32[k, n]", "y=out f32[n]"),
        "memory",
    ),
    "a neighbour whose index wraps": Wrong(N, f"{AT} if (i + 64 < n) y[i] = x[i + 64];", (X, Y), "memory"),
    "the last block of 2^25": Wrong(N, f"{AT} if (i < n) y[i == 2147483000 ? i + 1000 : i] = 1;", (X, Y), "memory"),
}
MAX_KILOBYTES = 1 << 20


@pytest.mark.parametrize("name", FAR)
def test_far_elements_are_reached_in_little_memory(name: str, tmp_path: Path) -> None:
    kernel = FAR[name].read(tmp_path)
    (proof,) = prove_sequence(kernel.sequence, kernel.code.ptx, SECONDS)
    found = next(each for each in proof.properties if each.name == "memory")
    assert found.status != "proved" and found.counterexample is not None, found.reasons
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert kernel.replay("memory", found.counterexample) != "", found.counterexample
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_KILOBYTES


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_of_some_sizes_is_refuted(name: str, tmp_path: Path) -> None:
    kernel = WRONG[name].read(tmp_path)
    (proof,) = prove_sequence(kernel.sequence, kernel.code.ptx, SECONDS)
    found = next(each for each in proof.properties if each.name == WRONG[name].property)
    assert found.status != "proved" and found.counterexample is not None, found.reasons
    assert kernel.replay(found.name, found.counterexample) != ""


PLANES = Wrong(
    "const float* w, float* y, int m, int n",
    "int t = threadIdx.x / 16; long long i = 4 * (blockIdx.x * 16 + threadIdx.x % 16), e = (long long)m * ((n + 3) / 4 * 4);\n"
    "if (i < e && t == 0) y[i] += ((const float4*)(w + PLANE * e + i))->x;",
    ("w=in f32[64 * m * ((n + 3) // 4)] @16", "y=inout f32[4 * m * ((n + 3) // 4)]"),
    "memory",
    "ceil_div(m * ((n + 3) // 4), 16)",
    (256,),
    ("m <= 30000", "n <= 30000"),
)


@pytest.mark.parametrize(("plane", "is_within"), [("15", True), ("(15 - t)", True), ("16", False), ("(t + 16)", False)])
def test_planes_of_a_known_number_hold_their_rows(plane: str, is_within: bool, tmp_path: Path) -> None:
    kernel = replace(PLANES, body=PLANES.body.replace("PLANE", plane)).read(tmp_path)
    (proof,) = prove_sequence(kernel.sequence, kernel.code.ptx, SECONDS)
    assert ("memory" in proof.proved) is is_within
