"""Draws orders of lanes side by side: where each lane is, and which groups of lanes share a read of shared memory."""

from __future__ import annotations

from gemmgen.hardware.shared_memory import WARP, served_groups
from gemmgen.kernels.pictures import LaneOrder, LaneOrders, SharedAccess
from gemmgen.present.drawing.descriptions import cost_of
from gemmgen.present.drawing.svg import COLORS, SIZES, WIDTH, Canvas, number, width_of

GAP = 30
LINE = 16
IN_A_ROW = 8
"""Lanes in a row of the tables of reads: those that 16-byte accesses are served by."""


def draw_lane_orders(canvas: Canvas, picture: LaneOrders, top: float) -> float:
    """Draws from ``top`` on; returns where the picture ends."""
    room = (WIDTH - GAP) / 2
    ends = [_draw_order(canvas, order, picture, place * (room + GAP), top + 14, room) for place, order in enumerate(picture.orders)]
    y = max(ends) + 8
    for note in picture.notes:
        y = canvas.paragraph(0, y, note, "note", WIDTH, LINE)
    return y


def _draw_order(canvas: Canvas, order: LaneOrder, picture: LaneOrders, x: float, top: float, room: float) -> float:
    costs = [cost_of(access).wavefronts for _, access in order.reads]
    fewest = sum(costs) == min(sum(cost_of(access).wavefronts for _, access in each.reads) for each in picture.orders)
    canvas.text(x, top, order.title + (", as here" if order.chosen and len(picture.orders) > 1 else ""), "head")
    total = f"{' + '.join(map(str, costs))} = {sum(costs)} wavefronts"
    canvas.text(x + room, top, total, f"head end {'good' if fewest else 'bad'}", order=order.title, wavefronts=sum(costs))
    rows, columns = (1 + max(place[axis] for place in order.positions) for axis in (0, 1))
    wide, high = min(88.0, (room - 40) / columns), min(26.0, max(13.0, 210 / rows))
    left, upper = x + 24, top + 28
    canvas.text(left, upper - 6, f"{columns} lanes along {picture.column_axis}", "note")
    canvas.text(x, upper + 12, picture.row_axis, "note")
    with canvas.group(order=order.title):
        for lane, (row, column) in enumerate(order.positions):
            kind = f"c{lane // IN_A_ROW % COLORS} thin"
            canvas.rect(left + column * wide, upper + row * high, wide, high, kind, lane=lane, row=row, column=column)
        wire = [(left + (column + 0.5) * wide, upper + (row + 0.5) * high) for row, column in order.positions]
        canvas.path("M" + "L".join(f"{number(across)} {number(down)}" for across, down in wire), "wire")
        for lane, (row, column) in enumerate(order.positions):
            kind = "number" if wide > 30 and high > 18 else "tiny"
            x_text, y_text, size = left + (column + 0.5) * wide, upper + (row + 0.5) * high, SIZES[kind]
            badge = width_of(str(lane), kind) + 2
            canvas.rect(x_text - badge / 2, y_text - size / 2, badge, size, f"c{lane // IN_A_ROW % COLORS}")
            canvas.text(x_text, y_text + size * 0.36, str(lane), f"{kind} mid")
    bottom = upper + rows * high + 30
    share = room / len(order.reads)
    ends = []
    for place, (name, access) in enumerate(order.reads):
        with canvas.group(order=order.title, reads=name):
            ends.append(_draw_reads(canvas, name, access, x + place * share, bottom, share - 16))
    return max(ends)


def _draw_reads(canvas: Canvas, name: str, access: SharedAccess, x: float, top: float, room: float) -> float:
    """A table of lanes, eight in a row, each with the number of the vector that it reads, and its wavefront."""
    vectors = {offset: place for place, offset in enumerate(sorted({offset for offset in access.offsets if offset >= 0}))}
    cost = cost_of(access)
    canvas.text(x, top, f"reads of {name}, {access.width} bytes a lane", "text strong")
    wide, high = (room - 24) / IN_A_ROW, 19.0
    upper = top + 10
    for lane, offset in enumerate(access.offsets):
        row, column = divmod(lane, IN_A_ROW)
        at_x, at_y = x + column * wide, upper + row * (high + 5)
        vector = vectors[offset]
        canvas.rect(at_x, at_y, wide, high, f"c{vector % COLORS} thin", lane=lane, vector=vector)
        label = str(vector)
        kind = "cell" if width_of(label, "cell") <= wide else "tiny"
        canvas.text(at_x + wide / 2, at_y + high / 2 + SIZES[kind] * 0.36, label, f"{kind} mid")
    for group in served_groups(access.offsets, access.width, store=access.store):
        first, last = group.first_lane // IN_A_ROW, (group.first_lane + group.lanes - 1) // IN_A_ROW
        begin, end = upper + first * (high + 5), upper + last * (high + 5) + high
        canvas.rect(x - 1.5, begin - 1.5, IN_A_ROW * wide + 3, end - begin + 3, "bold empty")
        canvas.text(x + room - 19, (begin + end) / 2 + 4, f"→ {group.wavefronts}", "cell strong", wavefronts=group.wavefronts)
    bottom = upper + (WARP // IN_A_ROW) * (high + 5) + 14
    total = f"{cost.wavefronts} wavefront{'s' if cost.wavefronts > 1 else ''}"
    canvas.text(x, bottom, total, "text strong", wavefronts_of_all=cost.wavefronts)
    return bottom + LINE
