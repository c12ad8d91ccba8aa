"""Integer and bit instructions against Python integers."""

import numpy as np
import pytest

from gemmgen import emulator

from .helpers import DTYPES, all_pairs, compile_ptx, run_instruction

RANDOM = np.random.default_rng(7)
EDGES = [
    0,
    1,
    2,
    3,
    7,
    31,
    32,
    33,
    63,
    64,
    100,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x12345678,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0x123456789ABCDEF0,
    0x7FFFFFFFFFFFFFFF,
    0x8000000000000000,
    0xFFFFFFFFFFFFFFFF,
]


def values(type_name: str) -> np.ndarray:
    bits = np.dtype(DTYPES[type_name]).itemsize * 8
    edges = [edge for edge in EDGES if edge < 1 << bits]
    extra = [int(value) for value in RANDOM.integers(0, 1 << 63, 12)]
    unsigned = np.array([v & ((1 << bits) - 1) for v in edges + extra], np.uint64).astype(f"u{bits // 8}")
    return unsigned.view(DTYPES[type_name])


def wrap(value: int, type_name: str) -> int:
    bits = np.dtype(DTYPES[type_name]).itemsize * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if type_name[0] == "s" and value >> (bits - 1) else value


def truncated_division(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


BINARY = {
    "add": lambda a, b, t: a + b,
    "sub": lambda a, b, t: a - b,
    "mul.lo": lambda a, b, t: a * b,
    "mul.hi": lambda a, b, t: (a * b) >> (np.dtype(DTYPES[t]).itemsize * 8),
    "div": lambda a, b, t: truncated_division(a, b) if b else -1,
    "rem": lambda a, b, t: a - truncated_division(a, b) * b if b else -1,
    "min": lambda a, b, t: min(a, b),
    "max": lambda a, b, t: max(a, b),
}


@pytest.mark.parametrize("type_name", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, type_name):
    a, b = all_pairs(values(type_name))
    got = run_instruction(f"{name}.{type_name} %d, %a, %b;", type_name, (type_name, a), (type_name, b))
    want = [wrap(BINARY[name](int(x), int(y), type_name), type_name) for x, y in zip(a, b, strict=True)]
    assert got.tolist() == want


@pytest.mark.parametrize("type_name", ["u16", "s16", "u32", "s32"])
def test_wide_products(type_name):
    wide = type_name[0] + str(int(type_name[1:]) * 2)
    a, b = all_pairs(values(type_name))
    c = RANDOM.integers(0, 1 << 31, len(a)).astype(DTYPES[wide])
    product = run_instruction(f"mul.wide.{type_name} %d, %a, %b;", wide, (type_name, a), (type_name, b))
    assert product.tolist() == [wrap(int(x) * int(y), wide) for x, y in zip(a, b, strict=True)]
    total = run_instruction(f"mad.wide.{type_name} %d, %a, %b, %c;", wide, (type_name, a), (type_name, b), (wide, c))
    assert total.tolist() == [wrap(int(x) * int(y) + int(z), wide) for x, y, z in zip(a, b, c, strict=True)]


@pytest.mark.parametrize("type_name", ["u32", "s32", "s64"])
def test_mad_low_and_high(type_name):
    a, b = all_pairs(values(type_name))
    c = np.resize(values(type_name)[::-1], len(a))
    bits = int(type_name[1:])
    for part, shift in (("lo", 0), ("hi", bits)):
        statement = f"mad.{part}.{type_name} %d, %a, %b, %c;"
        got = run_instruction(statement, type_name, (type_name, a), (type_name, b), (type_name, c))
        want = [wrap((int(x) * int(y) >> shift) + int(z), type_name) for x, y, z in zip(a, b, c, strict=True)]
        assert got.tolist() == want


def test_saturating_addition():
    a, b = all_pairs(values("s32"))
    got = run_instruction("add.sat.s32 %d, %a, %b;", "s32", ("s32", a), ("s32", b))
    assert got.tolist() == [max(-(2**31), min(2**31 - 1, int(x) + int(y))) for x, y in zip(a, b, strict=True)]


def low24(value: int, signed: bool) -> int:
    value &= 0xFFFFFF
    return value - (1 << 24) if signed and value >> 23 else value


@pytest.mark.parametrize("type_name", ["u32", "s32"])
@pytest.mark.parametrize(("part", "shift"), [("lo", 0), ("hi", 16)])
def test_24_bit_products(type_name, part, shift):
    a, b = all_pairs(values(type_name))
    c = np.resize(values(type_name)[::-1], len(a))
    signed = type_name == "s32"
    statement = f"mad24.{part}.{type_name} %d, %a, %b, %c;"
    got = run_instruction(statement, type_name, (type_name, a), (type_name, b), (type_name, c))
    want = [wrap((low24(int(x), signed) * low24(int(y), signed) >> shift) + int(z), type_name) for x, y, z in zip(a, b, c, strict=True)]
    assert got.tolist() == want


def test_sad_neg_abs():
    a, b = all_pairs(values("s32"))
    c = np.resize(values("s32"), len(a))
    got = run_instruction("sad.s32 %d, %a, %b, %c;", "s32", ("s32", a), ("s32", b), ("s32", c))
    assert got.tolist() == [wrap(int(z) + abs(int(x) - int(y)), "s32") for x, y, z in zip(a, b, c, strict=True)]
    assert run_instruction("neg.s32 %d, %a;", "s32", ("s32", a)).tolist() == [wrap(-int(x), "s32") for x in a]
    wide = values("s64")
    assert run_instruction("abs.s64 %d, %a;", "s64", ("s64", wide)).tolist() == [wrap(abs(int(x)), "s64") for x in wide]


def bytes_of(value: int, signed: bool, size: int = 1) -> list[int]:
    raw = (int(value) & 0xFFFFFFFF).to_bytes(4, "little")
    return [int.from_bytes(raw[i : i + size], "little", signed=signed) for i in range(0, 4, size)]


@pytest.mark.parametrize("a_type", ["u32", "s32"])
@pytest.mark.parametrize("b_type", ["u32", "s32"])
def test_dot_products_of_bytes(a_type, b_type):
    a, b = all_pairs(values("u32"))
    c = np.resize(values("u32"), len(a))
    a_signed, b_signed = a_type == "s32", b_type == "s32"
    got = run_instruction(f"dp4a.{a_type}.{b_type} %d, %a, %b, %c;", "u32", ("u32", a), ("u32", b), ("u32", c))
    want = [
        wrap(int(z) + sum(p * q for p, q in zip(bytes_of(x, a_signed), bytes_of(y, b_signed), strict=True)), "u32")
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert got.tolist() == want
    got = run_instruction(f"dp2a.hi.{a_type}.{b_type} %d, %a, %b, %c;", "u32", ("u32", a), ("u32", b), ("u32", c))
    want = [
        wrap(int(z) + sum(p * q for p, q in zip(bytes_of(x, a_signed, 2), bytes_of(y, b_signed)[2:], strict=True)), "u32")
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert got.tolist() == want


@pytest.mark.parametrize("type_name", ["b16", "b32", "b64"])
def test_logic(type_name):
    a, b = all_pairs(values("u" + type_name[1:]))
    for name, function in {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}.items():
        got = run_instruction(f"{name}.{type_name} %d, %a, %b;", type_name, (type_name, a), (type_name, b))
        np.testing.assert_array_equal(got, function(a, b))
    np.testing.assert_array_equal(run_instruction(f"not.{type_name} %d, %a;", type_name, (type_name, a)), ~a)


@pytest.mark.parametrize("type_name", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("immediate", [None, 0, 3, 31, 40, 64])
def test_shifts(type_name, immediate):
    bits = int(type_name[1:])
    a, b = all_pairs(values("u32"))
    a = a.astype(np.uint64).astype(f"u{bits // 8}").view(DTYPES[type_name])
    amount = "%b" if immediate is None else str(immediate)
    b = b if immediate is None else np.full(len(a), immediate, np.uint32)
    left = run_instruction(f"shl.b{bits} %d, %a, {amount};", type_name, (type_name, a), ("u32", b))
    right = run_instruction(f"shr.{type_name} %d, %a, {amount};", type_name, (type_name, a), ("u32", b))
    pairs = [(int(x), min(int(y), bits)) for x, y in zip(a, b, strict=True)]
    assert left.tolist() == [wrap(x << y, type_name) for x, y in pairs]
    assert right.tolist() == [wrap(x >> y, type_name) for x, y in pairs]


@pytest.mark.parametrize("direction", ["l", "r"])
@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_funnel_shift(direction, mode):
    a, b = all_pairs(values("u32"))
    c = np.resize(np.array([0, 1, 5, 31, 32, 33, 100], np.uint32), len(a))
    got = run_instruction(f"shf.{direction}.{mode}.b32 %d, %a, %b, %c;", "u32", ("u32", a), ("u32", b), ("u32", c))
    want = []
    for low, high, count in zip(a, b, c, strict=True):
        n = min(int(count), 32) if mode == "clamp" else int(count) & 31
        whole = int(high) << 32 | int(low)
        want.append((whole << n >> 32 if direction == "l" else whole >> n) & 0xFFFFFFFF)
    assert got.tolist() == want


@pytest.mark.parametrize("table", [0x00, 0xFF, 0x80, 0xFE, 0x96, 0xE8, 0xCA, 0x3C, 0x1D, 0x57, 0xA5, 0x0F])
def test_any_logic_of_three(table):
    a, b = all_pairs(values("u32"))
    c = np.resize(values("u32")[::-1], len(a))
    got = run_instruction(f"lop3.b32 %d, %a, %b, %c, {table};", "u32", ("u32", a), ("u32", b), ("u32", c))
    want = np.zeros(len(a), np.uint32)
    for bit in range(32):
        index = ((a >> bit & 1) << 2) | ((b >> bit & 1) << 1) | (c >> bit & 1)
        want |= ((np.uint32(table) >> index) & 1) << np.uint32(bit)
    np.testing.assert_array_equal(got, want)


def permute(a: int, b: int, selector: int, mode: str) -> int:
    source = (b << 32 | a).to_bytes(8, "little")
    low = selector & 3
    if mode == "":
        picked = []
        for position in range(4):
            nibble = selector >> 4 * position & 15
            byte = source[nibble & 7]
            picked.append((0xFF if byte & 0x80 else 0) if nibble & 8 else byte)
        return int.from_bytes(bytes(picked), "little")
    table = {
        ".f4e": [low, low + 1, low + 2, low + 3],
        ".b4e": [(low - i) % 8 for i in range(4)],
        ".rc8": [low] * 4,
        ".ecl": [max(low, i) for i in range(4)],
        ".ecr": [min(low, i) for i in range(4)],
        ".rc16": [2 * (low & 1), 2 * (low & 1) + 1] * 2,
    }
    return int.from_bytes(bytes(source[i] for i in table[mode]), "little")


@pytest.mark.parametrize("mode", ["", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"])
def test_byte_permutation(mode):
    a, b = all_pairs(values("u32"))
    c = RANDOM.integers(0, 1 << 16, len(a)).astype(np.uint32)
    got = run_instruction(f"prmt.b32{mode} %d, %a, %b, %c;", "u32", ("u32", a), ("u32", b), ("u32", c))
    assert got.tolist() == [permute(int(x), int(y), int(z), mode) for x, y, z in zip(a, b, c, strict=True)]


@pytest.mark.parametrize("selector", [0x3210, 0x7654, 0x5410, 0x7632, 0x0123, 0x3340, 0x4440, 0xFB73, 0x9180, 0x88CC, 0x12345])
def test_byte_permutation_by_a_constant(selector):
    a, b = all_pairs(values("u32"))
    got = run_instruction(f"prmt.b32 %d, %a, %b, {selector};", "u32", ("u32", a), ("u32", b))
    assert got.tolist() == [permute(int(x), int(y), selector, "") for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("type_name", ["u32", "s32", "u64", "s64"])
def test_bit_field_extraction(type_name):
    bits = int(type_name[1:])
    a, b = all_pairs(values(type_name))
    b = np.resize(np.array([0, 1, 5, 16, 31, 32, 33, 63, 64, 70, 255], np.uint32), len(a))
    c = np.resize(np.array([0, 1, 4, 8, 31, 32, 64, 200], np.uint32), len(a))
    got = run_instruction(f"bfe.{type_name} %d, %a, %b, %c;", type_name, (type_name, a), ("u32", b), ("u32", c))
    want = []
    for value, start, length in zip(a, b, c, strict=True):
        raw, pos, count = int(value) & ((1 << bits) - 1), int(start), int(length)
        sign = 0 if type_name[0] == "u" or count == 0 else raw >> min(pos + count - 1, bits - 1) & 1
        field = 0
        for i in range(bits):
            bit = raw >> (pos + i) & 1 if i < count and pos + i < bits else sign
            field |= bit << i
        want.append(wrap(field, type_name))
    assert got.tolist() == want


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_field_insertion(bits):
    type_name = f"u{bits}"
    a, b = all_pairs(values(type_name))
    c = np.resize(np.array([0, 1, 5, 16, 31, 32, 63, 64, 70, 255], np.uint32), len(a))
    d = np.resize(np.array([0, 1, 4, 8, 31, 32, 64, 200], np.uint32), len(a))
    statement = f"bfi.b{bits} %d, %a, %b, %c, %e;"
    got = run_instruction(statement, type_name, (type_name, a), (type_name, b), ("u32", c), ("u32", d))
    want = []
    for field, value, start, length in zip(a, b, c, d, strict=True):
        result = int(value)
        for i in range(int(length)):
            if int(start) + i < bits:
                result = result & ~(1 << int(start) + i) | (int(field) >> i & 1) << int(start) + i
        want.append(result)
    assert got.tolist() == want


@pytest.mark.parametrize("bits", [32, 64])
def test_counting_bits(bits):
    a = values(f"u{bits}")
    raw = [int(x) for x in a]
    typed = (f"u{bits}", a)
    assert run_instruction(f"popc.b{bits} %d, %a;", "u32", typed).tolist() == [x.bit_count() for x in raw]
    assert run_instruction(f"clz.b{bits} %d, %a;", "u32", typed).tolist() == [bits - x.bit_length() for x in raw]
    reversed_bits = [int(format(x, f"0{bits}b")[::-1], 2) for x in raw]
    assert run_instruction(f"brev.b{bits} %d, %a;", f"u{bits}", typed).tolist() == reversed_bits
    found = [x.bit_length() - 1 & 0xFFFFFFFF for x in raw]
    assert run_instruction(f"bfind.u{bits} %d, %a;", "u32", typed).tolist() == found
    signed = [(~x & ((1 << bits) - 1) if x >> (bits - 1) else x).bit_length() - 1 for x in raw]
    assert run_instruction(f"bfind.s{bits} %d, %a;", "u32", typed).tolist() == [x & 0xFFFFFFFF for x in signed]
    amounts = [bits - 1 - x if x >= 0 else 0xFFFFFFFF for x in signed]
    assert run_instruction(f"bfind.shiftamt.s{bits} %d, %a;", "u32", typed).tolist() == amounts


COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@pytest.mark.parametrize("type_name", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", COMPARE)
def test_comparison(name, type_name):
    a, b = all_pairs(values(type_name))
    got = run_instruction(f"setp.{name}.{type_name} %p, %a, %b;", "u32", (type_name, a), (type_name, b), predicated=True)
    assert got.tolist() == [eval(f"x {COMPARE[name]} y") for x, y in zip(a.tolist(), b.tolist(), strict=True)]


@pytest.mark.parametrize("combination", ["and", "or", "xor"])
def test_comparison_with_two_results_and_a_third_predicate(combination):
    a, b = all_pairs(values("s32"))
    operator = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[combination]
    body = f"setp.gt.s32 %q, %a, 40; setp.lt.{combination}.s32 %p|%end, %a, %b, !%q;"
    first = run_instruction(body, "u32", ("s32", a), ("s32", b), predicated=True)
    second = run_instruction(body + "mov.pred %p, %end;", "u32", ("s32", a), ("s32", b), predicated=True)
    np.testing.assert_array_equal(first, operator(a < b, ~(a > 40)))
    np.testing.assert_array_equal(second, operator(~(a < b), ~(a > 40)))


def test_select():
    a, b = all_pairs(values("s32"))
    got = run_instruction("setp.lt.s32 %p, %a, %b; selp.b32 %d, %a, 9, %p;", "s32", ("s32", a), ("s32", b))
    np.testing.assert_array_equal(got, np.where(a < b, a, 9))
    c = np.resize(values("s32"), len(a))
    got = run_instruction("slct.b32.s32 %d, %a, %b, %c;", "s32", ("s32", a), ("s32", b), ("s32", c))
    np.testing.assert_array_equal(got, np.where(c >= 0, a, b))
    got = run_instruction("set.lt.u32.s32 %d, %a, %b;", "u32", ("s32", a), ("s32", b))
    np.testing.assert_array_equal(got, np.where(a < b, 0xFFFFFFFF, 0))


@pytest.mark.parametrize("source", ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("target", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("saturate", ["", ".sat"])
def test_integer_conversion(source, target, saturate):
    if source == target:
        return
    a = values(source)
    got = run_instruction(f"cvt{saturate}.{target}.{source} %d, %a;", target, (source, a))
    info = np.iinfo(DTYPES[target])
    want = [max(int(info.min), min(int(info.max), int(x))) if saturate else wrap(int(x), target) for x in a]
    assert got.tolist() == want


def test_narrow_conversion_in_a_wide_register():
    a = values("u32")
    got = run_instruction("cvt.s8.s32 %d, %a;", "s32", ("u32", a))
    assert got.tolist() == [wrap(int(x), "s8") for x in a]
    got = run_instruction("cvt.s32.s8 %d, %a;", "s32", ("u32", a))
    assert got.tolist() == [wrap(int(x), "s8") for x in a]


def test_pack_saturated_bytes():
    a, b = all_pairs(values("s32"))
    c = np.resize(values("u32"), len(a))
    got = run_instruction("cvt.pack.sat.u8.s32.b32 %d, %a, %b, %c;", "u32", ("s32", a), ("s32", b), ("u32", c))
    clamp = lambda v: max(0, min(255, int(v)))  # noqa: E731
    assert got.tolist() == [(int(z) << 16 & 0xFFFFFFFF) | clamp(x) << 8 | clamp(y) for x, y, z in zip(a, b, c, strict=True)]


def test_vectors_pack_into_registers_and_back():
    a, b = all_pairs(values("u32"))
    got = run_instruction("mov.b64 %d, {%a, %b};", "u64", ("u32", a), ("u32", b))
    assert got.tolist() == [int(y) << 32 | int(x) for x, y in zip(a, b, strict=True)]
    got = run_instruction("mov.b64 %addr, {%a, %b}; mov.b64 {_, %d}, %addr;", "u32", ("u32", a), ("u32", b))
    np.testing.assert_array_equal(got, b)
    got = run_instruction("mov.b32 {%h0, %h1}, %a; mov.b32 %d, {%h1, %h0};", "u32", ("u32", a))
    np.testing.assert_array_equal(got, a << np.uint32(16) | a >> np.uint32(16))


# -- carries -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opcode", "function"),
    [
        ("add", lambda a, b, c: a + b),
        ("sub", lambda a, b, c: a - b),
        ("mad", lambda a, b, c: a * b + c),
    ],
)
@pytest.mark.parametrize(("type_name", "bits"), [("u32", 32), ("s32", 32), ("u64", 64), ("s64", 64)])
def test_carries_make_longer_integers(opcode, function, type_name, bits):
    rng = np.random.default_rng(bits)
    ends = [0, 1, 2**bits - 1, 2**bits - 2, 2 ** (bits - 1), 2 ** (bits - 1) - 1]
    values = [
        [ends[rng.integers(len(ends))] if rng.random() < 0.5 else int.from_bytes(rng.bytes(bits // 8), "little") for _ in range(400)]
        for _ in range(4)
    ]
    a, b, c, e = (np.array(v, f"u{bits // 8}") for v in values)
    word = f"b{bits}"
    if opcode == "mad":
        # The whole product of two words plus an addend of two words: low half, then high half with the carry.
        parts = f"mad.lo.cc.{type_name} %lo, %a, %b, %c; madc.hi.{type_name} %hi, %a, %b, %e;"
        signed = type_name[0] == "s"
        both = (
            [x - (1 << bits) * (signed and x >> (bits - 1)) for x in map(int, a)],
            [x - (1 << bits) * (signed and x >> (bits - 1)) for x in map(int, b)],
        )
        wide = [function(x, y, z + (w << bits)) for x, y, z, w in zip(*both, map(int, c), map(int, e), strict=True)]
    else:
        # a and b are the low words, c and e the high ones; a third step shows the last carry.
        parts = f"{opcode}.cc.{type_name} %lo, %a, %b; {opcode}c.cc.{type_name} %hi, %c, %e; {opcode}c.{type_name} %top, 0, 0;"
        wide = [function(int(x) + (int(z) << bits), int(y) + (int(w) << bits), 0) for x, y, z, w in zip(a, b, c, e, strict=True)]
    for name, place in (("lo", 0), ("hi", 1), ("top", 2)):
        if opcode == "mad" and name == "top":
            continue
        got = run_instruction(
            f".reg .{word} %lo, %hi, %top; {parts} mov.{word} %d, %{name};",
            f"u{bits}",
            *[(f"u{bits}", x) for x in (a, b, c, e)],
        )
        assert [int(x) for x in got] == [(x >> (bits * place)) & (2**bits - 1) for x in wide], name


def test_a_product_of_128_bits():
    source = """extern "C" __global__ void kernel(const long long* a, long long* out) {
        int t = threadIdx.x; __int128 p = (__int128)a[t] * a[63 - t] - a[t ^ 1];
        out[2 * t] = (long long)p; out[2 * t + 1] = (long long)(p >> 64); }"""
    a, out = np.random.default_rng(9).integers(-(2**63), 2**63, 64), np.zeros(128, np.int64)
    emulator.launch(compile_ptx(source, "compute_80", "--device-int128"), grid=1, block=64, args=[a, out])
    for t in range(64):
        wide = int(a[t]) * int(a[63 - t]) - int(a[t ^ 1])
        assert (int(out[2 * t + 1]) << 64) + (int(out[2 * t]) & (2**64 - 1)) == wide


def test_packed_minimum_cut_at_zero():
    a, b = (np.random.default_rng(s).integers(-(2**15), 2**15, (64, 2)).astype(np.int16) for s in (1, 2))
    got = run_instruction("min.s16x2.relu %d, %a, %b;", "u32", ("u32", a.view(np.uint32)[:, 0]), ("u32", b.view(np.uint32)[:, 0]))
    np.testing.assert_array_equal(got.view(np.int16).reshape(-1, 2), np.maximum(np.minimum(a, b), 0))


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ("sub.cc.u32 %e, %a, %b;", "addc.u32 %d, 0, 0;", lambda a, b: a >= b),
        ("add.cc.u32 %e, %a, %b;", "subc.u32 %d, 0, 0;", lambda a, b: (a + b < 2**32) * (2**32 - 1)),
        ("sub.cc.u32 %e, %a, %b;", "subc.u32 %d, 0, 0;", lambda a, b: (a < b) * (2**32 - 1)),
    ],
)
def test_one_carry_flag_serves_sums_and_differences(first, second, wanted):
    # ptxas 13.0 turns these into IADD3 with a carry, then SEL or IMAD.X on the same predicate.
    a, b = all_pairs(np.array([0, 1, 2, 2**31, 2**32 - 1], np.uint32))
    got = run_instruction(f".reg .b32 %e; {first} {second}", "u32", ("u32", a), ("u32", b))
    assert got.tolist() == [int(wanted(x, y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
