"""Registers that are read before anything wrote them.

A definite-assignment analysis of the PTX clears nearly all kernels without a cost at run time. Registers that it cannot clear are followed
lane by lane: each such register, and each that is computed from one, has a bit that says "no value yet". An undefined value may be moved.
It is an error where it has an effect: in an address, a store, a branch or guard, or a value sent to another lane. Bytes are the exception,
and may be stored: the padding of a struct has no value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from gemmgen.core.graphs import reached
from gemmgen.emulator.binding import Binder
from gemmgen.emulator.control import Terminator
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.warp import from_inactive_lanes, shuffle_sources
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.program import Program
from gemmgen.emulator.program_properties import of_program
from gemmgen.emulator.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Instruction,
    Integer,
    Negated,
    Operand,
    Register,
    Vector,
    registers_of,
    sources_of,
    written_by,
)
from gemmgen.emulator.registers import RegisterFile

PRMT_MODES = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
_EXCHANGES = {"shfl", "vote", "match", "redux", "elect", "mma", "ldmatrix", "movmatrix", "wmma", "wgmma"}

Report = Callable[[Instruction, Lanes, str, str, Instruction | None], None]
"""`report(instruction, lanes, register, use, None)`: lanes use a register that holds no value."""


def _accumulators_of(inst: Instruction) -> tuple[str, ...]:
    """The registers that a wgmma reads as well as writes, unless its scale-d says that it never does."""
    if inst.opcode != "wgmma" or not inst.has("mma_async") or _scale_d(inst) == Integer(0):
        return ()
    return written_by(inst)


def _scale_d(inst: Instruction) -> Operand:
    """The operand of a wgmma that says whether it reads its accumulators; metadata and their selector precede it where A is sparse."""
    return inst.operands[5 if inst.has("sp") else 3]


def _read_registers(inst: Instruction) -> Iterator[str]:
    for operand in sources_of(inst):
        for register in registers_of(operand):
            yield register.name
    yield from _accumulators_of(inst)
    if inst.guard is not None:
        yield inst.guard.name


@of_program
def find_undefined(program: Program) -> frozenset[str]:
    """The registers that some path reads before it writes them, and all registers computed from those. Cached."""
    return tainted_by(program, _not_definitely_assigned(program))


def tainted_by(program: Program, registers: Iterable[str]) -> frozenset[str]:
    """These registers and all that are computed from them."""
    tainted = set(registers)
    if not tainted:
        return frozenset()
    results: dict[str, set[str]] = {}
    for block in program.blocks:
        for inst in block.body:
            for name in _read_registers(inst):
                results.setdefault(name, set()).update(written_by(inst))
    return frozenset(reached(tainted, lambda name: results.get(name, ())))


def _not_definitely_assigned(program: Program) -> set[str]:
    """Forward data flow: a register is assigned at a place if every path to it writes it."""
    numbers = {register.name: 1 << bit for bit, register in enumerate(r for group in program.registers.values() for r in group)}
    blocks = program.blocks
    everything = (1 << len(numbers)) - 1
    writes = [0] * len(blocks)
    for block in blocks:
        for inst in block.instructions:
            if inst.guard is None:
                for name in written_by(inst):
                    writes[block.index] |= numbers[name]
    at_entry = [everything] * len(blocks)
    if blocks:
        at_entry[0] = 0
    work = [0] if blocks else []
    reached = set(work)
    while work:
        index = work.pop()
        after = at_entry[index] | writes[index]
        for successor in blocks[index].successors:
            known = at_entry[successor] & after
            if known != at_entry[successor] or successor not in reached:
                reached.add(successor)
                at_entry[successor] = known
                work.append(successor)
    suspects: set[str] = set()
    for index in reached:
        assigned = at_entry[index]
        for inst in blocks[index].instructions:
            suspects.update(name for name in _read_registers(inst) if not assigned & numbers[name])
            if inst.guard is None:
                for name in written_by(inst):
                    assigned |= numbers[name]
    return suspects


def _loaded(program: Program) -> set[str]:
    return {
        name for block in program.blocks for inst in block.body if inst.opcode in ("ld", "ldu", "ldmatrix") for name in written_by(inst)
    }


class UndefinedRegisters:
    """Follows the registers of `find_undefined` on one machine."""

    def __init__(self, names: frozenset[str], registers: RegisterFile, lanes: int) -> None:
        self.registers = registers
        self.everyone = np.arange(lanes)
        self.unassigned = names
        self.bits = {name: np.ones(lanes, np.bool_) for name in names}
        self.parts: dict[str, np.ndarray] = {}
        """Bits of each part of a register that was put together from several: one of them may hold a value and another none."""
        self.binder: Binder | None = None
        """If set, a value goes through a shuffle to the lanes that take it; else none may go into one without holding a value."""
        self.shuffle: Instruction | None = None
        """The first shuffle that takes a value from a lane which takes no part."""
        self.loads = False
        """True if the results of loads are followed."""
        self.report: Report = lambda instruction, lanes, register, use, other: None

    def clear(self, lanes: Lanes | None = None) -> None:
        """Fresh lanes (None: all): no register holds a value."""
        for name, bits in self.bits.items():
            bits[... if lanes is None else lanes] = name in self.unassigned
        for name, parts in self.parts.items():
            parts[:, ... if lanes is None else lanes] = name in self.unassigned

    def follow_loads(self, program: Program) -> None:
        """From here on the results of loads, and values computed from them, are followed as well: they may come from memory that nothing
        has written, which matters where they decide something."""
        for name in tainted_by(program, _loaded(program)):
            if name not in self.bits:
                self.bits[name] = np.zeros(len(self.everyone), np.bool_)
        self.loads = True

    def mark(self, names: Iterable[str], lanes: Lanes) -> None:
        """These registers of some lanes hold no value."""
        for name in names:
            self.bits[name][lanes] = True

    def lacks_value(self, operand: Operand, lanes: Lanes) -> np.ndarray:
        """Lanes for which the register holds no value, or one of a vector's."""
        bits = np.zeros(len(lanes), np.bool_)
        for register in registers_of(operand):
            if register.name in self.bits:
                bits |= self.bits[register.name][lanes]
        return bits

    def follow_shuffles(self, program: Program, binder: Binder, shuffle: Instruction | None = None) -> None:
        """From here on the results of shuffles, and values computed from them, are followed as well."""
        results = {name for block in program.blocks for inst in block.body if inst.opcode == "shfl" for name in written_by(inst)}
        for name in tainted_by(program, results):
            if name not in self.bits:
                self.bits[name] = np.zeros(len(self.everyone), np.bool_)
        self.binder, self.shuffle = binder, shuffle

    def follow(self, instructions: Sequence[Instruction], operation: Operation) -> Operation:
        """The operation of these instructions, with the bits kept up."""
        steps = [step for inst in instructions if (step := self._step(inst)) is not None]
        if not steps:
            return operation
        full, some = operation

        def follow_full() -> None:
            for step in steps:
                step(self.everyone)
            full()

        def follow_some(lanes: Lanes) -> None:
            for step in steps:
                step(lanes)
            some(lanes)

        return Operation(follow_full, follow_some)

    def follows(self, inst: Instruction) -> bool:
        """True if an instruction meets a followed register."""
        return self._step(inst) is not None

    def follow_terminator(self, inst: Instruction | None, finish: Terminator) -> Terminator:
        """The end of a basic block, with a check of the registers that it depends on."""
        step = None if inst is None else self._step(inst)
        if step is None:
            return finish
        look = step

        def follow(lanes: Lanes | None) -> int:
            look(self.everyone if lanes is None else lanes)
            return finish(lanes)

        return follow

    def _step(self, inst: Instruction) -> Callable[[Lanes], None] | None:
        """Effect of an instruction on the bits; None if it meets no followed register."""
        results = [self.bits[name] for name in written_by(inst) if name in self.bits]
        sources = [name for name in dict.fromkeys(self._value_sources(inst)) if name in self.bits]
        decisive = [(name, use) for name, use in self._decisive(inst) if name in self.bits]
        if not (results or decisive or (inst.guard is not None and inst.guard.name in self.bits)):
            return None
        guard, negated = inst.guard, inst.guard_negated
        guard_row = None if guard is None else self.registers.row(guard, "pred")
        guard_bits = None if guard is None else self.bits.get(guard.name)
        condition = "the condition of this branch" if inst.opcode == "bra" else "the condition of this instruction"
        accumulators = [name for name in _accumulators_of(inst) if name in self.bits]
        accumulates = self._accumulates(inst) if accumulators else None
        choice = self._shuffled(inst) if inst.opcode == "shfl" else self._choice(inst)
        packed, taken_apart = self._packed(inst), self._taken_apart(inst)
        names = [name for name in written_by(inst) if name in self.bits]

        def step(lanes: Lanes) -> None:
            if guard_row is not None and guard is not None:
                if guard_bits is not None and guard_bits[lanes].any():
                    self.report(inst, lanes[guard_bits[lanes]], guard.name, condition, None)
                lanes = lanes[guard_row[lanes] != negated]
                if not len(lanes):
                    return
            for name, use in decisive:
                bad = self.bits[name][lanes]
                if bad.any():
                    self.report(inst, lanes[bad], name, use, None)
            if accumulates is not None:
                for name in accumulators:
                    bad = self.bits[name][lanes] & accumulates(lanes)
                    if bad.any():
                        self.report(inst, lanes[bad], name, "the accumulator of this wgmma", None)
            if results and not (taken_apart is not None and taken_apart(lanes)):
                if choice is not None:
                    undefined = choice(lanes)
                else:
                    undefined = np.zeros(len(lanes), np.bool_)
                    for name in sources:
                        undefined |= self.bits[name][lanes]
                for bits in results:
                    bits[lanes] = undefined
                for name in names:
                    if name in self.parts:
                        self.parts[name][:, lanes] = undefined
                if packed is not None:
                    packed(lanes)

        return step

    def _packed(self, inst: Instruction) -> Callable[[Lanes], None] | None:
        """A move that puts a register together, or a choice of bytes: keeps the bits of each part."""
        chosen = self._chosen_bytes(inst)
        if chosen is not None:
            return self._kept_bytes(inst, chosen)
        if inst.opcode != "mov" or not isinstance(inst.operands[1], Vector) or not isinstance(inst.operands[0], Register):
            return None
        sources = [self._bits_of(operand) for operand in inst.operands[1].elements]
        name = inst.operands[0].name
        if name not in self.bits:
            return None
        parts = self.parts.setdefault(name, np.repeat(self.bits[name][None], len(sources), axis=0))
        if len(parts) != len(sources):
            return None

        def keep(lanes: Lanes) -> None:
            for part, bits in zip(parts, sources, strict=True):
                part[lanes] = bits(lanes)

        return keep

    def _kept_bytes(self, inst: Instruction, chosen: Callable[[Lanes], np.ndarray]) -> Callable[[Lanes], None] | None:
        """Keeps the bits of the four bytes that a prmt chooses."""
        (name,) = written_by(inst)
        if name not in self.bits:
            return None
        parts = self.parts.setdefault(name, np.repeat(self.bits[name][None], 4, axis=0))

        def keep(lanes: Lanes) -> None:
            parts[:, lanes] = chosen(lanes)

        return keep if len(parts) == 4 else None

    def _chosen_bytes(self, inst: Instruction) -> Callable[[Lanes], np.ndarray] | None:
        """Bits of the four bytes that a prmt with constant selectors chooses, a row for each; None for other instructions."""
        if inst.opcode != "prmt" or not isinstance(inst.operands[3], Integer) or any(map(inst.has, PRMT_MODES)):
            return None
        words = [self._bytes_of(operand) for operand in inst.operands[1:3]]
        places = [inst.operands[3].value >> (4 * byte) & 7 for byte in range(4)]
        return lambda lanes: np.concatenate([word(lanes) for word in words])[places]

    def _bytes_of(self, operand: Operand) -> Callable[[Lanes], np.ndarray]:
        """Bits of the four bytes of a word, a row for each."""
        whole = self._bits_of(operand)

        def bits(lanes: Lanes) -> np.ndarray:
            parts = self.parts.get(operand.name) if isinstance(operand, Register) else None
            if parts is None or 4 % len(parts):
                return np.repeat(whole(lanes)[None], 4, axis=0)
            return np.repeat(parts[:, lanes], 4 // len(parts), axis=0)

        return bits

    def _taken_apart(self, inst: Instruction) -> Callable[[Lanes], bool] | None:
        """A move that takes a register apart: true if it was put together from as many parts, whose bits the targets then have."""
        if inst.opcode != "mov" or not isinstance(inst.operands[0], Vector) or not isinstance(inst.operands[1], Register):
            return None
        name = inst.operands[1].name
        targets = [self.bits.get(operand.name) if isinstance(operand, Register) else None for operand in inst.operands[0].elements]

        def take(lanes: Lanes) -> bool:
            parts = self.parts.get(name)
            if parts is None or len(parts) != len(targets):
                return False
            for part, bits in zip(parts, targets, strict=True):
                if bits is not None:
                    bits[lanes] = part[lanes]
            return True

        return take

    def _value_sources(self, inst: Instruction) -> Iterator[str]:
        if inst.opcode in ("ld", "ldu", "atom") or inst.opcode in _EXCHANGES:
            return
        for operand in sources_of(inst):
            for register in registers_of(operand):
                yield register.name

    def _choice(self, inst: Instruction) -> Callable[[Lanes], np.ndarray] | None:
        """The bits of a selp, which takes one source, of `and` and `or` of predicates, where one source may decide alone, and of
        instructions that read some bytes of a word."""
        chosen = self._chosen_bytes(inst)
        if chosen is not None:
            return lambda lanes: np.logical_or.reduce(chosen(lanes))
        if inst.opcode == "dp2a":
            low = 2 if inst.has("hi") else 0
            halves, added, word = self._bits_of(inst.operands[1]), self._bits_of(inst.operands[3]), self._bytes_of(inst.operands[2])
            return lambda lanes: np.logical_or.reduce([halves(lanes), added(lanes), *word(lanes)[low : low + 2]])
        if inst.opcode in ("and", "or") and inst.has("pred"):
            return self._decided(inst.opcode == "and", inst.operands[1], inst.operands[2])
        if inst.opcode != "selp" or not isinstance(inst.operands[3], Register):
            return None
        condition = self.registers.row(inst.operands[3], "pred")
        first, second, decider = (self._bits_of(operand) for operand in inst.operands[1:4])
        return lambda lanes: np.where(condition[lanes], first(lanes), second(lanes)) | decider(lanes)

    def _decided(self, conjunction: bool, *operands: Operand) -> Callable[[Lanes], np.ndarray] | None:
        """`and` with false and `or` with true have a value, whatever the other operand is."""
        first, second = operands
        if not isinstance(first, Register) or not isinstance(second, Register):
            return None
        values = [self.registers.row(first, "pred"), self.registers.row(second, "pred")]
        bits = [self._bits_of(first), self._bits_of(second)]

        def undefined(lanes: Lanes) -> np.ndarray:
            lacking, other_lacking = bits[0](lanes), bits[1](lanes)
            open_, other_open = (lack | (value[lanes] == conjunction) for lack, value in zip((lacking, other_lacking), values, strict=True))
            lacks: np.ndarray = (lacking & other_open) | (other_lacking & open_)
            return lacks

        return undefined

    def _accumulates(self, inst: Instruction) -> Callable[[Lanes], np.ndarray]:
        """The predicate scale-d of a wgmma."""
        operand = _scale_d(inst)
        register = operand.register if isinstance(operand, Negated) else operand
        if not isinstance(register, Register):
            return lambda lanes: np.ones(len(lanes), np.bool_)
        row, negated = self.registers.row(register, "pred"), isinstance(operand, Negated)
        return lambda lanes: row[lanes] != negated

    def _shuffled(self, inst: Instruction) -> Callable[[Lanes], np.ndarray] | None:
        """A shuffle takes the value of its source lane; from an inactive lane it takes none."""
        if self.binder is None:
            return None
        sources, inactive = shuffle_sources(inst, self.binder), from_inactive_lanes(inst, self.binder)
        value = self._bits_of(inst.operands[1])

        def undefined(lanes: Lanes) -> np.ndarray:
            undefined_there: np.ndarray = inactive(lanes) | value(sources(lanes)[0])
            return undefined_there

        return undefined

    def _bits_of(self, operand: Operand) -> Callable[[Lanes], np.ndarray]:
        bits = self.bits.get(operand.name) if isinstance(operand, Register) else None
        if bits is None:
            return lambda lanes: np.zeros(len(lanes), np.bool_)
        followed = bits
        return lambda lanes: followed[lanes]

    def _decisive(self, inst: Instruction) -> Iterator[tuple[str, str]]:
        """Registers that must hold a value here, and their uses."""
        for operand in sources_of(inst):
            if isinstance(operand, Address):
                for register in registers_of(operand):
                    yield register.name, "this address"
            elif inst.opcode == "st" and self.loads and (inst.has("local") or (inst.has("shared") and self.shuffle is None)):
                # The memory holds no value then, as a register would.
                continue
            elif inst.opcode == "st" and TYPE_BYTES[inst.type] == 1:
                # Compilers copy the padding of structs byte by byte.
                continue
            elif inst.opcode in ("st", "sust", "atom", "red", "stmatrix", "cp"):
                for register in registers_of(operand):
                    yield register.name, "the value that is stored"
            elif inst.opcode in _EXCHANGES and not (inst.opcode == "shfl" and self.binder is not None and operand is inst.operands[1]):
                for register in registers_of(operand):
                    yield register.name, "a value that other lanes receive"
            elif inst.opcode in ("brx", "bar", "barrier", "nanosleep"):
                for register in registers_of(operand):
                    yield register.name, "the barrier, time or target of this instruction"
            elif isinstance(operand, Negated):
                continue
