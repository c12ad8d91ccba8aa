"""One or several pictures of a plan as a page of SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gemmgen.kernels.pictures import (
    BankMaps,
    Fragments,
    LaneOrders,
    LoopCode,
    LoopNest,
    OccupancyPicture,
    Packing,
    Picture,
    RegisterBanks,
    RoofPicture,
    TapWalk,
    TileHierarchy,
    Timeline,
    Tree,
    WavePicture,
)
from gemmgen.present.drawing.banks import draw_bank_maps
from gemmgen.present.drawing.code import draw_loop_code
from gemmgen.present.drawing.descriptions import describe, title_of
from gemmgen.present.drawing.hierarchy import draw_hierarchy
from gemmgen.present.drawing.lanes import draw_lane_orders
from gemmgen.present.drawing.loops import draw_loops, draw_packing
from gemmgen.present.drawing.ownership import draw_fragments
from gemmgen.present.drawing.registers import draw_register_banks
from gemmgen.present.drawing.roofs import draw_roofs
from gemmgen.present.drawing.steps import draw_tap_walk
from gemmgen.present.drawing.svg import MARGIN, WIDTH, Canvas, document, number, width_of
from gemmgen.present.drawing.timeline import draw_occupancy, draw_timeline, draw_waves
from gemmgen.present.drawing.tree import draw_tree

BETWEEN = 36
"""Pixels from one picture to the next."""


def draw(name: str, pictures: Sequence[Picture]) -> str:
    """The pictures of the instance ``name``, one below the other, as an SVG document; the same bytes every time."""
    parts: list[str] = []
    y = float(MARGIN)
    for place, picture in enumerate(pictures):
        y += BETWEEN if place else 0
        canvas = Canvas()
        title = title_of(picture)
        beside = width_of(title, "title") + 16 + width_of(name, "note") <= WIDTH
        canvas.text(0, 16, title, "title")
        canvas.text(WIDTH if beside else 0, 16 if beside else 36, name, "note end" if beside else "note")
        end = _draw_one(canvas, picture, 30.0 if beside else 46.0)
        parts += [f'<g transform="translate({MARGIN} {number(y)})" data-picture="{picture.name}">', *canvas.parts, "</g>"]
        y += end
    titles = "; ".join(title_of(picture) for picture in pictures)
    return document(parts, y + MARGIN, f"{titles} ({name})", " ".join(describe(picture) for picture in pictures))


_DRAWN_BY: dict[type, Callable[..., float]] = {
    TileHierarchy: draw_hierarchy,
    Fragments: draw_fragments,
    LaneOrders: draw_lane_orders,
    BankMaps: draw_bank_maps,
    Timeline: draw_timeline,
    WavePicture: draw_waves,
    RoofPicture: draw_roofs,
    OccupancyPicture: draw_occupancy,
    RegisterBanks: draw_register_banks,
    LoopCode: draw_loop_code,
    TapWalk: draw_tap_walk,
    LoopNest: draw_loops,
    Packing: draw_packing,
    Tree: draw_tree,
}
"""Functions that draw pictures of each kind below a height of a canvas; they return the height at which the picture ends."""


def _draw_one(canvas: Canvas, picture: Picture, top: float) -> float:
    return _DRAWN_BY[type(picture)](canvas, picture, top)
