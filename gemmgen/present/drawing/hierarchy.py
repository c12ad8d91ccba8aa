"""Draws the tile hierarchy: the whole problem, then one tile after the other at a larger scale."""

from __future__ import annotations

from gemmgen.kernels.pictures import ArrayOverview, Division, ProductOverview, TileHierarchy
from gemmgen.present.drawing.divisions import draw_shown, frame, shown_share
from gemmgen.present.drawing.svg import WIDTH, Canvas

OVERVIEW = 300
GAP = 26
ROOM = 200
"""Height that the tiles have."""
LINE = 16

Box = tuple[float, float, float, float]


def draw_hierarchy(canvas: Canvas, picture: TileHierarchy, top: float) -> float:
    """Draws from ``top`` on; returns where the picture ends."""
    tops = top + 26
    if isinstance(picture.overview, ProductOverview):
        box, y = _draw_product(canvas, picture.overview, tops)
    else:
        box, y = _draw_array(canvas, picture.overview, tops)
    ends = [_notes(canvas, 0, y, picture.overview.notes, OVERVIEW)]
    room = (WIDTH - OVERVIEW) / max(1, len(picture.levels))
    for place, level in enumerate(picture.levels):
        x = OVERVIEW + place * room + GAP
        box, end = _draw_level(canvas, level, x, tops, room - GAP, box)
        ends.append(end)
    return max(ends)


def _draw_level(canvas: Canvas, level: Division, x: float, top: float, room: float, zoomed: Box) -> tuple[Box, float]:
    place = frame(level, x, top, room, ROOM)
    for corner in (0, 1):
        canvas.line(zoomed[0] + zoomed[2], zoomed[1] + corner * zoomed[3], x, top + corner * place.height, "guide")
    canvas.text(x, top - 10, level.title, "head")
    name = level.title.replace(" ", "-")
    with canvas.group(level=name, rows=level.rows, columns=level.columns, shares=len(level.shares)):
        box = draw_shown(canvas, level, place)
    y = top + place.height + LINE
    size = f"{_extent(level.rows, level.row_axis)} × {_extent(level.columns, level.column_axis)}"
    y = canvas.paragraph(x, y, size, "text strong", room, LINE)
    notes = level.notes
    if level.shares:
        notes = (*notes, f"in color: {level.owner} {shown_share(level).number}")
    return box, _notes(canvas, x, y, notes, room)


def _extent(count: int, axis: str) -> str:
    """``64 m``, ``1 row``: a letter stays as it is, a plural becomes a singular."""
    return f"{count} {axis.removesuffix('s') if count == 1 and len(axis) > 1 else axis}"


def _notes(canvas: Canvas, x: float, y: float, notes: tuple[str, ...], room: float) -> float:
    for note in notes:
        y = canvas.paragraph(x, y, note, "note", room, LINE)
    return y


def _draw_product(canvas: Canvas, overview: ProductOverview, top: float) -> tuple[Box, float]:
    """C with the slices of A to the left and those of B above it; the box of the block's tile of C, and where it all ends."""
    deep, side, tile = 84.0, 144.0, 36.0
    # However many stages there are, their slices end within A and B, and leave room for the arrow.
    thick = min(12.0, (deep - 12) / (1 + overview.stages))
    left_a, left_c = 44.0, 44.0 + deep + 10
    top_b, top_c = top + 4, top + 4 + deep + 10
    row, column = top_c + tile, left_c + 2 * tile
    with canvas.group(tile_m=overview.tile_m, tile_n=overview.tile_n, tile_k=overview.tile_k, stages=overview.stages):
        canvas.rect(left_a, top_c, deep, side, "plain edge")
        canvas.rect(left_c, top_b, side, deep, "plain edge")
        canvas.rect(left_c, top_c, side, side, "plain edge")
        for line in range(1, 4):
            canvas.line(left_c + line * tile, top_c, left_c + line * tile, top_c + side, "thin")
            canvas.line(left_c, top_c + line * tile, left_c + side, top_c + line * tile, "thin")
        for stage in range(overview.stages):
            kind = "c0 bold" if stage == 0 else "c0 edge"
            canvas.rect(left_a + (1 + stage) * thick, row, thick, tile, kind, slice="a")
            canvas.rect(column, top_b + (1 + stage) * thick, tile, thick, kind, slice="b")
        canvas.rect(column, row, tile, tile, "c1 bold")
        canvas.line(left_a, row, left_a + deep, row, "guide")
        canvas.line(left_a, row + tile, left_a + deep, row + tile, "guide")
        canvas.line(column, top_b, column, top_b + deep, "guide")
        canvas.line(column + tile, top_b, column + tile, top_b + deep, "guide")
    canvas.text(left_a + 6, top_c + 18, overview.a, "head")
    canvas.text(left_c + 6, top_b + 18, overview.b, "head")
    canvas.text(left_c + 6, top_c + side - 8, overview.c, "head")
    if len(overview.k) == 1:
        canvas.text(left_a + 6, top_c + side - 8, f"{overview.m} × {overview.k}", "note")
        canvas.text(left_c + 6, top_b + deep - 8, f"{overview.k} × {overview.n}", "note")
        canvas.text(left_c + side - 6, top_c + side - 8, f"{overview.m} × {overview.n}", "note end")
    canvas.text(left_a - 6, row + tile / 2 + 4, str(overview.tile_m), "cell end")
    canvas.text(column + tile / 2, top_b - 5, str(overview.tile_n), "cell mid")
    canvas.text(left_a + 1.5 * thick, row + tile + 14, str(overview.tile_k), "cell mid")
    canvas.text(column + tile + 5, top_b + 1.5 * thick + 4, str(overview.tile_k), "cell")
    travelled = left_a + (1 + overview.stages) * thick
    canvas.arrow(travelled + 3, row + tile + 10, left_a + deep - 2, row + tile + 10)
    bottom = top_c + side + LINE + 4
    for label, axis in (("rows", overview.m), ("columns", overview.n), ("depth", overview.k)):
        if len(axis) > 1:
            canvas.text(0, bottom, f"{label}: {axis}", "note")
            bottom += LINE
    return (column, row, tile, tile), bottom


def _draw_array(canvas: Canvas, overview: ArrayOverview, top: float) -> tuple[Box, float]:
    """The array in tiles, those of the first block in color; the box of its first tile, and where it all ends."""
    left, width, rows, columns = 30.0, 240.0, 6, 6
    if not overview.rows:
        rows = 1
    high = 22.0
    across = width / columns
    with canvas.group(tile_rows=overview.tile_rows, tile_columns=overview.tile_columns):
        for row in range(rows):
            for column in range(columns):
                taken = (row, column) in overview.tiles_of_block
                canvas.rect(left + column * across, top + row * high, across, high, "c1 bold" if taken else "plain thin")
    canvas.text(left, top - 10, overview.name, "head")
    bottom = top + rows * high
    if overview.combines and overview.rows and overview.reduces_rows:
        canvas.arrow(left - 12, top, left - 12, bottom)
    elif overview.combines:
        canvas.arrow(left, bottom + 10, left + width, bottom + 10)
    bottom += 28
    if overview.rows:
        canvas.text(left, bottom, f"down: {overview.rows}", "note")
        bottom += LINE
    canvas.text(left, bottom, f"across: {overview.columns}", "note")
    if overview.combines:
        canvas.text(left, bottom + LINE, "arrow: elements that are combined", "note")
    row, column = min(overview.tiles_of_block, key=lambda place: (place[0], -place[1]))
    return (left + column * across, top + row * high, across, high), bottom + 2 * LINE + 6
