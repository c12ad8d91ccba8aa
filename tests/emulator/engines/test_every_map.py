"""Tensor copies through every kind of map: each byte is where an independent reference says, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod

import numpy as np
import pytest
from sampling import sampled

from gemmgen import emulator
from gemmgen.emulator import Im2col, InvalidCopy, TensorMap

from ..helpers import compile_ptx
from .prelude import PRELUDE

ROOM = 8192
SPANS = {"none": 0, "32B": 32, "64B": 64, "128B": 128}
SLICES = {"16B": 16, "32B": 32}
SIZES = {"u8": 1, "u16": 2, "f16": 2, "bf16": 2, "u32": 4, "s32": 4, "f32": 4, "f32_ftz": 4, "tf32": 4, "tf32_ftz": 4}
SIZES |= {"u64": 8, "s64": 8, "f64": 8}
NAN_FILL = b"\xf7\x7f"
"""Fill of an H200, for elements of every type."""
PLACES = ("within", "before", "behind", "outside")
REDUCED = {"u8": 0, "u16": 0}
"""Elements that copies of whole words stand for: no reduction has them."""


@dataclass(frozen=True)
class Case:
    """One copy: its operation, its map and its place."""

    direction: str
    im2col: bool
    rank: int
    interleave: str
    swizzle: str
    element: str
    fill: str
    place: str
    step: int

    @property
    def name(self) -> str:
        """Name that no other case has."""
        mode = "im2col" if self.im2col else "tile"
        return f"{self.direction}-{mode}-{self.rank}d-{self.interleave}-{self.swizzle}-{self.element}-{self.fill}-{self.place}-{self.step}"

    @property
    def unit(self) -> int:
        """Bytes of one index of axis 0."""
        return SLICES.get(self.interleave, SIZES[self.element])

    @property
    def spatial(self) -> range:
        """Axes that a column of pixels walks along."""
        return range(1, self.rank - 1) if self.interleave == "none" else range(self.rank - 2)

    @property
    def extents(self) -> tuple[int, ...]:
        """Elements an axis, innermost first: no two alike, and rows that end with a whole unit of 16 bytes."""
        first = (48 // self.unit, 6, 5, 4, 3) if self.interleave == "none" else (7, 6, 5, 4, 3)
        return first[: self.rank]

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one index to the next, of all axes, with gaps behind rows and planes."""
        found, reach = [self.unit], self.unit * self.extents[0]
        for extent in self.extents[1:]:
            found.append(-(-reach // 32) * 32 + 32)
            reach = found[-1] * extent
        return tuple(found)

    @property
    def corners(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Corners of the walked box, which differ from axis to axis: padding before, behind, on both sides. A store begins at no
        negative place."""
        spatial = len(self.spatial)
        lower = (-1, 0, -2) if self.direction == "load" else (0, 1, 0)
        return (lower[:spatial], (-1, 1, 0)[:spatial])

    @property
    def map(self) -> TensorMap:
        """The map, without an array."""
        wide = min(SPANS[self.swizzle] or 32, 32) // SIZES[self.element]
        steps = (1 if self.interleave == "none" else self.step, *[self.step] * (self.rank - 1))
        walk = Im2col(*self.corners, wide, 9) if self.im2col else None
        box = (wide, 3, 2, 3, 2)[: self.rank] if self.interleave == "none" else self._sliced_box()
        return TensorMap(
            self.element,  # type: ignore[arg-type]
            self.extents,
            self.strides[1:],
            () if self.im2col else box,
            steps,
            self.interleave,  # type: ignore[arg-type]
            self.swizzle,  # type: ignore[arg-type]
            self.fill,  # type: ignore[arg-type]
            im2col=walk,
        )

    def _sliced_box(self) -> tuple[int, ...]:
        box = [16 // min(SIZES[self.element], 16), 3, 2, 3, 2][: self.rank]
        box[self.rank - 2] = 5  # of slices a copy takes one, whatever the box says
        return tuple(box)

    @property
    def coordinates(self) -> tuple[int, ...]:
        """Where the copy begins."""
        whole = 16 // self.unit if self.unit < 16 else 1
        shift = {"within": 0, "before": -1, "behind": 1, "outside": 1}[self.place]
        found = [shift * whole, *[shift] * (self.rank - 1)]
        if self.place == "behind":
            found = [self.extents[0] - whole, *[extent - 1 for extent in self.extents[1:]]]
        if self.place == "outside":
            found[self.rank - 1] = self.extents[self.rank - 1]
        if self.im2col:
            # The start of a walk is one of its pixels.
            for axis, low in zip(self.spatial, self.corners[0], strict=True):
                found[axis] = low + self.step * {"before": 0, "within": max(0, -(low // self.step))}.get(self.place, 1)
            if self.place == "before":
                found[self.rank - 1] = 0
        return tuple(found)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Distance by which the pixels of a column are moved."""
        return (2, 0, 1)[: self.rank - 2] if self.place in ("before", "behind") else (0, 1, 0)[: self.rank - 2]


def every_case() -> list[Case]:
    """All kinds of map that the driver takes, in every direction."""
    found = []
    for interleave, im2col in product(("none", "16B", "32B"), (False, True)):
        ranks = range(3, 6) if im2col or interleave != "none" else range(1, 6)
        swizzles = ("32B",) if interleave == "32B" else tuple(SPANS)
        for rank, swizzle, element, place, step in product(ranks, swizzles, SIZES, PLACES, (1, 2)):
            for fill in ("zeros", "nan") if element[0] in "fbt" else ("zeros",):
                found.append(Case("load", im2col, rank, interleave, swizzle, element, fill, place, step))
            if place != "before":
                for direction in ("store", "add") if element not in REDUCED else ("store",):
                    if element[0] != "t" and "ftz" not in element and (direction, element) != ("add", "s64"):
                        found.append(Case(direction, im2col, rank, interleave, swizzle, element, "zeros", place, step))
    return found


# -- the reference ---------------------------------------------------------------------------------------------


def units(case: Case) -> list[list[tuple[int, ...]]]:
    """The indices, innermost first, of every unit of every row of the box."""
    begin, step, rank = case.coordinates, case.step, case.rank
    inner = case.map.box or (case.map.im2col.channels_per_pixel,)  # type: ignore[union-attr]
    if case.im2col:
        return [_row(case, pixel, inner[0]) for pixel in _pixels(case)]
    if case.interleave == "none":
        outer = [[begin[axis] + step * i for i in range(-(-case.map.box[axis] // step))] for axis in range(1, rank)]
        rows = [tuple(reversed(index)) for index in product(*reversed(outer))]
        return [[(begin[0] + i, *row) for i in range(inner[0])] for row in rows]
    axes = [[begin[axis] + step * i for i in range(-(-case.map.box[axis] // step))] for axis in range(rank)]
    axes[rank - 2] = [begin[rank - 2]]
    return [[tuple(reversed(index))] for index in product(*reversed(axes))]


def _row(case: Case, pixel: tuple[int, ...], channels: int) -> list[tuple[int, ...]]:
    *spatial, image = pixel
    if case.interleave == "none":
        return [(case.coordinates[0] + channel, *spatial, image) for channel in range(channels)]
    return [(*spatial, case.coordinates[case.rank - 2], image)]


def _pixels(case: Case) -> list[tuple[int, ...]]:
    """Pixel q of a column, as digits of q in the sizes of the walked box: spatial indices, then the image."""
    lower, upper = case.corners
    sizes = [-(-(case.extents[axis] + high - low) // case.step) for axis, low, high in zip(case.spatial, lower, upper, strict=True)]
    first = 0
    for place, (axis, low) in enumerate(zip(case.spatial, lower, strict=True)):
        first += (case.coordinates[axis] - low) // case.step * prod(sizes[:place])
    found = []
    for number in range(first, first + case.map.im2col.pixels_per_column):  # type: ignore[union-attr]
        digits = np.unravel_index(number % prod(sizes), sizes, order="F")
        moved = [
            int(low + case.step * digit + offset)
            for low, digit, offset in zip(lower, digits, case.offsets if case.direction == "load" else (0,) * 3, strict=False)
        ]
        found.append((*moved, case.coordinates[-1] + case.step * (number // prod(sizes))))
    return found


def faults(case: Case) -> bool:
    """True where a column that is stored walks through padding of an image: an H200 stops there."""
    if case.direction == "load" or not case.im2col:
        return False
    walked = [zip(case.spatial, pixel, strict=False) for pixel in _pixels(case)]
    return any(not 0 <= index < case.extents[axis] for pixel in walked for axis, index in pixel)


def place_of(case: Case, row: int, unit: int, byte: int, base: int) -> int:
    """Where a byte of the box lies in shared memory."""
    length = len(units(case)[0]) * case.unit
    address = base + row * (max(length, SPANS[case.swizzle]) if case.interleave == "none" else length) + unit * case.unit + byte
    chunks = SPANS[case.swizzle] // 16
    if not chunks:
        return address
    chunk, line = address // 16, address // 128
    return (chunk ^ line % chunks) * 16 + address % 16


@cache
def pairs(case: Case, base: int) -> tuple[np.ndarray, np.ndarray]:
    """Every byte of the box: its place in shared memory, and in the array (-1: outside)."""
    shared, array = [], []
    for row, indices in enumerate(units(case)):
        for unit, index in enumerate(indices):
            inside = all(0 <= i < extent for i, extent in zip(index, case.extents, strict=True))
            begin = sum(i * stride for i, stride in zip(index, case.strides, strict=True))
            for byte in range(case.unit):
                shared.append(place_of(case, row, unit, byte, base))
                array.append(begin + byte if inside else -1)
    return np.array(shared), np.array(array)


# -- the kernels -----------------------------------------------------------------------------------------------

KERNEL = r"""
extern "C" __global__ void NAME(const __grid_constant__ CUtensorMap map, uint4* room, u32 base, int c0, int c1, int c2, int c3, int c4,
                                int o0, int o1, int o2, u32 bytes) {
    __shared__ __align__(1024) uint4 tile[512]; __shared__ u64 bar;
    for (int i = threadIdx.x; i < 512; i += 128) tile[i] = room[i];
    if (threadIdx.x == 0) { init(&bar, 1); fence_init(); }
    u32 to = shared_address(tile) + base, b = shared_address(&bar); (void)to; (void)b;
    fence_async(); __syncthreads();
    BODY
    __syncthreads();
    for (int i = threadIdx.x; i < 512; i += 128) room[i] = tile[i];
}
"""
LOAD = """if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.prefetch.tensor.RANKd.L2.global.MODE [%0, {COORDINATES}]OFFSETS;" :: "l"(&map), "r"(0), "r"(0) OPERANDS);
        arrive_expect(&bar, bytes);
        asm volatile("cp.async.bulk.tensor.RANKd.shared::cluster.global.MODE.mbarrier::complete_tx::bytes [%1], [%0, {COORDINATES}], [%2]OFFSETS;"
                     :: "l"(&map), "r"(to), "r"(b) OPERANDS : "memory");
    }
    wait(&bar, 0);"""  # noqa: E501
STORE = """if (threadIdx.x == 0) {
        asm volatile("FORM.RANKd.global.shared::cta.OPERATIONMODE.bulk_group [%0, {COORDINATES}], [%1];"
                     :: "l"(&map), "r"(to), "r"(b) OPERANDS : "memory");
        commit(); wait_group<0>();
    }"""


@cache
def program() -> str:
    """A kernel for every direction, mode and rank, as PTX."""
    kernels = [PRELUDE]
    for direction, im2col, rank in product(("load", "store", "add"), (False, True), range(1, 6)):
        if im2col and rank < 3:
            continue
        offsets = im2col and direction == "load"
        operands = "".join(f', "r"(c{axis})' for axis in range(rank))
        if offsets:
            operands += "".join(f', "h"((u16)o{axis})' for axis in range(rank - 2))
        words = {
            "RANK": str(rank),
            "MODE": ("im2col" if offsets else "im2col_no_offs") if im2col else "tile",
            "COORDINATES": ", ".join(f"%{3 + axis}" for axis in range(rank)),
            "OFFSETS": ", {" + ", ".join(f"%{3 + rank + axis}" for axis in range(rank - 2)) + "}" if offsets else "",
            "OPERANDS": operands,
            "FORM": "cp.reduce.async.bulk.tensor" if direction == "add" else "cp.async.bulk.tensor",
            "OPERATION": "add." if direction == "add" else "",
        }
        body = LOAD if direction == "load" else STORE
        for word, text in words.items():
            body = body.replace(word, text)
        kernels.append(KERNEL.replace("BODY", body).replace("NAME", f"{direction}_{int(im2col)}_{rank}"))
    return compile_ptx("".join(kernels), "compute_90a")


def elements_of(case: Case, count: int, first: int) -> np.ndarray:
    """So many bytes of elements, none of them zero; of floats, values that every type and every rounding keeps."""
    size = SIZES[case.element]
    numbers = (np.arange(count // size) * 7 + first) % 120 + 1
    if case.element in ("f16", "f64"):
        return numbers.astype(f"f{size}").view(np.uint8)
    if case.element[0] in "ft":
        return numbers.astype(np.float32).view(np.uint8)
    if case.element == "bf16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return numbers.astype(f"u{size}").view(np.uint8)


def added(case: Case, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Sums of elements, as bytes."""
    if case.element == "bf16":
        one, other = ((part.view(np.uint16).astype(np.uint32) << 16).view(np.float32) for part in (old, new))
        return ((one + other).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    dtype = {"f16": "f2", "f32": "f4", "f64": "f8"}.get(case.element, f"u{SIZES[case.element]}")
    total: np.ndarray = (old.view(dtype) + new.view(dtype)).view(np.uint8)
    return total


def run(case: Case, base: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Array and shared memory, before and after."""
    size = -(-(case.strides[-1] * case.extents[-1]) // 64) * 64
    array, room = elements_of(case, size, 3), elements_of(case, ROOM, 50)
    before, tile = array.copy(), room.copy()
    scalars = [base, *(case.coordinates + (0,) * 5)[:5], *(case.offsets + (0,) * 3)[:3], case.map.box_bytes]
    given = TensorMap(**{field: getattr(case.map, field) for field in case.map.__slots__ if field != "base"}, base=array)
    entry = f"{case.direction}_{int(case.im2col)}_{case.rank}"
    launched = emulator.launch(program(), entry, grid=1, block=128, args=[given, tile.view(np.uint32), *scalars], hazards=True)
    assert not launched.findings
    return before, room, array, tile


def _form(case: Case) -> tuple[object, ...]:
    return case.direction, case.im2col, case.interleave, case.swizzle


CASES = sampled(every_case(), 300, lambda case: case.name, _form)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_byte_is_where_the_map_says(case: Case) -> None:
    base = 128 * (len(case.name) % 8)
    if faults(case):
        with pytest.raises(InvalidCopy, match="in padding; a GPU stops with an illegal instruction"):
            run(case, base)
        return
    before, room, array, tile = run(case, base)
    shared, places = pairs(case, base)
    inside = places >= 0
    if case.direction == "load":
        fill = np.zeros(len(shared), np.uint8)
        if case.fill == "nan":
            fill = np.resize(np.frombuffer(NAN_FILL, np.uint8), len(shared))
        room[shared] = np.where(inside, before[places], fill)
    else:
        new = room[shared[inside]]
        before[places[inside]] = added(case, before[places[inside]], new) if case.direction == "add" else new
    np.testing.assert_array_equal(tile, room)
    np.testing.assert_array_equal(array, before)


def test_the_list_has_every_kind_of_map() -> None:
    every = every_case()
    assert len(every) > 10_000 and len({case.name for case in every}) == len(every)
    assert {_form(case) for case in CASES} == {_form(case) for case in every}
    assert {case.element for case in CASES} == {case.element for case in every} == set(SIZES)
    shares = [(pairs(case, 0)[1] < 0).mean() for case in CASES[::9]]
    assert min(shares) == 0 and max(shares) == 1 and any(0 < share < 1 for share in shares)
