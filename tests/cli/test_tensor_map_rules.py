"""Every rule of cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col at its edge: the last map that it takes, and the first that it refuses,
with the same reason from Python and from the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import Run
from gemmgen import emulator
from gemmgen.emulator import Im2col, TensorMap
from gemmgen.hardware.tensor_map import packed_strides, problems

TILE = TensorMap("f32", (64, 16), (256,), (32, 8))
SLICED = TensorMap("u8", (8, 6, 5), (512, 4096), (16, 3, 2), interleave="16B")
WIDE = TensorMap("u8", (8, 6, 5), (512, 4096), (16, 3, 2), interleave="32B", swizzle="32B")


def pixels(rank: int, lower: int = 0, upper: int = 0, channels: int = 16, count: int = 8, **fields: object) -> TensorMap:
    """An im2col map of float32 over few pixels, its corners along the first spatial axis as told."""
    extents = (*(64, 40, 40, 40, 2)[: rank - 1], 2)
    rest = (0,) * (rank - 3)
    walk = Im2col((lower, *rest), (upper, *rest), channels, count)
    return replace(TensorMap("f32", extents, packed_strides("f32", extents), im2col=walk), **fields)


RULES = {
    "rank of a tiled map": (
        TensorMap("u8", (16,) * 5, packed_strides("u8", (16,) * 5), (16, 1, 1, 1, 1)),
        TensorMap("u8", (16,) * 6, packed_strides("u8", (16,) * 6), (16, 1, 1, 1, 1, 1)),
        "extents: 6 axes; the rank is 1 to 5",
    ),
    "rank of an interleaved map": (
        SLICED,
        TensorMap("u8", (16, 16), (16,), (16, 16), interleave="16B"),
        "2 axes; the rank of an interleaved map is 3 to 5",
    ),
    "rank of an im2col map": (
        pixels(3),
        TensorMap("f32", (16, 16), (64,), im2col=Im2col((), (), 16, 8)),
        "2 axes; the rank of an im2col map is 3 to 5",
    ),
    "extents, least": (replace(TILE, extents=(64, 1)), replace(TILE, extents=(64, 0)), "extents[1]: 0; 1 to 2^32"),
    "extents, most": (
        replace(TILE, extents=(64, 2**32), strides=(0,)),
        replace(TILE, extents=(64, 2**32 + 1), strides=(0,)),
        "extents[1]: 4294967297; 1 to 2^32",
    ),
    "strides, their multiple": (replace(TILE, strides=(272,)), replace(TILE, strides=(264,)), "264 bytes, which is no multiple of 16"),
    "strides, most": (replace(TILE, extents=(64, 1), strides=(2**40 - 16,)), replace(TILE, strides=(2**40,)), "0 to 2^40 - 1 are possible"),
    "strides with 32-byte slices": (
        replace(WIDE, strides=(544, 4352)),
        replace(WIDE, strides=(528, 4352)),
        "528 bytes, which is no multiple of 32 with a 32-byte interleave",
    ),
    "box, least": (replace(TILE, box=(32, 1)), replace(TILE, box=(32, 0)), "box[1]: 0; 1 to 256"),
    "box, most": (replace(TILE, box=(32, 256)), replace(TILE, box=(32, 257)), "box[1]: 257; 1 to 256"),
    "box, its rows": (replace(TILE, box=(36, 8)), replace(TILE, box=(34, 8)), "136 bytes, which is no multiple of 16"),
    "box, its axes": (TILE, replace(TILE, box=(32,)), "box"),
    "steps, least": (replace(TILE, element_strides=(1, 1)), replace(TILE, element_strides=(1, 0)), "element_strides[1]: 0; 1 to 8"),
    "steps, most": (replace(TILE, element_strides=(1, 8)), replace(TILE, element_strides=(1, 9)), "element_strides[1]: 9; 1 to 8"),
    "rows and the 32-byte swizzle": (
        replace(TILE, box=(8, 8), swizzle="32B"),
        replace(TILE, box=(12, 8), swizzle="32B"),
        "48 bytes; a 32B swizzle takes rows of at most 32",
    ),
    "rows and the 64-byte swizzle": (
        replace(TILE, box=(16, 8), swizzle="64B"),
        replace(TILE, box=(20, 8), swizzle="64B"),
        "80 bytes; a 64B swizzle takes rows of at most 64",
    ),
    "rows and the 128-byte swizzle": (
        replace(TILE, swizzle="128B"),
        replace(TILE, box=(36, 8), swizzle="128B"),
        "144 bytes; a 128B swizzle takes rows of at most 128",
    ),
    "slices of 16 bytes and swizzles": (replace(SLICED, swizzle="128B"), replace(SLICED, swizzle="96B"), "swizzle: '96B' is none of none"),  # type: ignore[arg-type]
    "slices of 32 bytes and swizzles": (
        WIDE,
        replace(WIDE, swizzle="64B"),
        "swizzle: 64B; a 32-byte interleave needs the 32B swizzle, although the driver encodes such a map",
    ),
    "bytes of a box": (
        TensorMap("u64", (128, 512), (1024,), (128, 228)),
        TensorMap("u64", (128, 512), (1024,), (128, 229)),
        "box: 234496 bytes; 233472 are possible, the shared memory of an SM",
    ),
    "fill": (replace(TILE, fill="nan"), replace(TILE, element="s32", fill="nan"), "fill: nan with elements of type s32"),
    "promotion": (replace(TILE, l2_promotion="256B"), replace(TILE, l2_promotion="512B"), "l2_promotion: '512B' is none of"),  # type: ignore[arg-type]
    "channels, most": (pixels(3, channels=64), pixels(3, channels=260), "im2col.channels_per_pixel: 260; 1 to 256"),
    "channels, their bytes": (pixels(3, channels=4), pixels(3, channels=6), "24 bytes, which is no multiple of 16"),
    "channels and a swizzle": (
        pixels(4, channels=32, swizzle="128B"),
        pixels(4, channels=36, swizzle="128B"),
        "144 bytes; a 128B swizzle takes rows of at most 128",
    ),
    "pixels, least": (pixels(3, count=1), pixels(3, count=0), "im2col.pixels_per_column: 0; 1 to 1024"),
    "pixels, most": (pixels(3, count=1024), pixels(3, count=1025), "im2col.pixels_per_column: 1025; 1 to 1024"),
    "walk that is not empty": (pixels(3, 20, -19), pixels(3, 20, -20), "the box is empty along axis 1"),
} | {
    f"{which} corner of {rank} axes, {end}": (
        pixels(rank, **{which: inside}, **{other: balance}),
        pixels(rank, **{which: inside + step}, **{other: balance}),
        f"im2col.{which}[0]: {inside + step}; with {rank} axes {-limit} to {limit - 1} are possible",
    )
    for rank, limit in ((3, 32768), (4, 128), (5, 16))
    for which, other in (("lower", "upper"), ("upper", "lower"))
    for end, inside, step, balance in (
        ("least", -limit, -1, 0 if which == "lower" else -limit),
        ("most", limit - 1, 1, 0 if which == "upper" else limit - 1),
    )
}
"""By rule: a map that keeps it by nothing, one that breaks it by as little as possible, and the reason."""
KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry nothing(.param .align 64 .b8 map[128]) { ret; }
"""


def text_of(m: TensorMap) -> str:
    """A map as the command line takes it."""
    parts = [{"s32": "i32"}.get(m.element, m.element), _numbers(m.extents), f"strides {_numbers(m.strides)}" if m.strides else ""]
    parts += [f"box {_numbers(m.box)}" if m.box else "", f"steps {_numbers(m.element_strides)}" if m.element_strides else ""]
    parts += [f"{word} {value}" for word, value in (("interleave", m.interleave), ("swizzle", m.swizzle), ("fill", m.fill))]
    parts.append(f"promote {m.l2_promotion}")
    if m.im2col is not None:
        walk = m.im2col
        if walk.lower:
            parts += [f"lower {_numbers(walk.lower)}", f"upper {_numbers(walk.upper)}"]
        parts += [f"channels {walk.channels_per_pixel}", f"pixels {walk.pixels_per_column}"]
    return f"tensormap[{', '.join(part for part in parts if part)}]"


def _numbers(values: tuple[int, ...]) -> str:
    return "x".join(str(value) for value in reversed(values))


@pytest.mark.parametrize("rule", RULES)
def test_a_map_at_the_edge_of_a_rule_is_taken(rule: str) -> None:
    good, _, _ = RULES[rule]
    assert problems(good, 0) == ()
    if good.array_bytes < 1 << 27:
        emulator.launch(KERNEL, "nothing", grid=1, block=32, args=[replace(good, base=np.zeros(good.array_bytes, np.uint8))])


@pytest.mark.parametrize("rule", RULES)
def test_the_next_one_is_refused_with_its_reason(rule: str, run: Run) -> None:
    _, bad, reason = RULES[rule]
    assert any(reason in why for why in problems(bad)), problems(bad)
    with pytest.raises(emulator.BadLaunch) as raised:
        emulator.launch(KERNEL, "nothing", grid=1, block=32, args=[replace(bad, base=np.zeros(4096, np.uint8))])
    assert reason in str(raised.value) and "map: a tensor map that CUDA does not allow" in str(raised.value)
    Path("nothing.ptx").write_text(KERNEL)
    told = run("emulate", "nothing.ptx", "--grid", "1", "--block", "32", "--arg", text_of(bad), code=2)
    assert reason in told.err and "Traceback" not in told.err


@pytest.mark.parametrize(("interleave", "unit"), [("none", 16), ("16B", 16), ("32B", 32)])
def test_an_array_off_its_alignment_is_refused(interleave: str, unit: int) -> None:
    good = {"none": TILE, "16B": SLICED, "32B": WIDE}[interleave]
    array = np.zeros(good.array_bytes + 64, np.uint8)
    for offset in (unit, unit // 2):
        buffer = emulator.Buffer(array[offset:], offset_bytes=offset)
        if offset == unit:
            emulator.launch(KERNEL, "nothing", grid=1, block=32, args=[replace(good, base=buffer)])
        else:
            with pytest.raises(emulator.BadLaunch, match=f"{unit // 2} bytes past a multiple of {unit}"):
                emulator.launch(KERNEL, "nothing", grid=1, block=32, args=[replace(good, base=buffer)])
