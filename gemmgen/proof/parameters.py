"""The parameters of a kernel, by their places in its declaration: names say nothing of them."""

from __future__ import annotations

from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Address, Function, Instruction, Register, Symbol, Vector


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


def beyond_parameters(function: Function, instruction: Instruction) -> str:
    """The reason why a load from the kernel's parameters may not lie in one of them; empty if it does."""
    target, source = instruction.operands
    assert isinstance(source, Address)
    if not isinstance(source.base, Symbol) or source.extra:
        return "a parameter at an address that is computed"
    variable = function.find_variable(instruction.scope, source.base.name)
    parameter = next((each for each in function.parameters if each is variable), None)
    first, count = source.base.offset + source.offset, len(target.elements) if isinstance(target, Vector) else 1
    size = count * TYPE_BYTES[instruction.type]
    if parameter is None or not 0 <= first <= parameter.size - size:
        return "outside of the kernel's parameters"
    return "" if first % size == parameter.alignment % size == 0 else "a parameter at an address that is not aligned"
