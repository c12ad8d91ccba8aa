"""The registers that addresses, guards, barriers and sizes depend on: all others hold data, and are not lifted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gemmgen.core.graphs import reached
from gemmgen.emulator.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Float,
    Function,
    Instruction,
    Integer,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
    registers_of,
    writers_of,
    written,
)

FLOATS = frozenset({"f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "f32x2"})

_REGISTERS_OF = {"f32": "b32", "f64": "b64"}
"""The untyped registers of the compiler for architectures from sm_100 on, by the floats that they hold."""

SPACES = ("global", "shared", "local", "const", "param")
PLAIN_FORMS = frozenset({"lo", "hi", "wide", "to", *SPACES})
"""Modifiers of arithmetic that is modelled, besides types."""


def with_floats(function: Function) -> Function:
    """The function with the types of floats for registers that were declared as bits, if some statement takes them for floats.

    A number that is computed from such a register is any number here.
    """
    floats: dict[str, str] = {}
    for instruction in function.body:
        untyped = _REGISTERS_OF.get(instruction.type)
        if untyped is None or len(set(instruction.types)) > 1:
            continue
        for operand in instruction.operands:
            floats |= {register.name: instruction.type for register in _plain(operand) if register.type == untyped}
    if not floats:
        return function

    def typed(operand: Operand) -> Operand:
        match operand:
            case Register(name):
                return Register(name, floats[name]) if name in floats else operand
            case Vector(elements):
                return Vector(tuple(map(typed, elements)))
            case Pair(first, second):
                return Pair(typed(first), typed(second))
        return operand

    body = tuple(replace(instruction, operands=tuple(map(typed, instruction.operands))) for instruction in function.body)
    return replace(function, body=body)


def _plain(operand: Operand) -> tuple[Register, ...]:
    match operand:
        case Register():
            return (operand,)
        case Vector(elements):
            return tuple(element for element in elements if isinstance(element, Register))
        case Pair(first, second):
            return tuple(element for element in (first, second) if isinstance(element, Register))
    return ()


def _read(instruction: Instruction) -> tuple[Register, ...]:
    """The registers that an instruction's results depend on."""
    operands = instruction.operands[1:]
    if instruction.opcode in ("ld", "atom", "ldmatrix", "tcgen05"):
        return ()
    registers = [register for operand in operands for register in registers_of(operand)]
    return tuple(registers)


def _roots(instruction: Instruction) -> tuple[Register, ...]:
    """The registers whose values determine an instruction's effect on memory and control flow."""
    registers = [] if instruction.guard is None else [instruction.guard]
    for operand in instruction.operands:
        if isinstance(operand, Address):
            registers += list(registers_of(operand))
    if instruction.opcode == "cp":
        registers += [register for operand in instruction.operands for register in registers_of(operand)]
    if instruction.opcode in ("bar", "barrier"):
        registers += [register for operand in instruction.operands for register in registers_of(operand)]
    return tuple(registers)


def relevant_registers(function: Function) -> frozenset[str]:
    """Names of the registers that anything but data depends on."""
    writers = writers_of(function.body)
    roots = [register.name for instruction in function.body for register in _roots(instruction)]

    def sources(name: str) -> Iterator[str]:
        for instruction in writers.get(name, ()):
            yield from (register.name for register in _read(instruction) if register.type not in FLOATS)
            if instruction.guard is not None:
                yield instruction.guard.name

    return frozenset(reached([*roots, *_of_tickets(function, writers)], sources))


def _of_tickets(function: Function, writers: Mapping[str, Sequence[Instruction]]) -> Iterator[str]:
    """Registers of kernels with counters that blocks share: addends, constants that are stored, flags in separate variables."""
    if not any(instruction.opcode == "atom" for instruction in function.body):
        return
    for instruction in function.body:
        if instruction.opcode not in ("atom", "st"):
            continue
        operand = instruction.operands[2 if instruction.opcode == "atom" else 1]
        if not isinstance(operand, Register) or operand.type in FLOATS:
            continue
        where = instruction.operands[0]
        flag = isinstance(where, Address) and isinstance(where.base, Symbol) and not where.offset
        constants = all(each.opcode == "mov" and isinstance(each.operands[1], Integer) for each in writers.get(operand.name, ()))
        if instruction.opcode == "atom" or flag or constants:
            yield operand.name


def uniform_floats(function: Function) -> dict[str, str]:
    """Floats that are computed from the launch's parameters alone, once: all threads have the same value, wherever it is read.

    Each has a name: registers that the same parameter was read into share one.
    """
    writers = writers_of(function.body)
    uniform: dict[str, str] = {}
    for instruction in function.body:  # a register is written before it is read
        for register in written(instruction):
            if register.type not in FLOATS or len(writers[register.name]) > 1 or instruction.guard is not None:
                continue
            name = register.name
            if instruction.opcode == "ld" and instruction.has("param"):
                source = instruction.operands[1]
                fixed = isinstance(source, Address) and isinstance(source.base, Symbol)
                if fixed and instruction.operands[0] is register:
                    name = f"{instruction.type} {source}"
            else:
                fixed = instruction.opcode in ("mov", "cvt", "add", "mul", "neg", "sub", "abs") and all(
                    isinstance(operand, Float) or (isinstance(operand, Register) and operand.name in uniform)
                    for operand in instruction.operands[1:]
                )
            if fixed:
                uniform[register.name] = name
    return uniform


def data_predicates(function: Function) -> frozenset[Register]:
    """Predicates that nothing but comparisons of floats writes."""
    predicates: set[Register] = set()
    others: set[Register] = set()
    for instruction in function.body:
        compares = instruction.opcode == "setp" and instruction.type in FLOATS and len(instruction.operands) == 3
        for register in written(instruction):
            if register.type == "pred":
                (predicates if compares else others).add(register)
    return frozenset(predicates - others)


def is_plain(instruction: Instruction) -> bool:
    """True for arithmetic without modifiers that change its meaning, such as saturation; comparisons have rules of their own."""
    return all(modifier in TYPE_BYTES or modifier in PLAIN_FORMS for modifier in instruction.modifiers)


def negated_register(operand: Operand) -> tuple[Register | None, bool]:
    """The predicate register of an operand, and whether it is negated."""
    if isinstance(operand, Negated):
        return operand.register, True
    return (operand, False) if isinstance(operand, Register) else (None, False)
