"""Coverage of k: small products of matrices are proved to add every index once, and none is with a mistake in it."""

from __future__ import annotations

from dataclasses import replace

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
    "the sum is replaced by the old value of the result": ("= sum;", "= row == 9 ? C[0] : sum;"),
    "an operand is stored": ("= sum;", "= row == 9 ? A[0] : sum;"),
    "another element's operand is added": ("= sum;", "= sum + A[0];"),
    "sums of two loops are mixed": ("float sum = 0;", "float sum = 1;"),
    "the sum of a neighbour is stored": ("= sum;", "= __shfl_xor_sync(__activemask(), sum, 1);"),
    "operands are rounded to integers": ("a[r][x] * b[x][c]", "floorf(a[r][x]) * b[x][c]"),
    "the barrier between store and load is missing": ("__syncthreads();\n        #pragma", "#pragma"),
}


FRAGMENTS = Sample(
    """
typedef unsigned short bf16;
extern "C" __global__ void kernel(const bf16* A, const bf16* B, float* C, int m, int n, int k, int lda, int ldb, int ldc)
{
    __shared__ __align__(16) bf16 a[16][24], b[8][24];
    int tiles = (n + 7) / 8, lane = threadIdx.x;
    int row = blockIdx.x / tiles * 16, column = blockIdx.x % tiles * 8;
    unsigned x0, x1, x2, x3, y0, y1;
    float c0 = 0, c1 = 0, c2 = 0, c3 = 0;
    for (int at = 0; at < k; at += 16) {
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            int r = i * 2 + lane / 16, c = lane % 16;
            a[r][c] = row + r < m && at + c < k ? A[(long long)(row + r) * lda + at + c] : 0;
        }
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            int r = i * 2 + lane / 16, c = lane % 16;
            b[r][c] = column + r < n && at + c < k ? B[(long long)(column + r) * ldb + at + c] : 0;
        }
        __syncthreads();
        unsigned p = (unsigned)__cvta_generic_to_shared(&a[lane % 16][lane / 16 * 8]);
        unsigned q = (unsigned)__cvta_generic_to_shared(&b[lane % 8][lane / 8 % 2 * 8]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(x0), "=r"(x1), "=r"(x2), "=r"(x3) : "r"(p));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(y0), "=r"(y1) : "r"(q));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3) : "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(y0), "r"(y1));
        __syncthreads();
    }
    row += lane / 4;
    column += lane % 4 * 2;
    if (row < m && column < n) C[(long long)row * ldc + column] = c0;
    if (row < m && column + 1 < n) C[(long long)row * ldc + column + 1] = c1;
    if (row + 8 < m && column < n) C[(long long)(row + 8) * ldc + column] = c2;
    if (row + 8 < m && column + 1 < n) C[(long long)(row + 8) * ldc + column + 1] = c3;
}
""",
    (
        replace(array("A", "input", ("m", "k"), ("lda", "1"), 2), type="bf16"),
        replace(array("B", "input", ("n", "k"), ("ldb", "1"), 2), type="bf16"),
        array("C", "output", ("m", "n"), ("ldc", "1")),
    ),
    ("m", "n", "k", "lda", "ldb", "ldc"),
    "ceil_div(m, 16) * ceil_div(n, 8)",
    32,
    constraints=("lda >= k", "ldb >= k", "ldc >= n"),
)
WRONG_FRAGMENTS: dict[str, tuple[str, str]] = {
    "registers of A are exchanged": ('"r"(x1), "r"(x2), "r"(x3), "r"(y0)', '"r"(x2), "r"(x1), "r"(x3), "r"(y0)'),
    "registers of B are exchanged": ('"r"(y0), "r"(y1))', '"r"(y1), "r"(y0))'),
    "a register of A is used twice": ('"r"(x1), "r"(x2), "r"(x3), "r"(y0)', '"r"(x1), "r"(x2), "r"(x2), "r"(y0)'),
    "halves are multiplied as other floats": ("f32.bf16.bf16.f32", "f32.f16.f16.f32"),
    "A is loaded transposed": ("x4.shared", "x4.trans.shared"),
    "B is loaded transposed": ("x2.shared", "x2.trans.shared"),
    "matrices of A in another order": ("&a[lane % 16][lane / 16 * 8]", "&a[lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8]"),
    "the second half of B is the first": ("[lane / 8 % 2 * 8]", "[0]"),
    "rows of A by another lane": ("&a[lane % 16]", "&a[(lane + 1) % 16]"),
    "results of the rows eight further": ("= c2;", "= c0;"),
    "columns are exchanged": ("= c1;", "= c0;"),
    "rows by eight lanes": ("row += lane / 4", "row += lane % 8"),
    "a tile holds half as many indices": ("at += 16", "at += 8"),
    "the last eight indices are dropped": ("at < k; at", "at + 8 < k; at"),
    "tile eleven is skipped": ('asm volatile("mma', 'if (at != 176) asm volatile("mma'),
    "a row of B comes from elsewhere": ("(column + r) * ldb", "(column + (r ^ 1)) * ldb"),
}


WIDENED = replace(
    TILED,
    source=TILED.source.replace(
        'extern "C"',
        '__device__ float wide(unsigned short h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f; }\nextern "C"',
    )
    .replace("const float* A, const float* B", "const unsigned short* A, const unsigned short* B")
    .replace("A[(long long)row * lda + at + c]", "wide(A[(long long)row * lda + at + c])")
    .replace("B[(long long)(at + r) * ldb + column]", "wide(B[(long long)(at + r) * ldb + column])"),
    arrays=(
        replace(array("A", "input", ("m", "k"), ("lda", "1"), 2), type="f16"),
        replace(array("B", "input", ("k", "n"), ("ldb", "1"), 2), type="f16"),
        TILED.arrays[2],
    ),
)
WRONGLY_WIDENED: dict[str, tuple[str, str]] = {
    "numbers of A that are not converted": ("wide(A[(long long)row * lda + at + c])", "__uint_as_float(A[(long long)row * lda + at + c])"),
    "integers in place of A's numbers": ("wide(A[(long long)row * lda + at + c])", "(float)A[(long long)row * lda + at + c]"),
    "the upper halves of A's numbers": ("a[r][x] * b", "wide(((unsigned short*)&a[r][x])[1]) * b"),
    "the lower halves of A's numbers": ("a[r][x] * b", "wide(((unsigned short*)&a[r][x])[0]) * b"),
    "indices of the operands differ": ("a[r][x] * b[x][c]", "a[r][x] * b[x ^ 1][c]"),
    "neighbours of A's numbers": ("lda + at + c]) : 0", "lda + at + (c ^ 1)]) : 0"),
    "the tail is dropped": ("at < k; at += 8", "at + 8 <= k; at += 8"),
    "B in place of A": ("wide(A[(long long)row * lda + at + c])", "wide(B[(long long)row * lda + at + c])"),
}


def coverage_of(source: str, sample: Sample = TILED) -> Verdict:
    """The verdict on coverage alone, which takes memory, races and progress for granted."""
    binary = compile_source(source, architecture="sm_80", options=[], name="sample.cu")
    module, sequence = parse(binary.ptx), sample.sequence
    lifter = Lifter(module, next(iter(module.functions.values())), Contract(sequence, sequence.launches[0]), Solver(60))
    lifter.known.tracks_data = True
    lifter.lift()
    product = product_of(sequence)
    assert product is not None
    return coverage(lifter, product)


def test_a_tiled_product_covers_k() -> None:
    binary = compile_source(TILED.source, architecture="sm_80", options=[], name="sample.cu")
    proof = prove_sequence(TILED.sequence, binary.ptx, seconds=60)[0]
    assert len(proof.proved) == 7, [each.reasons for each in proof.properties]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_not_proved(mistake: str) -> None:
    text, instead = MISTAKES[mistake]
    assert TILED.source.count(text) == 1
    assert not coverage_of(TILED.source.replace(text, instead)).holds


def test_a_sum_that_may_end_early_is_named_with_its_formula() -> None:
    text, instead = MISTAKES["the tail is dropped"]
    (reason,) = coverage_of(TILED.source.replace(text, instead)).unproved
    assert "the sum may end before k; not shown: (" in reason and " k" in reason


def test_a_product_of_fragments_is_proved() -> None:
    binary = compile_source(FRAGMENTS.source, architecture="sm_80", options=[], name="sample.cu")
    proof = prove_sequence(FRAGMENTS.sequence, binary.ptx, seconds=120)[0]
    assert len(proof.proved) == 7, [each.reasons for each in proof.properties]


@pytest.mark.parametrize("mistake", WRONG_FRAGMENTS)
def test_a_mistake_of_fragments_is_not_proved(mistake: str) -> None:
    text, instead = WRONG_FRAGMENTS[mistake]
    assert FRAGMENTS.source.count(text) == 1
    assert not coverage_of(FRAGMENTS.source.replace(text, instead), FRAGMENTS).holds


def test_operands_that_are_converted_first_are_proved() -> None:
    verdict = coverage_of(WIDENED.source, WIDENED)
    assert verdict.holds, verdict.unproved


@pytest.mark.parametrize("mistake", WRONGLY_WIDENED)
def test_a_mistake_of_conversions_is_not_proved(mistake: str) -> None:
    text, instead = WRONGLY_WIDENED[mistake]
    assert WIDENED.source.count(text) == 1
    assert not coverage_of(WIDENED.source.replace(text, instead), WIDENED).holds


@pytest.mark.parametrize("sample", [TILED, WIDENED, FRAGMENTS], ids=["as they are", "converted", "fragments"])
def test_operands_of_another_type_are_not_proved(sample: Sample) -> None:
    """The kernel takes the bits of its operands for another type than the arrays have."""
    other = {"f32": "s32", "f16": "bf16", "bf16": "f16"}
    a, b, c = sample.arrays
    wrong = replace(sample, arrays=(replace(a, type=other[a.type]), replace(b, type=other[b.type]), c))
    assert not coverage_of(wrong.source, wrong).holds


def test_coverage_of_a_kernel_with_races_is_not_proved() -> None:
    source = TILED.source.replace("__syncthreads();\n    }", "}")
    binary = compile_source(source, architecture="sm_80", options=[], name="sample.cu")
    proof = prove_sequence(TILED.sequence, binary.ptx, seconds=60)[0]
    assert "races" not in proof.proved and "coverage" not in proof.proved
