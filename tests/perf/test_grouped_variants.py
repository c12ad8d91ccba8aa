"""Ways to compute grouped products that are tried."""

from __future__ import annotations

import pytest

from gemmgen.hardware.target import device
from measurements.grouped_variants import CASES, TYPES, table, variants


@pytest.mark.parametrize("kind", TYPES)
def test_variants_differ_and_begin_with_the_choice(kind: str) -> None:
    tried = variants(CASES[0], kind, device("H200"))
    names = [name for name, *_ in tried]
    assert " " not in names[0]
    assert len(set(names)) == len(names) == len({plan.name for _, _, plan, _ in tried})
    assert {f"{names[0]} {words}" for words in ("round-robin", "minor in 1", "major in 4")} < set(names)
    assert all(plan.spec == fit.spec and plan.grouped for _, fit, plan, _ in tried)  # type: ignore[attr-defined]
    assert 64 in {plan.tile_m for _, _, plan, _ in tried}  # type: ignore[attr-defined]


def test_a_page_names_what_was_wrong() -> None:
    row = {"type": "bf16", "groups": 2, "m": 3, "n": 4, "k": 5, "microseconds": {"a": 2.0, "b": 1.0}, "wrong": ["c"]}
    page = table([row], "a device")
    assert "| a | 2.0 | 2.00 |" in page
    assert "Wrong: c." in page
