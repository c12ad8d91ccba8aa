"""Draws shared memory as lines of 32 banks, which lanes an access takes where, and the wavefronts that it costs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from gemmgen.hardware.shared_memory import BANK_BYTES, BANKS, WARP, served_groups, shared_access_cost
from gemmgen.kernels.pictures import BankMap, BankMaps, SharedLayout, runs
from gemmgen.present.drawing.svg import COLORS, SIZES, WIDTH, Canvas, number, width_of

LINE_BYTES = BANKS * BANK_BYTES
GAP = 26
LINE = 16
LEFT, RIGHT = 62.0, 30.0
"""Beside the banks: which bytes and lanes; wavefronts."""
CELL = 17.0
ALL_LINES = 10
"""Number of lines that are shown even without accesses."""
MAX_LINES = 34
BESIDE = 16
"""Bytes of a cell from which on layouts are so narrow that two stand side by side."""
MAX_MAPS = 2
"""Accesses of narrower cells that one picture draws; the others are described in words, to bound the length of a page."""


def draw_bank_maps(canvas: Canvas, picture: BankMaps, top: float) -> float:
    """Draws from ``top`` on; returns where the picture ends."""
    y = top
    drawn = drawn_maps(picture)
    for place, one in enumerate(drawn):
        y = _draw_map(canvas, one, y + (22 if place else 0), len(picture.maps) > 1)
    rest = picture.maps[len(drawn) :]
    if rest:
        canvas.text(0, y + 28, "The others; --access draws one of them", "head")
        y += 48
        for one in rest:
            costs = "; ".join(f"{layout.title}: {_verdict(layout)}" for layout in one.layouts)
            y = canvas.paragraph(0, y, f"{one.access}: {one.title}. {costs}", "text", WIDTH, LINE)
    return y


def drawn_maps(picture: BankMaps) -> tuple[BankMap, ...]:
    """The accesses that are drawn: all, or of many whose layouts stand below one another the first."""
    tall = [one for one in picture.maps if one.unit < BESIDE]
    return picture.maps if len(tall) <= MAX_MAPS else picture.maps[:MAX_MAPS]


def _draw_map(canvas: Canvas, one: BankMap, top: float, several: bool) -> float:
    y = top + 14
    if several:
        canvas.text(0, y, one.title, "head")
        y += LINE + 2
    y = canvas.paragraph(0, y, one.total, "text", WIDTH, LINE)
    for note in one.notes:
        y = canvas.paragraph(0, y, note, "note", WIDTH, LINE)
    beside = one.unit >= BESIDE
    room = (WIDTH - GAP) / 2 if beside else float(WIDTH)
    if _shortened(one, (room - LEFT - RIGHT) / (LINE_BYTES // one.unit) - 1):
        y = canvas.paragraph(0, y, "In a cell: 0+7 is lane 0 and seven more, ×8 are eight lanes.", "note", WIDTH, LINE)
    ends = []
    apart = beside and any(not _title_fits(layout, room) for layout in one.layouts)
    for place, layout in enumerate(one.layouts):
        with canvas.group(access=one.access, layout=layout.title):
            ends.append(_draw_layout(canvas, one, layout, place * (room + GAP) if beside else 0, y + 8, room, apart))
        y = y if beside else ends[-1] + 4
    return max(ends)


def _shortened(one: BankMap, room: float) -> bool:
    """True if a cell has more lanes than its room shows."""
    cells = [lanes for layout in one.layouts for lanes in lanes_by_place(layout, one.unit).values()]
    return any(text[0] == "×" or "+" in text for text, _ in (lanes_text(lanes, room) for lanes in cells))


def _verdict(layout: SharedLayout) -> str:
    cost = shared_access_cost(layout.access.offsets, layout.access.width, store=layout.access.store)
    wavefronts = f"{cost.wavefronts} wavefront{'s' if cost.wavefronts > 1 else ''}"
    return f"{wavefronts}, {cost.conflicts} conflict{'' if cost.conflicts == 1 else 's'}"


def _title_fits(layout: SharedLayout, room: float) -> bool:
    """True if a layout's title and its costs fit on one line."""
    return width_of(layout.title, "head") + 12 + width_of(_verdict(layout), "head") <= room


def _draw_layout(canvas: Canvas, one: BankMap, layout: SharedLayout, x: float, top: float, room: float, apart: bool) -> float:
    """Draws one layout; ``apart``: the title of one beside it takes two lines, and so does this one's."""
    access = layout.access
    cost = shared_access_cost(access.offsets, access.width, store=access.store)
    unit = one.unit
    cells = LINE_BYTES // unit
    wide = (room - LEFT - RIGHT) / cells
    canvas.text(x, top + 8, layout.title, "head")
    verdict = _verdict(layout)
    kind = "bad" if cost.conflicts else "good"
    beside = not apart and _title_fits(layout, room)
    y = top + (8 if beside else 24)
    at, anchor = (x + room, "end ") if beside else (x, "")
    canvas.text(at, y, verdict, f"head {anchor}{kind}", wavefronts=cost.wavefronts, conflicts=cost.conflicts)
    y += 24
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
    used = sorted(touched)
    for line in lines:
        if len(used) >= ALL_LINES // 2:
            break
        if line not in used:
            used.append(line)
    return sorted(used)[:MAX_LINES]


def _draw_lines(canvas: Canvas, layout: SharedLayout, unit: int, left: float, y: float, wide: float) -> float:
    lanes = lanes_by_place(layout, unit)
    grid: list[str] = []
    taken: list[tuple[int, float, float]] = []
    previous = -1
    for line in _shown_lines(layout):
        if line != previous + 1:
            canvas.line(left, y + 4, left + wide * (LINE_BYTES // unit), y + 4, "guide")
            y += 8
        previous = line
        canvas.text(left - 6, y + 12.5, f"{'' if grid else 'byte '}{line * LINE_BYTES}", "tiny end")
        offsets = range(line * LINE_BYTES, min((line + 1) * LINE_BYTES, layout.bytes), unit)
        at = left
        for kind, same in groupby(offsets, key=lambda offset: _background(layout, offset)):
            cells = list(same)
            canvas.rect(at, y, len(cells) * wide, CELL, kind)
            taken += [(offset, at + place * wide, y) for place, offset in enumerate(cells) if offset in lanes]
            at += len(cells) * wide
        grid += [f"M{number(left + cell * wide)} {number(y)}v{number(CELL)}" for cell in range(1, len(offsets))]
        grid.append(f"M{number(left)} {number(y)}h{number(at - left)}v{number(CELL)}h{number(left - at)}z")
        y += CELL
    canvas.path("".join(grid), "empty thin")
    for offset, x, top in taken:
        color = layout.colors.get(offset)
        kind = "plain" if color is None else f"c{color % COLORS}"
        canvas.rect(x, top, wide, CELL, f"{kind} bold", offset=offset, lanes=" ".join(map(str, lanes[offset])))
        text, size = lanes_text(lanes[offset], wide - 1)
        canvas.text(x + wide / 2, top + CELL / 2 + SIZES[size] * 0.36, text, f"{size} mid strong")
    return y


def _background(layout: SharedLayout, offset: int) -> str:
    color = layout.colors.get(offset)
    return "gap" if color is None else f"c{color % COLORS} dim"


def lanes_by_place(layout: SharedLayout, unit: int) -> dict[int, list[int]]:
    """For each place of ``unit`` bytes, the lanes that access some of it."""
    lanes: dict[int, list[int]] = {}
    for lane, offset in enumerate(layout.access.offsets):
        if offset >= 0:
            for place in range(offset // unit * unit, offset + layout.access.width, unit):
                lanes.setdefault(place, []).append(lane)
    return lanes


def lanes_text(lanes: Sequence[int], room: float) -> tuple[str, str]:
    """Numbers of lanes and the class of text in which they fit; of too many the first and how many more, or how many there are."""
    parts = [str(first) if count == 1 else f"{first}–{first + count - 1}" for first, count in runs(lanes)]
    for kind in ("cell", "tiny"):
        if width_of(",".join(parts), f"{kind} strong") <= room:
            return ",".join(parts), kind
    short = f"{lanes[0]}+{len(lanes) - 1}"
    return (short, "tiny") if width_of(short, "tiny strong") <= room else (f"×{len(lanes)}", "tiny")


def _draw_groups(canvas: Canvas, layout: SharedLayout, unit: int, left: float, y: float, wide: float) -> float:
    """For each group of lanes that is served together, how many words of each bank it needs; the most are its wavefronts."""
    access = layout.access
    cells = LINE_BYTES // unit
    banks = BANKS // cells
    canvas.text(left, y - 5, "words of a bank that these lanes need; the most → wavefronts", "tiny")
    for group in served_groups(access.offsets, access.width, store=access.store):
        if not group.wavefronts:
            continue
        with canvas.group(first_lane=group.first_lane, group_lanes=group.lanes, group_wavefronts=group.wavefronts):
            last = min(WARP, group.first_lane + group.lanes) - 1
            canvas.text(left - 6, y + 12.5, f"lanes {group.first_lane}–{last}", "tiny end")
            canvas.rect(left, y, cells * wide, CELL, "plain thin")
            for cell in range(cells):
                words = max(group.bank_words[cell * banks : (cell + 1) * banks])
                worst = words == group.wavefronts > 1
                if worst:
                    canvas.rect(left + cell * wide, y, wide, CELL, "c5 bold")
                if words:
                    canvas.text(left + (cell + 0.5) * wide, y + 12.5, str(words), "cell mid strong" if worst else "cell mid")
            canvas.text(left + cells * wide + 7, y + 13, f"→ {group.wavefronts}", "cell strong")
        y += CELL + 3
    return y
