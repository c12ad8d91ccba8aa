"""Writes SVG: shapes and texts with classes, a style for light and dark, and how much room a text takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from xml.sax.saxutils import escape, quoteattr

MARGIN = 12
WIDTH = 880 - 2 * MARGIN
"""Width of every picture within its margins, in pixels: a page shows it unscaled."""
COLORS = 8

SIZES = {"title": 17.0, "head": 13.0, "text": 12.5, "note": 12.0, "number": 12.0, "cell": 11.0, "tiny": 9.5}
"""Font size of each class of text."""
_BOLD = ("title", "head")

_LIGHT = ("#a9d0ee", "#f9cd8f", "#a3dbc1", "#e9c2da", "#f2e78a", "#f3b49b", "#d3cdf0", "#d5d9de")
_DARK = ("#1d4f7c", "#7a4d0c", "#14573f", "#703a5d", "#635a10", "#7d3319", "#443f80", "#4a5159")
"""Tints of colors that the color-blind tell apart (after Okabe and Ito), beneath text in each scheme's ink."""


def _fills(colors: Sequence[str]) -> str:
    return " ".join(f".c{number} {{ fill: {color}; }}" for number, color in enumerate(colors))


STYLE = f"""
text {{ font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }}
{" ".join(f".{name} {{ font-size: {size:g}px;{' font-weight: 650;' if name in _BOLD else ''} }}" for name, size in SIZES.items())}
.mid {{ text-anchor: middle; }} .end {{ text-anchor: end; }} .strong {{ font-weight: 650; }}
text.note {{ fill: #57606a; }}
.page {{ fill: #ffffff; }} .plain {{ fill: #f6f8fa; }} .empty {{ fill: none; }} .gap {{ fill: url(#gap); }} .dim {{ fill-opacity: 0.3; }}
.edge {{ stroke: #8c959f; stroke-width: 1; }} .thin {{ stroke: #8c959f; stroke-width: 0.6; }} .bold {{ stroke: #1f2328; stroke-width: 2; }}
.ink {{ stroke: #1f2328; stroke-width: 0.8; }}
.guide {{ stroke: #6e7781; stroke-width: 1; stroke-dasharray: 4 3; fill: none; }}
.wire {{ stroke: #0969da; stroke-width: 1.4; fill: none; }} .head-of-wire {{ fill: #0969da; }}
.hatch {{ stroke: #8c959f; stroke-width: 1; }}
.bad {{ fill: #b3261e; }} .good {{ fill: #1a7f37; }}
.into {{ fill: #bc4c00; }} .origin {{ fill: #54aeff; }} .worker {{ fill: #2da44e; }}
{_fills(_LIGHT)}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3; }} text.note {{ fill: #9da7b3; }}
.page {{ fill: #0d1117; }} .plain {{ fill: #161b22; }}
.edge, .thin {{ stroke: #768390; }} .bold, .ink {{ stroke: #e6edf3; }} .guide {{ stroke: #8b949e; }} .hatch {{ stroke: #768390; }}
.wire {{ stroke: #58a6ff; }} .head-of-wire {{ fill: #58a6ff; }}
.bad {{ fill: #ff8f85; }} .good {{ fill: #56d364; }}
.into {{ fill: #f0883e; }} .origin {{ fill: #388bfd; }} .worker {{ fill: #3fb950; }}
{_fills(_DARK)}
}}
"""

_NARROW = frozenset("iljtfrI.,:;'|()[]!/ -")
_WIDE = frozenset("mwMWQ@%→×…")


def text_width(content: str, size: float, bold: bool = False) -> float:
    """About how wide a text is, in pixels; no narrower than it is in the usual sans-serif fonts."""
    units = sum(0.36 if letter in _NARROW else 0.9 if letter in _WIDE else 0.7 if letter.isupper() else 0.6 for letter in content)
    return units * size * (1.12 if bold else 1.0)


def width_of(content: str, kinds: str) -> float:
    """Width of a text of some classes, the first of which is one of ``SIZES``."""
    kind, *more = kinds.split()
    return text_width(content, SIZES[kind], kind in _BOLD or "strong" in more)


def wrap(content: str, kind: str, width: float) -> list[str]:
    """The text in lines no wider than ``width``, where its words allow it."""
    lines: list[str] = []
    for word in content.split():
        if lines and width_of(f"{lines[-1]} {word}", kind) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def number(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


class Canvas:
    """Shapes and texts from top to bottom; the caller gives positions."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, kind: str, **data: object) -> None:
        """A rectangle of the classes ``kind``."""
        box = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        self.parts.append(f'<rect class="{kind}" {box}{_data(data)}/>')

    def path(self, steps: str, kind: str, **data: object) -> None:
        """A path, written as in SVG."""
        self.parts.append(f'<path class="{kind}" d="{steps}"{_data(data)}/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """A straight line."""
        self.path(f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}", kind)

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A straight line, level or upright, with a head at its end."""
        self.line(x1, y1, x2, y2, "wire")
        along, across = (0, 1) if x1 == x2 else (1, 0)
        sign = 1 if (x2 - x1) + (y2 - y1) > 0 else -1
        back_x, back_y = x2 - sign * 7 * along, y2 - sign * 7 * across
        corners = [(x2, y2), (back_x - 4 * across, back_y - 4 * along), (back_x + 4 * across, back_y + 4 * along)]
        self.path("M" + "L".join(f"{number(x)} {number(y)}" for x, y in corners) + "z", "head-of-wire")

    def text(self, x: float, y: float, content: str, kind: str, **data: object) -> None:
        """A text on the base line ``y``; the first of the classes ``kind`` is one of ``SIZES``."""
        self.parts.append(f'<text class="{kind}" x="{number(x)}" y="{number(y)}"{_data(data)}>{escape(content)}</text>')

    def paragraph(self, x: float, y: float, content: str, kind: str, width: float, leading: float = 16) -> float:
        """A text in as many lines as it needs; returns the base line for the next element."""
        for line in wrap(content, kind, width):
            self.text(x, y, line, kind)
            y += leading
        return y

    @contextmanager
    def group(self, **data: object) -> Iterator[None]:
        """A group for all that is drawn meanwhile, with ``data``."""
        self.parts.append(f"<g{_data(data)}>")
        yield
        self.parts.append("</g>")


def document(parts: Sequence[str], height: float, title: str, description: str) -> str:
    """A whole SVG file, ``WIDTH`` and two margins wide; ``description`` is for screen readers."""
    width = WIDTH + 2 * MARGIN
    size = f'viewBox="0 0 {width} {number(height)}" width="{width}" height="{number(height)}"'
    hatch = '<pattern id="gap" width="5" height="5" patternUnits="userSpaceOnUse"><path class="hatch" d="M0 5L5 0"/></pattern>'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title description">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="description">{escape(description)}</desc>',
            f"<style>{STYLE}</style>",
            f"<defs>{hatch}</defs>",
            f'<rect class="page" width="{width}" height="{number(height)}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _data(data: dict[str, object]) -> str:
    return "".join(f" data-{name.replace('_', '-')}={quoteattr(str(value))}" for name, value in data.items())
