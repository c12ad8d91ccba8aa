"""Whatever can be planned can be drawn, and each element has exactly one owner."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy
from kernels.conv2d import random_specs as conv2d
from kernels.gemm import random_specs as gemm
from kernels.reduction import random_specs as reduction

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.kernels.pictures import Division, Fragments, TileHierarchy, Tree
from gemmgen.present.drawing import draw
from gemmgen.present.explanation import illustration_of
from present.drawing.reading import overlapping, parse

FAMILIES = {"conv2d": conv2d.SPECS, "gemm": gemm.SPECS, "reduction": reduction.reductions()}
EXAMPLES = 60


def check_division(division: Division) -> None:
    """Every element belongs to one share, and none lies outside."""
    owners: Counter[tuple[int, int]] = Counter()
    for share in division.shares:
        for first_row, first_column, rows, columns in share.rectangles:
            owners.update(itertools.product(range(first_row, first_row + rows), range(first_column, first_column + columns)))
    assert set(owners.values()) == {1}
    assert len(owners) == division.rows * division.columns
    assert min(owners) == (0, 0) and max(owners) == (division.rows - 1, division.columns - 1)


def check_tree(tree: Tree) -> None:
    """States combined at the end: every thread's exactly once, in one result or, for several rows or columns, in some."""
    held = {thread: Counter([thread]) for thread in range(tree.threads)}
    for step in tree.steps:
        before = dict(held)
        for into, origin in step.pairs:
            held[into] = before[origin] if step.title == "totals of warps" else before[into] + before[origin]
    complete = len(held[0])
    results: Counter[int] = Counter()
    for states in held.values():
        if len(states) == complete and not results & states:
            results += states
    assert results == Counter(range(tree.threads))


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_random_spec_is_drawn(kind: str) -> None:
    specs: SearchStrategy[dict[str, Any]] = FAMILIES[kind]
    outcomes: Counter[str] = Counter()

    @seed(7)
    @settings(max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(specs)
    def check(fields: dict[str, Any]) -> None:
        try:
            plan = gemmgen.plan(fields)
        except PlanError:
            outcomes["rejected"] += 1
            return
        pictures = illustration_of(plan.spec.kind).pictures(plan)
        for picture in pictures:
            if isinstance(picture, TileHierarchy):
                for level in picture.levels:
                    if level.shares:
                        check_division(level)
            elif isinstance(picture, Fragments):
                for division in (picture.a, picture.b, picture.c):
                    if division is not None:
                        check_division(division)
            elif isinstance(picture, Tree):
                check_tree(picture)
        assert overlapping(parse(draw(plan.name, pictures))) == []
        outcomes["drawn"] += 1

    check()
    assert outcomes["drawn"] >= EXAMPLES // 4
