"""The parameters and variables of a program through which it can write, found by following addresses back.

Reads of memory that nothing writes race with nothing, and need not be remembered: most reads of most kernels are of this kind.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.emulator.program import Program
from gemmgen.emulator.program_properties import of_program, register_writers
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Address, Instruction, Operand, Register, Special, Symbol, registers_of, sources_of

_READS_ONLY = ("ld", "ldu", "prefetch", "prefetchu", "ldmatrix", "isspacep", "applypriority", "discard", "tex", "tld4", "suld")
_NUMBERS = {"mul", "div", "rem", "shl", "shr", "mul24", "popc", "clz", "sad", "fma", "set", "setp", "vote", "bfe", "brev"}
"""Instructions whose result is never an address."""
_ELSEWHERE = ("shared", "shared::cta", "shared::cluster", "local", "param")


@of_program
def destinations(program: Program) -> frozenset[str] | None:
    """Names of all parameters and variables that an address of a store, an atomic operation or an unknown writer is made of.
    None if such an address may come from anywhere: from a pointer in memory, say."""
    work: list[str] = []
    names: set[str] = set()
    for block in program.blocks:
        for inst in block.instructions:
            if inst.opcode == "sust":
                return None
            for address in _written(inst):
                if not _take(address.base, work, names):
                    return None
                if address.extra and inst.opcode == "cp":
                    return None
    return _followed(program, work, names)


def bases_of(program: Program, inst: Instruction) -> frozenset[str]:
    """Names of the parameters and variables in the addresses of one instruction; empty if they are unknown."""
    work: list[str] = []
    names: set[str] = set()
    for operand in inst.operands:
        if isinstance(operand, Address) and not _take(operand.base, work, names):
            return frozenset()
    return _followed(program, work, names) or frozenset()


def _followed(program: Program, work: list[str], names: set[str]) -> frozenset[str] | None:
    """The names that registers are made of, beside those that are known; None if an address may come from anywhere."""
    entry = {parameter.name for parameter in program.entry.parameters}
    definitions = register_writers(program)
    seen = set(work)
    while work:
        for inst in definitions.get(work.pop(), ()):
            if inst.opcode in _NUMBERS:
                continue
            if inst.opcode in ("ld", "ldu"):
                source = inst.operands[1]
                base = source.base if isinstance(source, Address) else source
                if isinstance(base, Symbol) and base.name in entry:
                    names.add(base.name)
                elif max((TYPE_BYTES[word] for word in inst.modifiers if word in TYPE_BYTES), default=8) >= 8:
                    return None
                continue
            if inst.opcode == "atom" or (inst.opcode == "call"):
                return None
            operands = inst.operands[3:] if inst.opcode == "mad" else sources_of(inst)
            if inst.opcode == "cvt" and TYPE_BYTES.get(inst.modifiers[-1], 8) < 8:
                continue
            more: list[str] = []
            for operand in operands:
                if not _take(operand, more, names):
                    return None
            work += [name for name in more if name not in seen]
            seen.update(more)
    return frozenset(names)


def _written(inst: Instruction) -> Iterator[Address]:
    """The addresses in global memory that an instruction may write to."""
    if inst.opcode in _READS_ONLY or (any(inst.has(space) for space in _ELSEWHERE) and inst.opcode != "cp"):
        return
    if inst.opcode == "cp" and not inst.has("bulk"):
        return
    if inst.opcode == "call" and inst.modifiers[:1] == ("vprintf",):
        return
    for operand in inst.operands:
        if isinstance(operand, Address):
            yield operand


def _take(operand: Operand, registers: list[str], names: set[str]) -> bool:
    """Adds the registers and the variables that an operand mentions; False if it can be a separate address."""
    if isinstance(operand, Symbol):
        names.add(operand.name)
        return True
    if isinstance(operand, Special):
        return not operand.name.startswith("%envreg")
    registers += [register.name for register in registers_of(operand)]
    return isinstance(operand, Register) or not isinstance(operand, Address)
