"""Reads pictures back: groups with their data, and texts with about the boxes that they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from gemmgen.present.drawing.svg import SIZES, width_of

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Text:
    content: str
    left: float
    top: float
    right: float
    bottom: float
    kind: str

    def overlaps(self, other: Text) -> bool:
        return self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom


def parse(text: str) -> ElementTree.Element:
    """The document's root; fails if it is not well-formed."""
    return ElementTree.fromstring(text)


def groups(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """All groups that carry the datum ``name``."""
    return [group for group in root.iter(f"{SVG}g") if f"data-{name}" in group.attrib]


def datum(element: ElementTree.Element, name: str) -> int:
    return int(element.attrib[f"data-{name}"])


def texts(root: ElementTree.Element) -> Iterator[Text]:
    """All texts with their boxes on the page."""
    for picture in root.findall(f"{SVG}g"):
        across, down = (float(part) for part in picture.attrib["transform"].removeprefix("translate(").removesuffix(")").split())
        for text in picture.iter(f"{SVG}text"):
            kinds = text.attrib["class"].split()
            content = text.text or ""
            size, width = SIZES[kinds[0]], width_of(content, text.attrib["class"])
            x, y = float(text.attrib["x"]) + across, float(text.attrib["y"]) + down
            left = x - width / 2 if "mid" in kinds else x - width if "end" in kinds else x
            yield Text(content, left, y - 0.75 * size, left + width, y + 0.2 * size, kinds[0])


def overlapping(root: ElementTree.Element) -> list[tuple[str, str]]:
    """Pairs of texts of which one covers a part of the other."""
    rows = sorted(texts(root), key=lambda text: text.top)
    found = []
    for place, text in enumerate(rows):
        for other in rows[place + 1 :]:
            if other.top >= text.bottom:
                break
            if text.overlaps(other):
                found.append((text.content, other.content))
    return found
