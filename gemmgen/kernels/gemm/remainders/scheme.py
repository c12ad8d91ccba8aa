"""The scheme of float64 products by products of 8-bit integers, and its error. The integers are remainders of scaled rows and columns.

The idea is that of Ozaki, Uchino and Imamura, "Ozaki Scheme II: A GEMM-oriented emulation of floating-point matrix multiplication using an
integer modular technique" (2025). Rows of A and columns of B are scaled by powers of two and rounded to integers. The product of these
integer matrices is known from its remainders modulo numbers that are pairwise coprime (Chinese remainder theorem), and each remainder is
the product of matrices of 8-bit remainders, whose sums int32 holds.

Let P be the product of the moduli and L² <= (P - 1) / 2. Each row of A and column of B is scaled by the largest power of two with which
its Euclidean norm is at most L (1 - 2^-20), so that the norm of its integers is at most L. By Cauchy and Schwarz, a product of two such
lines is an integer of magnitude L² at most, which the remainders determine. Rounding to integers changes each element by 1/2 at most, and
the product by (|a|₁ + |b|₁) / 2 + k / 4 <= sqrt(k) L + k / 4, in units of the integers' product. All that follows is exact up to three
roundings of the result.

A chain of k fused multiply-adds has the bound k u |a||b|, u = 2^-53 (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
section 3.1). One more product of 8-bit integers bounds |a||b| from below for each element of the result: magnitudes are cut to 7 bits,
and only every eighth value of k counts where k is large. Where (k - 3) u times that lower bound is less than sqrt(k) L + k / 4, a last
kernel computes the tile by fused multiply-adds, as it does for lines with infinities, NaN, or largest magnitudes beyond 2^400 or below
2^-400. So the bound of multiply-adds holds for every element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from gemmgen.kernels.gemm.spec import Arithmetic
from gemmgen.kernels.gemm.tensor_cores.factors import REGION_BYTES, Factor, WorkspacePart

SPLIT_THREADS = 256
MEASURED_K = 256
"""Values of k per block of the kernel that measures an operand whose lines do not run along k in memory."""
SPLIT_COLUMNS = 32
"""Lines of such an operand per block that measures or splits it, one per lane."""
SPLIT_K = 16
"""Values of k per thread that splits such an operand, so that the thread stores 16 bytes."""
JOIN_TILE = 64
"""Rows and columns of the result per block that joins or repairs it."""
JOIN_THREADS = 256
REPAIR_K = 16
PITCH_BYTES = 32
"""Alignment of each row of a plane: a sector of the L2."""
MAX_K = 65535
"""Largest k, for which sums of k products of two bytes have a magnitude below 2^30."""
PART_BITS = 40
"""Bits per part of a weight: sums of 16 products of a part and 256 plus a remainder are exact in float64."""
PARTS = 3
MARGIN_BITS = 20
RANGE = 400
"""The largest magnitude of a line must lie between 2^-RANGE and 2^RANGE."""
FEW_SAMPLES = 512
"""Values of k that count in the lower bound, at least, if k is that large."""
MAX_STRIDE_BITS = 3


def largest_moduli(count: int) -> tuple[int, ...]:
    """The ``count`` largest pairwise coprime numbers up to 256, in descending order."""
    moduli: list[int] = []
    for number in range(256, 1, -1):
        if len(moduli) < count and all(math.gcd(number, other) == 1 for other in moduli):
            moduli.append(number)
    return tuple(moduli)


@dataclass(frozen=True)
class Modulus:
    """A modulus, the constants by which kernels divide by it, and its weight in the sum of the Chinese remainder theorem."""

    number: int
    inverse: float
    """The reciprocal, rounded to float32."""
    factor: int
    """Rounded up 2^(31 + bits) / number: (u factor) >> (31 + bits) is the quotient of u < 2^31."""
    shift: int
    """Number of bits beyond 32 by which the product u factor is shifted."""
    bias: int
    """The largest multiple up to 2^30, which makes sums positive."""
    weights: tuple[float, ...]
    """Parts, the largest first, of the number below P whose remainder is 1 for this modulus and 0 for the others."""


@dataclass(frozen=True)
class Group:
    """Consecutive moduli whose product float32 holds. Kernels first reduce a number by the product, in float64."""

    first: int
    moduli: tuple[Modulus, ...]

    @property
    def product(self) -> int:
        return math.prod(modulus.number for modulus in self.moduli)

    @property
    def inverse(self) -> float:
        return 1.0 / self.product


@dataclass(frozen=True)
class RemainderScheme:
    """The moduli, and the constants that follow from them. The module's docstring defines P and L."""

    numbers: tuple[int, ...]

    parts = PARTS
    range = RANGE
    repair_k = REPAIR_K
    region_bytes = REGION_BYTES
    pitch_bytes = PITCH_BYTES
    measured_k = MEASURED_K
    split_columns = SPLIT_COLUMNS
    max_stride_bits = MAX_STRIDE_BITS
    few_bits = FEW_SAMPLES.bit_length()

    @property
    def count(self) -> int:
        return len(self.numbers)

    @property
    def planes(self) -> int:
        """Byte matrices of each factor and of the result: one per modulus, and one for the lower bound."""
        return self.count + 1

    @cached_property
    def product(self) -> int:
        """P, the product of the moduli."""
        return math.prod(self.numbers)

    @cached_property
    def norm(self) -> float:
        """The largest float64 below L."""
        return math.nextafter(float(math.isqrt((self.product - 1) // 2)), 0.0)

    @property
    def scaled_norm(self) -> float:
        """Largest Euclidean norm of a scaled line before it is rounded to integers: L with a margin for the rounding of norms."""
        return self.norm * (1 - 2.0**-MARGIN_BITS)

    @cached_property
    def product_parts(self) -> tuple[float, ...]:
        """P as a sum of parts, like the weights."""
        return self._parts(self.product)

    @cached_property
    def moduli(self) -> tuple[Modulus, ...]:
        return tuple(self._modulus(number) for number in self.numbers)

    @property
    def first_sums(self) -> tuple[float, ...]:
        """-256 times the sum of all weights, part by part: the start of the sum of products, because kernels read 256 plus a remainder."""
        return tuple(-256.0 * sum(parts) for parts in zip(*(modulus.weights for modulus in self.moduli), strict=True))

    @property
    def product_inverse(self) -> float:
        """The reciprocal of P, rounded to float64."""
        return 1.0 / self.product

    @property
    def groups(self) -> tuple[Group, ...]:
        """The moduli after 256 in groups of up to three. Modulo 256, the last byte is the remainder, so 256 needs no group."""
        return tuple(Group(first, self.moduli[first : first + 3]) for first in range(1, self.count, 3))

    def _modulus(self, number: int) -> Modulus:
        import numpy as np

        others = self.product // number
        shift = number.bit_length() - 1 - (number & (number - 1) == 0)
        return Modulus(
            number=number,
            inverse=float(np.float32(1.0 / number)),
            factor=-(-(1 << 32 + shift) // number),
            shift=shift,
            bias=(1 << 30) // number * number,
            weights=self._parts(others * pow(others, -1, number)),
        )

    def _parts(self, number: int) -> tuple[float, ...]:
        """A number up to P in parts of few bits; all numbers are cut at the same bits."""
        addends = []
        low = self.product.bit_length()
        for part in range(PARTS):
            low = max(low - PART_BITS, 0) if part < PARTS - 1 else 0
            addends.append(float(number >> low << low))
            number -= number >> low << low
        return tuple(addends)


SCHEMES = {f"int8x{count}": RemainderScheme(largest_moduli(count)) for count in (14, 15)}


def scheme_of(arithmetic: Arithmetic) -> RemainderScheme:
    """The scheme of a spec's ``mainloop.arithmetic.f64_by``."""
    return SCHEMES[str(arithmetic.f64_by)]


def stride_bits(k: int) -> int:
    """Base-2 logarithm of the stride along k at which values count in the lower bound."""
    return max(0, min(MAX_STRIDE_BITS, k.bit_length() - FEW_SAMPLES.bit_length()))


@dataclass(frozen=True)
class RemainderOperand(Factor):
    """A factor that kernels split into planes of remainders."""

    @property
    def k_major(self) -> bool:
        """True if the factor's lines (rows of A, columns of B) are contiguous along k."""
        return self.matrix.contiguous == "k"

    @property
    def vector(self) -> int:
        """Elements per load."""
        return 2 if self.matrix.alignment >= 2 else 1

    @property
    def blocks(self) -> str:
        """Blocks of the kernel that splits the factor, as a formula over the problem."""
        if self.k_major:
            return self.extent
        return f"ceil_div({self.extent}, {SPLIT_COLUMNS}) * max(1, ceil_div(k, {SPLIT_K * SPLIT_THREADS // SPLIT_COLUMNS}))"

    @property
    def measuring_blocks(self) -> str:
        """Blocks of the kernel that first computes the lines' norms, as a formula over the problem."""
        return f"ceil_div({self.extent}, {SPLIT_COLUMNS}) * ceil_div(k, {MEASURED_K})"


def workspace_parts(scheme: RemainderScheme, operands: tuple[RemainderOperand, RemainderOperand]) -> tuple[WorkspacePart, ...]:
    """The parts of the workspace, in order."""
    arrays = []
    for operand in operands:
        extent = operand.extent
        arrays.append(WorkspacePart(f"lines_{operand.suffix}", "Line", f"16 * {extent}", f"16LL * {extent}"))
        if not operand.k_major:
            chunks = f"ceil_div(k, {MEASURED_K})"
            c_chunks = f"((k + {MEASURED_K - 1}) / {MEASURED_K})"
            name = f"measured_{operand.suffix}"
            arrays.append(WorkspacePart(name, "Extremes", f"16 * {extent} * {chunks}", f"16LL * {extent} * {c_chunks}"))
    tiles = f"4 * ceil_div(m, {JOIN_TILE}) * ceil_div(n, {JOIN_TILE})"
    c_tiles = f"4LL * ((m + {JOIN_TILE - 1}) / {JOIN_TILE}) * ((n + {JOIN_TILE - 1}) / {JOIN_TILE})"
    arrays.append(WorkspacePart("marks", "int", tiles, c_tiles))
    for operand in operands:
        size = f"{scheme.planes} * {operand.extent} * round_up(k, {PITCH_BYTES})"
        c_size = f"{scheme.planes}LL * {operand.extent} * pitch_of(k)"
        arrays.append(WorkspacePart(f"planes_{operand.suffix}", "unsigned char", size, c_size))
    size = f"{scheme.planes} * m * round_up(n, {PITCH_BYTES})"
    arrays.append(WorkspacePart("products", "unsigned char", size, f"{scheme.planes}LL * m * pitch_of(n)"))
    return tuple(arrays)
