"""Draws which lane has which elements of a tile and of the operands that it is the product of."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.kernels.pictures import Division, Fragments, Share
from gemmgen.present.drawing.divisions import Frame, draw_colored, draw_first, frame
from gemmgen.present.drawing.svg import WIDTH, Canvas

GAP = 14
LINE = 16
STRIP = 30.0
"""Width of an operand of which there is only one k."""
LEFT = 40.0
MIN_HEIGHT = 13.0
MIN_WIDTH = 21.0
"""Width of a piece in pixels at which its number is legible."""


def draw_fragments(canvas: Canvas, picture: Fragments, top: float) -> float:
    """Draws from ``top`` on; returns where the picture ends."""
    whole = picture.c
    single = picture.a is None or picture.a.columns == 1
    c = readable(whole, 470, 400) if single else whole
    place = frame(c, 0, 0, *((470, 400) if single else (230, 340)))
    width_a = _depth(picture.a.columns if picture.a else 0, 10.5)
    height_b = _depth(picture.b.rows if picture.b else 0, 6.5)
    x, y = LEFT + (width_a + GAP if picture.a else 0), top + 18 + (height_b + GAP if picture.b else 0)
    place = replace(place, x=x, y=y)
    with canvas.group(map="C", rows=whole.rows, columns=whole.columns):
        _draw(canvas, c, place, picture.lanes_of_a_color)
    if picture.a:
        rows = picture.a if c is whole else _cropped(picture.a, c.rows, picture.a.columns)
        left = Frame(x - GAP - width_a, y, width_a, place.height, rows.rows, rows.columns)
        _draw_operand(canvas, rows, left, picture.lanes_of_a_color)
        canvas.text(left.x, y - 7, picture.a.title, "head")
    if picture.b:
        columns = picture.b if c is whole else _cropped(picture.b, picture.b.rows, c.columns)
        above = Frame(x, y - GAP - height_b, place.width, height_b, columns.rows, columns.columns)
        _draw_operand(canvas, columns, above, picture.lanes_of_a_color)
        canvas.text(x - 8, above.y + 14, picture.b.title, "head end")
    bottom = y + place.height + LINE + 2
    size = f"{whole.title}: {whole.rows} {whole.row_axis} × {whole.columns} {whole.column_axis}"
    canvas.text(x, bottom, size, "text strong")
    if (c.rows, c.columns) != (whole.rows, whole.columns):
        canvas.text(x, bottom + LINE, f"of which {c.rows} × {c.columns} are shown; the others follow alike", "note")
        bottom += LINE
    beside = max(x + place.width, LEFT + 330) + 36
    at = top + 18 + 10
    for note in picture.notes:
        at = canvas.paragraph(beside, at, note, "note", WIDTH - beside, LINE) + 6
    return max(bottom + 6, at)


def _depth(extent: int, scale: float) -> float:
    return STRIP if extent <= 1 else min(330.0, extent * scale)


def _draw_operand(canvas: Canvas, operand: Division, place: Frame, members: int) -> None:
    with canvas.group(map=operand.title, rows=operand.rows, columns=operand.columns):
        if operand.owner == "lane":
            _draw(canvas, operand, place, members)
        else:
            draw_first(canvas, operand, place)


def _draw(canvas: Canvas, division: Division, place: Frame, members: int) -> None:
    draw_colored(canvas, division, place, members)
    for x, y, width, height in (place.box(rectangle) for rectangle in division.shares[0].rectangles):
        canvas.rect(x, y, width, height, "bold empty")


def readable(division: Division, width: float, height: float) -> Division:
    """The tile, or so much of it that the pieces have room for a number; at least until every owner has had a turn."""
    rectangles = [rectangle for share in division.shares for rectangle in share.rectangles]
    first = [share.rectangles[0] for share in division.shares]
    rows = _fitting(division.rows, max(row + rows for row, _, rows, _ in first), min(each[2] for each in rectangles) * height / MIN_HEIGHT)
    columns = _fitting(
        division.columns, max(column + wide for _, column, _, wide in first), min(each[3] for each in rectangles) * width / MIN_WIDTH
    )
    return division if (rows, columns) == (division.rows, division.columns) else _cropped(division, rows, columns)


def _fitting(extent: int, one_round: int, fitting: float) -> int:
    if extent <= fitting or extent % one_round:
        return extent
    return max(1, int(fitting // one_round)) * one_round


def _cropped(division: Division, rows: int, columns: int) -> Division:
    shares = []
    for share in division.shares:
        inside = tuple(
            (row, column, min(height, rows - row), min(width, columns - column))
            for row, column, height, width in share.rectangles
            if row < rows and column < columns
        )
        if inside:
            shares.append(Share(share.number, inside))
    return replace(division, rows=rows, columns=columns, shares=tuple(shares))
