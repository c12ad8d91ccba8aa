"""Data that registers hold, as expressions over loaded values: addresses and guards never depend on it.

A statement without an expression here leaves nothing known of its result. A register that a loop changes is a recurrence: ``Carried``
stands for its content at the start of an iteration, and the loop's record has its content before the loop and after an iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import z3

from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Float, Instruction, Integer, Operand, Register, Vector
from gemmgen.proof.slicing import FLOATS
from gemmgen.proof.values import Condition, Term, Value

DATA = "data "
"""Prefix of a register's name in a state, under which its data is kept."""
# fmt: off
LANE_LOCAL = frozenset((
    "abs", "add", "and", "bfe", "bfi", "cvt", "div", "ex2", "fma", "lg2", "lop3", "mad", "max", "min", "mul", "neg", "not", "or", "prmt",
    "rcp", "rsqrt", "selp", "shl", "shr", "sqrt", "sub", "tanh", "xor"
))
# fmt: on
"""Opcodes whose result depends on nothing but their operands in the same thread."""
ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1, "e4m3": 1, "e5m2": 1}
"""Types of the operands of ``mma.sync`` that are followed."""
EXACT = {("f32", "f16"), ("f32", "bf16"), ("f64", "f32"), ("f64", "f16"), ("f32", "f32")}
"""Conversions, to and from, that keep every value."""

AccessKind = Literal["load", "store", "atomic"]


@dataclass(frozen=True, eq=False)
class Access:
    """One access to memory of one thread."""

    kind: AccessKind
    space: str
    address: Value | None
    """The offset in its array; None where it is not known which array that is."""
    size: Term
    width: int
    """Bytes that the address must be a multiple of."""
    path: tuple[Condition, ...]
    barriers: tuple[Value, ...]
    """Barriers passed, by ``LEVELS``."""
    instruction: Instruction
    block: int
    group: Value | None = None
    """Groups closed before the store of an asynchronous copy."""
    iterations: tuple[z3.ArithRef, ...] = ()
    """Iterations of the loops around it."""
    data: tuple[Data, ...] = ()
    """Registers that a store writes, in order; empty where they are not tracked."""
    source: Access | None = None
    """Load of an asynchronous copy's store."""

    @property
    def base(self) -> str | None:
        """Name of the array that it points into; None where that is not known."""
        return None if self.address is None else self.address.base

    @property
    def writes(self) -> bool:
        """True if it changes memory."""
        return self.kind != "load"


@dataclass(frozen=True, eq=False)
class Number:
    """A number, or a parameter of the launch."""

    zero: bool = False


@dataclass(frozen=True, eq=False)
class Unknown:
    """Anything."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """Bytes of one access."""

    access: Access
    offset: int
    size: int


@dataclass(frozen=True, eq=False)
class Chosen:
    """One of two contents."""

    condition: Condition
    yes: Data
    no: Data


@dataclass(frozen=True, eq=False)
class Fused:
    """a b + c of numbers of a type of floats."""

    type: str
    a: Data
    b: Data
    c: Data


@dataclass(frozen=True, eq=False)
class Packed:
    """A register of several elements of equal size, the lowest bits first."""

    parts: Sequence[Data]


@dataclass(frozen=True, eq=False)
class Carried:
    """A register at the start of an iteration."""

    iteration: z3.ArithRef
    name: str


@dataclass(frozen=True, eq=False)
class Applied:
    """The result of an operation of one thread on its own data; ``compared``: what the predicate of ``selp`` compares."""

    opcode: str
    operands: Sequence[Data]
    compared: Sequence[Data] = ()
    types: tuple[str, str] = ("", "")
    """Types of the result and of the operands."""


@dataclass(frozen=True, eq=False)
class Widened:
    """A number of a shorter type of floats, ``type``, as the same number of a longer one, ``into``."""

    data: Data
    type: str
    into: str


@dataclass(frozen=True, eq=False)
class Fragment:
    """A register that ``ldmatrix`` loads: of its matrix, whose rows have 16 bytes, lane l has a part of row l / 4, or, transposed, of
    column l / 4."""

    access: Access
    matrix: int
    transposed: bool


@dataclass(frozen=True, eq=False)
class Part:
    """One of a register's elements of equal size, the lowest bits first."""

    whole: Data
    place: int
    count: int


@dataclass(frozen=True, eq=False)
class TileProduct:
    """The product of two fragments by a warp's tensor cores, A B + C with A of 16 x k, B of k x 8 and 32-bit results."""

    a: Sequence[Data]
    b: Sequence[Data]
    c: Sequence[Data]
    k: int
    type: str
    """The type of the elements of A and B."""
    result: str
    """The type of the results."""
    element_bytes: int
    path: tuple[Condition, ...]
    """Conditions under which the warp carries it out."""


@dataclass(frozen=True, eq=False)
class Multiplied:
    """One register of a product of fragments."""

    product: TileProduct
    place: int


Data: TypeAlias = Number | Unknown | Loaded | Chosen | Fused | Packed | Carried | Applied | Widened | Fragment | Part | Multiplied
UNKNOWN = Unknown()
ZERO = Number(True)
NUMBER = Number()


@dataclass(frozen=True)
class Recurrence:
    """The registers of one loop: before it, and after an iteration that another iteration follows."""

    header: int
    outer: tuple[z3.ArithRef, ...]
    """Iterations of the loops around it."""
    entry: tuple[Condition, ...]
    """The path before the loop."""
    prefix: tuple[Condition, ...]
    """The path at the start of an iteration; the conditions beyond ``entry`` hold in every iteration."""
    again: tuple[Condition, ...]
    """The path of an iteration that another one follows."""
    before: Mapping[str, Data]
    after: Mapping[str, Data]


def narrow(data: Data) -> Data:
    """The number that was converted to a longer type, if that is what a register holds."""
    return data.data if isinstance(data, Widened) else data


def _is_short(data: Data) -> bool:
    """True for bytes that are fewer than a register of 32 bits has: as a float they are another number."""
    match data:
        case Loaded(_, _, size):
            return size < 4
        case Chosen(_, yes, no):
            return _is_short(yes) or _is_short(no)
    return False


def join(condition: Condition, yes: Data, no: Data) -> Data:
    """The data where two ways meet."""
    return yes if yes is no else Chosen(condition, yes, no)


def content(operand: Operand, data: Mapping[str, Data]) -> Data:
    """The data of an operand."""
    match operand:
        case Register(name):
            return data.get(name, UNKNOWN)
        case Float(bits):
            return Number(bits == 0)
        case Integer(value):
            return Number(value == 0)
        case Vector(elements):
            return Packed([content(element, data) for element in elements])
    return UNKNOWN


def results(
    instruction: Instruction,
    data: Mapping[str, Data],
    access: Access | None,
    choice: Condition | None,
    path: tuple[Condition, ...],
    compared: Sequence[Data] = (),
) -> list[Data]:
    """The data of each register that a statement writes, in the order of its first operand.

    ``access``: the access of a load; ``choice``: the condition of ``selp``, None for one that compares data, ``compared``;
    ``path``: where the thread is.
    """
    target = instruction.operands[0]
    count = len(target.elements) if isinstance(target, Vector) else 1
    opcode, operands = instruction.opcode, instruction.operands
    if opcode == "ld":
        if instruction.has("param"):
            return [NUMBER] * count
        if access is None or not isinstance(access.size, int):
            return [UNKNOWN] * count
        size = access.size // count
        return [Loaded(access, place * size, size) for place in range(count)]
    if opcode == "ldmatrix":
        if access is None or not instruction.has("b16"):
            return [UNKNOWN] * count
        return [Fragment(access, place, instruction.has("trans")) for place in range(count)]
    if opcode == "mma":
        product = _tile_product(instruction, data, path)
        return [UNKNOWN if product is None else Multiplied(product, place) for place in range(count)]
    if opcode == "mov" and count > 1:
        source = content(operands[1], data)
        if isinstance(source, Packed) and len(source.parts) == count:
            return list(source.parts)
        if isinstance(source, Loaded) and source.size % count == 0 and source.size == TYPE_BYTES.get(instruction.type):
            size = source.size // count
            return [Loaded(source.access, source.offset + place * size, size) for place in range(count)]
        return [UNKNOWN] * count
    if count > 1:
        return [UNKNOWN] * count
    inputs = [content(operand, data) for operand in operands[1:]]
    if opcode == "cvt" and len(inputs) == 2 and instruction.type in ("bf16x2", "f16x2"):
        half = instruction.type.removesuffix("x2")
        return [Packed([Applied(opcode, [each], types=(half, "f32")) for each in inputs[::-1]])]
    if opcode == "mov":
        given = operands[1]
        as_float = isinstance(target, Register) and target.type == "f32" and isinstance(given, Register) and given.type not in FLOATS
        return [UNKNOWN] if as_float and _is_short(inputs[0]) else inputs
    if opcode == "selp":
        return [Applied(opcode, inputs[:2], compared) if choice is None else join(choice, inputs[0], inputs[1])]
    if opcode == "cvt" and instruction.types in EXACT and {*instruction.modifiers} <= {*instruction.types}:
        long, short = instruction.types
        return inputs if long == short else [Widened(inputs[0], short, long)]
    is_float = instruction.type in FLOATS
    if opcode == "fma" and instruction.type in ("f32", "f64") and not any(word in instruction.modifiers for word in ("sat", "relu")):
        return [Fused(instruction.type, *inputs)]
    if opcode == "mul" and instruction.type in ("f32", "f64") and "sat" not in instruction.modifiers:
        return [Fused(instruction.type, inputs[0], inputs[1], ZERO)]
    if opcode in LANE_LOCAL and (is_float or any(not isinstance(each, Number | Unknown) for each in inputs)):
        return [Applied(opcode, inputs, types=(instruction.types[0], instruction.types[-1]) if instruction.types else ("", ""))]
    return [UNKNOWN]


def _tile_product(instruction: Instruction, data: Mapping[str, Data], path: tuple[Condition, ...]) -> TileProduct | None:
    """The product that an ``mma.sync`` computes; None for forms that are not followed."""
    shape = next((word for word in instruction.modifiers if word.startswith("m16n8k")), "")
    types = instruction.types
    wanted = {"sync", "aligned", "row", "col", "satfinite", shape}
    extra = {word for word in instruction.modifiers if word not in wanted and word not in types}
    if not shape or extra or len(types) != 4 or types[0] not in ("f32", "s32") or types[1] not in ELEMENT_BYTES or types[3] != types[0]:
        return None
    size, k = ELEMENT_BYTES[types[1]], int(shape.removeprefix("m16n8k"))
    a, b, c = (_registers(operand, data) for operand in instruction.operands[1:4])
    registers = k * size // 16  # of B: 4 lanes have 4 bytes each
    if types[2] != types[1] or k * size % 16 or (len(a), len(b), len(c)) != (2 * registers, registers, 4):
        return None
    return TileProduct(a, b, c, k, types[1], types[0], size, path)


def _registers(operand: Operand, data: Mapping[str, Data]) -> Sequence[Data]:
    registers = content(operand, data)
    return registers.parts if isinstance(operand, Vector) and isinstance(registers, Packed) else (registers,)
