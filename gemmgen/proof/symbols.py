"""Register contents of all threads of a block at once: numbers that are known whatever the problem, or expressions of the launch.

A ``Known`` content is a number that all threads share, or one number for each thread. An ``Expression`` depends on the parameters of the
launch, on the block and on numbers: all threads of a block have the same, unless one of its parts is one number for each thread.
``None`` stands for data, of which nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Instruction, Register
from gemmgen.proof.slicing import FLOATS, is_plain

Each: TypeAlias = tuple[int, ...]
"""One number for each thread of the block."""


class Expression:
    """A number that only a problem decides. Two equal expressions have equal values at the same time."""

    __slots__ = ("_hash", "_mask", "arguments", "low", "operation", "uniform")

    def __init__(self, operation: str, arguments: tuple[Content, ...] = (), low: int = 0) -> None:
        self.operation, self.arguments = operation, arguments
        self.low = low
        """A lower bound of a counter; 0 if none is known."""
        self.uniform: bool = all(not isinstance(part, tuple) and (not isinstance(part, Expression) or part.uniform) for part in arguments)
        """True if all threads have the same value."""
        self._hash = hash((operation, arguments))
        mask: int = 1 << self._hash % 64
        for part in arguments:
            if isinstance(part, Expression):
                mask |= part._mask
        self._mask: int = mask
        """A bit for each part, by its hash: without its bit, an expression is no part."""

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Expression) or self._hash != other._hash:
            return False
        return self.operation == other.operation and self.arguments == other.arguments

    def __repr__(self) -> str:
        return f"{self.operation}({', '.join(map(repr, self.arguments))})" if self.arguments else self.operation

    def mentions(self, other: Expression) -> bool:
        """True if another expression is a part of this one."""
        if not self._mask >> other._hash % 64 & 1:
            return False
        return self == other or any(isinstance(part, Expression) and part.mentions(other) for part in self.arguments)


Content: TypeAlias = "int | Each | Expression"

Operation = Callable[..., int]

_COMPARISONS: dict[str, Operation] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lo": lambda a, b: a < b,
    "ls": lambda a, b: a <= b,
    "hi": lambda a, b: a > b,
    "hs": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
_PREDICATES: dict[str, Operation] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: 1 - a,
    "mov": lambda a: int(a != 0),  # true may be written as -1
}
_BITS = {"8": 8, "16": 16, "32": 32, "64": 64}
_UNSIGNED = ("lo", "ls", "hi", "hs")
NEGATED = {"ge": "lt", "gt": "le", "ne": "eq", "hs": "lo", "hi": "ls"}
"""Comparisons that are written as the negation of another one."""


def signed(number: int, bits: int) -> int:
    """A register's content as a signed number."""
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def operation_of(instruction: Instruction) -> Operation | None:
    """The meaning of a statement that computes a number from numbers; None if it has none here."""
    opcode, kind = instruction.opcode, instruction.type
    if kind == "pred":
        operation: Operation | None = _PREDICATES.get(opcode)
        return operation
    bits = _BITS.get(kind[1:])
    if bits is None or kind[0] not in "sub" or "sat" in instruction.modifiers or "cc" in instruction.modifiers:
        return None
    if (opcode == "bfe" and kind.startswith("s")) or _has_other_meaning(instruction):
        return None
    size = 1 << bits
    as_type: Operation = (lambda a: signed(a, bits)) if kind.startswith("s") else (lambda a: a & (size - 1))
    if opcode == "setp":
        order = next((modifier for modifier in instruction.modifiers if modifier in _COMPARISONS), None)
        if order is None or len(instruction.operands) != 3 or any(word in instruction.modifiers for word in ("and", "or", "xor")):
            return None
        compare = _COMPARISONS[order]
        view: Operation = (lambda a: a & (size - 1)) if order in _UNSIGNED else as_type
        return lambda a, b: int(compare(view(a), view(b)))
    if opcode == "cvt":
        to, source = instruction.types[0], instruction.types[-1]
        wide, narrow = _BITS.get(source[1:]), _BITS.get(to[1:])
        if wide is None or narrow is None or source[0] not in "sub" or to[0] not in "sub":
            return None
        given, result = wide, (1 << narrow) - 1
        return (lambda a: signed(a, given) & result) if source.startswith("s") else (lambda a: a & ((1 << given) - 1) & result)
    if opcode in ("mul", "mad"):
        added = opcode == "mad"
        mask = (1 << 2 * bits) - 1 if instruction.has("wide") else size - 1
        shift = bits if instruction.has("hi") else 0
        if added:
            return lambda a, b, c: ((as_type(a) * as_type(b) >> shift) + c) & mask
        return lambda a, b: (as_type(a) * as_type(b) >> shift) & mask
    if opcode == "popc":
        return lambda a: (a & (size - 1)).bit_count()
    plain = _plain(opcode, bits, as_type)
    if plain is None:
        return None
    return lambda *values: plain(*values) & (size - 1)


def _has_other_meaning(instruction: Instruction) -> bool:
    """True for forms of arithmetic that are not modelled, and for results that are extended to a wider register."""
    opcode, types = instruction.opcode, instruction.types
    if opcode == "setp":
        return len(instruction.modifiers) != 2
    if opcode == "cvt":
        target = instruction.operands[0] if instruction.operands else None
        wider = isinstance(target, Register) and TYPE_BYTES[target.type] > TYPE_BYTES[types[0]]
        return len(instruction.modifiers) != 2 or (wider and types[0].startswith("s"))
    if opcode == "cvta":  # addresses of global memory, and of parameters, are generic ones
        return not (instruction.has("global") or instruction.has("param"))
    return not is_plain(instruction)


def _plain(opcode: str, bits: int, as_type: Operation) -> Operation | None:
    """Operations whose result is cut to the type's bits."""

    def quotient(a: int, b: int) -> int:
        a, b = as_type(a), as_type(b)
        if b == 0:
            raise ZeroDivisionError
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    def field(number: int) -> int:
        """A start or a length of a bit field: the hardware takes the low byte, for 64 bits the whole number."""
        return number & 255 if bits == 32 else min(number & 0xFFFFFFFF, 255)

    def insert(a: int, b: int, position: int, length: int) -> int:
        mask = ((1 << field(length)) - 1) << field(position)
        return (b & ~mask) | (a << field(position) & mask)

    def table(a: int, b: int, c: int, bits_of_table: int) -> int:
        full = (1 << bits) - 1
        rows = 0
        for row in range(8):
            if bits_of_table >> row & 1:
                rows |= (a if row & 4 else a ^ full) & (b if row & 2 else b ^ full) & (c if row & 1 else c ^ full)
        return rows

    meanings: dict[str, Operation] = {
        "mov": lambda a: a,
        "cvta": lambda a: a,
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "neg": lambda a: -a,
        "not": lambda a: ~a,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "min": lambda a, b: min(as_type(a), as_type(b)),
        "max": lambda a, b: max(as_type(a), as_type(b)),
        "shl": lambda a, b: a << min(b & 0xFFFFFFFF, bits),
        "shr": lambda a, b: as_type(a) >> min(b & 0xFFFFFFFF, bits),
        "div": quotient,
        "rem": lambda a, b: as_type(a) - quotient(a, b) * as_type(b),
        "selp": lambda a, b, p: a if p else b,
        "bfi": insert,
        "bfe": lambda a, position, length: ((a & (1 << bits) - 1) >> field(position)) & ((1 << field(length)) - 1),
        "lop3": table,
    }
    return meanings.get(opcode)


# fmt: off
OF_OPERANDS = frozenset((
    "abs", "add", "and", "bfe", "bfi", "bfind", "bmsk", "brev", "clz", "cnot", "cvt", "cvta", "div", "lop3", "mad", "mad24", "max", "min",
    "mov", "mul", "mul24", "neg", "not", "or", "popc", "prmt", "rem", "sad", "selp", "setp", "shf", "shl", "shr", "sub", "szext", "xor"
))
# fmt: on
"""Opcodes whose result is a function of their operands alone, not of a carry or of other lanes."""


BY_THREAD = ("add", "sub", "mul", "mad", "shl")
"""Opcodes whose result is an expression also where an operand is one number for each thread."""


Results: TypeAlias = "dict[tuple[int, tuple[int | Each, ...]], int | Each | None]"
"""Results by the identity of their statement and the operands."""


def computed(instruction: Instruction, values: tuple[Content | None, ...], results: Results) -> Content | None:
    """The result of a statement from its operands; ``results`` keeps those of numbers, for statements that stay alive."""
    if any(value is None for value in values):
        return None
    known = tuple(value for value in values if value is not None)
    if instruction.opcode == "selp" and isinstance(known[2], int):
        return known[0] if known[2] else known[1]
    if any(isinstance(value, Expression) for value in known):
        return _expression(instruction, known)
    numbers = tuple(value for value in known if not isinstance(value, Expression))
    key = (id(instruction), numbers)
    if key not in results:
        operation = operation_of(instruction)
        results[key] = None if operation is None else _of_numbers(operation, numbers)
    return results[key]


def _of_numbers(operation: Operation, values: tuple[int | Each, ...]) -> int | Each | None:
    count = next((len(value) for value in values if isinstance(value, tuple)), 0)
    try:
        if not count:
            return operation(*values)
        columns = [value if isinstance(value, tuple) else (value,) * count for value in values]
        return tuple(operation(*row) for row in zip(*columns, strict=True))
    except (ZeroDivisionError, OverflowError):
        return None


def _expression(instruction: Instruction, values: tuple[Content, ...]) -> Content | None:
    opcode = instruction.opcode
    if opcode not in OF_OPERANDS or (instruction.type not in FLOATS and _has_other_meaning(instruction)):
        return None
    if opcode in ("mov", "cvta"):
        return values[0]
    if opcode in ("and", "or", "xor", "not") and instruction.type == "pred":
        return logic(opcode, values)
    if opcode not in BY_THREAD and not all(
        not isinstance(value, tuple) and (not isinstance(value, Expression) or value.uniform) for value in values
    ):
        return None
    if opcode == "setp":
        return _comparison(instruction, values)
    if opcode == "add" and instruction.modifiers in (("s32",), ("u32",)):
        return _added(instruction.modifiers[0], values)
    words = ".".join((opcode, *(word for word in instruction.modifiers if word != "lo")))
    return Expression(words, values)


def _added(kind: str, values: tuple[Content, ...]) -> Content:
    """A sum of 32 bits; a number is added to the iteration that a sum ends with, so that its beginning stays as it is."""
    total = Expression(f"add.{kind}", values)
    whole, number = values
    if not isinstance(whole, Expression) or not isinstance(number, int) or whole.operation != total.operation:
        return total
    beginning, iteration = whole.arguments
    if isinstance(iteration, int):
        return Expression(whole.operation, (beginning, iteration + number & 0xFFFFFFFF))
    if isinstance(iteration, Expression) and iteration.operation == "counter":
        return Expression(whole.operation, (beginning, Expression("add.s32", (iteration, number))))
    return total


def without_beginning(comparison: Expression) -> tuple[Content, Content, Content] | None:
    """The beginning, iteration and limit of ``beginning + iteration < beginning + limit``; None for other comparisons."""
    if comparison.operation != "lt.s32":
        return None
    one, other = comparison.arguments
    if not all(isinstance(each, Expression) and each.operation in ("add.s32", "add.u32") for each in (one, other)):
        return None
    assert isinstance(one, Expression) and isinstance(other, Expression)
    beginning, iteration = one.arguments
    left = [part for part in other.arguments if part != beginning]
    return (beginning, iteration, left[0]) if len(left) == 1 and len(other.arguments) == 2 else None


def less(one: Content, other: Content) -> tuple[Content, bool]:
    """The comparison of signed numbers in its usual form, and whether it is the negation of that."""
    if one in (0, 1):  # c < b is not b < c + 1
        return Expression("lt.s32", (other, 1 if one == 0 else 2)), True
    return Expression("lt.s32", (one, other)), False


def logic(opcode: str, values: tuple[Content, ...]) -> Content:
    """A predicate of predicates, some of which are not known."""
    if opcode == "not":
        (value,) = values
        if isinstance(value, Expression):
            return value.arguments[0] if value.operation == "not" else Expression("not", (value,))
        return tuple(1 - each for each in value) if isinstance(value, tuple) else 1 - value
    a, b = values
    numbers = [value for value in values if not isinstance(value, Expression)]
    if len(numbers) == 2:
        pairs = {"and": lambda x, y: x & y, "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y}
        if isinstance(a, tuple) or isinstance(b, tuple):
            count = len(a) if isinstance(a, tuple) else len(b) if isinstance(b, tuple) else 0
            columns = [value if isinstance(value, tuple) else (value,) * count for value in numbers]
            return tuple(pairs[opcode](x, y) for x, y in zip(*columns, strict=True))
        assert isinstance(a, int) and isinstance(b, int)
        return int(pairs[opcode](a, b))
    for number, other in ((a, b), (b, a)):
        if isinstance(number, int):
            if opcode == "and":
                return other if number else 0
            if opcode == "or":
                return 1 if number else other
            return logic("not", (other,)) if number else other
    return Expression(opcode, values)


def _comparison(instruction: Instruction, values: tuple[Content, ...]) -> Content | None:
    order = next((modifier for modifier in instruction.modifiers if modifier in _COMPARISONS), None)
    kind = instruction.type
    if order is None or len(values) != 2 or any(word in instruction.modifiers for word in ("and", "or", "xor")):
        return None
    a, b = values
    if kind in FLOATS:  # a float that is no number is on neither side
        return Expression(".".join((*instruction.modifiers[:-1], kind)), values)
    if order in ("eq", "ne") and isinstance(b, int) and isinstance(a, Expression) and _above(a) > b >= 0:
        return int(order == "ne")
    negative = order in NEGATED
    order = NEGATED.get(order, order)
    if order in ("le", "ls"):  # a <= b is not b < a
        a, b, negative, order = b, a, not negative, {"le": "lt", "ls": "lo"}[order]
    if order == "lt" and a in (0, 1) and kind == "s32":  # c < b is not b < c + 1
        a, b, negative = b, 1 if a == 0 else 2, not negative
    if order == "eq" and isinstance(a, int):
        a, b = b, a
    comparison = Expression(f"{order}.{kind}", (a, b))
    return logic("not", (comparison,)) if negative else comparison


def _above(value: Expression) -> int:
    """A bound that a counter, or a sum of one and a number, is at least; nothing above 0 if none is known."""
    if value.operation.startswith("add.") and len(value.arguments) == 2:
        a, b = value.arguments
        if isinstance(a, Expression) and isinstance(b, int) and 0 < b < 1 << 16 and a.operation == "counter" and a.low:
            return a.low + b
    return value.low if value.operation == "counter" else -1


def of_thread(value: Content | None, thread: int) -> Content | None:
    """A content as one thread has it."""
    if isinstance(value, tuple):
        return value[thread]
    if not isinstance(value, Expression) or value.uniform:
        return value
    parts = tuple(part for each in value.arguments if (part := of_thread(each, thread)) is not None)
    return Expression(value.operation, parts, value.low)


def negation_free(value: Expression) -> tuple[Expression, bool]:
    """A predicate without its negation, and whether it was negated."""
    if value.operation == "not" and isinstance(value.arguments[0], Expression):
        return value.arguments[0], True
    return value, False


def under(value: Content | None, facts: dict[Expression, bool]) -> Content | None:
    """A predicate where the outcomes of some comparisons are known."""
    if not isinstance(value, Expression):
        return value
    if value in facts:
        return int(facts[value])
    if value.operation in ("and", "or", "xor", "not"):
        parts = tuple(part for each in value.arguments if (part := under(each, facts)) is not None)
        return logic(value.operation, parts)
    return value


def open_parts(value: Content | None) -> list[Expression]:
    """The comparisons that a predicate is made of."""
    if not isinstance(value, Expression):
        return []
    if value.operation in ("and", "or", "xor", "not"):
        return [part for each in value.arguments for part in open_parts(each)]
    return [value]


def compares_floats(comparison: Expression) -> bool:
    """True for a comparison of floats that all threads agree on."""
    return comparison.operation.rpartition(".")[2] in FLOATS


def replaced(value: Content | None, old: Expression, new: Content | None) -> Content | None:
    """A content with one part exchanged; None where a part became unknown."""
    if not isinstance(value, Expression):
        return value
    if value == old:
        return new
    if not value.mentions(old):
        return value
    parts = [replaced(part, old, new) for part in value.arguments]
    if any(part is None for part in parts):
        return None
    return Expression(value.operation, tuple(part for part in parts if part is not None), value.low)
