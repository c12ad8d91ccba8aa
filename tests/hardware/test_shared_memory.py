"""The wavefront rule against hardware counters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemmgen.hardware.shared_memory import copy_source_degree, shared_access_cost

MEASURED = json.loads((Path(__file__).parents[1] / "data" / "shared_memory_wavefronts_h200.json").read_text())


@pytest.mark.parametrize("pattern", MEASURED, ids=lambda pattern: f"{pattern['name']}-{pattern['width']}-{pattern['store']}")
def test_reproduces_every_measured_pattern(pattern: dict[str, Any]) -> None:
    cost = shared_access_cost(pattern["offsets"], pattern["width"], store=pattern["store"])
    assert (cost.wavefronts, cost.conflicts) == (pattern["wavefronts"], pattern["conflicts"])


def test_no_active_lane_costs_nothing() -> None:
    assert shared_access_cost([-1] * 32, 16, store=False).wavefronts == 0


@pytest.mark.parametrize(("offsets", "width"), [([0] * 31, 4), ([0] * 32, 3), ([0] * 32, 32)])
def test_rejects_what_is_no_warp_wide_access(offsets: list[int], width: int) -> None:
    with pytest.raises(ValueError):
        shared_access_cost(offsets, width, store=False)


@pytest.mark.parametrize(("apart", "degree"), [(32, 1), (64, 2), (96, 1), (128, 4)])
def test_sources_of_copies_meet_in_banks(apart: int, degree: int) -> None:
    assert copy_source_degree([lane // 2 * apart + lane % 2 * 16 for lane in range(32)], 16) == degree


def test_equal_sources_of_copies_are_not_merged() -> None:
    assert copy_source_degree([0] * 32, 4) == 32
