"""From a CPU GEMM's spec to every number that its source contains, or to all the reasons why there can be none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import PlanError, Reason
from gemmgen.core.formulas import Formula, ceil_div
from gemmgen.hardware.cpu import CpuArchitecture
from gemmgen.kernels.cpu_gemm.spec import BlockedLoops, CpuGemmSpec, Few
from gemmgen.kernels.epilogue.operations import Operation
from gemmgen.kernels.epilogue.products import plan_epilogue
from gemmgen.kernels.epilogue.steps import Step, Store
from gemmgen.kernels.epilogue.sums import BY_ROWS, result_of, stores_of
from gemmgen.kernels.family import InstancePlan
from gemmgen.kernels.launch import Argument, ArrayArgument, Constraint, Dimension, KernelLaunch, LaunchSequence, ScalarArgument
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.naming import instance_name, spec_digest
from gemmgen.kernels.tiles.unrolling import unroll_pragma

Divided = Literal["rows", "columns", "grid"]
_SWAPPED: Mapping[Divided, Divided] = {"rows": "columns", "columns": "rows", "grid": "grid"}
"""The extent that threads divide among them, of the transposed product."""
MAX_EXTENT = 2**31 - 1
CACHE_LINE_BYTES = 64
LINE_FLOATS = CACHE_LINE_BYTES // 4
MAX_LAUNCH_THREADS = 1024
MAX_PACKED_FLOATS = 1 << 27
"""Floats of packed operands that one thread may need: half a gigabyte."""
CHAINS = 8
"""Vectors of the widest tiles: sums that have to be worked on at the same time, two a cycle, each of four cycles."""
MAX_FITTED_ROWS = 16
MAX_SHORT_VECTORS = 4
"""Vectors of columns of a right operand that stays in registers."""
SPARE_FLOATS = 64
"""Beyond the last panel of a packed operand, where the last square that is transposed may write."""

_DEFINED = (
    *(
        "exponential",
        "silu",
        "gelu",
        "gelu_tanh",
        "softplus",
        "rsqrtf",
        "smallerf",
        "largerf",
        "truncated",
        "truncated_to_s64",
        "nearest_integer",
    ),
    *("smaller_integer", "larger_integer", "f16_to_float", "float_to_f16", "bf16_to_float", "float_to_bf16", "float_to_s8", "float_to_u8"),
    *("e4m3_to_float", "e5m2_to_float", "raise_to", "lower_to", "uniform_random"),
)
"""Functions of epilogues that the C library does not have; one that needs others comes behind them."""
_C_FORMS = (
    (r"static_cast<([\w ]+)>\(", r"(\1)("),
    (r"\b__int_as_float\(0x7f800000\)", "INFINITY"),
    (r"\b__int_as_float\(0x7fffffff\)", "NAN"),
    (r"\b__float2int_rz\(", "truncated("),
    (r"\b__float2ll_rz\(", "truncated_to_s64("),
    (r"\b__float2int_rn\(", "nearest_integer("),
    (r"(?<![\w.])min\(", "smaller_integer("),
    (r"(?<![\w.])max\(", "larger_integer("),
    (r"\bbool\b", "_Bool"),
)
"""Patterns of CUDA's text and the text in C."""
_COMPUTED = frozenset({"f32", "f16", "bf16", "s8", "s32", "s64", "bool"})
"""Types that values of an epilogue may have or be rounded to."""
_STORED = _COMPUTED | {"u8", "f64"}
"""Types of arrays that an epilogue writes."""
_READ = _STORED | {"e4m3", "e5m2"}

Side = Literal["left", "right"]


@dataclass(frozen=True)
class OperandAccess:
    """Steps of the loops through A or B: elements from one row (of the left operand, or column of the right one) to the next,
    and from one k to the next, as C expressions."""

    name: str
    line: str
    step: str

    @property
    def along_k(self) -> bool:
        """True if neighbours in memory differ in k."""
        return self.step == "1"


@dataclass(frozen=True)
class Reach:
    """Limits within which a fitted kernel reads the right operand in place, as measured on the processors of ``docs/cpu.md``."""

    slice_floats: int
    """Elements of a slice of the right operand: fewer are read in place for any number of rows."""
    rows: int
    """Rows up to which it is read in place otherwise, if it stays in the L2."""
    near_floats: int
    """Elements of the right operand that stay in the L2."""
    low_rows: int
    """Rows up to which it is read in place from caches farther away."""
    floats: int
    """Elements of the right operand that stay in these caches."""
    lines: int
    """Elements beyond which one to four rows read it line by line."""


REACHES: Mapping[int, Reach] = {
    8: Reach(1 << 14, 24, 1 << 20, 24, 1 << 20, 1 << 17),
    16: Reach(1 << 15, 128, 1 << 19, 20, 1 << 23, 1 << 20),
}
"""By the lanes of a vector."""


@dataclass(frozen=True)
class BlockedPlan:
    """The numbers of blocked loops, for a product that is stored by rows."""

    lanes: int
    tile_rows: int
    tile_vectors: int
    block_rows: int
    block_columns: int
    block_depth: int
    unroll: int
    packs_left: bool
    packs_right: bool
    masked: bool
    """True if tiles at an edge have separate functions; otherwise they are computed whole."""
    fitted: bool
    """True if tiles have the shapes that fit C best, and the right operand is packed only where that pays."""
    prefetch_left: int
    prefetch_right: int
    prefetch_c: bool
    prefetch_packing: bool
    few: Few
    dot_columns: int
    """Columns up to which long sums are dot products."""
    divide: Divided
    thread_count: int | Literal["all"]
    parts_per_thread: int
    least_work: int
    slice_unit: int
    """Steps along k that the depth of a slice is a multiple of. Where blocks of equal depth allow it, kernels cut k alike."""

    @property
    def row_limits(self) -> tuple[int, ...]:
        """Rows that a tile of one vector may have, of two, and so on."""
        if not self.fitted:
            return (self.tile_rows,) * self.tile_vectors
        sums, widest = self.tile_rows * self.tile_vectors, max(self.tile_vectors, CHAINS)
        high = [max(self.tile_rows, min(MAX_FITTED_ROWS, sums // vectors)) for vectors in range(1, self.tile_vectors + 1)]
        free = sums + self.tile_vectors
        wide = (max(1, min(sums // vectors, (free - vectors) // vectors)) for vectors in range(self.tile_vectors + 1, widest + 1))
        return (*high, *(min(self.tile_rows, rows) for rows in wide))

    @property
    def reach(self) -> Reach:
        """Limits within which a fitted kernel reads the right operand in place."""
        return REACHES.get(self.lanes, REACHES[8])

    @property
    def most_rows(self) -> int:
        """Rows of the highest tile."""
        return max(self.row_limits)

    @property
    def most_vectors(self) -> int:
        """Vectors of the widest tile."""
        return len(self.row_limits)

    @property
    def row_counts(self) -> range:
        """Rows that tiles with a function of their extent may have."""
        return range(1, self.most_rows + 1)

    def vector_counts(self, rows: int) -> list[int]:
        """Vectors that such tiles of ``rows`` rows may have."""
        return [count for count, limit in enumerate(self.row_limits, 1) if rows <= limit]

    @property
    def tile_columns(self) -> int:
        return self.tile_vectors * self.lanes

    @property
    def vector_registers(self) -> int:
        """Registers that a step along k needs: the sums, the right operand's vectors, and one element of the left one."""
        return self.tile_rows * self.tile_vectors + self.tile_vectors + 1

    @property
    def masks(self) -> bool:
        """True if loads and stores at an edge leave out lanes."""
        return self.masked and self.lanes > 1

    @property
    def short_extents(self) -> tuple[tuple[int, int], ...]:
        """Vectors of columns of a right operand that stays in registers, and the steps along k that it may then have: beside it, the
        sums, a broadcast element, and two factors."""
        registers = 2 * self.lanes
        wide = ((vectors, (registers - 3) // vectors - 1) for vectors in range(2, MAX_SHORT_VECTORS + 1))
        return ((1, self.lanes), *((vectors, steps) for vectors, steps in wide if steps > 0))

    @property
    def short_products(self) -> list[tuple[int, int]]:
        """Vectors of columns, and steps along k, of all products with a right operand that stays in registers."""
        return [(vectors, steps) for vectors, most in self.short_extents for steps in range(1, most + 1)]

    @property
    def short_vectors(self) -> tuple[int, ...]:
        """The most vectors of columns, of those extents, for no step, one, and so on."""
        return tuple(max(vectors for vectors, most in self.short_extents if steps <= most) for steps in range(self.lanes + 1))

    @property
    def neighbour_vectors(self) -> tuple[int, ...]:
        """Vectors of neighbouring rows whose sums with one column, with two, and so on up to eight stay in registers."""
        return tuple(max(1, min(8, (2 * self.lanes - 1) // (columns + 1))) for columns in range(1, 9))

    @property
    def fetches_left(self) -> bool:
        """True if the left operand is fetched ahead of its packing."""
        return self.prefetch_packing and self.packs_left

    @property
    def fetches_right(self) -> bool:
        """True if the right operand is fetched ahead of its packing."""
        return self.prefetch_packing and self.packs_right

    @property
    def fetches(self) -> bool:
        return self.fetches_left or self.fetches_right

    @property
    def packing_time(self) -> str:
        """Time that packing takes a part for each step along k, in multiply-adds of one lane, as a C expression of the part."""
        lines = {(True, True): "(part.rows + part.columns)", (True, False): "part.rows", (False, True): "part.columns"}
        packed = lines.get((self.packs_left, self.packs_right))
        return f"LANES * {packed}" if packed is not None else "0 * part.rows"

    @property
    def threaded(self) -> bool:
        return self.thread_count != 1

    @property
    def most_threads(self) -> int:
        return MAX_LAUNCH_THREADS

    @property
    def vectors_per_line(self) -> int:
        """Vectors of a cache line, at least one."""
        return max(1, CACHE_LINE_BYTES // (4 * self.lanes))

    @property
    def spare_floats(self) -> int:
        """Elements beyond each packed operand that may be written, or fetched ahead."""
        return SPARE_FLOATS + max(
            (self.prefetch_left + self.unroll) * self.tile_rows, (self.prefetch_right + self.unroll) * self.tile_columns
        )

    def packed_floats(self, side: Side) -> int:
        """Room for the packed blocks of one operand, filled up to whole panels and steps."""
        lines = self.block_rows + self.tile_rows if side == "left" else self.block_columns + self.tile_columns
        return lines * (self.block_depth + self.unroll) + self.spare_floats


@dataclass(frozen=True)
class CpuGemmPlan(InstancePlan[CpuGemmSpec]):
    """A GEMM for a CPU. The loops compute a product that is stored by rows: where C is stored by columns, its transpose."""

    architecture: CpuArchitecture
    matrix_a: Matrix
    matrix_b: Matrix
    matrix_c: Matrix
    epilogue: tuple[Step, ...]
    left: OperandAccess
    right: OperandAccess
    blocked: BlockedPlan | None
    """None for plain loops."""
    blas: bool = False
    """True if the source is a BLAS: it takes transpositions and storage orders as arguments, as ``cblas_sgemm`` does."""

    @property
    def warnings(self) -> tuple[Reason, ...]:
        """More vector registers than there are, where the compiler does not read an operand from memory instead."""
        if self.blocked is None or self.blocked.vector_registers <= self.architecture.registers:
            return ()
        got = f"about {self.blocked.vector_registers} vector registers by an estimate"
        need = f"no more than the {self.architecture.registers} of {self.architecture.name}"
        return (Reason("registers", "loops.micro_kernel", got, need, "the compiler may spill some"),)

    @property
    def swapped(self) -> bool:
        """True if C is stored by columns, so that A and B are exchanged."""
        return not self.matrix_c.row_major

    @property
    def rows(self) -> str:
        """The dimension of C that is slow in memory."""
        return "n" if self.swapped else "m"

    @property
    def columns(self) -> str:
        """The dimension of C that is contiguous in memory."""
        return "m" if self.swapped else "n"

    @property
    def alpha(self) -> str:
        return "alpha" if self.spec.alpha == "argument" else "1.0f"

    @property
    def beta(self) -> str:
        return "beta" if self.spec.beta == "argument" else "0.0f"

    @property
    def packs(self) -> bool:
        """True if an operand is packed."""
        return bool(self.packed_sides)

    @property
    def packed_sides(self) -> list[tuple[Side, str]]:
        """The operands that are packed, and the width of their panels."""
        blocked = self.blocked
        if blocked is None:
            return []
        sides: list[tuple[Side, str]] = [("left", "TILE_ROWS")] if blocked.packs_left else []
        return [*sides, ("right", "TILE_COLUMNS")] if blocked.packs_right else sides

    def turns_side(self, side: Side) -> bool:
        """True if packing an operand may have to turn it."""
        return self.blas or (self.left if side == "left" else self.right).along_k

    def copies_side(self, side: Side) -> bool:
        """True if packing an operand may be a copy of runs of its elements."""
        return self.blas or self.turns_product or not (self.left if side == "left" else self.right).along_k

    @property
    def turns_eight(self) -> bool:
        """True if rows of the left operand that lie along k are transposed eight at a time."""
        return self.adds_eight and (self.blas or self.left.along_k)

    @property
    def adds_neighbours(self) -> bool:
        """True if rows of the left operand may be neighbours in memory, whose sums with few columns are lanes of vectors."""
        lean = cast("BlockedLoops", self.spec.loops).instructions == "extension"
        return self.adds_eight and not lean and (self.blas or not self.left.along_k)

    @property
    def turns_product(self) -> bool:
        """True if the transposed product may be computed, in which neighbouring rows of the left operand are columns."""
        plain = not self.epilogue and not self.blas and not self.left.along_k
        return plain and self.adds_eight and self.blocked is not None and self.blocked.fitted

    @property
    def turns(self) -> bool:
        return any(self.turns_side(side) for side, _ in self.packed_sides)

    @property
    def copies(self) -> bool:
        return any(self.copies_side(side) for side, _ in self.packed_sides)

    @property
    def x86(self) -> bool:
        return self.architecture.machine == "x86_64"

    @property
    def vectors_template(self) -> str:
        """The template of the vector operations that the micro-kernel is written with."""
        instructions = cast("BlockedLoops", self.spec.loops).instructions
        return f"cpu_gemm/vectors/{self.architecture.name if instructions == 'vector' else instructions}.c.j2"

    @property
    def adds_eight(self) -> bool:
        """True if eight dot products are added up at the same time, by intrinsics."""
        return self.x86 and self.blocked is not None and self.blocked.masks and self.blocked.few != "none"

    @property
    def residuals(self) -> tuple[Matrix, ...]:
        """Matrices of C's shape that the epilogue reads."""
        return tuple(matrix for step in self.epilogue for matrix in step.matrices)

    @property
    def approximate(self) -> bool:
        """True if the epilogue calls functions of the math library."""
        return any(step.approximate for step in self.epilogue)

    @property
    def epilogue_arguments(self) -> tuple[Argument, ...]:
        """Arguments that the epilogue's function takes; the terms of sums lie in memory that the instance allocates."""
        return tuple(parameter for step in self.epilogue for parameter in step.parameters)

    @property
    def epilogue_code(self) -> tuple[str, ...]:
        """The statements of each step in C."""
        return tuple(_as_c(step.code) for step in self.epilogue)

    @property
    def has_place(self) -> bool:
        """True if the epilogue's statements need the place of an element."""
        return any(step.has_place for step in self.epilogue)

    @property
    def sums(self) -> tuple[Store, ...]:
        """Sums of the epilogue's values."""
        return stores_of(self.epilogue)

    @property
    def has_integers(self) -> bool:
        """True if the epilogue needs the C library's integers of known size and copies of memory."""
        return bool(set(self.epilogue_functions) & set(_DEFINED[8:]))

    @property
    def reads_truths(self) -> bool:
        """True if an argument points to truth values."""
        return any(getattr(argument, "type", "") == "bool" for argument in self.sequence.arguments)

    @property
    def epilogue_functions(self) -> tuple[str, ...]:
        """Functions that the epilogue calls and the C library does not have: macros of ``templates/cpu_gemm/activations.c.j2``."""
        words = set(re.findall(r"\w+(?=\()", " ".join(self.epilogue_code)))
        if words & {"float_to_s8", "float_to_u8"}:
            words.add("nearest_integer")
        if words & {"e4m3_to_float", "e5m2_to_float"}:
            words.add("f16_to_float")
        return tuple(name for name in _DEFINED if name in words)

    @property
    def epilogue_names(self) -> tuple[str, ...]:
        return tuple(argument.name for argument in self.epilogue_arguments)

    @property
    def epilogue_members(self) -> tuple[str, ...]:
        """Declarations of the epilogue's arguments as members of a C struct."""
        return tuple(f"{_c_type(argument)}{argument.name}" for argument in self.epilogue_arguments)

    @property
    def epilogue_locals(self) -> tuple[str, ...]:
        """Declarations of local constants with their values."""
        declarations = []
        for argument in self.epilogue_arguments:
            kind = _c_type(argument)
            kind = f"{kind}{'' if _is_reduced(argument) else 'restrict '}const " if kind.endswith("*") else f"const {kind}"
            declarations.append(f"{kind}{argument.name} = p->{argument.name};")
        return tuple(declarations)

    @property
    def compiler_options(self) -> tuple[str, ...]:
        """Options that the source is meant for. Plain loops are the compiler's to turn into vectors; blocked ones are laid out for
        their registers already, and GCC's -O3 moves loads so far ahead that some sums no longer fit."""
        level = "-O2" if self.blocked is not None else "-O3"
        return ("-std=c11", level, "-ffp-contract=off", *self.architecture.compiler_flags)

    @property
    def compile_line(self) -> str:
        """A command that makes a shared library of the source."""
        return f"cc {' '.join(self.compiler_options)} -fPIC -shared -pthread {self.name}.c -o lib{self.name}.so -lm"

    @property
    def usage(self) -> list[str]:
        return [f"Compile: {self.compile_line}"]

    @property
    def strategy(self) -> str:
        return str(self.spec.loops.strategy)

    @property
    def unroll_pragma(self) -> str:
        """The line before the innermost of plain loops; empty where its unrolling is left to the compiler."""
        return unroll_pragma(self.spec.loops.unroll, "#pragma GCC unroll")


def plan_cpu_gemm(spec: CpuGemmSpec, architecture: CpuArchitecture) -> CpuGemmPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    row_major = spec.order == "row_major"
    matrix_a = Matrix("A", "m", "k", "lda", row_major == (spec.transpose[0] == "n"), 1)
    matrix_b = Matrix("B", "k", "n", "ldb", row_major == (spec.transpose[1] == "n"), 1)
    matrix_c = Matrix("C", "m", "n", "ldc", row_major, 1)
    a, b = _access(matrix_a), _access(matrix_b)
    left, right = (a, b) if row_major else (b, a)
    reasons = _architecture_reasons(spec, architecture)
    epilogue = _epilogue(spec.epilogue, matrix_c, reasons)
    loops = spec.loops
    blocked = None
    parts: list[str] = [loops.strategy]
    if isinstance(loops, BlockedLoops):
        blocked = _blocked(spec, loops, architecture, right, reasons)
        tile, blocks = loops.micro_kernel, loops.blocks
        parts = [f"{tile.rows}x{tile.columns}", f"{blocks.m}x{blocks.n}x{blocks.k}"]
        parts += [loops.instructions] if loops.instructions != "vector" else []
        parts += [] if loops.pack == "both" else [f"pack{loops.pack}"]
        parts += [] if loops.threads.count == 1 else [f"t{loops.threads.count}"]
    if reasons:
        raise PlanError(f"no kernel for this spec on {architecture.name}:", reasons)
    parts.append(spec.transpose if row_major else f"{spec.transpose}_col")
    name = instance_name("cpu_sgemm", parts, spec)
    return CpuGemmPlan(
        name=name,
        spec_digest=spec_digest(spec),
        architecture=architecture,
        sequence=_sequence(name, spec, (matrix_a, matrix_b, matrix_c), epilogue),
        spec=spec,
        template="cpu_gemm/blocked.c.j2" if blocked is not None else "cpu_gemm/loops.c.j2",
        matrix_a=matrix_a,
        matrix_b=matrix_b,
        matrix_c=matrix_c,
        epilogue=epilogue,
        left=left,
        right=right,
        blocked=blocked,
    )


def _c_type(argument: Argument) -> str:
    """The type of one of the epilogue's arguments in C, up to its name."""
    if isinstance(argument, ArrayArgument):
        return f"{'const ' if argument.role == 'input' else ''}{_as_c(ELEMENTS[argument.type].c_type)} *"
    assert isinstance(argument, ScalarArgument)
    return "ptrdiff_t " if argument.type == "s32" else f"{ELEMENTS[argument.type].c_type} "


def _is_reduced(argument: Argument) -> bool:
    """True if threads raise or lower the values of an array argument."""
    return isinstance(argument, ArrayArgument) and argument.role == "inout"


def _as_c(code: str) -> str:
    """CUDA statements of an epilogue in C."""
    for pattern, text in _C_FORMS:
        code = re.sub(pattern, text, code)
    return code


def _access(matrix: Matrix) -> OperandAccess:
    """Strides of an operand, from the way it is stored."""
    if matrix.contiguous == "k":
        return OperandAccess(matrix.name, matrix.leading_dimension, "1")
    return OperandAccess(matrix.name, "1", matrix.leading_dimension)


def _architecture_reasons(spec: CpuGemmSpec, architecture: CpuArchitecture) -> list[Reason]:
    """Micro-kernels are laid out for one width of vectors; plain loops run wherever their architecture does."""
    if spec.architecture == architecture.name:
        return []
    need = f"{spec.architecture}, which the spec's micro-kernel is written for"
    return [Reason("architecture", "architecture", architecture.name, need, "set the spec's architecture")]


def _epilogue(operations: tuple[Operation, ...], output: Matrix, reasons: list[Reason]) -> tuple[Step, ...]:
    """The operations on float32 values, in C; adds conflicts to ``reasons``."""
    steps = plan_epilogue(operations, output, reasons)
    for index, step in enumerate(steps):
        wide = step.types - _COMPUTED
        if wide:
            got, need = f"a value of type {ELEMENTS[min(wide)].word}", "float32, or a rounding to float16, bfloat16, int8 or int32"
            reasons.append(Reason("elementwise", f"epilogue.{index}", got, need))
        others = [f"{one.name} of type {ELEMENTS[one.stored].word}" for one in step.accesses if one.stored not in _READ]
        others += [f"{one.name} of type {ELEMENTS[one.type].word}" for one in step.stores if one.type not in _STORED]
        if any(access.operand.in_place for access in step.accesses):
            reasons.append(Reason("elementwise", f"epilogue.{index}", "in_place", "an operand apart from C"))
        if others:
            reasons.append(Reason("elementwise", f"epilogue.{index}", others[0], "f32, f64, f16, bf16, s8, u8, s32 or bool"))
    return steps


def _blocked(
    spec: CpuGemmSpec, loops: BlockedLoops, architecture: CpuArchitecture, right: OperandAccess, reasons: list[Reason]
) -> BlockedPlan | None:
    """The numbers of blocked loops; adds the reasons against them to ``reasons``."""
    swapped = spec.order == "column_major"
    scalar = loops.instructions == "scalar"
    lanes = 1 if scalar else architecture.lanes
    tile, blocks = loops.micro_kernel, loops.blocks
    rows, columns = (tile.columns, tile.rows) if swapped else (tile.rows, tile.columns)
    contiguous = "rows" if swapped else "columns"
    if columns % lanes:
        need = f"a multiple of {lanes}, the lanes of a vector"
        lower = max(lanes, columns // lanes * lanes)
        reasons.append(Reason("micro_kernel", f"loops.micro_kernel.{contiguous}", str(columns), need, f"{lower}, for example"))
    for extent, unit, name in ((blocks.m, tile.rows, "m"), (blocks.n, tile.columns, "n")):
        if extent % unit:
            need = f"a multiple of {unit}, the extent of the micro-kernel"
            reasons.append(Reason("blocks", f"loops.blocks.{name}", str(extent), need, f"{max(1, extent // unit) * unit}, for example"))
    packs_a, packs_b = loops.pack in ("a", "both"), loops.pack in ("b", "both")
    packs_left, packs_right = (packs_b, packs_a) if swapped else (packs_a, packs_b)
    if not packs_right and right.along_k:
        need = f"{right.name} packed: the spec stores it along k, and the micro-kernel reads vectors across k"
        reasons.append(Reason("pack", "loops.pack", loops.pack, need, "pack: both"))
    if loops.edges == "padded" and loops.pack != "both":
        reasons.append(Reason("edges", "loops.edges", "padded", "both operands packed, for only those are filled up", "edges: masked"))
    if loops.instructions == "extension" and (architecture.name != "x86_64_v3" or loops.edges != "padded"):
        got = f"extension on {architecture.name} with {loops.edges} edges"
        reasons.append(Reason("extension", "loops.instructions", got, "x86_64_v3 and padded edges, or vector"))
    if loops.edges == "fitted":
        if not packs_right or packs_left:
            name = "a" if swapped else "b"
            reasons.append(Reason("edges", "loops.edges", f"fitted with pack: {loops.pack}", f"pack: {name}, or edges: masked"))
        if loops.prefetch.packing or loops.prefetch.a or loops.prefetch.b:
            reasons.append(Reason("edges", "loops.edges", "fitted with prefetched operands", "prefetch of c alone, or edges: masked"))
    if loops.edges != "padded" and not scalar and not architecture.masks:
        need = f"padded: {architecture.name} has no masked loads and stores"
        reasons.append(Reason("edges", "loops.edges", loops.edges, need, "edges: padded, pack: both"))
    for distance, packed, name in ((loops.prefetch.a, packs_a, "a"), (loops.prefetch.b, packs_b, "b")):
        if distance and not packed:
            need = f"0, or {name.upper()} packed; otherwise a prefetch may reach beyond its memory"
            reasons.append(Reason("prefetch", f"loops.prefetch.{name}", str(distance), need))
    if loops.prefetch.packing and loops.pack == "none":
        reasons.append(Reason("prefetch", "loops.prefetch.packing", "true", "an operand that is packed", "pack: both"))
    if loops.prefetch.packing and LINE_FLOATS % loops.unroll:
        need = f"a divisor of {LINE_FLOATS}, the elements of a cache line, for prefetch.packing"
        reasons.append(Reason("prefetch", "loops.unroll", str(loops.unroll), need, "unroll: 2"))
    if reasons:
        return None
    ahead = (loops.prefetch.b, loops.prefetch.a) if swapped else (loops.prefetch.a, loops.prefetch.b)
    plan = BlockedPlan(
        lanes=lanes,
        tile_rows=rows,
        tile_vectors=columns // lanes,
        block_rows=blocks.n if swapped else blocks.m,
        block_columns=blocks.m if swapped else blocks.n,
        block_depth=blocks.k,
        unroll=loops.unroll,
        packs_left=packs_left,
        packs_right=packs_right,
        masked=loops.edges != "padded",
        fitted=loops.edges == "fitted",
        prefetch_left=ahead[0],
        prefetch_right=ahead[1],
        prefetch_c=loops.prefetch.c,
        prefetch_packing=loops.prefetch.packing,
        few=loops.few,
        dot_columns=loops.dot_columns or architecture.dot_columns,
        divide=_SWAPPED[loops.threads.divide] if swapped else loops.threads.divide,
        thread_count=loops.threads.count,
        parts_per_thread=loops.threads.parts,
        least_work=loops.threads.least_work,
        slice_unit=LINE_FLOATS if blocks.k % LINE_FLOATS == 0 == LINE_FLOATS % loops.unroll else loops.unroll,
    )
    if plan.tile_rows * plan.tile_vectors >= architecture.registers:
        got = f"{tile.rows} x {tile.columns}, which is {plan.tile_rows * plan.tile_vectors} vectors of sums"
        need = f"fewer than the {architecture.registers} vector registers of {architecture.name}"
        reasons.append(Reason("registers", "loops.micro_kernel", got, need, "fewer rows or columns"))
    floats = packs_left * plan.packed_floats("left") + packs_right * plan.packed_floats("right")
    if floats > MAX_PACKED_FLOATS:
        reasons.append(Reason("workspace", "loops.blocks", f"{ceil_div(4 * floats, 2**20)} MiB of packed operands", "at most 512 MiB"))
    return plan


def _sequence(name: str, spec: CpuGemmSpec, matrices: tuple[Matrix, Matrix, Matrix], epilogue: tuple[Step, ...]) -> LaunchSequence:
    """Dimensions, arguments and constraints of the instance; its one launch is a function call."""
    extents = {"m": "rows of A and C", "n": "columns of B and C", "k": "columns of A and rows of B"}
    dimensions = [Dimension(dimension, meaning, maximum=MAX_EXTENT) for dimension, meaning in extents.items()]
    constraints: list[Constraint] = []
    for matrix in matrices:
        dimensions += matrix.dimensions
        constraints += matrix.constraints
    for step in epilogue:
        dimensions += step.dimensions
        constraints += step.constraints
    reads_c = spec.beta == "argument"
    a, b, c = matrices
    arguments: list[Argument] = [ScalarArgument(dimension, "s32", meaning) for dimension, meaning in extents.items()]
    if spec.alpha == "argument":
        arguments.append(ScalarArgument("alpha", "f32", "factor of A B; with 0, A and B are not read", default=1.0))
    arguments += [a.argument("input"), *a.scalars, b.argument("input"), *b.scalars]
    if reads_c:
        arguments.append(ScalarArgument("beta", "f32", "factor of C; with 0, C is not read", default=0.0))
    arguments += [c.argument("inout", needed="beta") if reads_c else c.argument("output"), *c.scalars]
    terms = {store.argument.name for store in stores_of(epilogue)}
    arguments += [parameter for step in epilogue for parameter in step.parameters if parameter.name not in terms]
    arguments += [result_of(store, BY_ROWS) for store in stores_of(epilogue)]
    one = Formula("1")
    call = KernelLaunch(entry=name, grid=(one, one, one), block=(1, 1, 1), arguments=tuple(argument.name for argument in arguments))
    return LaunchSequence(
        name=name, dimensions=tuple(dimensions), arguments=tuple(arguments), launches=(call,), constraints=tuple(constraints)
    )


def packed(plan: CpuGemmPlan, sizes: Sequence[int]) -> dict[str, int]:
    """All dimensions of a problem of m, n, k without gaps between rows or columns."""
    return plan.sequence.completed(dict(zip(("m", "n", "k"), sizes, strict=True)))
