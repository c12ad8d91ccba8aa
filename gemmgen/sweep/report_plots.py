"""Small plots as SVG: scales with readable ticks, dots, lines and labels, coloured by the page that they stand in.

Thousands of dots are one path, whose pieces of length zero have round ends; ``data-points`` says which point each one is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

Position = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """Maps values from ``low`` to ``high`` to positions from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        part = (value - low) / (high - low) if high > low else 0.5
        return self.start + min(max(part, -0.02), 1.02) * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values within the scale."""
        if self.logarithmic:
            return _decades(self.low, self.high)
        span = self.high - self.low
        if not span > 0:
            return [self.low]
        rough = span / about
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        values = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        values = [value for value in values if low * 0.999 <= value <= high * 1.001]
        if len(values) >= 3:
            return values
    return values


@dataclass
class Plot:
    """One picture of ``width`` by ``height`` user units; add to it, then take ``svg``."""

    width: float
    height: float
    title: str
    """Description for those who cannot see it."""
    left: float = 52
    right: float = 14
    top: float = 26
    bottom: float = 34
    _parts: list[str] = field(default_factory=list)

    @property
    def x_range(self) -> Position:
        return self.left, self.width - self.right

    @property
    def y_range(self) -> Position:
        """From the bottom up."""
        return self.height - self.bottom, self.top

    def x_axis(self, scale: Scale, text: Callable[[float], str], title: str, grid: bool = False, about: int = 6) -> None:
        bottom, top = self.y_range
        for tick in scale.ticks(about):
            x = scale(tick)
            if grid:
                self._parts.append(f'<path class="grid" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>')
            self.label((x, bottom + 14), text(tick), "tick", "middle")
        self._frame(title)

    def categories(self, centres: Sequence[float], names: Sequence[str], title: str, room: float) -> None:
        """An axis of names; names that do not fit beside each other are turned, and cut off."""
        bottom = self.y_range[0]
        slanted = turned(names, room)
        most = 20 if slanted else 40
        for x, name in zip(centres, names, strict=True):
            shown = name if len(name) <= most else f"{name[: most - 1]}…"
            full = f"<title>{escape(name)}</title>" if shown != name else ""
            if slanted:
                at = f'transform="translate({x + 3:.1f} {bottom + 10:.1f}) rotate(-38)" text-anchor="end"'
            else:
                at = f'x="{x:.1f}" y="{bottom + 14:.1f}" text-anchor="middle"'
            self._parts.append(f'<text class="tick" {at}>{full}{escape(shown)}</text>')
        self._frame(title)

    def y_axis(self, scale: Scale, text: Callable[[float], str], about: int = 4, unit: str = "") -> None:
        left, right = self.x_range
        self.label((2, 11), unit, "tick")
        for tick in scale.ticks(about):
            y = scale(tick)
            self._parts.append(f'<path class="grid" d="M{left:.1f} {y:.1f}H{right:.1f}"/>')
            self.label((left - 6, y + 3.5), text(tick), "tick", "end")

    def _frame(self, title: str) -> None:
        bottom = self.y_range[0]
        left, right = self.x_range
        self._parts.append(f'<path class="axis" d="M{left:.1f} {bottom:.1f}H{right:.1f}"/>')
        if title:
            self.label(((left + right) / 2, self.height - 4), title, "axis-title", "middle")

    def dots(self, dots: Iterable[tuple[Position, int]], kind: str) -> None:
        """Each dot with the number of the point that it stands for."""
        placed = list(dots)
        if placed:
            path = "".join(f"M{x:.0f} {y:.0f}h0" for (x, y), _ in placed)
            numbers = " ".join(str(number) for _, number in placed)
            self._parts.append(f'<path class="{kind}" d="{path}" data-points="{numbers}"/>')

    def line(self, positions: Sequence[Position], kind: str) -> None:
        if len(positions) > 1:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in positions)
            self._parts.append(f'<path class="{kind}" d="M{path}"/>')

    def label(self, position: Position, text: str, kind: str, anchor: str = "start") -> None:
        x, y = position
        self._parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def svg(self) -> str:
        """The picture as an element of a page."""
        return (
            f'<svg class="plot" viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(self.title)}">'
            f"{''.join(self._parts)}</svg>"
        )


def turned(names: Sequence[str], room: float) -> bool:
    """True if names with so much room for each do not fit beside each other."""
    return max((len(name) for name in names), default=0) * 6.2 > room


def short(value: float) -> str:
    """A number for an axis, with an SI prefix where it is large."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.3g}"
