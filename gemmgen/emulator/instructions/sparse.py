"""Metadata of sparse products: the values of k that the elements of a compressed A belong to.

PTX ISA, "Sparse matrix storage" of mma.sp and of wgmma.mma_async.sp, which have one layout. A holds two of every four elements along k,
or one of every two of tf32, and a nibble of metadata says which. Metadata come from registers of some lanes of each quad, which the
selector chooses: of types of 16 and 32 bits, a lane's lower half belongs to the quad's row and its upper half to the row 8 below, 4
nibbles each; of bytes, a lane has 8 nibbles of one row, lanes 0 and 2 of a quad of its row, lanes 1 and 3 of the row 8 below.

Metadata of tcgen05.mma.sp are in tensor memory, as in CuTe's `mma_traits_sm100.hpp`: of types below 16 bits, the lane of a row holds its
16 nibbles in two columns. Of types of 16 and 32 bits, 16 lanes of one column, which the selector names, belong to 16 rows: lanes 0 to 7
hold the first four nibbles of rows 0 to 7 in their lower halves and of rows 8 to 15 in their upper halves, lanes 8 to 15 the other four.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.geometry import WARP
from gemmgen.emulator.ptx.syntax import Instruction

_FIRST, _SECOND = 0b0100, 0b1110
"""Metadata of two elements of 32 bits, of which one is held."""
_ROWS = 16
_QUAD = 4


@dataclass(frozen=True)
class Metadata:
    """Metadata of one instruction, for 16 rows of A in each warp."""

    inst: Instruction
    element_bits: int
    """Bits of an element that metadata choose: a byte where it holds two floats of 4 bits."""
    depth: int
    """Values of k, those that A leaves out among them."""
    selector: int
    """Number of the lanes of a quad that hold metadata."""

    def __post_init__(self) -> None:
        limit = _QUAD // self._lanes_of_quad
        if self.selector not in range(limit):
            message = f"the sparsity selector is {self.selector}; it must be below {limit} for this shape"
            raise UnknownInstruction(message, instruction=self.inst)

    @property
    def chunk(self) -> int:
        """Values of k that a nibble describes."""
        return 2 if self.element_bits == 32 else 4

    @property
    def _parts(self) -> int:
        """Parts of a row, one in each lane."""
        return self.depth // self.chunk // (8 if self.element_bits == 8 else 4)

    @property
    def _lanes_of_quad(self) -> int:
        return self._parts * (2 if self.element_bits == 8 else 1)

    def read(self, words: np.ndarray, a: np.ndarray) -> np.ndarray:
        """Values of k that each element of A belongs to, [warps, 16, elements of a row], from a register of all lanes. ``a``: the
        elements."""
        chunk, parts, lanes = self.chunk, self._parts, self._lanes_of_quad
        quads = np.ascontiguousarray(words).reshape(-1, WARP // _QUAD, _QUAD)
        chosen = quads[:, :, self.selector * lanes : (self.selector + 1) * lanes]
        nibbles = chosen[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15  # [warps, quads, lanes, 8]
        if self.element_bits == 8:
            rows = nibbles.reshape(*chosen.shape[:2], parts, 2, 8).transpose(0, 3, 1, 2, 4)
        else:
            rows = nibbles.reshape(*chosen.shape[:2], parts, 2, 4).transpose(0, 3, 1, 2, 4)
        of_row = np.ascontiguousarray(rows).reshape(-1, _ROWS, self.depth // chunk)
        first = chunk * np.arange(self.depth // chunk)
        if chunk == 2:
            if not np.isin(of_row, (_FIRST, _SECOND)).all():
                raise UnknownInstruction("the metadata of tf32 are neither 0b0100 nor 0b1110", instruction=self.inst)
            places: np.ndarray = (first + (of_row == _SECOND)).astype(np.int64)
            return places
        low, high = of_row & 3, of_row >> 2
        bad = low >= high if self.inst.has("sp::ordered_metadata") else low == high
        if bad.any():
            # Compressors write zeros for zeros.
            bad &= (a.reshape(*of_row.shape, -1) != 0).any(axis=-1) | (of_row != 0)
        if bad.any():
            raise UnknownInstruction("metadata name elements twice, or not in their order", instruction=self.inst)
        both: np.ndarray = np.stack([first + low, first + high], axis=-1).reshape(*of_row.shape[:2], -1).astype(np.int64)
        return both


_MEANINGFUL = (0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b0110, 0b1110)
"""Nibbles that name two of four elements."""


def nibbles_of(words: np.ndarray, halves: bool) -> np.ndarray:
    """The nibbles of each row of A, from words of tensor memory [lanes, columns]. ``halves``: of types of 16 and 32 bits."""
    nibbles: np.ndarray = words[:, :, None] >> (4 * np.arange(8, dtype=np.uint32)) & 15
    if not halves:
        return nibbles.reshape(len(words), -1)
    parts = nibbles.reshape(-1, 2, _ROWS // 2, 2, 4)  # groups of 16 lanes, the half along k, eight lanes, the half of the word
    return np.ascontiguousarray(parts.transpose(0, 3, 2, 1, 4)).reshape(len(words), 8)


def sparse_places(nibbles: np.ndarray, depth: int, a: np.ndarray, sign: int) -> tuple[np.ndarray, tuple[int, int] | None]:
    """Values of k of each element that A holds, [..., rows, elements], for an instruction whose dense form has a depth; and the first
    nibble without a meaning, with its row. ``a`` [rows, elements]: of each copy of A, one below the other; ``sign``: its bit in a code."""
    pairs = depth == 64
    one_of_two = depth == 8
    bad = ~np.isin(nibbles, (_FIRST, _SECOND) if one_of_two else _MEANINGFUL)
    wrong = None
    if bad.any():
        held = (a & ~a.dtype.type(sign)).reshape(-1, *nibbles.shape[-2:], a.shape[-1] // nibbles.shape[-1]).any(axis=-1)
        bad &= held | (nibbles != 0)  # compressors write zeros for zeros
    if bad.any():
        place = tuple(np.argwhere(bad)[0])
        wrong = int(nibbles[place]), int(place[-2])
    if one_of_two:
        return 2 * np.arange(nibbles.shape[-1]) + (nibbles == _SECOND), wrong
    first = 4 * np.arange(nibbles.shape[-1])
    both = np.stack([first + (nibbles & 3), first + (nibbles >> 2)], axis=-1).astype(np.int64)
    if pairs:
        both = np.stack([2 * both, 2 * both + 1], axis=-1)
    return both.reshape(*nibbles.shape[:-1], -1), wrong
