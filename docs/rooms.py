"""Draws docs/rooms.svg: the packages of gemmgen in their layers, as the contract in pyproject.toml has them.

python docs/rooms.py
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
WIDTH, MARGIN, GAP, ARROW, LINE, CHARACTER = 900, 12, 10, 20, 14, 5.7
STYLE = """
text { font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: 650; }
.small { font-size: 11.5px; fill: #57606a; }
rect { fill: #f6f8fa; stroke: #8c959f; stroke-width: 1.2; }
line { stroke: #0969da; stroke-width: 1.6; marker-end: url(#head); }
#head path { fill: #0969da; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .small { fill: #9da7b3; } rect { fill: #161b22; stroke: #6e7681; }
  line { stroke: #58a6ff; } #head path { fill: #58a6ff; }
}
"""


def layers() -> list[list[str]]:
    """The packages of each layer, from the highest down."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (contract for contract in contracts if contract["type"] == "layers")
    return [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]


def purpose(package: str) -> str:
    """The first line of a package's docstring, up to its first colon or full stop."""
    path = ROOT / "gemmgen" / package / "__init__.py"
    text = ast.get_docstring(ast.parse((path if path.exists() else path.parent.with_suffix(".py")).read_text())) or ""
    line = text.splitlines()[0]
    return line.split(":")[0].split(". ")[0].rstrip(".")


def picture() -> str:
    """The drawing."""
    parts: list[str] = []
    top = MARGIN
    for row in layers():
        width = (WIDTH - 2 * MARGIN - (len(row) - 1) * GAP) / len(row)
        purposes = {package: textwrap.wrap(purpose(package), int((width - 16) / CHARACTER)) for package in row}
        height = 28 + LINE * max(len(lines) for lines in purposes.values())
        if parts:
            parts.append(f'<line x1="{WIDTH / 2:g}" y1="{top - ARROW + 2}" x2="{WIDTH / 2:g}" y2="{top - 2}"/>')
        for place, (package, lines) in enumerate(purposes.items()):
            left = MARGIN + place * (width + GAP)
            parts.append(f'<rect x="{left:g}" y="{top}" width="{width:g}" height="{height}" rx="7"/>')
            parts.append(f'<text class="title" x="{left + 10:g}" y="{top + 19}">{package}</text>')
            for number, line in enumerate(lines):
                parts.append(f'<text class="small" x="{left + 10:g}" y="{top + 35 + number * LINE}">{escape(line)}</text>')
        top += height + ARROW
    total = top - ARROW + MARGIN
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" width="{WIDTH}" height="{total}" role="img" '
        'aria-label="The packages of gemmgen; each imports only packages below it">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L10 5 L0 10 z"/></marker></defs>',
    ]
    return "\n".join([*head, *parts, "</svg>\n"])


if __name__ == "__main__":
    (ROOT / "docs" / "rooms.svg").write_text(picture())
