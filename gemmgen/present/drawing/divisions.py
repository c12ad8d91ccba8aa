"""Draws a tile and the owners of its elements."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.kernels.pictures import Division, Rectangle, Share
from gemmgen.present.drawing.svg import COLORS, SIZES, Canvas, number, width_of

MAX_ASPECT = 4
"""Ratio of a tile's sides above which it is not drawn to scale."""
MAX_CELL = 48.0
"""Pixels of an element's longer side at most."""
MIN_BOLD = 6.0
"""Pixels of height from which on a piece has a bold border."""
MIN_CELL = 3.0
"""Pixels from line to line below which single elements are not drawn."""


@dataclass(frozen=True)
class Frame:
    """Place of a tile on the page, and its scale."""

    x: float
    y: float
    width: float
    height: float
    rows: int
    columns: int

    def box(self, rectangle: Rectangle) -> tuple[float, float, float, float]:
        """Left, top, width and height of some elements, in pixels."""
        row, column, rows, columns = rectangle
        across, down = self.width / self.columns, self.height / self.rows
        return self.x + column * across, self.y + row * down, columns * across, rows * down


def frame(division: Division, x: float, y: float, width: float, height: float) -> Frame:
    """The largest frame for the tile in some room, from its upper left corner, to scale as far as it can be."""
    aspect = min(max(division.columns / division.rows, 1 / MAX_ASPECT), MAX_ASPECT)
    wide = min(width, height * aspect, MAX_CELL * max(division.columns, division.rows * aspect))
    return Frame(x, y, wide, wide / aspect, division.rows, division.columns)


def shown_share(division: Division) -> Share:
    """The share that is looked at more closely: the one furthest up, and of those the one furthest to the right."""
    return min(division.shares, key=lambda share: (share.rectangles[0][0], -_right(share)[1]))


def _right(share: Share) -> Rectangle:
    top = share.rectangles[0][0]
    return max((each for each in share.rectangles if each[0] == top), key=lambda each: each[1])


def draw_shown(canvas: Canvas, division: Division, place: Frame) -> tuple[float, float, float, float]:
    """Draws the tile with one share in color; returns the box of that share's rectangle at the right."""
    canvas.rect(place.x, place.y, place.width, place.height, "plain edge")
    if not division.shares:
        _grid(canvas, place)
        return place.x, place.y, place.width, place.height
    shown = shown_share(division)
    label = _label_kind(division, place)
    for share in division.shares:
        if share is not shown:
            _draw_share(canvas, share, place, "plain thin", division.owner, label, everywhere=False)
    low = min(place.box(rectangle)[3] for rectangle in shown.rectangles) < MIN_BOLD
    _draw_share(canvas, shown, place, "c1 ink" if low else "c1 bold", division.owner, label, everywhere=False)
    return place.box(_right(shown))


def draw_colored(canvas: Canvas, division: Division, place: Frame, members: int) -> None:
    """Draws the tile with all shares in color, ``members`` neighbouring owners in the same."""
    canvas.rect(place.x, place.y, place.width, place.height, "plain edge")
    label = _label_kind(division, place)
    for share in division.shares:
        kind = f"c{share.number // members % COLORS} thin"
        _draw_share(canvas, share, place, kind, division.owner, label, everywhere=True)


def _draw_share(canvas: Canvas, share: Share, place: Frame, kind: str, owner: str, label: str, *, everywhere: bool) -> None:
    """The share's rectangles as one path, with its number in the first of them, or in all where it fits; in none without a label."""
    steps: list[str] = []
    numbers: list[tuple[float, float]] = []
    for rectangle in share.rectangles:
        x, y, width, height = place.box(rectangle)
        steps.append(f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}z")
        if label and _fits(str(share.number), label, width, height) and (everywhere or not numbers):
            numbers.append((x + width / 2, y + height / 2 + SIZES[label] * 0.36))
    canvas.path("".join(steps), kind, **{owner.split()[0]: share.number})
    for x, y in numbers:
        canvas.text(x, y, str(share.number), f"{label} mid")


def _label_kind(division: Division, place: Frame) -> str:
    """The largest class of text in which every share's number fits into its first rectangle; empty if there is none."""
    for kind in ("number", "cell", "tiny"):
        boxes = ((str(share.number), place.box(share.rectangles[0])) for share in division.shares)
        if all(_fits(label, kind, box[2], box[3]) for label, box in boxes):
            return kind
    return ""


APART = 4
"""Pixels between neighbouring numbers, so that 10 and 11 do not read as 1011."""


def _fits(label: str, kind: str, width: float, height: float) -> bool:
    return width_of(label, kind) <= width - APART and SIZES[kind] <= height


def _grid(canvas: Canvas, place: Frame) -> None:
    across, down = place.width / place.columns, place.height / place.rows
    steps = []
    if across >= MIN_CELL:
        steps += [f"M{number(place.x + at * across)} {number(place.y)}v{number(place.height)}" for at in range(1, place.columns)]
    if down >= MIN_CELL:
        steps += [f"M{number(place.x)} {number(place.y + at * down)}h{number(place.width)}" for at in range(1, place.rows)]
    if steps:
        canvas.path("".join(steps), "thin empty")


def draw_first(canvas: Canvas, division: Division, place: Frame) -> None:
    """Draws the tile's pieces without numbers, the first share's in color."""
    canvas.rect(place.x, place.y, place.width, place.height, "plain edge")
    for share in reversed(division.shares):
        steps = []
        for x, y, width, height in (place.box(rectangle) for rectangle in share.rectangles):
            steps.append(f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}z")
        canvas.path("".join(steps), "c0 bold" if share is division.shares[0] else "plain thin")
