"""The mainloop of a GEMM by warps that multiply fragments (``mma.sync``), in numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import Reason
from gemmgen.core.formulas import ceil_div
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.gemm.mma_sync.doubles import DEPTH, DOUBLE_BYTES, double_reasons, instruction_depth, is_double
from gemmgen.kernels.gemm.mma_sync.half_sums import half_sum_reasons
from gemmgen.kernels.gemm.mma_sync.reasons import (
    BANKS_BYTES,
    BLOCK_ROWS,
    CHUNK_BYTES,
    STEP_BYTES,
    box_reasons,
    combination_reasons,
    direct_reasons,
    mma_sync_reasons,
    shape_reasons,
    vector_reasons,
)
from gemmgen.kernels.gemm.mma_sync.scaled import scaled_reasons
from gemmgen.kernels.gemm.mma_sync.sparse import sparse_reasons
from gemmgen.kernels.gemm.plan import Outline
from gemmgen.kernels.gemm.sparsity import CHUNK_K, WORD_K
from gemmgen.kernels.gemm.spec import GemmSpec, MmaSyncMainloop
from gemmgen.kernels.gemm.tensor_cores.block_scaling import BlockScaling, block_scaling
from gemmgen.kernels.gemm.tensor_cores.operands import Multiplied
from gemmgen.kernels.gemm.tensor_cores.reasons import BYTE_INTEGERS, computes_f32
from gemmgen.kernels.math.warpgroup import WarpgroupOperand
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.tiles.resources import ResidentBlocks
from gemmgen.kernels.tiles.unrolling import unroll_argument

BLOCK_COLUMNS = 8
TURING_HALVES, TURING_BYTES = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", "m8n8k16.row.col"
"""Instructions of sm_75: two for 16 rows and 16 values of k of halves, four for 16 rows and 32 values of k of bytes."""
READ_ACROSS_BYTES = (2, DOUBLE_BYTES)
"""Sizes of elements whose fragments are read from rows along m or n."""
BARRIER_BYTES = 8
MIN_ASYNC_BYTES = 4
"""The narrowest asynchronous copy."""
OTHER_REGISTERS = 40
"""Registers of a thread beside sums, fragments and copies; an estimate."""


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
    planes: int = 1
    """Matrices that one of float32 was split into, whose tiles lie one behind the other."""
    boxed: bool = False
    """True if TMA brings tiles in boxes."""
    gathered: bool = False
    """True if rows of the tile are any rows of A."""
    products: int = 1
    """Matrices whose tiles lie one behind the other and are multiplied by the same one."""
    sparse: bool = False
    """True if a tile holds half of its values along k, ``tile_k`` of them."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffix of each of these matrices in names."""
        return ("b", "b2") if self.products > 1 else (self.suffix,)

    @property
    def suffix(self) -> str:
        return self.name.lower()

    @property
    def c_type(self) -> str:
        return ELEMENTS[self.type].c_type

    @property
    def shared_k_major(self) -> bool:
        """True if rows in shared memory run along k: ``ldmatrix`` transposes elements of 16 bits only, others on their way in; doubles are
        read one by one."""
        return self.k_major or self.element_bytes not in READ_ACROSS_BYTES

    @property
    def reads_words(self) -> bool:
        """True if two neighbours along k can be read from global memory at once."""
        return self.k_major and self.vector > 1

    @property
    def transposed(self) -> bool:
        """True if elements are transposed on their way to shared memory."""
        return self.shared_k_major and not self.k_major

    @property
    def rows(self) -> int:
        """Bytes of the tile in global memory."""
        return self.extent if self.k_major else self.tile_k

    @property
    def length(self) -> int:
        """Elements of a row of the tile in global memory."""
        return self.tile_k if self.k_major else self.extent

    @property
    def vectors(self) -> int:
        """Copies that make up a row."""
        return self.length // self.vector

    @property
    def tile_vectors(self) -> int:
        """Copies that make up a tile."""
        return self.rows * self.vectors

    @property
    def passes(self) -> int:
        """Copies of a thread."""
        return ceil_div(self.tile_vectors, self.threads)

    @property
    def advance(self) -> int:
        """Rows of the tile in global memory, or elements of them where they are transposed, from one copy of a thread to the next; 0
        if these do not lie on a line."""
        if self.checks_index:
            return 0
        if self.transposed:
            return self.threads // self.rows * self.vector if self.threads % self.rows == 0 else 0
        return self.threads // self.vectors if self.threads % self.vectors == 0 else 0

    @property
    def checks_index(self) -> bool:
        """True if some threads copy less than others."""
        return self.tile_vectors % self.threads != 0

    @property
    def vector_bytes(self) -> int:
        return self.vector * self.element_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the tile in shared memory."""
        return (self.tile_k if self.shared_k_major else self.extent) * self.element_bytes

    @property
    def plane_bytes(self) -> int:
        """Bytes of one stage and plane."""
        return self.extent * self.tile_k * self.element_bytes

    @property
    def pitch(self) -> int:
        """Bytes from one row in shared memory to the next: longer ones are cut into pieces of 128 bytes, as TMA does."""
        return min(self.row_bytes, BANKS_BYTES)

    @property
    def spans(self) -> int:
        """Pieces of a row."""
        return self.row_bytes // self.pitch

    @property
    def span_bytes(self) -> int:
        """From one of them to the next."""
        return self.plane_bytes // self.spans

    @property
    def span_elements(self) -> int:
        """Elements of a piece."""
        return self.pitch // self.element_bytes

    @property
    def boxes(self) -> WarpgroupOperand:
        """The tile as TMA brings it: in boxes as for warpgroups."""
        return WarpgroupOperand(
            self.name, self.axis, self.k_major, self.extent, self.tile_k, self.element_bytes, blocks=1, row_bytes=self.pitch
        )

    @property
    def tile_bytes(self) -> int:
        """Bytes of one stage."""
        return self.products * self.planes * self.plane_bytes

    @property
    def fragments(self) -> int:
        """Fragments of a warp along m or n."""
        return self.own_extent // (BLOCK_ROWS if self.name == "A" else BLOCK_COLUMNS)

    @property
    def held_registers(self) -> int:
        """Registers of a thread for copies that pass through registers."""
        return (
            0
            if self.is_async or self.boxed
            else self.products * self.passes * ceil_div(self.vector_bytes, 4) * (4 if self.transposed or self.vector == 1 else 1)
        )


@dataclass(frozen=True)
class FragmentVectors:
    """Vectors that lanes read and store where fragments come straight from global memory, in elements."""

    along_k: int
    """Neighbours along k that a lane has of a line: those of several parts of an instruction's k one after the other."""
    rows: int
    """Neighbours along m of a lane, where these are neighbours in memory; else 1."""
    columns: int
    """Neighbours along n of a lane, of C, and of B where these are neighbours in memory."""
    whole_a: bool
    """True if the spec's promises of extents place every vector of A entirely inside or outside the matrix; likewise below."""
    whole_b: bool
    whole_c: bool

    @property
    def blocks_m(self) -> int:
        """Fragments of A that a lane's vector along m belongs to."""
        return max(1, self.rows // 2)

    @property
    def blocks_n(self) -> int:
        """Fragments of B that a lane's vector along n belongs to."""
        return self.columns // 2

    @property
    def words_along_k(self) -> int:
        """Pairs of a lane's vector along k."""
        return self.along_k // 2


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
    kept_sums: int = 0
    """Sets of sums beside those of the results."""
    fragment_buffers: int = 1
    unroll: str = ""
    """Argument of ``#pragma unroll`` at the loop over a tile's instructions along k: nothing, or a factor."""
    boxed: bool = False
    """True if TMA brings the tiles."""
    transposed_store: bool = False
    """True if results that can only be stored one by one are transposed in shared memory, so that lanes store side by side."""
    direct: bool = False
    """True if warps read fragments from global memory."""
    vectors: FragmentVectors | None = None
    """The way in which lanes read such fragments, unless they read pairs."""
    scaled: BlockScaling | None = None
    """The block scales that the instruction takes."""
    own_tiles: int = 1
    """Warps of a block with a separate tile each; 1: they share one."""
    products: int = 1
    """Products of one tile of A by as many matrices, whose sums a thread holds side by side."""
    sparse: bool = False
    """True if A is 2:4 sparse."""
    turing: bool = False
    """True if the instructions are those of sm_75, of which several make one of later architectures."""
    half_sums: bool = False
    """True if the tensor cores' sums are float16."""
    double_depth: int = 0
    """Values of k that an instruction on doubles multiplies; 0: factors are no doubles."""

    @property
    def instruction_depth(self) -> int:
        """Values of k that one instruction takes, those that a sparse A leaves out among them."""
        return self.instruction_k * (2 if self.sparse else 1)

    @property
    def chunk_k(self) -> int:
        """Values of k whose metadata a lane reads at a time."""
        return CHUNK_K

    @property
    def chunk_parts(self) -> int:
        """Instructions along k whose metadata these are."""
        return CHUNK_K // self.instruction_depth

    @property
    def metadata_bytes(self) -> int:
        """Bytes of a stage's metadata, of which a value of k takes one bit."""
        return self.tile_m * self.tile_k // 8 if self.sparse else 0

    @property
    def own_columns(self) -> str:
        """The constant that says how many columns' sums a thread has a part of."""
        return "kWarpN"

    @property
    def promote_steps(self) -> int:
        """Steps after which sums leave the accumulators: 0, they stay."""
        return 0

    @property
    def warps_m(self) -> int:
        return self.tile_m // self.warp_m

    @property
    def warps_n(self) -> int:
        return self.tile_n // self.warp_n

    @property
    def threads(self) -> int:
        return WARP_THREADS * self.warps_m * self.warps_n * self.own_tiles

    @property
    def parts(self) -> int:
        """Instructions along k whose fragments are read at a time."""
        return self.tile_k // self.instruction_k

    @property
    def accumulator(self) -> str:
        if self.double_depth:
            return "double"
        return "float" if self.scaled is not None else "int" if self.type_a in BYTE_INTEGERS else "float"

    @property
    def instruction_k(self) -> int:
        """Values of k that one instruction multiplies, of a sparse A those that it holds; of 4-bit floats, pairs of them."""
        return self.double_depth or STEP_BYTES // self.a.element_bytes

    @property
    def double_halves(self) -> bool:
        """True if two instructions on doubles, of 8 rows each, multiply 16 rows."""
        return self.double_depth == DEPTH

    @property
    def double_registers(self) -> tuple[range, range, range]:
        """Numbers of the operands of an instruction on doubles that hold D, A and B."""
        first_b = 4 + self.instruction_k // 2
        return range(4), range(4, first_b), range(first_b, first_b + self.instruction_k // 4)

    @property
    def fragment_kind(self) -> str:
        """Part of the names of the device functions that read fragments from shared memory."""
        return "doubles" if self.double_depth else "fragments"

    @property
    def fragment_type(self) -> str:
        """Type of a register of a fragment."""
        return "double" if self.double_depth else "unsigned"

    @property
    def fragment_registers(self) -> tuple[int, int]:
        """Registers of a lane for a fragment of A and of B."""
        return (self.double_depth // 2, self.double_depth // 4) if self.double_depth else (4, 2)

    @property
    def instruction(self) -> str:
        if self.scaled is not None:
            return self.scaled.instruction
        if self.double_depth:
            rows = 8 if self.double_halves else 16
            return f"mma.sync.aligned.m{rows}n8k{self.double_depth}.row.col.f64.f64.f64.f64"
        a, b = ("tf32" if name == "f32" else name for name in (self.type_a, self.type_b))
        if self.turing:
            return f"mma.sync.aligned.{TURING_BYTES}.s32.{a}.{b}.s32" if self.accumulator == "int" else TURING_HALVES
        result = "s32" if self.accumulator == "int" else "f16" if self.half_sums else "f32"
        kind = "mma.sp::ordered_metadata" if self.sparse else "mma"
        return f"{kind}.sync.aligned.m16n8k{self.instruction_depth}.row.col.{result}.{a}.{b}.{result}"

    @property
    def word_k(self) -> int:
        """Bytes along k whose block scales are one word of each line."""
        assert self.scaled is not None
        return self.scaled.word_k

    @property
    def unit(self) -> str:
        """Peak of a device that the products run at."""
        if self.scaled is not None:
            return "fp4_mma" if self.scaled.packed else "fp8_mma"
        if self.half_sums:
            return "f16_sums_mma"
        kinds = {"bf16": "f16", "f32": "tf32", "e4m3": "fp8", "e5m2": "fp8", "s8": "int8", "u8": "int8"}
        return f"{kinds.get(self.type_a, self.type_a)}_mma"

    @property
    def any_held(self) -> bool:
        """True if something is copied through registers."""
        return not self.boxed and not (self.a.is_async and self.b.is_async)

    @property
    def any_async(self) -> bool:
        """True if threads copy something asynchronously."""
        return self.a.is_async or self.b.is_async

    @property
    def barriers(self) -> int:
        """One for each stage that TMA fills."""
        return self.stages if self.boxed else 0

    @property
    def mainloop(self) -> str:
        """A macro of ``templates/gemm/warp_mainloop.cu.j2``."""
        return "read_ahead" if self.fragment_buffers == 2 else "one_buffer"

    @property
    def registers_per_element(self) -> int:
        """Registers of a sum, or of an element of a fragment: a double has two."""
        return 2 if self.double_depth else 1

    @property
    def sums(self) -> int:
        """Registers of a thread that hold sums: those of a warp's whole tile, or of the columns that its lanes store at once."""
        columns = self.warp_n if self.vectors is None else BLOCK_COLUMNS * self.vectors.blocks_n
        return self.products * self.registers_per_element * self.warp_m * columns // WARP_THREADS

    @property
    def partial_warp_row(self) -> bool:
        """True if the lanes of a warp do not divide a row of its tile evenly."""
        return self.warp_n % WARP_THREADS != 0

    @property
    def estimated_registers(self) -> int:
        fragments = (self.parts if self.direct else self.fragment_buffers) * (
            4 * self.a.fragments * self.a.planes + (4 if self.sparse else 2) * self.b.fragments * self.b.planes
        )
        if self.double_depth:
            # The compiler reads those of a few values of k at a time.
            fragments = 2 * self.fragment_buffers * (2 * self.a.fragments + self.b.fragments)
        return self.sums_and_others + fragments + self.a.held_registers + self.b.held_registers

    @property
    def sums_and_others(self) -> int:
        """Registers of a thread without fragments and copies on their way, an estimate."""
        return self.sums * (1 + self.kept_sums) + OTHER_REGISTERS

    @property
    def transposed_pitch(self) -> int:
        """Elements from one row to the next of results that are transposed: no bank conflicts."""
        return self.warp_n + BLOCK_COLUMNS

    @property
    def transposed_bytes(self) -> int:
        """Bytes of the results that are transposed at a time."""
        return self.transposed_store * self.threads // WARP_THREADS * BLOCK_ROWS * self.transposed_pitch * 4

    @property
    def shared_bytes(self) -> int:
        tiles = (
            0
            if self.direct
            else self.stages * (self.a.tile_bytes + self.b.tile_bytes + self.metadata_bytes) + BARRIER_BYTES * self.barriers
        )
        return max(tiles, self.transposed_bytes)


def warp_mma_loop(outline: Outline, mainloop: MmaSyncMainloop, multiplied: Multiplied, unfit: Iterable[Reason]) -> WarpLoop | None:
    """The loop, or None with the errors added to the outline's reasons; ``unfit``: reasons against the operands' types or layouts."""
    spec, architecture, matrices = outline.spec, outline.architecture, outline.matrices
    tile, split = mainloop.tile, computes_f32(spec)
    reasons = [
        *mma_sync_reasons(spec, architecture),
        *unfit,
        *shape_reasons(mainloop, matrices, multiplied.element_bytes, architecture),
        *(box_reasons(mainloop, matrices, architecture) if mainloop.copies == "tma" else ()),
        *(direct_reasons(spec, mainloop) if mainloop.copies == "none" else ()),
        *(vector_reasons(spec, mainloop, matrices) if mainloop.fragment_reads == "vectors" else ()),
        *combination_reasons(spec, mainloop),
        *scaled_reasons(spec, mainloop, architecture),
        *sparse_reasons(spec, mainloop),
        *double_reasons(spec, mainloop),
        *half_sum_reasons(spec, mainloop, architecture),
    ]
    outline.reasons += reasons
    if reasons:
        return None
    threads = WARP_THREADS * (tile.threadblock.m // tile.warp.m) * (tile.threadblock.n // tile.warp.n)
    operands = []
    sides: tuple[tuple[Literal["A", "B"], Literal["m", "n"], Matrix, int, int], ...] = (
        ("A", "m", matrices[0], tile.threadblock.m, tile.warp.m),
        ("B", "n", matrices[1], tile.threadblock.n, tile.warp.n),
    )
    factors = zip(sides, multiplied.types, multiplied.element_bytes, multiplied.planes, strict=True)
    for (name, axis, matrix, extent, own), type, size, planes in factors:
        k_major = matrix.contiguous != axis
        depth = tile.threadblock.k // (2 if mainloop.sparse == name.lower() else 1)
        length = depth if k_major else extent
        # Groups begin at any row: where rows are neighbours in memory, nothing is known of the addresses of theirs.
        vector = 1 if spec.batch == "grouped" and axis == "m" and not k_major else matrix.alignment
        vector = CHUNK_BYTES // size if split else vector
        while length % vector:
            vector //= 2
        transposed = not k_major and size not in READ_ACROSS_BYTES
        is_async = mainloop.copies == "cp_async" and not transposed and vector * size >= MIN_ASYNC_BYTES
        operands.append(
            WarpOperand(
                name=name,
                axis=axis,
                type=type,
                k_major=k_major,
                extent=extent,
                tile_k=depth,
                sparse=depth < tile.threadblock.k,
                element_bytes=size,
                vector=vector,
                is_async=is_async,
                threads=threads,
                own_extent=own,
                planes=planes,
                boxed=mainloop.copies == "tma",
                products=2 if spec.dual and name == "B" else 1,
                gathered=spec.grouping.gathered and name == "A",
            )
        )
        if spec.grouping.gathered and name == "A" and not is_async:
            need = f"at least {MIN_ASYNC_BYTES // size}: gathered rows come by asynchronous copies of {MIN_ASYNC_BYTES} bytes or more"
            outline.reasons.append(Reason("alignment", "alignment.a", str(matrix.alignment), need))
        if mainloop.sparse != "none" and not is_async:
            need = f"{MIN_ASYNC_BYTES} bytes or more along k, or of 16 bits: asynchronous copies alone bring tiles beside a sparse A"
            outline.reasons.append(Reason("alignment", f"alignment.{name.lower()}", f"{vector * size} bytes", need))
    direct = mainloop.copies == "none"
    loop = WarpLoop(
        a=operands[0],
        b=operands[1],
        tile_m=tile.warp.m if direct else tile.threadblock.m,
        tile_n=tile.warp.n if direct else tile.threadblock.n,
        tile_k=tile.threadblock.k,
        warp_m=tile.warp.m,
        warp_n=tile.warp.n,
        stages=mainloop.stages,
        type_a=operands[0].type,
        type_b=operands[1].type,
        persistent_blocks=mainloop.persistent_blocks,
        min_blocks_per_sm=mainloop.min_blocks_per_sm,
        kept_sums=multiplied.kept_sums,
        fragment_buffers=mainloop.fragment_buffers,
        unroll=unroll_argument(mainloop.unroll),
        boxed=mainloop.copies == "tma",
        direct=direct,
        scaled=block_scaling(spec, mainloop),
        vectors=_fragment_vectors(spec, mainloop, matrices) if mainloop.fragment_reads == "vectors" else None,
        own_tiles=threads // WARP_THREADS if direct else 1,
        products=2 if spec.dual else 1,
        sparse=mainloop.sparse == "a",
        turing=not architecture.supports("cp_async"),
        half_sums=mainloop.accumulators == "f16",
        double_depth=instruction_depth(architecture) if is_double(spec) else 0,
        transposed_store=not split
        and not is_double(spec)
        and not spec.dual
        and mainloop.copies != "tma"
        and spec.decomposition.scheme == "data_parallel"
        and matrices[2].row_major
        and ((matrices[2].alignment == 1 and not direct) or spec.store == "through_shared"),
    )
    outline.reasons += _resource_reasons(loop, architecture)
    return loop


def _fragment_vectors(spec: GemmSpec, mainloop: MmaSyncMainloop, matrices: tuple[Matrix, Matrix, Matrix]) -> FragmentVectors:
    """The widest vectors that addresses, the warp's tile and the rest of the operands allow."""
    a, b, c = matrices
    warp, promised = mainloop.tile.warp, spec.multiple_of
    widest = CHUNK_BYTES // a.element_bytes
    along_k = min([widest, *(matrix.alignment for matrix in (a, b) if matrix.contiguous == "k")])
    if a.contiguous != "k" and b.contiguous != "k":
        along_k = 2
    while mainloop.tile.threadblock.k % (4 * along_k):
        along_k //= 2
    rows = 1 if a.contiguous == "k" else min(widest, a.alignment)
    while warp.m % (BLOCK_COLUMNS * rows):
        rows //= 2
    columns = min([widest, c.alignment, *([b.alignment] if b.contiguous != "k" else [])])
    while warp.n * 2 % (BLOCK_COLUMNS * columns):
        columns //= 2
    return FragmentVectors(
        along_k=along_k,
        rows=rows,
        columns=columns,
        whole_a=(promised.k % along_k if a.contiguous == "k" else promised.m % rows) == 0,
        whole_b=(promised.k % along_k if b.contiguous == "k" else promised.n % columns) == 0,
        whole_c=promised.n % columns == 0,
    )


def _resource_reasons(loop: WarpLoop, architecture: Architecture) -> Iterator[Reason]:
    resident = ResidentBlocks(architecture, loop.min_blocks_per_sm, loop.threads)
    sums = loop.sums * (1 + loop.kept_sums)
    yield from resident.too_many_sums(sums, resident.allocated_registers, "mainloop.tile", "a smaller warp tile, or fewer blocks")
    yield from resident.too_much_per_block(loop.shared_bytes)


def warp_mma_regions(loop: WarpLoop) -> tuple[SharedRegion, ...]:
    """Shared memory of a block: the stages' tiles of A, then those of B."""
    regions: list[SharedRegion] = []
    for operand in () if loop.direct else (loop.a, loop.b):
        offset = regions[-1].offset + regions[-1].bytes if regions else 0
        rows = operand.tile_bytes // operand.pitch
        along = "k" if operand.shared_k_major else operand.axis
        meaning = f"tiles of {operand.name}, [stage][{operand.axis if operand.shared_k_major else 'k'}][{along}], swizzled"
        shape = (loop.stages, rows, operand.pitch // operand.element_bytes)
        regions.append(SharedRegion(f"tiles_{operand.suffix}", operand.c_type, shape, offset, loop.stages * operand.tile_bytes, meaning))
    if loop.sparse:
        offset = regions[-1].offset + regions[-1].bytes
        shape = (loop.stages, loop.tile_m, loop.tile_k // WORD_K)
        size = loop.stages * loop.metadata_bytes
        regions.append(SharedRegion("metadata", "unsigned short", shape, offset, size, "metadata of A, [stage][m][k / 16]"))
    if loop.barriers:
        offset = regions[-1].offset + regions[-1].bytes
        meaning = "for each stage: its tiles are there"
        regions.append(SharedRegion("barriers", "unsigned long long", (loop.barriers,), offset, BARRIER_BYTES * loop.barriers, meaning))
    if loop.transposed_store:
        shape = (loop.threads // WARP_THREADS, BLOCK_ROWS, loop.transposed_pitch)
        meaning = f"staged results, [warp][row][column]{'' if loop.direct else ', after the last tiles'}"
        regions.append(SharedRegion("transposed", loop.accumulator, shape, 0, loop.transposed_bytes, meaning))
    return tuple(regions)
