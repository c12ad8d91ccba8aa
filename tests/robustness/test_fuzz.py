"""Random specs never end in anything but a plan or a message.

GEMMGEN_FUZZ_SPECS=5000 tries so many of each kind; GEMMGEN_FUZZ_SECONDS=3600 goes on for an hour, with a new seed.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from typing import Any

import pytest

import gemmgen
from gemmgen.core.errors import GemmgenError

from .random_specs import SpecMaker

SECONDS = float(os.environ.get("GEMMGEN_FUZZ_SECONDS", "0"))
SPECS = int(os.environ.get("GEMMGEN_FUZZ_SPECS", "150"))
SEED = int(os.environ.get("GEMMGEN_FUZZ_SEED", "0")) or (time.time_ns() % 10**9 if SECONDS else 22)


def outcome(spec: Any) -> str:
    """accepted or rejected; whatever else happens is raised."""
    try:
        plan = gemmgen.plan(spec)
    except GemmgenError as error:
        assert str(error) and len(str(error)) < 100_000
        return "rejected"
    text = gemmgen.render(plan).text
    assert "{{" not in text and "\x1b" not in text and "trap" not in text
    return "accepted"


@pytest.mark.parametrize("way", ["whole", "varied"])
def test_random_specs_are_planned_or_rejected(way: str) -> None:
    maker = SpecMaker(SEED)
    counts: Counter[str] = Counter()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or sum(counts.values()) < SPECS:
        spec = maker.whole() if way == "whole" else maker.varied()
        try:
            counts[outcome(spec)] += 1
        except Exception as error:
            error.add_note(f"seed {SEED}, spec number {sum(counts.values())}: {json.dumps(spec)[:5000]}")
            raise
    print(f"\n{way}, seed {SEED}: {dict(counts)}")
    assert counts["rejected"] and (way == "whole" or counts["accepted"])


def test_the_same_seed_makes_the_same_specs() -> None:
    first, second = (SpecMaker(7) for _ in range(2))
    assert [json.dumps(first.varied()) for _ in range(20)] == [json.dumps(second.varied()) for _ in range(20)]
