"""Draws the operands of a loop's multiply-adds by register bank, in the order in which they are issued."""

from __future__ import annotations

from gemmgen.kernels.pictures import RegisterBanks
from gemmgen.present.drawing.svg import WIDTH, Canvas

LINE = 16
IN_A_COLUMN = 32
COLUMNS = 4
CELL_WIDTH, CELL_HEIGHT = 46.0, 15.0
NUMBER = 34.0


def draw_register_banks(canvas: Canvas, picture: RegisterBanks, top: float) -> float:
    """Draws from ``top`` on; returns where the picture ends."""
    y = top + 14
    x = 0.0
    for kind, text in (
        ("c0", "even registers"),
        ("c1", "odd registers"),
        ("gap", "in the reuse cache: no bank is read"),
        ("c5 bold", "conflict"),
    ):
        canvas.rect(x, y - 10, 14, 11, f"{kind} thin" if kind != "c5 bold" else kind)
        canvas.text(x + 20, y, text, "note")
        x += 20 + 8 * len(text) + 16
    y += 14
    shown = picture.instructions[: IN_A_COLUMN * COLUMNS]
    apart = WIDTH / COLUMNS
    for number, one in enumerate(shown):
        column, row = divmod(number, IN_A_COLUMN)
        left, at = column * apart, y + row * (CELL_HEIGHT + 2)
        canvas.text(left + NUMBER - 6, at + 11.5, str(number), "tiny end")
        with canvas.group(ffma=number, conflict=int(one.conflict)):
            for place, (register, reused) in enumerate(one.operands):
                box = left + NUMBER + place * CELL_WIDTH
                canvas.rect(
                    box,
                    at,
                    CELL_WIDTH - 2,
                    CELL_HEIGHT,
                    f"c{register % picture.banks} thin" if not reused else "gap thin",
                    register=register,
                )
                canvas.text(box + CELL_WIDTH / 2 - 1, at + 11.5, f"R{register}", "tiny mid")
            if one.conflict:
                canvas.rect(left + NUMBER - 1.5, at - 1, len(one.operands) * CELL_WIDTH + 1, CELL_HEIGHT + 2, "bold empty")
                canvas.rect(left + NUMBER + len(one.operands) * CELL_WIDTH + 3, at + 3, 8, 9, "c5 bold")
    y += min(len(shown), IN_A_COLUMN) * (CELL_HEIGHT + 2) + 14
    for note in picture.notes:
        y = canvas.paragraph(0, y, note, "note", WIDTH, LINE)
    return y
