"""Draws a main loop as it is issued: the unit of each instruction, its control code, and the loop beside the instruction cache."""

from __future__ import annotations

from gemmgen.kernels.pictures import IssueSlot, LoopCode
from gemmgen.present.drawing.svg import WIDTH, Canvas, width_of

LINE = 16
IN_A_ROW = 32
SHOWN = 1024
"""Instructions that are drawn at most."""
LEFT = 46.0
CELL_HEIGHT = 21.0
ROW = 25.0
BAR = 22.0
KINDS = ("multiply-add", "tensor core", "shared memory", "global memory", "integer", "control", "other")


def draw_loop_code(canvas: Canvas, picture: LoopCode, top: float) -> float:
    """Draws from ``top`` on; returns where the picture ends."""
    y = _legend(canvas, picture, top + 14)
    wide = (WIDTH - LEFT) / IN_A_ROW
    shown = picture.slots[:SHOWN]
    for number, slot in enumerate(shown):
        row, column = divmod(number, IN_A_ROW)
        if column == 0:
            canvas.text(LEFT - 6, y + row * ROW + 14, str(number), "tiny end")
        _draw_slot(canvas, slot, LEFT + column * wide, y + row * ROW, wide - 2)
    y += -(-len(shown) // IN_A_ROW) * ROW + 14
    y = _draw_cache(canvas, picture, y)
    for note in picture.notes:
        y = canvas.paragraph(0, y, note, "note", WIDTH, LINE)
    return y


def _legend(canvas: Canvas, picture: LoopCode, y: float) -> float:
    x = 0.0
    for number, kind in enumerate(KINDS):
        if not any(slot.kind == kind for slot in picture.slots):
            continue
        canvas.rect(x, y - 10, 14, 11, f"c{number} thin")
        canvas.text(x + 20, y, kind, "note")
        x += 36 + width_of(kind, "note")
    x, y = 0.0, y + 20
    for mark, text in (("bad", "waits for a barrier"), ("worker", "sets a barrier"), ("origin", "operands kept for reuse")):
        canvas.rect(x, y - 6, 14, 4, mark)
        canvas.text(x + 20, y, text, "note")
        x += 36 + width_of(text, "note")
    canvas.text(x, y, "number: cycles to stall, where they are more than one", "note")
    return y + 14


def _draw_slot(canvas: Canvas, slot: IssueSlot, x: float, y: float, wide: float) -> None:
    canvas.rect(x, y, wide, CELL_HEIGHT, f"c{KINDS.index(slot.kind)} thin")
    if slot.waits:
        canvas.rect(x, y, wide, 4, "bad")
    if slot.sets:
        canvas.rect(x, y + CELL_HEIGHT - 4, wide, 4, "worker")
    elif slot.reused:
        canvas.rect(x, y + CELL_HEIGHT - 4, wide * slot.reused / 3, 4, "origin")
    if slot.stall > 1:
        canvas.text(x + wide / 2, y + 14, str(slot.stall), "tiny mid")


def _draw_cache(canvas: Canvas, picture: LoopCode, y: float) -> float:
    scale = WIDTH / max(picture.bytes, picture.cache_bytes)
    canvas.text(0, y + 4, f"the loop: {len(picture.slots):,} instructions of 16 bytes, {picture.bytes:,} bytes", "text")
    canvas.rect(0, y + 12, picture.bytes * scale, BAR, "c0 thin", bytes=picture.bytes)
    canvas.text(0, y + 58, f"{picture.cache}: {picture.cache_bytes:,} bytes", "text")
    canvas.rect(0, y + 66, picture.cache_bytes * scale, BAR, "c7 thin", bytes=picture.cache_bytes)
    return y + 66 + BAR + 22
