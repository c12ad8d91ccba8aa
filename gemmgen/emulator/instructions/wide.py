"""Registers of 128 bits: they move between memory and pairs of 64-bit registers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gemmgen.emulator.binding import Binder
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.atomics import in_turns, update_of
from gemmgen.emulator.instructions.memory import Transfer, through_space
from gemmgen.emulator.instructions.registry import bind, instruction
from gemmgen.emulator.memory import Access, Space
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, Operand, Register, Sink, Vector
from gemmgen.emulator.registers import half_of


def halves(inst: Instruction, operand: Operand) -> tuple[Operand, Operand]:
    """The two 64-bit parts of a 128-bit operand, the lower one first."""
    match operand:
        case Register() if operand.type == "b128":
            return half_of(operand, 0), half_of(operand, 1)
        case Vector((low, high)):
            return low, high
        case _:
            raise UnknownInstruction("a register of 128 bits, or two of 64, is expected", instruction=inst)


@instruction("ld", "st", when=lambda inst: inst.type == "b128" and inst.first_of(("v2", "v4", "v8")) is None)
def access(inst: Instruction, binder: Binder) -> Operation:
    """One access of 16 bytes."""
    position = 0 if inst.opcode == "ld" else 1
    operands = list(inst.operands)
    operands[position] = Vector(halves(inst, operands[position]))
    modifiers = (*(modifier for modifier in inst.modifiers if modifier != "b128"), "v2", "b64")
    return bind(replace(inst, modifiers=modifiers, operands=tuple(operands)), binder)


@instruction("mov", when=lambda inst: inst.type == "b128")
def move(inst: Instruction, binder: Binder) -> Operation:
    """Moves, packs and unpacks."""
    targets = [binder.target(inst, half, "b64") for half in halves(inst, inst.operands[0])]
    sources = [binder.source(inst, half, "b64") for half in halves(inst, inst.operands[1])]
    return binder.gathered(targets, lambda low, high: (low.copy(), high.copy()), sources)


_PAIR = np.dtype([("low", np.uint64), ("high", np.uint64)])


@instruction("atom", when=lambda inst: inst.type == "b128")
def of_pairs(inst: Instruction, binder: Binder) -> Operation:
    """Exchanges 16 bytes, or compares them first; their registers are pairs of 64 bits."""
    operation = inst.first_of(("exch", "cas"))
    if operation is None:
        raise UnknownInstruction("this atomic form is not implemented", instruction=inst)
    update = update_of(inst, operation, inst.type)
    target, address, *values = inst.operands
    targets = [] if isinstance(target, Sink) else [binder.target(inst, half, "b64") for half in halves(inst, target)]
    sources = [[binder.source(inst, half, "b64") for half in halves(inst, value)] for value in values]
    access = Access(inst, "atomic", _PAIR.itemsize, _PAIR.itemsize)

    def make(space: Space) -> Transfer:
        units = space.units

        def transfer(lanes: Lanes | None, addresses: np.ndarray) -> None:
            index = space.locate(access, lanes, addresses)
            pairs = []
            for low, high in sources:
                pair = np.empty(index.shape, _PAIR)
                for name, part in (("low", low), ("high", high)):
                    pair[name] = part[lanes] if lanes is not None and isinstance(part, np.ndarray) else part
                pairs.append(pair)
            old = in_turns(units[_PAIR.itemsize].view(_PAIR), index, update, tuple(pairs))
            for register, name in zip(targets, _PAIR.names or (), strict=False):
                if register is not None:
                    register[... if lanes is None else lanes] = old[name]

        return transfer

    return through_space(inst, binder, address, make)
