"""Decisions: predicates of a kernel that its inputs or sizes decide, and the answers that they had in a number of runs.

A kernel may compute another function for data that no run holds by chance, such as those whose first element has certain bits. A copy of
the kernel notes both answers of each predicate that depends on inputs; one that always had the same answer hides code that nothing has
tested. Decisions by sizes often have one answer, as no size is below 1; for them, answers lead a search for further shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemmgen.emulator.data_flow import flow_of, instructions_of
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import Instruction, Register, source_registers

COUNTERS = "gemmgen_answers"
"""The module's variable that holds a word for each answer."""
_PREDICATES = ("setp", "and", "or", "xor", "not")
_SHARED_BY_THREADS = ("volatile", "relaxed", "acquire", "mmio")


@dataclass(frozen=True)
class Noted:
    """A kernel's PTX that notes the answers of predicates."""

    ptx: str
    decisions: tuple[Instruction, ...]

    def answers(self) -> npt.NDArray[np.uint32]:
        """Room for two words for each decision: whether it was true, and whether it was false."""
        return np.zeros(2 * len(self.decisions), np.uint32)

    def one_sided(self, answers: npt.NDArray[np.uint32]) -> Iterator[tuple[Instruction, bool]]:
        """The decisions that always had the same answer, with that answer; those that were never made are behind one of these."""
        for inst, (was_true, was_false) in zip(self.decisions, answers.reshape(-1, 2), strict=True):
            if bool(was_true) != bool(was_false):
                yield inst, bool(was_true)


def noted_decisions(program: Program, ptx: str, *, by_sizes: bool = False) -> Noted | None:
    """A copy of a kernel that notes its decisions by inputs, or by sizes and threads; None if it makes none."""
    decisions = tuple(_decisions(program, by_sizes))
    if not decisions:
        return None
    lines = ptx.split("\n")
    for number, inst in enumerate(decisions):
        register = inst.operands[0]
        assert isinstance(register, Register)
        notes = (f"@{sign}{register.name} st.global.u32 [{COUNTERS}+{8 * number + 4 * wrong}], 1;" for wrong, sign in enumerate(("", "!")))
        lines[inst.line - 1] += " " + " ".join(notes)
    first = next(place for place, line in enumerate(lines) if line.lstrip().startswith((".entry", ".visible", ".weak", ".func")))
    lines[first] = f".global .align 4 .b32 {COUNTERS}[{2 * len(decisions)}]; " + lines[first]
    return Noted("\n".join(lines), decisions)


def _decisions(program: Program, by_sizes: bool) -> Iterator[Instruction]:
    everything = list(instructions_of(program))
    loads = {id(inst) for inst in everything if inst.opcode in ("ld", "ldu", "ldmatrix", "tex") and not inst.has("param")}
    # Tickets, flags and counters are not decided by inputs.
    messages = {id(inst) for inst in everything if inst.opcode == "atom" or (inst.opcode == "ld" and inst.first_of(_SHARED_BY_THREADS))}
    flow = flow_of(program)
    of_messages = (
        [tainted.any_of(source_registers(inst)) for inst, tainted in flow.spread_from(messages)] if messages else [False] * len(everything)
    )
    for (inst, tainted), message in zip(flow.spread_from(loads - messages), of_messages, strict=True):
        answers = inst.opcode in _PREDICATES and (inst.opcode == "setp" or inst.type == "pred" or inst.has("pred"))
        plain = bool(inst.operands) and isinstance(inst.operands[0], Register) and inst.guard is None and not inst.scope
        whole = inst.text.strip().rstrip(";").startswith(inst.opcode)
        if answers and plain and whole and not message and tainted.any_of(source_registers(inst)) != by_sizes:
            yield inst
