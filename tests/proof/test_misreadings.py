"""Kernels of which a lemma of the prover once said too much: the property that does not hold is not proved."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

pytest.importorskip("z3")

from gemmgen.cli.proof_files import ForeignKernel, read_foreign
from gemmgen.proof.prover import prove_sequence
from gemmgen.proof.solver import OutOfTime
from tests.proof.test_readings import INDEX, XY, Reading

ROWS = {
    "parameters": "const float* A, const float* x, float* y, int m, int k",
    "arrays": ("A=in f32[m, k]", "x=in f32[k]", "y=out f32[m]"),
    "grid": "ceil_div(m, 64)",
    "expects": ("m <= 10000", "k <= 10000"),
}
LOOPS = ("n >= 64", "n <= 100000")


def product(between: str) -> str:
    """A product of a matrix with a vector, whose threads pass elements to themselves by shared memory."""
    return (
        "__shared__ volatile float a[64]; const int t = threadIdx.x, r = blockIdx.x * 64 + t; float s = 0;\n"
        "for (int p = 0; p < k; ++p) { a[t] = r < m ? A[(size_t)r * k + p] : 0.f; __syncthreads();\n"
        f"{between} s += a[t] * x[p]; __syncthreads(); }}\n"
        "if (r < m) y[r] = s;"
    )


MATRIX = {
    "parameters": "const float* A, const float* B, float* C, int m, int n, int k, float alpha",
    "arrays": ("A=in f32[m, k]", "B=in f32[k, n]", "C=inout f32[m, n]"),
    "grid": "ceil_div(n, 64), m",
    "expects": ("m <= 10000", "n <= 10000", "k <= 10000"),
}


def sums(result: str, before: str = "") -> str:
    """Two sums of products, of which one element of C is made."""
    return (
        f"const int r = blockIdx.y, c = blockIdx.x * 64 + threadIdx.x; if (c >= n) return; float s = 0, u = 0; {before}\n"
        "for (int p = 0; p < k; ++p) { const float a = A[(size_t)r * k + p];\n"
        "s += a * B[(size_t)p * n + c]; u += a * B[(size_t)p * n]; }\n"
        f"float o, d = C[(size_t)r * n + c]; {result} C[(size_t)r * n + c] = o;"
    )


def chosen(tested: str, exchanged: str = "") -> str:
    """The sum where a number is positive, else 0. ``exchanged``: a statement on the register t that holds the tested number."""
    return (
        f'asm("{{.reg .pred p; .reg .f32 t; mov.f32 t, %1; setp.gt.f32 p, t, 0f00000000; {exchanged}'
        f'selp.f32 %0, %2, 0f00000000, p;}}" : "=f"(o) : "f"({tested}), "f"(s));'
    )


PAIR = (
    "__shared__ volatile float a[64]; const int t = threadIdx.x, r = blockIdx.y, c = (blockIdx.x * 64 + t) * 2; float s = 0, u = 0;\n"
    "#pragma unroll 1\n"
    "for (int p = 0; p < k; ++p) {{ a[t] = A[(size_t)r * k + p]; __syncthreads(); const float v = a[t]; {between} const float w = a[t];\n"
    "s += v * (c < n ? B[(size_t)p * n + c] : 0.f); u += w * (c + 1 < n ? B[(size_t)p * n + c + 1] : 0.f); __syncthreads(); }}\n"
    "{after} if (c < n) C[(size_t)r * n + c] = s; if (c + 1 < n) C[(size_t)r * n + c + 1] = u;"
)
"""A product whose threads load one element twice."""
IN_PAIRS = {**MATRIX, "grid": "ceil_div(n, 128), m"}
SHUFFLED = """if (k > 7000) asm("{.reg .pred p; shfl.sync.bfly.b32 %0|p, %0, 1, 31, -1;}" : "+f"(s));"""
AS_DOUBLES = (
    "const int r = blockIdx.y, c = blockIdx.x * 64 + threadIdx.x; if (c >= n) return; double d = 0;\n"
    "for (int p = 0; p < k; ++p) { double a, b;\n"
    'asm volatile("{.reg .b64 t; ld.global.u32 t, [%1]; mov.b64 %0, t;}" : "=d"(a) : "l"(A + (size_t)r * k + p));\n'
    'asm volatile("{.reg .b64 t; ld.global.u32 t, [%1]; mov.b64 %0, t;}" : "=d"(b) : "l"(B + (size_t)p * n + c));\n'
    "d += a * b; } C[(size_t)r * n + c] = (float)d;"
)
NAN = 'int z; asm("{{.reg .pred p; setp.{}.f32 p, %1, 0f00000000; selp.s32 %0, 1, 0, p;}}" : "=r"(z) : "f"(alpha)); if (!z) k = 0;'
HALVES = (
    'asm volatile("red.global.{}.noftz.v4.f16 [%0], {{%1, %1, %1, %1}};" :: "l"(y), "h"((short)1));'
    'asm volatile("red.global.{}.noftz.v4.f16 [%0], {{%1, %1, %1, %1}};" :: "l"(y), "h"((short)1));'
)
OF_HALVES = {"parameters": "unsigned short* y, int n", "arrays": ("y=inout f16[4] @16",), "architecture": "sm_90"}

WRONG = {
    "a sum is chosen by another sum": Reading("coverage", sums(chosen("u")), **MATRIX),
    "a sum is chosen by what its register held before": Reading(
        "coverage", sums(chosen("d", "mov.f32 t, %2;").replace("%2, 0f", "t, 0f")), **MATRIX
    ),
    "no sum where alpha is no number": Reading("coverage", sums("o = alpha * s;", NAN.format("ne")), **MATRIX),
    "no sum where alpha is tiny": Reading("coverage", sums("o = alpha * s;", NAN.format("neu.ftz")), **MATRIX),
    "two operations on vectors of halves": Reading("once", HALVES.format("add", "min"), **OF_HALVES),
    "a number is replaced between two loads": Reading("coverage", PAIR.format(between="if (k > 7000) a[t] = 5.f;", after=""), **IN_PAIRS),
    "lanes exchange sums, beside a predicate": Reading("coverage", PAIR.format(between="", after=SHUFFLED), **IN_PAIRS),
    "the bits of floats are multiplied as doubles": Reading("coverage", AS_DOUBLES, **MATRIX),
    "a factor is 0 for some sizes": Reading("coverage", sums("o = s * (k > 7000 ? 0.f : 1.f);"), **MATRIX),
    "a factor is 0 in place of an element": Reading("coverage", sums("o = s * (k > 7000 ? 0.f : d);"), **MATRIX),
    "a limit depends on the size": Reading("coverage", sums("o = fminf(s, k > 7000 ? -1e30f : 1e30f);"), **MATRIX),
    "a limit in place of an element": Reading("coverage", sums("o = fminf(s, k > 7000 ? -1e30f : d);"), **MATRIX),
    "infinity in place of an element": Reading("coverage", sums("o = s + (k > 7000 ? __int_as_float(0x7f800000) : d);"), **MATRIX),
    "a sum times 0": Reading("coverage", sums("o = s; if (k > 7000) o = __fmul_rn(s, 0.f);"), **MATRIX),
    "a thread replaces what it loads": Reading("coverage", product("a[t] = 5.f;"), **ROWS),
    "a thread replaces it in later turns": Reading("coverage", product("if (p > 7) a[t] = 5.f;"), **ROWS),
    "a lane replaces what another one loads": Reading("coverage", product("a[t ^ 1] = 5.f; __syncwarp();"), **ROWS),
    "a variable with the name of a result": Reading(
        "memory",
        f"{INDEX} if (i < n) put(i);",
        before="__device__ float y[16]; __device__ __forceinline__ void put(int i) { y[i] = 1; }",
    ),
    "a variable with the name of an input": Reading(
        "memory",
        f"{INDEX} if (i < n) y[i] = get(i);",
        before="__device__ float x[16]; __device__ __forceinline__ float get(int i) { return x[i]; }",
    ),
    "a flag at a place that threads count alone": Reading(
        "progress",
        f"{INDEX} __shared__ volatile int s[64]; s[t] = t & 1; __syncthreads(); int j = 0;\n#pragma unroll 1\n"
        "do { j++; } while (x[j] > t && j < 62); if (s[j]) __syncthreads(); if (i < n) y[i] = 1;",
        expects=LOOPS,
    ),
}

ROWS_OF_A_LENGTH = "const int i = blockIdx.x * 64 + threadIdx.x, length = n + {}; const int row = i / length, column = i % length;"
IN_ROWS = {
    "parameters": "float* y, int m, int n",
    "arrays": ("y=out f32[m, n]",),
    "grid": "ceil_div(m * n + m, 64)",
    "expects": ("m <= 10000", "n <= 10000", "n >= 1"),
}
STORE_IN_ROWS = "if (row < m && column < n) y[row * n + column] = 1;"
WRONG["a size with the name of a block's rank"] = Reading(
    "once",
    'unsigned c; asm("mov.u32 %0, %%clusterid.x;" : "=r"(c)); const int i = c * 64 + threadIdx.x; if (i < n) y[i] = x[i];',
    "const float* x, float* y, int n, int cluster_ctarank",
    grid="2 * ceil_div(n, 64)",
    expects=("n <= 10000", "cluster_ctarank <= 0"),
    architecture="sm_90a",
    bounds="__cluster_dims__(2, 1, 1)",
)
WRONG["a remainder whose divisor is short on another way"] = Reading(
    "memory",
    """if (threadIdx.x) return; float s = 0;
    unsigned long long a = (unsigned long long)u * v, b = (unsigned long long)p * q, t, r; unsigned w;
    if (a < (1ull << 32) && b < (1ull << 32)) {
        asm volatile("rem.u32 %0, %1, %2;" : "=r"(w) : "r"((unsigned)a), "r"((unsigned)b));
        if (w < n) s = x[w];
    } else {
        asm volatile("div.u64 %0, %1, %2;" : "=l"(t) : "l"(a), "l"(b));
        r = a - t * b;
        asm volatile("cvt.u32.u64 %0, %1;" : "=r"(w) : "l"(r));
        if (w < n) s = x[r];
    }
    y[0] = s;""",
    "const float* x, float* y, unsigned n, unsigned p, unsigned q, unsigned u, unsigned v",
    ("x=in f32[n]", "y=out f32[1]"),
    "1",
    expects=("p >= 1", "q >= 1"),
)
WRONG["blocks with rows of two lengths"] = Reading("complete", ROWS_OF_A_LENGTH.format("(blockIdx.x & 1)") + STORE_IN_ROWS, **IN_ROWS)


BITS = "const int r = blockIdx.y, c = blockIdx.x * 64 + threadIdx.x; if (c >= n) return; float s = 0;\n"
BITS += "for (int p = 0; p < k; ++p) s += A[(size_t)r * k + p] * B[(size_t)p * n + c]; C[(size_t)r * n + c] = {};"
STORED = {"int": "s32", "long long": "s64", "unsigned short": "bf16", "float": "f32"}


def stored_as(kind: str, result: str) -> Reading:
    """A product whose results of a type of C++ are stored by a statement."""
    arrays = (*MATRIX["arrays"][:2], f"C=out {STORED[kind]}[m, n]")
    parameters = f"const float* A, const float* B, {kind}* C, int m, int n, int k"
    return Reading(
        "coverage", BITS.format(result), **{**MATRIX, "parameters": parameters, "arrays": arrays}, before="#include <cuda_fp16.h>"
    )


WRONG |= {
    "the bits of floats are stored as integers": stored_as("int", "__float_as_int(s)"),
    "the bits of doubles are stored as integers": stored_as("long long", "__double_as_longlong((double)s)"),
    "the bits of integers are stored as floats": stored_as("float", "__int_as_float((int)s)"),
    "half a float is stored as another one": stored_as("unsigned short", "(unsigned short)__float_as_uint(s)"),
    "another type of 16 bits is stored": stored_as("unsigned short", "__half_as_ushort(__float2half(s))"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_lemma_overlooked_is_not_proved(name: str, tmp_path: Path) -> None:
    assert WRONG[name].property not in WRONG[name].proof(tmp_path).proved


RIGHT = {
    "a sum is chosen where it is positive": Reading("coverage", sums(chosen("s")), **MATRIX),
    "a sum where alpha is no number": Reading("coverage", sums("o = alpha * s;", NAN.format("neu")), **MATRIX),
    "one operation on vectors of halves": Reading("once", HALVES.format("add", "add"), **OF_HALVES),
    "a thread loads an element twice": Reading("coverage", PAIR.format(between="", after=""), **IN_PAIRS),
    "an element is added for some sizes": Reading("coverage", sums("o = s + (k > 7000 ? 0.f : d);"), **MATRIX),
    "an element is multiplied and added for some sizes": Reading("coverage", sums("o = s + alpha * (k > 7000 ? 0.f : d);"), **MATRIX),
    "an element and a sum above 0": Reading("coverage", sums("o = fmaxf(s + d * alpha, 0.f);"), **MATRIX),
    "a thread loads what it stored": Reading("coverage", product(""), **ROWS),
    "a thread replaces it after its load": Reading("coverage", product("").replace("* x[p];", "* x[p]; a[t] = 5.f;"), **ROWS),
}
RIGHT["a sum is rounded to an integer"] = stored_as("int", "__float2int_rn(s)")
RIGHT["rows of one length"] = Reading("complete", ROWS_OF_A_LENGTH.format("1") + STORE_IN_ROWS, **IN_ROWS)


@pytest.mark.parametrize("name", RIGHT)
def test_what_holds_is_still_proved(name: str, tmp_path: Path) -> None:
    assert RIGHT[name].property in RIGHT[name].proof(tmp_path).proved


def test_an_index_with_a_huge_factor_is_no_error(tmp_path: Path) -> None:
    huge = (
        "__shared__ float s[64]; s[(unsigned long long)threadIdx.x * 0x9E3779B97F4A7C15ull % 61] = 1; __syncthreads();"
        "y[threadIdx.x] = s[threadIdx.x];"
    )
    proof = Reading("memory", huge, arrays=("x=in f32[n]", "y=out f32[64]"), grid="1").proof(tmp_path)
    assert "once" in proof.proved and "races" not in proof.proved


def test_races_need_the_results_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> NoReturn:
        raise OutOfTime

    kernel = Reading("races", f"{INDEX} if (i < n) y[i] = y[n - 1 - i];", arrays=("x=in f32[n]", "y=inout f32[n]"))
    monkeypatch.setattr("gemmgen.proof.obligations.once", slow)
    assert {"memory", "progress"} <= set(kernel.proof(tmp_path).proved)
    assert "races" not in kernel.proof(tmp_path).proved


SELF_NAMED = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 y, .param .u32 n)
{ .reg .pred %p<3>; .reg .b32 %r<20>; .reg .b64 %rd<9>; .reg .b32 %barriers; .shared .align 4 .b8 s[256];
ld.param.u64 %rd1, [y]; ld.param.u32 %r1, [n]; cvta.to.global.u64 %rd2, %rd1;
mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; shl.b32 %r4, %r3, 6; add.s32 %r5, %r4, %r2;
mov.u32 %r6, s; shl.b32 %r7, %r2, 2; add.s32 %r8, %r6, %r7; st.shared.u32 [%r8], %r2;
mov.u32 %barriers, 1; xor.b32 %r9, %r2, %barriers; shl.b32 %r9, %r9, 2; add.s32 %r10, %r6, %r9; ld.shared.u32 %r11, [%r10];
setp.ge.s32 %p1, %r5, %r1; @%p1 bra END;
mul.wide.s32 %rd3, %r5, 4; add.s64 %rd4, %rd2, %rd3; st.global.u32 [%rd4], %r11;
END: ret; }
"""


def read_ptx(text: str, folder: Path, shared: str = "0") -> ForeignKernel:
    file = folder / "kernel.ptx"
    file.write_text(text)
    options = {"block": (64,), "grid": "ceil_div(n, 64)", "arrays": ["y=out s32[n]"], "expects": ["n <= 200000"]}
    return read_foreign(file, entry_name="k", architecture=None, shared=shared, seconds=30, **options)


def test_a_register_may_have_the_name_of_a_count_of_barriers(tmp_path: Path) -> None:
    kernel = read_ptx(SELF_NAMED, tmp_path)
    proved = set(prove_sequence(kernel.sequence, kernel.code.ptx, 30)[0].proved)
    assert "memory" in proved
    assert not {"races", "initialised"} & proved


@pytest.mark.parametrize(("offset", "known"), [("0", True), ("8", False)])
def test_a_register_holds_the_address_of_a_parameter(offset: str, known: bool, tmp_path: Path) -> None:
    held = f"mov.b64 %rd5, n; ld.param.u32 %r12, [%rd5+{offset}]; add.s32 %r11, %r11, %r12; mul.wide.s32"
    kernel = read_ptx(SELF_NAMED.replace("mul.wide.s32", held).replace("mov.u32 %barriers, 1", "mov.u32 %barriers, 0"), tmp_path)
    proof = prove_sequence(kernel.sequence, kernel.code.ptx, 30)[0]
    assert {"memory", "races", "initialised", "once"} <= set(proof.proved) if known else not proof.proved


ODD_PARAMETERS = {
    "a variable of shared memory": "ld.param.u32 %r12, [s];",
    "its address": "mov.b64 %rd5, s; ld.param.u32 %r12, [%rd5+32];",
    "a variable of an inner scope": "{ .local .align 4 .b8 n[64]; ld.param.u32 %r12, [n]; }",
    "half a parameter, not aligned": "ld.param.u16 %r12, [n+1];",
}


@pytest.mark.parametrize("load", ODD_PARAMETERS)
def test_only_whole_places_of_parameters_are_loaded(load: str, tmp_path: Path) -> None:
    where = f"setp.gt.s32 %p2, %r1, 100000; @!%p2 bra SKIP; {ODD_PARAMETERS[load]}\nSKIP: setp.ge.s32 %p1"
    kernel = read_ptx(SELF_NAMED.replace("setp.ge.s32 %p1", where), tmp_path)
    assert not prove_sequence(kernel.sequence, kernel.code.ptx, 30)[0].proved


def test_a_size_has_no_name_of_a_register(tmp_path: Path) -> None:
    kernel = read_ptx(SELF_NAMED.replace(".param .u32 n)", ".param .u32 n, .param .u32 ctaid.x)"), tmp_path)
    assert not prove_sequence(kernel.sequence, kernel.code.ptx, 30)[0].proved


def test_preconditions_that_no_problem_fulfils_are_told(tmp_path: Path) -> None:
    nothing = Reading("memory", f"{INDEX} if (i < n) y[i + 5] = x[i];", f"{XY}, int m", expects=("n * n == m * m * 2", "m >= 1"))
    proof = nothing.proof(tmp_path)
    assert not proof.proved and "no problem" in proof.properties[0].reasons[0]


@pytest.mark.parametrize("space", ["global", "const"])
def test_the_size_of_an_array_of_another_module_is_not_known(space: str, tmp_path: Path) -> None:
    text = SELF_NAMED.replace(".visible", f".extern .{space} .align 4 .b8 t[];\n.visible").replace(
        "mov.u32 %barriers, 1; xor.b32 %r9, %r2, %barriers; shl.b32 %r9, %r9, 2; add.s32 %r10, %r6, %r9; ld.shared.u32 %r11, [%r10];",
        f"setp.gt.s32 %p2, %r1, 100000; mov.u32 %r11, 7; @!%p2 bra SKIP; ld.{space}.u32 %r11, [t+8];\nSKIP:",
    )
    kernel = read_ptx(text, tmp_path, "256")
    proved = set(prove_sequence(kernel.sequence, kernel.code.ptx, 30)[0].proved)
    assert "once" in proved and "memory" not in proved
