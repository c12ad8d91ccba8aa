"""The parameters of a kernel, by their places in its declaration: names say nothing of them."""

from __future__ import annotations

from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Address, Function, Instruction, Register, Symbol


def whole_parameter(function: Function, instruction: Instruction) -> int | None:
    """The place of the parameter that a statement loads whole into a register; None for other statements.

    A wider register has the parameter's number if the load extends its sign: no dimension is beyond the range of its parameter.
    """
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
            same = TYPE_BYTES[target.type] == size or (TYPE_BYTES[target.type] > size and instruction.type.startswith("s"))
            return place if parameter.size == size and same else None
    return None
