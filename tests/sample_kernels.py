"""Small kernels and their launch sequences, for the tests of everything that launches."""

from functools import cache

import pytest

from gemmgen.core.formulas import Formula
from gemmgen.kernels.launch import ArrayArgument, Constraint, Dimension, KernelLaunch, LaunchSequence, ScalarArgument
from gemmgen.runtime.cuda import gpu, gpu_available, why_no_gpu
from gemmgen.toolchain.nvrtc import Binary, compile_source

EMULATED_ARCHITECTURE = "sm_80"


def needs_gpu(test):
    """Marks a test that runs on a GPU and is skipped where there is none."""
    return pytest.mark.gpu(pytest.mark.skipif(not gpu_available(), reason=why_no_gpu() or "no GPU")(test))


@cache
def compile_sample(source: str, architecture: str | None = None) -> Binary:
    """Compiles for the emulator, or for the GPU that is here."""
    if architecture is None:
        architecture = EMULATED_ARCHITECTURE
        if gpu_available() and gpu().architecture is not None:
            architecture = gpu().architecture.name
    return compile_source(source, architecture=architecture)


def formulas(*texts: str | int) -> tuple[Formula, ...]:
    return tuple(Formula.of(text) for text in texts)


def array(name, role, shape, strides, type="f32", alignment=4, needed=None):
    return ArrayArgument(name, type, role, formulas(*shape), formulas(*strides), alignment, f"the array {name}", needed)


def dimension(name, **more):
    return Dimension(name, f"the extent {name}", **more)


def integer(name):
    return ScalarArgument(name, "s32", f"the dimension {name}")


AXPBY_SOURCE = """
extern "C" __global__ void axpby(int m, int n, float alpha, const float* X, int ldx, float beta, float* Y, int ldy)
{
    int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i < m && j < n) {
        float y = alpha * X[(long long)i * ldx + j];
        Y[(long long)i * ldy + j] = beta == 0.0f ? y : y + beta * Y[(long long)i * ldy + j];
    }
}
"""
AXPBY = LaunchSequence(
    name="axpby_sample",
    dimensions=(
        dimension("m"),
        dimension("n"),
        dimension("ldx", default=Formula("max(n, 1)")),
        dimension("ldy", default=Formula("max(n, 1)")),
    ),
    arguments=(
        integer("m"),
        integer("n"),
        ScalarArgument("alpha", "f32", "the factor of X", 1.0),
        array("X", "input", ("m", "n"), ("ldx", 1)),
        integer("ldx"),
        ScalarArgument("beta", "f32", "the factor of Y", 0.0),
        array("Y", "inout", ("m", "n"), ("ldy", 1), needed="beta"),
        integer("ldy"),
    ),
    launches=(
        KernelLaunch(
            "axpby",
            formulas("ceil_div(n, 32)", "ceil_div(m, 8)", 1),
            (32, 8, 1),
            ("m", "n", "alpha", "X", "ldx", "beta", "Y", "ldy"),
        ),
    ),
    constraints=(Constraint(Formula("ldx >= n"), "the rows of X must not overlap"),),
)

SUM_SOURCE = """
extern "C" __global__ void row_sums(int m, int n, const float* X, float* sums)
{
    int i = blockIdx.x * 32 + threadIdx.x;
    if (i >= m) return;
    float sum = 0.0f;
    for (int j = 0; j < n; ++j) sum += X[(long long)i * n + j];
    sums[i] = sum;
}
extern "C" __global__ void total(int m, const float* sums, float* result)
{
    float sum = 0.0f;
    for (int i = 0; i < m; ++i) sum += sums[i];
    result[0] = sum;
}
"""
SUM = LaunchSequence(
    name="sum_sample",
    dimensions=(dimension("m"), dimension("n")),
    arguments=(
        integer("m"),
        integer("n"),
        array("X", "input", ("m", "n"), ("n", 1)),
        array("sums", "workspace", ("m",), (1,)),
        array("result", "output", (1,), (1,)),
    ),
    launches=(
        KernelLaunch("row_sums", formulas("ceil_div(m, 32)", 1, 1), (32, 1, 1), ("m", "n", "X", "sums")),
        KernelLaunch("total", formulas(1, 1, 1), (1, 1, 1), ("m", "sums", "result")),
    ),
    workspace_bytes=Formula("4 * m"),
)

SCRIBBLE_SOURCE = """
extern "C" __global__ void scribble(int n, int at, float* out)
{
    for (int i = 0; i < n; ++i) out[i] = i;
    if (at != 0) out[at] = 1.0f;
}
extern "C" __global__ void wild(float* out) { *(volatile float*)(out + (1LL << 40)) = 1.0f; }
extern "C" __global__ void endless(volatile float* out) { while (out[0] != 12345.0f) { } }
extern "C" __global__ void low_address_bits(unsigned long long out, int* bits) { bits[0] = (int)(out & 255); }
extern "C" __global__ void reverse_in_shared(int n, float* out)
{
    extern __shared__ float staged[];
    for (int i = threadIdx.x; i < n; i += 256) staged[i] = out[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += 256) out[i] = staged[n - 1 - i];
}
"""


def scribble(entry: str, arguments: tuple[str, ...], shared: str = "0", block: int = 1) -> LaunchSequence:
    """A sequence with the one kernel ``entry`` of SCRIBBLE_SOURCE."""
    return LaunchSequence(
        name=f"{entry}_sample",
        dimensions=(dimension("n"), dimension("at", minimum=-(2**31), default=Formula("0"))),
        arguments=(
            integer("n"),
            integer("at"),
            array("out", "inout", ("n",), (1,)),
            array("bits", "output", (1,), (1,), type="s32"),
        ),
        launches=(KernelLaunch(entry, formulas(1, 1, 1), (block, 1, 1), arguments, Formula(shared)),),
    )
