"""The flow of data through a program's registers, as far as the text shows it: the branches and addresses that depend on data.

A claim over a finite field holds for kernels whose control flow and addresses do not depend on the numbers that they compute with.
This module finds branches, guards and addresses that may, without running anything: a register holds data if an instruction
computes it from data, and the data begin at loads of chosen arrays and at results of tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import Address, Float, Instruction, Integer, Operand, Register, Vector, registers_of

_WITHOUT_RESULTS = (
    *("st", "sust", "red", "bar", "barrier", "stmatrix", "bra", "brx", "ret", "exit", "trap"),
    *("membar", "fence", "cp", "griddepcontrol"),
)
_PRODUCTS = ("mma", "wmma", "wgmma", "ldmatrix")
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
        yield from block.body
        if block.terminator is not None:
            yield block.terminator


def written_by(inst: Instruction) -> tuple[str, ...]:
    """Names of the registers that an instruction may write."""
    if not inst.operands or inst.opcode in _WITHOUT_RESULTS or isinstance(inst.operands[0], Address) or inst.modifiers[:1] == ("dealloc",):
        return ()
    return tuple(register.name for register in registers_of(inst.operands[0]))


def _read_by(inst: Instruction) -> Iterator[str]:
    """Names of the registers whose values an instruction computes with; not those of its addresses and its guard."""
    operands: tuple[Operand, ...] = inst.operands if not written_by(inst) else inst.operands[1:]
    if inst.opcode in ("wgmma", "mma", "wmma"):
        operands = inst.operands
    for operand in operands:
        if not isinstance(operand, Address):
            for register in registers_of(operand):
                yield register.name


class DataFlow:
    """The comparison behind each selection between two float32 numbers."""

    def __init__(self, program: Program) -> None:
        writers: dict[str, list[Instruction]] = {}
        for inst in instructions_of(program):
            for name in written_by(inst):
                writers.setdefault(name, []).append(inst)
        self._only = {name: found[0] for name, found in writers.items() if len(found) == 1}
        self._comparisons: dict[int, Instruction] = {}
        self.hashed: list[Instruction] = []
        """Selections with a known comparison."""
        for block in program.blocks:
            latest: dict[str, Instruction] = {}
            for inst in block.body:
                if inst.opcode == "selp" and inst.type == "f32" and isinstance(inst.operands[3], Register):
                    name = inst.operands[3].name
                    found = latest.get(name) or self._from_anywhere(name)
                    if found is not None:
                        self._comparisons[id(inst)] = found
                        self.hashed.append(inst)
                self._forget(latest, inst)
                if _compares(inst):
                    latest[written_by(inst)[0]] = inst

    def comparison_behind(self, selection: Instruction) -> Instruction | None:
        """The comparison of float32 that decides a selection, if its operands still hold what was compared."""
        return self._comparisons.get(id(selection))

    def _from_anywhere(self, name: str) -> Instruction | None:
        """A comparison in another basic block, if it and its operands are written nowhere else."""
        found = self._only.get(name)
        if found is None or not _compares(found):
            return None
        names = {register.name for operand in found.operands[1:] for register in registers_of(operand)}
        return found if names <= self._only.keys() else None

    @staticmethod
    def _forget(latest: dict[str, Instruction], inst: Instruction) -> None:
        """Drops comparisons whose result or operands an instruction overwrites."""
        written = set(written_by(inst))
        if not written:
            return
        for name, found in list(latest.items()):
            if name in written or any(register.name in written for operand in found.operands[1:] for register in registers_of(operand)):
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


def data_dependence(
    program: Program, loads: Iterable[Instruction], hashed: Iterable[Instruction] = (), plain: Collection[int] = ()
) -> DataDependence:
    """Decisions of data that come from these loads, from any others that feed floating-point instructions, and from tensor cores.

    `hashed` are selections that are read as opaque functions, `plain` instructions, by their identity, whose results are no data.
    """
    everything = list(instructions_of(program))
    roots = {id(inst) for inst in loads}
    feeding = _feeding_floats(everything)
    spread = _Spread(program, lambda inst: id(inst) not in plain and (id(inst) in roots or _brings_data(inst, feeding)), plain)
    opaque = {id(inst) for inst in hashed}
    control: list[Instruction] = []
    addresses: list[Instruction] = []
    choices: list[Instruction] = []
    chosen = {id(inst) for inst in choosing_branches(program)}
    for inst, tainted in spread.states():
        if inst.guard is not None and inst.guard.name in tainted and id(inst) in chosen:
            choices.append(inst)
        elif inst.guard is not None and inst.guard.name in tainted:
            effect = inst.opcode in ("bra", "brx", "ret", "exit", "trap", "bar", "barrier", "call") or not written_by(inst)
            (control if effect or inst.opcode in _READS_MEMORY else choices).append(inst)
        elif inst.opcode == "brx" and tainted.any_of(_names(inst.operands[0])):
            control.append(inst)
        elif inst.opcode == "selp" and id(inst) not in opaque and tainted.any_of(_names(inst.operands[3])):
            choices.append(inst)
        if any(isinstance(operand, Address) and tainted.any_of(_names(operand)) for operand in inst.operands):
            addresses.append(inst)
    return DataDependence(tuple(control), tuple(addresses), tuple(choices))


def _names(operand: Operand) -> set[str]:
    return {register.name for register in registers_of(operand)}


def _feeding_floats(everything: list[Instruction]) -> set[str]:
    """Registers whose values reach a floating-point instruction, through any instructions that move and combine bits."""
    found: set[str] = set()
    sources: dict[str, set[str]] = {}
    for inst in everything:
        reads = set(_read_by(inst))
        if inst.opcode in _FLOAT_OPCODES and (inst.opcode in _PRODUCTS or any(m in _FLOAT_TYPES for m in inst.modifiers)):
            if not (inst.opcode == "cvt" and inst.types and inst.types[-1] not in _FLOAT_TYPES):
                found |= reads
        elif inst.opcode not in _READS_MEMORY:
            for name in written_by(inst):
                sources.setdefault(name, set()).update(reads)
    work = list(found)
    while work:
        new = sources.get(work.pop(), set()) - found
        found |= new
        work += new
    return found


def _brings_data(inst: Instruction, feeding: set[str]) -> bool:
    if inst.opcode in _MEMORY:
        return inst.opcode == "ldmatrix" or (not inst.has("param") and bool(feeding & set(written_by(inst))))
    return inst.opcode in _PRODUCTS


@dataclass(frozen=True)
class FlaggedWords:
    """Words of 64 bits that carry a number and a flag between blocks: every store sets a bit that is no data, or all bits to zero. The test
    for zero asks for the flag alone."""

    tests: frozenset[int]
    loads: frozenset[int]
    stores: frozenset[int]

    def flags(self, bytes_of: Mapping[int, set[tuple[str, int]]], seeds: Collection[int]) -> frozenset[int]:
        """The tests, if in a run nothing but these stores wrote the words."""
        read = set[tuple[str, int]]().union(*(bytes_of.get(load, set()) for load in self.loads))
        others = (touched for inst, touched in bytes_of.items() if inst not in self.loads and inst not in self.stores)
        if not self.loads.isdisjoint(seeds) or any(not read.isdisjoint(touched) for touched in others):
            return frozenset()
        return self.tests


def flagged_words(program: Program) -> FlaggedWords:
    """The words of a program that are tested for zero, if all its stores of 64 bits set a flag or clear a word."""
    writers: dict[str, list[Instruction]] = {}
    for inst in instructions_of(program):
        for name in written_by(inst):
            writers.setdefault(name, []).append(inst)
    stores, loads, tests = set(), set(), set()
    for inst in instructions_of(program):
        if inst.opcode == "st" and inst.type in _WIDE and not isinstance(inst.operands[1], Vector):
            if not _sets_flag(inst.operands[1], writers):
                return FlaggedWords(frozenset(), frozenset(), frozenset())
            stores.add(id(inst))
        elif inst.opcode == "setp" and inst.modifiers[0] in ("eq", "ne") and inst.type in _WIDE and inst.operands[2] == Integer(0):
            word = inst.operands[1]
            found = writers.get(word.name, []) if isinstance(word, Register) else []
            if found and all(each.opcode == "ld" and each.type in _WIDE and not each.has("param") for each in found):
                tests.add(id(inst))
                loads |= {id(each) for each in found}
    return FlaggedWords(frozenset(tests), frozenset(loads), frozenset(stores))


def _sets_flag(operand: Operand, writers: Mapping[str, list[Instruction]]) -> bool:
    if isinstance(operand, Integer):
        return operand.value == 0
    found = writers.get(operand.name, []) if isinstance(operand, Register) else []
    if len(found) != 1 or found[0].guard is not None:
        return False
    literals = [each.value for each in found[0].operands[1:] if isinstance(each, Integer)]
    return (found[0].opcode == "or" and any(literals)) or (found[0].opcode == "mov" and literals == [0])


_WIDE = ("b64", "u64", "s64")


def spread_from(program: Program, loads: Collection[int], plain: Collection[int] = ()) -> Iterator[tuple[Instruction, Tainted]]:
    """Each instruction with the registers that hold data before it, where data come from certain loads alone, given by identity.

    `plain` are instructions whose results are no data. Whatever a branch decided by data writes, up to where both ways meet, holds data.
    """
    roots = set(loads)
    regions = branch_regions(program)

    def is_root(inst: Instruction) -> bool:
        return id(inst) in roots

    while True:
        states = list(_Spread(program, is_root, plain).states())
        more = set()
        for block in program.blocks:
            last = block.terminator
            if last is not None and last.guard is not None and block.index in regions:
                tainted = next(found for inst, found in states if inst is last)
                if last.guard.name in tainted:
                    more |= {id(inst) for number in regions[block.index][1] for inst in program.blocks[number].body}
        if more <= roots:
            return iter(states)
        roots |= more


class _Spread:
    """Registers that hold data before each instruction, along all paths: a bit for each register."""

    def __init__(self, program: Program, is_root: Callable[[Instruction], bool], plain: Collection[int] = ()) -> None:
        self._bits: dict[str, int] = {}
        self._plain = plain
        self._blocks = [
            [self._effect(inst, is_root) for inst in (*block.body, *([block.terminator] if block.terminator is not None else []))]
            for block in program.blocks
        ]
        self._before = [0] * len(self._blocks)
        successors = [_successors(block, len(self._blocks)) for block in program.blocks]
        work, seen = [0], {0}
        while work:
            number = work.pop()
            after = self._run(number)
            for target in successors[number]:
                if target not in seen or after & ~self._before[target]:
                    seen.add(target)
                    self._before[target] |= after
                    work.append(target)

    def _mask(self, names: Iterable[str]) -> int:
        mask = 0
        for name in names:
            mask |= 1 << self._bits.setdefault(name, len(self._bits))
        return mask

    def _effect(self, inst: Instruction, is_root: Callable[[Instruction], bool]) -> tuple[Instruction, int, int, bool]:
        reads = 0 if inst.opcode in _READS_MEMORY or id(inst) in self._plain else self._mask(_read_by(inst))
        return inst, reads, self._mask(written_by(inst)), is_root(inst)

    def _run(self, number: int) -> int:
        state = self._before[number]
        for inst, reads, writes, root in self._blocks[number]:
            state = self._after(state, inst, reads, writes, root)
        return state

    @staticmethod
    def _after(state: int, inst: Instruction, reads: int, writes: int, root: bool) -> int:
        if root or reads & state:
            return state | writes
        # A value that a guarded instruction or a partial result leaves in place stays data.
        return state if inst.guard is not None else state & ~writes

    def states(self) -> Iterator[tuple[Instruction, Tainted]]:
        """Each instruction with the registers that hold data before it."""
        for number, effects in enumerate(self._blocks):
            state = self._before[number]
            for inst, reads, writes, root in effects:
                yield inst, Tainted(state, self._bits)
                state = self._after(state, inst, reads, writes, root)


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


def infinity_tests(program: Program) -> frozenset[int]:
    """Comparisons with a literal infinity, by identity: over a field, all but literals are finite."""
    return frozenset(id(inst) for inst in instructions_of(program) if tests_infinity(inst))


def tests_infinity(inst: Instruction) -> bool:
    """True for a comparison with a literal infinity, which asks whether a number is one."""
    infinities = (isinstance(operand, Float) and operand.bits & 0x7FFFFFFF == 0x7F800000 for operand in inst.operands)
    return inst.opcode == "setp" and inst.types == ("f32",) and any(infinities)


def choosing_branches(program: Program) -> list[Instruction]:
    """Branches around code that only computes registers, up to where both ways meet: choices between values, as of a piecewise function."""
    found = [program.blocks[number].terminator for number in branch_regions(program)]
    return [last for last in found if last is not None]


def branch_regions(program: Program) -> dict[int, tuple[int, set[int]]]:
    """For the blocks that end in such a branch: the block where both ways meet, and all blocks between."""
    blocks = program.blocks
    successors = [_successors(block, len(blocks)) for block in blocks]
    joins = _joins(successors)
    found = {}
    for block in blocks:
        last, join = block.terminator, joins[block.index]
        if last is None or last.opcode != "bra" or last.guard is None or join is None:
            continue
        region: set[int] = set()
        work = [target for target in successors[block.index] if target != join]
        while work:
            number = work.pop()
            if number not in region:
                region.add(number)
                work += [target for target in successors[number] if target != join]
        if block.index not in region and all(_only_computes(blocks[number]) for number in region):
            found[block.index] = join, region
    return found


def _only_computes(block: BasicBlock) -> bool:
    last = block.terminator
    plain = last is None or last.opcode == "bra"
    return plain and all(written_by(inst) and inst.opcode not in ("atom", "shfl", "vote", "match", "redux", "call") for inst in block.body)


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
    joins: list[int | None] = []
    for number in range(count):
        strict = sets[number] & ~(1 << number)
        # The nearest is the one whose own set is the whole of the others.
        joins.append(next((other for other in range(count) if strict >> other & 1 and sets[other] == strict), None))
    return joins


def _successors(block: BasicBlock, blocks: int) -> tuple[int, ...]:
    last = block.terminator
    falls = last is None or last.guard is not None or last.opcode in ("bar", "barrier")
    return (*block.targets, block.index + 1) if falls and block.index + 1 < blocks else block.targets
