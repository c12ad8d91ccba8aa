"""Error bound of tensor cores against the exact product: a bound derived from how they align, add and cut off.

One instruction adds k' products to a sum: all terms are aligned to the largest exponent among them and cut off ``fraction_bits`` below
it, their sum is exact, and is cut off to the significand of the result. (Found on an H200, for every finite result of many matrices; the
emulator's tensor core does the same, bit for bit.)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Protocol

from gemmgen.core.elements import float_format
from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.accuracy import SMALLEST, accumulated

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Truncation:
    """The precision that a tensor core keeps."""

    fraction_bits: int
    """Bits of a term below the largest exponent."""
    result_bits: int
    """Bits of the sum's significand below its leading bit."""


class Mainloop(Protocol):
    """The numbers of a mainloop on tensor cores that decide how far its sums are off."""

    @property
    def type_a(self) -> str:
        """Element type of A."""

    @property
    def type_b(self) -> str:
        """Element type of B."""

    @property
    def tile_k(self) -> int:
        """Values of k of a step."""

    @property
    def instruction_k(self) -> int:
        """Values of k of an instruction."""

    @property
    def promote_steps(self) -> int:
        """Steps after which sums leave the accumulators; 0: they stay."""


WIDE = Truncation(25, 23)
"""For float16, bfloat16 and tf32."""
NARROW = Truncation(13, 13)
"""For 8-bit floats on ``wgmma``."""
TURING, TURING_STEP = Truncation(23, 23), 4
"""Bits that sm_75 keeps, and products that it adds at a time, at the least (Fasi, Higham, Mikaitis and Pranesh, Numerical behavior of
NVIDIA tensor cores, PeerJ Computer Science 2021)."""


def factors(element: str, values: npt.NDArray[np.generic]) -> Array:
    """Values that tensor cores read of a matrix: all of it, but of float32 as tf32 the upper 19 bits only."""
    import numpy as np

    if element != "tf32":
        return values.astype(np.float64)
    bits = values.astype(np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def product_bound(loop: Mainloop, slices: int, a: Array, b: Array, joined: int = 0, turing: bool = False) -> Array:
    """Largest error of a sum over k, for any order of the products; ``turing``: on sm_75."""
    size = magnitude(loop.type_a, a) @ magnitude(loop.type_b, b)
    return sum_error(loop, slices, a.shape[-1], joined, turing) * size + SMALLEST


def sum_error(loop: Mainloop, slices: int, k: int, joined: int = 0, turing: bool = False) -> float:
    """Largest error of a sum over k, as a share of the sum of the products' magnitudes; ``slices``: equal parts of k that are summed up
    by themselves; ``joined``: sums of unequal parts, of which one may be nearly as long as k.

    A term that is cut off loses less than 2^-fraction_bits of the largest one, and so does the sum so far; the rest of the sum loses
    2^-result_bits of itself. No term, and no sum on the way, is larger than S = |A| |B|, apart from the lost parts; the exponent of a
    subnormal factor is that of the smallest normal number, which stands for it. Sums that leave the tensor core are added up in float32.
    """
    truncation = TURING if turing else NARROW if loop.type_a in ("e4m3", "e5m2") else WIDE
    step = TURING_STEP if turing else loop.instruction_k
    chain = ceil_div(k, slices)
    parts = slices + joined
    if loop.promote_steps:
        chain = min(chain, loop.promote_steps * loop.tile_k)
        parts += ceil_div(k, chain) if chain else 0
    steps = ceil_div(min(chain + loop.tile_k, k), step)
    lost = steps * ((step + 1) * 2.0**-truncation.fraction_bits + 2.0**-truncation.result_bits)
    inside = lost / (1 - lost) if lost < 1 else inf
    outside = accumulated(parts) if parts > 1 else 0.0
    return inside + outside * (1 + inside)


def magnitude(element: str, values: Array) -> Array:
    """Sizes of numbers as the exponents of products see them: a subnormal number counts like the smallest normal one."""
    import numpy as np

    least = 2.0 ** float_format(element).least_exponent
    size = np.abs(values)
    return np.where((size > 0) & (size < least), least, size)
