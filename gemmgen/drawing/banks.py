"""Draws shared memory as lines of 32 banks, which lanes an access takes where, and the wavefronts that it costs."""

from __future__ import annotations

from collections.abc import Sequence

from gemmgen.drawing.pictures import BankMap, BankMaps, SharedLayout, runs
from gemmgen.drawing.svg import COLORS, SIZES, WIDTH, Canvas, width_of
from gemmgen.shared_memory import BANK_BYTES, BANKS, WARP, served_groups, shared_access_cost

LINE_BYTES = BANKS * BANK_BYTES
GAP = 26
LINE = 16
LEFT, RIGHT = 50.0, 34.0
"""Beside the banks: which bytes and lanes; wavefronts."""
CELL = 17.0
ALL_LINES = 10
"""So many lines are shown even where nothing is accessed."""
MOST_LINES = 34


def draw_bank_maps(canvas: Canvas, picture: BankMaps, top: float) -> float:
    """Draws from ``top`` on; returns where the picture ends."""
    y = top
    for place, one in enumerate(picture.maps):
        y = _draw_map(canvas, one, y + (22 if place else 0), len(picture.maps) > 1)
    return y


def _draw_map(canvas: Canvas, one: BankMap, top: float, several: bool) -> float:
    y = top + 14
    if several:
        canvas.text(0, y, one.title, "head")
        y += LINE + 2
    y = canvas.paragraph(0, y, one.total, "text", WIDTH, LINE)
    for note in one.notes:
        y = canvas.paragraph(0, y, note, "note", WIDTH, LINE)
    beside = one.unit >= 16
    room = (WIDTH - GAP) / 2 if beside else float(WIDTH)
    ends = []
    for place, layout in enumerate(one.layouts):
        with canvas.group(access=one.access, layout=layout.title):
            ends.append(_draw_layout(canvas, one, layout, place * (room + GAP) if beside else 0, y + 8, room))
        y = y if beside else ends[-1] + 4
    return max(ends)


def _draw_layout(canvas: Canvas, one: BankMap, layout: SharedLayout, x: float, top: float, room: float) -> float:
    access = layout.access
    cost = shared_access_cost(access.offsets, access.width, store=access.store)
    unit = one.unit
    cells = LINE_BYTES // unit
    wide = (room - LEFT - RIGHT) / cells
    canvas.text(x, top + 8, layout.title, "head")
    verdict = f"{cost.wavefronts} wavefront{'s' if cost.wavefronts > 1 else ''}, "
    verdict += f"{cost.conflicts} conflict{'' if cost.conflicts == 1 else 's'}"
    kind = "bad" if cost.conflicts else "good"
    canvas.text(x + room, top + 8, verdict, f"head end {kind}", wavefronts=cost.wavefronts, conflicts=cost.conflicts)
    y = top + 32
    left = x + LEFT
    canvas.text(left - 6, y - 4, "bank", "tiny end")
    for cell in range(cells):
        first, last = cell * BANKS // cells, (cell + 1) * BANKS // cells - 1
        canvas.text(left + (cell + 0.5) * wide, y - 4, str(first) if first == last else f"{first}–{last}", "tiny mid")
    y = _draw_lines(canvas, layout, unit, left, y, wide)
    y = _draw_groups(canvas, layout, unit, left, y + 18, wide)
    return y + 6


def _shown_lines(layout: SharedLayout) -> list[int]:
    """The lines of 128 bytes to show: all, or those that are accessed."""
    lines = range(-(-layout.bytes // LINE_BYTES))
    if len(lines) <= ALL_LINES:
        return list(lines)
    touched = {(offset + byte) // LINE_BYTES for offset in layout.access.offsets if offset >= 0 for byte in (0, layout.access.width - 1)}
    found = sorted(touched)
    for line in lines:
        if len(found) >= ALL_LINES // 2:
            break
        if line not in found:
            found.append(line)
    return sorted(found)[:MOST_LINES]


def _draw_lines(canvas: Canvas, layout: SharedLayout, unit: int, left: float, y: float, wide: float) -> float:
    lanes = lanes_by_place(layout, unit)
    previous = -1
    for line in _shown_lines(layout):
        if line != previous + 1:
            canvas.line(left, y + 4, left + wide * (LINE_BYTES // unit), y + 4, "guide")
            y += 8
        previous = line
        canvas.text(left - 6, y + 12.5, str(line * LINE_BYTES), "tiny end")
        for cell in range(LINE_BYTES // unit):
            offset = line * LINE_BYTES + cell * unit
            if offset >= layout.bytes:
                break
            _draw_cell(canvas, layout, offset, lanes.get(offset, []), left + cell * wide, y, wide)
        y += CELL
    return y


def _draw_cell(canvas: Canvas, layout: SharedLayout, offset: int, lanes: Sequence[int], x: float, y: float, wide: float) -> None:
    number = layout.colors.get(offset)
    if number is None and not lanes:
        canvas.rect(x, y, wide, CELL, "gap thin")
        return
    color = "plain" if number is None else f"c{number % COLORS}"
    if not lanes:
        canvas.rect(x, y, wide, CELL, f"{color} dim thin")
        return
    canvas.rect(x, y, wide, CELL, f"{color} bold", offset=offset, lanes=" ".join(map(str, lanes)))
    text, kind = lanes_text(lanes, wide - 3)
    canvas.text(x + wide / 2, y + CELL / 2 + SIZES[kind] * 0.36, text, f"{kind} mid strong")


def lanes_by_place(layout: SharedLayout, unit: int) -> dict[int, list[int]]:
    """For each place of ``unit`` bytes, the lanes that access some of it."""
    found: dict[int, list[int]] = {}
    for lane, offset in enumerate(layout.access.offsets):
        if offset >= 0:
            for place in range(offset // unit * unit, offset + layout.access.width, unit):
                found.setdefault(place, []).append(lane)
    return found


def lanes_text(lanes: Sequence[int], room: float) -> tuple[str, str]:
    """Numbers of lanes, as many as fit, and the class of text in which they do."""
    parts = [str(first) if count == 1 else f"{first}–{first + count - 1}" for first, count in runs(lanes)]
    for kind in ("cell", "tiny"):
        if width_of(",".join(parts), kind) <= room:
            return ",".join(parts), kind
    short = f"{lanes[0]}+{len(lanes) - 1}"
    return (short, "tiny") if width_of(short, "tiny") <= room else (str(lanes[0]), "tiny")


def _draw_groups(canvas: Canvas, layout: SharedLayout, unit: int, left: float, y: float, wide: float) -> float:
    """For each group of lanes that is served together, how many words of each bank it needs; the most are its wavefronts."""
    access = layout.access
    cells = LINE_BYTES // unit
    banks = BANKS // cells
    canvas.text(left, y - 5, "different words of a bank that a group of lanes needs; the largest number is its wavefronts", "tiny")
    if width_of("different words of a bank that a group of lanes needs; the largest number is its wavefronts", "tiny") > cells * wide:
        canvas.parts.pop()
        canvas.text(left, y - 5, "words of a bank that the lanes need; the most are the wavefronts", "tiny")
    for group in served_groups(access.offsets, access.width, store=access.store):
        if not group.wavefronts:
            continue
        with canvas.group(first_lane=group.first_lane, group_lanes=group.lanes, group_wavefronts=group.wavefronts):
            last = min(WARP, group.first_lane + group.lanes) - 1
            canvas.text(left - 6, y + 12.5, f"{group.first_lane}–{last}", "tiny end")
            for cell in range(cells):
                words = max(group.bank_words[cell * banks : (cell + 1) * banks])
                worst = words == group.wavefronts > 1
                canvas.rect(left + cell * wide, y, wide, CELL, "c5 bold" if worst else "plain thin")
                if words:
                    canvas.text(left + (cell + 0.5) * wide, y + 12.5, str(words), "cell mid strong" if worst else "cell mid")
            canvas.text(left + cells * wide + 7, y + 13, f"→ {group.wavefronts}", "cell strong")
        y += CELL + 3
    return y
