"""The mainloop of warpgroups that multiply tiles in shared memory (``wgmma``), in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from gemmgen.hardware.target import WARP_THREADS

SPAN_BYTES = 128
"""Length of a row of a tile in shared memory: the span of the 128-byte swizzle."""
BLOCK_ROWS = 64
"""Rows of the result of one matrix instruction."""
GROUP_ROWS = 8
"""Rows that one period of the swizzle covers."""
INTEGER_COLUMNS = frozenset({8, 16, 24, *range(32, 257, 16)})
"""Values of an instruction's n for integers (PTX ISA, wgmma.mma_async); for others it is any multiple of 8 up to 256."""
WARPGROUP = 128
WARPS = 4
INSTRUCTION_BYTES = 32
"""Bytes along k that one instruction reads of a row."""
BARRIER_BYTES = 8
METADATA_K = 64
"""Values of k whose metadata a lane holds in one register, for one row, or of 16-bit elements for a half of them of two rows."""
METADATA_BYTES = 4
METADATA_ALIGNMENT = 1024
"""Bytes that shared memory behind metadata is aligned to."""
TICKETS = 4
"""Pieces of work that a producer may be ahead of its consumers, where a counter deals them out."""
TICKET_BYTES = 4
OTHER_REGISTERS = 28
"""Registers of a consumer beside its sums, for descriptors, counters and coordinates; an estimate."""


@dataclass(frozen=True)
class WarpgroupOperand:
    """A tile of A or B as boxes bring it to shared memory, and as matrix instructions read it there."""

    name: Literal["A", "B"]
    axis: Literal["m", "n"]
    k_major: bool
    """True if rows of 128 bytes run along k; else along m or n."""
    extent: int
    """Rows of A, or columns of B, in a tile."""
    tile_k: int
    element_bytes: int
    blocks: int
    """Blocks of the cluster that share the tile; each copies an equal part of it to all."""
    planes: int = 1
    """Tiles of a stage, one behind the other, that hold parts of the same numbers."""
    row_bytes: int = SPAN_BYTES
    """Length of a row in shared memory, which the swizzle spans: 32, 64 or 128."""
    pieces: int = 1
    """Boxes of a tile, one below the other, of which only those are copied whose rows are of use."""
    sources: int = 1
    """Matrices of which the tile holds an equal part each, one behind the other along m or n."""
    step_bytes: int = INSTRUCTION_BYTES
    """Bytes along k that one instruction reads of a row."""

    @property
    def suffix(self) -> str:
        return self.name.lower()

    @property
    def tile_bytes(self) -> int:
        """Bytes of one stage."""
        return self.planes * self.plane_bytes

    @property
    def plane_bytes(self) -> int:
        """Bytes of one stage and one plane."""
        return self.extent * self.tile_k * self.element_bytes

    @property
    def span_elements(self) -> int:
        """Elements of a row in shared memory."""
        return self.row_bytes // self.element_bytes

    @property
    def spans(self) -> int:
        """Rows of ``row_bytes``, one behind the other in memory, that hold the stage's part of k."""
        return self.tile_k // self.span_elements

    @property
    def span_bytes(self) -> int:
        """From one of them to the next."""
        return self.extent * self.row_bytes

    @property
    def box_rows(self) -> int:
        """Rows of a box: of those of the tile, this block's part; or all of k."""
        return self.source_extent // self.blocks // self.pieces if self.k_major else self.tile_k

    @property
    def source_extent(self) -> int:
        """Rows or columns of the tile that one matrix has."""
        return self.extent // self.sources

    @property
    def source_bytes(self) -> int:
        """Bytes from the tile's part of one matrix to that of the next."""
        return self.part_offset(self.source_extent)

    @property
    def box(self) -> tuple[int, int]:
        """Extents of a box in elements, the contiguous one first."""
        return self.span_elements, self.box_rows

    @property
    def parts(self) -> int:
        """Boxes side by side along m or n that this block copies, where these run along the rows."""
        return self.source_extent // self.span_elements // self.blocks

    @property
    def boxes(self) -> int:
        """Boxes side by side that this block copies of a tile, or of a group's rows of one."""
        return self.spans if self.k_major else self.parts

    @property
    def box_pitch_bytes(self) -> int:
        """From one of them to the next in shared memory."""
        return self.span_bytes if self.k_major else self.part_bytes

    @property
    def own_elements(self) -> int:
        """Rows, or elements along m or n, that this block copies to all of its cluster."""
        return self.box_rows if self.k_major else self.block_part

    @property
    def own_bytes(self) -> int:
        """Shared memory of them."""
        return self.box_bytes if self.k_major else self.block_part_bytes

    @property
    def box_bytes(self) -> int:
        """Shared memory of a box."""
        return self.box_rows * self.row_bytes

    @property
    def part_bytes(self) -> int:
        """From one of them to the next."""
        return self.tile_k * self.row_bytes

    @property
    def block_part(self) -> int:
        """Elements along m or n that this block copies, where these run along the rows."""
        return self.parts * self.span_elements

    @property
    def block_part_bytes(self) -> int:
        """Shared memory of them."""
        return self.parts * self.part_bytes

    @property
    def block_bytes(self) -> int:
        """From the rows of one instruction to those of the next."""
        return BLOCK_ROWS * self.row_bytes if self.k_major else BLOCK_ROWS // self.span_elements * self.part_bytes

    @property
    def steps_in_row(self) -> int:
        """Instructions along k that find their part in one row, where it takes several rows to hold a stage's; else 1."""
        return self.row_bytes // self.step_bytes if self.k_major and self.spans > 1 else 1

    @property
    def k_step_bytes(self) -> int:
        """From one instruction along k to the next: within a row, or from some rows to the next."""
        if not self.k_major:
            return self.step_bytes // self.element_bytes * self.row_bytes
        return self.span_bytes if self.spans > 1 and self.steps_in_row == 1 else self.step_bytes

    def part_offset(self, columns: int) -> int:
        """Bytes from some of B's columns to as many next to them."""
        return columns * self.row_bytes if self.k_major else columns // self.span_elements * self.part_bytes

    @property
    def stride_bytes(self) -> int:
        """Stride byte offset of a descriptor: eight rows."""
        return GROUP_ROWS * self.row_bytes

    @property
    def leading_bytes(self) -> int:
        """Leading byte offset of a descriptor: from one box to the next along m or n; ignored where rows run along k."""
        return 16 if self.k_major else self.part_bytes


TRANSPOSED_BYTES = 2, 4
"""Sizes of elements of column-major results that TMA stores: 64 or 32 rows of a tile are 128 bytes of a box."""
TRANSPOSED_COLUMNS = 32
"""Columns of results that a warp transposes at a time: one for each lane."""


@dataclass(frozen=True)
class Staging:
    """Shared memory in which a warpgroup collects results for TMA."""

    columns: int
    """Columns of one box: 128 bytes."""
    buffers: int
    matrices: bool
    """True if fragments are stored as matrices of 16-bit elements."""
    box_rows: int = 0
    """If results are stored transposed, rows of the tile in a box, 128 bytes: its columns are the rows of boxes. Else 0."""

    @property
    def paired(self) -> bool:
        """True if four matrices, of 16 columns, can be stored at a time."""
        return self.columns % 16 == 0

    @property
    def column_major(self) -> bool:
        return self.box_rows > 0

    @property
    def boxes(self) -> int:
        """Boxes of a buffer, below one another."""
        return BLOCK_ROWS // self.box_rows if self.column_major else 1

    @property
    def row_offsets(self) -> tuple[int, ...]:
        """First rows of the boxes that a block of rows is stored in."""
        return tuple(box * self.box_rows for box in range(self.boxes))

    @property
    def buffer_bytes(self) -> int:
        return (self.boxes * self.columns if self.column_major else BLOCK_ROWS) * SPAN_BYTES

    @property
    def group_bytes(self) -> int:
        return self.buffers * self.buffer_bytes

    @property
    def box(self) -> tuple[int, int]:
        return (self.box_rows, self.columns) if self.column_major else (self.columns, BLOCK_ROWS)


@lru_cache(maxsize=4096)
def plan_staging(tile_n: int, blocks: int, element_bytes: int, buffers: int, column_major: bool = False, parts: int = 1) -> Staging | None:
    """Boxes as wide as 128 bytes allow, that divide the tile evenly, and no more buffers than wanted, whose number divides that of
    the boxes, so that every tile begins with the first; None where no width fits. ``column_major``: of C; ``parts``: of a
    tile's columns, each of as many boxes."""
    if column_major and element_bytes not in TRANSPOSED_BYTES:
        return None
    least = max(8, 16 // element_bytes)
    widths = [width for width in range(least, SPAN_BYTES // element_bytes + 1, least) if tile_n % (width * parts) == 0]
    if not widths:
        return None
    boxes = blocks * (tile_n // widths[-1] // parts)
    count = max(divisor for divisor in range(1, buffers + 1) if boxes % divisor == 0)
    return Staging(widths[-1], count, matrices=element_bytes == 2, box_rows=SPAN_BYTES // element_bytes if column_major else 0)


class WarpgroupInstruction:
    """A matrix instruction of warpgroups as inline assembly."""

    type_a: str
    type_b: str
    instruction_n: int
    a_in_registers: bool
    sparse: bool = False
    """True if A is 2:4 sparse."""

    @property
    def accumulator(self) -> str:
        return "int" if self.type_a in ("s8", "u8") else "float"

    @property
    def instruction_k(self) -> int:
        """Values of k that one instruction multiplies, of a sparse A those that it holds."""
        raise NotImplementedError

    @property
    def instruction_depth(self) -> int:
        """Values of k that one instruction takes, those that a sparse A leaves out among them."""
        return self.instruction_k * (2 if self.sparse else 1)

    @property
    def transposed(self) -> tuple[bool, ...]:
        """For each factor of 16 bits in shared memory: True if its rows run along m or n."""
        raise NotImplementedError

    @property
    def instruction_name(self) -> str:
        return f"wgmma_m64n{self.instruction_n}k{self.instruction_depth}"

    @property
    def instruction(self) -> str:
        a, b = ("tf32" if name == "f32" else name for name in (self.type_a, self.type_b))
        result = "s32" if self.accumulator == "int" else "f32"
        kind = "wgmma.mma_async.sp" if self.sparse else "wgmma.mma_async"
        return f"{kind}.sync.aligned.m64n{self.instruction_n}k{self.instruction_depth}.{result}.{a}.{b}"

    @property
    def instruction_modifiers(self) -> str:
        """Modifiers of the operands: signs, and which operands are transposed."""
        if self.accumulator == "int":
            return ""
        transposed = "".join(f", {int(flag)}" for flag in self.transposed)
        return f", 1, 1{transposed}"

    @property
    def accumulator_registers(self) -> int:
        """Registers of a thread for the result of one instruction."""
        return self.instruction_n // 2

    @property
    def numbered_accumulators(self) -> tuple[str, ...]:
        """The accumulators as operands of inline assembly, 16 to a line."""
        names = [f"%{index}" for index in range(self.accumulator_registers)]
        return tuple(", ".join(names[first : first + 16]) for first in range(0, len(names), 16))

    def bound_accumulators(self, bound: str) -> str:
        """Constraints of inline assembly that bind the accumulators ``d``."""
        return ", ".join(f'"{bound}"(d[{index}])' for index in range(self.accumulator_registers))

    @property
    def operand_numbers(self) -> tuple[str, int, tuple[int, ...], int]:
        """The operands of inline assembly behind the accumulators: A, and the numbers of B, of metadata and their selector if A is sparse,
        and of the flag for adding."""
        first = self.accumulator_registers
        if self.sparse:
            return f"%{first}", first + 1, (first + 2, first + 3), first + 4
        if self.a_in_registers:
            return "{" + ", ".join(f"%{first + register}" for register in range(4)) + "}", first + 4, (), first + 5
        return f"%{first}", first + 1, (), first + 2


@dataclass(frozen=True)
class WarpgroupLoop(WarpgroupInstruction):
    """Numbers of a mainloop with a producer and up to three groups of consumers."""

    a: WarpgroupOperand
    b: WarpgroupOperand
    tile_m: int
    """Rows of the tile that a block computes at a time; in ping-pong, of a group's tile."""
    tile_n: int
    tile_k: int
    instruction_n: int
    """Columns of the result of one instruction."""
    stages: int
    consumers: int
    ping_pong: bool
    cluster_m: int
    cluster_n: int
    cluster_k: int
    """Blocks of a cluster that have a part of k each; one of them collects their sums."""
    type_a: str
    type_b: str
    staging: Staging | None
    promote_steps: int
    """Steps after which sums move to separate registers; 0: they stay in the accumulators."""
    registers: tuple[int, int] | None
    """Registers of a thread of the producer and of a consumer, where they are redistributed; None: all keep the number at launch."""
    persistent_blocks: int = 0
    """Blocks of the grid, which take tiles in turn; 0: as many as there are tiles."""
    min_blocks_per_sm: int = 1
    dynamic: bool = False
    """True if a counter deals the tiles out to the blocks."""
    a_in_registers: bool = False
    """True if matrix instructions read A from registers."""
    skips_rows: bool = False
    """True if groups of warps skip a tile in which none of their rows exists."""
    residual: bool = False
    """True if a residual comes through shared memory, to where its results are collected."""
    operand_boxes: int = 0
    """Boxes of a tile's rows, each of 128 bytes, in which stages bring an operand of the epilogue behind the tile's factors; 0: none."""
    last_operand_boxes: int = 0
    """Boxes in which stages bring an operand of the epilogue for a block's last tile alone, where groups take turns: as wide as those of
    its results, or of rows of 128 bytes; 0: none."""
    transposed_store: bool = False
    """True if a warp transposes its results in shared memory, so that its lanes store side by side."""
    column_bytes: int = 0
    """Shared memory of a group for the values for each column that the epilogue reads, of a tile; 0: it reads them where they are."""
    kept_sums: int = 0
    """Sets of sums beside those of float32 that a thread holds, where float32 is computed by planes."""
    unroll: str = ""
    """Argument of ``#pragma unroll`` at the loop over a stage's instructions along k: nothing, or a factor."""
    split_registers: int = 0
    """Fragments of planes of A that a thread holds for the rows of an instruction, where it splits A itself; else 0."""
    k_groups: int = 1
    """Groups that have the same rows, and every other part of k."""
    products: int = 1
    """Products of one tile of A by as many matrices, whose sums a thread holds side by side."""
    gathers: bool = False
    """True if the producer's threads copy gathered rows of A."""
    scale_bytes: int = 0
    """Shared memory of the block scales of a block of k."""
    scale_blocks: int = 1
    """Blocks of k of a stage."""
    scale_warps: int = 0
    """Warps of the producer that bring block scales."""
    scale_steps: int = 1
    """Steps whose block scales such a warp reads at a time."""
    product_sets: int = 1
    """Sets of products that a thread holds where sums are promoted: the next stage's are made while those of one are added."""
    scatters: bool = False
    """True if each block of a cluster along k collects the sums of every ``cluster_k``-th box of a tile's columns; else the first does."""
    staggered: bool = False
    """True if groups that share a tile start their instructions alternately, so that one's run while the other waits for its own."""
    sparse: bool = False
    """True if A is 2:4 sparse: its tiles hold half of the values along k, and metadata come with them."""
    ahead: int = 0
    """Tiles of a constant operand that the L2 fetches before the wait for earlier work, beside those that come to the stages."""

    @property
    def block_rows(self) -> int:
        """Rows of the result of one instruction."""
        return BLOCK_ROWS

    @property
    def own_columns(self) -> str:
        """The constant that says how many columns' sums a thread has a part of."""
        return "kTileN"

    @property
    def shares_tile(self) -> bool:
        """True if several groups multiply, each for its own rows of one tile."""
        return self.consumers > 1 and not self.ping_pong and self.k_groups == 1

    @property
    def blocks_m(self) -> int:
        """Rows of a group, in those of an instruction."""
        return self.tile_m // BLOCK_ROWS // (self.consumers if self.shares_tile else 1)

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.consumers)

    @property
    def cluster_blocks(self) -> int:
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def sharers(self) -> int:
        """Blocks that copy tiles for one another."""
        return self.cluster_m * self.cluster_n

    @property
    def operand_stages(self) -> int:
        """Stages of those boxes: each has one in place of a tile of A, and one in place of a tile of B."""
        return -(-(self.operand_boxes + self.last_operand_boxes) // 2)

    @property
    def unit(self) -> str:
        """Peak of a device that the products run at."""
        kinds = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "fp8", "e5m2": "fp8", "s8": "int8", "u8": "int8"}
        return f"{kinds[self.type_a]}_wgmma"

    @property
    def blocks_n(self) -> int:
        """Instructions side by side that make up a tile's columns."""
        return self.products * self.tile_n // self.instruction_n

    @property
    def instruction_k(self) -> int:
        """Values of k that one instruction multiplies, of a sparse A those that it holds."""
        return INSTRUCTION_BYTES // self.b.element_bytes

    @property
    def selectors(self) -> tuple[int, ...]:
        """Lanes of each four that hold the metadata of an instruction, for as many instructions as a register of metadata serves."""
        return tuple(range(METADATA_K // self.instruction_depth))

    @property
    def metadata_box(self) -> tuple[int, int]:
        """Words of metadata along k, and blocks of rows, of a stage."""
        return self.tile_k // METADATA_K * WARPGROUP, self.tile_m // BLOCK_ROWS

    @property
    def metadata_bytes(self) -> int:
        """Metadata of a stage."""
        words, blocks = self.metadata_box
        return METADATA_BYTES * words * blocks if self.sparse else 0

    @property
    def metadata_pitch(self) -> int:
        """Shared memory for them, so that the next array is aligned like tiles."""
        return -(-self.metadata_bytes // METADATA_ALIGNMENT) * METADATA_ALIGNMENT

    @property
    def transposed(self) -> tuple[bool, ...]:
        factors = (self.b,) if self.a_in_registers else (self.a, self.b)
        return tuple(not factor.k_major for factor in factors) if self.b.element_bytes == 2 else ()

    @property
    def mainloop(self) -> str:
        if self.kept_sums:
            return "multiply_planes"
        if self.a_in_registers:
            return "accumulate_from_registers"
        if self.promote_steps:
            return "promote"
        if self.sparse:
            return "accumulate_sparse" if len(self.selectors) > 1 else "accumulate_sparse_bytes"
        return "accumulate"

    @property
    def described(self) -> tuple[WarpgroupOperand, ...]:
        """Operands that instructions find by descriptors."""
        return (self.b,) if self.a_in_registers else (self.a, self.b)

    @property
    def shares_both(self) -> bool:
        """True if blocks of a cluster share tiles of A, and others tiles of B."""
        return self.cluster_m > 1 and self.cluster_n > 1

    @property
    def sharers_a(self) -> int:
        """The blocks of a cluster that share the tiles of A of its first, a bit for each: every ``cluster_m``-th."""
        return sum(1 << block * self.cluster_m for block in range(self.cluster_n))

    @property
    def sharers_b(self) -> int:
        """The blocks of a cluster that share the tiles of B of its first, a bit for each: those counted first, along m."""
        return (1 << self.cluster_m) - 1

    @property
    def all_blocks(self) -> int:
        """The blocks that share tiles, a bit for each."""
        return (1 << self.sharers) - 1

    def adds(self, later: str) -> str:
        """Expression for adding to the accumulators, where their sums are promoted; ``later``: true but for the first instruction
        of a stage."""
        return f"accumulate || {later}" if self.promote_steps > 1 else later

    @property
    def operand_of_rows(self) -> str:
        """The operand whose rows are those of the result."""
        return "A"

    @property
    def copied_by_threads(self) -> bool:
        """True if threads copy tiles, which the tensor cores see behind a fence."""
        return self.gathers

    @property
    def arrivals(self) -> int:
        """At the barrier of a stage that has been read: of each warp that reads it, in every block that gets it."""
        return WARPS * (1 if self.ping_pong else self.consumers) * self.sharers

    @property
    def barriers(self) -> int:
        """Two for each stage, one for each group's turn, one for each box of a residual that is in flight, and two for each ticket."""
        boxes = self.consumers * self.staging.buffers if self.residual and self.staging else 0
        return 2 * self.stages + (self.consumers if self.ping_pong else 0) + boxes + 2 * self.tickets

    @property
    def ticket_barrier(self) -> int:
        """Barriers before those of the tickets, of which each has two: it is there; and it is read."""
        return self.barriers - 2 * self.tickets

    @property
    def ticket_readers(self) -> int:
        """Warps that read the number of the next tile: those of the consumers, and those that bring block scales."""
        return self.consumer_warps + self.scale_warps

    @property
    def scale_threads(self) -> int:
        """Threads of the producer that bring block scales."""
        return self.scale_warps * WARP_THREADS

    @property
    def consumer_warps(self) -> int:
        """Warps that multiply."""
        return WARPS * self.consumers

    @property
    def group_bytes_a(self) -> int:
        """Shared memory of the rows of A that one group multiplies."""
        return self.blocks_m * self.a.block_bytes

    @property
    def tile_bytes_b(self) -> int:
        """Shared memory of the rows of B that one group multiplies, where each has its own."""
        return self.tile_n * self.b.row_bytes

    @property
    def tickets(self) -> int:
        """Places for the numbers of the pieces of work that the producer has drawn for its block."""
        return TICKETS if self.dynamic else 0

    @property
    def sums(self) -> int:
        """Registers of a thread that hold sums."""
        return (
            self.blocks_m
            * (self.products * self.tile_n * (1 + self.kept_sums) + (self.product_sets * self.instruction_n if self.promote_steps else 0))
            // 2
        )

    @property
    def estimated_registers(self) -> int:
        """Registers of a consumer's thread."""
        held = 4 * self.blocks_m * (self.split_registers or self.tile_k // self.instruction_k) if self.a_in_registers else 0
        return self.sums + held + OTHER_REGISTERS

    @property
    def sums_bytes(self) -> int:
        """Shared memory for the sums of a cluster's other blocks."""
        return (self.cluster_k - 1) * self.tile_m * self.tile_n * 4 // (self.cluster_k if self.scatters else 1)

    @property
    def extremes_bytes(self) -> int:
        """Shared memory for the extremes of the rows of A that a cluster's other blocks have split: two words for each."""
        return (self.cluster_k - 1) * self.tile_m * 8 if self.split_registers else 0

    @property
    def partial_chunk(self) -> bool:
        """True if the columns that a warp transposes at a time do not divide the tile evenly."""
        return self.tile_n % TRANSPOSED_COLUMNS != 0

    @property
    def transposed_bytes(self) -> int:
        """Shared memory of a group for results that are transposed at a time."""
        return BLOCK_ROWS * TRANSPOSED_COLUMNS * 4 if self.transposed_store else 0

    @property
    def shared_bytes(self) -> int:
        staging = (
            (self.staging.group_bytes + self.column_bytes) * self.consumers if self.staging else self.transposed_bytes * self.consumers
        )
        waiting = BARRIER_BYTES * self.barriers + TICKET_BYTES * self.tickets
        return (
            self.stages * (self.a.tile_bytes + self.b.tile_bytes + self.scale_blocks * self.scale_bytes + self.metadata_pitch)
            + staging
            + self.sums_bytes
            + self.extremes_bytes
            + waiting
        )
