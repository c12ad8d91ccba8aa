"""ldmatrix, stmatrix and movmatrix: 8x8 matrices of 16-bit elements between shared memory and the lanes of a warp.

PTX ISA, "Warp Level Matrix Instructions". Of matrix i, lane 8i + r gives the address of row r (16 bytes), and lane l holds
elements 2(l mod 4) and 2(l mod 4) + 1 of row l div 4; transposed, of column l div 4.
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


def _matrices(inst: Instruction, fragment: Operand) -> int:
    count = inst.first_of(("x1", "x2", "x4"))
    registers = registers_in(fragment)
    if not inst.has("m8n8") or inst.type != "b16" or count is None or int(count[1]) != len(registers):
        raise UnknownInstruction(f"{inst.opcode} in a form that is not implemented", instruction=inst)
    return len(registers)


@instruction("ldmatrix")
def load(inst: Instruction, binder: Binder) -> Operation:
    """Loads one, two or four matrices, one register a lane for each."""
    aligned(inst)
    matrices = _matrices(inst, inst.operands[0])
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
    matrices = _matrices(inst, inst.operands[1])
    sources = [binder.source(inst, register, "b32") for register in registers_in(inst.operands[1])]
    rows = _RowAccess(inst, binder, inst.operands[0], "store", matrices)
    units, transpose = binder.spaces.shared.units, inst.has("trans")

    def run(lanes: Lanes | None) -> None:
        index = rows.index(lanes)
        words = np.empty((len(index) // (8 * matrices), matrices, 8, 4), np.uint32)
        for matrix, source in enumerate(sources):
            words[:, matrix] = (source if lanes is None else source[lanes]).reshape(-1, 8, 4)
        if transpose:
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
