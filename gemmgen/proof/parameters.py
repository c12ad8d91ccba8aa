"""The parameters of a kernel, by their places in its declaration: names say nothing of them."""

from __future__ import annotations

from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Address, Function, Instruction, Register, Symbol


def whole_parameter(function: Function, instruction: Instruction) -> int | None:
    """The place of the parameter that a statement loads whole into a register of its size; None for other statements."""
    if instruction.opcode != "ld" or not instruction.has("param"):
        return None
    target, source = instruction.operands
    if not isinstance(target, Register) or not isinstance(source, Address) or not isinstance(source.base, Symbol):
        return None
    if source.offset or source.base.offset or source.extra:
        return None
    variable = function.find_variable(instruction.scope, source.base.name)
    size = TYPE_BYTES[instruction.type]
    for place, parameter in enumerate(function.parameters):
        if parameter is variable:
            return place if parameter.size == size == TYPE_BYTES[target.type] else None
    return None
