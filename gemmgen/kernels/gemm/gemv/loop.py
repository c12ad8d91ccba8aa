"""Products with few columns: the numbers of a kernel that streams A past a few columns of B, and its launch."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Literal

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import Reason
from gemmgen.core.formulas import ceil_div, round_up
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.gemm.matrices import FLOAT_BYTES
from gemmgen.kernels.gemm.spec import GemmSpec, GemvMainloop
from gemmgen.kernels.matrix import Matrix

WIDEST_BYTES = 16
MAX_UNROLL = 16
MAX_HELD = 32
"""Elements of A that a thread may hold for a step, in registers, and as many for the next."""
MAX_WORDS = 64
"""Words of A that a thread may have on their way, where its lanes lie along m."""
LINE_BYTES = 128
"""Bytes of a line of the caches."""
MAX_B_AHEAD = 32
"""Limit of elements of B that are read ahead."""
MAX_SUMMERS = 32
STAGED_VECTOR = 4
"""Floats of one read by a lane from its warp's part of B in shared memory, and of one store to C by a thread."""
SLICES_AT_ONCE = 8
"""Slices whose sums a thread of the last block has in flight at a time."""
OTHER_REGISTERS = 32


@dataclass(frozen=True)
class Held:
    """Elements that one load reads, in registers as they lie in memory: so that nothing waits for them before they are multiplied."""

    element: str
    width: int

    @property
    def in_words(self) -> bool:
        return self.element != "f32" and self.width > 1

    @property
    def c_type(self) -> str:
        """Type of the registers."""
        return "unsigned" if self.in_words else ELEMENTS[self.element].c_type

    @property
    def count(self) -> int:
        return self.width // 2 if self.in_words else self.width

    def value(self, registers: str, index: str) -> str:
        """One of the elements as a float."""
        if self.element == "f32":
            return f"{registers}[{index}]"
        bits = f"{registers}[{index} / 2] >> {index} % 2 * 16" if self.in_words else f"{registers}[0]"
        return f"{self.element}_to_float({bits})"


@dataclass(frozen=True)
class VectorLoop:
    """Numbers of a kernel for few columns."""

    along: Literal["k", "m"]
    threads: int
    lanes: int
    """Threads of a team."""
    rows: int
    """Rows of A that a thread holds."""
    columns: int
    vector: int
    """Values of k that a lane reads of each row at a time."""
    unroll: int
    width_a: int
    """Elements of A that one load reads."""
    width_b: int
    """Elements of B that one load reads."""
    whole_rows: bool
    """True if no thread has rows of which some lie beyond the matrix."""
    whole_columns: bool
    parts: int
    """Sums that a block has of each of its elements of C, before it adds them up."""
    min_blocks_per_sm: int
    held_a: Held
    """Elements of A that one load reads, where lanes lie along m."""
    held_b: Held
    width_c: int = 1
    """Elements of C that a thread finishes and stores at a time."""
    grain: int = 1
    """Elements of which a team's rows begin at a multiple, from address 0, wherever its columns of A do; 1 where they begin with those."""

    @property
    def teams(self) -> int:
        return self.threads // self.lanes

    @property
    def tile_m(self) -> int:
        return self.rows_read - self.grain if self.shifted else self.rows_read

    @property
    def rows_read(self) -> int:
        """Rows of A that a block reads, those of other tiles among them where it shifts them."""
        return self.rows * (self.teams if self.along == "k" else self.lanes)

    @property
    def shifted(self) -> bool:
        """True if teams read rows from before their tile on."""
        return self.grain > 1

    @property
    def partial_vectors(self) -> bool:
        """True if a vector along m may lie partly beyond its column."""
        return self.along == "m" and (self.shifted or (not self.whole_rows and self.width_a > 1))

    @property
    def singles(self) -> int:
        """Values of k of which a thread with such a vector reads elements at a time."""
        return max(1, MAX_HELD // self.rows)

    @property
    def elements(self) -> int:
        """Elements of C that a block computes."""
        return self.tile_m * self.columns

    @property
    def pitch(self) -> int:
        """Elements from one row of a block's sums in shared memory to the next: an odd number of store units, so that lanes
        meet no bank twice."""
        return (self.columns // self.width_c | 1) * self.width_c

    @property
    def stages_b(self) -> bool:
        """True if each warp brings its elements of B to shared memory for all of its lanes, which lie along m in one team."""
        return self.along == "m" and not self.partial_vectors and self.lanes % WARP_THREADS == 0 and not self.reads_b_ahead

    @property
    def staged_pitch(self) -> int:
        """Elements of B that a warp keeps for one value of k, whole vectors."""
        return round_up(self.columns, STAGED_VECTOR)

    @property
    def staged_by_a_lane(self) -> int:
        """Elements of B that a lane brings for a step of its warp."""
        return ceil_div(self.unroll * self.columns, WARP_THREADS)

    @property
    def staged_shape(self) -> tuple[int, int]:
        """Warps, and the elements of B that each keeps."""
        return self.threads // WARP_THREADS, self.unroll * self.staged_pitch

    @property
    def step(self) -> int:
        """Values of k that a block goes through before it begins again with the first lane."""
        return self.lanes * self.vector if self.along == "k" else self.teams

    @property
    def summers(self) -> int:
        """Groups of threads among which the last block of a tile divides the slices."""
        return max(1, min(MAX_SUMMERS, self.threads // (1 << (self.elements // self.sum_width - 1).bit_length())))

    @property
    def slices_at_once(self) -> int:
        return SLICES_AT_ONCE

    @property
    def sum_width(self) -> int:
        """Elements of a slice's sums that the last block of a tile reads at a time."""
        return 4 if self.elements % 4 == 0 else 1

    @property
    def reads_b_ahead(self) -> bool:
        """True if B of the next step is read ahead as A is."""
        return self.unroll * self.columns * self.vector <= MAX_B_AHEAD

    @property
    def shared_floats(self) -> int:
        """Room for the sums of all parts, and later for those of all groups that add up slices."""
        return max(self.parts * self.tile_m * self.pitch, self.summers * self.elements)

    @property
    def shuffles(self) -> tuple[int, ...]:
        """Distances of the lanes that exchange sums, one after the other."""
        distances = [1 << place for place in range(5)]
        return tuple(d for d in reversed(distances) if d < self.lanes) if self.along == "k" else ()


def vector_loop(
    spec: GemmSpec, mainloop: GemvMainloop, matrices: tuple[Matrix, Matrix, Matrix], architecture: Architecture, reasons: list[Reason]
) -> VectorLoop | None:
    """The numbers of the kernel, or None with the reasons why there is none."""
    a, b, c = matrices
    before = len(reasons)
    if mainloop.threads % mainloop.lanes:
        need = f"a divisor of the {mainloop.threads} threads"
        reasons.append(Reason("lanes", "mainloop.lanes", str(mainloop.lanes), need))
    if mainloop.along == "m" and a.row_major:
        need, hint = "k where A is contiguous along k", "lanes side by side along m would read A with gaps"
        reasons.append(Reason("along", "mainloop.along", "m", need, hint))
    if a.is_half and b.is_half and a.type != b.type:
        reasons.append(Reason("storage", "storage.b", b.type, f"{a.type} as A, or f32"))
    if mainloop.vectors == "shifted" and mainloop.along == "k":
        reasons.append(Reason("vectors", "mainloop.vectors", "shifted", "aligned where lanes lie along k"))
    if len(reasons) > before:
        return None
    shifts = mainloop.vectors == "shifted" and a.alignment * a.element_bytes < WIDEST_BYTES
    widest_a, widest_b = (
        WIDEST_BYTES // matrix.element_bytes if shifts and matrix is a else min(matrix.alignment, WIDEST_BYTES // matrix.element_bytes)
        for matrix in (a, b)
    )
    whole_columns = spec.multiple_of.n % mainloop.columns == 0
    along_n = gcd(mainloop.columns, widest_b) if whole_columns else 1
    along_n = along_n & -along_n
    along_k = mainloop.along == "k"
    if along_k:
        vector = widest_a if a.row_major else widest_b if not b.row_major else 1
        rows = int(mainloop.rows)
        whole_rows = spec.multiple_of.m % rows == 0
        width_a = vector if a.row_major else gcd(rows, widest_a) if whole_rows else 1
        width_b = along_n if b.row_major else min(widest_b, vector)
        parts = max(1, mainloop.lanes // WARP_THREADS)
    else:
        rows = widest_a
        vector = 1
        parts = mainloop.threads // mainloop.lanes
        # The sums of all teams meet in shared memory.
        room = architecture.static_shared_bytes_per_block // FLOAT_BYTES - 1
        while rows > 1 and parts * mainloop.lanes * rows * (mainloop.columns | 1) > room:
            rows //= 2
        whole_rows = spec.multiple_of.m % rows == 0
        width_a, width_b = rows, along_n if b.row_major else 1
    # As many bytes ahead in narrow loads as in wide ones.
    read_at_a_time = vector if along_k else rows
    unroll = min(MAX_UNROLL, int(mainloop.unroll) * max(1, WIDEST_BYTES // (a.element_bytes * read_at_a_time)))
    while unroll > 1 and (unroll * rows * vector > MAX_HELD if along_k else unroll * rows * a.element_bytes > MAX_WORDS * FLOAT_BYTES):
        unroll //= 2
    grain = 1
    if shifts:
        teams = mainloop.threads // mainloop.lanes
        grain = min(teams & -teams, LINE_BYTES // a.element_bytes)
        if grain % rows:
            need = f"a multiple of {rows} teams, so that all columns of a team begin alike"
            reasons.append(Reason("vectors", "mainloop.vectors", f"shifted, {teams} teams", need, "more threads, or fewer lanes"))
            return None
        if mainloop.lanes * rows <= grain:
            got = f"{mainloop.lanes * rows} rows of a team that is shifted"
            need, hint = f"more than {grain}, by which they may move back", "more lanes, or fewer threads"
            reasons.append(Reason("vectors", "mainloop.lanes", got, need, hint))
            return None
    in_vectors = along_k and mainloop.lanes == 1 and whole_columns and spec.decomposition.scheme == "data_parallel" and c.row_major
    width_c = STAGED_VECTOR if in_vectors and gcd(mainloop.columns, c.alignment) % STAGED_VECTOR == 0 else 1
    loop = VectorLoop(
        mainloop.along,
        mainloop.threads,
        mainloop.lanes,
        rows,
        mainloop.columns,
        vector,
        unroll,
        width_a,
        width_b,
        whole_rows,
        whole_columns,
        parts,
        mainloop.min_blocks_per_sm,
        Held(a.type, width_a),
        Held(b.type, width_b),
        width_c,
        grain,
    )
    shared = sum(region.bytes for region in vector_regions(loop))
    if shared >= architecture.static_shared_bytes_per_block:
        need = f"less than {architecture.static_shared_bytes_per_block} bytes of shared memory for the sums of a block"
        reasons.append(Reason("shared_memory", "mainloop", f"{shared} bytes", need, "fewer threads, rows or columns"))
        return None
    return loop


def vector_regions(loop: VectorLoop) -> tuple[SharedRegion, ...]:
    """The shared memory of a block."""
    sums = SharedRegion("sums", "float", (loop.shared_floats,), 0, FLOAT_BYTES * loop.shared_floats, "the sums of a block's teams")
    if not loop.stages_b:
        return (sums,)
    bytes_of_b = FLOAT_BYTES * loop.staged_shape[0] * loop.staged_shape[1]
    begin = round_up(sums.bytes, WIDEST_BYTES)
    return sums, SharedRegion("staged", "float", loop.staged_shape, begin, bytes_of_b, "each warp's next elements of B")


def estimated_registers(loop: VectorLoop) -> int:
    """Registers of a thread: sums, loaded elements of A and B, addresses."""
    if loop.stages_b:
        of_b = loop.staged_pitch + 3 * loop.staged_by_a_lane
        return min(255, OTHER_REGISTERS + loop.unroll * loop.held_a.count + (loop.columns + 1) * loop.rows + of_b)
    if loop.along == "m":
        steps_b = loop.unroll if loop.reads_b_ahead else 1
        return min(255, OTHER_REGISTERS + loop.unroll * loop.held_a.count + loop.columns * (loop.rows + steps_b) + loop.rows)
    steps_b = 2 * loop.unroll if loop.reads_b_ahead else 1
    held = 2 * loop.unroll * loop.rows * loop.vector + loop.columns * (loop.rows + steps_b * loop.vector)
    return min(255, OTHER_REGISTERS + held + 2 * loop.rows)
