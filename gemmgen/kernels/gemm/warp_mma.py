"""GEMMs whose warps multiply fragments on tensor cores (``mma.sync``), from sm_80 on: what a spec's numbers come to, and why some cannot
work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import Reason
from gemmgen.core.formulas import ceil_div
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.gemm.reasons import thread_reasons
from gemmgen.kernels.gemm.spec import CacheHints, GemmSpec, MmaSyncMainloop
from gemmgen.kernels.gemm.tensor_core import BYTE_FLOATS, BYTE_INTEGERS, result_reasons, type_reasons
from gemmgen.kernels.matrix import Matrix

CHUNK_BYTES = 16
"""What one lane points at for ``ldmatrix``: a row of a matrix."""
BANKS_BYTES = 128
STEP_BYTES = 32
"""Bytes along k that one instruction multiplies."""
BLOCK_ROWS = 16
"""Rows of the result of one instruction."""
BLOCK_COLUMNS = 8
LEAST_ASYNC_BYTES = 4
"""The narrowest asynchronous copy."""
OTHER_REGISTERS = 40
"""Registers of a thread beside sums, fragments and what it copies; an estimate."""


@dataclass(frozen=True)
class WarpOperand:
    """A tile of A or B: as it lies in global memory, as it is copied, and as fragments are read from it."""

    name: Literal["A", "B"]
    axis: Literal["m", "n"]
    type: str
    k_major: bool
    """True if neighbours in global memory run along k; else along m or n."""
    extent: int
    """Rows of A, or columns of B, in a tile."""
    tile_k: int
    element_bytes: int
    vector: int
    """Elements of one copy."""
    is_async: bool
    threads: int
    own_extent: int
    """Rows or columns that a warp multiplies."""

    @property
    def suffix(self) -> str:
        return self.name.lower()

    @property
    def c_type(self) -> str:
        return ELEMENTS[self.type].c_type

    @property
    def shared_k_major(self) -> bool:
        """True if rows in shared memory run along k: ``ldmatrix`` turns around elements of 16 bits only, others on their way in."""
        return self.k_major or self.element_bytes != 2

    @property
    def turned(self) -> bool:
        """True if elements are turned around on their way to shared memory."""
        return self.shared_k_major and not self.k_major

    @property
    def rows(self) -> int:
        """Of the tile in global memory."""
        return self.extent if self.k_major else self.tile_k

    @property
    def length(self) -> int:
        """Of a row of the tile in global memory."""
        return self.tile_k if self.k_major else self.extent

    @property
    def vectors(self) -> int:
        """Copies that make up a row."""
        return self.length // self.vector

    @property
    def passes(self) -> int:
        """Copies of a thread."""
        return ceil_div(self.rows * self.vectors, self.threads)

    @property
    def advance(self) -> int:
        """Rows of the tile in global memory, or elements of them where they are turned around, from one copy of a thread to the next; 0
        if these do not lie on a line."""
        if self.checks_index:
            return 0
        if self.turned:
            return self.threads // self.rows * self.vector if self.threads % self.rows == 0 else 0
        return self.threads // self.vectors if self.threads % self.vectors == 0 else 0

    @property
    def checks_index(self) -> bool:
        """True if some threads copy less than others."""
        return self.rows * self.vectors % self.threads != 0

    @property
    def vector_bytes(self) -> int:
        return self.vector * self.element_bytes

    @property
    def pitch(self) -> int:
        """Bytes from one row in shared memory to the next."""
        return (self.tile_k if self.shared_k_major else self.extent) * self.element_bytes

    @property
    def tile_bytes(self) -> int:
        """Of one stage."""
        return self.extent * self.tile_k * self.element_bytes

    @property
    def mask(self) -> int:
        """Bits of a chunk's index that the swizzle changes."""
        return min(self.pitch, BANKS_BYTES) // CHUNK_BYTES - 1

    @property
    def group(self) -> int:
        """Rows that share 128 bytes, all banks: their chunks are permuted alike."""
        return max(1, BANKS_BYTES // self.pitch)

    @property
    def blocks(self) -> int:
        """Fragments of a warp along m or n."""
        return self.own_extent // (BLOCK_ROWS if self.name == "A" else BLOCK_COLUMNS)

    @property
    def held_registers(self) -> int:
        """Of a thread, for what it copies through registers."""
        return 0 if self.is_async else self.passes * ceil_div(self.vector_bytes, 4) * (4 if self.turned or self.vector == 1 else 1)

    @property
    def layout_text(self) -> str:
        return f"rows of {self.pitch} bytes along {'k' if self.shared_k_major else self.axis}, swizzled"


@dataclass(frozen=True)
class WarpLoop:
    """Numbers of a mainloop whose warps multiply fragments."""

    a: WarpOperand
    b: WarpOperand
    tile_m: int
    tile_n: int
    tile_k: int
    warp_m: int
    warp_n: int
    stages: int
    type_a: str
    type_b: str
    persistent_blocks: int
    min_blocks_per_sm: int
    block_rows: int = BLOCK_ROWS
    own_columns: str = "kWarpN"
    """The constant that says how many columns' sums a thread has a part of."""
    cluster_m: int = 1
    cluster_n: int = 1
    cluster_k: int = 1
    cluster_blocks: int = 1
    sharers: int = 1
    consumers: int = 1
    ping_pong: bool = False
    staging: None = None
    residual: bool = False
    promote_steps: int = 0

    @property
    def warps_m(self) -> int:
        return self.tile_m // self.warp_m

    @property
    def warps_n(self) -> int:
        return self.tile_n // self.warp_n

    @property
    def threads(self) -> int:
        return WARP_THREADS * self.warps_m * self.warps_n

    @property
    def accumulator(self) -> str:
        return "int" if self.type_a in BYTE_INTEGERS else "float"

    @property
    def instruction_k(self) -> int:
        """Values of k that one instruction multiplies."""
        return STEP_BYTES // self.a.element_bytes

    @property
    def instruction(self) -> str:
        a, b = ("tf32" if name == "f32" else name for name in (self.type_a, self.type_b))
        result = "s32" if self.accumulator == "int" else "f32"
        return f"mma.sync.aligned.m16n8k{self.instruction_k}.row.col.{result}.{a}.{b}.{result}"

    @property
    def unit(self) -> str:
        """Peak of a device that the products run at."""
        kinds = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "f16", "e5m2": "f16", "s8": "int8", "u8": "int8"}
        return f"{kinds[self.type_a]}_mma"

    @property
    def any_held(self) -> bool:
        """True if something is copied through registers."""
        return not (self.a.is_async and self.b.is_async)

    @property
    def any_async(self) -> bool:
        return self.a.is_async or self.b.is_async

    @property
    def sums(self) -> int:
        """Registers of a thread that hold sums."""
        return self.warp_m * self.warp_n // WARP_THREADS

    @property
    def estimated_registers(self) -> int:
        fragments = 4 * self.a.blocks + 2 * self.b.blocks
        return self.sums + fragments + self.a.held_registers + self.b.held_registers + OTHER_REGISTERS

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.a.tile_bytes + self.b.tile_bytes)


def warp_mma_loop(
    spec: GemmSpec, mainloop: MmaSyncMainloop, matrices: tuple[Matrix, Matrix, Matrix], architecture: Architecture, reasons: list[Reason]
) -> WarpLoop | None:
    """The loop, or None with what is wrong added to ``reasons``."""
    tile = mainloop.tile
    unfit = [
        *_architecture_reasons(spec, architecture),
        *type_reasons(spec),
        *_shape_reasons(mainloop, matrices, architecture),
        *_combination_reasons(spec),
    ]
    reasons += unfit
    if unfit:
        return None
    threads = WARP_THREADS * (tile.threadblock.m // tile.warp.m) * (tile.threadblock.n // tile.warp.n)
    operands = []
    for matrix, axis, extent, own in (
        (matrices[0], "m", tile.threadblock.m, tile.warp.m),
        (matrices[1], "n", tile.threadblock.n, tile.warp.n),
    ):
        k_major, size = matrix.contiguous == "k", matrix.element_bytes
        length = tile.threadblock.k if k_major else extent
        # Groups begin at any row: where rows are neighbours in memory, nothing is known of the addresses of theirs.
        vector = 1 if spec.batch == "grouped" and axis == "m" and not k_major else matrix.alignment
        while length % vector:
            vector //= 2
        turned = not k_major and size != 2
        is_async = mainloop.copies == "cp_async" and not turned and vector * size >= LEAST_ASYNC_BYTES
        operands.append(
            WarpOperand(matrix.name, axis, matrix.type, k_major, extent, tile.threadblock.k, size, vector, is_async, threads, own)  # type: ignore[arg-type]
        )
    loop = WarpLoop(
        a=operands[0],
        b=operands[1],
        tile_m=tile.threadblock.m,
        tile_n=tile.threadblock.n,
        tile_k=tile.threadblock.k,
        warp_m=tile.warp.m,
        warp_n=tile.warp.n,
        stages=mainloop.stages,
        type_a=matrices[0].type,
        type_b=matrices[1].type,
        persistent_blocks=mainloop.persistent_blocks,
        min_blocks_per_sm=mainloop.min_blocks_per_sm,
    )
    reasons += _resource_reasons(loop, architecture)
    return loop


def _architecture_reasons(spec: GemmSpec, architecture: Architecture) -> Iterator[Reason]:
    if not architecture.supports("cp_async"):
        got = f"mma_sync on {architecture.name}"
        yield Reason("mma_sync", "mainloop.strategy", got, "sm_80 or newer", "architecture: sm_80")
    if {spec.storage.a, spec.storage.b, spec.storage.c} & set(BYTE_FLOATS) and not architecture.supports("fp8_mma"):
        yield Reason("storage", "storage", f"8-bit floats on {architecture.name}", "sm_89 or newer", "architecture: sm_89")


def _shape_reasons(mainloop: MmaSyncMainloop, matrices: tuple[Matrix, Matrix, Matrix], architecture: Architecture) -> Iterator[Reason]:
    block, warp = mainloop.tile.threadblock, mainloop.tile.warp
    for axis in ("m", "n"):
        whole, own = getattr(block, axis), getattr(warp, axis)
        if own % BLOCK_ROWS or whole % own:
            need = f"a multiple of {BLOCK_ROWS} that divides {whole}"
            yield Reason("warp_tile", f"mainloop.tile.warp.{axis}", str(own), need)
    yield from thread_reasons(WARP_THREADS * (block.m // warp.m) * (block.n // warp.n), architecture, "mainloop.tile")
    for matrix, axis, extent in ((matrices[0], "m", block.m), (matrices[1], "n", block.n)):
        size = matrix.element_bytes
        along_k = matrix.contiguous == "k" or size != 2
        for field, length, used in (("k", block.k, along_k), (axis, extent, not along_k)):
            row = length * size
            if field == "k" and row % STEP_BYTES:
                yield Reason("tile_k", "mainloop.tile.threadblock.k", str(length), f"a multiple of {STEP_BYTES // size} for {matrix.type}")
            elif used and row not in (32, 64) and row % BANKS_BYTES:
                need = (
                    f"{32 // size}, {64 // size} or a multiple of {BANKS_BYTES // size}: rows of a tile of {matrix.name} in shared memory"
                )
                yield Reason("tile", f"mainloop.tile.threadblock.{field}", str(length), need)


def _combination_reasons(spec: GemmSpec) -> Iterator[Reason]:
    decomposition = spec.decomposition
    if decomposition.scheme not in ("data_parallel", "split_k_parallel"):
        yield Reason("decomposition", "decomposition.scheme", decomposition.scheme, "data_parallel or split_k_parallel for mma_sync")
    yield from result_reasons(spec)
    if spec.store != "direct":
        yield Reason("store", "store", spec.store, "direct for mma_sync")
    if spec.cache != CacheHints():
        yield Reason("cache", "cache", "hints", "none for mma_sync")


def _resource_reasons(loop: WarpLoop, architecture: Architecture) -> Iterator[Reason]:
    blocks = loop.min_blocks_per_sm
    limit = min(architecture.registers_per_thread, architecture.registers_per_sm // (blocks * loop.threads) // 8 * 8)
    several = f"{blocks} block{'s' if blocks > 1 else ''}"
    if loop.sums + OTHER_REGISTERS > limit:
        got = f"{loop.sums} sums and about {OTHER_REGISTERS} other registers a thread"
        need = f"at most {limit} registers for {several} of {loop.threads} threads on an SM"
        yield Reason("registers", "mainloop.tile", got, need, "a smaller warp tile, or fewer blocks")
    room = architecture.shared_bytes_per_sm // blocks - architecture.reserved_shared_bytes_per_block
    if loop.shared_bytes > room:
        need = f"at most {room} for {several} on an SM of {architecture.name}"
        yield Reason(
            "shared_memory", "mainloop.stages", f"{loop.shared_bytes} bytes of shared memory", need, "fewer stages or a smaller tile"
        )


def warp_mma_regions(loop: WarpLoop) -> tuple[SharedRegion, ...]:
    """Shared memory of a block: the stages' tiles of A, then those of B."""
    regions: list[SharedRegion] = []
    for operand in (loop.a, loop.b):
        offset = regions[-1].offset + regions[-1].bytes if regions else 0
        rows = operand.tile_bytes // operand.pitch
        along = "k" if operand.shared_k_major else operand.axis
        meaning = f"tiles of {operand.name}, [stage][{operand.axis if operand.shared_k_major else 'k'}][{along}], swizzled"
        shape = (loop.stages, rows, operand.pitch // operand.element_bytes)
        regions.append(SharedRegion(f"tiles_{operand.suffix}", operand.c_type, shape, offset, loop.stages * operand.tile_bytes, meaning))
    return tuple(regions)
