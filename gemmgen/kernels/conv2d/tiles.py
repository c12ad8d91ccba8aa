"""Maps of threads to copies: the tiles of a step in shared memory, the fragments read from them, and the exchange at the end.

All functions are pure. An operand's *rows* are pixels or output channels. A tile holds, for each plane (32 input channels of
one filter tap), two vectors of 16 bytes a row, which swap places in every other group of four rows: the eight rows of one
16-byte column that ``ldmatrix`` reads at a time then lie in different banks, and so do eight vectors stored side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmgen.hardware.shared_memory import WARP, SharedAccessCost, shared_access_cost

CHANNELS = 32
"""Channels that lie side by side in NCHW32."""
VECTOR_BYTES = 16
ROW_BYTES = 32
BLOCK = 8
"""Rows and columns of a block of accumulators: a matrix of ``ldmatrix``, a quarter of a row of 32 channels."""


def vector_offset(row: int, half: int) -> int:
    """Byte offset within a plane of one half (0 or 1) of a row."""
    return row * ROW_BYTES + (half ^ (row // 4 % 2)) * VECTOR_BYTES


@dataclass(frozen=True)
class OperandTile:
    """Division of one operand's tile among the threads of a block: each copies one half of the same rows in some of the planes."""

    rows: int
    planes: int
    threads: int

    @property
    def threads_per_plane(self) -> int:
        """Threads that copy a plane."""
        return min(self.threads, 2 * self.rows)

    @property
    def planes_apart(self) -> int:
        """From one of a thread's planes to its next: the number of planes that are copied at a time."""
        return max(1, self.threads // (2 * self.rows))

    @property
    def taps_period(self) -> str:
        """Whole rounds through the taps of the filter that are no fewer than the planes copied at a time, as an expression."""
        apart = self.planes_apart
        return f"(filter_taps + {apart - 1}) / filter_taps * filter_taps" if apart > 1 else "filter_taps"

    @property
    def rows_per_pass(self) -> int:
        return self.threads_per_plane // 2

    @property
    def passes(self) -> int:
        """Rows that a thread copies in each of its planes."""
        return self.rows // self.rows_per_pass

    @property
    def thread_planes(self) -> int:
        """Planes that a thread takes part in."""
        return self.planes // self.planes_apart

    @property
    def plane_bytes(self) -> int:
        return self.rows * ROW_BYTES

    @property
    def bytes(self) -> int:
        return self.planes * self.plane_bytes

    @property
    def is_even(self) -> bool:
        """True if every thread has the same number of vectors, in rows whose order within four it keeps."""
        return (
            2 * self.rows % self.threads_per_plane == 0
            and self.threads % self.threads_per_plane == 0
            and self.planes % self.planes_apart == 0
            and self.rows_per_pass % BLOCK == 0
        )

    def vector(self, thread: int, plane: int, a_pass: int) -> tuple[int, int, int]:
        """Plane, row and half of the vector that ``thread`` copies in its ``plane``-th plane and ``a_pass``-th pass."""
        first_plane, within = divmod(thread, self.threads_per_plane)
        return first_plane + plane * self.planes_apart, within // 2 + a_pass * self.rows_per_pass, within % 2

    def store_cost(self) -> SharedAccessCost:
        """Cost of one warp's store of its vectors in one pass; the other passes and warps differ by whole groups of rows."""
        offsets = [vector_offset(row, half) for _, row, half in (self.vector(lane, 0, 0) for lane in range(WARP))]
        return shared_access_cost(offsets, VECTOR_BYTES, store=True)


def fragment_vector(lane: int, blocks_first: bool) -> tuple[int, int]:
    """Row (of 16) and half of the vector that ``lane`` points at for ``ldmatrix.x4``.

    Each eight lanes point at one matrix: both halves of 8 rows, then of the next 8; or, ``blocks_first``, the first halves of
    16 rows and then the second, as m16n8k32 takes its rows.
    """
    matrix, row = divmod(lane, BLOCK)
    block, half = (matrix % 2, matrix // 2) if blocks_first else (matrix // 2, matrix % 2)
    return block * BLOCK + row, half


def fragment_cost(blocks_first: bool) -> SharedAccessCost:
    """Cost of one ``ldmatrix.x4``: each of its four matrices is read like a group of eight lanes' 16-byte vectors."""
    offsets = [vector_offset(*fragment_vector(lane, blocks_first)) for lane in range(WARP)]
    return shared_access_cost(offsets, VECTOR_BYTES, store=True)


@dataclass(frozen=True)
class LaneOutput:
    """Results of each 8 pixels x 32 channels that a lane stores."""

    pixels: int
    channels: int
    """Channels of a pixel, in groups of four consecutive ones."""
    quads_apart: int
    """Channels from one group to the next."""
    lane_stride: int
    """Channels from one lane's first to that of the next lane that stores the same pixels."""
    pixel_text: str
    """The first pixel, as a C expression over ``lane``."""
    channel_text: str
    """The first channel."""

    @property
    def quads(self) -> int:
        """Groups of four channels."""
        return self.channels // 4

    @property
    def quad_step(self) -> int:
        """Groups from one of a lane's to the next."""
        return self.quads_apart // 4

    @property
    def lanes_per_pixel(self) -> int:
        """Lanes that share the 32 channels of a pixel."""
        return CHANNELS // self.channels


OCTETS = LaneOutput(1, 8, 4, 8, "lane / 4", "lane % 4 * kLaneChannels")
"""A warp stores 8 consecutive channels a lane and 8 pixels: 256 consecutive bytes of int8 in NCHW32."""
PAIRS = LaneOutput(1, 8, 16, 4, "lane / 4", "lane % 4 * 4")
"""Twice four channels: with 4 bytes each, four lanes store 64 consecutive bytes at a time."""
QUADS = LaneOutput(2, 4, 4, 4, "lane % 4 * 2", "lane / 4 * kLaneChannels")
"""Layout with channels as the rows of the GEMM, without an exchange: 4 channels a lane, 32 consecutive bytes of int8 a pixel."""


def accumulator(lane: int, element: int) -> tuple[int, int]:
    """Row and column, within its block of 8 x 8, of the result that ``lane`` holds as ``element`` (0 or 1)."""
    return lane // 4, lane % 4 * 2 + element


EXCHANGE_BYTES = BLOCK * CHANNELS * 4
"""Shared memory through which a warp exchanges the results of 8 pixels x 32 channels."""


def exchange_offset(pixel: int, channel: int, channels_are_rows: bool, lane: LaneOutput) -> int:
    """Byte offset in the exchange of one int32: groups of four channels are permuted from pixel to pixel.

    The writing lanes differ in which pixels they hold, the reading ones in which channels they want, so that the permutation
    depends on both.
    """
    if channels_are_rows:
        swizzle = pixel if lane.quads_apart == 4 else (pixel // 2 ^ pixel % 2 * 2) * 2
    else:
        swizzle = (2 * pixel + pixel % 2) % 8 if lane.quads_apart == 4 else pixel % 2 * 4 + pixel // 2 % 2 * 2
    return (pixel * CHANNELS + (channel // 4 ^ swizzle) * 4 + channel % 4) * 4


def exchange_swizzle(channels_are_rows: bool, lane: LaneOutput) -> str:
    """The permutation of ``exchange_offset`` as a C expression over ``pixel``."""
    if channels_are_rows:
        return "pixel" if lane.quads_apart == 4 else "(pixel / 2 ^ pixel % 2 * 2) * 2"
    return "(2 * pixel + pixel % 2) % (kLayoutChannels / kGroup)" if lane.quads_apart == 4 else "pixel % 2 * 4 + pixel / 2 % 2 * 2"


Place = tuple[int, int]
"""Pixel and channel of one result."""


def exchange_places(channels_are_rows: bool, lane: LaneOutput) -> tuple[list[list[Place]], list[list[Place]]]:
    """The first result that each lane writes, for each of a warp's stores in one exchange, and that it reads, for each load."""
    writes: list[list[Place]] = []
    for block in range(4):
        for element in (0, 1) if channels_are_rows else (0,):
            held = [accumulator(member, element) for member in range(WARP)]
            if channels_are_rows:
                writes.append([(column, block * BLOCK + row) for row, column in held])
            else:
                writes.append([(row, block * BLOCK + column) for row, column in held])
    reads = [[(member // 4, member % 4 * lane.lane_stride + quad * lane.quads_apart) for member in range(WARP)] for quad in (0, 1)]
    return writes, reads


def exchange_write_bytes(channels_are_rows: bool) -> int:
    """Bytes that a lane writes at a time: neighbouring columns of its accumulators if those are channels."""
    return 4 if channels_are_rows else 8


def exchange_costs(channels_are_rows: bool, lane: LaneOutput) -> tuple[SharedAccessCost, SharedAccessCost]:
    """Cost of all that a warp writes, and of all that it reads, in one exchange."""
    writes, reads = (
        [[exchange_offset(pixel, channel, channels_are_rows, lane) for pixel, channel in places] for places in accesses]
        for accesses in exchange_places(channels_are_rows, lane)
    )
    width = exchange_write_bytes(channels_are_rows)
    return (
        _sum([shared_access_cost(offsets, width, store=True) for offsets in writes]),
        _sum([shared_access_cost(offsets, VECTOR_BYTES, store=False) for offsets in reads]),
    )


def _sum(costs: Sequence[SharedAccessCost]) -> SharedAccessCost:
    return SharedAccessCost(sum(cost.wavefronts for cost in costs), sum(cost.conflicts for cost in costs))
