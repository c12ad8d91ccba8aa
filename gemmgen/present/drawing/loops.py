"""Draws a nest of loops, and operands as they are packed for its micro-kernel."""

from __future__ import annotations

from gemmgen.kernels.pictures import Loop, LoopNest, PackedOperand, Packing, Piece
from gemmgen.present.drawing.svg import WIDTH, Canvas, width_of

LINE = 16
TEXT = 250.0
"""Width of the text about a loop."""
BOX_WIDTH, BOX_HEIGHT = 136.0, 64.0
MAX_ASPECT = 4.0
LEAST = 4.0
"""Pixels of the thinnest piece."""
CELL_HEIGHT = 19.0
SHOWN = 4
"""Lines of a panel, and steps along k, that are drawn before the omitted ones."""


def draw_loops(canvas: Canvas, picture: LoopNest, top: float) -> float:
    """Draws from ``top`` on; returns where the picture ends."""
    y = top + 10
    for depth, loop in enumerate(picture.loops):
        y = _draw_loop(canvas, loop, depth, y)
    for note in picture.notes:
        y = canvas.paragraph(0, y + 4, note, "note", WIDTH, LINE)
    return y


def _draw_loop(canvas: Canvas, loop: Loop, depth: int, top: float) -> float:
    indent = 10.0 * depth
    room = TEXT - indent
    canvas.line(indent, top + 2, indent, top + BOX_HEIGHT, "wire")
    y = canvas.paragraph(indent + 8, top + 14, loop.title, "head", room)
    if loop.note:
        y = canvas.paragraph(indent + 8, y, loop.note, "note", room, LINE)
    x, ends = TEXT + 30, [y, top + BOX_HEIGHT + LINE]
    pieces = (loop.c, loop.left, loop.right)
    step = (WIDTH - x) / len(pieces)
    for place, piece in enumerate(pieces):
        if place:
            canvas.text(x + place * step - 22, top + BOX_HEIGHT / 2 + 5, "+=" if place == 1 else "×", "head mid")
        ends.append(_draw_piece(canvas, piece, x + place * step, top, step - 34, f"c{place}"))
    return max(ends) + 8


def _draw_piece(canvas: Canvas, piece: Piece, x: float, top: float, room: float, color: str) -> float:
    """The part of a matrix, with the elements that a loop iteration reads; returns where its text ends."""
    aspect = min(max(piece.columns / piece.rows, 1 / MAX_ASPECT), MAX_ASPECT)
    wide = min(BOX_WIDTH, BOX_HEIGHT * aspect, room - 16)
    high = wide / aspect
    label = width_of(piece.matrix, "head") + 6
    left = x + label
    y = top + (BOX_HEIGHT - high) / 2
    canvas.text(x, top + BOX_HEIGHT / 2 + 5, piece.matrix, "head")
    canvas.rect(left, y, wide, high, "plain edge")
    row, column, rows, columns = piece.taken
    across, down = wide / piece.columns, high / piece.rows
    taken_wide, taken_high = min(wide, max(LEAST, columns * across)), min(high, max(LEAST, rows * down))
    at_x, at_y = left + min(column * across, wide - taken_wide), y + min(row * down, high - taken_high)
    canvas.rect(at_x, at_y, taken_wide, taken_high, f"{color} ink", matrix=piece.matrix, rows=rows, columns=columns)
    return canvas.paragraph(x, top + BOX_HEIGHT + LINE, piece.held, "text strong", room + 20, LINE)


def draw_packing(canvas: Canvas, picture: Packing, top: float) -> float:
    """Draws from ``top`` on; returns where the picture ends."""
    y = top + 10
    for operand in picture.operands:
        y = _draw_operand(canvas, operand, y) + 20
    return y - 12


def _draw_operand(canvas: Canvas, operand: PackedOperand, top: float) -> float:
    """Two panels of the block, each element with its place in the packed memory, and that memory as a strip."""
    rows, columns = (operand.line_axis, "k") if operand.upright else ("k", operand.line_axis)
    extents = f"{operand.lines:,} {operand.line_axis} × {operand.depth:,} k, in panels of {operand.panel} {operand.line_axis}"
    canvas.text(0, top + 12, f"{operand.name}: {extents}", "head")
    y = canvas.paragraph(0, top + 30, f"Numbers are places in the packed memory; {operand.note}.", "note", WIDTH, LINE)
    panels = min(2, operand.lines // operand.panel)
    lines = [line if line is None else panel * operand.panel + line for panel in range(panels) for line in _ends(operand.panel)]
    steps = _ends(operand.depth)
    wide = 10 + width_of(str(panels * operand.panel * operand.depth), "cell")
    down, across = (lines, steps) if operand.upright else (steps, lines)
    wide = min(wide, (WIDTH - 60) / len(across))
    canvas.text(44 + len(across) * wide / 2, y + 4, columns, "note mid")
    y += 10
    with canvas.group(packed=operand.name, panel=operand.panel):
        for row, first in enumerate(down):
            canvas.text(36, y + row * CELL_HEIGHT + 14, "…" if first is None else str(first), "tiny end")
            for column, second in enumerate(across):
                line, step = (first, second) if operand.upright else (second, first)
                box = (44 + column * wide, y + row * CELL_HEIGHT, wide, CELL_HEIGHT)
                if line is None or step is None:
                    canvas.rect(*box, "gap thin")
                    continue
                panel, within = divmod(line, operand.panel)
                place = panel * operand.panel * operand.depth + step * operand.panel + within
                canvas.rect(*box, f"c{panel} thin", line=line, step=step, place=place)
                canvas.text(box[0] + wide / 2, box[1] + 14, str(place), "cell mid")
    canvas.text(0, y + len(down) * CELL_HEIGHT / 2 + 4, rows, "note")
    y += len(down) * CELL_HEIGHT + 12
    canvas.text(0, y + 13, "in memory", "note")
    left = 80.0
    pieces = [(panel, step) for panel in range(panels) for step in steps]
    wide = (WIDTH - left) / len(pieces)
    for place, (panel, at) in enumerate(pieces):
        canvas.rect(left + place * wide, y, wide, CELL_HEIGHT, "gap thin" if at is None else f"c{panel} thin")
        if at is not None:
            canvas.text(left + (place + 0.5) * wide, y + 14, f"k={at}", "cell mid")
    y += CELL_HEIGHT + LINE
    canvas.text(left, y, f"each box: {operand.panel} floats, which one step of the micro-kernel reads", "note")
    return y


def _ends(extent: int) -> list[int | None]:
    """The first few and the last of as many numbers, with None for those between."""
    return list(range(extent)) if extent <= SHOWN + 2 else [*range(SHOWN), None, extent - 1]
