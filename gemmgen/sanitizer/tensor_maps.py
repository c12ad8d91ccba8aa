"""Tensor maps as a user writes them: ``tensormap[bf16, 64x128, box 64x64, swizzle 128B]=random``.

Extents, boxes, strides and steps are written as NumPy writes shapes, outermost axis first, with an x between them. The array is made
along with the map, and is called as the parameter is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gemmgen.hardware.tensor_map import ELEMENT_BYTES, Im2col, Interleave, TensorMap, packed_strides, problems

FORM = "tensormap[bf16, 64x128, box 64x64, swizzle 128B]=random"
PREFIX = "tensormap["

_WORDS = ("box", "swizzle", "interleave", "strides", "steps", "fill", "promote", "lower", "upper", "channels", "pixels")
_OTHER_NAMES = {
    "s8": "u8",
    "i8": "u8",
    "e4m3": "u8",
    "e5m2": "u8",
    "s16": "u16",
    "i16": "u16",
    "i32": "s32",
    "i64": "s64",
}
"""Types of arrays that TMA moves as another type of the same size."""


@dataclass(frozen=True)
class DescribedMap:
    """A map without an array: the array's type, its shape (outermost axis first, or a run of elements if it has gaps), its content."""

    map: TensorMap
    type: str
    shape: tuple[int, ...]
    content: str | None


@dataclass
class _Reader:
    """Options of one text; `fail` makes the error for a reason."""

    given: dict[str, str]
    fail: Callable[[str], Exception]
    rank: int

    def numbers(self, word: str, default: tuple[int, ...] = (), axes: int | None = None) -> tuple[int, ...]:
        """A list of numbers, innermost first; as many as there are axes."""
        if word not in self.given:
            return default
        given_numbers = _numbers(self.given[word])
        wanted = self.rank if axes is None else axes
        if given_numbers is None:
            raise self.fail(f"{word} {self.given[word]!r}: expected numbers such as {'x'.join(['64'] * max(wanted, 1))}")
        if len(given_numbers) != wanted:
            raise self.fail(f"{word} has {len(given_numbers)} numbers; the array has {self.rank} axes, which makes {wanted}")
        return tuple(reversed(given_numbers))

    def number(self, word: str) -> int:
        """One number that has to be there."""
        if word not in self.given:
            raise self.fail(f"an im2col map needs {word}")
        (value,) = self.numbers(word, axes=1)
        return value

    def word(self, name: str, default: str) -> Any:
        """One word; its value is checked with the whole map."""
        return self.given.get(name, default)


def parse_tensor_map(text: str, types: tuple[str, ...], fail: Callable[[str], Exception]) -> DescribedMap:
    """The map that a text describes. `types` are those of arrays; raises `fail(reason)`."""
    match = re.fullmatch(r"tensormap\[(?P<inside>[^\]]*)\](?:=(?P<content>.*))?", text, re.DOTALL)
    if match is None:
        raise fail(f"expected a tensor map such as {FORM}")
    kind, extents, *options = [part.strip() for part in (*match["inside"].split(","), "")]
    element = _OTHER_NAMES.get(kind, kind)
    if kind not in types or element not in ELEMENT_BYTES:
        allowed = [name for name in types if _OTHER_NAMES.get(name, name) in ELEMENT_BYTES]
        raise fail(f"{kind!r} is not an element type of tensor maps; the types are {', '.join(allowed)}")
    shape = _numbers(extents)
    if shape is None:
        raise fail(f"{extents!r} is no shape; expected the extents behind the type, as in {FORM}")
    reader = _Reader(_options(options, fail), fail, len(shape))
    inner = tuple(reversed(shape))
    interleave: Interleave = reader.word("interleave", "none")
    strides = reader.numbers("strides", packed_strides(element, inner, interleave), axes=len(shape) - 1)
    described = TensorMap(
        element,
        inner,
        strides,
        reader.numbers("box"),
        reader.numbers("steps"),
        interleave,
        reader.word("swizzle", "none"),
        reader.word("fill", "zeros"),
        reader.word("promote", "none"),
        _im2col(reader),
    )
    wrong = problems(described)
    if wrong:
        raise fail("CUDA does not allow this tensor map (axes count from the innermost):" + "".join(f"\n  - {why}" for why in wrong))
    if "strides" in reader.given or interleave != "none":
        shape = (-(-described.array_bytes // described.element_bytes),)
    return DescribedMap(described, kind, tuple(shape), match["content"])


def _options(parts: list[str], fail: Callable[[str], Exception]) -> dict[str, str]:
    given = {}
    for part in parts:
        if not part:
            continue
        word, _, value = part.partition(" ")
        if word not in _WORDS or not value.strip():
            raise fail(f"{part!r} says nothing about a tensor map; options are {', '.join(_WORDS)}, each with a value")
        if word in given:
            raise fail(f"{word} is given twice")
        given[word] = value.strip()
    return given


def _im2col(reader: _Reader) -> Im2col | None:
    if not {"lower", "upper", "channels", "pixels"} & set(reader.given):
        return None
    spatial = max(reader.rank - 2, 0)
    corners = (0,) * spatial
    return Im2col(
        reader.numbers("lower", corners, spatial),
        reader.numbers("upper", corners, spatial),
        reader.number("channels"),
        reader.number("pixels"),
    )


def _numbers(text: str) -> tuple[int, ...] | None:
    try:
        return tuple(int(part) for part in text.split("x"))
    except ValueError:
        return None
