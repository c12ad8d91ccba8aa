"""Draws a device's roofs over operations a byte, both axes logarithmic, and where a problem lies beneath them."""

from __future__ import annotations

from math import ceil, floor, log10

from gemmgen.kernels.pictures import RoofPicture
from gemmgen.present.drawing.svg import WIDTH, Canvas

HEIGHT = 280.0
LEFT = 96.0
LINE = 16
ROOM = 4.0
"""Factor by which the axes extend beyond the points."""
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def draw_roofs(canvas: Canvas, picture: RoofPicture, top: float) -> float:
    """Draws from ``top`` on; returns where the picture ends."""
    flat = [roof.value for roof in picture.roofs if not roof.sloped]
    sloped = [roof.value for roof in picture.roofs if roof.sloped]
    highest = max(flat)
    ridges = [highest / value for value in sloped]
    least_x = floor(log10(min([*ridges, *(point.intensity for point in picture.points)]) / ROOM))
    most_x = ceil(log10(max([*ridges, *(point.intensity for point in picture.points)]) * ROOM))
    least_y = floor(log10(min([*flat, *(point.rate for point in picture.points)]) / ROOM))
    most_y = log10(highest * ROOM)
    top += 8
    bottom = top + HEIGHT

    def x_of(intensity: float) -> float:
        return LEFT + (WIDTH - LEFT) * (log10(intensity) - least_x) / (most_x - least_x)

    def y_of(rate: float) -> float:
        return bottom - HEIGHT * (log10(rate) - least_y) / (most_y - least_y)

    canvas.rect(LEFT, top, WIDTH - LEFT, HEIGHT, "plain")
    for power in range(least_x, most_x + 1):
        canvas.line(x_of(10.0**power), top, x_of(10.0**power), bottom, "guide")
        canvas.text(x_of(10.0**power), bottom + 14, f"{10.0**power:,g}", "cell end" if power == most_x else "cell mid")
    for power in range(least_y, floor(most_y) + 1):
        canvas.text(LEFT - 6, y_of(10.0**power) + 4, f"{scaled(10.0**power, picture.unit)}/s", "cell end")
    canvas.text((LEFT + WIDTH) / 2, bottom + 30, f"{picture.unit} a byte", "note mid")
    for roof in picture.roofs:
        if roof.sloped:
            begin = max(10.0**least_x, 10.0**least_y / roof.value)
            canvas.line(x_of(begin), y_of(begin * roof.value), x_of(highest / roof.value), y_of(highest), "wire")
        else:
            begin = min(roof.value / value for value in sloped)
            canvas.line(x_of(begin), y_of(roof.value), WIDTH, y_of(roof.value), "wire")
            canvas.text(WIDTH - 6, y_of(roof.value) - 6, f"{roof.title}: {scaled(roof.value, picture.unit)}/s", "text end")
    y = bottom + 52
    for roof in picture.roofs:
        if roof.sloped:
            ridge = f"{highest / roof.value:.3g} {picture.unit} a byte"
            canvas.text(0, y, f"{roof.title}: {scaled(roof.value, 'B')}/s, the slope that ends at {ridge}", "text")
            y += 20
    for number, point in enumerate(picture.points):
        x, height = x_of(point.intensity), y_of(point.rate)
        canvas.line(x, height, x, bottom, "guide")
        canvas.rect(x - 5, height - 5, 10, 10, f"c{number + 4} bold", intensity=f"{point.intensity:.4g}", rate=f"{point.rate:.4g}")
        canvas.rect(0, y - 10, 10, 10, f"c{number + 4} bold")
        allowed = f"{point.intensity:,.4g} {picture.unit} a byte, at most {scaled(point.rate, picture.unit)}/s"
        canvas.text(16, y, f"{point.title}: {allowed}", "text")
        y += 20
    for note in picture.notes:
        y = canvas.paragraph(0, y, note, "note", WIDTH, LINE)
    return y


def scaled(value: float, unit: str) -> str:
    """A quantity in three digits, with the prefix of its power of a thousand."""
    factor, prefix = next(((factor, prefix) for factor, prefix in _PREFIXES if value >= factor), (1.0, ""))
    return f"{value / factor:.3g} {prefix}{unit}"
