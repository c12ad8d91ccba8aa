"""The flow of data through a program's registers, as far as the text shows it: the branches and addresses that depend on data.

A claim over a finite field holds for kernels whose control flow and addresses do not depend on the numbers that they compute with.
This module finds branches, guards and addresses that may, without running anything: a register holds data if an instruction
computes it from data, and the data begin at loads of chosen arrays and at results of tensor cores.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gemmgen.core.graphs import reached
from gemmgen.emulator.accessed_bytes import AccessedBytes
from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.program import Program
from gemmgen.emulator.program_properties import of_program
from gemmgen.emulator.ptx.syntax import (
    Address,
    Float,
    Instruction,
    Integer,
    Operand,
    Register,
    Vector,
    registers_of,
    writers_of,
    written_by,
)

PRODUCTS = ("mma", "wmma", "wgmma", "ldmatrix")
"""Products of tensor cores, and their loads."""
_MEMORY = ("ld", "ldu", "ldmatrix")
_READS_MEMORY = ("ld", "ldu", "ldmatrix", "atom", "tex", "tld4", "suld")
_FLOAT_OPCODES = (
    *("add", "sub", "mul", "fma", "mad", "neg", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "tanh", "sin", "cos", "abs"),
    *("copysign", "min", "max", "setp", "set", "cvt", "mma", "wmma", "wgmma"),
)
_FLOAT_TYPES = ("f32", "f16", "bf16", "f16x2", "bf16x2", "f64", "e4m3x2", "e5m2x2", "tf32")


def instructions_of(program: Program) -> Iterator[Instruction]:
    """Every instruction of a program, the ends of basic blocks too."""
    for block in program.blocks:
        yield from block.instructions


class Effect(NamedTuple):
    """An instruction with the names of the registers that it computes with and of those that it may write."""

    instruction: Instruction
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def _effect(inst: Instruction) -> Effect:
    """An instruction reads the registers that it computes with; not those of its addresses and its guard."""
    writes = written_by(inst)
    operands: tuple[Operand, ...] = inst.operands[1:] if writes and inst.opcode not in ("wgmma", "mma", "wmma") else inst.operands
    reads: list[str] = []
    for operand in operands:
        if isinstance(operand, Register):
            reads.append(operand.name)
        elif not isinstance(operand, Address | Integer):
            reads += [register.name for register in registers_of(operand)]
    return Effect(inst, tuple(reads), writes)


def effects_of(program: Program) -> list[list[Effect]]:
    """The instructions of each basic block, its end too."""
    return [[_effect(inst) for inst in block.instructions] for block in program.blocks]


class DataFlow:
    """The comparison behind each selection between two float32 numbers."""

    def __init__(self, program: Program, effects: Sequence[Sequence[Effect]] | None = None) -> None:
        blocks = effects_of(program) if effects is None else effects
        self._only: dict[str, Instruction] = {}
        again: set[str] = set()
        for inst, _, writes in itertools.chain.from_iterable(blocks):
            for name in writes:
                again.update([name] if name in self._only else ())
                self._only[name] = inst
        for name in again:
            del self._only[name]
        self._comparisons: dict[int, Instruction] = {}
        self.hashed: list[Instruction] = []
        """Selections with a known comparison."""
        for block in blocks:
            latest: dict[str, Instruction] = {}
            for inst, _, writes in block:
                if inst.opcode == "selp" and inst.type == "f32" and isinstance(inst.operands[3], Register):
                    name = inst.operands[3].name
                    comparison = latest.get(name) or self._from_anywhere(name)
                    if comparison is not None:
                        self._comparisons[id(inst)] = comparison
                        self.hashed.append(inst)
                if latest and writes:
                    self._forget(latest, set(writes))
                if _compares(inst):
                    latest[writes[0]] = inst

    def comparison_behind(self, selection: Instruction) -> Instruction | None:
        """The comparison of float32 that decides a selection, if its operands still hold the compared values."""
        return self._comparisons.get(id(selection))

    def shifts_sum(self, shift: Instruction) -> bool:
        """True if a shift moves the bits of a sum of float32 to the left, as exponentials make a power of two from an integer that they
        have added to the lowest bits of a large number."""
        source = shift.operands[1]
        move = self._only.get(source.name) if isinstance(source, Register) else None
        if move is None or move.opcode != "mov" or move.type != "b32" or not isinstance(move.operands[1], Register):
            return False
        added = self._only.get(move.operands[1].name)
        return added is not None and added.opcode in ("add", "sub", "fma", "mad") and added.types == ("f32",)

    def _from_anywhere(self, name: str) -> Instruction | None:
        """A comparison in another basic block, if it and its operands are written nowhere else."""
        writer = self._only.get(name)
        if writer is None or not _compares(writer):
            return None
        names = {register.name for operand in writer.operands[1:] for register in registers_of(operand)}
        return writer if names <= self._only.keys() else None

    @staticmethod
    def _forget(latest: dict[str, Instruction], written: set[str]) -> None:
        """Drops comparisons whose result or operands are overwritten."""
        for name, comparison in list(latest.items()):
            if name in written or any(
                register.name in written for operand in comparison.operands[1:] for register in registers_of(operand)
            ):
                del latest[name]


def _compares(inst: Instruction) -> bool:
    """True for a plain comparison of float32 that has an answer for residues."""
    plain = inst.opcode == "setp" and inst.types == ("f32",) and len(inst.operands) == 3 and inst.guard is None
    return plain and isinstance(inst.operands[0], Register) and inst.modifiers[0] not in ("num", "nan")


@dataclass(frozen=True)
class DataDependence:
    """Instructions that the data decide about."""

    control: tuple[Instruction, ...]
    """Branches, and guarded instructions with an effect beyond registers."""
    addresses: tuple[Instruction, ...]
    choices: tuple[Instruction, ...]
    """Selections and guarded instructions that a comparison of data decides, and that are not read as opaque functions."""

    @property
    def reason(self) -> str:
        """The first place where data decide about control flow or an address; empty if there is none."""
        for instructions, what in ((self.control, "control flow"), (self.addresses, "an address")):
            for inst in instructions:
                line = f" (line {inst.location.own().line} of the source)" if inst.location is not None else f" (line {inst.line} of PTX)"
                return f"{what} depends on data: {inst.text.strip()}{line}"
        return ""


class ProgramFlow:
    """Decisions of data in one program, and all that is known of its text whichever data it meets."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.blocks = effects_of(program)
        self._bits: dict[str, int] = {}
        self._dependences: dict[frozenset[int], dict[frozenset[int], DataDependence]] = {}
        """By instructions whose results are no data, and sources of data."""
        self._rows: dict[frozenset[int], list[list[tuple[int, int, int, int]]]] = {}
        self._masked = [[(self._mask(each.reads), self._mask(each.writes)) for each in block] for block in self.blocks]
        self._deciding = [[self._deciding_registers(each.instruction) for each in block] for block in self.blocks]
        self._successors = [block.successors for block in program.blocks]

    def _mask(self, names: Iterable[str]) -> int:
        mask = 0
        for name in names:
            mask |= 1 << self._bits.setdefault(name, len(self._bits))
        return mask

    def _deciding_registers(self, inst: Instruction) -> tuple[int, int]:
        """Registers of its addresses, and of its guard."""
        names = [register.name for operand in inst.operands if isinstance(operand, Address) for register in registers_of(operand)]
        return self._mask(names), 0 if inst.guard is None else self._mask([inst.guard.name])

    @cached_property
    def selections(self) -> DataFlow:
        """The comparisons behind selections."""
        return DataFlow(self.program, self.blocks)

    @cached_property
    def infinity_tests(self) -> frozenset[int]:
        """Comparisons with a literal infinity, by identity: over a field, all but literals are finite."""
        return frozenset(id(each.instruction) for block in self.blocks for each in block if tests_infinity(each.instruction))

    @cached_property
    def flagged_words(self) -> FlaggedWords:
        """The words of 64 bits that are tested for zero, if all stores of such words set a flag or clear a word."""
        return _flagged_words(self.blocks)

    @cached_property
    def regions(self) -> dict[int, tuple[int, set[int]]]:
        """Regions of the blocks that end in a branch around code that only computes registers: the block where both ways meet, and
        all blocks between."""
        return _branch_regions(self.program, self.blocks, self._successors)

    def dependence(self, loads: Iterable[Instruction], plain: Collection[int] = ()) -> DataDependence:
        """Decisions of data that come from these loads, from any others that feed floating-point instructions, and from tensor cores.

        Selections with a known comparison count as opaque functions. Results of the instructions in `plain`, by identity, are no data.
        """
        without = frozenset(plain)
        sources = (self.data_sources | (self._writing & {id(inst) for inst in loads})) - without
        known = self._dependences.setdefault(without, {})
        if sources not in known:
            # Several sources decide the union of the values that each decides: only new sources are followed.
            before = max((each for each in known if each < sources), key=len, default=frozenset[int]())
            decisions = self._decisions_of(sources - before, without)
            known[sources] = self._joined(known[before], decisions) if before else decisions
        return known[sources]

    def _joined(self, *joined: DataDependence) -> DataDependence:
        """The decisions of several sources, in the order of the program."""
        parts = ([inst for each in joined for inst in getattr(each, name)] for name in ("control", "addresses", "choices"))
        places = self._places
        return DataDependence(*(tuple(sorted({id(i): i for i in part}.values(), key=lambda i: places[id(i)])) for part in parts))

    @cached_property
    def _places(self) -> dict[int, int]:
        """Places of instructions in the program, by identity."""
        return {id(each.instruction): place for place, each in enumerate(itertools.chain.from_iterable(self.blocks))}

    @cached_property
    def data_sources(self) -> frozenset[int]:
        """Loads that feed floating-point instructions, and products of tensor cores, by identity."""
        feeding = _feeding_floats(self.blocks)
        return frozenset(id(each.instruction) for block in self.blocks for each in block if _brings_data(each, feeding))

    @cached_property
    def loads_of_floats(self) -> frozenset[int]:
        """Loads that feed floating-point instructions, by identity, but for those of factors and sums of integers."""
        feeding = _feeding_floats(self.blocks, integer_products=False)
        instructions = [each.instruction for block in self.blocks for each in block]
        integers = any(inst.opcode == "tcgen05" and inst.has("kind::i8") for inst in instructions)
        loads = {
            id(each.instruction)
            for block in self.blocks
            for each in block
            if each.instruction.opcode in _MEMORY and not each.instruction.has("param") and not feeding.isdisjoint(each.writes)
        }
        return frozenset(loads | {id(inst) for inst in instructions if _brings_sums(inst) and not (integers and inst.opcode == "tcgen05")})

    @cached_property
    def loads_of_values(self) -> frozenset[int]:
        """Loads, by identity, whose bits reach a number that is made of an integer, or stored beyond the block."""
        names: set[str] = set()
        for inst, reads, _ in itertools.chain.from_iterable(self.blocks):
            if inst.opcode == "cvt" and inst.types and is_float(inst.types[0]):
                names.update(reads)
            elif inst.opcode in ("st", "red") and inst.has("global"):
                names.update(*map(_names, inst.operands[1:]))
        names = _behind(names, self.blocks, lambda inst: inst.opcode in _READS_MEMORY or inst.type == "pred" or inst.opcode == "setp")
        return frozenset(
            id(each.instruction)
            for block in self.blocks
            for each in block
            if each.instruction.opcode in _MEMORY and not names.isdisjoint(each.writes)
        )

    @cached_property
    def _writing(self) -> frozenset[int]:
        """Instructions that write registers, by identity."""
        return frozenset(id(each.instruction) for block in self.blocks for each in block if each.writes)

    def _decisions_of(self, roots: frozenset[int], plain: frozenset[int]) -> DataDependence:
        opaque = {id(inst) for inst in self.selections.hashed}
        control: list[Instruction] = []
        addresses: list[Instruction] = []
        choices: list[Instruction] = []
        chosen = {id(self.program.blocks[number].terminator) for number in self.regions}

        for number, states in sorted(self._spread(roots, plain).items()):
            for (inst, _, writes), (addressed, guard), tainted in zip(self.blocks[number], self._deciding[number], states, strict=True):
                if not tainted:
                    continue
                if guard & tainted and id(inst) in chosen:
                    choices.append(inst)
                elif guard & tainted:
                    effect = inst.opcode in ("bra", "brx", "ret", "exit", "trap", "bar", "barrier", "call") or not writes
                    (control if effect or inst.opcode in _READS_MEMORY else choices).append(inst)
                elif inst.opcode == "brx" and tainted & self._mask(_names(inst.operands[0])):
                    control.append(inst)
                elif inst.opcode == "selp" and id(inst) not in opaque and tainted & self._mask(_names(inst.operands[3])):
                    choices.append(inst)
                if addressed & tainted:
                    addresses.append(inst)
        return DataDependence(tuple(control), tuple(addresses), tuple(choices))

    def spread_from(self, loads: Collection[int], plain: Collection[int] = ()) -> Iterator[tuple[Instruction, Tainted]]:
        """Each instruction with the registers that hold data before it, where data come from certain loads alone, given by identity.

        Results of the instructions in `plain` are no data. Values written under a branch on data, up to where
        both paths meet, are data.
        """
        roots = set(loads)
        while True:
            states = self._spread(roots, frozenset(plain))
            more = set()
            for number, (_, region) in self.regions.items():
                if number in states and states[number][-1] & self._deciding[number][-1][1]:
                    more |= {id(inst) for other in region for inst in self.program.blocks[other].body} - set(plain)
            if more <= roots:
                break
            roots |= more
        for number, block in enumerate(self.blocks):
            masks = states.get(number, itertools.repeat(0))
            yield from ((each.instruction, Tainted(mask, self._bits)) for each, mask in zip(block, masks, strict=False))

    def _spread(self, roots: Collection[int], plain: frozenset[int]) -> dict[int, list[int]]:
        """Registers that hold data before each instruction of each block that data come to, along all paths: a bit for each register."""
        rows = self._rows.get(plain)
        if rows is None:
            rows = self._rows[plain] = self._rows_without(plain)
        ranks = self._ranks
        first = {number for number in ranks if any(each[3] in roots for each in rows[number])}
        before = [0] * len(rows)
        states: dict[int, list[int]] = {}
        # Blocks in the order of the paths, so that most are visited once all that leads to them is known.
        work, waiting = [(ranks[number], number) for number in first], set(first)
        heapq.heapify(work)
        while work:
            _, number = heapq.heappop(work)
            waiting.discard(number)
            state = before[number]
            own: list[int] = []
            for reads, writes, overwritten, inst in rows[number]:
                own.append(state)
                state = state | writes if reads & state or inst in roots else state & ~overwritten
            states[number] = own
            for target in self._successors[number]:
                if state & ~before[target]:
                    before[target] |= state
                    if target not in waiting:
                        waiting.add(target)
                        heapq.heappush(work, (ranks[target], target))
        return states

    def _rows_without(self, plain: frozenset[int]) -> list[list[tuple[int, int, int, int]]]:
        """Registers that each instruction passes on, may write and overwrites, and its identity."""
        blocks = []
        for effects, masked in zip(self.blocks, self._masked, strict=True):
            rows = []
            for each, (reads, writes) in zip(effects, masked, strict=True):
                inst = each.instruction
                through = 0 if id(inst) in plain or inst.opcode in _READS_MEMORY else reads
                # A value that a guarded instruction or a partial result leaves in place stays data.
                rows.append((through, writes, 0 if inst.guard is not None else writes, id(inst)))
            blocks.append(rows)
        return blocks

    @cached_property
    def _ranks(self) -> dict[int, int]:
        """Places of blocks in reverse postorder: a block comes behind all that lead to it, but for the ends of loops."""
        left: list[int] = []
        seen, path = {0}, [(0, iter(self._successors[0]))]
        while path:
            number, targets = path[-1]
            new = next((target for target in targets if target not in seen), None)
            if new is None:
                left.append(number)
                path.pop()
            else:
                seen.add(new)
                path.append((new, iter(self._successors[new])))
        return {number: place for place, number in enumerate(reversed(left))}


flow_of = of_program(ProgramFlow)
"""The flow of data through a program. Cached."""


def _names(operand: Operand) -> set[str]:
    return {register.name for register in registers_of(operand)}


def is_float(type_name: str) -> bool:
    """True for types of floats, and of pairs of them."""
    return type_name in _FLOAT_TYPES


def _feeding_floats(blocks: Sequence[Sequence[Effect]], *, integer_products: bool = True) -> set[str]:
    """Registers whose values reach a floating-point instruction, through any instructions that move and combine bits; products of tensor
    cores count as such, also those of integers if ``integer_products``."""
    names: set[str] = set()
    for inst, reads, _ in itertools.chain.from_iterable(blocks):
        reads_integers = inst.opcode == "cvt" and inst.types and not is_float(inst.types[-1])
        if _computes_floats(inst) and not reads_integers and (integer_products or any(map(is_float, inst.modifiers))):
            names.update(reads)
    return _behind(names, blocks, lambda inst: _computes_floats(inst) or inst.opcode in _READS_MEMORY)


def _computes_floats(inst: Instruction) -> bool:
    """True for arithmetic on floats, and for products of tensor cores."""
    return inst.opcode in _FLOAT_OPCODES and (inst.opcode in PRODUCTS or any(map(is_float, inst.modifiers)))


def _behind(names: set[str], blocks: Sequence[Sequence[Effect]], ends: Callable[[Instruction], bool]) -> set[str]:
    """Registers whose values reach those of these names, through all instructions but those at which a trace ends."""
    sources: dict[str, set[str]] = {}
    for inst, reads, writes in itertools.chain.from_iterable(blocks):
        if not ends(inst):
            for name in writes:
                sources.setdefault(name, set()).update(reads)
    return set(reached(names, lambda name: sources.get(name, ())))


def _brings_data(each: Effect, feeding: set[str]) -> bool:
    inst = each.instruction
    if inst.opcode in _MEMORY:
        return inst.opcode == "ldmatrix" or (not inst.has("param") and not feeding.isdisjoint(each.writes))
    return inst.opcode in PRODUCTS or _brings_sums(inst)


def _brings_sums(inst: Instruction) -> bool:
    """True for loads of tensor memory, and for atomic operations on floats."""
    return (inst.opcode == "tcgen05" and inst.modifiers[0] == "ld") or (inst.opcode == "atom" and is_float(inst.type))


@dataclass(frozen=True)
class FlaggedWords:
    """Words of 64 bits that carry a number and a flag between blocks: every store sets a bit that is no data, or all bits to zero. The test
    for zero asks for the flag alone."""

    tests: frozenset[int]
    loads: frozenset[int]
    stores: frozenset[int]

    def flags(self, bytes_of: Mapping[int, AccessedBytes], seeds: Collection[int]) -> frozenset[int]:
        """The tests, if in a run nothing but these stores wrote the words."""
        read = AccessedBytes()
        for load in self.loads & bytes_of.keys():
            read.update(bytes_of[load])
        others = (touched for inst, touched in bytes_of.items() if inst not in self.loads and inst not in self.stores)
        if not self.loads.isdisjoint(seeds) or any(not read.isdisjoint(touched) for touched in others):
            return frozenset()
        return self.tests


def _flagged_words(blocks: Sequence[Sequence[Effect]]) -> FlaggedWords:
    everything = list(itertools.chain.from_iterable(blocks))
    nothing = FlaggedWords(frozenset(), frozenset(), frozenset())
    if not any(_tests_word(inst) for inst, _, _ in everything):
        return nothing
    writers = writers_of(inst for inst, _, _ in everything)
    stores, loads, tests = set(), set(), set()
    for inst, _, _ in everything:
        if inst.opcode == "st" and inst.type in _WIDE and not isinstance(inst.operands[1], Vector):
            if not _sets_flag(inst.operands[1], writers):
                return nothing
            stores.add(id(inst))
        elif _tests_word(inst):
            word = inst.operands[1]
            writers_of_word = writers.get(word.name, []) if isinstance(word, Register) else []
            if writers_of_word and all(each.opcode == "ld" and each.type in _WIDE and not each.has("param") for each in writers_of_word):
                tests.add(id(inst))
                loads |= {id(each) for each in writers_of_word}
    return FlaggedWords(frozenset(tests), frozenset(loads), frozenset(stores))


def _tests_word(inst: Instruction) -> bool:
    """True for a comparison of a word of 64 bits with zero."""
    return inst.opcode == "setp" and inst.modifiers[0] in ("eq", "ne") and inst.type in _WIDE and inst.operands[2] == Integer(0)


def _sets_flag(operand: Operand, writers: Mapping[str, list[Instruction]]) -> bool:
    if isinstance(operand, Integer):
        return operand.value == 0
    writers_of_operand = writers.get(operand.name, []) if isinstance(operand, Register) else []
    if len(writers_of_operand) != 1 or writers_of_operand[0].guard is not None:
        return False
    literals = [each.value for each in writers_of_operand[0].operands[1:] if isinstance(each, Integer)]
    return (writers_of_operand[0].opcode == "or" and any(literals)) or (writers_of_operand[0].opcode == "mov" and literals == [0])


_WIDE = ("b64", "u64", "s64")


@dataclass(frozen=True, slots=True)
class Tainted:
    """A set of register names as a mask."""

    mask: int
    bits: dict[str, int]

    def __contains__(self, name: str) -> bool:
        return bool(self.mask >> self.bits[name] & 1) if name in self.bits else False

    def any_of(self, names: Iterable[str]) -> bool:
        """True if one of the registers holds data."""
        return any(name in self for name in names)

    def names(self) -> frozenset[str]:
        """The names of all registers that hold data."""
        flags, left = [], self.mask
        names = list(self.bits) if left else []
        while left:
            # A mask's bits are numbered in the order of the names.
            lowest = left & -left
            flags.append(names[lowest.bit_length() - 1])
            left ^= lowest
        return frozenset(flags)


def tests_infinity(inst: Instruction) -> bool:
    """True for a comparison with a literal infinity, which asks whether a number is one."""
    infinities = (isinstance(operand, Float) and operand.bits & 0x7FFFFFFF == 0x7F800000 for operand in inst.operands)
    return inst.opcode == "setp" and inst.types == ("f32",) and any(infinities)


def _branch_regions(
    program: Program, effects: Sequence[Sequence[Effect]], successors: Sequence[tuple[int, ...]]
) -> dict[int, tuple[int, set[int]]]:
    blocks = program.blocks
    joins = _joins(successors)
    computes = [_only_computes(block, own) for block, own in zip(blocks, effects, strict=True)]
    regions = {}
    for block in blocks:
        last, join = block.terminator, joins[block.index]
        if last is None or last.opcode != "bra" or last.guard is None or join is None:
            continue
        following = [[target for target in targets if target != join] for targets in successors]
        region = set(reached(following[block.index], following.__getitem__))
        if block.index not in region and all(computes[number] for number in region):
            regions[block.index] = join, region
    return regions


def _only_computes(block: BasicBlock, effects: Sequence[Effect]) -> bool:
    plain = block.terminator is None or block.terminator.opcode == "bra"
    others = ("atom", "shfl", "vote", "match", "redux", "call")
    return plain and all(writes and inst.opcode not in others for inst, _, writes in effects[: len(block.body)])


def _joins(successors: Sequence[tuple[int, ...]]) -> list[int | None]:
    """The first block that every path from each block comes to, if there is one (its immediate postdominator)."""
    count = len(successors)
    everything = (1 << count) - 1
    sets = [1 << number if not after else everything for number, after in enumerate(successors)]
    changed = True
    while changed:
        changed = False
        for number in reversed(range(count)):
            if successors[number]:
                common = everything
                for target in successors[number]:
                    common &= sets[target]
                common |= 1 << number
                if common != sets[number]:
                    sets[number], changed = common, True
    # The nearest is the one whose own set is the whole of the others.
    with_set = {joined: number for number, joined in reversed(list(enumerate(sets)))}
    return [with_set.get(sets[number] & ~(1 << number)) for number in range(count)]
