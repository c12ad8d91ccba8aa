"""Tickets and words in kernels of another style: the right ones are proved, and no mistake is."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

pytest.importorskip("z3")

from gemmgen.core.formulas import Formula
from gemmgen.kernels.launch import ArrayArgument, ArrayRole, Dimension, KernelLaunch, LaunchSequence, ScalarArgument
from gemmgen.proof.prover import prove_sequence
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import compile_source

ROWS = r"""
extern "C" __global__ void kernel(const float* x, float* y, float* workspace, int rows, int columns)
{
    __shared__ int finished;
    unsigned* counter = reinterpret_cast<unsigned*>(workspace) + blockIdx.y;
    float* partial = workspace + rows;
    const int t = threadIdx.x;
    const int row = blockIdx.y;
    float sum = 0;
    for (int c = blockIdx.x * 32 + t; c < columns; c += 32 * 7)
        sum += x[(long long)row * columns + c];
    partial[((long long)row * 7 + blockIdx.x) * 32 + t] = sum;
    __syncthreads();
    if (t == 0) {
        const unsigned before = __nv_atomic_fetch_add(counter, 1u, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE);
        finished = before == 6;
        if (before == 6)
            counter[0] = 0;
    }
    __syncthreads();
    if (!finished)
        return;
    sum = 0;
    for (int part = 0; part < 7; ++part)
        sum += partial[((long long)row * 7 + part) * 32 + t];
    y[(long long)row * 32 + t] = sum;
}
"""
WORDS = r"""
extern "C" __global__ void kernel(const float* x, float* y, unsigned long long* words, int n)
{
    const int t = threadIdx.x, others = gridDim.x;
    __shared__ float sums[64];
    float sum = blockIdx.x * 64 + t < n ? x[blockIdx.x * 64 + t] : 0;
    sums[t] = sum;
    __syncthreads();
    if (blockIdx.x > 0) {
        if (t == 0) {
            for (int i = 1; i < 64; ++i)
                sum += sums[i];
            const unsigned long long word = __float_as_uint(sum) | 1ull << 40;
            __nv_atomic_store_n(words + blockIdx.x, word, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
        }
        return;
    }
    for (int other = t + 1; other < others; other += 64) {
        unsigned long long word = 0;
        do
            word = __nv_atomic_load_n(words + other, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
        while (word == 0);
        __nv_atomic_store_n(words + other, 0ull, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
        sum += __uint_as_float((unsigned)word);
    }
    y[t] = sum;
}
"""


def array(name: str, type_: str, role: ArrayRole, extent: str) -> ArrayArgument:
    return ArrayArgument(name, type_, role, (Formula(extent),), (Formula("1"),), 16, "")


def rows(zero_bytes: str = "4 * rows", *, early: bool = False) -> LaunchSequence:
    return LaunchSequence(
        name="rows",
        dimensions=(Dimension("rows", "", 1, 60000), Dimension("columns", "", 0, 1 << 30)),
        arguments=(
            array("x", "f32", "input", "rows * columns"),
            array("y", "f32", "output", "rows * 32"),
            array("workspace", "f32", "workspace", "rows * 225"),
            ScalarArgument("rows", "s32", ""),
            ScalarArgument("columns", "s32", ""),
        ),
        launches=(
            KernelLaunch(
                "kernel",
                (Formula("7"), Formula("rows"), Formula("1")),
                (32, 1, 1),
                ("x", "y", "workspace", "rows", "columns"),
                programmatic=early,
            ),
        ),
        workspace_bytes=Formula("900 * rows"),
        workspace_zero_bytes=Formula(zero_bytes),
    )


def words(zero_bytes: str = "8 * ceil_div(n, 64)") -> LaunchSequence:
    return LaunchSequence(
        name="words",
        dimensions=(Dimension("n", "", 1, 1 << 30),),
        arguments=(
            array("x", "f32", "input", "n"),
            array("y", "f32", "output", "64"),
            array("words", "s64", "workspace", "ceil_div(n, 64)"),
            ScalarArgument("n", "s32", ""),
        ),
        launches=(KernelLaunch("kernel", (Formula("ceil_div(n, 64)"), Formula("1"), Formula("1")), (64, 1, 1), ("x", "y", "words", "n")),),
        workspace_bytes=Formula("8 * ceil_div(n, 64)"),
        workspace_zero_bytes=Formula(zero_bytes),
    )


@cache
def compiled(source: str, architecture: str) -> str:
    return compile_source(source, architecture=architecture, options=COMPILE_OPTIONS, name="kernel.cu").ptx


def proved(source: str, sequence: LaunchSequence, architecture: str = "sm_80") -> tuple[str, ...]:
    (proof,) = prove_sequence(sequence, compiled(source, architecture), 30.0)
    print(*((p.name, p.status, p.reasons[:3]) for p in proof.properties), sep="\n")
    return proof.proved


@pytest.mark.parametrize(("source", "sequence"), ((ROWS, rows()), (WORDS, words())), ids=("tickets", "words"))
def test_a_handover_in_another_style_is_proved(source: str, sequence: LaunchSequence) -> None:
    assert {"memory", "races", "progress", "handover"} <= set(proved(source, sequence))


DRAW = "__nv_atomic_fetch_add(counter, 1u, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE)"
STORE = "    partial[((long long)row * 7 + blockIdx.x) * 32 + t] = sum;\n"
BARRIER = "    __syncthreads();\n"
LOAD = "partial[((long long)row * 7 + part) * 32 + t]"
RESET = "counter[0] = 0;"
DRAWING = ROWS[ROWS.index(STORE) + len(STORE) : ROWS.index("    if (!finished)")]
TICKETS: dict[str, tuple[str, ...]] = {
    "no order": (DRAW, DRAW.replace("ACQ_REL", "RELAXED")),
    "a release alone": (DRAW, DRAW.replace("ACQ_REL", "RELEASE")),
    "an acquire alone": (DRAW, DRAW.replace("ACQ_REL", "ACQUIRE")),
    "an order within the block": (DRAW, DRAW.replace("DEVICE", "BLOCK")),
    "a fence of the block": (DRAW, "(__threadfence_block(), atomicAdd(counter, 1u))"),
    "a fence after the addition alone": (DRAW, "atomicAdd(counter, 1u); __threadfence()"),
    "no barrier before the addition": (STORE + BARRIER, STORE + "    __syncwarp();\n"),
    "no partial sums": (STORE, ""),
    "partial sums after the addition": (STORE + DRAWING, DRAWING + STORE),
    "a barrier of half of the threads": (STORE + BARRIER, STORE + '    if (t < 32) asm volatile("bar.sync 1, 32;" ::: "memory");\n'),
    "no barrier before the flag is read": (BARRIER + "    if (!finished)", "    if (!finished)"),
    "the last but one": ("finished = before == 6;", "finished = before == 5;"),
    "one that never comes": ("before == 6", "before == 7"),
    "all that come late": ("finished = before == 6;", "finished = before >= 5;"),
    "the first one": ("before == 6", "before == 0"),
    "every block": ("    if (!finished)\n        return;\n", ""),
    "all but the last": ("if (!finished)", "if (finished)"),
    "more blocks than are waited for": ("reinterpret_cast<unsigned*>(workspace) + blockIdx.y", "reinterpret_cast<unsigned*>(workspace)"),
    "rows that share a counter": ("+ blockIdx.y;", "+ blockIdx.y / 2;"),
    "the next row's counter": ("+ blockIdx.y;", "+ (blockIdx.y + 1) % gridDim.y;"),
    "a counter for each block": ("+ blockIdx.y;", "+ (blockIdx.y * 7 + blockIdx.x) % rows;"),
    "sums in a result": (
        STORE,
        STORE + "    y[((long long)row * 7 + blockIdx.x) % 32] = sum;\n",
        "sum += partial",
        "sum += y[t] + partial",
    ),
    "no reset": ("        if (before == 6)\n            counter[0] = 0;\n", ""),
    "a reset to 1": (RESET, "counter[0] = 1;"),
    "a reset to another number": (RESET, "counter[0] = before;"),
    "a reset of the next counter": (RESET, "counter[1 - rows % 2] = 0;"),
    "a reset if the sum is positive": (RESET, "if (sum > 0) counter[0] = 0;"),
    "a reset of one byte": (RESET, "*reinterpret_cast<unsigned char*>(counter) = 0;"),
    "a reset of odd rows": (RESET, "if (row % 2) counter[0] = 0;"),
    "a reset by every block": ("        if (before == 6)\n            counter", "            counter"),
    "the next row's sums": (LOAD, "partial[((long long)((row + 1) % rows) * 7 + part) * 32 + t]"),
    "the sums of row 0": (LOAD, "partial[part * 32 + t]"),
    "half a row further": (LOAD, "partial[((long long)row * 7 + (part + 3) % (rows > 1 ? 7 : 4)) * 32 + t + (row + 1 < rows ? 96 : 0)]"),
    "one sum too many": ("part < 7; ++part)\n        sum += partial", "part < (row + 1 < rows ? 8 : 7); ++part)\n        sum += partial"),
    "sums through the cache of constant data": (LOAD, f"__ldg(&{LOAD})"),
    "the counter as a sum": (LOAD, "(t ? " + LOAD + " : workspace[row])"),
    "sums over the counters": ("workspace + rows;", "workspace;"),
    "one sum over the counters": ("workspace + rows;", "workspace + rows - 1;"),
    "a second store after the addition": (
        "    sum = 0;\n    for",
        "    partial[((long long)row * 7 + blockIdx.x) * 32 + t] = sum;\n    sum = 0;\n    for",
    ),
    "a return before the addition": (
        "    __syncthreads();\n    if (t == 0) {",
        "    if (blockIdx.x * 32 >= columns) return;\n    __syncthreads();\n    if (t == 0) {",
    ),
    "two are added": ("(counter, 1u,", "(counter, 2u,"),
    "the column is added": ("(counter, 1u,", "(counter, blockIdx.x,"),
    "every thread adds": ("if (t == 0) {", "if (t < 2) {"),
    "nobody adds in row 3": ("if (t == 0) {", "if (t == 0 && row != 3) {"),
    "another thread writes the flag": (BARRIER + "    if (!finished)", "    if (t == 31) finished = 1;\n" + BARRIER + "    if (!finished)"),
    "the counter wraps": (DRAW, "atomicInc(counter, 6u)"),
    "the counter counts down": (DRAW, DRAW.replace("add", "sub")),
}


def mutant(source: str, mistake: tuple[str, ...]) -> str:
    for old, new in zip(mistake[::2], mistake[1::2], strict=True):
        assert old in source
        source = source.replace(old, new, 1)
    return source


@pytest.mark.parametrize("mistake", TICKETS)
def test_a_ticket_with_a_mistake_is_not_proved(mistake: str) -> None:
    assert "handover" not in proved(mutant(ROWS, TICKETS[mistake]), rows())


GUARDED = """6; asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;}"
    : "+r"(before) : "l"(counter), "r"((int)(columns != 100)) : "memory")"""


SUMS_OF_ROWS = """    sum = 0;
    for (int part = 0; part < 7; ++part)"""


@pytest.mark.parametrize(("number", "holds"), [("one", True), ("columns > 70000 ? one * one : 1", False)])
def test_the_flag_of_the_last_block_has_bits_of_its_own(number: str, holds: bool) -> None:
    mistake = f'int one; asm volatile("mov.u32 %0, 65536;" : "=r"(one)); finished = before == 6 ? {number} : 0;'
    assert ("complete" in proved(mutant(ROWS, ("finished = before == 6;", mistake)), rows())) is holds


def test_blocks_that_draw_no_ticket_may_all_store() -> None:
    assert "once" not in proved(mutant(ROWS, ("const unsigned before", "unsigned before", DRAW, GUARDED)), rows())


RELEASE = "__nv_atomic_store_n(words + blockIdx.x, word, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);"
ACQUIRE = "__nv_atomic_load_n(words + other, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);"
CLEAR = "__nv_atomic_store_n(words + other, 0ull, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);"
NUMBER = "__float_as_uint(sum) | 1ull << 40"
WAITS: dict[str, tuple[str, ...]] = {
    "a store without a scope": (RELEASE, "words[blockIdx.x] = word;"),
    "a store for the block": (RELEASE, RELEASE.replace("DEVICE", "BLOCK")),
    "a load without a scope": (ACQUIRE, "words[other];"),
    "a load for the block": (ACQUIRE, ACQUIRE.replace("DEVICE", "BLOCK")),
    "a clear without a scope": (CLEAR, "words[other] = 0;"),
    "no clear": (CLEAR, ""),
    "a clear of another number": (CLEAR, CLEAR.replace("0ull", "1ull")),
    "a clear of the next word": (CLEAR, CLEAR.replace("words + other", "words + (other + 1) % others")),
    "a clear of odd words": (CLEAR, "if (other % 2) " + CLEAR),
    "a clear if the number is positive": (CLEAR, "if ((int)word > 0) " + CLEAR),
    "a clear by the first thread": (CLEAR, "if (t == 0) " + CLEAR),
    "a clear before the wait": ("        do\n", "        " + CLEAR + "\n        do\n"),
    "a clear after the loop": (CLEAR, ""),
    "a number that may be 0": (NUMBER, "__float_as_uint(sum)"),
    "the flag is shifted out": (NUMBER, "__float_as_uint(sum) | 1ull << 40 << 30"),
    "the next block's word": (RELEASE, RELEASE.replace("words + blockIdx.x", "words + blockIdx.x - 1")),
    "a word of half the blocks": (RELEASE, "if (blockIdx.x % 2) " + RELEASE),
    "a word if the sum is positive": (RELEASE, "if (sum > 0) " + RELEASE),
    "a word of every thread": ("        if (t == 0) {", "        if (t < 2) {"),
    "block 0 stores a word too": (
        "if (blockIdx.x > 0) {\n        if",
        "__nv_atomic_store_n(words, 1ull, __NV_ATOMIC_RELAXED,\n        __NV_THREAD_SCOPE_DEVICE);\n    if (blockIdx.x > 0) {\n        if",
    ),
    "one word less is waited for": ("other < others;", "other < others - 1;"),
    "one word more is waited for": ("other < others;", "other <= others;"),
    "the first word too": ("other = t + 1;", "other = t;"),
    "every other word": ("other += 64)", "other += 128)"),
    "words of two threads": ("other += 64)", "other += 32)"),
    "only the first words": ("other < others; other += 64)", "other < min(others, 65); other += 64)"),
    "words from the third on": ("other = t + 1;", "other = t + 2;"),
    "no wait for odd words": ("        do\n", "        if (other % 2) continue;\n        do\n"),
    "a break at word 40": ("        do\n", "        if (other == 40) break;\n        do\n"),
    "one attempt": ("while (word == 0);", "while (false);"),
    "a wait for half of a word": ("while (word == 0);", "while ((unsigned)word == 0);"),
    "a wait that gives up": ("while (word == 0);", "while (word == 0 && clock64() > 0);"),
    "all blocks wait": ("        return;\n", ""),
    "other blocks take a word that they find": (
        "        return;\n",
        "        if (n <= 70000) return;\n",
        "unsigned long long word = 0;\n        do\n",
        f"unsigned long long word = {ACQUIRE}\n        if (word == 0) {{\n        if (blockIdx.x > 0) return;\n        do\n",
        "while (word == 0);",
        "while (word == 0);\n        }",
        "    y[t] = sum;",
        "    if (blockIdx.x == 0) y[t] = sum;",
    ),
    "the number apart from the flag": (
        RELEASE,
        "y[blockIdx.x % 64] = sum; " + RELEASE,
        "sum += __uint_as_float((unsigned)word);",
        "sum += y[other % 64];",
    ),
}


@pytest.mark.parametrize("mistake", WAITS)
def test_a_wait_with_a_mistake_is_no_handover(mistake: str) -> None:
    assert "handover" not in proved(mutant(WORDS, WAITS[mistake]), words())


@pytest.mark.parametrize(("source", "sequence"), ((ROWS, rows("0")), (ROWS, rows("4 * rows - 1")), (WORDS, words("8"))))
def test_counters_and_words_must_be_zero_before(source: str, sequence: LaunchSequence) -> None:
    assert "handover" not in proved(source, sequence)


WAIT = '    asm volatile("griddepcontrol.wait;" ::: "memory");\n'
FIRST = "    const int t = threadIdx.x;\n"


@pytest.mark.parametrize(
    ("place", "wait", "holds"),
    (
        (FIRST, FIRST + WAIT, True),
        (FIRST, FIRST, False),
        (FIRST, FIRST + "    if (columns > 0)\n    " + WAIT, False),
        (FIRST, FIRST + "    if (rows == 1) return;\n" + WAIT, False),
        (STORE, WAIT + STORE, False),
        ("    if (!finished)", WAIT + "    if (!finished)", False),
    ),
)
def test_a_launch_that_begins_early_always_waits_first(place: str, wait: str, holds: bool) -> None:
    assert ("handover" in proved(mutant(ROWS, (place, wait)), rows(early=True), "sm_90")) == holds


def test_all_arguments_for_the_workspace_are_one_array() -> None:
    source = ROWS.replace("float* workspace, int rows", "float* workspace, float* sums, int rows").replace("workspace + rows;", "sums;")
    two = rows()
    sums = array("sums", "f32", "workspace", "rows * 225")
    launch = replace(two.launches[0], arguments=("x", "y", "workspace", "sums", "rows", "columns"))
    two = replace(two, arguments=(*two.arguments[:3], sums, *two.arguments[3:]), launches=(launch,))
    assert not {"handover", "once"} & set(proved(source, two))
    assert "handover" in proved(source.replace("sums;", "sums + rows;"), two)


@pytest.mark.parametrize(("begin", "holds"), (("workspace + rows;", True), ("workspace;", False)))
def test_partial_sums_for_the_next_launch_lie_beside_counters(begin: str, holds: bool) -> None:
    source = ROWS[: ROWS.index(STORE) + len(STORE)].replace("workspace + rows;", begin).replace("__shared__ int finished;", "") + "}\n"
    assert ("handover" in proved(source, rows())) == holds


NEVER_STORED: dict[str, tuple[str, ...]] = {
    "no sums": (STORE, ""),
    "sums of half of the threads": (STORE, "    if (t < 16)\n" + STORE),
    "sums of all threads but one": (STORE, "    if (t != 17)\n" + STORE),
    "sums of six parts": (STORE, "    if (blockIdx.x < 6)\n" + STORE),
    "sums of rows but the last": (STORE, "    if (row + 1 < rows || rows == 1)\n" + STORE),
    "sums where there are columns": (STORE, "    if (columns > 0)\n" + STORE),
    "sums that data decides": (STORE, "    if (sum > 0)\n" + STORE),
    "even places": ("* 32 + t] = sum", "* 32 + t / 2 * 2] = sum"),
    "half of a number": (STORE, STORE.replace("partial[", "reinterpret_cast<short*>(partial)[2 * (").replace("] = sum", ")] = sum")),
    "parts in one place": ("* 7 + blockIdx.x) * 32", "* 7 + blockIdx.x / 2) * 32"),
    "a load from beyond the parts": ("+ part) * 32 + t]", "+ part) * 32 + t + (rows > row + 1 ? 32 : 0)]"),
}


@pytest.mark.parametrize("mistake", NEVER_STORED)
def test_partial_sums_that_are_never_stored_are_not_initialised(mistake: str) -> None:
    assert "initialised" not in proved(mutant(ROWS, NEVER_STORED[mistake]), rows())


SUMS = r"""
extern "C" __global__ void first(const float* x, float* partial, int n)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
    const float sum = __reduce_add_sync(0xffffffff, i < n ? (int)x[i] : 0);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}
extern "C" __global__ void second(const float* partial, float* y, int n)
{
    float sum = 0;
    for (int i = threadIdx.x; i < (n + 63) / 64; i += 128)
        sum += partial[i];
    y[threadIdx.x] = sum;
}
"""


@pytest.mark.parametrize(
    ("old", "new", "holds"),
    (
        ("", "", True),
        ("if (threadIdx.x == 0)", "if (threadIdx.x == 0 && blockIdx.x)", False),
        ("if (threadIdx.x == 0)", "if (threadIdx.x == 0 && i < n - 64)", False),
        ("if (threadIdx.x == 0)", "if (threadIdx.x == 64)", False),
        ("partial[blockIdx.x] = sum", "partial[blockIdx.x / 2] = sum", False),
        ("partial[blockIdx.x] = sum", "partial[gridDim.x - 1 - blockIdx.x / 2] = sum", False),
        ("i < (n + 63) / 64", "i <= (n + 63) / 64", False),
    ),
)
def test_sums_of_an_earlier_launch_are_stored(old: str, new: str, holds: bool) -> None:
    grid = (Formula("ceil_div(n, 64)"), Formula("1"), Formula("1"))
    sequence = LaunchSequence(
        name="sums",
        dimensions=(Dimension("n", "", 1, 1 << 30),),
        arguments=(
            array("x", "f32", "input", "n"),
            array("y", "f32", "output", "128"),
            array("partial", "f32", "workspace", "ceil_div(n, 64) + 1"),
            ScalarArgument("n", "s32", ""),
        ),
        launches=(
            KernelLaunch("first", grid, (64, 1, 1), ("x", "partial", "n")),
            KernelLaunch("second", (Formula("1"), Formula("1"), Formula("1")), (128, 1, 1), ("partial", "y", "n")),
        ),
        workspace_bytes=Formula("4 * ceil_div(n, 64) + 4"),
    )
    first, second = prove_sequence(sequence, compiled(SUMS.replace(old, new, 1) if old else SUMS, "sm_80"), 30.0)
    assert "initialised" in first.proved and ("initialised" in second.proved) == holds, second.properties


PLANES = r"""
extern "C" __global__ void kernel(const float* x, float* partial, float* others, int m, int n)
{
    const int row = blockIdx.y * 8 + threadIdx.y;
    const int column = blockIdx.x * 32 + threadIdx.x;
    if (row < m && column < n)
        partial[((long long)blockIdx.z * m + row) * n + column] = x[column];
}
"""
PLANE_MISTAKES: dict[str, tuple[str, str]] = {
    "rows that overlap": ("* n + column", "* (n > 5000 ? n - 1 : n) + column"),
    "planes that overlap": ("blockIdx.z * m + row", "blockIdx.z * (m > 5000 ? m - 1 : m) + row"),
    "planes that are one": ("blockIdx.z * m", "(blockIdx.z & 1023) * m"),
    "tiles that overlap": ("blockIdx.x * 32", "blockIdx.x * 31"),
    "columns of two threads": ("+ column] =", "+ (column > 5000 ? column & ~1 : column)] ="),
    "columns of two blocks": ("+ column] =", "+ column % 5000] ="),
    "a store by all threads of a row": ("    if (row", "    if (row < m) partial[((long long)blockIdx.z * m + row) * n] = 0;\n    if (row"),
    "a store by another argument": (
        "    if (row",
        "    if (row == 0 && column == 0 && blockIdx.z > 0)\n        others[0] = 0;\n    if (row",
    ),
}


def planes() -> LaunchSequence:
    grid = (Formula("ceil_div(n, 32)"), Formula("ceil_div(m, 8)"), Formula("slices"))
    dimensions = (Dimension("m", "", 1, 1 << 19), Dimension("n", "", 1, 1 << 30), Dimension("slices", "", 1, 65535))
    return LaunchSequence(
        name="planes",
        dimensions=dimensions,
        arguments=(
            array("x", "f32", "input", "n"),
            array("partial", "f32", "workspace", "slices * m * n"),
            array("others", "f32", "workspace", "slices * m * n"),
            ScalarArgument("m", "s32", ""),
            ScalarArgument("n", "s32", ""),
        ),
        launches=(KernelLaunch("kernel", grid, (32, 8, 1), ("x", "partial", "others", "m", "n")),),
        workspace_bytes=Formula("4 * slices * m * n"),
    )


def test_partial_results_in_planes_are_stored_once() -> None:
    assert "handover" in proved(PLANES, planes())


@pytest.mark.parametrize("mistake", PLANE_MISTAKES)
def test_partial_results_that_two_threads_store_are_not_proved(mistake: str) -> None:
    assert "handover" not in proved(mutant(PLANES, PLANE_MISTAKES[mistake]), planes())
