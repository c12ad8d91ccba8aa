"""Tensor maps: descriptions of arrays for the Tensor Memory Accelerator, as data, with the driver's checks.

A tensor map (CUtensorMap) describes an array in global memory and the box that one copy moves between it and shared memory. The
driver encodes it into 128 opaque bytes; here it stays readable, so that it can be planned, checked, printed and emulated without a
driver. The checks are those of cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col (cuda.h 13.0), whose only word is
CUDA_ERROR_INVALID_VALUE, and the rules of their documentation that the driver leaves unchecked. Axes count from the innermost one, as in
the driver's arrays.

Interleaved layouts, NC/8HWC8 and NC/16HWC16, keep channels in slices of 16 or 32 bytes. Their axes are, from the innermost: width, then
further spatial axes, the slices, the images; an index of axis 0 stands for a whole slice of bytes. A copy takes one slice, regardless of
the box's extent along that axis (seen on an H200: tests/data/tensor_copies_h200.npz)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal, get_args

Element = Literal["u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32_ftz", "tf32", "tf32_ftz"]
Interleave = Literal["none", "16B", "32B"]
Swizzle = Literal["none", "32B", "64B", "128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B"]
Fill = Literal["zeros", "nan"]
L2Promotion = Literal["none", "64B", "128B", "256B"]

ELEMENT_BYTES: dict[str, int] = {
    "u8": 1,
    "u16": 2,
    "u32": 4,
    "s32": 4,
    "u64": 8,
    "s64": 8,
    "f16": 2,
    "f32": 4,
    "f64": 8,
    "bf16": 2,
    "f32_ftz": 4,
    "tf32": 4,
    "tf32_ftz": 4,
}
"""Bytes of an element by type, in the order of CUtensorMapDataType. One byte of any meaning (int8, fp8) is u8."""


def copied_as(data_type: str) -> Element:
    """Element type of a tensor map for arrays of a type: bytes are bytes to TMA, and tf32 is stored as float32."""
    if data_type == "tf32":
        return "f32"
    if data_type in ("s8", "u8", "e4m3", "e5m2"):
        return "u8"
    return next(element for element in get_args(Element) if element == data_type)


FLOATING_ELEMENTS = frozenset(("f16", "f32", "f64", "bf16", "f32_ftz", "tf32", "tf32_ftz"))

SWIZZLE_SPANS: dict[str, int] = {
    "none": 0,
    "32B": 32,
    "64B": 64,
    **dict.fromkeys(("128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B"), 128),
}
"""Bytes within which a swizzle moves atoms."""

SLICE_BYTES: dict[str, int] = {"16B": 16, "32B": 32}
"""Bytes of a slice of channels by interleaved layout."""

MAP_BYTES = 128
MAP_ALIGNMENT = 64
MAX_AXES = 5
SHARED_ALIGNMENT = 128
"""Alignment of a box in shared memory (PTX ISA, cp.async.bulk.tensor)."""

_CHUNK_BYTES = 16
_ATOM_BYTES = {"128B_ATOM_32B": 32, "128B_ATOM_32B_FLIP_8B": 32, "128B_ATOM_64B": 64}
"""Bytes that a swizzle moves together, where they are not a chunk (sm_100 and later)."""
_MAX_EXTENT = 1 << 32
_MAX_STRIDE = 1 << 40
_MAX_BOX = 256
_MAX_COPY = 233_472
"""Bytes of a box: all the shared memory of an SM, the limit of the driver on an H200 (measurements/tensor_copies.md)."""
_MAX_ELEMENT_STRIDE = 8
_MAX_CHANNELS = 256
_MAX_PIXELS = 1024
_CORNER_BITS = {3: 16, 4: 8, 5: 5}
"""Bits of a signed corner offset by rank."""


@dataclass(frozen=True, slots=True)
class Im2col:
    """The walk of an im2col map over an array of pixels: axis 0 holds channels, the last axis images, those between are spatial; in an
    interleaved layout the spatial axes come first, then the slices of channels, then the images.

    Corners are offsets of the walked box from the first and from the last pixel of each spatial axis, innermost first.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels_per_pixel: int
    pixels_per_column: int


@dataclass(frozen=True, slots=True)
class TensorMap:
    """One tensor map. `strides` are bytes from one index to the next of axis 1, 2, ...; axis 0 is contiguous.

    `box` counts elements an axis that one copy traverses; with an element stride s it takes every s-th of them. An im2col map has
    no box. `base` is the array's memory: an array, a buffer or an address, depending on the launcher that receives the map.
    """

    element: Element
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...] = ()
    element_strides: tuple[int, ...] = ()
    """Empty: 1 along every axis. The one of axis 0 is ignored unless the layout is interleaved."""
    interleave: Interleave = "none"
    swizzle: Swizzle = "none"
    fill: Fill = "zeros"
    """Content of elements outside of the array, as a copy to shared memory sees them."""
    l2_promotion: L2Promotion = "none"
    im2col: Im2col | None = None
    bits: int = 8
    """Bits of a number that coordinates along axis 0 count, where the elements are bytes: 4 or 6 if numbers are packed. Extents and box
    count bytes."""
    padded: bool = False
    """True if each 16 of these numbers take 16 bytes of shared memory."""
    base: object = field(default=None, compare=False)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.extents)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.element]

    @property
    def unit_bytes(self) -> int:
        """Bytes of one index of axis 0: an element, or a slice of an interleaved layout."""
        return SLICE_BYTES.get(self.interleave, self.element_bytes)

    @property
    def spatial_axes(self) -> range:
        """Axes that an im2col map walks along."""
        return range(1, self.rank - 1) if self.interleave == "none" else range(self.rank - 2)

    @property
    def steps(self) -> tuple[int, ...]:
        """Element strides, one an axis."""
        steps = self.element_strides or (1,) * self.rank
        return (1, *steps[1:]) if self.interleave == "none" else steps

    @property
    def box_elements(self) -> tuple[int, ...]:
        """Elements an axis that a copy moves: channels and pixels for an im2col map; slices of an interleaved layout are one each."""
        if self.im2col is not None:
            pixels = self.im2col.pixels_per_column
            return (self.im2col.channels_per_pixel, pixels) if self.interleave == "none" else (1, pixels)
        counts = [-(-size // step) for size, step in zip(self.box, self.steps, strict=True)]
        if self.interleave != "none":
            counts[self.rank - 2] = 1
        return tuple(counts)

    @property
    def row_bytes(self) -> int:
        """Bytes of the innermost run of a box that is contiguous in the array: a row of elements, or a slice."""
        return self.box_elements[0] * self.element_bytes if self.interleave == "none" else self.unit_bytes

    @property
    def chunk_data(self) -> int:
        """Bytes of the array in each 16 bytes of shared memory."""
        return 2 * self.bits if self.padded else _CHUNK_BYTES

    @property
    def row_pitch(self) -> int:
        """Bytes from one row of a box to the next in shared memory: a swizzle wider than the row leaves room up to its span."""
        row = self.row_bytes // self.chunk_data * _CHUNK_BYTES if self.padded else self.row_bytes
        return max(row, SWIZZLE_SPANS[self.swizzle]) if self.interleave == "none" else row

    @property
    def rows(self) -> int:
        """Rows of a box."""
        return prod(self.box_elements[1:] if self.interleave == "none" else self.box_elements)

    @property
    def box_bytes(self) -> int:
        """Bytes that a copy moves, those outside of the array included; a barrier is to expect so many."""
        return self.rows * self.row_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory from the first to the last of a box."""
        return self.rows * self.row_pitch

    @property
    def array_bytes(self) -> int:
        """Bytes of global memory from the first to the last element of the array."""
        return self.unit_bytes + sum((n - 1) * s for n, s in zip(self.extents, (self.unit_bytes, *self.strides), strict=True))


def packed_strides(element: Element, extents: Sequence[int], interleave: Interleave = "none") -> tuple[int, ...]:
    """Byte strides of axis 1, 2, ... of an array without gaps."""
    unit = SLICE_BYTES.get(interleave, ELEMENT_BYTES[element])
    return tuple(unit * prod(extents[: axis + 1]) for axis in range(len(extents) - 1))


def swizzled(address: int, swizzle: Swizzle) -> int:
    """Place of the byte of a shared-memory address under a swizzle.

    The 16-byte chunk's number within the span (address bits 4 and up) is XORed with bits 7 and up: 3, 2 or 1 of them. The pattern hangs on
    the address, not on the box: it repeats every 1024, 512 or 256 bytes of shared memory (PTX ISA, "Swizzling modes"). Atoms of 32 bytes
    are XORed with two bits, those of 64 bytes with one; a flip exchanges the halves of each chunk in every other row (cuda.h).
    """
    atoms, atom = swizzle_atoms(swizzle)
    if atoms == 0:
        return address
    row = address >> 7
    return address ^ (row % atoms * atom) ^ (row % 2 * flipped_bytes(swizzle))


def flipped_bytes(swizzle: Swizzle) -> int:
    """Bytes that a swizzle exchanges within each chunk of every other row; 0 if it does not."""
    return 8 if swizzle.endswith("FLIP_8B") else 0


def swizzle_atoms(swizzle: Swizzle) -> tuple[int, int]:
    """Atoms of a span, and the bytes of one; none without a swizzle."""
    atom = _ATOM_BYTES.get(swizzle, _CHUNK_BYTES)
    return SWIZZLE_SPANS[swizzle] // atom, atom


def problems(tensor_map: TensorMap, address: int | None = None) -> tuple[str, ...]:
    """All violations of CUDA's rules for a map, each with its reason; empty for a valid map.

    `address` is where the array begins, if that is known. Shape errors hide errors that depend on them.
    """
    return refusals(tensor_map, address) or tuple(_unchecked(tensor_map))


def refusals(tensor_map: TensorMap, address: int | None = None) -> tuple[str, ...]:
    """Everything for which the driver refuses a map: `problems` without the rules that it does not check."""
    return tuple(_malformed(tensor_map)) or tuple(_refused(tensor_map, address))


def _unchecked(m: TensorMap) -> Iterator[str]:
    """Rules of cuda.h that the driver does not check: a copy through such a map is undefined."""
    if m.interleave == "32B" and m.swizzle != "32B":
        yield f"swizzle: {m.swizzle}; a 32-byte interleave needs the 32B swizzle, although the driver encodes such a map"


def _malformed(m: TensorMap) -> Iterator[str]:
    """Parts that do not belong to the format."""
    for name, allowed in (
        ("element", Element),
        ("interleave", Interleave),
        ("swizzle", Swizzle),
        ("fill", Fill),
        ("l2_promotion", L2Promotion),
    ):
        value = getattr(m, name)
        if value not in get_args(allowed):
            yield f"{name}: {value!r} is none of {', '.join(get_args(allowed))}"
    fewest = 1 if m.im2col is None and m.interleave == "none" else 3
    if not fewest <= m.rank <= MAX_AXES:
        why = "" if fewest == 1 else f" of an {'im2col' if m.im2col is not None else 'interleaved'} map"
        yield f"extents: {m.rank} axes; the rank{why} is {fewest} to {MAX_AXES}"
    if len(m.strides) != max(m.rank - 1, 0):
        yield f"strides: {len(m.strides)} for {m.rank} axes; every axis but the innermost has one"
    if m.element_strides and len(m.element_strides) != m.rank:
        yield f"element_strides: {len(m.element_strides)} for {m.rank} axes"
    if m.im2col is None:
        if len(m.box) != m.rank:
            yield f"box: {len(m.box)} sizes for {m.rank} axes"
        return
    if m.box:
        yield "box: an im2col map has none; its channels and pixels define the size of a copy"
    for name in ("lower", "upper"):
        corner = getattr(m.im2col, name)
        if len(corner) != m.rank - 2:
            yield f"im2col.{name}: {len(corner)} offsets for {m.rank - 2} spatial axes"


def _refused(m: TensorMap, address: int | None) -> Iterator[str]:
    yield from _bad_array(m, address)
    yield from _bad_box(m) if m.im2col is None else _bad_walk(m, m.im2col)
    if m.fill == "nan" and m.element not in FLOATING_ELEMENTS:
        yield f"fill: nan with elements of type {m.element}, which have none"


def _bad_array(m: TensorMap, address: int | None) -> Iterator[str]:
    unit = 32 if m.interleave == "32B" else 16
    because = " with a 32-byte interleave" if unit == 32 else ""
    if address is not None and address % unit:
        yield f"base: address 0x{address:x} is {address % unit} bytes past a multiple of {unit}, which it must be{because}"
    for axis, extent in enumerate(m.extents):
        if not 1 <= extent <= _MAX_EXTENT:
            yield f"extents[{axis}]: {extent}; 1 to 2^32 are possible"
    for axis, stride in enumerate(m.strides, 1):
        if stride % unit:
            yield f"strides of axis {axis}: {stride} bytes, which is no multiple of {unit}{because}"
        if not 0 <= stride < _MAX_STRIDE:
            yield f"strides of axis {axis}: {stride} bytes; 0 to 2^40 - 1 are possible"
    for axis, step in enumerate(m.element_strides):
        if not 1 <= step <= _MAX_ELEMENT_STRIDE:
            yield f"element_strides[{axis}]: {step}; 1 to {_MAX_ELEMENT_STRIDE} are possible"


def _bad_box(m: TensorMap) -> Iterator[str]:
    for axis, size in enumerate(m.box):
        if not 1 <= size <= _MAX_BOX:
            yield f"box[{axis}]: {size}; 1 to {_MAX_BOX} are possible"
    yield from _bad_row(m, "box[0]", m.box[0])
    size = m.element_bytes * prod(size // step for size, step in zip(m.box, m.steps, strict=True) if step > 0)
    if size > _MAX_COPY:
        yield f"box: {size} bytes; {_MAX_COPY} are possible, the shared memory of an SM"


def _bad_walk(m: TensorMap, walk: Im2col) -> Iterator[str]:
    limit = 1 << (_CORNER_BITS[m.rank] - 1)
    for name in ("lower", "upper"):
        for axis, offset in enumerate(getattr(walk, name)):
            if not -limit <= offset < limit:
                yield f"im2col.{name}[{axis}]: {offset}; with {m.rank} axes {-limit} to {limit - 1} are possible"
    for axis, low, high in zip(m.spatial_axes, walk.lower, walk.upper, strict=True):
        extent = m.extents[axis]
        if extent + high - low <= 0:
            yield f"im2col: the box is empty along axis {axis}: it begins at {low} and ends at {extent - 1 + high}"
    if not 1 <= walk.channels_per_pixel <= _MAX_CHANNELS:
        yield f"im2col.channels_per_pixel: {walk.channels_per_pixel}; 1 to {_MAX_CHANNELS} are possible"
    if not 1 <= walk.pixels_per_column <= _MAX_PIXELS:
        yield f"im2col.pixels_per_column: {walk.pixels_per_column}; 1 to {_MAX_PIXELS} are possible"
    yield from _bad_row(m, "im2col.channels_per_pixel", walk.channels_per_pixel)


def _bad_row(m: TensorMap, name: str, count: int) -> Iterator[str]:
    """The innermost run of elements against its alignment and the swizzle's span."""
    size, span = count * m.element_bytes, SWIZZLE_SPANS[m.swizzle] if m.interleave == "none" else 0
    row = f"{name}: {count} elements of {m.element_bytes} bytes are {size} bytes"
    if size % _CHUNK_BYTES:
        yield f"{row}, which is no multiple of {_CHUNK_BYTES}"
    if span and size > span:
        yield f"{row}; a {m.swizzle} swizzle takes rows of at most {span}"
