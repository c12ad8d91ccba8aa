"""Machine code for readers: every instruction with its line of the source, control code, live registers and register banks."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.perf.analysis.control_flow import find_loops
from gemmgen.perf.analysis.instruction_mix import instruction_class
from gemmgen.perf.analysis.machine_code import find_main_loop
from gemmgen.perf.analysis.register_banks import OperandRead, operand_reads
from gemmgen.toolchain.control_codes import Annotation, annotate
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.toolchain.sass import Instruction, disassemble, parse


@dataclass(frozen=True)
class ListedInstruction:
    """One instruction with all that is known of it."""

    instruction: Instruction
    kind: str
    """Class of ``gemmgen.perf.analysis.instruction_mix``."""
    annotation: Annotation | None
    in_main_loop: bool
    reads: tuple[OperandRead, ...]
    """Register operands; only of instructions in the main loop."""

    @property
    def text(self) -> str:
        """The instruction as nvdisasm writes it, without its address."""
        predicate = f"@{self.instruction.predicate} " if self.instruction.predicate else ""
        return f"{predicate}{self.instruction.opcode} {', '.join(self.instruction.operands)}".rstrip()

    @property
    def bank_conflict(self) -> bool:
        """True if it is an FFMA that needs one bank for more than two operands."""
        fresh = [read.bank for read in self.reads if not read.reused]
        return self.instruction.mnemonic == "FFMA" and any(fresh.count(bank) > 1 for bank in (0, 1)) and len(fresh) > 1


def listing(binary: Binary) -> list[ListedInstruction]:
    """The machine code of a binary, in order, without the padding behind it.

    Raises ``EnvironmentMissing`` without nvdisasm.
    """
    instructions = parse(disassemble(binary.cubin))
    notes = annotate(binary.cubin)
    reads: dict[int, tuple[OperandRead, ...]] = {}
    for function in dict.fromkeys(instruction.function for instruction in instructions):
        body = [instruction for instruction in instructions if instruction.function == function]
        main = find_main_loop(find_loops(body))
        if main is not None:
            reads |= {id(one): registers for one, registers in zip(main.instructions, operand_reads(main.instructions), strict=True)}
    listed = [
        ListedInstruction(one, instruction_class(one), notes.get((one.function, one.address)), id(one) in reads, reads.get(id(one), ()))
        for one in instructions
    ]
    while listed and listed[-1].instruction.mnemonic == "NOP":
        listed.pop()
    return listed
