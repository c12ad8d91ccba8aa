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

from gemmgen.emulator.data_flow import flow_of, instructions_of, written_by
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import Instruction, Integer, Register, source_registers

COUNTERS = "gemmgen_answers"
"""The module's variable that holds a word for each answer."""
_COMPARISONS = ("setp", "testp")
_PREDICATES = (*_COMPARISONS, "and", "or", "xor", "not")
_WITHOUT_PREDICATE = ("set", "slct")
"""Instructions that decide, too, and leave no predicate."""
_SHARED_BY_THREADS = ("volatile", "relaxed", "acquire", "mmio")


@dataclass(frozen=True)
class Noted:
    """A kernel's PTX that notes the answers of predicates."""

    ptx: str
    decisions: tuple[Instruction, ...]
    unwatched: tuple[Instruction, ...] = ()
    """Decisions whose answers cannot be noted: in a scope of inline assembly, under a guard, or without a predicate."""

    def answers(self) -> npt.NDArray[np.uint32]:
        """Room for two words for each decision: whether it was true, and whether it was false."""
        return np.zeros(max(2 * len(self.decisions), 1), np.uint32)

    def one_sided(self, answers: npt.NDArray[np.uint32]) -> Iterator[tuple[Instruction, bool]]:
        """The decisions that always had the same answer, with that answer; those that were never made are behind one of these."""
        for inst, (was_true, was_false) in zip(self.decisions, answers[: 2 * len(self.decisions)].reshape(-1, 2), strict=True):
            if bool(was_true) != bool(was_false):
                yield inst, bool(was_true)


def noted_decisions(program: Program, ptx: str, *, by_sizes: bool = False) -> Noted | None:
    """A copy of a kernel that notes its decisions by inputs, or by sizes and threads; None if it makes none."""
    every = list(_decisions(program, by_sizes))
    decisions = tuple(inst for inst in every if _can_be_noted(inst))
    writers = _writers(program)
    unwatched = tuple(inst for inst in every if not (_can_be_noted(inst) or _repeats(inst, writers) or by_sizes))
    if not every:
        return None
    lines = ptx.split("\n")
    for number, inst in enumerate(decisions):
        register = inst.operands[0]
        assert isinstance(register, Register)
        notes = (f"@{sign}{register.name} st.global.u32 [{COUNTERS}+{8 * number + 4 * wrong}], 1;" for wrong, sign in enumerate(("", "!")))
        lines[inst.line - 1] += " " + " ".join(notes)
    first = next(place for place, line in enumerate(lines) if line.lstrip().startswith((".entry", ".visible", ".weak", ".func")))
    lines[first] = f".global .align 4 .b32 {COUNTERS}[{max(2 * len(decisions), 1)}]; " + lines[first]
    return Noted("\n".join(lines), decisions, unwatched)


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
        answers = inst.opcode in _PREDICATES and (inst.opcode in _COMPARISONS or inst.type == "pred" or inst.has("pred"))
        if (answers or inst.opcode in _WITHOUT_PREDICATE) and not message and tainted.any_of(source_registers(inst)) != by_sizes:
            yield inst


def _writers(program: Program) -> dict[str, list[Instruction]]:
    writers: dict[str, list[Instruction]] = {}
    for inst in instructions_of(program):
        for name in written_by(inst):
            writers.setdefault(name, []).append(inst)
    return writers


def _repeats(inst: Instruction, writers: dict[str, list[Instruction]]) -> bool:
    """True for the predicate of a number that other predicates chose, which is made for a vote or a barrier."""
    names = source_registers(inst)
    if inst.opcode != "setp" or len(names) != 1 or names[0] not in writers:
        return False
    return all(each.opcode == "selp" or (each.opcode == "mov" and isinstance(each.operands[1], Integer)) for each in writers[names[0]])


def _can_be_noted(inst: Instruction) -> bool:
    plain = bool(inst.operands) and isinstance(inst.operands[0], Register) and inst.guard is None and not inst.scope
    return plain and inst.opcode in _PREDICATES and inst.text.strip().rstrip(";").startswith(inst.opcode)
