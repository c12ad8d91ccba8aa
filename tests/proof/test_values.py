"""Normal forms of integer terms equal the terms that they stand for."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("z3")

import z3

from gemmgen.emulator.ptx.parser import parse
from gemmgen.proof.enumeration import NotEnumerable, evaluate
from gemmgen.proof.polynomials import Polynomials
from gemmgen.proof.storing import Digits, Stored, shared_elements
from gemmgen.proof.symbols import computed
from gemmgen.proof.values import Value, add, bitwise, constant, floor_divide, low_bits

NUMBERS = random.Random(1)


def at(value: Value, **numbers: int) -> int:
    pairs = [(z3.Int(name), z3.IntVal(number)) for name, number in numbers.items()]
    return int(z3.simplify(z3.substitute(value.z3, *pairs)).as_long())


def test_quotients_and_remainders_of_sums_are_exact() -> None:
    x, y = z3.Ints("x y")
    for _ in range(150):
        a, b, c = (NUMBERS.choice([0, 1, -1, 3, 64, -64, NUMBERS.randint(-300, 300)]) for _ in range(3))
        first, second, bits = NUMBERS.choice([2, 3, 8, 64, 12]), NUMBERS.choice([1, 2, 5, 64]), NUMBERS.choice([1, 3, 6])
        term = Value(x * a + b * y + c)
        quotient, rest = floor_divide(floor_divide(term, first), second), low_bits(term, bits)
        for _ in range(3):
            here = {"x": NUMBERS.randint(-500, 500), "y": NUMBERS.randint(-500, 500)}
            number = a * here["x"] + b * here["y"] + c
            assert at(quotient, **here) == number // first // second and at(rest, **here) == number % (1 << bits)


@pytest.mark.parametrize(
    ("divisor", "factor", "shift"), ((7, -1840700269, 2), (56, -1840700269, 5), (14, -1840700269, 3), (3, 1431655766, 0))
)
def test_a_division_by_a_product_and_a_sum_is_exact(divisor: int, factor: int, shift: int) -> None:
    x = Value(z3.Int("x") * 4 - 1, -1, 2**31 - 5)
    high = floor_divide(Value(x.z3 * factor, min(factor, -factor) * 2**31, abs(factor) * 2**31), 2**32)
    total = add(high, x) if factor < 0 else high
    assert total is not None
    quotient = floor_divide(Value(total.term, -(2**31), 2**31 - 1), 2**shift)
    for number in (0, 1, 2, 7, 13, 14, 55, 56, 2**29 - 1, *[NUMBERS.randint(0, 2**29 - 1) for _ in range(30)]):
        value = 4 * number - 1
        assert at(quotient, x=number) == ((value * factor >> 32) + (value if factor < 0 else 0)) >> shift
        assert at(quotient, x=number) + (value < 0) == max(value, 0) // divisor


@pytest.mark.parametrize(("factor", "shift"), [(715827883, 32), (43691, 19), (1041204193, 43), (2863311531, 33), (954437177, 33)])
@pytest.mark.parametrize(("low", "high"), [(0, 1 << 16), (-(1 << 16), 1 << 16), (-(1 << 31), (1 << 31) - 1), (0, (1 << 32) - 1)])
def test_a_product_with_a_reciprocal_is_its_quotient(factor: int, shift: int, low: int, high: int) -> None:
    found = floor_divide(Value(z3.Int("x") * factor, low * factor, high * factor), 1 << shift)
    for number in (low, low + 1, -1 if low < 0 else 0, 0, 1, 11, 12, high - 1, high, *(NUMBERS.randint(low, high) for _ in range(40))):
        assert at(found, x=number) == number * factor >> shift


@pytest.mark.parametrize("mask", [-1, -8, -32, 0xFFFFFF00])
def test_ones_in_the_high_bits_are_added(mask: int) -> None:
    found = bitwise("or", Value(z3.Int("x")), constant(mask), 32)
    assert found is not None
    for number in (0, 7, 8, 1000, -1, -8, -9, (1 << 31) - 1):
        assert (at(found, x=number) - (number | mask)) % (1 << 32) == 0


@pytest.mark.parametrize(("low", "high"), [(0, 300), (-300, 300), (5, 77), (-77, -5)])
@pytest.mark.parametrize("mask", [0x58, 0xD8, 0xA5, 0x55, 0xFFFFFFE0, 0xFFFFFF0F, 0xF000000F, 0x80000001, 0xFFFFFFFF])
def test_a_mask_of_a_few_runs_is_exact(mask: int, low: int, high: int) -> None:
    found = bitwise("and", Value(z3.Int("x"), low, high), constant(mask), 32)
    assert found is not None
    for number in range(low, high + 1):
        value = at(found, x=number)
        assert (value - (number & mask)) % (1 << 32) == 0
        assert found.low <= value <= found.high and value % (1 << found.zeros) == 0


def test_a_quotient_of_a_quotient_and_a_number_is_one() -> None:
    x = z3.Int("x")
    once = floor_divide(Value(x * 5 - 3), 7)
    for added in (-1, 2, 31):
        twice = floor_divide(Value(once.z3 + added), 32)
        assert all(at(twice, x=number) == ((number * 5 - 3) // 7 + added) // 32 for number in (-1000, -3, 0, 1, 44, 99999))


def test_terms_of_threads_are_enumerated_and_others_refused() -> None:
    import numpy as np

    tid, m = z3.Ints("tid m")
    threads = {tid.get_id(): np.arange(64)}
    term = z3.If(tid % 8 < 3, tid / 4 * 5 - 1, -tid)
    assert evaluate(term, threads).tolist() == [t // 4 * 5 - 1 if t % 8 < 3 else -t for t in range(64)]
    with pytest.raises(NotEnumerable):
        evaluate(tid + m, threads)


def test_polynomials_of_equal_sums_are_equal() -> None:
    x, y = z3.Ints("x y")
    forms = Polynomials()
    assert forms.of((x + 1) * (y - 2) - x * y) == forms.of(y - 2 * x - 2)
    assert forms.split(3 * x + 7)[0] == forms.split(x + 2 * x)[0]


def digits(width: int, blocks: z3.ArithRef | None) -> tuple[z3.ArithRef, z3.ArithRef, z3.ArithRef, Digits]:
    import numpy as np

    tid, block, turn = z3.Ints("tid block turn")
    outer = {block.get_id(): blocks, turn.get_id(): None}
    return tid, block, turn, Digits({tid.get_id(): np.arange(width)}, outer, frozenset(outer))


@pytest.mark.parametrize(
    ("step", "stride", "count", "distinct"),
    [(256, 256, 1, True), (255, 255, 1, False), (256, 128, 1, False), (512, 512, 2, False), (300, 300, 1, True)],
)
def test_stores_with_separate_digits_are_distinct(step: int, stride: int, count: int, distinct: bool) -> None:
    blocks = z3.Int("blocks")
    tid, block, turn, known = digits(256, blocks)
    index = tid + step * block + stride * blocks * turn
    assert (shared_elements(Polynomials(), [Stored([index], count)], known) == set()) is distinct


def test_two_stores_of_one_thread_to_one_element_are_named() -> None:
    tid, block, turn, known = digits(32, z3.Int("blocks"))
    index = 64 * block + 64 * z3.Int("blocks") * turn + 2 * tid
    stores = [Stored([index], 1), Stored([index + 1], 1), Stored([index], 2)]
    assert shared_elements(Polynomials(), stores, known) == {(0, 2), (1, 2)}
    assert shared_elements(Polynomials(), [Stored([index], 1), Stored([index + 2], 1)], known) is None


def grouped_tiles(band: int, *, bound: int | None, told: bool = True) -> tuple[z3.ArithRef, z3.ArithRef, z3.ArithRef, Digits]:
    """Tiles in bands: block = q (8 w) + r and r = c d + t, with a divisor d that depends on the band q."""
    import numpy as np

    tid, block, band_number, within, column, tile = z3.Ints("tid block q r c t")
    number = {term: term.get_id() for term in (block, band_number, within, column, tile)}
    outer: dict[int, z3.ArithRef | None] = {
        number[block]: z3.Int("blocks"),
        number[band_number]: None,
        number[within]: None,
        number[column]: None,
        number[tile]: None if bound is None else z3.IntVal(bound),
    }
    divided = [
        (number[band_number], number[within], block, frozenset[int]()),
        (number[column], number[tile], within, frozenset({number[band_number]} if told else {tid.get_id()})),
    ]
    known = Digits({tid.get_id(): np.arange(64)}, outer, frozenset({number[block]}), divided)
    return tid / 8 + 8 * tile + band * band_number, 8 * column + tid % 8, tid, known


@pytest.mark.parametrize(
    ("band", "bound", "told", "distinct"),
    [(64, 8, True, True), (32, 8, True, False), (64, None, True, False), (64, 8, False, False), (64, 9, True, False)],
)
def test_tiles_in_bands_are_distinct(band: int, bound: int | None, told: bool, distinct: bool) -> None:
    row, column, _, known = grouped_tiles(band, bound=bound, told=told)
    assert (shared_elements(Polynomials(), [Stored([row, column], 1)], known) == set()) is distinct


@pytest.mark.parametrize("operation", ["or", "xor"])
def test_bits_that_masks_keep_apart_are_added(operation: str) -> None:
    x = Value(z3.Int("x"), 0, 255)
    parts = [bitwise("and", each, constant(mask), 32) for each, mask in ((x, 39), (x, 8), (floor_divide(x, 2), 16))]
    total = parts[0]
    for part in parts[1:]:
        assert total is not None
        assert part is not None
        total = bitwise(operation, total, part, 32)
    assert total is not None
    assert all(at(total, x=number) == number & 47 | number >> 1 & 16 for number in range(256))
    assert "If" not in str(total.z3)


@pytest.mark.parametrize(("first", "second"), [(39, 5), (12, 8), (0xF0, 0x18), (255, 1)])
@pytest.mark.parametrize("operation", ["or", "xor"])
def test_bits_in_common_are_no_sum(operation: str, first: int, second: int) -> None:
    x, y = Value(z3.Int("x"), 0, 255), Value(z3.Int("y"), 0, 255)
    one, other = bitwise("and", x, constant(first), 32), bitwise("and", y, constant(second), 32)
    assert one is not None
    assert other is not None
    found = bitwise(operation, one, other, 32)
    assert found is not None
    for a, b in ((255, 255), (first, second), (first, 0), (37, 13), (170, 85)):
        wanted = (a & first) ^ (b & second) if operation == "xor" else a & first | b & second
        assert at(found, x=a, y=b) == wanted


FIELDS = {
    "bfe.u32 %r1, %r2, %r3, %r4": (0x1234, 0x104, 8, 0x23),  # of 32 bits, the low byte counts
    "bfe.u64 %rd1, %rd2, %r3, %r4": (0x1234, 0x104, 8, 0),
    "bfi.b64 %rd1, %rd2, %rd2, %r3, %r4": (0x1234, 0x1234, 0x104, 8, 0x1234),
}


@pytest.mark.parametrize("statement", FIELDS)
def test_places_of_bit_fields_beyond_a_byte(statement: str) -> None:
    head = ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry k() { .reg .b32 %r<9>; .reg .b64 %rd<9>;"
    (instruction,) = parse(f"{head} {statement}; }}").functions["k"].body
    *operands, wanted = FIELDS[statement]
    assert computed(instruction, tuple(operands), {}) == wanted
