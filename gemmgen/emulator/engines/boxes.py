"""Boxes of tensor maps: which bytes of an array one tensor copy moves, and where in shared memory they lie.

PTX ISA, "Tensors": tile mode takes a box of neighbouring elements at given coordinates, im2col mode a column of pixels that walks through
a bounding box. Elements outside of the array are not moved; in shared memory they appear as the map's fill. A box is rows of bytes that are
contiguous in the array; of an interleaved layout each slice of channels is a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gemmgen.emulator.residue_words import WORD_BYTES, require_whole
from gemmgen.hardware.tensor_map import MAP_BYTES, Im2col, Swizzle, TensorMap, flipped_bytes, swizzle_atoms

_CHUNK = 16
_PERIOD = 1024
"""Period of every swizzle's pattern, in bytes of shared memory."""
_MAGIC = b"tensor map\0\0"
_NAN_FILL = (0x7FF7).to_bytes(2, "little")
"""NaN fill for every element type: one pattern of 16 bits, repeated (seen on an H200)."""


@dataclass(frozen=True, slots=True)
class Box:
    """The units (1 to 16 bytes each) of one box. `inside`: which of them exist in the array; the other two count units."""

    unit: int
    inside: np.ndarray
    array: np.ndarray
    """Offset of each unit inside in global memory, from its base."""
    shared: np.ndarray
    """Offset of each unit in its block's shared memory."""


@dataclass(eq=False, slots=True)
class PlacedMap:
    """A tensor map whose array has been placed: `base` is its byte offset in global memory."""

    map: TensorMap
    base: int
    number: int
    changed: bool = False
    """True if a kernel has changed it: nobody has asked whether the driver would take it."""
    _places: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The 128 bytes that stand for the map in emulated memory."""
        return (_MAGIC + self.number.to_bytes(4, "little")) * (MAP_BYTES // 16)

    def tile(self, coordinates: Sequence[int], address: int, stores: bool = False) -> Box:
        """The box at these coordinates (innermost first), for a shared address.

        ``stores``: it is written to, or reduced into, the array. TMA does so with whole units of 16 bytes: where an
        array's rows end within one, so much beyond their ends is changed (seen on an H200, with elements of 2 and of 4 bytes).
        """
        m = self.map
        sliced = m.interleave != "none"
        strides = (m.unit_bytes, *m.strides)
        row_starts: np.ndarray = np.zeros(1, np.int64)
        row_inside: np.ndarray = np.ones(1, np.bool_)
        for axis in range(0 if sliced else 1, m.rank):
            step = m.steps[axis]
            index = coordinates[axis] + step * np.arange(m.box_elements[axis], dtype=np.int64)
            row_starts = (index[:, None] * strides[axis] + row_starts).ravel()
            axis_inside = (index >= 0) & (index < m.extents[axis])
            row_inside = np.outer(axis_inside, row_inside).ravel()
        if sliced:
            return self._box(0, m.unit_bytes, row_starts, row_inside, address)
        begin = coordinates[0] * m.bits // 8 * m.element_bytes
        return self._box(begin, m.extents[0] * m.element_bytes, row_starts, row_inside, address, stores)

    def pixels(self, coordinates: Sequence[int]) -> np.ndarray:
        """The pixels that an im2col map walks from these coordinates on, a row each: spatial indices, then the image's."""
        m, walk = self.map, self.map.im2col
        assert walk is not None
        return np.array(_walk(m, walk, [coordinates[axis] for axis in [*m.spatial_axes, m.rank - 1]]), np.int64)

    def column(self, coordinates: Sequence[int], offsets: Sequence[int], address: int, stores: bool = False) -> Box:
        """The pixels that an im2col map walks, each moved by offsets of the spatial axes; ``stores`` as for `tile`."""
        m = self.map
        axes = [*m.spatial_axes, m.rank - 1]
        pixels = self.pixels(coordinates)
        pixels[:, :-1] += np.array(offsets, np.int64)
        strides = (m.unit_bytes, *m.strides)
        row_starts = pixels @ np.array([strides[axis] for axis in axes], np.int64)
        beyond = (pixels < 0) | (pixels >= np.array([m.extents[axis] for axis in axes]))
        row_inside = np.all(~beyond, axis=1)
        if m.interleave == "none":
            return self._box(coordinates[0] * m.element_bytes, m.extents[0] * m.element_bytes, row_starts, row_inside, address, stores)
        piece = coordinates[m.rank - 2]
        row_inside &= 0 <= piece < m.extents[m.rank - 2]
        return self._box(0, m.unit_bytes, row_starts + piece * strides[m.rank - 2], row_inside, address)

    def _box(self, begin: int, row_end: int, row_starts: np.ndarray, row_inside: np.ndarray, address: int, stores: bool = False) -> Box:
        """The box of rows whose first byte is `begin`, in arrays whose rows are of `row_end` bytes."""
        m = self.map
        if m.element_bytes == 1 or (m.element_bytes < WORD_BYTES and not stores):
            require_whole(begin, row_end)
        low, high = -begin, (-(-row_end // _CHUNK) * _CHUNK if stores else row_end) - begin
        low, high = max(low, 0), min(high, m.row_bytes)
        apart = m.padded or bool(flipped_bytes(m.swizzle)) or begin % _CHUNK or low % _CHUNK or high % _CHUNK
        unit = m.element_bytes if apart else _CHUNK
        bytes_in_row = np.arange(0, m.row_bytes, unit)
        inside = (row_inside[:, None] & ((bytes_in_row >= low) & (bytes_in_row < high))).ravel()
        array = ((row_starts + (self.base + begin))[:, None] + bytes_in_row).ravel() // unit
        return Box(unit, inside, array, self._place(address, unit))

    def _place(self, address: int, unit: int) -> np.ndarray:
        """Places of the units of a box at a shared address, counted in units."""
        key = (address % _PERIOD, unit)
        known = self._places.get(key)
        if known is None:
            m = self.map
            rows = np.arange(m.rows, dtype=np.int64)[:, None] * m.row_pitch
            within = np.arange(0, m.row_bytes, unit)
            linear = (rows + within // m.chunk_data * _CHUNK + within % m.chunk_data).ravel() + key[0]
            known = self._places[key] = swizzled_addresses(linear, m.swizzle) // unit
        return known + (address - key[0]) // unit

    def fill(self, unit: int) -> np.ndarray:
        """One unit of the fill value for elements outside of the array."""
        m = self.map
        if m.fill == "zeros":
            return np.zeros(unit, np.uint8)
        return np.frombuffer(_NAN_FILL * (unit // len(_NAN_FILL)), np.uint8)


def swizzled_addresses(addresses: np.ndarray, swizzle: Swizzle) -> np.ndarray:
    """`tensor_map.swizzled` for many addresses."""
    atoms, atom = swizzle_atoms(swizzle)
    if atoms == 0:
        return addresses
    rows = addresses >> 7
    moved: np.ndarray = addresses ^ (rows % atoms * atom) ^ (rows % 2 * flipped_bytes(swizzle))
    return moved


def decode(content: bytes) -> int | None:
    """The number of the map that 128 bytes stand for; None if they are no map."""
    if content[: len(_MAGIC)] != _MAGIC or content != content[:16] * (MAP_BYTES // 16):
        return None
    return int.from_bytes(content[len(_MAGIC) : 16], "little")


def _walk(m: TensorMap, walk: Im2col, coordinates: Sequence[int]) -> list[list[int]]:
    """Coordinates of the pixels of a column (spatial axes, then the image), innermost first; it begins at `coordinates`.

    Images are stepped through like spatial axes, by their element stride (seen on an H200).
    """
    here = list(coordinates)
    last = [m.extents[axis] - 1 + upper for axis, upper in zip(m.spatial_axes, walk.upper, strict=True)]
    places = []
    for _ in range(walk.pixels_per_column):
        places.append(list(here))
        for axis, end in enumerate(last):
            here[axis] += m.steps[m.spatial_axes[axis]]
            if here[axis] <= end:
                break
            here[axis] = walk.lower[axis]
        else:
            here[-1] += m.steps[-1]
    return places
