"""The mainloop of a convolution whose warpgroups multiply tiles in shared memory, in numbers, and its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import Reason
from gemmgen.core.formulas import ceil_div
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.conv2d.problem import fixed_parameters
from gemmgen.kernels.conv2d.results import FinishingPlan
from gemmgen.kernels.math.tensor_memory import PAIRS
from gemmgen.kernels.math.warpgroup import BLOCK_ROWS, WARPGROUP, WarpgroupLoop
from gemmgen.kernels.tiles.resources import ResidentBlocks

SCHEDULERS = 4
"""Schedulers of an SM."""
ROW_CHANNELS = BLOCK_ROWS
"""Output channels that the results of one matrix instruction have: its rows."""
SUM_BYTES = 4
"""Bytes of an int32 or a float32."""
SWIZZLE_BYTES = 128
"""Bytes of rows of shared memory whose vectors are permuted alike: all banks."""
WARP_ROWS = 16
"""Rows of a matrix instruction that one warp has."""
BLOCKS_OF_A_MAP = 16
"""Blocks of 32 channels that offsets reach in one tensor map."""


@dataclass(frozen=True)
class PixelLoop(WarpgroupLoop):
    """A mainloop whose rows (A) are output channels, and whose columns (B) are pixels; with ``pixel_rows`` the other way round, while A is
    still the filter.

    ``tile_m`` counts channels of a threadblock, ``tile_n`` pixels of a consumer, which are those of an instruction.
    """

    division: Literal["channels", "pixels"] = "channels"
    vectors: bool = False
    """True if a group of threads copies x, in vectors of 16 bytes."""
    pixel_rows: int = 0
    """Pixels of a threadblock where rows are pixels, and columns (``tile_n``) output channels; else 0."""
    pair: bool = False
    """True if two blocks multiply together, with other channels and the same pixels (``tcgen05``)."""

    @property
    def blocks_m(self) -> int:
        if self.pixel_rows:
            return self.pixel_rows // BLOCK_ROWS // self.consumers
        return self.tile_m // BLOCK_ROWS // (self.consumers if self.division == "channels" else 1)

    @property
    def tile_bytes_b(self) -> int:
        """Shared memory of the pixels that one group multiplies, where each has its own."""
        return (self.blocks_m * BLOCK_ROWS if self.pixel_rows else self.tile_n) * self.b.row_bytes

    @property
    def threads(self) -> int:
        """Threads of the consumers, and a warp that copies, or a group."""
        return WARPGROUP * self.consumers + (WARPGROUP if self.vectors else WARP_THREADS)

    @property
    def operand_of_rows(self) -> str:
        return "B" if self.pixel_rows else "A"

    @property
    def copied_by_threads(self) -> bool:
        return self.vectors

    @property
    def row_vectors(self) -> int:
        """Vectors of 16 bytes in a row of x in shared memory."""
        return self.b.row_bytes // 16

    def registers_at_once(self, of_sm: int) -> int:
        """Registers that a thread may have: each scheduler has a quarter of an SM's, and its share of the warps, rounded up."""
        warps = ceil_div(self.min_blocks_per_sm * self.threads // WARP_THREADS, SCHEDULERS)
        return of_sm // SCHEDULERS // warps // WARP_THREADS // 8 * 8

    @property
    def copied_together(self) -> int:
        """Vectors that a thread copies at a time: four, or two where a tile has few pixels."""
        return 4 if self.tile_pixels * self.row_vectors // WARPGROUP % 4 == 0 else 2

    @property
    def finished_pixels(self) -> str:
        """The constant that says how many pixels' results are finished at a time."""
        return "kTileN"

    @property
    def channel_block(self) -> str:
        """The expression of a result's block of 64 channels."""
        return "block"

    @property
    def sixteen_channels(self) -> str:
        """The expression of a result's 16 channels in such a block."""
        return "warp"

    @property
    def channels_of_block(self) -> str:
        """The constant that says how many channels such a block has."""
        return "kInstructionM"

    @property
    def sums_bytes(self) -> int:
        return (self.cluster_k - 1) * self.tile_m * self.tile_pixels * SUM_BYTES

    @property
    def sums_over_tiles(self) -> bool:
        """True if the sums of a cluster's other blocks take the place of the tiles, once no block reads these any more."""
        return self.pixel_rows > 0 and self.cluster_k > 1

    @property
    def tile_pixels(self) -> int:
        """Pixels of a threadblock."""
        return self.pixel_rows or self.tile_n * (self.consumers if self.division == "pixels" else 1)


@dataclass(frozen=True)
class StagedOutput:
    """Shared memory in which a consumer collects results for TMA: rows of pixels, of some channels each."""

    pixels: int
    blocks: int
    """Blocks of 64 channels, one behind the other."""
    element_bytes: int
    row_channels: int
    """Channels of a row in shared memory."""
    buffers: int
    """Tiles of results that have room at a time."""

    @property
    def row_bytes(self) -> int:
        """Length of a row, which the swizzle spans."""
        return self.row_channels * self.element_bytes

    @property
    def rows_alike(self) -> int:
        """Rows that fill all banks together, and are permuted alike."""
        return SWIZZLE_BYTES // self.row_bytes

    @property
    def row_vectors(self) -> int:
        """Vectors of 16 bytes in a row."""
        return self.row_bytes // 16

    @property
    def vector_channels(self) -> int:
        """Channels of a vector of 16 bytes."""
        return 16 // self.element_bytes

    @property
    def other_buffers(self) -> int:
        """Tiles of results that may still be read while one is written."""
        return self.buffers - 1

    @property
    def rows(self) -> int:
        """Rows side by side that hold the 64 channels of a block."""
        return ROW_CHANNELS // self.row_channels

    @property
    def row_part_bytes(self) -> int:
        """From the first of them to the second, of all pixels."""
        return self.pixels * self.row_bytes

    @property
    def block_bytes(self) -> int:
        return self.rows * self.row_part_bytes

    @property
    def buffer_bytes(self) -> int:
        return self.blocks * self.block_bytes

    @property
    def group_bytes(self) -> int:
        return self.buffers * self.buffer_bytes

    @property
    def box(self) -> tuple[int, int]:
        return self.row_channels, self.pixels


@dataclass(frozen=True)
class StagedRows:
    """Shared memory in which each warp of a consumer collects results of 16 pixels, rows of all channels of the tile."""

    channels: int
    element_bytes: int
    buffers: int = 1

    @property
    def vectors(self) -> int:
        """Vectors of 16 bytes of a pixel."""
        return self.channels * self.element_bytes // 16

    @property
    def pitch(self) -> int:
        """Bytes from a pixel to the next: an odd number of vectors, so that eight pixels are in separate banks."""
        return 16 * (self.vectors | 1)

    @property
    def warp_bytes(self) -> int:
        return WARP_ROWS * self.pitch

    @property
    def group_bytes(self) -> int:
        return BLOCK_ROWS // WARP_ROWS * self.warp_bytes


@dataclass(frozen=True)
class WarpgroupPlan(FinishingPlan):
    """A convolution instance on ``wgmma``."""

    loop: PixelLoop
    staged: StagedOutput | StagedRows | None
    """None: results are stored from registers."""
    walks: bool
    """True if copies of x walk through images; else they take rows of a matrix."""
    taps: int
    """Filter taps of a step, which share its pixels: 1, or all of a row of the filter."""
    pixel_maps: int
    """Tensor maps of x: of NCHW32, each has some blocks of 32 channels."""
    bordered: bool
    """True if the zero point's contribution depends on the filter taps that lie within the image."""

    @property
    def groups(self) -> int:
        """Groups of channels."""
        return fixed_parameters(self.spec)["groups"]

    @property
    def inputs(self) -> str:
        """The number of input channels of a sum, as the kernel writes it."""
        return self.v["c"] if self.groups == 1 else f"({self.v['c']} / {self.groups})"

    @property
    def bits_not_confirmed(self) -> tuple[str, ...]:
        return (PAIRS,) if self.loop.pair and self.loop.accumulator != "int" else ()

    @property
    def blocks_of_a_map(self) -> int:
        """Blocks of 32 channels that a tensor map of x has at most."""
        return BLOCKS_OF_A_MAP

    @property
    def pixel_box(self) -> str:
        """Ending of the name of the function that copies pixels of x."""
        if self.spec.input.layout == "nchw32":
            return "_block_pixels"
        return "_pixels" if self.walks else "_box_2d"

    @property
    def result_form(self) -> str:
        """Form in which threads give results away: ``bytes`` or ``halves`` to shared memory, ``elements`` to y."""
        if self.staged is None:
            return "elements"
        return "bytes" if self.staged.element_bytes == 1 else "halves"

    @property
    def warnings(self) -> tuple[Reason, ...]:
        """An estimate of registers that exceeds the limit per thread."""
        resident = ResidentBlocks(self.architecture, self.loop.min_blocks_per_sm, self.threads)
        limit = min(self.architecture.registers_per_thread, self.loop.registers_at_once(self.architecture.registers_per_sm))
        return resident.few_registers(self.loop.estimated_registers, limit, "mainloop.tile")

    @property
    def threads(self) -> int:
        return self.loop.threads

    @property
    def accumulator(self) -> str:
        return self.loop.accumulator

    @property
    def whole_tiles(self) -> bool:
        """True if every tile is known to have all its output channels."""
        k = self.spec.convolution.k
        return isinstance(k, int) and k % (self.loop.tile_m * self.loop.cluster_m) == 0

    @property
    def boxes(self) -> bool:
        """True if TMA stores results."""
        return bool(self.spec.store == "tma")

    @property
    def windows(self) -> bool:
        """True if the taps of a row of the filter share pixels."""
        return self.taps > 1

    @property
    def neighbours(self) -> bool:
        """True if the two rows of a thread are neighbouring channels; else they lie eight apart."""
        return self.filter_order in ("neighbours", "filled_neighbours")

    @property
    def output_bytes(self) -> int:
        return ELEMENTS[self.output.type].bytes
