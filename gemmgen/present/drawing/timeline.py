"""Draws timelines, waves of blocks over multiprocessors, and occupancy."""

from __future__ import annotations

from gemmgen.kernels.pictures import LaunchWaves, OccupancyPicture, Timeline, WavePicture
from gemmgen.present.drawing.svg import COLORS, SIZES, WIDTH, Canvas, width_of

LINE = 16
ROW = 26.0
GAP = 4.0
WAVE_HEIGHT = 132.0
SHOWN_WAVES = 12
"""Waves that are drawn one by one; of more, the first and the last."""


def draw_timeline(canvas: Canvas, picture: Timeline, top: float) -> float:
    """Draws from ``top`` on; returns where the picture ends."""
    left = 12 + max(width_of(row, "text") for row in picture.rows)
    length = max(span.start + span.length for span in picture.spans)
    scale = (WIDTH - left - 6) / length
    y = top + 8
    bottom = y + len(picture.rows) * (ROW + GAP)
    for place, row in enumerate(picture.rows):
        canvas.text(left - 8, y + place * (ROW + GAP) + ROW / 2 + 4, row, "text end")
        canvas.rect(left, y + place * (ROW + GAP), length * scale, ROW, "plain")
    for mark in picture.marks:
        canvas.line(left + mark * scale, y - 4, left + mark * scale, bottom, "guide")
    for span in picture.spans:
        at, wide = left + span.start * scale, span.length * scale
        kind = f"c{span.color % COLORS} {'ink' if span.strong else 'thin dim'}"
        row_top = y + span.row * (ROW + GAP)
        canvas.rect(at, row_top, wide, ROW, kind, row=span.row, start=span.start, length=span.length)
        fitting = next((size for size in ("cell", "tiny") if width_of(span.text, size) <= wide - 2), None)
        text = span.text if fitting else span.text.rpartition(" ")[2]
        size = fitting or "tiny"
        if text and width_of(text, size) <= wide - 1:
            canvas.text(at + wide / 2, row_top + ROW / 2 + SIZES[size] * 0.36, text, f"{size} mid")
    canvas.arrow(left, bottom + 8, left + length * scale, bottom + 8)
    canvas.text(left, bottom + 24, picture.unit, "note")
    y = bottom + 24 + LINE
    for note in picture.notes:
        y = canvas.paragraph(0, y + 4, note, "note", WIDTH, LINE)
    return y


def draw_waves(canvas: Canvas, picture: WavePicture, top: float) -> float:
    """Draws from ``top`` on; returns where the picture ends."""
    y = top + 12
    for launch in picture.launches:
        y = _draw_launch(canvas, launch, y) + 14
    for note in picture.notes:
        y = canvas.paragraph(0, y, note, "note", WIDTH, LINE)
    return y


def _draw_launch(canvas: Canvas, launch: LaunchWaves, top: float) -> float:
    at_once = launch.multiprocessors * launch.blocks_per_multiprocessor
    waves = -(-launch.blocks // at_once)
    taken = launch.blocks / (waves * at_once)
    canvas.text(0, top, launch.title, "head")
    verdict = f"{launch.blocks:,} blocks, {at_once:,} at a time: {launch.blocks / at_once:.2f} waves, {taken:.0%} of the places taken"
    color = "bad" if taken <= 0.9 else "good"
    if launch.persistent and waves == 1:  # the blocks take tile after tile, which no wave shows
        verdict, color = f"{launch.blocks:,} persistent blocks, {taken:.0%} of the places taken; each takes several tiles", "note"
    canvas.text(WIDTH, top, verdict, f"head end {color}", waves=waves, blocks=launch.blocks)
    shown = list(range(waves)) if waves <= SHOWN_WAVES else [*range(SHOWN_WAVES - 3), -1, waves - 2, waves - 1]
    left, y = 116.0, top + 14
    wide = (WIDTH - left) / max(len(shown), 4) - 3
    canvas.text(left - 8, y + 12, f"{launch.multiprocessors} SMs", "note end")
    canvas.text(
        left - 8, y + 28, f"x {launch.blocks_per_multiprocessor} block{'s' if launch.blocks_per_multiprocessor > 1 else ''}", "note end"
    )
    for place, wave in enumerate(shown):
        x = left + place * (wide + 3)
        if wave < 0:
            canvas.text(x + wide / 2, y + WAVE_HEIGHT / 2, "…", "head mid")
            continue
        blocks = min(at_once, launch.blocks - wave * at_once)
        filled = WAVE_HEIGHT * blocks / at_once
        canvas.rect(x, y, wide, WAVE_HEIGHT, "gap thin")
        canvas.rect(x, y, wide, filled, f"c{wave % 2} thin", wave=wave, blocks_of_wave=blocks)
        if filled >= 14 and width_of(f"{blocks:,}", "cell") <= wide:
            canvas.text(x + wide / 2, y + filled / 2 + 4, f"{blocks:,}", "cell mid")
        canvas.text(x + wide / 2, y + WAVE_HEIGHT + 13, f"{wave + 1}", "tiny mid")
    canvas.text(left - 8, y + WAVE_HEIGHT + 13, "wave", "tiny end")
    return y + WAVE_HEIGHT + 22


def draw_occupancy(canvas: Canvas, picture: OccupancyPicture, top: float) -> float:
    """Draws from ``top`` on; returns where the picture ends."""
    left = 12 + max(width_of(name, "text strong") for name, _ in picture.limits)
    room = WIDTH * 0.55 - left
    most = max(limit for _, limit in picture.limits)
    y = top + 16
    canvas.text(0, y, "blocks that each resource allows on an SM", "head")
    y += 10
    for name, limit in picture.limits:
        binds = limit == picture.blocks
        canvas.text(left - 8, y + 16, name, "text end strong" if binds else "text end")
        canvas.rect(left, y + 2, max(1.0, room * limit / most), 20, "c5 bold" if binds else "c0 thin", limit=limit)
        canvas.text(left + room * limit / most + 6, y + 16, str(limit), "number strong" if binds else "number")
        y += 26
    x, cells = WIDTH * 0.62, 16
    size = min(20.0, (WIDTH - x) / cells)
    used = picture.blocks * picture.warps_per_block
    canvas.text(x, top + 16, f"{used} of {picture.places} warps ({used / picture.places:.0%})", "head", warps=used)
    for place in range(picture.places):
        row, column = divmod(place, cells)
        block = place // picture.warps_per_block if picture.warps_per_block else 0
        kind = f"c{block % COLORS} thin" if place < used else "gap thin"
        canvas.rect(x + column * size, top + 26 + row * size, size - 1, size - 1, kind)
    end = max(y, top + 26 + -(-picture.places // cells) * size + 4)
    canvas.text(x, end + 10, "one color: the warps of one block", "note")
    end += 22
    for note in picture.notes:
        end = canvas.paragraph(0, end + 10, note, "note", WIDTH, LINE)
    return end + 4
