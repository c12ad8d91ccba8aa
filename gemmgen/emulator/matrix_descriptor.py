"""Matrix descriptors of wgmma and tcgen05: which 16-byte chunks of shared memory an operand lies in.

PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout". All layouts are made of chunks of 16 bytes, in groups of
eight that lie 16, 32, 64 or 128 bytes apart (the mode). K-major, a chunk runs along k and a group down the rows; otherwise a
chunk runs along the rows and a group along k. A swizzled mode exchanges the chunks of each row of 128 bytes or less by bits
of the address (`Swizzle<1 | 2 | 3, 4, 3>` in CuTe's words).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

CHUNK_BYTES = 16
_GROUP = 8
SPANS = (16, 128, 64, 32, 128)
"""Bytes of a row in each mode; 16 is no swizzle."""
WIDE_ATOMS = 4
"""The mode whose swizzle exchanges 32 bytes at a time, in groups of four rows (tcgen05, `Swizzle<2, 5, 2>`)."""
_WIDE_GROUP = 4
_ADDRESS = 0x3FFF


class MatrixDescriptor(NamedTuple):
    """A descriptor taken apart; addresses and offsets in bytes."""

    start: int
    leading: int
    stride: int
    base_offset: int
    mode: int
    continued: int | None = None
    """Address of the matrix whose rows continue the rows of this one behind their ends (tcgen05 on sm_103a)."""

    @property
    def span(self) -> int:
        """Bytes after which the rows of a group follow each other; also those that a swizzle permutes."""
        return SPANS[self.mode]

    def misplacement(self) -> int:
        """Bytes by which the first row misses the beginning of a swizzle's repeating pattern, as in `base_offset`."""
        if self.mode == 0:
            return 0
        pattern = _GROUP * self.span
        return (self.start // self.span * self.span - (self.base_offset << 7)) % pattern


def decode(bits: int) -> MatrixDescriptor:
    """A descriptor from its 64 bits."""
    address, leading, stride = (int(bits >> shift & _ADDRESS) << 4 for shift in (0, 16, 32))
    return MatrixDescriptor(address, leading, stride, bits >> 49 & 7, bits >> 62 & 3)


_TENSOR_MODES = {0: 0, 1: WIDE_ATOMS, 2: 1, 4: 2, 6: 3}
"""Modes by the three bits that say so in a descriptor of tcgen05."""
_TENSOR_VERSION = 1


def decode_tensor(bits: int, may_continue: bool = False) -> tuple[MatrixDescriptor, str | None]:
    """A descriptor of tcgen05 from its 64 bits, and the reason that it has no meaning, if it has none.

    ``may_continue``: bit 52 may say that the leading dimension is the address of a second matrix, where rows that cross the end of a
    swizzled row continue.
    """
    layout, version = bits >> 61 & 7, bits >> 46 & 7
    plain = decode(bits)._replace(mode=_TENSOR_MODES.get(layout, 0))
    if version != _TENSOR_VERSION:
        return plain, f"its bits 46 to 48 are {version:03b}, but have to be 001"
    if layout not in _TENSOR_MODES:
        return plain, f"its bits 61 to 63 are {layout}: no layout"
    if bits >> 53 & 0xFF or (bits >> 52 & 1 and not may_continue):
        return plain, "its bits 52 to 60 have to be zero"
    if bits >> 52 & 1 and plain.mode == 0:
        return plain, "its bit 52 is for layouts with a swizzle"
    return plain._replace(continued=plain.leading) if bits >> 52 & 1 else plain, None


class Chunks(NamedTuple):
    """An operand in shared memory."""

    addresses: np.ndarray
    """Addresses of the matrix's chunks."""
    distinct: np.ndarray
    """Their numbers, each once."""
    first: int
    """The lowest address."""
    end: int
    """Behind the last byte."""


@lru_cache(maxsize=1024)
def placed(descriptor: MatrixDescriptor, rows: int, row_chunks: int, k_major: bool) -> Chunks:
    """The chunks of an operand, and facts about them that are needed repeatedly."""
    addresses = chunks(descriptor, rows, row_chunks, k_major)
    return Chunks(addresses, np.unique(addresses // CHUNK_BYTES), int(addresses.min()), int(addresses.max()) + CHUNK_BYTES)


@lru_cache(maxsize=1024)
def chunks(descriptor: MatrixDescriptor, rows: int, row_chunks: int, k_major: bool) -> np.ndarray:
    """Addresses of the chunks of an operand of `rows` rows, after the swizzle.

    K-major: [rows, row_chunks], the chunks of a row along k. Otherwise `row_chunks` is the number of chunks along the rows:
    [k, row_chunks] with `rows` the depth k.
    """
    span, leading, stride = descriptor.span, descriptor.leading, descriptor.stride
    outer, chunk = np.arange(rows)[:, None], np.arange(row_chunks)[None, :]
    per_span = span // CHUNK_BYTES
    group = _WIDE_GROUP if descriptor.mode == WIDE_ATOMS else _GROUP
    inside = outer % group * span
    if k_major:
        along = chunk * (leading if descriptor.mode == 0 else CHUNK_BYTES)
        offsets = inside + outer // _GROUP * stride + along
    elif descriptor.mode == 0:
        offsets = inside + outer // _GROUP * leading + chunk * stride
    else:
        offsets = inside + outer // group * stride + chunk % per_span * CHUNK_BYTES + chunk // per_span * leading
    addresses = offsets + descriptor.start
    if descriptor.continued is not None:
        behind = descriptor.start % span + along >= span
        addresses = np.where(behind, addresses - descriptor.start // span * span - span + descriptor.continued, addresses)
    if descriptor.mode == WIDE_ATOMS:
        addresses = addresses ^ ((addresses >> 7) - descriptor.base_offset & _WIDE_GROUP - 1) << 5
    elif per_span > 1:
        phase = (addresses >> 7) - descriptor.base_offset & per_span - 1
        addresses = addresses ^ phase << 4
    addresses.flags.writeable = False
    return addresses
