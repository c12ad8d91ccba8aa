"""mma.sync against matrix products of NumPy, fragments gathered by the formulas of the PTX ISA, element by element."""

import numpy as np
import pytest

from gemmgen import emulator

from .helpers import run_cuda, wrap_ptx

WARPS, BLOCKS = 3, 4
LANES = np.arange(32)
GROUP, THREAD = LANES // 4, LANES % 4
DTYPES = {"s8": np.int8, "u8": np.uint8, "f16": np.float16, "tf32": np.float32, "s32": np.int32, "f32": np.float32}


def _pick(condition, then, otherwise):
    return then if condition else otherwise


# PTX ISA, "Matrix Fragments for mma.m..n..k..": (row, column) of element i of a lane's fragment.
A_LAYOUT = {
    "m8n8k16.b8": lambda i: (GROUP, THREAD * 4 + i),
    "m16n8k16.b8": lambda i: (_pick(i < 4, GROUP, GROUP + 8), THREAD * 4 + (i & 3)),
    "m16n8k32.b8": lambda i: (
        _pick(0 <= i < 4 or 8 <= i < 12, GROUP, GROUP + 8),
        _pick(i < 8, THREAD * 4 + (i & 3), THREAD * 4 + (i & 3) + 16),
    ),
    "m16n8k8.b16": lambda i: (_pick(i < 2, GROUP, GROUP + 8), THREAD * 2 + (i & 1)),
    "m16n8k16.b16": lambda i: (
        _pick(0 <= i < 2 or 4 <= i < 6, GROUP, GROUP + 8),
        _pick(i < 4, THREAD * 2 + (i & 1), THREAD * 2 + (i & 1) + 8),
    ),
    "m16n8k4.b32": lambda i: (_pick(i == 0, GROUP, GROUP + 8), THREAD),
    "m16n8k8.b32": lambda i: (_pick(i in (0, 2), GROUP, GROUP + 8), _pick(i < 2, THREAD, THREAD + 4)),
}
B_LAYOUT = {
    "m8n8k16.b8": lambda i: (THREAD * 4 + i, GROUP),
    "m16n8k16.b8": lambda i: (THREAD * 4 + i, GROUP),
    "m16n8k32.b8": lambda i: (_pick(i < 4, THREAD * 4 + (i & 3), THREAD * 4 + (i & 3) + 16), GROUP),
    "m16n8k8.b16": lambda i: (THREAD * 2 + i, GROUP),
    "m16n8k16.b16": lambda i: (_pick(i < 2, THREAD * 2 + (i & 1), THREAD * 2 + (i & 1) + 8), GROUP),
    "m16n8k4.b32": lambda i: (THREAD, GROUP),
    "m16n8k8.b32": lambda i: (_pick(i == 0, THREAD, THREAD + 4), GROUP),
}
C_LAYOUT = {8: lambda i: (GROUP, THREAD * 2 + i), 16: lambda i: (_pick(i < 2, GROUP, GROUP + 8), THREAD * 2 + (i & 1))}


def _fragments(matrices: np.ndarray, layout) -> np.ndarray:
    """[warps, 32, elements of a lane] of matrices [warps, rows, columns]."""
    count = matrices.shape[1] * matrices.shape[2] // 32
    return np.ascontiguousarray(np.stack([matrices[:, *layout(i)] for i in range(count)], axis=2))


def _kernel(form: str, a: int, b: int, c: int) -> str:
    def names(first, count):
        return "{" + ", ".join(f"%{i}" for i in range(first, first + count)) + "}"

    inputs = [f'"r"({name}[lane * {n} + {i}])' for name, n in (("a", a), ("b", b), ("c", c)) for i in range(n)]
    outputs = ", ".join(f'"=r"(r[{i}])' for i in range(c))
    return f"""extern "C" __global__ void kernel(const unsigned* a, const unsigned* b, const unsigned* c, unsigned* d) {{
        int lane = blockIdx.x * blockDim.x + threadIdx.x;
        unsigned r[{c}];
        asm volatile("mma.sync.aligned.{form} {names(0, c)}, {names(c, a)}, {names(c + a, b)}, {names(c + a + b, c)};"
            : {outputs} : {", ".join(inputs)});
        for (int i = 0; i < {c}; ++i) d[lane * {c} + i] = r[i];
    }}"""


def run_mma(shape, types, a, b, c, satfinite="", architecture="compute_80", **kwargs):
    """D as matrices, through a kernel whose warps each multiply one pair; all blocks have `WARPS` of them."""
    d_type, a_type, b_type, c_type = types
    bits = {"e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "f16": 16, "bf16": 16, "tf32": 32}[a_type]
    rows = a.shape[1]
    key = f"{shape}.b{bits}"
    fragments = [_fragments(a, A_LAYOUT[key]), _fragments(b, B_LAYOUT[key]), _fragments(c, C_LAYOUT[rows])]
    words = [fragment.view(np.uint32) for fragment in fragments]
    d = np.zeros_like(words[2])
    source = _kernel(f"{shape}.row.col{satfinite}.{d_type}.{a_type}.{b_type}.{c_type}", *(w.shape[2] for w in words))
    run_cuda(source, "kernel", len(a) // WARPS, 32 * WARPS, [*words, d], architecture, **kwargs)
    result = np.zeros_like(c)
    values = d.view(c.dtype)
    for i in range(values.shape[2]):
        result[:, *C_LAYOUT[rows](i)] = values[:, :, i]
    return result


def _shape(shape: str) -> tuple[int, int, int]:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


def _integers(shape, a_type, b_type, seed, accumulators):
    rng = np.random.default_rng(seed)
    m, n, k = _shape(shape)
    warps = BLOCKS * WARPS
    a, b = (
        rng.integers(np.iinfo(DTYPES[t]).min, np.iinfo(DTYPES[t]).max + 1, (warps, *size)).astype(DTYPES[t])
        for t, size in ((a_type, (m, k)), (b_type, (k, n)))
    )
    limit = np.iinfo(np.int32)
    c = rng.integers(limit.min, limit.max + 1, (warps, m, n)).astype(np.int32)
    if accumulators == "near the ends":
        c = np.where(c < 0, limit.min + (c & 0xFFFF), limit.max - (c & 0xFFFF)).astype(np.int32)
    return a, b, c


@pytest.mark.parametrize("accumulators", ["anywhere", "near the ends"])
@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
@pytest.mark.parametrize(("a_type", "b_type"), [("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("u8", "s8")])
@pytest.mark.parametrize("shape", ["m8n8k16", "m16n8k16", "m16n8k32"])
def test_bytes_are_exact(shape, a_type, b_type, satfinite, accumulators):
    a, b, c = _integers(shape, a_type, b_type, 5, accumulators)
    got = run_mma(shape, ("s32", a_type, b_type, "s32"), a, b, c, satfinite)
    exact = np.einsum("wmk,wkn->wmn", a.astype(np.int64), b.astype(np.int64)) + c
    limit = np.iinfo(np.int32)
    want = np.clip(exact, limit.min, limit.max) if satfinite else exact
    np.testing.assert_array_equal(got, want.astype(np.int32))
    if accumulators == "near the ends":
        # Where both signs occur, both ends must have been crossed, or the test tests nothing.
        assert (exact > limit.max).any() and ((exact < limit.min).any() or (a_type, b_type) == ("u8", "u8"))


def test_bytes_at_their_extremes():
    m, n, k = 16, 8, 32
    a, b = np.full((BLOCKS * WARPS, m, k), -128, np.int8), np.full((BLOCKS * WARPS, k, n), -128, np.int8)
    c = np.zeros((BLOCKS * WARPS, m, n), np.int32)
    assert (run_mma("m16n8k32", ("s32", "s8", "s8", "s32"), a, b, c) == 32 * 128 * 128).all()
    a, b = a.view(np.uint8) | np.uint8(255), b.view(np.uint8) | np.uint8(255)
    assert (run_mma("m16n8k32", ("s32", "u8", "u8", "s32"), a, b, c) == 32 * 255 * 255).all()


def test_turing_has_the_small_shape():
    a, b, c = _integers("m8n8k16", "s8", "s8", 6, "anywhere")
    got = run_mma("m8n8k16", ("s32", "s8", "s8", "s32"), a, b, c, ".satfinite", "compute_75")
    want = np.clip(a.astype(np.int64) @ b.astype(np.int64) + c, -(2**31), 2**31 - 1)
    np.testing.assert_array_equal(got, want)


def test_warps_one_by_one():
    a, b, c = _integers("m16n8k32", "s8", "s8", 7, "anywhere")
    together = run_mma("m16n8k32", ("s32", "s8", "s8", "s32"), a, b, c)
    apart = run_mma("m16n8k32", ("s32", "s8", "s8", "s32"), a, b, c, schedule=emulator.RandomWarps(1))
    np.testing.assert_array_equal(together, apart)


FLOATING = [
    ("m16n8k8", "f16", "f32"),
    ("m16n8k16", "f16", "f32"),
    ("m16n8k8", "f16", "f16"),
    ("m16n8k16", "f16", "f16"),
    ("m16n8k8", "bf16", "f32"),
    ("m16n8k16", "bf16", "f32"),
    ("m16n8k4", "tf32", "f32"),
    ("m16n8k8", "tf32", "f32"),
]


def _floats(shape, a_type, c_type, small_integers):
    """The matrices as the instruction takes them, and the values that A and B stand for."""
    rng = np.random.default_rng(8)
    m, n, k = _shape(shape)

    def numbers(*size):
        if small_integers:
            return rng.integers(-8, 9, (BLOCKS * WARPS, *size)).astype(np.float32)
        return rng.normal(size=(BLOCKS * WARPS, *size)).astype(np.float32)

    a, b, c = numbers(m, k), numbers(k, n), numbers(m, n).astype(DTYPES[c_type])
    if a_type == "f16":
        a, b = a.astype(np.float16), b.astype(np.float16)
        return a, b, c, a.astype(np.float64), b.astype(np.float64)
    bits = 16 if a_type == "bf16" else 13
    exact = [(x.view(np.uint32) >> bits << bits).view(np.float32).astype(np.float64) for x in (a, b)]
    if a_type == "bf16":
        a, b = ((x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b))
    return a, b, c, *exact


@pytest.mark.parametrize(("shape", "a_type", "c_type"), FLOATING)
def test_sums_of_small_integers_are_exact_in_every_floating_type(shape, a_type, c_type):
    a, b, c, wide_a, wide_b = _floats(shape, a_type, c_type, True)
    got = run_mma(shape, (c_type, a_type, a_type, c_type), a, b, c)
    np.testing.assert_array_equal(got, wide_a @ wide_b + c)


def _nibbles(matrices: np.ndarray, layout) -> np.ndarray:
    """[warps, 32, registers] of matrices of 4-bit numbers, eight in a register, the first one lowest."""
    numbers = _fragments(matrices, layout).astype(np.uint32) & 15
    eights = numbers.reshape(*numbers.shape[:2], -1, 8) << np.arange(0, 32, 4, dtype=np.uint32)
    return np.bitwise_or.reduce(eights, axis=-1)


@pytest.mark.parametrize(("a_type", "b_type"), [("s4", "s4"), ("u4", "u4"), ("s4", "u4")])
@pytest.mark.parametrize("shape", ["m8n8k32", "m16n8k32", "m16n8k64"])
def test_numbers_of_four_bits_are_exact(shape, a_type, b_type):
    # PTX ISA, "Matrix Fragments for mma.m8n8k32, .m16n8k32, .m16n8k64" with 4-bit elements.
    a_layout = {
        "m8n8k32": lambda i: (GROUP, THREAD * 8 + i),
        "m16n8k32": lambda i: (_pick(i < 8, GROUP, GROUP + 8), THREAD * 8 + (i & 7)),
        "m16n8k64": lambda i: (_pick(i % 16 < 8, GROUP, GROUP + 8), THREAD * 8 + (i & 7) + _pick(i < 16, 0, 32)),
    }[shape]
    m, n, k = _shape(shape)
    rng = np.random.default_rng(k)
    warps = BLOCKS * WARPS
    first = {"s4": -8, "u4": 0}
    a = rng.integers(first[a_type], first[a_type] + 16, (warps, m, k))
    b = rng.integers(first[b_type], first[b_type] + 16, (warps, k, n))
    c = rng.integers(-1000, 1000, (warps, m, n)).astype(np.int32)
    words = [
        _nibbles(a, a_layout),
        _nibbles(b, lambda i: (THREAD * 8 + (i & 7) + _pick(i < 8, 0, 32), GROUP)),
        _fragments(c, C_LAYOUT[m]).view(np.uint32),
    ]
    d = np.zeros_like(words[2])
    source = _kernel(f"{shape}.row.col.s32.{a_type}.{b_type}.s32", *(w.shape[2] for w in words))
    run_cuda(source, "kernel", BLOCKS, 32 * WARPS, [*words, d])
    np.testing.assert_array_equal(d, _fragments((a @ b + c).astype(np.int32), C_LAYOUT[m]).view(np.uint32))


def test_infinities_and_nans_come_through():
    a, b, c = np.zeros((BLOCKS * WARPS, 16, 16), np.float16), np.ones((BLOCKS * WARPS, 16, 8), np.float16), None
    c = np.zeros((BLOCKS * WARPS, 16, 8), np.float32)
    a[:, 0, 3], a[:, 1, 4], a[:, 2, 5:7] = np.inf, np.nan, [np.inf, -np.inf]
    a[:, 3], b[:, 0] = 65504.0, 65504.0
    got = run_mma("m16n8k16", ("f32", "f16", "f16", "f32"), a, b, c)
    assert np.isposinf(got[:, 0]).all() and np.isnan(got[:, 1:3]).all() and (got[:, 3] == 65504.0 * 65504 + 15 * 65504).all()
    assert (got.view(np.uint32)[:, 1] == 0x7FFFFFFF).all()
    narrow = run_mma("m16n8k16", ("f16", "f16", "f16", "f16"), a, b, c.astype(np.float16))
    assert np.isposinf(narrow[:, 3]).all()


# -- errors ------------------------------------------------------------------------------------------------------

PART = """extern "C" __global__ void kernel(unsigned* data, int limit) {
    int lane = threadIdx.x, d0, d1;
    EXIT
    PREDICATE asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%2}, {%2, %2};"
        : "=r"(d0), "=r"(d1) : "r"(data[lane]));
    data[lane] = d0;
}"""


@pytest.mark.parametrize("limit", [8, 40])
@pytest.mark.parametrize(("exit_", "predicate"), [("if (lane >= limit) return;", ""), ("", "if (lane < limit)")])
def test_a_part_of_a_warp_cannot_multiply(exit_, predicate, limit):
    source = PART.replace("EXIT", exit_).replace("PREDICATE", predicate)
    run_cuda(source, "kernel", 1, 64, [np.zeros(64, np.uint32), 32])
    with pytest.raises(emulator.DivergentWarp, match="mma"):
        run_cuda(source, "kernel", 1, 64, [np.zeros(64, np.uint32), limit])


def test_a_block_that_ends_within_a_warp_cannot_multiply():
    source = PART.replace("EXIT", "").replace("PREDICATE", "")
    with pytest.raises(emulator.DivergentWarp, match="12 have exited"):
        run_cuda(source, "kernel", 1, 52, [np.zeros(64, np.uint32), 0])


@pytest.mark.parametrize(
    "form",
    [
        "m16n8k32.row.col.f16.e4m3.f16.f16 {%a, %b}, {%a,%a,%a,%a}, {%a,%b}, {%a, %b}",
        "m8n8k16.row.col.s32.s8.s8.s32 {%a}, {%a}, {%b}, {%a, %b}",
        "m16n8k8.row.col.satfinite.f32.tf32.tf32.f32 {%a,%a,%a,%b}, {%a,%a,%a,%a}, {%a,%a}, {%a,%a,%a,%a}",
        "m8n8k16.col.col.s32.s8.s8.s32 {%a, %b}, {%a}, {%b}, {%a, %b}",
        "m8n8k16.row.col.s32.s8.f16.s32 {%a, %b}, {%a}, {%b}, {%a, %b}",
        "m16n8k256.row.col.s32.b1.b1.s32.xor.popc {%a,%a,%a,%b}, {%a,%a,%a,%a}, {%a,%a}, {%a,%a,%a,%a}",
    ],
)
def test_other_forms_are_refused(form):
    with pytest.raises(emulator.UnknownInstruction):
        emulator.launch(wrap_ptx(f".reg .b32 %a, %b; mma.sync.aligned.{form}; ret;"), grid=1, block=32)
