"""ldmatrix, stmatrix and movmatrix: matrices in rows of 16 bytes between shared memory and the lanes of a warp.

PTX ISA, "Warp Level Matrix Instructions". Of a matrix of 8 rows, the i-th of an instruction, lane 8i + r gives the address of row r, and
lane l holds bytes 4(l mod 4) to 4(l mod 4) + 3 of row l div 4: two elements of 16 bits, of a transposed matrix those of column l div 4.
`ldmatrix.m16n16.trans` has 16 rows of 16 elements of a byte: a lane has rows 4(l mod 4) to 4(l mod 4) + 3 of column l div 4 in one
register, and of column l div 4 + 8 in the next one. `stmatrix.m16n8.trans` stores the transpose of 16x8 elements of a byte, which lie in
lanes as sums of `mma` do. Rows of 6 or 4 bits are widened: 12 or 8 bytes of 16 elements, which become bytes, and unused ones after them.
"""

from __future__ import annotations

import numpy as np

from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import DivergentWarp, UnknownInstruction
from gemmgen.emulator.geometry import WARP, Lanes
from gemmgen.emulator.instructions.memory import space_name
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.warp import by_lanes, present_words
from gemmgen.emulator.memory import SHARED_WINDOW, Access
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, Operand, Vector

ROW_BYTES = 16
_WHOLE = 0xFFFFFFFF


def whole_warps(inst: Instruction, binder: Binder, lanes: Lanes) -> None:
    """Raises DivergentWarp unless every warp of these lanes is there with all its lanes, as `.aligned` demands."""
    words = present_words(binder, lanes)
    partial = (words != 0) & (words != _WHOLE)
    if partial.any():
        missing = WARP - int(np.bitwise_count(words[partial][0]))
        binder.fail(
            DivergentWarp,
            f"{inst.opcode} needs all lanes of a warp; {missing} have exited or are elsewhere",
            inst,
            lanes[partial[lanes // WARP]],
        )


def aligned(inst: Instruction) -> None:
    """Raises UnknownInstruction for a form without `.sync.aligned`, which no architecture has."""
    if not (inst.has("sync") and inst.has("aligned")):
        raise UnknownInstruction(f"{inst.opcode} without .sync.aligned", instruction=inst)


def registers_in(operand: Operand) -> tuple[Operand, ...]:
    """The registers of a fragment."""
    return operand.elements if isinstance(operand, Vector) else (operand,)


def transposed(matrices: np.ndarray) -> Source:
    """Matrices as [..., 8 rows, 4 words of two elements], transposed."""
    elements = np.ascontiguousarray(matrices).view(np.uint16)
    return np.ascontiguousarray(elements.swapaxes(-1, -2)).view(np.uint32)


class _RowAccess:
    """The addresses that the first lanes of each warp give, checked and located."""

    def __init__(self, inst: Instruction, binder: Binder, address: Operand, kind: str, matrices: int) -> None:
        self.inst, self.binder, self.matrices = inst, binder, matrices
        name = space_name(inst, address, binder)
        if name not in ("shared", "generic"):
            raise UnknownInstruction(f"{inst.opcode} reaches shared memory only", instruction=inst)
        self.generic = name == "generic"
        self.access = Access(inst, kind, ROW_BYTES, 2)
        self.all_addresses, self.some_addresses = binder.addresses(inst, address)
        everyone = np.arange(binder.geometry.lanes)
        self.providers_of_all = None if matrices == 4 else self.providers(everyone)

    def providers(self, lanes: Lanes) -> Lanes:
        """The lanes whose addresses count."""
        return lanes.reshape(-1, WARP)[:, : 8 * self.matrices].ravel()

    def index(self, lanes: Lanes | None) -> np.ndarray:
        """The 16-byte unit of each row; [warps * matrices * 8]."""
        if lanes is None:
            who = self.providers_of_all
            addresses = self.all_addresses()
            if who is not None:
                addresses = addresses[who]
        else:
            whole_warps(self.inst, self.binder, lanes)
            who = self.providers(lanes)
            addresses = self.some_addresses(who)
        if self.generic:
            addresses = addresses - np.uint64(SHARED_WINDOW)
        return self.binder.spaces.shared.locate(self.access, who, addresses)


_NARROW = {"b6x16_p32": 6, "b4x16_p64": 4}
"""Bits of the elements of rows that `ldmatrix` widens to bytes."""


def _matrices(inst: Instruction, fragment: Operand, wide: bool) -> int:
    """Number of matrices of 8 rows that the registers of a form hold, of those forms that there are. `wide`: twice as many rows."""
    count = inst.first_of(("x1", "x2", "x4"))
    registers = registers_in(fragment)
    numbers = 0 if count is None else int(count[1]) * (2 if wide else 1)
    if numbers != len(registers) or numbers > 4:
        raise UnknownInstruction(f"{inst.opcode} in a form that is not implemented", instruction=inst)
    return numbers


def _check_load(inst: Instruction) -> None:
    """Raises UnknownInstruction for shapes that do not go with a type."""
    modifiers = {modifier for modifier in inst.modifiers if modifier not in ("sync", "aligned", "x1", "x2", "x4", "shared", "shared::cta")}
    narrow = {"b8x16", *(modifiers & _NARROW.keys())}
    forms = [{"m8n8", "b16"}, {"m8n8", "trans", "b16"}, {"m16n16", "trans", "b8"}]
    if len(narrow) == 2:
        forms += [{"m16n16", "trans", *narrow}, {"m8n16", *narrow}]
    if modifiers not in forms:
        raise UnknownInstruction(f"{inst.opcode} in a form that is not implemented", instruction=inst)


def widened(rows: np.ndarray, bits: int) -> np.ndarray:
    """Rows of 16 bytes [..., 16] that begin with 16 elements of 6 or 4 bits: their elements as bytes."""
    if bits == 4:
        packed = np.repeat(rows[..., :8], 2, axis=-1)
        packed[..., 1::2] >>= 4
        halves: np.ndarray = packed & 15
        return halves
    every_bit = np.unpackbits(rows[..., :12], axis=-1, bitorder="little").reshape(*rows.shape[:-1], 16, 6)
    return np.packbits(every_bit, axis=-1, bitorder="little")[..., 0]


@instruction("ldmatrix", when=lambda inst: not inst.has("m8n8"))
def load_bytes(inst: Instruction, binder: Binder) -> Operation:
    """Loads matrices of elements that are bytes, or become bytes."""
    aligned(inst)
    _check_load(inst)
    wide, bits = inst.has("m16n16"), _NARROW.get(inst.modifiers[-1])
    matrices = _matrices(inst, inst.operands[0], wide)
    targets = [binder.target(inst, register, "b32") for register in registers_in(inst.operands[0])]
    rows = _RowAccess(inst, binder, inst.operands[1], "load", matrices)
    units = binder.spaces.shared.units

    def run(lanes: Lanes | None) -> None:
        elements = units[ROW_BYTES].take(rows.index(lanes)).view(np.uint8).reshape(-1, ROW_BYTES)
        if bits is not None:
            elements = widened(elements, bits)
        if wide:
            # [matrix, row, column] to a register for each half of the columns, whose lanes go down the columns by four rows.
            square = elements.reshape(-1, matrices // 2, 4, 4, 2, 8)
            elements = square.transpose(0, 1, 4, 5, 2, 3)
        words = np.ascontiguousarray(elements).view(np.uint32).reshape(-1, matrices, WARP)
        for matrix, target in enumerate(targets):
            if target is not None:
                target[... if lanes is None else lanes] = words[:, matrix].ravel()

    return Operation(lambda: run(None), run)


@instruction("ldmatrix", when=lambda inst: inst.has("m8n8"))
def load(inst: Instruction, binder: Binder) -> Operation:
    """Loads one, two or four matrices, one register a lane for each."""
    aligned(inst)
    _check_load(inst)
    matrices = _matrices(inst, inst.operands[0], wide=False)
    targets = [binder.target(inst, register, "b32") for register in registers_in(inst.operands[0])]
    rows = _RowAccess(inst, binder, inst.operands[1], "load", matrices)
    units, transpose = binder.spaces.shared.units, inst.has("trans")

    def run(lanes: Lanes | None) -> None:
        words = units[ROW_BYTES].take(rows.index(lanes)).view(np.uint32).reshape(-1, matrices, 8, 4)
        if transpose:
            words = transposed(words)
        for matrix, target in enumerate(targets):
            if target is not None:
                target[... if lanes is None else lanes] = words[:, matrix].ravel()

    return Operation(lambda: run(None), run)


@instruction("stmatrix")
def store(inst: Instruction, binder: Binder) -> Operation:
    """Stores one, two or four matrices."""
    aligned(inst)
    of_bytes = inst.has("m16n8")
    form = (inst.has("m8n8"), of_bytes, inst.has("trans"), inst.type)
    if form not in ((True, False, False, "b16"), (True, False, True, "b16"), (False, True, True, "b8")):
        raise UnknownInstruction(f"{inst.opcode} in a form that is not implemented", instruction=inst)
    matrices = _matrices(inst, inst.operands[1], wide=False)
    sources = [binder.source(inst, register, "b32") for register in registers_in(inst.operands[1])]
    rows = _RowAccess(inst, binder, inst.operands[0], "store", matrices)
    units, transpose = binder.spaces.shared.units, inst.has("trans")

    def run(lanes: Lanes | None) -> None:
        index = rows.index(lanes)
        words = np.empty((len(index) // (8 * matrices), matrices, 8, 4), np.uint32)
        for matrix, source in enumerate(sources):
            words[:, matrix] = (source if lanes is None else source[lanes]).reshape(-1, 8, 4)
        if of_bytes:
            # Lanes (row, pair of columns) with bytes (half of the rows, column of the pair): rows of the transpose are the columns.
            elements = words.view(np.uint8).reshape(-1, matrices, 8, 4, 2, 2)
            words = np.ascontiguousarray(elements.transpose(0, 1, 3, 5, 4, 2)).view(np.uint32).reshape(words.shape)
        elif transpose:
            words = transposed(words)
        units[ROW_BYTES][index] = words.view(units[ROW_BYTES].dtype).ravel()

    return Operation(lambda: run(None), run)


@instruction("movmatrix")
def move(inst: Instruction, binder: Binder) -> Operation:
    """Transposes a matrix that lies across a warp."""
    aligned(inst)
    if not inst.has("m8n8") or not inst.has("trans") or inst.type != "b16":
        raise UnknownInstruction("movmatrix in a form that is not implemented", instruction=inst)
    target = binder.target(inst, inst.operands[0], "b32")
    source = binder.source(inst, inst.operands[1], "b32")

    def run(lanes: Lanes) -> None:
        whole_warps(inst, binder, lanes)
        if target is not None:
            target[lanes] = transposed(source[lanes].reshape(-1, 8, 4)).ravel()

    return by_lanes(binder, run)
