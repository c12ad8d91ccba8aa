"""``gemmgen prove FILE``: kernels as tutorials write them, and mistakes in them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("z3")

from gemmgen.cli import cli

SAXPY = """
extern "C" __global__ void kernel(int n, float a, const float* x, float* y)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = a * x[i] + y[i];
}
"""
SAXPY_LAUNCH = ["--block", "256", "--grid", "ceil_div(n, 256)", "--array", "x=in f32[n]", "--array", "y=inout f32[n]"]

SGEMM = """
extern "C" __global__ void kernel(int m, int n, int k, float alpha, const float* A, const float* B, float* C)
{
    __shared__ float a[16][16], b[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int t = 0; t < k; t += 16) {
        a[threadIdx.y][threadIdx.x] = row < m && t + threadIdx.x < k ? A[(long long)row * k + t + threadIdx.x] : 0;
        b[threadIdx.y][threadIdx.x] = column < n && t + threadIdx.y < k ? B[(long long)(t + threadIdx.y) * n + column] : 0;
        __syncthreads();
        for (int i = 0; i < 16; i++)
            sum += a[threadIdx.y][i] * b[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n)
        C[(long long)row * n + column] = alpha * sum;
}
"""
SGEMM_LAUNCH = ["--block", "16,16", "--grid", "ceil_div(n, 16), ceil_div(m, 16)", "--array", "A=in f32[m, k]", "--array", "B=in f32[k, n]"]
SGEMM_LAUNCH += ["--array", "C=out f32[m, n]", "--expects", "k <= 2147483600"]

WARP_SUM = """
extern "C" __global__ void kernel(int n, const float* x, float* y)
{
    __shared__ float sums[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    sums[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        sums[threadIdx.x] += sums[threadIdx.x + 32];
        for (int half = 16; half > 0; half /= 2) {
            __syncwarp();
            float other = sums[threadIdx.x + half];
            __syncwarp();
            sums[threadIdx.x] += other;
        }
    }
    if (threadIdx.x == 0)
        y[blockIdx.x] = sums[0];
}
"""
WARP_SUM_LAUNCH = ["--block", "64", "--grid", "ceil_div(n, 64)", "--array", "x=in f32[n]", "--array", "y=out f32[ceil_div(n, 64)]"]

QUADS = """
extern "C" __global__ void kernel(int m, int n, int ld, const float* x, float* y)
{
    int row = (blockIdx.x * 64 + threadIdx.x) * 4;
    for (int column = 0; column < n; column++)
        if (row + 3 < m)
            *(float4*)&y[row + (long long)column * ld] = *(const float4*)&x[row + (long long)column * ld];
}
"""
QUADS_LAUNCH = [
    "--block",
    "64",
    "--grid",
    "ceil_div(m, 256)",
    "--array",
    "x=in f32[m, n : 1, ld] @16",
    "--array",
    "y=out f32[m, n : 1, ld] @16",
]
QUADS_LAUNCH += ["--expects", "m <= 2147483000", "--expects", "ld >= m", "--expects", "ld % 4 == 0"]

COPIES = """
extern "C" __global__ void kernel(int n, const float* x, float* y)
{
    __shared__ float stages[3][64];
    unsigned at = (unsigned)__cvta_generic_to_shared(&stages[0][threadIdx.x]);
    float sum = 0;
    for (int t = 0; t < 2; t++) {
        if (t < n)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at + t * 256), "l"(x + t * 64 + threadIdx.x));
        asm volatile("cp.async.commit_group;");
    }
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    int write = 2, read = 0;
    #pragma unroll 1
    for (int t = 0; t < n; t++) {
        if (t + 2 < n)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                :: "r"(at + write * 256), "l"(x + (long long)(t + 2) * 64 + threadIdx.x));
        asm volatile("cp.async.commit_group;");
        sum += stages[read][63 - threadIdx.x];
        asm volatile("cp.async.wait_group 1;");
        __syncthreads();
        write = read;
        read = read == 2 ? 0 : read + 1;
    }
    __syncthreads();
    stages[0][63 - threadIdx.x] = sum;
    __syncthreads();
    y[threadIdx.x] = stages[0][threadIdx.x];
}
"""
COPIES_LAUNCH = ["--block", "64", "--grid", "1", "--array", "x=in f32[n * 64]", "--array", "y=out f32[64]", "--expects", "n <= 2147483600"]

KERNELS = {
    "ring of copies": (COPIES, COPIES_LAUNCH),
    "columns of quads": (QUADS, QUADS_LAUNCH),
    "saxpy": (SAXPY, SAXPY_LAUNCH),
    "sgemm": (SGEMM, SGEMM_LAUNCH),
    "warp sum": (WARP_SUM, WARP_SUM_LAUNCH),
}
UNPROVED = {"columns of quads": {"once", "complete"}}
"""Properties that hold and are not proved: of stores in a loop that the compiler unrolled, with a loop for the rest."""
MISTAKES = {
    "the last quad of a column": ("columns of quads", "row + 3 < m", "row < m", "memory"),
    "a quad beyond the last column": ("columns of quads", "column < n;", "column <= n;", "memory"),
    "a thread too many": ("saxpy", "i < n", "i <= n", "memory"),
    "rows overflow 32 bits": ("sgemm", "A[(long long)row * k", "A[row * k", "memory"),
    "swapped strides": ("sgemm", "C[(long long)row * n", "C[(long long)row * k", "memory"),
    "tail of k is read": ("sgemm", "row < m && t + threadIdx.x < k ?", "row < m ?", "memory"),
    "no barrier before the tiles are read": ("sgemm", "        __syncthreads();\n        for", "        for", "races"),
    "no barrier after the tiles are read": ("sgemm", "        __syncthreads();\n    }", "    }", "races"),
    "blocks share rows": ("sgemm", "blockIdx.y * 16", "blockIdx.y * 15", "once"),
    "no barrier of the warp": ("warp sum", "            __syncwarp();\n            float", "            float", "races"),
    "a barrier for those who ran long": (
        "warp sum",
        "    __syncthreads();",
        "    int turns = 0; for (int j = threadIdx.x; j < n; j += 64) turns++; if (turns > 3) __syncthreads();",
        "progress",
    ),
    "a copy that nothing waits for": (
        "ring of copies",
        'wait_group 1;");\n        __syncthreads();',
        'wait_group 2;");\n        __syncthreads();',
        "races",
    ),
    "copies beyond the last": ("ring of copies", "t + 2 < n", "t < n", "memory"),
    "copies that end after the loop": ("ring of copies", "if (t + 2 < n)", "", "races"),
    "the stage that is read is filled": ("ring of copies", "write = read;", "write = read == 2 ? 0 : read + 1;", "races"),
    "no barrier after the copies": ("ring of copies", "        __syncthreads();\n        write", "        write", "races"),
    "half of a warp": ("warp sum", "threadIdx.x < 32", "threadIdx.x < 48", "races"),
}


def prove(tmp_path: Path, source: str, launch: list[str]) -> dict[str, str]:
    file = tmp_path / "kernel.cu"
    file.write_text(source)
    result = CliRunner().invoke(cli, ["prove", str(file), "--seconds", "20", *launch, "--json"])
    assert result.exit_code in (0, 1), result.output
    return {each["name"]: each["status"] for each in json.loads(result.stdout)[0]["kernels"][0]["properties"]}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_tutorials_are_proved(tmp_path: Path, name: str) -> None:
    found = prove(tmp_path, *KERNELS[name])
    assert {property_ for property_, status in found.items() if status != "proved"} <= UNPROVED.get(name, set())


@pytest.mark.parametrize("mistake", MISTAKES)
def test_their_mistakes_are_not_proved(tmp_path: Path, mistake: str) -> None:
    name, text, instead, wrong = MISTAKES[mistake]
    source, launch = KERNELS[name]
    assert text in source
    assert prove(tmp_path, source.replace(text, instead, 1), launch)[wrong] != "proved"


def test_a_counterexample_is_run_on_the_emulator(tmp_path: Path) -> None:
    assert prove(tmp_path, SAXPY.replace("i < n", "i <= n"), SAXPY_LAUNCH)["memory"] == "refuted"


def test_a_counterexample_reads_like_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "kernel.cu"
    file.write_text(SGEMM.replace("row < m && column < n)", "row <= m && column < n)"))
    result = CliRunner().invoke(cli, ["prove", str(file), *SGEMM_LAUNCH])
    who = r"thread \(\d+, \d+\) of block \(\d+, \d+\)"
    assert re.search(rf"for m = \d+, n = \d+, k = \d+ {who} writes C\[(\d+)\]\[0\], where C has \1 x 1 elements", result.output)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SAXPY_LAUNCH[:-2], "pointer parameter y needs an array"),
        ([*SAXPY_LAUNCH[:-1], "z=in f32[n]"], "has the parameters"),
        ([*SAXPY_LAUNCH[:-1], "y=in f32[q]"], "q is no integer parameter"),
        ([*SAXPY_LAUNCH[:-1], "y=f32"], "expected NAME=in|out|inout"),
        ([*SAXPY_LAUNCH, "--expects", "n >"], "formula"),
        ([*SAXPY_LAUNCH, "--expects", "n // 0 >= 1"], "divides by zero"),
        ([*SAXPY_LAUNCH, "--expects", "ceil_div(n, 1 - 1) >= 1"], "divides by zero"),
        (SAXPY_LAUNCH[:2], "Missing option '--grid'"),
        (["--block", "99999999999", *SAXPY_LAUNCH[2:]], "a block has 1 to 1024 threads"),
        (["--block", "64,64", *SAXPY_LAUNCH[2:]], "a block has 1 to 1024 threads"),
        (["--block", "0", *SAXPY_LAUNCH[2:]], ""),
        ([*SAXPY_LAUNCH[:-1], "y=in f32[n] @" + "9" * 5000], "expected NAME=in|out|inout"),
        ([*SAXPY_LAUNCH[:-1], "y=in f32[n] @0"], "expected NAME=in|out|inout"),
        ([*SAXPY_LAUNCH[:-1], f"y=in f32[{'-' * 3000}n]"], ""),
        ([*SAXPY_LAUNCH, "--expects", "n" + " + n" * 5000], ""),
        ([*SAXPY_LAUNCH, "--shared", "(" * 3000 + "n" + ")" * 3000], ""),
    ],
)
def test_a_launch_that_means_nothing_is_told_in_one_message(tmp_path: Path, options: list[str], message: str) -> None:
    file = tmp_path / "kernel.cu"
    file.write_text(SAXPY)
    result = CliRunner().invoke(cli, ["prove", str(file), *options])
    assert result.exit_code == 2 and message in result.output and "Traceback" not in result.output
