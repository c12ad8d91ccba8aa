"""float32 products on tensor cores: operands split into planes of a smaller type, and the loss of accuracy.

The idea is that of Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
theoretical peak performance" (2022): a float32 number is the sum of two or three numbers of fewer bits, whose products a tensor
core forms exactly. Rows of A and columns of B are scaled here by powers of two, so that float16 serves numbers of any magnitude;
and rows that planes cannot represent are found while splitting, and computed in float32.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

from gemmgen.core.formulas import Formula
from gemmgen.kernels.accuracy import UNIT_ROUNDOFF
from gemmgen.kernels.gemm.sequence import MAX_EXTENT, MAX_REDUCTION_GROUPS
from gemmgen.kernels.gemm.spec import Arithmetic
from gemmgen.kernels.gemm.tensor_cores.factors import Factor, WorkspacePart, offset_of, parts_bytes
from gemmgen.kernels.matrix import Matrix

SchemeName = Literal["f16x3", "bf16x6", "bf16x9", "tf32x3"]

SPLIT_THREADS = 256
READ_AHEAD = 8
"""Vectors of 16 bytes that a thread reads ahead of a row."""
CHUNK = 32
"""Values of k that a thread splits of an operand whose rows do not run along k."""
PROMOTE_STEPS = 2
REPAIR_TILE = 64
REPAIR_K = 16
REPAIR_THREADS = 256
REPAIR_LINES = 8
"""Marked rows and columns of a tile that are computed one by one; where there are more, the tile is."""
STORED_MATRICES = 4
"""Matrices of a tile that the code of an epilogue stores, blocks of rows counted; where there are more, it runs several times: the code
compiles sooner, for 2% of the time of 4096 x 4096 x 4096 by tiles of 128 x 128 on an H200, and 3% where k is 256."""
SETS_OF_SUMS = 2
"""Beside the float32 sums of a product by planes: the leading product of some steps, and the others."""
SHALLOW_FACTOR = 1.001
"""c of products below the least depth, made in double precision: one rounding to float32, and the error of double precision, 2^-53."""
NEAR_THE_END = 2.0**127
"""Smaller sums keep the rounding errors of their additions: no step from one to the next overflows."""
RANGE_BITS = 28
"""Binary orders of magnitude below the largest of its row that a number may lie, for two float16 to hold 21 bits of it: the second
plane, 2^11 times the remainder of the first, ends at 2^-24, where the largest number of the row is below 2^15."""


@dataclass(frozen=True)
class Scheme:
    """A way to make float32 products of products of a smaller type."""

    name: SchemeName
    type: Literal["f16", "bf16", "f32"]
    """Type of a plane's elements; tf32 is stored as float32."""
    planes: int
    kept: tuple[tuple[int, int], ...]
    """Products of planes (of A, of B), beside that of the leading ones, in the order of their magnitude, smallest first."""
    significand_bits: int
    """Bits of the type's significand, the leading one included."""
    instruction_k: int
    scaled: bool
    """True if rows of A and columns of B are scaled to the range of the type, and the second plane by 2^significand_bits."""
    least_bits: int = 0
    largest_bits: int = 0
    """The magnitudes, as bits of float32, from which and below which an unscaled number is held."""
    measured_depth: int = 64
    """Smallest k from which on no measured error exceeds that of multiply-adds, on any data."""

    @property
    def element_bytes(self) -> int:
        return 4 if self.type == "f32" else 2

    @property
    def part_type(self) -> str:
        """The CUDA type of a plane's element."""
        return "unsigned" if self.type == "f32" else "unsigned short"

    @property
    def kept_factor(self) -> float:
        """Factor of the kept products at the end."""
        return 2.0**-self.significand_bits

    @property
    def kept_scale(self) -> float:
        """Scale of the kept products."""
        return 2.0**self.significand_bits

    @property
    def promote_every(self) -> int:
        """Values of k after which the leading product leaves the tensor core, if the spec leaves that open."""
        return PROMOTE_STEPS * self.instruction_k

    @property
    def products(self) -> int:
        """Products of planes for one of float32."""
        return 1 + len(self.kept)

    @property
    def held_bits(self) -> int:
        """Bits of a number that the planes hold at least. p planes of t bits have p t, and as many more as they have signs but the
        first; but one less for the smallest numbers of a row that is scaled."""
        bits = self.planes * self.significand_bits
        return bits + self.planes - 1 if bits >= 24 else bits - self.scaled

    def error_factor(self, k: int, promoted: int, compensated: bool, joined: bool = False) -> float:
        """c of the bound |C - AB| <= c u |A||B|, u = 2^-24, for ``k`` products an element, promoted every ``promoted``.

        It adds up, in units of u: the remainder of the operands beyond ``held_bits``; the products of planes that are left out;
        the tensor core's steps on the leading product, each of which cuts off its terms at 2^-25 of the largest and its sum at
        2^-23; the additions of a step's sum to float32; and the same steps on the kept products, which are smaller. Where all
        ``leave_together``, kept products are added up over ``promoted`` of k only, and the leading ones to them.

        A compensated addition s = fl(sum + x) keeps x - fl(s - sum) (Dekker's Fast2Sum). That is all of its error where |sum| >= |x|;
        else fl(s - sum), which is about x, is rounded itself, so that all additions together lose no more than u sum|x|. Adding up
        the kept errors rounds once more for each: at 2^-significand_bits of the result's magnitude where the kept products are in the
        same sum, at that of all errors so far where they are not. Sums that come to the end of float32's range may keep nothing; their
        additions have the error of plain ones (``range_factor``).

        ``joined``: the sum of a step also begins with the rounding error of the previous addition. The carried error is below u times the
        result, and by that much may be cut off more."""
        bits = self.significand_bits
        left_out = 0.0 if self.held_bits >= 24 else 2.0 ** (24 - self.held_bits)
        missing = {(i, j) for i in range(self.planes) for j in range(self.planes)} - {(0, 0), *self.kept}
        dropped = sum(2.0 ** (24 - bits * (i + j)) for i, j in missing)
        step = (self.instruction_k + 1) * 2.0**-25 / UNIT_ROUNDOFF + 2.0**-23 / UNIT_ROUNDOFF
        promotions = -(-max(k, 1) // promoted)
        leading = step * promoted / self.instruction_k
        ratio = sum(2.0 ** (-bits * (i + j)) for i, j in self.kept)
        together = joined or leave_together(self, compensated)
        instructions = promoted // self.instruction_k
        of_products = step * len(self.kept) * instructions * ratio * (1 if together else promotions)
        additions = 1 + promotions * (ratio + promotions * UNIT_ROUNDOFF) if compensated else promotions
        if together:
            leading *= 1 + ratio
            again = step * self.products * instructions if joined else promotions  # the rounding of the carried error
            additions = 1 + ratio + promotions * (1 + again) * UNIT_ROUNDOFF if compensated else promotions
        total = 2 * left_out + dropped + leading + additions + of_products + 3
        return total * 1.001  # products of errors, of which each is below 2^-10

    def least_depth(self, promoted: int, compensated: bool, parts_of_k: int = 1, joined: bool = False, slices: int = 1) -> int:
        """k from which on neither the bound nor any measured error is larger than that of multiply-adds in order of k."""
        depths = itertools.count(self.measured_depth)
        more = parts_of_k - 1 + slices_factor(slices)
        return next(k for k in depths if self.error_factor(k, promoted, compensated, joined) + more <= k)

    def holds(self, magnitudes: object) -> Any:
        """True if planes hold each row of a matrix of float32 numbers, as the kernel decides it: a flag for each row of
        ``magnitudes``, an array (..., rows, k)."""
        import numpy as np

        bits = np.ascontiguousarray(magnitudes, np.float32).view(np.uint32) & np.uint32(0x7FFFFFFF)
        largest = bits.max(axis=-1, initial=0).astype(np.int64)
        least = np.where(bits == 0, np.uint32(0xFFFFFFFF), bits - np.uint32(1)).min(axis=-1, initial=0xFFFFFFFF).astype(np.int64) + 1
        if self.scaled:
            high = np.maximum(largest >> 23, 1)
            low = np.where(largest == 0, high, least >> 23)
            return (high < 255) & (low >= high - RANGE_BITS)
        return (largest == 0) | ((largest < self.largest_bits) & (least >= self.least_bits))


_HALFWAY_UP = (127 + 63) << 23
"""2^63: of larger numbers, smaller products of planes, which a tensor core adds up first, could be infinite on their own, and of the
other sign than the whole."""
_FAR_FROM_THE_BOTTOM = (127 - 100) << 23
"""2^-100: the parts of smaller numbers have fewer bits."""

SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("f16x3", "f16", 2, ((1, 0), (0, 1)), 11, 16, True),
        Scheme("tf32x3", "f32", 2, ((1, 0), (0, 1)), 11, 8, False, _FAR_FROM_THE_BOTTOM, _HALFWAY_UP, measured_depth=320),
        Scheme("bf16x6", "bf16", 3, ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1)), 8, 16, False, _FAR_FROM_THE_BOTTOM, _HALFWAY_UP),
        Scheme(
            "bf16x9",
            "bf16",
            3,
            ((2, 2), (2, 1), (1, 2), (2, 0), (0, 2), (1, 1), (1, 0), (0, 1)),
            8,
            16,
            False,
            _FAR_FROM_THE_BOTTOM,
            _HALFWAY_UP,
        ),
    )
}


@dataclass(frozen=True)
class PlaneOperand(Factor):
    """A float32 operand that is split."""

    k_major: bool
    """True if k runs along its rows in memory."""
    vector: int
    """Elements that one load reads."""
    scheme: Scheme
    kept: bool = False
    """True if its planes were made before, and are an argument."""
    least_depth: int = 0
    """k below which all of its lines are marked."""
    in_mainloop: bool = False
    """True if the kernel that multiplies splits it, and says which of its lines are marked."""
    row_of_block: bool = False
    """True if a block splits a row of it, where rows run along k; else each warp does. Of few, long rows warps would leave SMs idle."""

    @property
    def kept_name(self) -> str:
        """Argument that holds its planes, if they are kept."""
        return f"planes_{self.suffix}"

    @property
    def leading_dimension(self) -> str:
        return f"ld{self.suffix}"

    @property
    def batch_stride(self) -> str | None:
        return self.matrix.batch_stride

    @property
    def count(self) -> str:
        """Matrices: as many as the batch has products, or one that all of them share."""
        return f"select({self.batch_stride} == 0, 1, batch)" if self.batch_stride else "1"

    @property
    def ahead(self) -> int:
        """Values, or vectors, of a row on their way to a lane."""
        return 2 * READ_AHEAD if self.vector == 1 else READ_AHEAD

    @property
    def row_team(self) -> Literal["warp", "block"]:
        """Threads that split a row together, where rows run along k."""
        return "block" if self.row_of_block else "warp"

    @property
    def pitch_multiple(self) -> int:
        """Elements that a row of a plane is a multiple of: 32 bytes, a sector of the L2, which TMA then reads once.

        Tensor maps need 16; 2500 x 2500 x 2500 took 20% longer with those on an H200.
        """
        return 32 // self.scheme.element_bytes

    @property
    def rows(self) -> str:
        """Rows of a plane in memory."""
        return self.extent if self.k_major else "k"

    @property
    def columns(self) -> str:
        return "k" if self.k_major else self.extent

    @property
    def pitch(self) -> str:
        return f"round_up({self.columns}, {self.pitch_multiple})"

    @property
    def plane_bytes(self) -> str:
        return f"{self.rows} * {self.pitch} * {self.scheme.element_bytes}"

    @property
    def blocks(self) -> str:
        """Blocks of the kernel that splits or measures it."""
        if self.k_major:
            return self.extent if self.row_of_block else f"ceil_div({self.extent}, {SPLIT_THREADS // 32})"
        return f"ceil_div({self.extent}, {SPLIT_THREADS}) * max(1, ceil_div(k, {CHUNK}))"


@dataclass(frozen=True)
class SplitCall:
    """Treatment of one operand in one kernel."""

    step: Literal["measure", "split"]
    operand: PlaneOperand

    @property
    def blocks(self) -> str:
        """Blocks for all matrices of the batch."""
        blocks, count = self.operand.blocks, self.operand.count
        return blocks if count == "1" else f"{blocks} * {count}"


@dataclass(frozen=True)
class SplitKernel:
    """A kernel before the product."""

    entry: str
    meaning: str
    calls: tuple[SplitCall, ...]

    @property
    def operands(self) -> tuple[PlaneOperand, ...]:
        return tuple(call.operand for call in self.calls)

    @property
    def grid(self) -> Formula:
        return Formula(f"select(min(m, n) > 0, {' + '.join(call.blocks for call in self.calls)}, 0)")


@dataclass(frozen=True)
class PlanesPlan:
    """Everything around a product of planes."""

    scheme: Scheme
    operands: tuple[PlaneOperand, PlaneOperand]
    name: str
    promoted_steps: int
    """Instructions along k after which the leading product leaves the tensor core."""
    compensated: bool
    """True if the rounding errors of adding leading products are kept."""
    parts_of_k: int = 1
    """Blocks that have a part of k each, whose sums one of them adds up."""
    in_mainloop: bool = False
    """True if the kernel that multiplies splits A, and sums kept and leading products together."""
    matrices: tuple[int, int] = (1, 1)
    """Matrices of 8 columns, and blocks of rows, that a thread has sums of."""
    slices: int = 1
    """Slices of k, at most, whose sums a kernel behind the product adds up."""
    partial_bytes: str = ""
    """The workspace of these sums in bytes, a formula over the problem."""

    threads = SPLIT_THREADS
    chunk = CHUNK
    repair_tile = REPAIR_TILE
    repair_k = REPAIR_K
    repair_threads = REPAIR_THREADS
    repair_lines = REPAIR_LINES
    range_bits = RANGE_BITS

    @property
    def largest_k(self) -> int:
        """k up to which an int counts the elements read ahead of a row."""
        return MAX_EXTENT - (4 * READ_AHEAD * SPLIT_THREADS if self.slices > 1 else 0)

    @property
    def stored_matrices(self) -> int:
        """Matrices side by side that the same code of the epilogue stores before the next: a divisor of all, so few that the code stays
        short, since most of the time that a compiler takes for these kernels went into their epilogue."""
        columns, rows = self.matrices
        return max(count for count in range(1, columns + 1) if columns % count == 0 and (count == 1 or count * rows <= STORED_MATRICES))

    @property
    def store_turns(self) -> int:
        """Times that the epilogue's code runs for a tile."""
        return self.matrices[0] // self.stored_matrices

    def uses_row_multiple(self, parts: tuple[WorkspacePart, ...]) -> bool:
        """True if something lies behind planes in memory, whose rows are rounded up."""
        return any("kRowMultiple" in part.c_bytes for part in parts[:-1])

    @property
    def marked_before(self) -> tuple[PlaneOperand, ...]:
        """Operands whose lines are marked when the kernel that multiplies begins."""
        return tuple(operand for operand in self.operands if not operand.in_mainloop)

    @property
    def together(self) -> bool:
        """True if all products of some steps leave the tensor core together, the smaller ones first."""
        return not self.in_mainloop and leave_together(self.scheme, self.compensated)

    def error_factor(self, k: int) -> float:
        """c of the bound |C - AB| <= c u |A||B|, u = 2^-24, where planes hold both factors."""
        if k < self.least_depth:
            return SHALLOW_FACTOR
        promoted = self.promoted_steps * self.scheme.instruction_k
        return self.scheme.error_factor(k, promoted, self.compensated, self.in_mainloop) + self.parts_of_k - 1 + slices_factor(self.slices)

    def range_factor(self, k: int) -> float:
        """The factor where |A||B| reaches ``NEAR_THE_END``: rounding errors of additions may not be kept there."""
        if self.scheme.scaled or k < self.least_depth:
            return self.error_factor(k)
        promotions = -(-k // (self.promoted_steps * self.scheme.instruction_k))
        return self.error_factor(k) + promotions * self.compensated + min(self.slices, promotions) - 1

    @property
    def least_depth(self) -> int:
        """k from which on planes are used; the last kernel computes less deep products in double precision."""
        return self.operands[0].least_depth

    @property
    def split_operands(self) -> tuple[PlaneOperand, ...]:
        """Operands that every run splits before the product."""
        return tuple(operand for operand in self.operands if not (operand.kept or operand.in_mainloop))

    @property
    def split_alike(self) -> bool:
        """True if the same code splits both operands, so that it is compiled once."""
        a, b = self.operands
        alike = a.k_major and b.k_major and a.vector == b.vector
        return alike and not (a.in_mainloop or a.kept or b.kept or a.batch_stride or b.batch_stride)

    @property
    def split_apart(self) -> tuple[PlaneOperand, ...]:
        """Operands that have their own splitting code."""
        if self.split_alike:
            return self.operands[:1]
        return tuple(operand for operand in self.operands if not operand.in_mainloop)

    @property
    def kept_operand(self) -> PlaneOperand | None:
        """The one that comes with its planes."""
        return next((operand for operand in self.operands if operand.kept), None)

    @property
    def column_operands(self) -> tuple[PlaneOperand, ...]:
        """Operands whose rows do not run along k: a separate kernel finds their scales."""
        return tuple(operand for operand in self.split_operands if not operand.k_major)

    @property
    def splits_columns(self) -> bool:
        """True if a kernel before the product splits an operand whose rows do not run along k."""
        return any(not (operand.k_major or operand.in_mainloop) for operand in self.operands)

    @property
    def parts(self) -> tuple[WorkspacePart, ...]:
        """The workspace, in order."""
        partials = (WorkspacePart("partials", "float", self.partial_bytes, ""),) if self.partial_bytes else ()
        return memory_parts(tuple(operand for operand in self.operands if not operand.kept)) + partials

    @property
    def kept_parts(self) -> tuple[WorkspacePart, ...]:
        """The array of planes that are kept, in order."""
        return memory_parts(tuple(operand for operand in self.operands if operand.kept))

    def offset_of(self, name: str) -> Formula:
        """Bytes from the start of the workspace, or of the array of kept planes, to the part of that name."""
        parts = self.parts if any(part.name == name for part in self.parts) else self.kept_parts
        return offset_of(parts, name)

    @property
    def workspace_bytes(self) -> Formula:
        return parts_bytes(self.parts)

    @property
    def kept_bytes(self) -> Formula:
        """The shape of the array of prepacked planes."""
        return parts_bytes(self.kept_parts)

    @property
    def zero_bytes(self) -> Formula:
        """The extremes, which every run starts from 0 and leaves at 0."""
        return parts_bytes(tuple(part for part in self.parts if part.name.startswith("extremes")))

    @property
    def kernels(self) -> tuple[SplitKernel, ...]:
        """The kernels before the product, in order."""
        return self._split_kernels(self.split_operands, self.name)

    @property
    def keeping_kernels(self) -> tuple[SplitKernel, ...]:
        """Kernels that make the planes which are kept."""
        return self._split_kernels(tuple(operand for operand in self.operands if operand.kept), f"{self.name}_keep")

    def _split_kernels(self, operands: tuple[PlaneOperand, ...], name: str) -> tuple[SplitKernel, ...]:
        first: list[SplitCall] = []
        second: list[SplitCall] = []
        for operand in operands:
            if not operand.k_major:
                first.append(SplitCall("measure", operand))
            (first if operand.k_major else second).append(SplitCall("split", operand))
        names = " and ".join(operand.name for operand in operands)
        if not second:
            return (SplitKernel(f"{name}_split", f"Splits {names} into planes", tuple(first)),) if operands else ()
        measured = " and ".join(call.operand.name for call in second)
        also = "".join(f", and splits {call.operand.name}" for call in first if call.step == "split")
        return (
            SplitKernel(f"{name}_measure", f"Finds the extremes of {measured}{also}", tuple(first)),
            SplitKernel(f"{name}_split", f"Splits {measured}", tuple(second)),
        )


def memory_parts(operands: tuple[PlaneOperand, ...]) -> tuple[WorkspacePart, ...]:
    """Memory for operands that are split, in order."""

    def part(name: str, c_type: str, operand: PlaneOperand, size: str, c_size: str) -> WorkspacePart:
        if operand.count != "1":
            size, c_size = f"{size} * {operand.count}", f"{c_size} * ({operand.batch_stride} != 0 ? batch : 1)"
        return WorkspacePart(f"{name}_{operand.suffix}", c_type, size, c_size)

    arrays = [part("extremes", "unsigned", o, f"8 * {o.extent}", f"8LL * {o.extent}") for o in operands if not (o.k_major or o.in_mainloop)]
    arrays += [part("exponents", "int", o, f"4 * {o.extent}", f"4LL * {o.extent}") for o in operands]
    for o in (operand for operand in operands if not operand.in_mainloop):
        c_size = (
            f"{o.scheme.planes * o.scheme.element_bytes}LL * {o.rows} * (({o.columns} + kRowMultiple - 1) / kRowMultiple * kRowMultiple)"
        )
        arrays.append(part("planes", o.scheme.part_type, o, f"{o.scheme.planes} * {o.plane_bytes}", c_size))
    return tuple(arrays)


def slices_factor(slices: int) -> float:
    """c that the sum of so many slices adds to that of their products.

    Compensated additions lose no more than u sum|x| (``Scheme.error_factor``), among the slices of a group of threads and again among the
    groups. Adding up these errors rounds once more for each, and twice where groups meet: by u of at most as many u as additions came
    before. At last it joins the sum.
    """
    roundings = slices + 2 * MAX_REDUCTION_GROUPS
    return 3 + roundings**2 * UNIT_ROUNDOFF if slices > 1 else 0.0


def plane_scheme(arithmetic: Arithmetic) -> Scheme:
    """Composition of float32 products from smaller ones, of which there is one."""
    return SCHEMES[str(arithmetic.f32_by)]


def is_compensated(arithmetic: Arithmetic) -> bool:
    """True if the rounding errors of adding leading products are kept."""
    return arithmetic.sums != "plain"


def leave_together(scheme: Scheme, compensated: bool) -> bool:
    """True if all products of some steps leave the tensor core together. Where nothing is scaled, sums may overflow; the registers of
    the rounding errors hold nothing else then, so that they can be ignored where they are NaN."""
    return compensated and not scheme.scaled


def planes_plan(
    name: str,
    arithmetic: Arithmetic,
    matrices: tuple[Matrix, Matrix, Matrix],
    tile_k: int,
    promote_every: int | str = "auto",
    parts_of_k: int = 1,
    matrices_held: tuple[int, int] = (1, 1),
    slices: int = 1,
    partial_bytes: str = "",
) -> PlanesPlan:
    """Steps around a product of planes. ``promote_every``: as in a spec;
    ``matrices_held``: matrices of 8 columns and blocks of rows that a thread has sums of; ``slices``: of k, at most, whose sums, of
    ``partial_bytes``, a kernel adds up."""
    scheme = plane_scheme(arithmetic)
    promoted = promote_every if isinstance(promote_every, int) else scheme.promote_every
    compensated = is_compensated(arithmetic)
    promoted_steps = min(promoted, tile_k) // scheme.instruction_k
    in_mainloop = arithmetic.split == "mainloop"
    least_depth = scheme.least_depth(promoted_steps * scheme.instruction_k, compensated, parts_of_k, in_mainloop, slices)
    a, b = (
        PlaneOperand(
            matrix,
            k_major=matrix.contiguous == "k",
            vector=4 if matrix.alignment >= 4 else 1,
            scheme=scheme,
            kept=arithmetic.kept == name,
            least_depth=least_depth,
            in_mainloop=in_mainloop and name == "a",
            row_of_block=in_mainloop or slices > 1,
        )
        for name, matrix in (("a", matrices[0]), ("b", matrices[1]))
    )
    return PlanesPlan(scheme, (a, b), name, promoted_steps, compensated, parts_of_k, in_mainloop, matrices_held, slices, partial_bytes)
