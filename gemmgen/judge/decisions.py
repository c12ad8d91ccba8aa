"""Decisions: predicates of a kernel that its inputs or sizes decide, and the answers that they had in a number of runs.

A kernel may compute another function for data that no run holds by chance, such as those whose first element has certain bits. A copy of
the kernel notes both answers of each predicate that depends on inputs; one that always had the same answer hides code that nothing has
tested. Decisions by sizes often have one answer, as no size is below 1; for them, answers lead a search for further shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.data_flow import flow_of, instructions_of
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Instruction, Integer, Register, registers_of, source_registers, written_by

COUNTERS = "gemmgen_answers"
"""The module's variable that holds a word for each answer."""
_COMPARISONS = ("setp", "testp")
_PREDICATES = (*_COMPARISONS, "and", "or", "xor", "not")
_BY_VALUE = ("set", "min", "max", "shr", "popc", "clz", "bfind")
"""Instructions on integers that decide by giving zero or another number, and leave no predicate."""
_INTEGERS = ("u16", "s16", "b16", "u32", "s32", "b32", "u64", "s64", "b64")
_WITHOUT_PREDICATE = ("slct",)
"""Instructions that decide and leave neither."""
_OWN_PREDICATE = "gemmgen_answer"
_SHARED_BY_THREADS = ("volatile", "relaxed", "acquire", "mmio")


@dataclass(frozen=True)
class Noted:
    """A kernel's PTX that notes the answers of predicates."""

    ptx: str
    decisions: tuple[Instruction, ...]
    unwatched: tuple[Instruction, ...] = ()
    """Decisions whose answers cannot be noted: in a scope of inline assembly, under a guard, or without a predicate."""

    asserts: frozenset[int] = frozenset()
    """Decisions, by identity, about nothing but whether the kernel ends by a trap."""

    def answers(self) -> npt.NDArray[np.uint32]:
        """Room for two words for each decision: whether it was true, and whether it was false."""
        return np.zeros(max(2 * len(self.decisions), 1), np.uint32)

    def one_sided(self, answers: npt.NDArray[np.uint32]) -> Iterator[tuple[Instruction, bool]]:
        """The decisions that always had the same answer, with that answer; those that were never made are behind one of these."""
        for inst, (was_true, was_false) in zip(self.decisions, answers[: 2 * len(self.decisions)].reshape(-1, 2), strict=True):
            if bool(was_true) != bool(was_false) and id(inst) not in self.asserts:
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
        name = _OWN_PREDICATE if _by_value(inst) else register.name
        notes = " ".join(f"@{sign}{name} st.global.u32 [{COUNTERS}+{8 * number + 4 * wrong}], 1;" for wrong, sign in enumerate(("", "!")))
        if _is_of_call(inst):
            target, function = inst.operands[1:3]
            assert isinstance(target, Register) and isinstance(function, Integer)
            notes = notes.replace(name, _OWN_PREDICATE)
            chosen = f"setp.ne.u64 {_OWN_PREDICATE}, {target.name}, {function.value};"
            lines[inst.line - 1] = f"{{ .reg .pred {_OWN_PREDICATE}; {chosen} {notes} }} {lines[inst.line - 1]}"
            continue
        if _by_value(inst):
            bits = 8 * TYPE_BYTES["u32" if inst.opcode in ("popc", "clz", "bfind") else inst.types[0]]
            notes = f"{{ .reg .pred {name}; setp.ne.b{bits} {name}, {register.name}, 0; {notes} }}"
        lines[inst.line - 1] += " " + notes
    first = next(place for place, line in enumerate(lines) if line.lstrip().startswith((".entry", ".visible", ".weak", ".func")))
    lines[first] = f".global .align 4 .b32 {COUNTERS}[{max(2 * len(decisions), 1)}]; " + lines[first]
    return Noted("\n".join(lines), decisions, unwatched, _asserts(program, decisions))


def _decisions(program: Program, by_sizes: bool) -> Iterator[Instruction]:
    everything = list(instructions_of(program))
    loads = {id(inst) for inst in everything if inst.opcode in ("ld", "ldu", "ldmatrix", "tex") and not inst.has("param")}
    # Tickets, flags and counters are not decided by inputs.
    messages = {id(inst) for inst in everything if inst.opcode == "atom" or (inst.opcode == "ld" and inst.first_of(_SHARED_BY_THREADS))}
    flow, readers = flow_of(program), _readers(everything)
    of_messages = (
        [tainted.any_of(source_registers(inst)) for inst, tainted in flow.spread_from(messages)] if messages else [False] * len(everything)
    )
    for (inst, tainted), message in zip(flow.spread_from(loads - messages), of_messages, strict=True):
        answers = inst.opcode in _PREDICATES and (inst.opcode in _COMPARISONS or inst.type == "pred" or inst.has("pred"))
        answers = answers or (not by_sizes and (_by_value(inst) or inst.opcode in _WITHOUT_PREDICATE))
        if inst.opcode in ("min", "max") and all(
            tainted.any_of(register.name for register in registers_of(operand)) for operand in inst.operands[1:3]
        ):
            continue  # the better of two values that are both data
        if _is_sign_of_quotient(inst, readers):
            continue
        if answers and not message and tainted.any_of(source_registers(inst)) != by_sizes:
            yield inst


def _readers(everything: Sequence[Instruction]) -> dict[str, list[Instruction]]:
    readers: dict[str, list[Instruction]] = {}
    for inst in everything:
        for name in (*source_registers(inst), *([inst.guard.name] if inst.guard is not None else [])):
            readers.setdefault(name, []).append(inst)
    return readers


def _is_sign_of_quotient(inst: Instruction, readers: dict[str, list[Instruction]]) -> bool:
    """True for the sign of a number, or a part of it, that is added to this number before a division by a power of two: the quotient is
    rounded towards zero."""
    if inst.opcode != "shr" or not isinstance(inst.operands[0], Register) or not isinstance(inst.operands[1], Register):
        return False
    number, uses = inst.operands[1], readers.get(inst.operands[0].name, [])
    if inst.type[0] == "s" and len(uses) == 1 and uses[0].opcode == "shr" and isinstance(part := uses[0].operands[0], Register):
        uses = readers.get(part.name, [])
    if len(uses) != 1 or uses[0].opcode != "add" or number not in uses[0].operands[1:] or not isinstance(uses[0].operands[0], Register):
        return False
    of_sum = readers.get(uses[0].operands[0].name, [])
    return bool(of_sum) and all(each.opcode in ("shr", "and") and each.type[0] in "sb" for each in of_sum)


def _asserts(program: Program, decisions: Sequence[Instruction]) -> frozenset[int]:
    """Decisions whose answers only branches use of which one way ends by a trap, before anything is stored: neither answer can give a
    wrong result."""
    traps = {block.index for block in program.blocks if _ends_by_trap(block)}
    readers: dict[str, list[tuple[Instruction, BasicBlock]]] = {}
    for block in program.blocks:
        for inst in (*block.body, *([block.terminator] if block.terminator is not None else [])):
            for name in (*source_registers(inst), *([inst.guard.name] if inst.guard is not None else [])):
                readers.setdefault(name, []).append((inst, block))

    def only_traps(inst: Instruction, above: frozenset[str]) -> bool:
        names = set(written_by(inst)) - above
        for reader, block in (each for name in names for each in readers.get(name, ())):
            if reader is block.terminator and reader.opcode in ("bra", "trap"):
                ways = {*block.targets, *([block.index + 1] if reader.guard is not None else [])}
                if reader.opcode != "trap" and not ways & traps:
                    return False
            elif reader.opcode == "trap":
                continue
            elif reader.opcode not in ("and", "or", "xor", "not") or not only_traps(reader, above | names):
                return False
        return bool(names)

    return frozenset(id(inst) for inst in decisions if not _by_value(inst) and only_traps(inst, frozenset()))


def _ends_by_trap(block: BasicBlock) -> bool:
    """True for a block that stores nothing and traps, or reports a failed assertion."""
    for inst in (*block.body, *([block.terminator] if block.terminator is not None else [])):
        if inst.opcode == "trap" and inst.guard is None:
            return True
        if inst.opcode == "call" and "__assertfail" in inst.text:
            return True
        if inst.opcode in ("st", "atom", "red", "cp", "bra", "bar", "ret", "exit") and not inst.has("param"):
            return False
    return False


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


def _by_value(inst: Instruction) -> bool:
    return inst.opcode in _BY_VALUE and (inst.opcode == "set" or (bool(inst.types) and inst.types[0] in _INTEGERS))


def _is_of_call(inst: Instruction) -> bool:
    """True if an instruction stands for the choice of a function by its address, before a call in the kernel's own code."""
    of_call = inst.opcode == "setp" and inst.text.lstrip().startswith("call") and inst.guard is None
    return of_call and isinstance(inst.operands[1], Register) and inst.operands[1].name.startswith("%")


def _can_be_noted(inst: Instruction) -> bool:
    if _is_of_call(inst):
        return True
    plain = bool(inst.operands) and isinstance(inst.operands[0], Register) and inst.guard is None and not inst.scope
    known = inst.opcode in _PREDICATES or _by_value(inst)
    return plain and known and inst.text.strip().rstrip(";").startswith(inst.opcode)
