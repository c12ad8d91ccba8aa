"""Block scales: numbers that blocks of an operand's elements share, as specs state them, as arrays in memory and as references see them.

An operand's *lines* are the rows of A, or the columns of B. Each element is multiplied by the scale of its block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from gemmgen.core.elements import to_elements, to_numbers
from gemmgen.core.formulas import Formula, ceil_div
from gemmgen.kernels.family import SpecModel
from gemmgen.kernels.launch import Argument, ArrayArgument, Constraint, Dimension, ScalarArgument
from gemmgen.kernels.matrix import Matrix

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ScaleType = Literal["f32", "ue8m0", "e4m3"]
"""Types of scales: float32; powers of two held as their exponents (MX formats); 8-bit floats, all of them positive (NVFP4)."""
ScaleLayout = Literal["k_major", "mn_major", "tiles_128x4"]
"""Order of scales in memory. ``k_major``: those along k are adjacent (row-major for A, and for the transpose of B); ``mn_major``: those of
neighbouring lines are adjacent, which for A is column-major; ``tiles_128x4``: 512 bytes hold four scales along k of 128 lines, in the order
of cuBLASLt's block-scaled products and of ``tcgen05``: that of line i and block j of k lies at 16 (i mod 32) + 4 (i div 32) + j."""


BlockDepth = Literal[16, 32, 64, 128]


class BlockScale(SpecModel):
    """A scale for each block of an operand's elements."""

    lines: Literal[1, 128] = 1
    """Rows of A, or columns of B, in a block."""
    k: BlockDepth = 128
    """Values of k in a block; the last block may have fewer."""
    type: ScaleType = "f32"
    """Type of the scales: float32, powers of two (``ue8m0``), or ``e4m3``."""
    layout: ScaleLayout = "k_major"
    """Order of the scales in memory."""


class Scales(SpecModel):
    """Block scales of A and B; None: the operand has none."""

    NONE: ClassVar[Scales]
    a: BlockScale | None = None
    b: BlockScale | None = None

    @property
    def given(self) -> tuple[tuple[Literal["a", "b"], BlockScale], ...]:
        """The operands with scales, A first."""
        sides: tuple[tuple[Literal["a", "b"], BlockScale | None], ...] = (("a", self.a), ("b", self.b))
        return tuple((name, scale) for name, scale in sides if scale is not None)


Scales.NONE = Scales()

STRATEGIES = ("wgmma", "mma_sync", "tcgen05")
"""Strategies of GEMM that take block scales."""
TILE_LINES, TILE_BLOCKS = 128, 4
"""Lines and blocks of k of a tile of scales."""


def scale_name(operand: str) -> str:
    """The argument that holds the scales of operand ``a`` or ``b``."""
    return f"scales_{operand}"


@dataclass(frozen=True)
class ScaleArray:
    """The scales of one operand in memory."""

    operand: Literal["a", "b"]
    block: BlockScale
    matrix: Matrix
    """Blocks along lines and along k as rows and columns, for B the other way round."""

    @property
    def name(self) -> str:
        return self.matrix.name

    @property
    def tiled(self) -> bool:
        """True if tiles of scales follow one another without gaps."""
        return self.block.layout == "tiles_128x4"

    @property
    def along_k(self) -> bool:
        """True if scales along k are adjacent."""
        return self.block.layout == "k_major"

    @property
    def c_type(self) -> str:
        """The type of a scale in CUDA."""
        return self.matrix.c_type

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The integers of the problem that say where scales are."""
        return () if self.tiled else self.matrix.dimensions

    @property
    def scalars(self) -> tuple[ScalarArgument, ...]:
        """The kernel's parameters for these integers."""
        return () if self.tiled else self.matrix.scalars

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """Constraints on them."""
        return () if self.tiled else self.matrix.constraints

    @property
    def argument(self) -> ArrayArgument:
        """The array that a caller passes; of tiles, as (tiles along lines, tiles along k, 512)."""
        text = f"scales of {self.operand.upper()}: one for each {self.block.lines} x {self.block.k} of its elements"
        if not self.tiled:
            plain = self.matrix.argument("input")
            return replace(plain, meaning=f"{text}, {plain.meaning}")
        lines, blocks = self.tiles
        bytes_of_tile = TILE_LINES * TILE_BLOCKS
        return ArrayArgument(
            name=self.name,
            type=self.block.type,
            role="input",
            shape=(lines, blocks, Formula(str(bytes_of_tile))),
            strides=(Formula(f"{blocks} * {bytes_of_tile}"), Formula(str(bytes_of_tile)), Formula("1")),
            alignment=16,
            meaning=f"{text}, in tiles of {TILE_LINES} lines and {TILE_BLOCKS} blocks of k",
        )

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The array, and the integers beside it."""
        return self.argument, *self.scalars

    @property
    def tiles(self) -> tuple[Formula, Formula]:
        """Tiles of 128 x 4 scales along lines and along k."""
        lines, blocks = self.matrix.rows, self.matrix.columns
        if self.operand == "b":
            lines, blocks = blocks, lines
        return Formula(f"ceil_div({lines}, {TILE_LINES})"), Formula(f"ceil_div({blocks}, {TILE_BLOCKS})")


def scale_array(operand: Literal["a", "b"], block: BlockScale, batch_stride: str | None = None, count: str = "batch") -> ScaleArray:
    """The argument ``scales_a`` or ``scales_b``, (lines, k) in blocks for A and (k, lines) for B, with a leading dimension."""
    lines = _blocks("m" if operand == "a" else "n", block.lines)
    blocks = _blocks("k", block.k)
    rows, columns = (lines, blocks) if operand == "a" else (blocks, lines)
    row_major = (block.layout != "mn_major") == (operand == "a")
    name = scale_name(operand)
    return ScaleArray(operand, block, Matrix(name, rows, columns, f"ld_{name}", row_major, 1, block.type, batch_stride, count))


def _blocks(extent: str, size: int) -> str:
    return extent if size == 1 else f"ceil_div({extent}, {size})"


def scale_shape(operand: Literal["a", "b"], block: BlockScale, extent: int, k: int) -> tuple[int, int]:
    """Shape of the scales of an operand of ``extent`` lines: (lines, k) in blocks for A, (k, lines) for B."""
    lines, blocks = ceil_div(extent, block.lines), ceil_div(k, block.k)
    return (lines, blocks) if operand == "a" else (blocks, lines)


def spread(numbers: npt.NDArray[Any], block: BlockScale, lines: int) -> npt.NDArray[np.float64]:
    """Scales of shape (..., lines, k) in blocks as one for each of ``lines`` lines, with the blocks of k as they are."""
    import numpy as np

    return np.repeat(numbers.astype(np.float64), block.lines, axis=-2)[..., :lines, :]


def as_tiles(elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Scales (lines, blocks of k) in the order ``tiles_128x4``, as (tiles along lines, tiles along k, 512); padding is 0."""
    import numpy as np

    lines, blocks = elements.shape
    rows, columns = ceil_div(lines, TILE_LINES), ceil_div(blocks, TILE_BLOCKS)
    full = np.zeros((rows * TILE_LINES, columns * TILE_BLOCKS), elements.dtype)
    full[:lines, :blocks] = elements
    parts = full.reshape(rows, 4, 32, columns, TILE_BLOCKS)  # a tile's line is 32 * (second axis) + (third axis)
    return np.ascontiguousarray(parts.transpose(0, 3, 2, 1, 4)).reshape(rows, columns, TILE_LINES * TILE_BLOCKS)


def from_tiles(tiles: npt.NDArray[Any], lines: int, blocks: int) -> npt.NDArray[Any]:
    """The inverse of ``as_tiles``."""
    rows, columns = tiles.shape[:2]
    parts = tiles.reshape(rows, columns, 32, 4, TILE_BLOCKS).transpose(0, 3, 2, 1, 4)
    return parts.reshape(rows * TILE_LINES, columns * TILE_BLOCKS)[:lines, :blocks]


def scales_of(values: npt.NDArray[Any], block: BlockScale, largest: float) -> npt.NDArray[Any]:
    """Scales, as elements of their type, that bring the blocks of values (lines, k) into [-largest, largest]: float32 quotients of their
    largest magnitudes, or the power of two above; 1 for blocks of zeros. Infinities and NaN do not count."""
    import numpy as np

    lines, k = values.shape
    rows, columns = ceil_div(lines, block.lines), ceil_div(k, block.k)
    full = np.zeros((rows * block.lines, columns * block.k), np.float32)
    full[:lines, :k] = np.where(np.isfinite(values), np.abs(values), 0)
    amax = full.reshape(rows, block.lines, columns, block.k).max(axis=(1, 3))
    quotient = np.where(amax > 0, amax / np.float32(largest), np.float32(1)).astype(np.float32)
    if block.type == "f32":
        return np.maximum(quotient, np.finfo(np.float32).tiny)
    return to_elements(block.type, quotient)


def numbers_of(block: BlockScale, elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Scales as numbers."""
    return to_numbers(block.type, elements)
