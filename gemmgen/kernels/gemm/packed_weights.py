"""Weights of 4 or 8 bits in the order in which one load of 16 bytes feeds a lane's instructions.

A *panel* is 32 columns of B. A *unit* is the part of a panel that a warp loads at once, 16 bytes a lane: 32 values of k of 4 bits, or 16 of
8 bits. Word j of a lane belongs to columns 8 j to 8 j + 7 of the panel, of which the lane has column lane / 4. ``mma.m16n8k16`` wants four
values of k of a lane, 2 (lane mod 4) + {0, 1, 8, 9}. Bytes lie in that order. Nibbles lie so that a mask of 0x000f000f leaves two that are
neighbours along k: nibble 2 s + r + 4 e holds k = 16 s + 8 r + 2 (lane mod 4) + e.

Beside activations of 8 bits, ``mma.m16n8k32`` wants eight values of k of a lane, 4 (lane mod 4) + {0, 1, 2, 3, 16, 17, 18, 19}: nibble
h + 2 e holds k = 16 h + 4 (lane mod 4) + e, so that a mask of 0x0f0f0f0f leaves four neighbours. These are *quads*, the others *pairs*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gemmgen.core.formulas import Formula, ceil_div
from gemmgen.kernels.launch import ArrayArgument, Constraint, Dimension, ScalarArgument
from gemmgen.kernels.matrix import Matrix

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

HALF_TYPES = ("f16", "bf16")
"""Types of activations of 16 bits."""
BYTES = ("s8", "e4m3", "e5m2")
"""Types of activations of 8 bits."""
PANEL = 32
"""Columns of a panel."""
LANES = 32
Neighbours = Literal["pairs", "quads"]
LANE_WORDS = 4
UNIT_WORDS = LANES * LANE_WORDS
UNIT_BYTES = 4 * UNIT_WORDS


@dataclass(frozen=True)
class Weights:
    """Values of packed weights: scale (code - zero)."""

    bits: Literal[4, 8]
    group: Literal[32, 64, 128, "column"]
    """Values of k that share a scale."""
    zeros: bool
    """True if each group of a column has a zero point."""
    floats: bool = False
    """True if codes are floats: e2m1 of 4 bits, e4m3 of 8 bits."""

    @property
    def codes(self) -> Literal["integers", "e2m1", "e4m3"]:
        """Their numbers, as in a spec."""
        return "integers" if not self.floats else "e2m1" if self.bits == 4 else "e4m3"

    @property
    def word(self) -> str:
        """Word for the weights in the text of a problem."""
        group = "" if self.group == "column" else f"g{self.group}"
        return f"{self.codes if self.floats else ''}w{self.bits}{group}{'z' if self.zeros else ''}"


def unit_depth(bits: int) -> int:
    """Values of k of a unit."""
    return 128 // bits


def packed_shape(k: int, n: int, bits: int) -> tuple[int, int, int]:
    """Shape of packed weights, in words: panels, units along k, words of a unit."""
    return ceil_div(n, PANEL), ceil_div(k, unit_depth(bits)), UNIT_WORDS


def pack(codes: npt.NDArray[Any], bits: int, neighbours: Neighbours = "pairs") -> npt.NDArray[np.uint32]:
    """Codes (k, n) of 0 to 2^bits - 1 as packed weights; padding is 0."""
    import numpy as np

    k, n = codes.shape
    panels, units, _ = packed_shape(k, n, bits)
    full = np.zeros((units * unit_depth(bits), panels * PANEL), np.uint32)
    full[:k, :n] = codes
    if neighbours == "quads":
        # Axes: unit, h, lane mod 4, e along k; panel, j, lane / 4 along n.
        quads = full.reshape(units, 2, 4, 4, panels, LANE_WORDS, 8)
        h, e = np.ogrid[:2, :4]
        moved = (quads << (4 * (h + 2 * e)).astype(np.uint32)[None, :, None, :, None, None, None]).sum(axis=(1, 3), dtype=np.uint32)
        return np.ascontiguousarray(moved.transpose(2, 0, 4, 1, 3)).reshape(panels, units, UNIT_WORDS)
    # Axes: unit, s, r, lane mod 4, e along k; panel, j, lane / 4 along n.
    parts = full.reshape(units, unit_depth(bits) // 16, 2, 4, 2, panels, LANE_WORDS, 8)
    s, r, e = np.ogrid[: parts.shape[1], :2, :2]
    shift = (4 * (2 * s + r + 4 * e) if bits == 4 else 8 * (2 * r + e) + 0 * s).astype(np.uint32)
    words = (parts << shift[None, :, :, None, :, None, None, None]).sum(axis=(1, 2, 4), dtype=np.uint32)
    # unit, lane mod 4, panel, j, lane / 4 -> panel, unit, lane / 4, lane mod 4, j
    return np.ascontiguousarray(words.transpose(2, 0, 4, 1, 3)).reshape(panels, units, UNIT_WORDS)


def unpack(words: npt.NDArray[Any], bits: int, k: int, n: int, neighbours: Neighbours = "pairs") -> npt.NDArray[np.uint32]:
    """The inverse of ``pack``."""
    import numpy as np

    panels, units, _ = words.shape
    parts = words.reshape(panels, units, 8, 4, LANE_WORDS).transpose(1, 3, 0, 4, 2)
    if neighbours == "quads":
        h, e = np.ogrid[:2, :4]
        quads = parts[:, None, :, None] >> (4 * (h + 2 * e)).astype(np.uint32)[None, :, None, :, None, None, None] & np.uint32(15)
        return np.ascontiguousarray(quads).reshape(units * unit_depth(bits), panels * PANEL)[:k, :n]
    s, r, e = np.ogrid[: unit_depth(bits) // 16, :2, :2]
    shift = (4 * (2 * s + r + 4 * e) if bits == 4 else 8 * (2 * r + e) + 0 * s).astype(np.uint32)
    codes = parts[:, None, None, :, None] >> shift[None, :, :, None, :, None, None, None] & np.uint32(2**bits - 1)
    return np.ascontiguousarray(codes).reshape(units * unit_depth(bits), panels * PANEL)[:k, :n]


@dataclass(frozen=True)
class PackedMatrix(Matrix):
    """B as packed weights: an array of words (panels, units along k, 128) without gaps."""

    bits: int = 4

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        return ()

    @property
    def scalars(self) -> tuple[ScalarArgument, ...]:
        return ()

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return ()

    def argument(self, role: Literal["input", "output", "inout"], needed: str | None = None) -> ArrayArgument:
        panels, units = Formula(f"ceil_div(n, {PANEL})"), Formula(f"ceil_div(k, {unit_depth(self.bits)})")
        return ArrayArgument(
            name=self.name,
            type="u32",
            role=role,
            shape=(panels, units, Formula(str(UNIT_WORDS))),
            strides=(Formula(f"{units} * {UNIT_WORDS}"), Formula(str(UNIT_WORDS)), Formula("1")),
            alignment=16,
            meaning=f"k x n weights of {self.bits} bits, packed in units of {unit_depth(self.bits)} x {PANEL}",
            needed=needed,
        )


def packed_matrix(bits: int) -> PackedMatrix:
    """B of a GEMM with narrow weights."""
    return PackedMatrix("B", "k", "n", "n", True, LANE_WORDS, "u32", bits=bits)
