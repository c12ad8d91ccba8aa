"""Kernels in the styles of other people: each is proved, and none is with a mistake in it, most of which few sizes show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("z3")

from gemmgen.cli.proof_files import ForeignKernel, read_foreign
from gemmgen.proof.prover import KernelProof, prove_sequence

SECONDS = 30.0
PIECES = ("n % 64 == 0", "n <= 2000000000")
COPIES = """
__device__ void copy(float* to, const float* from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
__device__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending> __device__ void wait() { asm volatile("cp.async.wait_group %0;" :: "n"(Pending) : "memory"); }
"""


@dataclass(frozen=True)
class Style:
    """A kernel, properties, and its mistakes: the text that changes, the new one, the property that is lost."""

    body: str
    properties: str
    mistakes: tuple[tuple[str, str, str], ...] = ()
    parameters: str = "const float* x, float* y, int n"
    arrays: tuple[str, ...] = ("x=in f32[n]", "y=out f32[n]")
    grid: str = "ceil_div(n, 64)"
    block: tuple[int, ...] = (64,)
    expects: tuple[str, ...] = ()
    shared: str = "0"
    before: str = ""

    def read(self, folder: Path, old: str = "", new: str = "") -> ForeignKernel:
        body = f'{self.before}\nextern "C" __global__ void kernel({self.parameters})\n{{\n{self.body}\n}}\n'
        assert body.count(old) == 1 or not old
        file = folder / "kernel.cu"
        file.write_text(body.replace(old, new) if old else body)
        architecture = "sm_80" if self.before is COPIES else None
        return read_foreign(
            file,
            entry_name=None,
            architecture=architecture,
            block=self.block,
            grid=self.grid,
            arrays=self.arrays,
            expects=self.expects,
            shared=self.shared,
            seconds=SECONDS,
        )


FIVE = "memory races once progress initialised"
ALL = f"{FIVE} complete"
STYLES = {
    "four stages of copies": Style(
        """
    __shared__ float s[4][64];
    const int t = threadIdx.x, turns = n / 64;
    #pragma unroll
    for (int p = 0; p < 3; ++p) {
        if (p < turns) copy(&s[p][t], x + p * 64 + t);
        end_group();
    }
    #pragma unroll 1
    for (int j = 0; j < turns; ++j) {
        wait<2>(); __syncthreads();
        y[j * 64 + t] = s[j % 4][63 - t];
        if (j + 3 < turns) copy(&s[(j + 3) % 4][t], x + (j + 3) * 64 + t);
        end_group(); // of a turn
    }
""",
        FIVE,
        (
            ("wait<2>", "wait<3>", "races"),
            ("wait<2>();", "if (j < turns - 1) wait<2>();", "races"),
            ("wait<2>();", "if (j < 1 << 20) wait<2>();", "races"),
            ("wait<2>(); __syncthreads();", "__syncthreads(); wait<2>();", "races"),
            ("end_group(); // of a turn", "if (j + 3 < turns) end_group();", "races"),
            ("[(j + 3) % 4]", "[(j + 2) % 4]", "races"),
            ("if (p < turns)", "if (p + 1 < turns)", "initialised"),
        ),
        grid="1",
        expects=PIECES,
        before=COPIES,
    ),
    "two groups of copies in a turn": Style(
        """
    __shared__ float s[2][64];
    const int t = threadIdx.x, turns = n / 64;
    #pragma unroll 1
    for (int j = 0; j < turns; ++j) {
        copy(&s[0][t], x + j * 64 + t); end_group();
        copy(&s[1][t], x + (turns - 1 - j) * 64 + t); end_group(); // the second
        wait<1>(); __syncthreads();
        const float a = s[0][63 - t];
        wait<0>(); __syncthreads();
        y[j * 64 + t] = a + s[1][63 - t];
        __syncthreads(); // before the next turn
    }
""",
        FIVE,
        (
            ("wait<1>", "wait<2>", "races"),
            ("wait<0>(); __syncthreads();", "wait<0>();", "races"),
            ("wait<0>();", "", "races"),
            ("__syncthreads(); // before", "// before", "races"),
            ("end_group(); // the second", "// the second", "races"),
        ),
        grid="1",
        expects=PIECES,
        before=COPIES,
    ),
    "a ring that counts to three": Style(
        """
    __shared__ float s[3][64];
    const int t = threadIdx.x;
    int slot = 0;
    #pragma unroll 1
    for (int j = 0; j < n / 64; ++j) {
        s[slot][t] = x[j * 64 + t];
        __syncthreads();
        y[j * 64 + t] = s[slot][63 - t];
        slot = slot == 2 ? 0 : slot + 1;
    }
""",
        FIVE,
        (
            ("slot == 2", "slot == 3", "memory"),
            ("slot == 2", "slot == (j > 40 ? 0 : 2)", "races"),
            ("slot == 2 ? 0", "slot == 2 ? 2", "races"),
            ("__syncthreads();", "if (n % 4096) __syncthreads();", "races"),
        ),
        grid="1",
        expects=PIECES,
    ),
    "two types in one dynamic array": Style(
        """
    extern __shared__ __align__(8) unsigned char bytes[];
    double* a = (double*)bytes;
    float* b = (float*)(bytes + 512);
    const int t = threadIdx.x;
    a[t] = t;
    b[t] = t;
    __syncthreads();
    if (t < n) y[t] = a[63 - t] + b[63 - t];
""",
        FIVE,
        (
            ("bytes + 512", "bytes + 508", "races"),
            ("bytes + 512", "bytes + 516", "memory"),
            ("bytes + 512", "bytes + 510", "memory"),
            ("a[t] = t;", "a[t & ~(n >> 20)] = t;", "races"),
        ),
        grid="1",
        shared="768",
    ),
    "sizes of 64 bits": Style(
        "for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < (size_t)n; i += (size_t)gridDim.x * blockDim.x) y[i] = x[i];",
        ALL,
        (
            ("i < (size_t)n", "i <= (size_t)n", "memory"),
            ("y[i]", "y[(unsigned short)i]", "once"),
            ("gridDim.x * blockDim.x", "(gridDim.x + 1) * blockDim.x", "complete"),
            ("gridDim.x * blockDim.x", "gridDim.x * 63", "once"),
        ),
        grid="min(ceil_div(n, 64), 128)",
    ),
    "blocks of 48 threads": Style(
        "const unsigned i = blockIdx.x * 48 + threadIdx.x; if (i < (unsigned)n) y[i] = x[i];",
        ALL,
        (("i < (unsigned)n", "(int)i < n", "memory"), ("* 48", "* 47", "once"), ("* 48", "* 49", "complete")),
        grid="ceil_div(n, 48)",
        block=(48,),
    ),
    "digits of an index": Style(
        "const int i = blockIdx.x * 64 + threadIdx.x; if (i < n) { const int q = i / w, r = i % w; y[q * w + r] = x[q * w + r]; }",
        ALL,
        (
            ("y[q * w + r]", "y[q * w + r / 2]", "once"),
            ("y[q * w + r]", "y[q * (w - 1) + r]", "once"),
            ("= x[q * w + r]", "= x[q * w + r + (r >> 24)]", "memory"),
        ),
        parameters="const float* x, float* y, int n, int w",
        expects=("w >= 1", "n <= 1000000000"),
    ),
    "a vector that turns around": Style(
        "const int i = blockIdx.x * 64 + threadIdx.x; if (i < n / 2) { float u = x[i], v = x[n - 1 - i]; x[i] = v; x[n - 1 - i] = u; }",
        FIVE,
        (
            ("n / 2", "(n + 1) / 2", "once"),
            ("x[n - 1 - i] = u", "x[n - 2 - i] = u", "once"),
            ("i < n / 2", "i < n / 2 + n % 2 * 2", "memory"),
        ),
        parameters="float* x, int n",
        arrays=("x=inout f32[n]",),
    ),
    "indices from memory": Style(
        "const int i = blockIdx.x * 64 + threadIdx.x; if (i < n) { const int j = p[i]; y[i] = j >= 0 && j < n ? x[j] : 0; }",
        ALL,
        (
            ("j >= 0 && j < n", "j < n", "memory"),
            ("j >= 0 && j < n", "abs(j) < n", "memory"),
            ("j < n", "(unsigned)j <= (unsigned)n", "memory"),
        ),
        parameters="const int* p, const float* x, float* y, int n",
        arrays=("p=in s32[n]", "x=in f32[n]", "y=out f32[n]"),
    ),
    "rows of matrices by ldmatrix": Style(
        """
    __shared__ __align__(16) unsigned short s[8][8];
    const int t = threadIdx.x;
    s[t / 8][t % 8] = t;
    __syncthreads();
    unsigned v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(v) : "r"((unsigned)__cvta_generic_to_shared(&s[threadIdx.x % 8][0])));
    if (t < n) y[t] = v;
""",
        FIVE,
        (
            ("threadIdx.x % 8", "threadIdx.x % 9", "memory"),
            ("% 8][0]", "% 8][4]", "memory"),
            ("s[8][8]", "s[8][9]", "memory"),
            ("__syncthreads();", "__syncwarp();", "races"),
        ),
        grid="1",
    ),
    "a flag that one thread sets": Style(
        """
    __shared__ int flag;
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (threadIdx.x == 0) flag = x[0] > 0;
    __syncthreads();
    if (flag) __syncthreads();
    if (i < n) y[i] = 1;
""",
        ALL,
        (
            ("> 0;\n    __syncthreads();", "> 0;\n    __syncwarp();", "progress"),
            ("if (flag) __syncthreads();", "if (flag + threadIdx.x > 20) __syncthreads();", "progress"),
            ("if (flag) __syncthreads();", "if (flag) { __syncthreads(); flag = 0; }", "races"),
            ("if (flag) __syncthreads();", "if (x[i % n] > 0) __syncthreads();", "progress"),
        ),
        expects=("n >= 1",),
    ),
    "an element for each thread of a cube": Style(
        """
    __shared__ float s[4][4][4];
    const int a = threadIdx.x, b = threadIdx.y, c = threadIdx.z, i = blockIdx.x * 64 + (c * 4 + b) * 4 + a;
    s[c][b][a] = i < n ? x[i] : 0;
    __syncthreads();
    if (i < n) y[i] = s[3 - c][b][3 - a];
""",
        ALL,
        (
            ("s[c][b][a] =", "s[c & 1][b][a] =", "races"),
            ("3 - a]", "4 - a]", "memory"),
            ("(c * 4 + b) * 4 + a;", "(b * 4 + c) * 4 + b;", "once"),
            ("__syncthreads();", "if (n > 5) __syncthreads();", "races"),
        ),
        block=(4, 4, 4),
    ),
    "a table of constants": Style(
        "const int i = blockIdx.x * 64 + threadIdx.x; if (i < n) y[i] = x[i] * table[i & 15];",
        ALL,
        (("i & 15", "i % 17", "memory"), ("i & 15", "(i + n) & 16", "memory"), ("i & 15", "n >> 26", "memory")),
        before="__constant__ float table[16] = {1, 2, 3, 4};",
    ),
}
AT = "const int i = blockIdx.x * 64 + threadIdx.x;"
STAGED = f"{AT} __shared__ float s[64]; float* at = &s[threadIdx.x]; *at = i < n ? x[i] : 0; __syncthreads(); float v;"
SHARED = "(size_t)__cvta_generic_to_shared(at)"
FORMS = {
    "a narrow number in a wide register": Style(
        f'{AT} int d; asm("cvt.s8.s32 %0, %1;" : "=r"(d) : "r"(i)); if (i < n) y[d] = x[d];',
        "memory",
    ),
    "two addresses that are equal modulo 2^64": Style(
        """
    if (a < 1 || b < 1 || c < 1) return;
    const unsigned long long o = (unsigned long long)a * b * c;
    int hit;
    asm("{.reg .pred p; .reg .b64 t; mad.lo.s64 t, %2, 8, %1; setp.eq.s64 p, t, %1; selp.s32 %0, 1, 0, p;}" : "=r"(hit) : "l"(x), "l"(o));
    if (hit) y[1000000] = 1.0f;
""",
        "memory",
        parameters="const float* x, float* y, int a, int b, int c",
        arrays=("x=in f32[64]", "y=out f32[64]"),
        grid="1",
    ),
    "a grid of two negative factors": Style(
        "if (threadIdx.x == 0) y[blockIdx.x] = 1;",
        "memory",
        parameters="float* y, int m, int n",
        arrays=("y=out f32[n * m]",),
        grid="(n - 1) * (m - 1)",
        expects=("n <= 3", "m <= 3"),
    ),
    "a shuffle by lanes that its mask leaves out": Style(
        f"{AT} const int v = __shfl_sync(0xffffu, i, 3); if (i < n) y[i] = v;", "progress"
    ),
    "a mask by the size": Style(f"{AT} const int v = __shfl_sync(n > 100 ? 0xffffu : ~0u, i, 0); if (i < n) y[i] = v;", "progress"),
    "a vote with a lane too few": Style(f"{AT} const int v = __ballot_sync(0x7fffffffu, i < n); if (i < n) y[i] = v;", "progress"),
    "a shuffle from a lane that the block has not": Style(
        "const int i = blockIdx.x * 40 + threadIdx.x; float v = i < n ? x[i] : 0; v += __shfl_down_sync(~0u, v, 1); if (i < n) y[i] = v;",
        "initialised",
        block=(40,),
        grid="ceil_div(n, 40)",
        expects=("n <= 1000000",),
    ),
    "a generic address for one of shared memory": Style(
        f'{STAGED} asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "l"(at)); if (i < n) y[i] = v;', "memory"
    ),
    "an address of shared memory for a generic one": Style(
        f'{STAGED} asm volatile("ld.f32 %0, [%1];" : "=f"(v) : "l"({SHARED})); if (i < n) y[i] = v;', "memory"
    ),
    "a trap after the stores": Style(f"{AT} if (i < n) y[i] = x[i]; if (n > 1000) __trap();", "progress"),
    "atomics of two widths": Style(
        "__shared__ unsigned long long s[64]; const int t = threadIdx.x; s[t] = 0; __syncthreads(); atomicAdd(&s[t], 1ull);"
        " atomicAdd((unsigned*)&s[(t + 1) % 64], 1u); __syncthreads(); if (t < n) y[t] = s[t];",
        "races",
        grid="1",
    ),
    "a barrier that counts to 48": Style(
        """
    __shared__ float s[48];
    const int i = blockIdx.x * 48 + threadIdx.x;
    s[threadIdx.x] = i < n ? x[i] : 0;
    asm volatile("bar.sync 1, 48;" ::: "memory");
    if (i < n) y[i] = s[47 - threadIdx.x];
""",
        "progress",
        block=(48,),
        grid="ceil_div(n, 48)",
        expects=("n <= 1000000",),
    ),
    "more shared memory than any device has": Style(
        f"{AT} extern __shared__ float s[]; s[threadIdx.x] = i; __syncthreads(); if (i < n) y[i] = s[63 - threadIdx.x];",
        "complete",
        shared="300000",
    ),
    "a block that is too deep": Style(
        "const int i = blockIdx.x * 128 + threadIdx.z; if (i < n) y[i] = x[i];",
        "complete",
        block=(1, 1, 128),
        grid="ceil_div(n, 128)",
    ),
    "more threads than the kernel allows": Style(
        f"{AT} if (i < n) y[i] = x[i];",
        "complete",
        before='extern "C" __global__ void __launch_bounds__(32) kernel(const float* x, float* y, int n);',
    ),
}
"""Kernels that look right, each with a property that does not hold."""
MISTAKES = [(name, number) for name, style in STYLES.items() for number in range(len(style.mistakes))]


def proof_of(kernel: ForeignKernel) -> KernelProof:
    return prove_sequence(kernel.sequence, kernel.code.ptx, SECONDS)[0]


@pytest.mark.parametrize("name", STYLES)
def test_a_kernel_in_another_style_is_proved(name: str, tmp_path: Path) -> None:
    proof = proof_of(STYLES[name].read(tmp_path))
    assert set(STYLES[name].properties.split()) <= set(proof.proved), [each.reasons for each in proof.properties]


@pytest.mark.parametrize(("name", "number"), MISTAKES)
def test_a_mistake_in_another_style_is_not_proved(name: str, number: int, tmp_path: Path) -> None:
    old, new, lost = STYLES[name].mistakes[number]
    assert lost not in proof_of(STYLES[name].read(tmp_path, old, new)).proved


@pytest.mark.parametrize("form", FORMS)
def test_a_form_that_looks_right_is_not_proved(form: str, tmp_path: Path) -> None:
    style = FORMS[form]
    assert style.properties not in proof_of(style.read(tmp_path)).proved
