"""Programs that move the elements of tensor cores in whole words of 32 bits, as far as the text shows it.

Data are traced backward: from the registers that tensor cores multiply, and from those that are stored where a tensor core may read. The
trace passes instructions that copy registers of 32 bits or more. It may end at loads of such words, and at constants; nothing that it
comes to may be computed from bytes of elements, because a wrong byte would go unseen with a probability of 2^-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gemmgen.core.graphs import reached
from gemmgen.emulator.data_flow import flow_of, instructions_of
from gemmgen.emulator.program import Program
from gemmgen.emulator.program_properties import of_program, register_writers
from gemmgen.emulator.ptx.syntax import (
    TYPE_BYTES,
    Instruction,
    Integer,
    Operand,
    Register,
    Vector,
    registers_of,
    source_registers,
    written_by,
)

_PRODUCTS = ("mma", "wgmma", "tcgen05", "wmma")
_LOADS = ("ld", "ldu", "ldmatrix")
_DATA = (*_LOADS, *_PRODUCTS, "atom", "tex", "tld4", "suld")
_MOVES = ("mov", "shfl", "selp")
_STORES = ("st", "stmatrix", "red", "atom")
_FLOATS = ("f32", "bf16", "f16", "bf16x2", "f16x2")
_WORD, _WORD_MASK = 4, 0xFFFFFFFF
_SIGNS, _LARGE, _LOWEST_BYTE = 0x80808080, 0x4B000000, 0x7440


class _Sources:
    """The instructions that write each register."""

    def __init__(self, program: Program) -> None:
        self.writers = register_writers(program)
        self._by_data: dict[str, bool] = {}
        self._masked: dict[int, Register | None] = {}

    def behind(self, names: Iterable[str]) -> tuple[list[Instruction], list[Instruction]]:
        """Loads that these registers hold whole words of, and the instructions that compute what else they hold."""
        loads, others = [], []

        def sources(name: str) -> Iterator[str]:
            for inst in self.writers.get(name, ()):
                if inst.opcode in _LOADS:
                    loads.append(inst)
                elif _moves_words(inst):
                    yield from source_registers(inst)
                elif (word := self.masked_word(inst)) is not None:
                    yield word.name
                else:
                    others.append(inst)

        set(reached(names, sources))
        return loads, others

    def masked_word(self, inst: Instruction) -> Register | None:
        """The operand of an `and` that holds whole words from memory, if no data decide about the other one, a mask."""
        if inst.opcode != "and" or inst.type != "b32":
            return None
        if id(inst) not in self._masked:
            self._masked[id(inst)] = None
            by_data = [operand for operand in inst.operands[1:] if isinstance(operand, Register) and self._has_data(operand.name)]
            if len(by_data) == 1:
                loads, others = self.behind([by_data[0].name])
                if not others and all(_loads_words(load) for load in loads):
                    self._masked[id(inst)] = by_data[0]
        return self._masked[id(inst)]

    def _has_data(self, name: str) -> bool:
        """True if loads, or results of tensor cores and atomics, may decide about a register."""
        if name not in self._by_data:
            names = reached([name], lambda each: [source for inst in self.writers.get(each, ()) for source in source_registers(inst)])
            writers = (inst for each in names for inst in self.writers.get(each, ()))
            self._by_data[name] = any(inst.opcode in _DATA and not _is_of_parameters(inst) for inst in writers)
        return self._by_data[name]

    def constant(self, operand: Operand) -> int | None:
        """The number that an operand always is, if the text says so."""
        if isinstance(operand, Integer):
            return operand.value & _WORD_MASK
        writers = self.writers.get(operand.name, []) if isinstance(operand, Register) else []
        numbers = {
            each.operands[1].value & _WORD_MASK for each in writers if each.opcode == "mov" and isinstance(each.operands[1], Integer)
        }
        return numbers.pop() if len(writers) == 1 and len(numbers) == 1 else None

    def holds_inverted(self, name: str) -> bool:
        """True if a register holds whole words from memory, or zeros, of whose bytes the highest bits are inverted."""

        def moved(inst: Instruction) -> bool:
            return inst.opcode == "mov" and inst.type in ("b32", "u32")

        def sources(each: str) -> list[str]:
            return [name for inst in self.writers.get(each, ()) if moved(inst) for name in source_registers(inst)]

        others = (inst for each in reached([name], sources) for inst in self.writers.get(each, ()))
        return all(
            (moved(inst) and (isinstance(inst.operands[1], Register) or self.constant(inst.operands[1]) == _SIGNS))
            or self.inverts_words(inst)
            for inst in others
        )

    def inverts_words(self, inst: Instruction) -> bool:
        """True if an instruction inverts the highest bit of each byte of whole words from memory."""
        word = next((operand for operand in inst.operands[1:] if isinstance(operand, Register)), None)
        numbers = [self.constant(operand) for operand in inst.operands[1:]]
        if inst.opcode != "xor" or word is None or _SIGNS not in numbers:
            return False
        loads, others = self.behind([word.name])
        return not others and all(_loads_words(load) for load in loads)

    def loads_before(self, inst: Instruction) -> list[Instruction]:
        """The loads whose values reach an instruction through any others but products and arithmetic on floats, which read whole words."""
        loads = {}

        def sources(name: str) -> Iterator[str]:
            for writer in self.writers.get(name, ()):
                if writer.opcode in _LOADS:
                    loads[id(writer)] = writer
                elif not _computes(writer):
                    yield from source_registers(writer)

        set(reached(source_registers(inst), sources))
        return list(loads.values())


def _computes(inst: Instruction) -> bool:
    """True for products of tensor cores and arithmetic on floats, whose operands are numbers and no bytes."""
    types = set(inst.types)
    return inst.opcode in _PRODUCTS or (bool(types) and types <= set(_FLOATS) and not _moves_words(inst))


def _bytes_of(inst: Instruction) -> int:
    return TYPE_BYTES.get(inst.type, 0)


def _moves_words(inst: Instruction) -> bool:
    """True if an instruction copies registers of 32 bits or more, and joins or parts them only at words."""
    if inst.opcode not in _MOVES or (inst.opcode == "shfl" and inst.type != "b32"):
        return False
    pieces = max((len(operand.elements) for operand in inst.operands if isinstance(operand, Vector)), default=1)
    return _bytes_of(inst) >= _WORD * pieces


def _loads_words(inst: Instruction) -> bool:
    if inst.opcode == "ldmatrix":
        return inst.type == "b16" and not inst.has("trans")
    return _bytes_of(inst) >= _WORD


def _is_of_parameters(inst: Instruction) -> bool:
    return inst.has("param") or inst.has("const")


def _factors(inst: Instruction) -> tuple[Operand, ...]:
    """The operands that hold elements to be multiplied; descriptors and addresses are traced as well, and lead to no loads of data."""
    if inst.opcode == "mma":
        return (*inst.operands[1:3], *(inst.operands[4:7:2] if inst.has("block_scale") else ()))
    return tuple(operand for operand in inst.operands[1:2] if isinstance(operand, Vector)) if inst.opcode == "wgmma" else ()


def multiplies_on_tensor_cores(program: Program) -> bool:
    """True for a program with tensor cores."""
    return any(
        inst.opcode in ("mma", "wmma") or (inst.opcode in ("wgmma", "tcgen05") and inst.modifiers[0] in ("mma", "mma_async"))
        for inst in instructions_of(program)
    )


@of_program
def masked_words(program: Program) -> dict[int, Register]:
    """The words that `and` masks, by the identity of the instruction: where elements are parts of words, masks must leave whole bytes."""
    sources = _Sources(program)
    masked = ((id(inst), sources.masked_word(inst)) for inst in instructions_of(program) if inst.opcode == "and")
    return {known: word for known, word in masked if word is not None}


@of_program
def byte_masks(program: Program) -> dict[int, bool]:
    """Those of `masked_words` whose masks leave and clear whole bytes: True where the run has to check it, as the text does not show it."""
    sources, words = _Sources(program), masked_words(program)
    masks = {id(inst): mask for inst in instructions_of(program) for mask in inst.operands[1:] if mask != words.get(id(inst), mask)}
    numbers = {known: sources.constant(mask) for known, mask in masks.items()}
    whole = {known: number is None or set(number.to_bytes(_WORD, "little")) <= {0, 0xFF} for known, number in numbers.items()}
    return {known: number is None for known, number in numbers.items() if whole[known]}


@of_program
def inverted_words(program: Program) -> frozenset[int]:
    """Instructions that invert the highest bit of each byte of words from memory, by identity: no number stays as it is."""
    sources = _Sources(program)
    return frozenset(id(inst) for inst in instructions_of(program) if sources.inverts_words(inst))


@of_program
def bytes_as_numbers(program: Program) -> dict[int, int]:
    """Permutations by which a byte of a word from memory becomes a number, by identity, with the byte's place: with its highest bit
    inverted, it is the lowest byte of a number from 2^23 on, from which code subtracts 2^23 + 128."""
    sources = _Sources(program)
    places = {}
    for inst in (inst for inst in instructions_of(program) if inst.opcode == "prmt" and inst.modifiers == ("b32",)):
        word, large, selector = inst.operands[1], sources.constant(inst.operands[2]), sources.constant(inst.operands[3])
        if large != _LARGE or selector is None or selector & ~3 != _LOWEST_BYTE or not isinstance(word, Register):
            continue
        if sources.holds_inverted(word.name):
            places[id(inst)] = selector & 3
    return places


def _widens(inst: Instruction) -> bool:
    """True for copies into tensor memory that give elements of less than 8 bits a byte each."""
    return inst.modifiers[0] == "cp" and any("b6x16" in each or "b4x16" in each for each in inst.modifiers)


@of_program
def words_taken_apart(program: Program) -> str:
    """The first instruction that may take words of elements apart before a tensor core multiplies them; empty if there is none."""
    sources, added = _Sources(program), added_sums(program)
    for inst in instructions_of(program):
        into_tensor_memory = inst.opcode == "tcgen05" and (inst.modifiers[0] in ("st", "shift") or _widens(inst))
        if inst.opcode == "wmma" or into_tensor_memory or (inst.opcode in _PRODUCTS and inst.has("sp")):
            return inst.text.strip()
        traced = [register.name for operand in _factors(inst) for register in registers_of(operand)]
        if traced:
            loads, others = sources.behind(traced)
            if wrong := next((each for each in loads if not _loads_words(each)), None) or next(iter(others), None):
                return wrong.text.strip()
        if inst.opcode == "cp" and inst.has("reduce"):
            return inst.text.strip()
        if inst.opcode in _STORES:
            # What is computed from loads of shared memory, or of arrays, and stored again could be elements.
            loads, others = sources.behind(source_registers(inst))
            data = [each for each in loads if not _is_of_parameters(each)]
            if data and _bytes_of(inst) < _WORD:
                return inst.text.strip()
            data = [each for each in data if not _loads_words(each)]
            others = [each for each in others if not _computes(each) and id(each) not in added]
            data += [load for each in others for load in sources.loads_before(each)]
            if any(not _is_of_parameters(each) for each in data):
                return inst.text.strip()
    return ""


@of_program
def added_sums(program: Program) -> frozenset[int]:
    """Additions of int32, by identity, of sums of products: of results of tensor cores, words from memory, and such additions."""
    sources, roots = _Sources(program), _sums_of(program)
    if not roots:
        return frozenset()
    sums = {
        id(inst): inst
        for inst, tainted in flow_of(program).spread_from(roots)
        if inst.opcode == "add" and inst.modifiers in (("s32",), ("u32",)) and tainted.any_of(source_registers(inst))
    }
    # The sum of a loop is the result and an operand of one addition.
    while others := [known for known, inst in sums.items() if not _adds_sums(inst, sources, roots | sums.keys())]:
        for known in others:
            del sums[known]
    return frozenset(sums)


def _adds_sums(inst: Instruction, sources: _Sources, sums: set[int]) -> bool:
    """True if both operands hold sums or words from memory alone."""
    for operand in inst.operands[1:]:
        if not isinstance(operand, Register):
            return False
        loads, others = sources.behind([operand.name])
        known = all(_loads_words(load) and load.opcode != "ldmatrix" and not _is_of_parameters(load) for load in loads)
        if not known or any(id(other) not in sums for other in others):
            return False
    return True


def _sums_of(program: Program) -> set[int]:
    """Where sums of products begin: products of tensor cores; in a program without these, words from memory."""
    products = {id(inst) for inst in instructions_of(program) if inst.opcode in _PRODUCTS}
    return products or {id(inst) for inst in instructions_of(program) if inst.opcode == "ld" and not _is_of_parameters(inst)}


@of_program
def sums_only_move(program: Program) -> bool:
    """True if a program adds to sums of products by tensor cores, or adds such sums, and else only moves them in whole words, until they
    are numbers of float32."""
    roots, added = _sums_of(program), added_sums(program)
    if not roots:
        return False
    numbers = {id(inst) for inst in instructions_of(program) if _is_number(inst)}
    for inst, tainted in flow_of(program).spread_from(roots, numbers):
        reads = [register.name for operand in inst.operands[bool(written_by(inst)) :] for register in registers_of(operand)]
        known = inst.opcode in _PRODUCTS or id(inst) in numbers or id(inst) in added or _moves_words(inst)
        if known or not tainted.any_of(reads):
            continue
        values = [operand for operand in inst.operands[1:] if isinstance(operand, Register | Vector)]
        if inst.opcode != "st" or _bytes_of(inst) < _WORD or not values:
            return False
    return True


def _is_number(inst: Instruction) -> bool:
    """True for conversions of int32 to float32, and for arithmetic on float32, which reads the bits of a sum as those of a number."""
    return (inst.opcode == "cvt" and inst.types == ("f32", "s32")) or (
        inst.opcode not in _PRODUCTS and inst.types == ("f32",) and _computes(inst)
    )
