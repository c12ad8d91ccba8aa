"""Draws overview.svg, the speeds of gemmgen beside its peers at a glance: python -m measurements.overview

Each row is a table of this folder: the geometric mean of the ratios of the peer's time to gemmgen's, and the least of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmgen.present.drawing.svg import MARGIN, WIDTH, Canvas, document

HERE = Path(__file__).resolve().parent
LEAST, MOST = 0.5, 4.0
"""Ends of the logarithmic axis."""


@dataclass(frozen=True)
class Row:
    """Ratios of one kind of problem."""

    name: str
    peer: str
    ratios: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios."""
        return math.exp(sum(map(math.log, self.ratios)) / len(self.ratios))


def _tables(file: str) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Tables of a report, each with the nearest heading above it; cells by their titles."""
    heading, titles, rows = "", list[str](), list[dict[str, str]]()
    for line in [*(HERE / file).read_text().splitlines(), ""]:
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and titles and not set(line) <= set("|-: "):
            rows.append(dict(zip(titles, cells, strict=True)))
        elif cells and not titles:
            titles = cells
        elif not cells:
            if rows:
                yield heading, rows
            titles, rows = [], []
            heading = line.removeprefix("## ") if line.startswith("## ") else heading


def _ratios(file: str, headings: str = ".*", column: str = "ratio") -> tuple[float, ...]:
    """The ratios in a column of the tables of a report below headings that match."""
    found = [row for heading, rows in _tables(file) if re.fullmatch(headings, heading) for row in rows]
    return tuple(float(row[column].strip("*")) for row in found if row.get(column))


def _reductions(compiled: bool) -> tuple[float, ...]:
    """Ratios of reductions along rows: beside PyTorch, or beside the faster of PyTorch and torch.compile."""
    rows = [row for heading, rows in _tables("row_operations.md") if heading.startswith("Reductions") for row in rows]
    if compiled:
        return tuple(float(row["ratio"]) for row in rows if row["torch.compile"])
    return tuple(float(row["PyTorch"]) / float(row["ours"]) for row in rows)


def comparisons() -> list[Row]:
    """All rows of the picture."""
    return [
        Row("float32 products", "cuBLASLt", _ratios("products_h200_f32.md", "float32")),
        Row("bfloat16 products", "cuBLASLt", _ratios("products_h200.md", "bf16")),
        Row("float16 products", "cuBLASLt", _ratios("products_h200.md", "f16")),
        Row("8-bit float products", "cuBLASLt", _ratios("products_h200.md", "e4m3 to bf16")),
        Row("int8 products", "cuBLASLt", _ratios("products_h200.md", "int8 to int32")),
        Row("bfloat16 with bias and GELU", "cuBLASLt", _ratios("products_h200.md", "bf16 with bias and GELU.*")),
        Row("weights of 4 and 8 bits", "cuBLASLt, bfloat16", _ratios("formats.md", "Narrow weights.*", "cuBLASLt / ours")),
        Row("reductions along rows", "PyTorch", _reductions(compiled=False)),
        Row("reductions along rows", "PyTorch, torch.compile", _reductions(compiled=True)),
        Row("int8 convolutions", "cuDNN", _ratios("conv2d_hopper.md", "s8, .*ResNet-50")),
        Row("16-bit convolutions", "cuDNN", _ratios("convolutions.md")),
    ]


def picture(rows: Sequence[Row]) -> str:
    """The picture: for each row a bar from 1 to the geometric mean, and a mark at the least ratio."""
    left, right, top, height = 330.0, 170.0, 62.0, 26.0
    span = math.log(MOST / LEAST)

    def place(ratio: float) -> float:
        return left + (WIDTH - left - right) * math.log(min(max(ratio, LEAST), MOST) / LEAST) / span

    canvas = Canvas()
    title = "Time of the best peer over gemmgen's, on an H200"
    canvas.text(0, 16, title, "title")
    bottom = top + height * len(rows)
    for ratio in (0.5, 1, 2, 4):
        canvas.line(place(ratio), top - 6, place(ratio), bottom, "bold" if ratio == 1 else "guide")
        canvas.text(place(ratio), top - 12, f"{ratio:g}×", "note mid")
    for number, row in enumerate(rows):
        y = top + height * number
        canvas.text(0, y + 16, row.name, "text strong")
        canvas.text(left - 12, y + 16, row.peer, "note end")
        ends = sorted((place(1), place(row.mean)))
        canvas.rect(ends[0], y + 4, max(ends[1] - ends[0], 1), 16, "c0 thin")
        worst = place(min(row.ratios))
        canvas.line(worst, y + 2, worst, y + 22, "wire")
        canvas.text(WIDTH - right + 14, y + 16, f"{row.mean:.2f}, worst {min(row.ratios):.2f} of {len(row.ratios)}", "note")
    note = (
        "Bar: geometric mean. Blue line: the worst case. Right of 1, gemmgen is faster. Shapes are random or those of whole networks; "
        "each table below names its peer and date."
    )
    end = canvas.paragraph(0, bottom + 20, note, "note", WIDTH)
    parts = [f'<g transform="translate({MARGIN} {MARGIN})">', *canvas.parts, "</g>"]
    described = "; ".join(f"{row.name} beside {row.peer}: {row.mean:.2f}, worst {min(row.ratios):.2f}" for row in rows)
    return document(parts, end + 2 * MARGIN, title, described)


if __name__ == "__main__":
    (HERE / "overview.svg").write_text(picture(comparisons()))
