"""The mainloop of a GEMM on tensor memory in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import Reason
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.gemm.plan import Outline
from gemmgen.kernels.gemm.scaling import TILE_BLOCKS, TILE_LINES
from gemmgen.kernels.gemm.spec import Arithmetic, CacheHints, GemmSpec, TensorMemoryMainloop
from gemmgen.kernels.gemm.tensor_cores.block_scaling import (
    DEEP,
    DEEP_STEP_BYTES,
    BlockScaling,
    block_scaling,
    packed_reasons,
    scale_kind_reasons,
)
from gemmgen.kernels.gemm.tensor_cores.operands import Multiplied
from gemmgen.kernels.gemm.tensor_cores.reasons import BYTE_INTEGERS, COPY_ALIGNMENT, box_store_reasons, result_reasons, type_reasons
from gemmgen.kernels.math.tensor_memory import (
    BUFFERS,
    COLUMNS,
    EPILOGUE_WARPS,
    KINDS,
    ROWS,
    TENSOR_COLUMNS,
    UNITS,
    WARPS,
    allocated_columns,
    instruction_form,
)
from gemmgen.kernels.math.warpgroup import BARRIER_BYTES, INSTRUCTION_BYTES, SPAN_BYTES, WarpgroupOperand
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.tiles.resources import ResidentBlocks

SCALED_COLUMNS = 128
"""Columns of a tile with block scales: two sets of sums and the scales share tensor memory."""
DEEP_STAGE_BYTES = math.lcm(DEEP_STEP_BYTES, SPAN_BYTES)
"""Bytes of k in whole instructions with k = 96 and whole rows of shared memory."""
WARP_ROWS = ROWS // EPILOGUE_WARPS
"""Rows of results that a warp finishes."""
STORE_BUFFERS = 2
"""Boxes of results that a warp has in shared memory, one of which TMA may still read."""
SCALE_TILE_BYTES = TILE_LINES * TILE_BLOCKS
SCALE_COLUMNS = 4
"""Columns of tensor memory that a tile of scales takes."""
ANSWERS = 2
"""Answers of the hardware's scheduler that a block holds."""
ANSWER_BYTES = 16
_SCALED_FORMATS = {"e4m3": 0, "e5m2": 1, "e2m1": 1}
"""Codes of types in an instruction descriptor with block scales."""


@dataclass(frozen=True)
class TensorMemoryLoop:
    """Numbers of a mainloop with a warp that copies, one that multiplies, and four that finish results."""

    a: WarpgroupOperand
    b: WarpgroupOperand
    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    type_a: str
    type_b: str
    persistent_blocks: int = 0
    pair: bool = False
    """True if two blocks multiply together."""
    dynamic: bool = False
    """True if blocks take over the tiles of those that wait to be launched."""
    scaled: BlockScaling | None = None
    """The block scales that instructions take."""
    box_columns: int = 0
    """Columns of results in a box that TMA stores; 0 where warps store them."""
    kept_sums: int = 0
    """Sets of sums, of a tile's columns each, for the smaller products of planes."""
    promote_steps: int = 0
    """Steps after which sums leave the accumulators: never."""
    shares_tile: bool = False
    direct: bool = False

    @property
    def accumulator(self) -> str:
        """The type of sums in registers."""
        return "int" if self.type_a in BYTE_INTEGERS and self.scaled is None else "float"

    @property
    def load_function(self) -> str:
        """The device function that loads sums from tensor memory."""
        return "load_tensor_integers" if self.accumulator == "int" else "load_tensor_columns"

    @property
    def own_columns(self) -> str:
        """The constant that says how many columns' sums a thread has a part of."""
        return "kTileN" if self.by_planes else "kColumns"

    @property
    def by_planes(self) -> bool:
        """True if A and B were split into planes of a smaller type."""
        return self.a.planes > 1

    @property
    def kind(self) -> str:
        """The kind of instruction."""
        return KINDS[self.type_a] if self.scaled is None else self.scaled.kind

    @property
    def unit(self) -> str:
        """Peak of a device that the products run at."""
        if self.scaled is not None:
            return "fp4_tcgen05" if self.scaled.packed else "fp8_tcgen05"
        return f"{UNITS[self.kind]}_tcgen05"

    @property
    def instruction_k(self) -> int:
        """Values of k that one instruction multiplies."""
        return INSTRUCTION_BYTES // self.a.element_bytes if self.scaled is None else self.scaled.step_bytes

    @property
    def instruction_depth(self) -> int:
        """Values of k that one instruction multiplies, two a byte if they are of 4 bits."""
        return self.instruction_k * (2 if self.packed else 1)

    @property
    def blocks(self) -> int:
        """Blocks that multiply together."""
        return 2 if self.pair else 1

    @property
    def form(self) -> int:
        """The instruction descriptor: types, majors and sizes."""
        if (scaled := self.scaled) is not None:
            types = _SCALED_FORMATS[scaled.type_a] << 7 | _SCALED_FORMATS[scaled.type_b] << 10
            types |= scaled.deep << 31
            return types | self.tile_n >> 3 << 17 | (scaled.scale_type == "ue8m0") << 23 | ROWS * self.blocks >> 7 << 27
        majors = {"along_m": not self.a.k_major, "along_n": not self.b.k_major}
        return instruction_form(self.type_a, self.type_b, ROWS * self.blocks, self.tile_n, **majors)

    @property
    def form_text(self) -> str:
        """The instruction descriptor as CUDA writes it."""
        return f"0x{self.form:08x}u"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (WARPS + self.dynamic)

    @property
    def tensor_columns(self) -> int:
        """Columns of tensor memory that a block allocates: a power of two."""
        return allocated_columns((BUFFERS + self.kept_sums) * self.tile_n + 2 * self.scale_words * SCALE_COLUMNS)

    @property
    def deep(self) -> bool:
        """True if an instruction multiplies 96 values of k, whose 48 bytes of a row may continue in the next part of a tile."""
        return self.scaled is not None and self.scaled.deep

    @property
    def packed(self) -> bool:
        """True if a byte of A or B holds two floats of 4 bits."""
        return self.scaled is not None and self.scaled.packed

    @property
    def scale_words(self) -> int:
        """Tiles of 128 x 4 scales that a stage has of A, and of B."""
        return 0 if self.scaled is None else self.tile_k // self.scaled.word_k

    @property
    def scale_bytes(self) -> int:
        """Scales of A and B in shared memory, of one stage."""
        return 2 * self.scale_words * SCALE_TILE_BYTES

    @property
    def box(self) -> tuple[int, int]:
        """Columns and rows of a box of results."""
        return self.box_columns, WARP_ROWS

    @property
    def box_bytes(self) -> int:
        """A box of results, of rows of 128 bytes."""
        return WARP_ROWS * SPAN_BYTES

    @property
    def staging_bytes(self) -> int:
        """Results in shared memory on their way to TMA."""
        return EPILOGUE_WARPS * STORE_BUFFERS * self.box_bytes if self.box_columns else 0

    @property
    def store_buffers(self) -> int:
        """Boxes of results that a warp has in shared memory."""
        return STORE_BUFFERS

    @property
    def box_parts(self) -> int:
        """Times that a warp loads sums for one box."""
        return self.box_columns // COLUMNS

    @property
    def id_step(self) -> int:
        """From an instruction's number of the first scale in a word to that of the next."""
        return 0 if self.scaled is None else self.scaled.blocks

    @property
    def blocks_per_sm(self) -> int:
        """Blocks of an SM that tensor memory has room for."""
        return TENSOR_COLUMNS // self.tensor_columns

    @property
    def pair_scales(self) -> bool:
        """True if the second block of a pair reports its scales to the first."""
        return self.pair and self.scaled is not None

    @property
    def answers(self) -> int:
        """Answers of the scheduler that a block holds."""
        return ANSWERS

    @property
    def barriers(self) -> int:
        """Two for each stage, for each set of sums, and for each answer of the scheduler; with scales in pairs, a third for each stage."""
        return (3 if self.pair_scales else 2) * self.stages + 2 * BUFFERS + (2 * ANSWERS if self.dynamic else 0)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, with a word for the address in tensor memory."""
        answers = ANSWERS * ANSWER_BYTES if self.dynamic else 0
        stage = self.a.tile_bytes + self.b.tile_bytes + self.scale_bytes
        return self.stages * stage + self.staging_bytes + answers + BARRIER_BYTES * self.barriers + BARRIER_BYTES


def tensor_memory_loop(
    outline: Outline, mainloop: TensorMemoryMainloop, multiplied: Multiplied, unfit: Iterable[Reason] = ()
) -> TensorMemoryLoop | None:
    """The loop, or None with the errors added to the outline's reasons; ``unfit``: reasons against the operands' types or layouts."""
    spec, architecture = outline.spec, outline.architecture
    reasons = [*unfit, *_reasons(spec, mainloop, outline.matrices, multiplied, architecture)]
    outline.reasons += reasons
    if reasons:
        return None
    tile, (a, b, _) = mainloop.tile, outline.matrices
    columns = tile.n // 2 if mainloop.pair else tile.n
    sides: tuple[tuple[Literal["A", "B"], Literal["m", "n"], Matrix, int], ...] = (("A", "m", a, tile.m), ("B", "n", b, columns))
    read_a, read_b = (
        WarpgroupOperand(name, axis, matrix.contiguous != axis, extent, tile.k, element_bytes, blocks=1, planes=planes)
        for (name, axis, matrix, extent), element_bytes, planes in zip(sides, multiplied.element_bytes, multiplied.planes, strict=True)
    )
    loop = TensorMemoryLoop(
        read_a,
        read_b,
        tile.m,
        tile.n,
        tile.k,
        mainloop.stages,
        *multiplied.types,
        persistent_blocks=mainloop.persistent_blocks,
        pair=mainloop.pair,
        dynamic=mainloop.tiles == "dynamic",
        scaled=block_scaling(spec, mainloop),
        box_columns=SPAN_BYTES // outline.matrices[2].element_bytes if spec.store == "tma" else 0,
        kept_sums=multiplied.kept_sums,
    )
    outline.reasons += ResidentBlocks(architecture, 1, loop.threads).too_much_per_block(loop.shared_bytes)
    return loop


def stored_reasons(spec: GemmSpec, mainloop: TensorMemoryMainloop, matrices: tuple[Matrix, Matrix, Matrix]) -> Iterator[Reason]:
    """Reasons against factors and results as they are stored."""
    packed = mainloop.multiplied == "e2m1"
    yield from packed_reasons(spec) if packed else type_reasons(spec)
    yield from scale_kind_reasons(spec, packed, "tcgen05")
    if spec.scales.given and mainloop.tile.n != SCALED_COLUMNS:
        yield Reason("scales", "mainloop.tile.n", str(mainloop.tile.n), f"{SCALED_COLUMNS} with block scales")
    if mainloop.arithmetic != Arithmetic():
        given = ", ".join(sorted(mainloop.arithmetic.model_fields_set))
        yield Reason("arithmetic", "mainloop.arithmetic", given, "nothing without f32_by", "f32_by: f16x3")
    if mainloop.promote_every != "auto":
        need = "auto without arithmetic.f32_by: sums in tensor memory keep the precision of float32"
        yield Reason("promotion", "mainloop.promote_every", str(mainloop.promote_every), need)
    for matrix, along in zip(matrices[:2], "mn", strict=True):
        size = matrix.element_bytes
        if matrix.contiguous == along and size != 2:
            stored = f"{matrix.name} of {matrix.type} stored along {matrix.contiguous}"
            yield Reason("major", "transpose", stored, "along k but for 16-bit types", "change transpose")
        if matrix.alignment * size != COPY_ALIGNMENT:
            need = f"{COPY_ALIGNMENT // size}: TMA requires multiples of {COPY_ALIGNMENT} bytes"
            yield Reason("alignment", f"alignment.{matrix.name.lower()}", str(matrix.alignment), need)
    if spec.batch == "grouped":
        yield Reason("batch", "batch", "grouped", "none or strided for tcgen05")
    yield from _store_reasons(spec, mainloop, matrices[2])


def _reasons(
    spec: GemmSpec,
    mainloop: TensorMemoryMainloop,
    matrices: tuple[Matrix, Matrix, Matrix],
    multiplied: Multiplied,
    architecture: Architecture,
) -> Iterator[Reason]:
    if not architecture.supports("tcgen05"):
        yield Reason(
            "tcgen05", "mainloop.strategy", f"tcgen05 on {architecture.name}", "sm_100a, sm_103a or sm_110a", "architecture: sm_100a"
        )
    elif (
        {spec.storage.a, spec.storage.b} & set(BYTE_INTEGERS)
        and mainloop.multiplied == "stored"
        and not architecture.supports("tcgen05_int8")
    ):
        got = f"{spec.storage.a} and {spec.storage.b} on {architecture.name}"
        yield Reason(
            "tcgen05", "storage", got, "types other than 8-bit integers, which its tcgen05 does not multiply", "architecture: sm_100a"
        )
    if mainloop.instruction_k == DEEP:
        yield from _deep_reasons(mainloop, architecture)
    if mainloop.pair and mainloop.persistent_blocks % 2:
        yield Reason("persistent_blocks", "mainloop.persistent_blocks", str(mainloop.persistent_blocks), "even with pair: true")
    if mainloop.tiles == "dynamic" and mainloop.persistent_blocks:
        got = str(mainloop.persistent_blocks)
        yield Reason("persistent_blocks", "mainloop.persistent_blocks", got, "0 with tiles: dynamic, whose grid has all tiles")
    columns = mainloop.tile.n // 2 if mainloop.pair else mainloop.tile.n
    sides = ((matrices[0], mainloop.tile.m, "m"), (matrices[1], columns, "n"))
    for (matrix, extent, field), size in zip(sides, multiplied.element_bytes, strict=True):
        if matrix.contiguous == field and size == 2 and extent * size % SPAN_BYTES:
            multiple = SPAN_BYTES // size * (mainloop.tile.n // extent if field == "n" else 1)
            got = str(mainloop.tile.n if field == "n" else extent)
            yield Reason("tile", f"mainloop.tile.{field}", got, f"a multiple of {multiple}: rows of {SPAN_BYTES} bytes in shared memory")
        if mainloop.tile.k * size % SPAN_BYTES:
            need = f"a multiple of {SPAN_BYTES // size}: rows of {SPAN_BYTES} bytes in shared memory"
            yield Reason("tile_k", "mainloop.tile.k", str(mainloop.tile.k), need)
    if spec.decomposition.scheme != "data_parallel":
        yield Reason("decomposition", "decomposition.scheme", spec.decomposition.scheme, "data_parallel for tcgen05")
    if spec.cache != CacheHints():
        yield Reason("cache", "cache", "hints", "none: TMA moves tiles past the L1")
    yield from result_reasons(spec, in_boxes=True)


def _deep_reasons(mainloop: TensorMemoryMainloop, architecture: Architecture) -> Iterator[Reason]:
    """Reasons against instructions that multiply 96 values of k."""
    field = "mainloop.instruction_k"
    if mainloop.multiplied != "e2m1":
        yield Reason("instruction_k", field, f"{DEEP} of stored values", f"auto: {DEEP} is for floats of 4 bits", "multiplied: e2m1")
    if architecture.supports("tcgen05") and not architecture.supports("tcgen05_k96"):
        yield Reason("instruction_k", field, f"{DEEP} on {architecture.name}", "auto but for sm_103a", "architecture: sm_103a")
    if mainloop.tile.k % DEEP_STAGE_BYTES:
        need = f"a multiple of {DEEP_STAGE_BYTES}: whole instructions of {DEEP_STEP_BYTES} bytes, and rows of {SPAN_BYTES}"
        yield Reason("tile_k", "mainloop.tile.k", str(mainloop.tile.k), need)


def _store_reasons(spec: GemmSpec, mainloop: TensorMemoryMainloop, c: Matrix) -> Iterator[Reason]:
    """Stores that there are none of, and results that TMA does not take."""
    if spec.store == "through_shared":
        yield Reason("store", "store", spec.store, "direct or tma for tcgen05")
    if spec.store != "tma":
        return
    yield from box_store_reasons(spec)
    if spec.order != "row_major":
        yield Reason("store", "store", f"tma with order: {spec.order}", "direct for column-major results of tcgen05")
    columns = SPAN_BYTES // c.element_bytes
    if mainloop.tile.n % columns:
        need = f"a multiple of {columns} for store: tma: boxes of {SPAN_BYTES} bytes"
        yield Reason("tile_n", "mainloop.tile.n", str(mainloop.tile.n), need)


def regions(loop: TensorMemoryLoop) -> tuple[SharedRegion, ...]:
    """Shared memory of a block: tiles, barriers, the address in tensor memory."""
    placed: list[SharedRegion] = []

    def add(name: str, type: str, shape: tuple[int, ...], size: int, meaning: str) -> None:
        offset = placed[-1].offset + placed[-1].bytes if placed else 0
        placed.append(SharedRegion(name, type, shape, offset, size, meaning))

    for operand, element in ((loop.a, loop.type_a), (loop.b, loop.type_b)):
        rows = operand.tile_bytes // SPAN_BYTES
        along = "k" if operand.k_major else operand.axis
        meaning = f"tiles of {operand.name}, [stage][row][{along}], rows of {SPAN_BYTES} bytes, swizzled"
        shape = (loop.stages, rows, operand.span_elements)
        add(f"tiles_{operand.suffix}", ELEMENTS[element].c_type, shape, loop.stages * operand.tile_bytes, meaning)
    if loop.box_columns:
        boxes = (EPILOGUE_WARPS, STORE_BUFFERS, WARP_ROWS, SPAN_BYTES)
        add("staging", "unsigned char", boxes, loop.staging_bytes, "staged results, [warp][buffer][row][byte], swizzled")
    if loop.scaled is not None:
        scales = (loop.stages, 2, loop.scale_words, SCALE_TILE_BYTES)
        meaning = "tiles of scales of A, then of B, [stage][operand][word of k]"
        add("scales", "unsigned char", scales, loop.stages * loop.scale_bytes, meaning)
    if loop.dynamic:
        add("answers", "uint4", (ANSWERS,), ANSWERS * ANSWER_BYTES, "answers of the scheduler: clusters whose tiles this one takes over")
    meaning = "for each stage: it is full, it is empty; for each set of sums: it is done, it is drained"
    meaning += "; for each stage: the other block's scales have arrived" if loop.pair_scales else ""
    meaning += "; for each answer: it has arrived, it has been read" if loop.dynamic else ""
    add("barriers", "unsigned long long", (loop.barriers,), BARRIER_BYTES * loop.barriers, meaning)
    add("tensor_memory", "unsigned", (2,), BARRIER_BYTES, "the address of the sums in tensor memory")
    return tuple(placed)
