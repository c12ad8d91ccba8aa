"""Coverage of k: small products of matrices are proved to add every index once, and none is with a mistake in it."""

from __future__ import annotations

import pytest

pytest.importorskip("z3")

from gemmgen.emulator.ptx.parser import parse
from gemmgen.proof.contract import Contract
from gemmgen.proof.coverage import coverage, product_of
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.obligations import Verdict
from gemmgen.proof.prover import prove_sequence
from gemmgen.proof.solver import Solver
from gemmgen.toolchain.nvrtc import compile_source
from tests.proof.kernels import Sample, array

TILED = Sample(
    """
extern "C" __global__ void kernel(const float* A, const float* B, float* C, int m, int n, int k, int lda, int ldb, int ldc)
{
    __shared__ float a[8][9], b[8][8];
    int tiles = (n + 7) / 8;
    int r = threadIdx.x / 8, c = threadIdx.x % 8;
    int row = blockIdx.x / tiles * 8 + r, column = blockIdx.x % tiles * 8 + c;
    float sum = 0;
    for (int at = 0; at < k; at += 8) {
        a[r][c] = row < m && at + c < k ? A[(long long)row * lda + at + c] : 0;
        b[r][c] = at + r < k && column < n ? B[(long long)(at + r) * ldb + column] : 0;
        __syncthreads();
        #pragma unroll
        for (int x = 0; x < 8; ++x)
            sum += a[r][x] * b[x][c];
        __syncthreads();
    }
    if (row < m && column < n)
        C[(long long)row * ldc + column] = sum;
}
""",
    (
        array("A", "input", ("m", "k"), ("lda", "1")),
        array("B", "input", ("k", "n"), ("ldb", "1")),
        array("C", "output", ("m", "n"), ("ldc", "1")),
    ),
    ("m", "n", "k", "lda", "ldb", "ldc"),
    "ceil_div(m, 8) * ceil_div(n, 8)",
    64,
    constraints=("lda >= k", "ldb >= n", "ldc >= n"),
)
MISTAKES: dict[str, tuple[str, str]] = {
    "the tail is dropped": ("at < k; at += 8", "at + 8 <= k; at += 8"),
    "the first tile is skipped": ("int at = 0;", "int at = 8;"),
    "every second tile is skipped": ("at += 8)", "at += 16)"),
    "the last index of a tile is skipped": ("x < 8; ++x", "x < 7; ++x"),
    "one index of a tile is skipped": ("sum += a[r][x]", "if (x != 3) sum += a[r][x]"),
    "one index is added twice": ("sum += a[r][x] * b[x][c];", "{ sum += a[r][x] * b[x][c]; if (x == 5) sum += a[r][x] * b[x][c]; }"),
    "indices of the operands differ": ("a[r][x] * b[x][c]", "a[r][x] * b[x ^ 1][c]"),
    "A is read transposed": ("a[r][x] *", "a[x][r] *"),
    "B is read transposed": ("* b[x][c]", "* b[c][x]"),
    "an operand is used twice": ("* b[x][c]", "* a[r][x]"),
    "a row of a neighbour": ("a[r][x] *", "a[r ^ 1][x] *"),
    "tile eleven is skipped": ("sum += a[r][x]", "if (at != 88) sum += a[r][x]"),
    "the sum begins again at tile eleven": ("__syncthreads();\n    }", "__syncthreads();\n        if (at == 88) sum = 0;\n    }"),
    "indices beyond 2^20 are left out": ("at < k; at += 8", "at < k && at < (1 << 20); at += 8"),
    "indices beyond 2^20 are read as 0": ("&& at + c < k ?", "&& at + c < k && at < (1 << 20) ?"),
    "the last index is read as 0": ("&& at + c < k ?", "&& at + c < k - 1 ?"),
    "the last row is read as 0": ("= row < m &&", "= row < m - 1 &&"),
    "columns are exchanged on the way to shared memory": ("b[r][c] =", "b[r][c ^ 1] ="),
    "rows are exchanged on the way to shared memory": ("a[r][c] =", "a[r ^ 1][c] ="),
    "A begins one tile late": ("* lda + at + c]", "* lda + (at + 8 + c < k ? at + 8 + c : at + c)]"),
    "shared memory is changed before it is read": (
        "__syncthreads();\n        #pragma",
        "__syncthreads();\n        if (at == 88) a[r][c] = 1;\n        __syncthreads();\n        #pragma",
    ),
    "a tile is kept from the turn before": ("        a[r][c] = row", "        if (at != 88) a[r][c] = row"),
    "a constant is stored for one row": ("= sum;", "= row == 9 ? 0 : sum;"),
    "the sum is replaced by what the result held": ("= sum;", "= row == 9 ? C[0] : sum;"),
    "an operand is stored": ("= sum;", "= row == 9 ? A[0] : sum;"),
    "another element's operand is added": ("= sum;", "= sum + A[0];"),
    "sums of two loops are mixed": ("float sum = 0;", "float sum = 1;"),
    "the sum of a neighbour is stored": ("= sum;", "= __shfl_xor_sync(__activemask(), sum, 1);"),
    "the barrier between store and load is missing": ("__syncthreads();\n        #pragma", "#pragma"),
}


def coverage_of(source: str) -> Verdict:
    """The verdict on coverage alone, which takes memory, races and progress for granted."""
    binary = compile_source(source, architecture="sm_80", options=[], name="sample.cu")
    module, sequence = parse(binary.ptx), TILED.sequence
    lifter = Lifter(module, next(iter(module.functions.values())), Contract(sequence, sequence.launches[0]), Solver(60))
    lifter.known.tracks_data = True
    lifter.lift()
    product = product_of(sequence)
    assert product is not None
    return coverage(lifter, product)


def test_a_tiled_product_covers_k() -> None:
    binary = compile_source(TILED.source, architecture="sm_80", options=[], name="sample.cu")
    proof = prove_sequence(TILED.sequence, binary.ptx, seconds=60)[0]
    assert set(proof.proved) == {"memory", "races", "once", "progress", "coverage"}, [each.reasons for each in proof.properties]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_not_proved(mistake: str) -> None:
    text, instead = MISTAKES[mistake]
    assert TILED.source.count(text) == 1
    assert not coverage_of(TILED.source.replace(text, instead)).holds


def test_coverage_of_a_kernel_with_races_is_not_proved() -> None:
    source = TILED.source.replace("__syncthreads();\n    }", "}")
    binary = compile_source(source, architecture="sm_80", options=[], name="sample.cu")
    proof = prove_sequence(TILED.sequence, binary.ptx, seconds=60)[0]
    assert "races" not in proof.proved and "coverage" not in proof.proved
