"""Integer values of one symbolic thread: z3 terms with an interval, known trailing zero bits, and the array that they point into.

A register of w bits holds some mathematical integer e modulo 2^w; ``Value`` is such an e, its *representative*. Sums, differences
and products of representatives are representatives of the machine's results, even if they overflow. Operations that depend on the
value itself, such as comparisons and divisions, must first establish that e lies in the range of the register's type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import z3

UNBOUNDED = 1 << 200
"""An interval's end that stands for infinity."""
MAX_RUNS = 4
"""Runs of ones of a mask that are taken apart."""
MAX_TRAILING_ZEROS = 64

Term: TypeAlias = z3.ArithRef | int
"""An integer term; plain integers are constants."""
Condition: TypeAlias = z3.BoolRef | bool


@dataclass(frozen=True, eq=False)
class Value:
    """A representative of a register's content."""

    term: Term
    low: int = -UNBOUNDED
    high: int = UNBOUNDED
    zeros: int = 0
    """Trailing zero bits that the term is known to have."""
    base: str | None = None
    """The array that this is an address in; the term is then the offset in bytes from its start."""
    ones: int = -1
    """Bits that may be ones, in a number that is not negative; all others are zeros."""

    @property
    def z3(self) -> z3.ArithRef:
        """The term for z3."""
        return as_term(self.term)

    @property
    def constant(self) -> int | None:
        """The value, if it is known."""
        return self.term if isinstance(self.term, int) else None

    @property
    def key(self) -> tuple[str, int]:
        """Equal for equal terms, while both are kept: z3 gives the number of a term that is not kept to another one."""
        return ("number", self.term) if isinstance(self.term, int) else ("term", self.term.get_id())

    def same_as(self, other: Value) -> bool:
        """True if both are the same term in the same array."""
        if self.base != other.base:
            return False
        if isinstance(self.term, int) or isinstance(other.term, int):
            return isinstance(self.term, int) and isinstance(other.term, int) and self.term == other.term
        return bool(self.term.eq(other.term))


def as_term(term: Term) -> z3.ArithRef:
    """An integer term for z3."""
    return z3.IntVal(term) if isinstance(term, int) else term


def as_condition(condition: Condition) -> z3.BoolRef:
    """A condition for z3."""
    return z3.BoolVal(condition) if isinstance(condition, bool) else condition


def constant(number: int, base: str | None = None) -> Value:
    """A known number, or the address of that byte of an array."""
    zeros = (number & -number).bit_length() - 1 if number else MAX_TRAILING_ZEROS
    return Value(number, number, number, zeros, base)


def _bounded(low: int, high: int) -> tuple[int, int]:
    return max(low, -UNBOUNDED), min(high, UNBOUNDED)


def add(a: Value, b: Value) -> Value | None:
    """The sum; None for the sum of two addresses, which means nothing."""
    if a.base and b.base:
        return None
    if a.constant is not None and b.constant is not None:
        return constant(a.constant + b.constant, a.base or b.base)
    for one, other in ((a, b), (b, a)):
        if (whole := _with_its_multiple(one, other)) is not None:
            return whole
    low, high = _bounded(a.low + b.low, a.high + b.high)
    return Value(a.term + b.term, low, high, min(a.zeros, b.zeros), a.base or b.base)


def _with_its_multiple(quotient: Value, x: Value) -> Value | None:
    """The sum ``floor(x M / d) + x`` as ``floor(x (M + d) / d)`` for a negative M, as compilers divide by 7; None for other sums."""
    term = quotient.term
    if quotient.base or x.base or isinstance(term, int) or isinstance(x.term, int) or term.decl().kind() != z3.Z3_OP_IDIV:
        return None
    divisor = term.arg(1).as_long() if z3.is_int_value(term.arg(1)) else 0
    (parts, number), (others, other) = summands(term.arg(0)), summands(x.term)
    if divisor <= 0 or not others or len(parts) != len(others):
        return None
    factor = parts[0][0] // others[0][0]
    same = all(mine.eq(theirs) and count == factor * count_ for (count, mine), (count_, theirs) in zip(parts, others, strict=True))
    if not same or number != factor * other or not 0 < factor + divisor < divisor:
        return None
    product = multiply(Value(x.term, x.low, x.high), constant(factor + divisor))
    return None if product is None else floor_divide(product, divisor)


def subtract(a: Value, b: Value) -> Value | None:
    """The difference; of two addresses only within one array."""
    if b.base and a.base != b.base:
        return None
    base = None if b.base else a.base
    if a.constant is not None and b.constant is not None:
        return constant(a.constant - b.constant, base)
    low, high = _bounded(a.low - b.high, a.high - b.low)
    term = a.term - b.term
    if low < 0 and base is None and not isinstance(a.term, int) and not isinstance(b.term, int):
        parts, number = summands(term)  # x - (x - x % 4) is x % 4
        sizes = [_modulus(part) for _, part in parts]
        if all(sizes):
            low = max(low, number + sum(min(0, count * (size - 1)) for (count, _), size in zip(parts, sizes, strict=True)))
            high = min(high, number + sum(max(0, count * (size - 1)) for (count, _), size in zip(parts, sizes, strict=True)))
            term = _sum(parts, number)
    return Value(term, low, high, min(a.zeros, b.zeros), base)


def _modulus(part: z3.ArithRef) -> int:
    """The number m of a remainder x % m; 0 for other terms."""
    if part.decl().kind() == z3.Z3_OP_MOD and z3.is_int_value(part.arg(1)):
        return max(0, int(part.arg(1).as_long()))
    return 0


def multiply(a: Value, b: Value) -> Value | None:
    """The product of two numbers; None if one is an address."""
    if a.base or b.base:
        return None
    if a.constant is not None and b.constant is not None:
        return constant(a.constant * b.constant)
    if 0 in (a.constant, b.constant):
        return constant(0)
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = _bounded(min(corners), max(corners))
    ones = -1
    for one, times in ((a, b.constant), (b, a.constant)):
        if times is not None and times > 0 and times & (times - 1) == 0 and one.low >= 0:
            ones = one.ones if one.ones < 0 else one.ones * times
    return Value(a.term * b.term, low, high, min(a.zeros + b.zeros, MAX_TRAILING_ZEROS), ones=ones)


def floor_divide(a: Value, divisor: int) -> Value:
    """The quotient by a positive number, rounded down, in a form that is the same for equal quotients of most terms."""
    if a.constant is not None:
        return constant(a.constant // divisor)
    if divisor == 1:
        return Value(a.term, a.low, a.high, a.zeros)
    low, high = _bounded(a.low // divisor if a.low > -UNBOUNDED else a.low, a.high // divisor if a.high < UNBOUNDED else a.high)
    if low == high:
        return constant(low)
    term = as_term(a.term)
    nested, added = summands(term)
    if len(nested) == 1 and nested[0][0] == 1:  # (x / a + c) / b = (x + a c) / (a b)
        inner = nested[0][1]
        if inner.decl().kind() == z3.Z3_OP_IDIV and z3.is_int_value(inner.arg(1)) and inner.arg(1).as_long() > 0:
            times = inner.arg(1).as_long()
            term, divisor = inner.arg(0) + added * times if added else inner.arg(0), times * divisor
    zeros = max(0, a.zeros - (divisor.bit_length() - 1)) if divisor & (divisor - 1) == 0 and term is as_term(a.term) else 0
    parts, number = summands(term)
    whole = [(count // divisor, part) for count, part in parts if count % divisor == 0]
    rest = [(count, part) for count, part in parts if count % divisor]
    if not rest:
        return Value(_sum(whole, number // divisor), low, high, zeros)
    common = math.gcd(number % divisor, divisor, *[count for count, _ in rest])
    fraction = _sum([(count // common, part) for count, part in rest], number % divisor // common) / (divisor // common)
    if not whole and (by_factor := _by_reciprocal(rest, number, divisor, low, high)) is not None:
        return by_factor
    return Value(_sum([*whole, (1, fraction)], number // divisor), low, high, zeros)


def _by_reciprocal(parts: Sequence[tuple[int, z3.ArithRef]], number: int, divisor: int, low: int, high: int) -> Value | None:
    """A quotient by a number that the compiler wrote as a product with its reciprocal and a shift; None if it is none.

    For M = ceil(2^s / d) and e = M d - 2^s, floor(x M / 2^s) is floor(x / d) for x >= 0 with x e < 2^s, and one less than the quotient
    that is rounded towards 0 for x < 0 with -x e < 2^s and e > 0.
    """
    factor = math.gcd(number, *[count for count, _ in parts])
    if factor < 3 or divisor & (divisor - 1) or low == -UNBOUNDED or high == UNBOUNDED:
        return None
    by = -(-divisor // factor)
    excess = factor * by - divisor
    least, most = low * divisor // factor - 1, (high + 1) * divisor // factor + 1
    if by < 3 or not 0 < excess * max(most, -least, 1) < divisor:
        return None
    x = _sum([(count // factor, part) for count, part in parts], number // factor)
    if low >= 0:
        return Value(floor_divide(Value(x), by).term, low, high)
    return Value(z3.If(x >= 0, x / by, -((-x) / by) - 1), low, high)


def summands(term: z3.ArithRef) -> tuple[list[tuple[int, z3.ArithRef]], int]:
    """A sum's parts that are no sums, each with how often it is added, and its constant."""
    counts: dict[int, int] = {}
    terms: dict[int, z3.ArithRef] = {}
    number, pending = 0, [(1, term)]
    while pending:
        times, part = pending.pop()
        if z3.is_int_value(part):
            number += times * part.as_long()
            continue
        kind, children = part.decl().kind(), part.children()
        if kind == z3.Z3_OP_ADD:
            pending += [(times, child) for child in children]
        elif kind == z3.Z3_OP_SUB:
            pending += [(times, children[0]), *[(-times, child) for child in children[1:]]]
        elif kind == z3.Z3_OP_UMINUS:
            pending.append((-times, children[0]))
        elif kind == z3.Z3_OP_MUL and len(children) == 2 and any(z3.is_int_value(child) for child in children):
            factor, other = children if z3.is_int_value(children[0]) else children[::-1]
            pending.append((times * factor.as_long(), other))
        else:
            terms[part.get_id()] = part
            counts[part.get_id()] = counts.get(part.get_id(), 0) + times
    return [(count, terms[key]) for key, count in sorted(counts.items()) if count], number


def _sum(parts: Sequence[tuple[int, z3.ArithRef]], number: int) -> z3.ArithRef:
    terms = [part if count == 1 else part * count for count, part in parts]
    if number or not terms:
        terms.append(z3.IntVal(number))
    return terms[0] if len(terms) == 1 else z3.Sum(*terms)


def low_bits(a: Value, bits: int) -> Value:
    """The value modulo 2^bits, which is the same for every representative of as many bits."""
    size = 1 << bits
    if a.constant is not None:
        return constant(a.constant % size)
    if a.low >= 0 and a.high < size:
        return Value(a.term, a.low, a.high, a.zeros, ones=a.ones)
    if a.zeros >= bits:
        return constant(0)
    parts, number = summands(as_term(a.term))
    rest = [(count % size, part) for count, part in parts if count % size]
    return Value(_sum(rest, number % size) % size, 0, size - 1, a.zeros) if rest else constant(number % size)


def choose(condition: Condition, yes: Value, no: Value) -> Value | None:
    """One of two values; None if they point into different arrays."""
    if isinstance(condition, bool):
        return yes if condition else no
    if yes.base != no.base:
        return None
    low, high = min(yes.low, no.low), max(yes.high, no.high)
    if yes.same_as(no):  # each way may have its own bounds of one term
        ones = -1 if min(yes.ones, no.ones) < 0 else yes.ones | no.ones
        return Value(yes.term, low, high, min(yes.zeros, no.zeros), yes.base, ones)
    return Value(z3.If(condition, yes.z3, no.z3), low, high, min(yes.zeros, no.zeros), yes.base)


def smaller(a: Value, b: Value) -> Value:
    """The smaller of two numbers."""
    if a.constant is not None and b.constant is not None:
        return constant(min(a.constant, b.constant))
    return Value(z3.If(a.z3 <= b.z3, a.z3, b.z3), min(a.low, b.low), min(a.high, b.high), min(a.zeros, b.zeros))


def larger(a: Value, b: Value) -> Value:
    """The larger of two numbers."""
    if a.constant is not None and b.constant is not None:
        return constant(max(a.constant, b.constant))
    return Value(z3.If(a.z3 >= b.z3, a.z3, b.z3), max(a.low, b.low), max(a.high, b.high), min(a.zeros, b.zeros))


def conjunction(conditions: Iterable[Condition]) -> z3.BoolRef:
    """True if all hold."""
    parts = [condition for condition in conditions if condition is not True]
    return z3.And(*[as_condition(part) for part in parts]) if parts else z3.BoolVal(True)


def conjuncts(conditions: Sequence[Condition]) -> Iterator[Condition]:
    """Conditions of which those that say that several hold are taken apart."""
    pending: list[Condition] = list(conditions)[::-1]
    while pending:
        condition = pending.pop()
        if isinstance(condition, bool):
            yield condition
        elif z3.is_and(condition):
            pending += condition.children()[::-1]
        elif z3.is_not(condition) and z3.is_not(condition.arg(0)):
            pending.append(condition.arg(0).arg(0))
        elif z3.is_not(condition) and z3.is_or(condition.arg(0)):
            pending += [z3.Not(part) for part in condition.arg(0).children()[::-1]]
        else:
            yield condition


def negation(condition: Condition) -> Condition:
    """True if it does not hold."""
    return not condition if isinstance(condition, bool) else z3.Not(condition)


def bitwise(operation: str, a: Value, b: Value, bits: int) -> Value | None:
    """``and``, ``or`` or ``xor`` of two registers as arithmetic, in the cases that addresses are made of; None for all others.

    Masks of consecutive bits, disjoint bits, a single flipped bit, and up to eight variable bits each on its own.
    """
    if a.base or b.base:
        return None
    if a.constant is not None:
        a, b = b, a
    full = (1 << bits) - 1
    if a.constant is not None and b.constant is not None:
        x, y = a.constant & full, b.constant & full
        return constant({"and": x & y, "or": x | y, "xor": x ^ y}[operation])
    if operation == "and" and b.constant is not None and (masked := _masked(a, b.constant & full, bits)) is not None:
        if masked.constant is not None or not 0 <= masked.low <= masked.high <= full:
            return masked
        return replace(masked, ones=b.constant & full & (_bits(a) if a.low >= 0 else full))
    if operation == "or" and b.constant is not None:
        clear = ~b.constant & full
        if clear & (clear + 1) == 0:  # all but the lowest bits become ones
            return add(low_bits(a, clear.bit_length()), constant(-clear - 1))
    if operation in ("or", "xor"):
        for one, other in ((a, b), (b, a)):
            positive = one.low >= 0 and other.low >= 0
            apart = other.low >= 0 and other.high < 1 << one.zeros
            if apart or (positive and not _bits(one) & _bits(other)):  # no bit in common
                total = add(one, other)
                return replace(total, ones=_bits(one) | _bits(other)) if total is not None and positive else total
    if a.low >= 0 and b.low >= 0 and max(a.high, b.high).bit_length() - min(a.zeros, b.zeros) <= 8:
        return _bit_by_bit(operation, a, b)
    if operation == "xor" and b.constant is not None and b.constant > 0 and b.constant & (b.constant - 1) == 0:
        flipped = multiply(constant(2 * b.constant), low_bits(floor_divide(a, b.constant), 1))
        total = add(a, b)
        return None if flipped is None or total is None else subtract(total, flipped)
    return None


def _bits(a: Value) -> int:
    """Bits that may be ones in a number that is not negative."""
    if a.constant is not None:
        return a.constant
    whole = max(0, (1 << a.high.bit_length()) - (1 << a.zeros))
    return whole if a.ones < 0 else whole & a.ones


def _masked(a: Value, mask: int, bits: int) -> Value | None:
    """A value under a mask of a few runs of consecutive bits; None for other masks."""
    if not mask:
        return constant(0)
    first = (mask & -mask).bit_length() - 1
    run = (mask >> first) + 1
    if run & (run - 1):
        if (mask & ~(mask >> 1)).bit_count() > MAX_RUNS:
            return None
        above = mask & (mask + (1 << first))
        parts = _masked(a, mask - above, bits), _masked(a, above, bits)
        return None if parts[0] is None or parts[1] is None else add(parts[0], parts[1])
    width = run.bit_length() - 1
    if first + width >= bits:
        rest = subtract(a, low_bits(a, first))
        if rest is None or rest.constant is not None:
            return rest
        low, high = (end - end % (1 << first) if abs(end) < UNBOUNDED else end for end in (a.low, a.high))
        return Value(rest.term, max(low, rest.low), min(high, rest.high), max(first, rest.zeros))
    return multiply(low_bits(floor_divide(a, 1 << first), width), constant(1 << first))


def _bit_by_bit(operation: str, a: Value, b: Value) -> Value:
    first, last = min(a.zeros, b.zeros), max(a.high, b.high).bit_length()
    total: z3.ArithRef = z3.IntVal(0)
    for place in range(first, last):
        x, y = (low_bits(floor_divide(value, 1 << place), 1) for value in (a, b))
        ones = x.z3 == 1, y.z3 == 1
        holds = {"and": z3.And(*ones), "or": z3.Or(*ones), "xor": x.z3 != y.z3}[operation]
        total = total + z3.If(holds, z3.IntVal(1 << place), z3.IntVal(0))
    return Value(z3.simplify(total), 0, (1 << last) - 1, first)
