"""Instructions that compute with the bits of numbers. Bit 31 of a residue is 0, so none of them sees the sign of a number over a field."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from gemmgen.emulator.data_flow import PRODUCTS, ProgramFlow, instructions_of, is_float
from gemmgen.emulator.instructions.forms import SPARSE
from gemmgen.emulator.packed_results import packing_of
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Instruction, Integer, Operand, Register, source_registers, written_by
from gemmgen.emulator.whole_words import byte_masks, inverted_words

_ON_BITS = frozenset(
    (
        *(
            "add",
            "sub",
            "mul",
            "mad",
            "div",
            "rem",
            "min",
            "max",
            "neg",
            "abs",
            "and",
            "xor",
            "not",
            "lop3",
            "shl",
            "shr",
            "shf",
            "bfe",
            "bfi",
        ),
        *("popc", "clz", "brev", "bfind", "fns", "setp", "set", "slct", "sad", "dp2a", "dp4a", "mul24", "mad24", "szext", "redux", "match"),
        *("atom", "red", "cvt", "prmt", "testp"),
    )
)
"""Instructions that compute with bits, if their type is an integer."""
_MOVES = ("mov", "selp", "shfl", "ld", "ldu", "atom", "tex", "tld4", "suld")
"""Instructions whose type says nothing of the bits that they move."""
_HALVES = frozenset((0xFFFF, -0x10000, 0xFFFF0000))
_HALF = 16


@lru_cache(maxsize=64)
def bits_of_numbers(flow: ProgramFlow, plain: frozenset[int], *, has_integers: bool = False) -> Instruction | None:
    """An instruction that computes with the bits of floats, besides masks of whole bytes; None if there is none. Results of the
    instructions in ``plain``, by identity, are no floats. Where factors or results are integers of 8 bits (``has_integers``), these and
    their sums are none either."""
    program = flow.program
    allowed = byte_masks(program).keys() | flow.flagged_words.tests | inverted_words(program)
    floats = results_of_floats(flow) - plain
    if not has_integers:
        data = flow.data_sources - plain
        return on_bits(flow, data | floats | (held_in_shared(flow, data) & flow.loads_of_values), plain, allowed)
    packing = packing_of(program)
    packed = packing.words.keys() | packing.parts
    results = (inst for inst in instructions_of(program) if inst.types and not is_float(inst.types[0]))
    integers = {id(inst) for inst in results if inst.opcode in ("cvt", *PRODUCTS)}
    return on_bits(flow, (flow.loads_of_floats | floats) - packed, plain | packed | integers, allowed | packed)


def results_of_floats(flow: ProgramFlow) -> frozenset[int]:
    """Instructions that compute floats, by identity."""
    computing = (inst for inst in instructions_of(flow.program) if inst.opcode not in _MOVES and inst.types and written_by(inst))
    return frozenset(id(inst) for inst in computing if is_float(inst.types[0]) and inst.opcode not in ("setp", "testp"))


def on_bits(
    flow: ProgramFlow, sources: Collection[int], plain: frozenset[int] = frozenset(), allowed: Collection[int] = (), narrowest: int = 0
) -> Instruction | None:
    """An instruction that computes with the bits of numbers that come from ``sources``, by identity, unless it is ``allowed`` to; None if
    there is none. ``narrowest``: bytes of the smallest elements of data; loads of fewer bytes take parts of a number."""
    metadata = _metadata_registers(flow.program)
    for inst, tainted in flow.spread_from(sources, plain):
        if id(inst) in sources and inst.opcode == "ld" and TYPE_BYTES.get(inst.type, narrowest) < narrowest:
            return inst
        if id(inst) in allowed or not tainted.any_of(source_registers(inst)) or metadata.issuperset(written_by(inst) or ("",)):
            continue
        if computes_with_bits(flow, inst):
            return inst
    return None


def held_in_shared(flow: ProgramFlow, sources: Collection[int]) -> frozenset[int]:
    """Loads of the memory of blocks and threads, by identity, if a program keeps numbers that come from ``sources`` there: integers among
    them may be parts of numbers."""
    inside = {id(inst) for inst in instructions_of(flow.program) if inst.opcode in ("ld", "ldmatrix") and not _is_outside(inst)}
    for inst, tainted in flow.spread_from(sources):
        stores = inst.opcode in ("st", "stmatrix") and not inst.has("global") and tainted.any_of(source_registers(inst))
        if stores or inst.opcode == "cp":
            return frozenset(inside)
    return frozenset()


def _is_outside(inst: Instruction) -> bool:
    return any(map(inst.has, ("global", "param", "const")))


def _metadata_registers(program: Program) -> frozenset[str]:
    """Registers that are used for nothing but the metadata of sparse products: integers that name elements."""
    instructions = list(instructions_of(program))
    names = {operand.name for inst in instructions if isinstance(operand := _metadata_operand(inst), Register)}
    while True:
        makers = [inst for inst in instructions if (written := written_by(inst)) and names.issuperset(written)]
        more = {name for inst in makers if inst.opcode in _ON_BITS for name in source_registers(inst)}
        if more <= names:
            break
        names |= more
    while True:
        users = (inst for inst in instructions if not ((written := written_by(inst)) and names.issuperset(written)))
        used = {name for inst in users for name in _sources_besides_metadata(inst)}
        if not names & used:
            return frozenset(names)
        names -= used


def _metadata_operand(inst: Instruction) -> Operand | None:
    """The metadata of a product with a sparse A: behind B in wgmma, behind C in mma."""
    if inst.opcode not in ("mma", "wgmma") or inst.first_of(SPARSE) is None:
        return None
    place = 3 if inst.opcode == "wgmma" else 4
    return inst.operands[place] if len(inst.operands) > place else None


def _sources_besides_metadata(inst: Instruction) -> set[str]:
    metadata = _metadata_operand(inst)
    return {name for name in source_registers(inst) if not (isinstance(metadata, Register) and name == metadata.name)}


def _selects_bytes(flow: ProgramFlow, selector: Operand) -> bool:
    """True if a register holds one of a few selectors, none of which repeats a sign."""
    if not isinstance(selector, Register):
        return False
    writers = [inst for inst in instructions_of(flow.program) if selector.name in written_by(inst)]
    numbers = [operand for inst in writers for operand in inst.operands[1:3] if inst.opcode in ("mov", "selp")]
    return bool(writers) and all(inst.opcode in ("mov", "selp") for inst in writers) and all(_has_no_sign(operand) for operand in numbers)


def _has_no_sign(selector: Operand) -> bool:
    return isinstance(selector, Integer) and not selector.value & 0x8888


def computes_with_bits(flow: ProgramFlow, inst: Instruction) -> bool:
    """True for instructions on integers that do more than move numbers, or halves of words."""
    if inst.opcode not in _ON_BITS:
        return False
    number = next((operand.value for operand in inst.operands[1:] if isinstance(operand, Integer)), None)
    if inst.type == "pred" or (inst.opcode in ("atom", "red") and (inst.has("exch") or inst.has("cas"))):
        return False
    if inst.opcode == "cvt":
        to, *_, source = (*inst.types, "", "")[:2]
        return _is_integer(source) and not _is_integer(to)
    if inst.opcode == "prmt":
        return not (_has_no_sign(inst.operands[3]) or _selects_bytes(flow, inst.operands[3]))
    if not _is_integer(inst.type):
        return inst.opcode == "testp"
    if inst.opcode == "and":
        return number not in _HALVES
    if inst.opcode in ("shl", "shr"):
        return number != _HALF and not (inst.opcode == "shl" and flow.selections.shifts_sum(inst))
    return True


def _is_integer(kind: str) -> bool:
    return kind[:1] in ("s", "u", "b") and kind[1:].isdecimal()
