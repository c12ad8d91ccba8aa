"""Texture objects: an array of texels with the way in which it is sampled.

CUDA programming guide, "Texture Memory" and "Texture Fetching". Kernels know a texture by a handle; the texels are global memory that
kernels may read otherwise, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

AddressMode = Literal["clamp", "border", "wrap", "mirror"]
Filter = Literal["point", "linear"]

HANDLE_BASE = 0x7C00_0000_0000
"""The handle of the first texture of a launch; the others follow it."""
MAX_AXES = 3
_FRACTION = 256
"""Weights of linear filtering have 8 bits behind the point; halves are rounded up (seen on an H200)."""


@dataclass(frozen=True, slots=True, eq=False)
class Texture:
    """An array as a texture: shape (height, width, ...), outermost axis first, with an innermost axis of channels if there are several.

    `linear_memory`: it is fetched by whole numbers (tex1Dfetch), and gives zero outside.
    """

    array: Any
    channels: int = 1
    filter: Filter = "point"
    address: AddressMode = "clamp"
    normalized: bool = False
    """Coordinates run from 0 to 1."""
    as_float: bool = False
    """Integers of 8 or 16 bits are read as numbers between 0, or -1, and 1."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedTexture:
    """A texture of a launch, and where its texels begin in global memory."""

    texture: Texture
    base: int
    dtype: np.dtype
    extents: tuple[int, ...]
    """Texels along each axis, innermost first; the layers or faces, if there are any, are the last axis."""
    pitch: int = 0
    """Bytes from row to row; 0: rows have no gaps between them."""

    @property
    def texel_bytes(self) -> int:
        """Bytes of all channels of a texel."""
        return self.dtype.itemsize * self.texture.channels

    def offsets(self, numbers: np.ndarray) -> np.ndarray:
        """Byte offsets in global memory of texels by their number."""
        if not self.pitch:
            return np.asarray(numbers * self.texel_bytes + self.base)
        places: np.ndarray = numbers // self.extents[0] * self.pitch + numbers % self.extents[0] * self.texel_bytes + self.base
        return places


def placed_texture(texture: Texture, array: np.ndarray, base: int, pitch: int = 0) -> PlacedTexture:
    """The texture over an array that lies at a place. Raises ValueError for values that CUDA would reject."""
    shape = array.shape if texture.channels == 1 else array.shape[:-1]
    if texture.channels not in (1, 2, 4) or (texture.channels > 1 and array.shape[-1:] != (texture.channels,)):
        raise ValueError(f"a texture has 1, 2 or 4 channels, as the innermost axis; the array has the shape {array.shape}")
    if not 1 <= len(shape) <= MAX_AXES or min(shape, default=0) < 1:
        raise ValueError(f"a texture has one to {MAX_AXES} axes; the array has the shape {array.shape}")
    if array.dtype.itemsize > 4 or array.dtype.kind not in "iuf":
        raise ValueError(f"texels are integers or floats of up to 32 bits, not {array.dtype}")
    if texture.as_float and (array.dtype.kind == "f" or array.dtype.itemsize > 2):
        raise ValueError("only integers of 8 or 16 bits are read as normalised floats")
    if texture.filter == "linear" and array.dtype.kind != "f" and not texture.as_float:
        raise ValueError("linear filtering needs texels that are read as floats")
    if texture.address in ("wrap", "mirror") and not texture.normalized:
        raise ValueError(f"the address mode {texture.address} needs normalised coordinates")
    return PlacedTexture(texture, base, array.dtype, tuple(reversed(shape)), pitch)


Taps = list[tuple[np.ndarray, np.ndarray, np.ndarray]]
"""For each tap and lane the number of the texel, whether it exists, and its weight."""


def taps(placed: PlacedTexture, coordinates: list[np.ndarray], layer: np.ndarray | None = None) -> Taps:
    """Texels that a fetch reads. `layer`: the layer of each lane; numbers outside are clamped."""
    texture, count = placed.texture, len(coordinates[0])
    extents = placed.extents if layer is None else placed.extents[:-1]
    axes: list[Taps] = []
    for coordinate, extent in zip(coordinates, extents, strict=True):
        if coordinate.dtype.kind != "f":
            # By whole numbers: outside there is nothing.
            place = coordinate.astype(np.int64)
            axes.append([(np.clip(place, 0, extent - 1), (place >= 0) & (place < extent), np.ones(count))])
            continue
        x = coordinate.astype(np.float64) * (extent if texture.normalized else 1)
        if texture.filter == "point":
            axes.append([(*_at(np.floor(x), extent, texture), np.ones(count))])
            continue
        low = np.floor(x - 0.5)
        fraction = np.floor((x - 0.5 - low) * _FRACTION + 0.5) / _FRACTION
        axes.append([(*_at(low, extent, texture), 1 - fraction), (*_at(low + 1, extent, texture), fraction)])
    return _combined(axes, extents, _first_texel(placed, layer, count), count)


def gathered(placed: PlacedTexture, coordinates: list[np.ndarray]) -> Taps:
    """The four texels around a place in two dimensions, in the order of tex2Dgather."""
    texture, count = placed.texture, len(coordinates[0])
    axes: list[Taps] = []
    for coordinate, extent in zip(coordinates, placed.extents, strict=True):
        low = np.floor(coordinate.astype(np.float64) * (extent if texture.normalized else 1) - 0.5)
        axes.append([(*_at(low + step, extent, texture), np.ones(count)) for step in (0, 1)])
    taps = _combined(axes, placed.extents, np.zeros(count, np.int64), count)
    # Numbered (x, y): (0, 0), (0, 1), (1, 0), (1, 1) by _combined.
    return [taps[1], taps[3], taps[2], taps[0]]


def _first_texel(placed: PlacedTexture, layer: np.ndarray | None, count: int) -> np.ndarray:
    if layer is None:
        return np.zeros(count, np.int64)
    each = int(np.prod(placed.extents[:-1]))
    return np.clip(layer.astype(np.int64), 0, placed.extents[-1] - 1) * each


def _combined(axes: list[Taps], extents: tuple[int, ...], first: np.ndarray, count: int) -> Taps:
    taps = [(first, np.ones(count, np.bool_), np.ones(count))]
    stride = 1
    for places, extent in zip(axes, extents, strict=True):
        taps = [
            (number + index * stride, there & inside, weight * part) for number, there, weight in taps for index, inside, part in places
        ]
        stride *= extent
    return taps


def face_of(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The face of a cube map (+x, -x, +y, -y, +z, -z) that a direction meets, and the coordinates in it from 0 to 1.

    CUDA programming guide, "Cubemap Textures".
    """
    directions = [each.astype(np.float64) for each in (x, y, z)]
    size = np.abs(np.stack(directions))
    axis = np.argmax(size, axis=0)
    largest = np.maximum(size.max(axis=0), np.finfo(np.float64).tiny)
    x, y, z = directions
    negative = np.choose(axis, directions) < 0
    s = np.choose(axis, [np.where(negative, z, -z), x, np.where(negative, -x, x)])
    t = np.choose(axis, [-y, np.where(negative, -z, z), -y])
    return axis * 2 + negative, ((s / largest + 1) / 2).astype(np.float32), ((t / largest + 1) / 2).astype(np.float32)


def _at(place: np.ndarray, extent: int, texture: Texture) -> tuple[np.ndarray, np.ndarray]:
    """The texel along one axis that stands for a place, and whether there is one."""
    place = np.where(np.isnan(place), 0.0, np.clip(place, -(2.0**40), 2.0**40)).astype(np.int64)
    there = np.ones(len(place), np.bool_)
    match texture.address:
        case "border":
            there = (place >= 0) & (place < extent)
        case "wrap":
            place = place % extent
        case "mirror":
            turn = place % (2 * extent)
            place = np.where(turn < extent, turn, 2 * extent - 1 - turn)
        case _:
            pass
    return np.clip(place, 0, extent - 1), there


def as_numbers(texels: np.ndarray, as_float: bool) -> np.ndarray:
    """Texels as a kernel reads them: normalised floats if asked for."""
    if not as_float:
        return texels
    scaled: np.ndarray = np.maximum(texels.astype(np.float64) / np.iinfo(texels.dtype).max, -1.0)
    return scaled
