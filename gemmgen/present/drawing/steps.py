"""Draws the walk over a filter's taps: the window in the image, and the step from each tap to the next."""

from __future__ import annotations

from gemmgen.kernels.pictures import TapWalk
from gemmgen.present.drawing.svg import WIDTH, Canvas

LINE = 16
CELL = 46.0
WINDOW = 340.0
"""Room for the window, in pixels."""
ROW = 19.0
IN_A_COLUMN = 18
COLUMNS = 3
BAR = 40.0


def draw_tap_walk(canvas: Canvas, picture: TapWalk, top: float) -> float:
    """Draws from ``top`` on; returns where the picture ends."""
    y = top + 14
    canvas.text(0, y, f"filter of {picture.rows} x {picture.columns} taps, as they are numbered", "text")
    cell = min(CELL, (WINDOW - 20) / picture.columns)
    kind = "cell mid" if cell >= 24 else "tiny mid"
    for row in range(picture.rows):
        for column in range(picture.columns):
            box = (column * cell, y + 12 + row * cell)
            tap = row * picture.columns + column
            canvas.rect(*box, cell - 2, cell - 2, f"c{row % 7} thin", tap=tap)
            canvas.text(box[0] + cell / 2 - 1, box[1] + cell / 2 + 3, str(tap), kind)
    bottom = y + 12 + picture.rows * cell
    canvas.text(WINDOW, y, "from tap i to the next that a thread copies, bytes", "text")
    shown = picture.steps[: IN_A_COLUMN * COLUMNS]
    high = -(-len(shown) // -(-len(shown) // IN_A_COLUMN))
    wide = (WIDTH - WINDOW) / COLUMNS
    longest = max(abs(step.increment) for step in picture.steps) or 1
    for number, step in enumerate(shown):
        column, row = divmod(number, high)
        x, at = WINDOW + column * wide, y + 12 + row * ROW
        canvas.text(x + 20, at + 12, str(number), "tiny end")
        canvas.rect(x + 26, at + 2, max(1.0, BAR * abs(step.increment) / longest), 12, f"c{step.row % 7} thin", increment=step.increment)
        canvas.text(x + 32 + BAR, at + 12, f"{step.increment:+,}", "cell")
    bottom = max(bottom, y + 12 + high * ROW) + 16
    for note in picture.notes:
        bottom = canvas.paragraph(0, bottom, note, "note", WIDTH, LINE)
    return bottom
