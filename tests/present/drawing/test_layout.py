"""Pictures of shipped specs are legible: nothing overlaps or leaves the page, and colors have contrast in both schemes."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
from sampling import sampled

import gemmgen
from gemmgen.kernels.pictures import ProductOverview, TileHierarchy
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.present.drawing import draw
from gemmgen.present.drawing.svg import MARGIN, STYLE, WIDTH
from gemmgen.present.explanation import illustration_of
from present.drawing.reading import overlapping, parse, texts

KINDS = sorted({name.split("/")[0] for name in shipped_specs()} & {"gemm", "conv2d", "cpu", "reduction"})
MAX_FILE = 200_000


@cache
def pictures_of(kind: str) -> list[tuple[str, str]]:
    """Every picture of one in six of a family's shipped specs, at least one of every folder."""
    drawn = []
    for name in sampled(shipped_specs(), 6, str, lambda name: name.rpartition("/")[0]):
        if name.startswith(f"{kind}/"):
            plan = gemmgen.plan(shipped_specs()[name])
            drawn += [(f"{name} {each.name}", draw(plan.name, [each])) for each in illustration_of(plan.spec.kind).pictures(plan)]
    return drawn


@pytest.mark.parametrize("kind", KINDS)
def test_texts_do_not_overlap(kind: str) -> None:
    found = {name: overlapping(parse(svg)) for name, svg in pictures_of(kind)}
    assert {name: pairs[:5] for name, pairs in found.items() if pairs} == {}


@pytest.mark.parametrize("stages", [2, 5, 6, 8, 12])
def test_slices_end_within_their_matrix(stages: int) -> None:
    plan = gemmgen.plan(shipped_specs()["gemm/v3_double_buffer"])
    (tiles,) = [each for each in illustration_of("gemm").pictures(plan) if isinstance(each, TileHierarchy)]
    assert isinstance(tiles.overview, ProductOverview)
    root = parse(draw(plan.name, [replace(tiles, overview=replace(tiles.overview, stages=stages))]))
    group = next(each for each in root.iter() if each.get("data-stages") == str(stages))
    matrix, *others = [each.attrib for each in group if each.tag.endswith("rect")]
    slices = [rect for rect in others if rect.get("data-slice") == "a"]
    assert len(slices) == stages
    assert all(float(rect["x"]) + float(rect["width"]) <= float(matrix["x"]) + float(matrix["width"]) for rect in slices)


def test_an_overlap_would_be_found() -> None:
    (_, svg), *_ = pictures_of("gemm")
    place = svg.index("<text")
    twice = svg[:place] + svg[place : svg.index("</text>", place) + 7].replace('y="', 'y="0') + svg[place:]
    assert overlapping(parse(svg)) == [] and len(overlapping(parse(twice))) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_texts_stay_on_the_page(kind: str) -> None:
    for name, svg in pictures_of(kind):
        root = parse(svg)
        height = float(root.attrib["height"])
        outside = [text for text in texts(root) if text.left < 0 or text.right > WIDTH + 2 * MARGIN or text.bottom > height]
        assert not outside, name


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_small(kind: str) -> None:
    sizes = {name: len(svg.encode()) for name, svg in pictures_of(kind)}
    assert max(sizes.values()) < MAX_FILE, max(sizes, key=sizes.__getitem__)


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast_in_both_schemes(scheme: str) -> None:
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    style = light if scheme == "light" else dark
    ink = re.search(r"text \{[^}]*fill: (#\w{6})", style).group(1)  # type: ignore[union-attr]
    page = re.search(r"\.page \{ fill: (#\w{6})", style).group(1)  # type: ignore[union-attr]
    fills = re.findall(r"\.(?:c\d|plain|page) \{ fill: (#\w{6})", style)
    assert len(fills) == 10
    assert min(contrast(ink, fill) for fill in fills) >= 4.5
    for kind in (r"text\.note", r"\.bad", r"\.good"):
        color = re.search(kind + r" \{ fill: (#\w{6})", style).group(1)  # type: ignore[union-attr]
        assert contrast(color, page) >= 4.5, kind


def test_a_picture_is_the_same_every_time() -> None:
    plan = gemmgen.plan(shipped_specs()["gemm/simt/maxas/64"])
    illustration = illustration_of(plan.spec.kind)
    assert draw(plan.name, illustration.pictures(plan)) == draw(plan.name, illustration.pictures(plan))


def test_who_cannot_see_it_is_told_its_numbers() -> None:
    plan = gemmgen.plan(shipped_specs()["gemm/simt/maxas/64"])
    root = parse(draw(plan.name, illustration_of(plan.spec.kind).pictures(plan)))
    assert root.attrib["role"] == "img"
    assert plan.name in root.findtext("{http://www.w3.org/2000/svg}title", "")
    assert "z-order: 2 wavefronts to read A and 2 wavefronts to read B" in root.findtext("{http://www.w3.org/2000/svg}desc", "")
