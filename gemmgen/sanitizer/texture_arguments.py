"""Textures as a user writes them: ``texture[f32, 64x128, linear, wrap, normalized]=random``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from gemmgen.emulator.textures import AddressMode, Filter, Texture

TEXTURE_FORM = "texture[f32, 64x128, linear]=random"
TEXTURE_PREFIX = "texture["

_FILTERS: tuple[Filter, ...] = get_args(Filter)
_MODES: tuple[AddressMode, ...] = get_args(AddressMode)


@dataclass(frozen=True)
class DescribedTexture:
    """A texture without an array: how it is sampled, the type of its texels, the array's shape with the channels, its content."""

    texture: Texture
    type: str
    shape: tuple[int, ...]
    content: str | None


def parse_texture(text: str, types: tuple[str, ...], fail: Callable[[str], Exception]) -> DescribedTexture:
    """Reads the text. Raises the error that `fail` makes of a reason."""
    inside, closing, content = text.removeprefix(TEXTURE_PREFIX).partition("]")
    if not closing or (content and not content.startswith("=")):
        raise fail(f"expected {TEXTURE_FORM}")
    kind, extents, *words = [part.strip() for part in inside.split(",")] + [""] * (2 - len(inside.split(",")))
    if kind not in types:
        raise fail(f"{kind!r} is not a known type; the types are {', '.join(types)}")
    if not re.fullmatch(r"[0-9]+(x[0-9]+){0,2}", extents):
        raise fail(f"{extents!r}: expected one to three extents such as 64x128, outermost first")
    shape = tuple(int(number) for number in extents.split("x"))
    options: dict[str, Any] = {}
    for word in words:
        if word in _FILTERS:
            options["filter"] = word
        elif word in _MODES:
            options["address"] = word
        elif word == "normalized":
            options["normalized"] = True
        elif word == "as float":
            options["as_float"] = True
        elif match := re.fullmatch(r"channels ([124])", word):
            options["channels"] = int(match[1])
        else:
            raise fail(f"{word!r}: expected {', '.join((*_FILTERS, *_MODES))}, normalized, as float, or channels 1, 2 or 4")
    texture = Texture(None, **options)
    channels = (texture.channels,) if texture.channels > 1 else ()
    return DescribedTexture(texture, kind, shape + channels, content[1:] if content else None)
