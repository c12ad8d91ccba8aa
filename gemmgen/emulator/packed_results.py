"""Results of 8 bits that a program packs into words: where it does so, and whether it moves the halves of these words as wholes.

The lowest byte of a float32 between 2^23 and 2^24 is the integer next to a number that has been added to it. A word of four such bytes,
made by permutations of bytes, can stand for the four numbers in full (`gemmgen.emulator.residues.Pairs`), two in each half, as long as
nothing takes the halves apart behind it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gemmgen.emulator.data_flow import Tainted, flow_of, instructions_of
from gemmgen.emulator.program import Program
from gemmgen.emulator.program_properties import of_program
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Instruction, Integer, Operand, Register, Vector, registers_of, written_by

_SUMS = ("add", "fma", "sub")
_WORD = 4
_TOP_BITS, _SHIFT = 0x01010101, 7


@dataclass(frozen=True)
class Packing:
    """The permutations of bytes that complete words of four results, by identity, with the registers whose lowest bytes are the results."""

    words: dict[int, tuple[Register, ...]]
    parts: frozenset[int]
    """Permutations whose results go into such words alone."""
    selectors: dict[int, int]
    """The constants by which all these permutations choose bytes."""
    taken_apart: str
    """The first instruction that may take halves of such words apart; empty if there is none."""


@of_program
def packing_of(program: Program) -> Packing:
    """Where a program packs its results."""
    if not any(inst.opcode == "prmt" for inst in instructions_of(program)):
        return Packing({}, frozenset(), {}, "")
    trees = _Trees(program)
    words: dict[int, tuple[Register, ...]] = {}
    found_words: list[Instruction] = []
    parts: dict[int, Instruction] = {}
    for block in program.blocks:
        earlier: set[int] = set()
        for inst in block.body:
            sources = trees.bytes_of(inst, earlier) if inst.opcode == "prmt" else None
            earlier.add(id(inst))
            if (
                sources is not None
                and len(set(sources)) == _WORD
                and all(place == 0 and trees.is_sum(register) for register, place in sources)
            ):
                found_words.append(inst)
                words[id(inst)] = tuple(register for register, _ in sources)
                parts |= trees.parts_of[id(inst)]
    while others := [part for part, inst in parts.items() if part in words or not trees.read_by(inst, parts.keys() | words.keys())]:
        parts = {part: inst for part, inst in parts.items() if part not in others}
    selectors = {id(inst): trees.number(inst.operands[3]) or 0 for inst in (*found_words, *parts.values())}
    return Packing(words, frozenset(parts), selectors, _taken_apart(program, words, trees) if words else "")


class _Trees:
    """Permutations of bytes as functions of the registers that they begin with."""

    def __init__(self, program: Program) -> None:
        self._bytes: dict[int, list[tuple[Register, int]]] = {}
        self.parts_of: dict[int, dict[int, Instruction]] = {}
        """The permutations that another one, given by identity, begins with."""
        self._places = {id(inst): (number, place) for number, block in enumerate(program.blocks) for place, inst in enumerate(block.body)}
        self._only: dict[str, Instruction] = {}
        self._readers: dict[str, list[Instruction]] = {}
        again: set[str] = set()
        for inst in instructions_of(program):
            for name in written_by(inst):
                again.update([name] if name in self._only else ())
                self._only[name] = inst
            for name in _names_read(inst):
                self._readers.setdefault(name, []).append(inst)
        for name in again:
            del self._only[name]

    def number(self, operand: Operand) -> int | None:
        """A constant, also of a register that holds nothing else."""
        if isinstance(operand, Register):
            writer = self._only.get(operand.name)
            operand = writer.operands[1] if writer is not None and writer.opcode == "mov" else operand
        return operand.value if isinstance(operand, Integer) else None

    def bytes_of(self, inst: Instruction, earlier: set[int]) -> list[tuple[Register, int]] | None:
        """The register and the byte of it that each byte of a permutation is, if all registers on the way are written once, each by an
        earlier instruction; None if a sign is extended, or a byte is a constant."""
        selector = self.number(inst.operands[3])
        if selector is None or inst.guard is not None or inst.first_of(("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")):
            return None
        sources = []
        parts: dict[int, Instruction] = {}
        for position in range(_WORD):
            nibble = selector >> 4 * position & 15
            source = inst.operands[1 + (nibble >> 2 & 1)]
            if nibble & 8 or not isinstance(source, Register):
                return None
            writer = self._only.get(source.name)
            if writer is None or id(writer) not in earlier:
                return None
            below = self._bytes.get(id(writer))
            sources.append((source, nibble & 3) if below is None else below[nibble & 3])
            if writer.opcode == "prmt":
                parts |= {id(writer): writer} | self.parts_of.get(id(writer), {})
        self._bytes[id(inst)], self.parts_of[id(inst)] = sources, parts
        return sources

    def is_sum(self, register: Register) -> bool:
        """True for the bits of a sum of float32."""
        move = self._only.get(register.name)
        if move is None or move.opcode != "mov" or move.type != "b32" or not isinstance(move.operands[1], Register):
            return False
        added = self._only.get(move.operands[1].name)
        return added is not None and added.opcode in _SUMS and added.types == ("f32",)

    def read_by(self, inst: Instruction, others: Collection[int]) -> bool:
        """True if a permutation's result is read by these instructions alone, given by identity."""
        return all(id(reader) in others for name in written_by(inst) for reader in self._readers.get(name, ()))

    def bounds(self, inst: Instruction) -> bool:
        """True for a part of w - (w >> 7 & 0x01010101), which makes 127 of 128 in each byte."""
        if inst.opcode == "sub":
            masked = self._writer(inst.operands[2], "and")
            shift = self._shift_behind(masked)
            return shift is not None and shift.operands[1] == inst.operands[1] and self._follow(shift, masked, inst)
        following = {"shr": "and", "and": "sub"}.get(inst.opcode)
        if following is None or (self._shift_behind(inst) is None and inst.opcode == "and"):
            return False
        return all(each.opcode == following and self.bounds(each) for name in written_by(inst) for each in self._readers.get(name, ()))

    def _follow(self, shift: Instruction, masked: Instruction | None, difference: Instruction) -> bool:
        """True if the three follow each other in one basic block, and the word is not written in between."""
        word = shift.operands[1]
        writer = self._only.get(word.name) if isinstance(word, Register) else None
        if masked is None or writer is None:
            return False
        places = [self._places.get(id(inst), (-1, 0)) for inst in (shift, masked, difference)]
        return places == sorted(places) and places[0][0] == places[2][0] >= 0 and not places[0] < self._places[id(writer)] < places[2]

    def _shift_behind(self, masked: Instruction | None) -> Instruction | None:
        """The shift by 7 of which an instruction keeps the lowest bit of each byte."""
        if masked is None or self.number(masked.operands[2]) != _TOP_BITS:
            return None
        shift = self._writer(masked.operands[1], "shr")
        return shift if shift is not None and self.number(shift.operands[2]) == _SHIFT else None

    def _writer(self, operand: Operand, opcode: str) -> Instruction | None:
        writer = self._only.get(operand.name) if isinstance(operand, Register) else None
        return writer if writer is not None and writer.opcode == opcode else None


def _names_read(inst: Instruction) -> list[str]:
    first = 0 if not written_by(inst) else 1
    return [register.name for operand in inst.operands[first:] for register in registers_of(operand)]


def _taken_apart(program: Program, words: dict[int, tuple[Register, ...]], trees: _Trees) -> str:
    for inst, tainted in flow_of(program).spread_from(set(words)):
        if tainted.any_of(_values_read(inst)) and not (_keeps_halves(inst, tainted) or trees.bounds(inst)):
            return inst.text.strip()
    return ""


def _values_read(inst: Instruction) -> list[str]:
    operands = inst.operands[1:] if written_by(inst) or inst.opcode in ("st", "stmatrix") else inst.operands
    return [register.name for operand in operands for register in registers_of(operand)]


def _keeps_halves(inst: Instruction, tainted: Tainted) -> bool:
    if inst.opcode == "stmatrix":
        return inst.type == "b16"
    if inst.opcode not in ("mov", "shfl", "selp", "st"):
        return False
    pieces = max((len(operand.elements) for operand in inst.operands if isinstance(operand, Vector)), default=1)
    return TYPE_BYTES.get(inst.type, 0) >= _WORD * (1 if inst.opcode == "st" else pieces)
